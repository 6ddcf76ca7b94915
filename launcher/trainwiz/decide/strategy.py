"""Which strategy fits: bytes of model state against the GPU's memory."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz import quantities
from trainwiz.decide.decision import Decision
from trainwiz.errors import PlanError
from trainwiz.estimate.adapter import frozen_bytes_per_rank, trained_parameters
from trainwiz.estimate.state import state_bytes_per_rank
from trainwiz.message import Message, say
from trainwiz.vocabulary import COLOSSAL_KINDS

STATE_SHARE = 0.6
"""The part of a GPU that model state may take; activations, the loss, buffers and the CUDA context need the rest."""
_ONE_RANK = ("single", "zero2+offload", "zero3+offload")
_SEVERAL = ("ddp", "zero1", "zero2", "zero3", "zero2+offload", "zero3+offload")
"""From the fastest to the one that needs the least memory."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A strategy with its model state in bytes per rank; `fits` is None where the GPU's memory is unknown."""

    name: str
    bytes_per_rank: int
    fits: bool | None

    @property
    def shown(self) -> str:
        """The bytes as people read them."""
        return quantities.size(self.bytes_per_rank)


def options(d: Decision) -> tuple[Option, ...]:
    """Every strategy for this world, precision and model, from fast to lean; empty where the size is unknown."""
    if d.parameters is None:
        return ()
    memory, found = smallest_gpu_bytes(d), []
    adapter, world = d.values["model.adapter"], d.values["machine.num_processes"]
    half = d.values["precision.mixed_precision"] in ("fp16", "bf16")
    trained = trained_parameters(d.parameters, adapter, d.values["model.lora_rank"])
    for name in _ONE_RANK if world == 1 else (*_SEVERAL, "fsdp"):
        label, _, away = name.partition("+")
        weights_away = bool(away) and label == "zero3"
        size = state_bytes_per_rank(
            label,
            parameters=trained,
            world=world,
            half=half,
            optimizer_away=bool(away),
            parameters_away=weights_away,
        )
        size += frozen_bytes_per_rank(
            label, parameters=d.parameters - trained, adapter=adapter, world=world, half=half, away=weights_away
        )
        found.append(Option(name=name, bytes_per_rank=size, fits=size <= STATE_SHARE * memory if memory else None))
    return tuple(found)


def state_bytes(d: Decision) -> int | None:
    """Model state per rank under the strategy that was decided on; None where the model's size is unknown."""
    kind, stage = d.values["strategy.kind"], d.values["strategy.zero_stage"]
    away = "+offload" if d.values["strategy.offload_optimizer_device"] != "none" else ""
    name = kind if stage is None else f"zero{stage}{away}"
    return next((o.bytes_per_rank for o in options(d) if o.name == name), None)


def smallest_gpu_bytes(d: Decision) -> int | None:
    """The memory of the smallest GPU; None on a CPU and where it is unknown."""
    if d.on_cpu or d.machine is None or not d.machine.gpus:
        return None
    return min(g.memory_bytes for g in d.machine.gpus)


def decide_strategy(d: Decision) -> None:
    """Kind, stage and offload. What is given of them decides the rest. Raises `PlanError`."""
    stage = d.answers.get("strategy.zero_stage")
    kind = d.answers.get("strategy.kind")
    if stage is not None and kind not in (None, "deepspeed"):
        raise PlanError(
            [say("strategy.zero_stage: {stage} needs strategy.kind deepspeed, not {kind}", stage=stage, kind=kind)]
        )
    name, reason = _forced(d) or (_of_colossalai(d) if d.answers.get("engine") == "colossalai" else recommend(d))
    label, _, away = name.partition("+")
    stage_by_default = int(label[4:]) if label.startswith("zero") else None
    d.settle("strategy.kind", label if stage_by_default is None else "deepspeed", reason)
    _settle_engine(d)
    if d.values["strategy.kind"] == "deepspeed":
        d.settle("strategy.zero_stage", stage_by_default, reason)
    else:
        d.settle("strategy.zero_stage", None, say("only DeepSpeed has stages"))
        away = ""
    third = d.values["strategy.zero_stage"] == 3
    d.settle("strategy.offload_optimizer_device", "cpu" if away else "none", reason if away else _NOT_NEEDED)
    lean = away and third
    d.settle("strategy.offload_param_device", "cpu" if lean else "none", reason if lean else _NOT_NEEDED)
    d.settle("strategy.nvme_path", None, say("only offload to nvme needs one"))
    gathered = say("at stage 3 weights can be saved only when they are gathered")
    d.settle("strategy.zero3_save_16bit_model", third, gathered if third else _ONLY_STAGE_3)
    crowded = third and _crowds_the_host(d)
    if crowded:
        d.settle("strategy.zero3_init", True, say("one whole model per rank does not fit into host memory"))
    else:
        roomy = say("a whole model per rank fits into host memory")
        d.settle("strategy.zero3_init", False, roomy if third else _ONLY_STAGE_3)


def recommend(d: Decision) -> tuple[str, Message]:
    """The fastest strategy whose model state fits, and why."""
    world = d.values["machine.num_processes"]
    first = "single" if world == 1 else "ddp"
    found = options(d)
    memory = smallest_gpu_bytes(d)
    if d.on_cpu:
        return first, say("one rank") if world == 1 else say("CPU ranks share the host's memory anyway")
    if not found or memory is None:
        return first, say("the sizes of model and GPU are not both known; this is the fastest")
    fitting = [o for o in found if o.fits and o.name != "fsdp"]
    shown = {"memory": quantities.size(memory), "share": f"{STATE_SHARE:.0%}"}
    if not fitting:
        last = next(o for o in reversed(found) if o.name != "fsdp")
        return last.name, say(
            "the leanest: {size} of model state per rank; even that is more than {share} of {memory}",
            size=last.shown,
            **shown,
        )
    best = fitting[0]
    if best.name == first:
        return first, say(
            "{size} of model state per rank fits into {share} of {memory}; the fastest", size=best.shown, **shown
        )
    return best.name, say(
        "{best_size} of model state per rank fits into {share} of {memory}; {first} needs {size}",
        best_size=best.shown,
        first=first,
        size=found[0].shown,
        **shown,
    )


_NOT_NEEDED = say("not needed")
_ONLY_STAGE_3 = say("only at ZeRO stage 3")


def _settle_engine(d: Decision) -> None:
    kind = d.values["strategy.kind"]
    colossal = kind in COLOSSAL_KINDS
    needed = "colossalai" if colossal else "accelerate"
    why = (
        say("{kind} is one of its plugins", kind=kind)
        if colossal
        else say("drives DDP, DeepSpeed and FSDP with one script")
    )
    if d.settle("engine", needed, why) != needed:
        raise PlanError(
            [
                say(
                    "engine: {engine} cannot do strategy.kind {kind}, which needs {needed}",
                    engine=d.values["engine"],
                    kind=kind,
                    needed=needed,
                )
            ]
        )


def _of_colossalai(d: Decision) -> tuple[str, Message]:
    """The plugin that does what would be recommended under accelerate."""
    name, reason = recommend(d)
    # Booster knows no bf16 for DDP; ZeRO 1 communicates hardly more.
    whole = "colossal_zero1" if d.values["precision.mixed_precision"] == "bf16" and not d.on_cpu else "colossal_ddp"
    plugins = {"single": whole, "ddp": whole, "zero1": "colossal_zero1", "zero2": "colossal_zero2"}
    return plugins.get(name, "gemini"), reason


def _forced(d: Decision) -> tuple[str, Message] | None:
    """The strategy that the given kind, stage or offload leaves no choice about, and why."""
    kind, stage = d.answers.get("strategy.kind"), d.answers.get("strategy.zero_stage")
    if kind not in (None, "deepspeed"):
        return str(kind), _NOT_NEEDED
    if stage is not None:
        return f"zero{stage}", say("a ZeRO stage is given")
    weights = d.answers.get("strategy.offload_param_device", "none") not in (None, "none")
    nvme = d.answers.get("strategy.offload_optimizer_device") == "nvme"
    if weights or nvme or d.answers.get("strategy.zero3_init") or d.answers.get("strategy.zero3_save_16bit_model"):
        return "zero3", say("what is asked for needs ZeRO stage 3")
    if d.answers.get("strategy.offload_optimizer_device") == "cpu":
        return "zero2", say("offload needs DeepSpeed")
    return ("zero2", say("the usual stage: optimizer state and gradients cut over the ranks")) if kind else None


def _crowds_the_host(d: Decision) -> bool:
    if d.parameters is None or d.machine is None or not d.machine.memory.total_bytes:
        return False
    ranks = max(1, d.values["machine.num_processes"] // d.values["machine.num_machines"])
    return bool(4 * d.parameters * ranks > d.machine.memory.total_bytes // 2)
