"""Whether all weights are trained or an adapter (LoRA, QLoRA) beside frozen ones, and the adapter's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from trainwiz import quantities, strategies
from trainwiz.decide.candidates import Candidate
from trainwiz.decide.decision import Decision
from trainwiz.decide.fastest import OFFLOAD, fastest
from trainwiz.decide.host_memory import best_way, room, way_of
from trainwiz.decide.memory import ROOMY, smallest_gpu_bytes
from trainwiz.decide.strategy import Option, options
from trainwiz.message import Message, say
from trainwiz.vocabulary import Adapter

_LENGTH = 1024
"""Tokens of a sample where the length is not decided yet."""
_SAMPLES = 8
"""Of each rank in a real batch, where that is not decided yet."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What is trained, and what that needs with the fastest strategy that fits, or the leanest one."""

    adapter: Adapter
    """The adapter; `none`: all weights are trained."""
    strategy: str
    """Its label, with `+offload` where that is meant."""
    bytes_per_rank: int
    """State, buffers and the activations of one sample."""
    fits: bool | None
    """None where the GPU's memory is unknown."""
    roomy: bool
    """Whether it fits with room for more samples."""
    planned: bool = False
    """The bytes are those of the plan, with its micro-batch and what it keeps."""

    @property
    def shown(self) -> str:
        """The bytes as people read them."""
        return quantities.size(self.bytes_per_rank)

    @property
    def fits_well(self) -> bool:
        """Whether it fits with room, without host memory and, beside an adapter, with whole weights on each rank."""
        if not self.roomy or self.strategy.endswith(OFFLOAD):
            return False
        return self.adapter == "none" or not strategies.labeled(self.strategy).partitions_weights


def methods(d: Decision, length: int | None = None) -> tuple[Method, ...]:
    """All weights, LoRA and QLoRA, as far as they are possible; empty where the size is unknown.

    `length` is that of a sample, where it is not decided yet.
    """
    if d.parameters is None or not d.task.adapters:
        return ()
    return tuple(_method(d, adapter, length) for adapter in get_args(Adapter) if _is_possible(d, adapter))


def _method(d: Decision, adapter: Adapter, length: int | None) -> Method:
    trial = replace(d, values={**d.values, "model.adapter": adapter})
    found, memory = [option for option in options(trial, length) if option.speed], smallest_gpu_bytes(d)
    fitting = [option for option in found if option.fits is not False]
    roomy = [option for option in fitting if memory and option.total_bytes_per_rank <= ROOMY * memory]
    alone = [option for option in fitting if not option.name.endswith(OFFLOAD)]
    # What fits on the GPUs, if barely, says more of a method than what host memory would make room for.
    lean = [option for option in roomy if option in alone] or alone or roomy
    best: Option = (lean or fitting or found[-1:])[0]
    if d.on_cpu:
        return _cpu_method(d, adapter, best.name)
    need = best.total_bytes_per_rank
    return Method(adapter=adapter, strategy=best.name, bytes_per_rank=need, fits=best.fits, roomy=best in roomy)


def _cpu_method(d: Decision, adapter: Adapter, strategy: str) -> Method:
    ranks = d.values["machine.num_processes"] // d.values["machine.num_machines"]
    way = way_of(d, adapter, d.values["precision.mixed_precision"], ranks)
    there = room(d, max(1, ranks))
    fits = way.bytes_per_rank <= there if there else None
    return Method(adapter=adapter, strategy=strategy, bytes_per_rank=way.bytes_per_rank, fits=fits, roomy=bool(fits))


def _is_possible(d: Decision, adapter: str) -> bool:
    return adapter == "none" or not (d.values["model.from_scratch"] or (adapter == "qlora" and d.on_cpu))


def decide_adapter(d: Decision) -> None:
    """Decide whether there is an adapter, its size, and whether it is merged."""
    d.settle_default("model.attention", say("the fastest installed one that suits the data"))
    d.settle_default("model.frozen", say("trains all parameters"))
    d.settle_default("model.neftune_alpha", say("noise rarely helps, and only when fine-tuning on few conversations"))
    rank = d.settle_default("model.lora_rank", say("common default; increase it if the data has much to teach"))
    d.settle_default("model.lora_dora", say("plain LoRA is faster and needs less memory"))
    d.settle("model.adapter", *_usual_method(d))
    d.settle("model.lora_alpha", 2 * rank, say("twice lora_rank"))
    d.settle_default("model.lora_targets", say("as good as full fine-tuning on most data (QLoRA paper)"))
    d.settle_default("model.lora_dropout", say("one pass over the data rarely needs dropout"))
    d.settle_default("model.lora_rslora", say("alpha / rank is the usual scale"))
    d.settle_default(
        "model.modules_to_save", say("the adapter reaches every layer; heads for labels are trained anyway")
    )
    _decide_merging(d)
    d.settle_default("model.output_dtype", say("the trained model takes the place of the one that was loaded"))
    d.settle_default("model.push_to_hub", say("nothing leaves this machine"))
    d.settle_default("model.push_public", say("you can open it on the hub at any time"))


def _decide_merging(d: Decision) -> None:
    if not d.task.generative and d.values["model.adapter"] == "lora":
        d.settle(
            "model.merge_adapter", True, say("only the merged model records how many outputs it has, and their names")
        )
    else:
        d.settle_default("model.merge_adapter", say("the adapter alone is small and can be merged later"))


# docs/decisions/wizard.md: A model that does not fit is trained with an adapter
def _usual_method(d: Decision) -> tuple[str, Message]:
    usual = d.defaults["model.adapter"]
    if not d.task.adapters:
        return usual, say("only tasks on text support adapters")
    length = d.answers.get("batch.sequence_length") or _LENGTH
    whole, *others = methods(d, length) or (None,)
    if d.on_cpu and (way := best_way(d)) and way.adapter != "none":
        return way.adapter, say(
            "{size} of host memory per rank fits; training all weights needs {whole} on a single rank",
            size=quantities.size(way.bytes_per_rank),
            whole=quantities.size(way_of(d, "none").bytes_per_rank),
        )
    chosen = any(key.startswith("strategy.") for key in d.answers)
    if d.task.chats and whole and whole.fits is not None and not whole.fits_well and not chosen:
        if best := next((one for one in others if one.fits_well), None):
            if best.adapter == "qlora" and (row := _as_fast_in_16_bits(d, length)):
                return "lora", say(
                    "all weights do not fit well; with {strategy}, lora is as fast as qlora in the forecast, and no "
                    "weight is rounded to 4 bits",
                    strategy=row.name,
                )
            d.adapter_said = _instead_of(_row(d, "none", length))
            return best.adapter, d.adapter_said(best.shown, whole.shown, whole.strategy)
        if leaner := _with_less_host_memory(d, length):
            return leaner
    return usual, say("trains all weights; lora needs only a fraction of the memory")


def _as_fast_in_16_bits(d: Decision, length: int) -> Candidate | None:
    """LoRA beside sharded weights, if it is forecast to be as fast as QLoRA; None elsewhere."""
    lora, qlora = _row(d, "lora", length), _row(d, "qlora", length)
    if lora is None or qlora is None or lora.host_bytes:
        return None
    return lora if (lora.tokens_per_second or 0) >= (qlora.tokens_per_second or 0) else None


def _instead_of(row: Candidate | None) -> Callable[[str, str, str], Message]:
    """Why an adapter that fits well is the default, of its size, that of all weights, and their strategy."""
    if row is None or not row.host_bytes:
        return lambda size, whole, strategy: say(
            "{size} per rank fits; training all weights needs {whole} with {strategy}",
            size=size,
            whole=whole,
            strategy=strategy,
        )
    return lambda size, *_: say(
        "{size} per rank fits; training all weights needs {host} of host memory on each machine, with {strategy}",
        size=size,
        host=quantities.size(row.host_bytes),
        strategy=row.name,
    )


def as_planned(d: Decision, found: Sequence[Method], peak_bytes: int | None) -> tuple[Method, ...]:
    """The methods, the chosen one with the peak of the plan; the reason for it says the same from then on.

    `peak_bytes` is None where no GPU's memory is forecast.
    """
    chosen = d.values["model.adapter"]
    if peak_bytes is None:
        return tuple(found)
    ways = {way.adapter: way for way in found}
    if chosen in ways:
        ways[chosen] = replace(ways[chosen], bytes_per_rank=peak_bytes, planned=True)
    said, source = d.adapter_said, d.sources["model.adapter"]
    if said and source.kind == "default" and {"none", chosen} <= ways.keys() and ways[chosen].fits:
        reason = said(ways[chosen].shown, ways["none"].shown, ways["none"].strategy)
        d.sources["model.adapter"] = replace(source, reason=reason)
    return tuple(ways.values())


def _with_less_host_memory(d: Decision, length: int) -> tuple[str, Message] | None:
    """An adapter on the GPUs alone, or that of the least host memory, where all weights need more; None elsewhere."""
    rows = {adapter: row for adapter in get_args(Adapter) if (row := _row(d, adapter, length))}
    whole = rows.pop("none", None)
    if not rows or (whole and not whole.host_bytes):
        return None
    adapter = min(rows, key=lambda name: rows[name].host_bytes)
    size = quantities.size(rows[adapter].host_bytes)
    if whole is None and not rows[adapter].host_bytes:
        return adapter, say("fits on the GPUs; training all weights does not fit, even with host memory")
    if whole is None:
        return adapter, say(
            "fits, with {size} of host memory on each machine; training all weights does not", size=size
        )
    need = quantities.size(whole.host_bytes)
    if not rows[adapter].host_bytes:
        return adapter, say(
            "fits on the GPUs; training all weights needs {whole} of host memory on each machine", whole=need
        )
    return adapter, say(
        "needs {size} of host memory on each machine; training all weights needs {whole}", size=size, whole=need
    )


def _row(d: Decision, adapter: str, length: int) -> Candidate | None:
    """The first row of `trainwiz plan` with this adapter; None where nothing fits, or no time can be foretold."""
    if not _is_possible(d, adapter):
        return None
    batch = {"batch.real_batch_size": _SAMPLES * d.values["machine.num_processes"]}  # the data decides it later
    settled = {"model.adapter": adapter, "batch.sequence_length": length}
    return fastest(replace(d, answers={**batch, **d.answers}, values={**d.values, **settled}))
