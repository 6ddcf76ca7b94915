"""Whether all weights are trained or an adapter (LoRA, QLoRA) beside frozen ones, and the adapter's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from trainwiz import quantities, strategies
from trainwiz.decide.decision import Decision
from trainwiz.decide.fastest import OFFLOAD
from trainwiz.decide.host_memory import best_way, room, way_of
from trainwiz.decide.memory import ROOMY, smallest_gpu_bytes
from trainwiz.decide.strategy import Option, options
from trainwiz.message import Message, say
from trainwiz.vocabulary import Adapter

_LENGTH = 1024
"""Tokens of a sample where the length is not decided yet."""


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

    @property
    def shown(self) -> str:
        """The bytes as people read them."""
        return quantities.size(self.bytes_per_rank)

    @property
    def fits_well(self) -> bool:
        """Whether it fits with room, without host memory and, beside an adapter, with whole weights on each rank."""
        if not self.roomy or self.strategy.endswith(OFFLOAD):
            return False
        return self.adapter == "none" or not strategies.labelled(self.strategy).partitions_weights


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
    best: Option = (roomy or fitting or found[-1:])[0]
    if d.on_cpu:
        return _cpu_method(d, adapter, best.name)
    need = best.total_bytes_per_rank
    return Method(adapter=adapter, strategy=best.name, bytes_per_rank=need, fits=best.fits, roomy=bool(roomy))


def _cpu_method(d: Decision, adapter: Adapter, strategy: str) -> Method:
    ranks = d.values["machine.num_processes"] // d.values["machine.num_machines"]
    way = way_of(d, adapter, d.values["precision.mixed_precision"], ranks)
    there = room(d, max(1, ranks))
    fits = way.bytes_per_rank <= there if there else None
    return Method(adapter=adapter, strategy=strategy, bytes_per_rank=way.bytes_per_rank, fits=fits, roomy=bool(fits))


def _is_possible(d: Decision, adapter: Adapter) -> bool:
    return adapter == "none" or not (d.values["model.from_scratch"] or (adapter == "qlora" and d.on_cpu))


def decide_adapter(d: Decision) -> None:
    """Decide whether there is an adapter, its size, and whether it is merged."""
    d.settle_default("model.attention", say("the fastest installed one that suits the data"))
    d.settle_default("model.frozen", say("trains all parameters"))
    d.settle_default("model.neftune_alpha", say("noise rarely helps, and only when fine-tuning on few conversations"))
    rank = d.settle_default("model.lora_rank", say("common default; increase it if the data has much to teach"))
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
    whole, *others = methods(d, d.answers.get("batch.sequence_length") or _LENGTH) or (None,)
    best = next((one for one in others if one and one.fits_well), None)
    if d.on_cpu and (way := best_way(d)) and way.adapter != "none":
        return way.adapter, say(
            "{size} of host memory per rank fits; training all weights needs {whole} on a single rank",
            size=quantities.size(way.bytes_per_rank),
            whole=quantities.size(way_of(d, "none").bytes_per_rank),
        )
    chosen = any(key.startswith("strategy.") for key in d.answers)
    if not d.task.chats or whole is None or whole.fits is None or whole.fits_well or best is None or chosen:
        return usual, say("trains all weights; lora needs only a fraction of the memory")
    return best.adapter, say(
        "{size} per rank fits; training all weights needs {whole} with {strategy}",
        size=best.shown,
        whole=whole.shown,
        strategy=whole.strategy,
    )
