"""Batch, schedule, optimizer and `auto` in a DeepSpeed file, alone and beside an accelerate file."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import FILLED_SETTINGS
from trainwiz.engines.deepspeed import SCHEDULERS
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_BATCH, _MICRO, _ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@rule("TW431", level=Level.ERROR, field=_BATCH)
def three_sizes_agree(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """train_batch_size is a multiple of micro-batch × accumulation, whatever the number of ranks.

    Without it: `Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu *
    gradient_acc_step * world_size` on every rank, after the model is built.
    Why: the number of ranks is a whole one.
    Instead: leave train_batch_size out; DeepSpeed computes it from the other two.
    Source: seen with DeepSpeed 0.19.8
    """
    real, micro, accumulation = (_count(deepspeed, key) for key in (_BATCH, _MICRO, _ACCUMULATION))
    if real and micro and accumulation and real % (micro * accumulation):
        yield deepspeed.wrong(
            _BATCH,
            say(
                "{real} is no multiple of {micro} × {accumulation} = {product}",
                real=real,
                micro=micro,
                accumulation=accumulation,
                product=micro * accumulation,
            ),
            remedy("delete train_batch_size, and let it be computed", {_BATCH: None}),
        )


@rule("TW432", level=Level.ERROR, field=_BATCH)
def the_batch_is_that_of_the_world(accelerate: Accelerate, deepspeed: DeepSpeed) -> Iterator[Violation]:
    """train_batch_size is micro-batch × accumulation × num_processes of the accelerate file.

    Without it: `Check batch related parameters. train_batch_size is not equal to …` on every rank, after the model is
    built.
    Why: the two files are written at different times, for different machines.
    Instead: leave train_batch_size out; DeepSpeed computes it from the other two and the ranks that it finds.
    Source: seen with DeepSpeed 0.19.8; https://github.com/deepspeedai/DeepSpeed/issues/3982
    """
    real, micro, accumulation = (_count(deepspeed, key) for key in (_BATCH, _MICRO, _ACCUMULATION))
    world = accelerate.world
    apart = accelerate.section("parallelism_config") or deepspeed.section("tensor_parallel")
    if real and world and not micro and not apart and real % (world * (accumulation or 1)):
        yield deepspeed.wrong(
            _BATCH,
            say(
                "{real} is no multiple of {accumulation} × {world} processes, whatever the micro-batch",
                real=real,
                accumulation=accumulation or 1,
                world=world,
            ),
            remedy(
                "give train_micro_batch_size_per_gpu instead, and let train_batch_size be computed",
                {_BATCH: None, _MICRO: "auto"} if accelerate.deepspeed_file else {},
            ),
        )
    if not (real and micro and world) or (accumulation and real % (micro * accumulation)):
        return
    # accelerate counts a missing accumulation as 1.
    product = micro * (accumulation or 1) * world
    known = accumulation or deepspeed.get(_ACCUMULATION) is None
    if real != product and known and not apart:
        yield deepspeed.wrong(
            _BATCH,
            say(
                "{real} is not {micro} × {accumulation} × {world} processes = {product}",
                real=real,
                micro=micro,
                accumulation=accumulation or 1,
                world=world,
                product=product,
            ),
            remedy("delete train_batch_size, and let it be computed", {_BATCH: None}),
        )


@rule("TW433", level=Level.WARNING, field=_MICRO)
def a_batch_is_given(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """A DeepSpeed file gives the micro-batch or the whole batch, as a number or as auto.

    Without it: `Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided`.
    Why: accumulation alone does not say how large a batch is.
    Instead: train_micro_batch_size_per_gpu: auto under accelerate, which takes it from the data loader; else a
    number.
    Source: seen with DeepSpeed 0.19.8
    """
    if deepspeed.get(_BATCH) is None and deepspeed.get(_MICRO) is None:
        yield deepspeed.wrong(
            _ACCUMULATION if deepspeed.has(_ACCUMULATION) else _MICRO,
            say("neither train_micro_batch_size_per_gpu nor train_batch_size is given"),
            remedy("add train_micro_batch_size_per_gpu: auto, or a number", {_MICRO: "auto"}),
        )


@rule("TW434", level=Level.HINT, field=_ACCUMULATION)
def accumulation_is_said(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """A DeepSpeed file says its gradient_accumulation_steps, as a number or as auto.

    Without it: accelerate makes it 1, and overrides what the script asks of
    `Accelerator(gradient_accumulation_steps=…)` with a line in the log.
    Why: under DeepSpeed the engine accumulates, and its file wins.
    Instead: auto, which takes the script's value; or the number.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/3571
    """
    if deepspeed.get(_ACCUMULATION) is None and not (_count(deepspeed, _BATCH) and _count(deepspeed, _MICRO)):
        yield deepspeed.wrong(
            _ACCUMULATION,
            say("gradient_accumulation_steps is not given: it becomes 1, whatever the script says"),
            remedy("add gradient_accumulation_steps: auto, or the number", {_ACCUMULATION: "auto"}),
        )


@rule("TW435", level=Level.HINT, field="gradient_clipping")
def the_file_says_how_it_clips(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """A DeepSpeed file says its gradient_clipping.

    Without it: DeepSpeed 0.19 clips at 1.0, and 0.18 does not clip at all: the same file trains differently.
    Why: the default has changed between the versions.
    Instead: gradient_clipping: 1.0, or 0.0 for none.
    Source: seen with DeepSpeed 0.19.8 and 0.16.5; read in 0.18.9
    """
    if deepspeed.get("gradient_clipping") is None:
        yield deepspeed.wrong(
            "gradient_clipping",
            say(
                "gradient_clipping is not given; DeepSpeed {version} takes {value}",
                version=".".join(map(str, deepspeed.version)),
                value=1.0 if deepspeed.version >= (0, 19) else 0.0,
            ),
            remedy("add gradient_clipping: 1.0, or 0.0 for none", {"gradient_clipping": 1.0}),
        )


@rule("TW352", level=Level.ERROR, field="zero_optimization")
def accelerate_wants_a_zero_block(accelerate: Accelerate, deepspeed: DeepSpeed) -> Iterator[Violation]:
    """Under accelerate, a DeepSpeed file has a zero_optimization block.

    Without it: `Please specify the ZeRO optimization config in the DeepSpeed config.` on every rank, after the
    imports.
    Why: accelerate reads the stage from it; DeepSpeed alone would take stage 0.
    Instead: zero_optimization with its stage, 0 for none.
    Source: seen with accelerate 1.15.0
    """
    if accelerate.deepspeed_file and not deepspeed.has("zero_optimization"):
        yield deepspeed.wrong(
            "zero_optimization",
            say("there is no zero_optimization, and accelerate stops without it"),
            remedy("add zero_optimization with its stage", {"zero_optimization": {"stage": 0}}),
        )


@rule("TW353", level=Level.ERROR, field="deepspeed")
def somebody_fills_an_auto(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """`auto` stands only where accelerate or transformers' Trainer put a value.

    Without it: under accelerate `… not found in kwargs. Please specify … without auto`; DeepSpeed alone silently
    takes its default inside zero_optimization, and stops with a TypeError at the top.
    Why: `auto` is no value of DeepSpeed; those two replace it in some two dozen places.
    Instead: a number.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    for keys, entry in deepspeed.document.entries.items():
        path = ".".join(keys)
        if path in FILLED_SETTINGS or deepspeed.document.text[entry.value.start : entry.value.end] != '"auto"':
            continue
        # Lists are not looked into; and in these blocks the word has a meaning of its own.
        if any(key.isdigit() for key in keys) or keys[0] in ("data_types", "autotuning", "comment", "_comment"):
            continue
        yield deepspeed.wrong(
            path,
            say("nothing fills the auto of {key}", key=path),
            remedy("write a value, or delete it for DeepSpeed's default", {path: None}),
        )


@rule("TW354", level=Level.ERROR, field="optimizer.params.max_grad_norm")
def clipping_is_no_parameter_of_the_optimizer(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """max_grad_norm does not stand among the optimizer's parameters.

    Without it: `'max_grad_norm' is not supported as an optimizer parameter` on every rank, after the model is built.
    Why: clipping is the engine's.
    Instead: gradient_clipping at the top.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "optimizer.params.max_grad_norm"
    if deepspeed.has(path):
        value = deepspeed.get(path)
        free = deepspeed.get("gradient_clipping") is None
        yield deepspeed.wrong(
            path,
            say("max_grad_norm {value} is refused here; clipping is gradient_clipping", value=value),
            remedy(
                "write gradient_clipping at the top", {path: None, "gradient_clipping": value} if free else {path: None}
            ),
        )


@rule("TW355", level=Level.ERROR, field="scheduler")
def the_scheduler_can_be_made(deepspeed: DeepSpeed) -> Iterator[Violation]:
    """The scheduler is one of DeepSpeed's, and one that decays says how long.

    Without it: `DeepSpeed does not recognize LR scheduler` or `missing 1 required positional argument:
    'total_num_steps'`, on every rank, after the model is built.
    Why: the name is looked up as it stands, and a decay needs its end.
    Instead: WarmupLR, WarmupDecayLR or WarmupCosineLR with total_num_steps, OneCycle, LRRangeTest.
    Source: seen with DeepSpeed 0.19.8
    """
    name = deepspeed.get("scheduler.type")
    if not isinstance(name, str):
        return
    if name not in SCHEDULERS:
        near = nearest(name, SCHEDULERS)
        yield deepspeed.wrong(
            "scheduler.type",
            say("DeepSpeed has no scheduler {name}; it has {known}", name=name, known=", ".join(SCHEDULERS)),
            remedy("did you mean {key}?", {"scheduler.type": near}, key=near) if near else None,
        )
    elif name in ("WarmupDecayLR", "WarmupCosineLR") and deepspeed.get("scheduler.params.total_num_steps") is None:
        yield deepspeed.wrong(
            "scheduler.params" if deepspeed.has("scheduler.params") else "scheduler",
            say("{name} has no total_num_steps", name=name),
            remedy(
                "add total_num_steps: the updates of the whole training", {"scheduler.params.total_num_steps": "auto"}
            ),
        )


def _count(deepspeed: DeepSpeed, key: str) -> int | None:
    value = deepspeed.get(key)
    return value if type(value) is int and value > 0 else None
