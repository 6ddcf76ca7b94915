"""Which strategy fits: bytes of model state against the GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainwiz import quantities, strategies
from trainwiz.decide.candidates import Candidate
from trainwiz.decide.decision import Decision
from trainwiz.decide.fastest import OFFLOAD, fastest
from trainwiz.decide.host_memory import process_bytes
from trainwiz.decide.memory import smallest_gpu_bytes, work_of
from trainwiz.errors import PlanError
from trainwiz.estimate.device import Work, needs, whole_four_bits
from trainwiz.estimate.reserve import FILLED
from trainwiz.message import Message, say
from trainwiz.strategies import Strategy

STATE_SHARE = 0.6
"""The part of a GPU that model state may take where the model's layers are not known, and activations with them."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A strategy, with or without its offload, and what it needs."""

    name: str
    """Its label, with `+offload` where that is meant."""
    bytes_per_rank: int
    """Model state on each rank."""
    total_bytes_per_rank: int
    """With buffers and with the activations of one sample, which are computed again where they can be.

    On the CPU with the process, too, as it is in the same memory.
    """
    fits: bool | None
    """Whether that leaves enough of the smallest GPU; None where the GPU's memory is unknown."""
    speed: int | None
    """Position in the search for the fastest that fits, 1 first; None: never recommended."""
    planned: bool = False
    """The bytes are those of the plan, with its micro-batch and what it keeps."""

    @property
    def shown(self) -> str:
        """What a rank needs in all as people read it."""
        return quantities.size(self.total_bytes_per_rank)

    @property
    def state_shown(self) -> str:
        """The bytes of model state as people read them."""
        return quantities.size(self.bytes_per_rank)


def options(d: Decision, length: int | None = None) -> tuple[Option, ...]:
    """Every strategy for this world, precision and model, from fast to lean; empty where the size is unknown.

    `length` is that of a sample, where it is not decided yet.
    """
    if d.parameters is None:
        return ()
    several, work = d.values["machine.num_processes"] > 1, work_of(d, length)
    found = [_option(d, row, work, offload=False) for row in strategies.every() if row.one_rank != several]
    found += [_option(d, row, work, offload=True) for row in strategies.every() if row.offload_speed]
    return tuple(sorted(found, key=lambda option: option.speed or len(found)))


def as_planned(d: Decision, found: Sequence[Option], peak_bytes: int | None) -> tuple[Option, ...]:
    """The strategies, the chosen one with the peak of the plan; None where no GPU's memory is forecast."""
    offloads = d.values["strategy.offload_optimizer_device"] != "none"
    name = d.strategy.label + OFFLOAD * offloads
    return tuple(
        replace(option, total_bytes_per_rank=peak_bytes, planned=True) if peak_bytes and option.name == name else option
        for option in found
    )


def _option(d: Decision, row: Strategy, work: Work, *, offload: bool) -> Option:
    memory, weights = smallest_gpu_bytes(d), offload and row.partitions_weights
    work = replace(work, optimizer_offloaded=offload, parameters_offloaded=weights, checkpointing="full")
    need = needs(row, work)
    peak = max(need.total, whole_four_bits(row, work))
    room = FILLED if work.layers_known else STATE_SHARE
    return Option(
        name=row.label + OFFLOAD * offload,
        bytes_per_rank=need.state,
        total_bytes_per_rank=process_bytes(d, row, work) if d.on_cpu else peak,
        fits=peak <= room * memory if memory else None,
        speed=row.offload_speed if offload else row.speed or (row.four_bit_speed if work.adapter == "qlora" else None),
    )


def state_bytes(d: Decision) -> int | None:
    """Model state per rank under the strategy that was decided on; None where the model's size is unknown."""
    return None if d.parameters is None else needs(d.strategy, work_of(d)).state


def could_fit(d: Decision, length: int) -> bool:
    """Whether samples of this length fit with any strategy that is left to choose from; True if unknown."""
    forced = _forced(d)
    found = [each for each in options(d, length) if (each.name == forced[0] if forced else each.speed)]
    return not found or any(each.fits is not False for each in found)


def decide_strategy(d: Decision) -> None:
    """Kind, stage and offload. Those that are given decide the rest. Raises `PlanError`."""
    stage, kind = d.answers.get("strategy.zero_stage"), d.answers.get("strategy.kind")
    if stage is not None and kind is not None and strategies.chosen(kind, stage).zero_stage is None:
        raise PlanError(
            [say("strategy.zero_stage: {stage} needs strategy.kind deepspeed, not {kind}", stage=stage, kind=kind)]
        )
    name, reason = _forced(d) or _recommended_by_engine(d)
    row, offload = strategies.labeled(name.removesuffix(OFFLOAD)), name.endswith(OFFLOAD)
    d.settle("strategy.kind", row.kind, reason)
    staged = strategies.chosen(d.values["strategy.kind"], None).zero_stage is not None
    d.settle("strategy.zero_stage", row.zero_stage if staged else None, reason if staged else _NO_STAGES)
    _settle_engine(d)
    offload = offload and staged
    d.settle("strategy.offload_optimizer_device", "cpu" if offload else "none", reason if offload else _NOT_NEEDED)
    gathers = d.strategy.uses_deepspeed and d.strategy.partitions_weights
    lean = offload and gathers
    d.settle("strategy.offload_param_device", "cpu" if lean else "none", reason if lean else _NOT_NEEDED)
    d.settle_default("strategy.nvme_path", say("only needed for offload to nvme"))
    gathered = say("at stage 3, weights can only be saved after they are gathered")
    d.settle("strategy.zero3_save_16bit_model", gathers, gathered if gathers else _ONLY_STAGE_3)
    if gathers and d.values["model.adapter"] == "qlora":
        d.settle("strategy.zero3_init", False, say("4-bit weights are created whole on the device"))
    elif gathers and _crowds_the_host(d):
        d.settle("strategy.zero3_init", True, say("host memory cannot hold a full model per rank"))
    elif gathers and _crowds_the_gpu(d):
        d.settle(
            "strategy.zero3_init", True, say("half of a GPU cannot hold the whole model, which is moved there first")
        )
    else:
        roomy = say("host memory can hold a full model per rank")
        d.settle("strategy.zero3_init", False, roomy if gathers else _ONLY_STAGE_3)


def recommend(d: Decision) -> tuple[str, Message]:
    """The fastest strategy that fits, and why."""
    world = d.values["machine.num_processes"]
    first = next(row.label for row in strategies.every() if row.speed == 1 and row.one_rank == (world == 1))
    if d.on_cpu:
        return first, say("one rank") if world == 1 else say("CPU ranks share host memory anyway")
    if d.parameters is None and d.task.from_hub and world > 1:
        # docs/decisions/wizard.md: The size of a model is always known
        lean = [row.label for row in strategies.every() if row.speed and row.partitions_weights]
        return lean[0], say("the model's size is unknown; this shards the most")
    if best := fastest(d):
        return best.name, _by_forecast(d, best, first)
    found, memory = [option for option in options(d) if option.speed], smallest_gpu_bytes(d)
    if not found or memory is None:
        return first, say("model size or GPU memory is unknown; this is the fastest strategy")
    return _by_memory(found, memory)


def _by_forecast(d: Decision, best: Candidate, first: str) -> Message:
    """Why it is the best row of `trainwiz plan`, beside the strategy that would do the least."""
    assert d.machine is not None
    ranks = d.values["machine.num_processes"]
    shown = {
        "rate": _rate(best),
        "gpus": f"{ranks} × {d.machine.gpus[0].name}",
        "size": quantities.size(best.peak_bytes),
        "memory": quantities.size(min(gpu.memory_bytes for gpu in d.machine.gpus)),
    }
    ahead = (
        say("forecast for {gpus}: {rate} pictures/s, using {size} of {memory}", **shown)
        if best.work.network
        else say("forecast for {gpus}: {rate} tokens/s, using {size} of {memory}", **shown)
    )
    if best.name == first:
        return say("{forecast}; nothing is faster", forecast=ahead)
    plain = fastest(d, only=first)
    if plain is None:
        need = next(option.total_bytes_per_rank for option in options(d) if option.name == first)
        return say("{forecast}; {first} needs {size}", forecast=ahead, first=first, size=quantities.size(need))
    return say("{forecast}; {first}: {rate}", forecast=ahead, first=first, rate=_rate(plain))


def _rate(row: Candidate) -> str:
    """Tokens or pictures per second of all ranks."""
    return f"{(row.tokens_per_second or 0) * row.work.world:,.0f}"


def _by_memory(found: list[Option], memory: int) -> tuple[str, Message]:
    """The first whose model state fits, and why, if the time of an update cannot be forecast."""
    shown = {"memory": quantities.size(memory), "share": f"{STATE_SHARE:.0%}"}
    best = next((option for option in found if option.fits), None)
    if best is None:
        return found[-1].name, say(
            "needs the least memory: {size} of model state per rank; even this is too much for {memory}",
            size=found[-1].state_shown,
            **shown,
        )
    if best is found[0]:
        return best.name, say(
            "{size} of model state per rank fits in {share} of {memory}; fastest strategy",
            size=best.state_shown,
            **shown,
        )
    return best.name, say(
        "{best_size} of model state per rank fits in {share} of {memory}; {first} needs {size}",
        best_size=best.state_shown,
        first=found[0].name,
        size=found[0].state_shown,
        **shown,
    )


def decide_gradients(d: Decision) -> None:
    """Whether FSDP reduces gradients in each micro-batch, or keeps whole ones and communicates once per update."""
    key, memory = "strategy.sync_each_batch", smallest_gpu_bytes(d)
    if not d.strategy.uses_fsdp or d.values["batch.gradient_accumulation_steps"] == 1:
        d.settle_default(key, say("only used with fsdp and accumulation"))
        return
    if d.parameters is None or memory is None:
        d.settle_default(key, say("model size or GPU memory is unknown; this communicates least"))
        return
    work = replace(work_of(d), samples=d.values["batch.per_device_batch_size"], whole_gradients=True)
    with_whole = needs(d.strategy, work).total
    shown = {"size": quantities.size(with_whole), "memory": quantities.size(memory), "filled": f"{FILLED:.0%}"}
    if with_whole <= FILLED * memory:
        d.settle(key, False, say("with whole gradients, {size} per rank fits in {filled} of {memory}", **shown))
    else:
        d.settle(key, True, say("whole gradients would need {size} per rank, more than {filled} of {memory}", **shown))


_NOT_NEEDED = say("not needed")
_NO_STAGES = say("only DeepSpeed has ZeRO stages")
_ONLY_STAGE_3 = say("only used at ZeRO stage 3")


# docs/decisions/colossalai.md: strategy.kind chooses the plugin, and `engine` alone gets the recommended one
def _settle_engine(d: Decision) -> None:
    kind = d.values["strategy.kind"]
    needed = strategies.chosen(kind, None).engine
    why = (
        say("supports DDP, DeepSpeed and FSDP with one script")
        if needed == "accelerate"
        else say("{kind} is one of its plugins", kind=kind)
    )
    if (engine := d.settle("engine", needed, why)) != needed:
        raise PlanError(
            [
                say(
                    "engine: {engine} does not support strategy.kind {kind}, which needs {needed}",
                    engine=engine,
                    kind=kind,
                    needed=needed,
                )
            ]
        )


def _recommended_by_engine(d: Decision) -> tuple[str, Message]:
    """The recommendation, or its equivalent in the requested engine."""
    name, reason = recommend(d)
    asked = d.answers.get("engine")
    if asked in (None, strategies.labeled(name.removesuffix(OFFLOAD)).engine):
        return name, reason
    bf16 = d.values["precision.mixed_precision"] == "bf16" and not d.on_cpu
    rows = [row for row in strategies.every() if row.engine == asked]
    return next(row.label for row in rows if row.stands_in_for(name, bf16_on_gpu=bf16)), reason


def _forced(d: Decision) -> tuple[str, Message] | None:
    """The strategy that the given kind, stage or offload leaves no choice about, and why."""
    kind, stage = d.answers.get("strategy.kind"), d.answers.get("strategy.zero_stage")
    if kind is not None and (row := strategies.chosen(kind, None)).zero_stage is None:
        return row.label, _NOT_NEEDED
    if stage is not None:
        return f"zero{stage}", say("a ZeRO stage is set")
    weights = d.answers.get("strategy.offload_param_device", "none") not in (None, "none")
    nvme = d.answers.get("strategy.offload_optimizer_device") == "nvme"
    if weights or nvme or d.answers.get("strategy.zero3_init") or d.answers.get("strategy.zero3_save_16bit_model"):
        return "zero3", say("the requested settings need ZeRO stage 3")
    if d.answers.get("strategy.offload_optimizer_device") == "cpu":
        return "zero2", say("offload needs DeepSpeed")
    return ("zero2", say("the most common stage: shards optimizer state and gradients across ranks")) if kind else None


def _crowds_the_gpu(d: Decision) -> bool:
    """Without zero.Init, DeepSpeed moves the whole model to each GPU, and then shards it."""
    memory = smallest_gpu_bytes(d)
    return bool(d.parameters and memory and (2 if d.half else 4) * d.parameters > memory // 2)


def _crowds_the_host(d: Decision) -> bool:
    if not d.task.state_is_whole:  # rank 0 alone builds it
        return False
    if d.parameters is None or d.machine is None or not d.machine.memory.total_bytes:
        return False
    ranks = max(1, d.values["machine.num_processes"] // d.values["machine.num_machines"])
    return bool(4 * d.parameters * ranks > d.machine.memory.total_bytes // 2)
