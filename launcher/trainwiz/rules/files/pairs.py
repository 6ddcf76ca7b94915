"""What a script and its DeepSpeed settings both say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.engines.accelerate import FILLED_SETTINGS
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import Message, say
from trainwiz.rules.registry import rule

if TYPE_CHECKING:
    from trainwiz.script import Script
    from trainwiz.script.values import Value

_ACCUMULATION = "gradient_accumulation_steps"
_MICRO = "train_micro_batch_size_per_gpu"


@rule("TW436", level=Level.WARNING, field="deepspeed_config.gradient_accumulation_steps")
def the_block_accumulates_as_the_script(accelerate: Accelerate, script: Script) -> Iterator[Violation]:
    """Under DeepSpeed, gradient_accumulation_steps of the accelerate file overrides the script's.

    Without it: the 1 that accelerate's questions write by default trains with a quarter of the batch that
    `Accelerator(gradient_accumulation_steps=4)` asks for, with a line in the log.
    Why: the engine accumulates, and the file configures the engine.
    Instead: the same number in both, or none in the file.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/3571
    """
    path = f"deepspeed_config.{_ACCUMULATION}"
    here, asked = accelerate.get(path), _asked(script, _ACCUMULATION)
    if accelerate.kind == "DEEPSPEED" and not accelerate.deepspeed_file and asked and _differ(here, asked.value):
        fix = remedy("write {number}", {path: asked.value}, number=asked.value)
        if asked.option:
            fix = remedy("write auto, which takes what the script is told", {path: "auto"})
        yield accelerate.wrong(path, _apart(here, asked), fix)


@rule("TW437", level=Level.WARNING, field=_ACCUMULATION)
def the_file_accumulates_as_the_script(deepspeed: DeepSpeed, script: Script) -> Iterator[Violation]:
    """gradient_accumulation_steps of a DeepSpeed file overrides the script's.

    Without it: `Accelerator(gradient_accumulation_steps=4)` with 1 in the file trains with a quarter of the batch,
    with a line in the log.
    Why: the engine accumulates, and the file configures the engine.
    Instead: auto, which takes the script's number.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/3571
    """
    here, asked = deepspeed.get(_ACCUMULATION), _asked(script, _ACCUMULATION)
    if asked and _differ(here, asked.value):
        yield deepspeed.wrong(_ACCUMULATION, _apart(here, asked), remedy("write auto", {_ACCUMULATION: "auto"}))


@rule("TW439", level=Level.WARNING, field=_MICRO)
def the_micro_batch_is_the_loaders(deepspeed: DeepSpeed, script: Script) -> Iterator[Violation]:
    """train_micro_batch_size_per_gpu is the batch size of the script's DataLoader.

    Without it: the DataLoader's number trains, and DeepSpeed computes with the other, without a word: its batch, its
    throughput and whatever is scaled by them are wrong.
    Why: DeepSpeed never sees the loader.
    Instead: auto, which takes the loader's number.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    here = deepspeed.get(_MICRO)
    loaders = script.called("torch.utils.data.DataLoader")
    found = [script.values.of(call.keyword("batch_size")) for call in loaders]
    sizes = {value.value if value and type(value.value) is int else None for value in found}
    if type(here) is not int or not sizes or None in sizes or here in sizes:
        return
    yield deepspeed.wrong(
        _MICRO,
        say(
            "the file says {here}, the script's DataLoader {there}",
            here=here,
            there=", ".join(map(str, sorted(map(int, filter(None, sizes))))),
        ),
        remedy("write auto", {_MICRO: "auto"}),
    )


@rule("TW356", level=Level.ERROR, field="optimizer")
def there_is_one_optimizer(deepspeed: DeepSpeed, script: Script) -> Iterator[Violation]:
    """The optimizer is made by the script or by the DeepSpeed file, not by both.

    Without it: `You cannot specify an optimizer in the config file and in the code at the same time`, at prepare:
    after the model is built.
    Why: accelerate hands the script's optimizer to an engine that already has one.
    Instead: no optimizer in the file, or `accelerate.utils.DummyOptim` in the script.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    names = [(call, script.names.resolved(call.node.func)) for call in script.calls]
    made = [call for call, name in names if name.startswith("torch.optim.") and name.count(".") == 2]
    dummies = any(name.endswith("DummyOptim") for _, name in names)
    if deepspeed.has("optimizer") and made and not dummies and script.called("accelerate.Accelerator"):
        yield deepspeed.wrong(
            "optimizer",
            say("the file makes an optimizer, and so does the script in line {line}", line=made[0].node.lineno),
            remedy("delete this block, or use accelerate.utils.DummyOptim in the script", {"optimizer": None}),
        )


@rule("TW255", level=Level.ERROR, field="bf16.enabled")
def the_precision_is_the_scripts(deepspeed: DeepSpeed, script: Script) -> Iterator[Violation]:
    """`Accelerator(mixed_precision=…)` and the DeepSpeed file name the same precision.

    Without it: bf16 in the script and fp16 in the file stop with `--mixed_precision arg cannot be set to bf16 when
    fp16 is set`; bf16 against `"enabled": false` trains in fp32, and no against true in bf16, without a word.
    Why: the engine computes as its file says.
    Instead: "enabled": "auto" for both types in the file.
    Source: seen with accelerate 1.15.0
    """
    named = _asked(script, "mixed_precision")
    asked = named.value if named else None
    for kind, other in (("bf16", "fp16"), ("fp16", "bf16")):
        path, here = f"{kind}.enabled", deepspeed.get(f"{kind}.enabled")
        if (asked in (other, "no") and here is True) or (asked == kind and here is False):
            yield deepspeed.wrong(
                path,
                say(
                    "{key} is {here}, and the script asks for mixed_precision {asked}",
                    key=path,
                    here=str(here).lower(),
                    asked=asked,
                ),
                remedy("write auto", {path: "auto"}),
            )


@rule("TW338", level=Level.ERROR, field="deepspeed")
def nobody_fills_an_auto_of_deepspeed_alone(deepspeed: DeepSpeed, script: Script) -> Iterator[Violation]:
    """A DeepSpeed file for a script that calls deepspeed.initialize itself has no `auto`.

    Without it: `TypeError: '>' not supported between instances of 'str' and 'int'` on every rank, after the model is
    built; inside zero_optimization, fp16 and bf16 the default counts without a word: `"enabled": "auto"` is off.
    Why: `auto` is a word of accelerate and of transformers' Trainer, and neither stands between this script and
    DeepSpeed.
    Instead: the numbers.
    Source: seen with DeepSpeed 0.19.8
    """
    if not _alone(script):
        return
    for keys, entry in deepspeed.document.entries.items():
        path = ".".join(keys)
        if entry.key and deepspeed.get(path) == "auto" and path in FILLED_SETTINGS:
            yield deepspeed.wrong(
                path,
                say("DeepSpeed alone fills no auto, and the script uses nothing else"),
                remedy("write a value"),
            )


def _alone(script: Script) -> bool:
    """Whether the script hands a file to DeepSpeed as it is; a dictionary may have been filled before."""
    others = any(
        call.name.endswith(("Accelerator", "Trainer", "TrainingArguments", "DeepSpeedConfig")) for call in script.calls
    )
    made = script.called("deepspeed.initialize")
    configs = [call.keyword("config") or call.keyword("config_params") for call in made]
    values = [script.values.of(config) for config in configs if config is not None]
    return bool(made) and not others and all(value and isinstance(value.value, str) for value in values)


def _asked(script: Script, argument: str) -> Value | None:
    """What the script gives to its one Accelerator; None where it gives nothing that can be read."""
    calls = script.called("accelerate.Accelerator")
    return script.values.of(calls[0].keyword(argument)) if len(calls) == 1 else None


def _apart(here: int, asked: Value) -> Message:
    if asked.option:
        return say(
            "the file accumulates {here} micro-batches and wins, whatever {option} says (default: {there})",
            here=here,
            option=asked.option,
            there=asked.value,
        )
    return say(
        "the file accumulates {here} micro-batches and wins; the script asks for {there}", here=here, there=asked.value
    )


def _differ(here: Any, there: Any) -> bool:
    return type(here) is int and type(there) is int and here != there
