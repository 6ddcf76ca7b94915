"""The optimizer of a DeepSpeed file: names, and what ZeRO makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.config import DeepSpeed
from trainwiz.config.spelling import nearest
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_OWN = {"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"}
"""deepspeed/runtime/config.py, DEEPSPEED_OPTIMIZERS, in any case."""
_TORCH = {
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adagrad",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
}
"""Classes of torch.optim (2.13); their case counts."""
_ONE_BIT = {"onebitadam", "zerooneadam", "onebitlamb"}
_TESTED = {"adam", "adamw", "adagrad", "lion", "muon"}
"""With ZeRO, by DeepSpeed itself: ZERO_SUPPORTED_OPTIMIZERS in runtime/zero/utils.py."""


@rule("TW357", level=Level.ERROR, field="optimizer.type")
def the_optimizer_is_one_of_deepspeeds(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """The optimizer in the DeepSpeed file must exist in DeepSpeed or torch.

    Without it: every rank fails with `AssertionError: OneBitAdam is not a supported DeepSpeed Optimizer` after the
    model is built.
    Why: DeepSpeed looks up the name only when it creates the engine. DeepSpeed 0.19 removed the 1-bit optimizers.
    Instead: use AdamW. To communicate less, use more accumulation or ZeRO++'s quantized gradients.
    Source: seen with DeepSpeed 0.19.8; 0.18.9 still has OneBitAdam, ZeroOneAdam and OneBitLamb, without ZeRO 2 and
    3
    """
    name = deepspeed.get("optimizer.type")
    if not isinstance(name, str) or name.lower() in _OWN or name in _TORCH:
        return
    if name.lower() in _ONE_BIT and deepspeed.version < (0, 19):
        return
    near = nearest(name, {"AdamW", "Adam", "Lion", "Lamb", "Adagrad", "Muon", "SGD"})
    fix = remedy("did you mean {name}?", {"optimizer.type": near}, name=near) if near else remedy("use AdamW")
    yield deepspeed.wrong("optimizer.type", say("DeepSpeed has no optimizer {name}", name=name), fix)


@rule("TW358", level=Level.ERROR, field="optimizer.type")
def zero_takes_an_untested_optimizer_only_when_told(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Under ZeRO, an optimizer that DeepSpeed has not tested needs zero_allow_untested_optimizer.

    Without it: every rank fails with `AssertionError: You are using an untested ZeRO Optimizer` after the model is
    built.
    Why: ZeRO gives the optimizer flattened pieces of the parameters. An optimizer that works per layer (such as
    Lamb with its trust ratio) then computes something else.
    Instead: use AdamW; for an optimizer that works element by element, such as SGD, set
    zero_allow_untested_optimizer: true.
    Source: seen with DeepSpeed 0.19.8
    """
    name = deepspeed.get("optimizer.type")
    if not isinstance(name, str) or not deepspeed.stage or deepspeed.get("zero_allow_untested_optimizer") is True:
        return
    if name in _TORCH and name.lower() not in _TESTED:
        yield deepspeed.wrong(
            "optimizer.type",
            say("{name} is not tested with ZeRO, and stage {stage} rejects it", name=name, stage=deepspeed.stage),
            remedy("add zero_allow_untested_optimizer: true, or use AdamW", {"zero_allow_untested_optimizer": True}),
        )


@rule("TW359", level=Level.ERROR, field="optimizer.type")
def muon_reduces_whole_gradients(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Muon at ZeRO stage 3 needs reduce_scatter false.

    Without it: every rank fails with `ValueError: Muon and reduce scatter cannot be used together` after the model
    is built.
    Why: Muon works on whole matrices, but reduce-scatter leaves each rank only a piece of their gradients.
    Instead: set reduce_scatter: false, or use AdamW.
    Source: seen with DeepSpeed 0.19.8
    """
    name, path = deepspeed.get("optimizer.type"), "zero_optimization.reduce_scatter"
    if isinstance(name, str) and name.lower() == "muon" and deepspeed.stage == 3 and deepspeed.get(path, True) is True:
        yield deepspeed.wrong(
            "optimizer.type",
            say("Muon does not work with reduce_scatter, which is on at stage 3"),
            remedy("set zero_optimization.reduce_scatter to false", {path: False}),
        )


@rule("TW373", level=Level.ERROR, field="bf16")
def low_precision_state_is_offloaded(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """bf16_master_weights_and_grads needs CPU optimizer offload; bf16_optimizer_states needs both.

    Without it: every rank fails with `AssertionError: Master weights feature requires ZeRO-2 Offload with
    DeepSpeedCPUAdam`, or `bf16_optimizer_states requires bf16_master_weights_and_grads to be enabled`.
    Why: only the CPU version of Adam can compute with bf16 master weights.
    Instead: use offload_optimizer with device cpu, or fp32 master weights.
    Source: seen with DeepSpeed 0.19.8
    """
    masters, states = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
    if deepspeed.get(states) is True and deepspeed.get(masters) is not True:
        yield deepspeed.wrong(
            states,
            say("bf16_optimizer_states needs bf16_master_weights_and_grads"),
            remedy("set bf16_master_weights_and_grads to true, or delete this key", {states: None}),
        )
    away = deepspeed.get("zero_optimization.offload_optimizer.device", "none")
    if deepspeed.get(masters) is True and away != "cpu" and deepspeed.stage in (1, 2):
        yield deepspeed.wrong(
            masters,
            say("bf16 master weights need the optimizer offloaded to the CPU; its device is {device}", device=away),
            remedy("set offload_optimizer.device to cpu, or delete this key"),
        )
