"""Settings that a script and its DeepSpeed file both contain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.engines.accelerate import FILLED_SETTINGS
from trainwiz.finding import Level, Violation, Violations, remedy, violation
from trainwiz.message import Message, say
from trainwiz.rules.registry import rule

if TYPE_CHECKING:
    from trainwiz.script import Script
    from trainwiz.script.values import Value

_ACCUMULATION = "gradient_accumulation_steps"
_MICRO = "train_micro_batch_size_per_gpu"


@rule("TW436", level=Level.WARNING, field="deepspeed_config.gradient_accumulation_steps")
def the_block_accumulates_as_the_script(accelerate: Accelerate, script: Script) -> Violations:
    """Under DeepSpeed, gradient_accumulation_steps in the accelerate file must match the script.

    Without it: the file overrides the script. accelerate's questionnaire writes 1 by default: a script with
    `Accelerator(gradient_accumulation_steps=4)` then trains with a quarter of its batch, with only a line in the
    log.
    Why: the engine accumulates, and the file configures the engine.
    Instead: use the same number in both, or omit it from the file.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/3571
    """
    path = f"deepspeed_config.{_ACCUMULATION}"
    here, asked = accelerate.get(path), _asked(script, _ACCUMULATION)
    if accelerate.block_decides and asked and _differ(here, asked.value):
        fix = remedy("write {number}", {path: asked.value}, number=asked.value)
        if asked.option:
            fix = remedy("write auto to use the value passed to the script", {path: "auto"})
        yield Violation(_apart(here, asked), fix)


@rule("TW437", level=Level.WARNING, field=_ACCUMULATION)
def the_file_accumulates_as_the_script(deepspeed: DeepSpeed, script: Script) -> Violations:
    """gradient_accumulation_steps in a DeepSpeed file must match the script, or be auto.

    Without it: the file overrides the script: `Accelerator(gradient_accumulation_steps=4)` with 1 in the file
    trains with a quarter of the batch, with only a line in the log.
    Why: the engine accumulates, and the file configures the engine.
    Instead: set auto, which takes the script's number.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/3571
    """
    here, asked = deepspeed.get(_ACCUMULATION), _asked(script, _ACCUMULATION)
    if asked and _differ(here, asked.value):
        yield Violation(_apart(here, asked), remedy("write auto", {_ACCUMULATION: "auto"}))


@rule("TW439", level=Level.WARNING, field=_MICRO)
def the_micro_batch_is_the_loaders(deepspeed: DeepSpeed, script: Script) -> Violations:
    """train_micro_batch_size_per_gpu must equal the batch size of the script's DataLoader.

    Without it: the training uses the DataLoader's number, but DeepSpeed silently computes with the other: its batch
    size, its throughput and everything scaled by them are wrong.
    Why: DeepSpeed never sees the DataLoader.
    Instead: set auto, which takes the DataLoader's number.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    here = deepspeed.get(_MICRO)
    loaders = script.called("torch.utils.data.DataLoader")
    found = [script.values.of(call.keyword("batch_size")) for call in loaders]
    sizes = {value.value if value and type(value.value) is int else None for value in found}
    if type(here) is not int or not sizes or None in sizes or here in sizes:
        return
    yield violation(
        "the file sets {here}, but the script's DataLoader uses {there}",
        remedy("write auto", {_MICRO: "auto"}),
        here=here,
        there=", ".join(map(str, sorted(map(int, filter(None, sizes))))),
    )


@rule("TW356", level=Level.ERROR, field="optimizer")
def there_is_one_optimizer(deepspeed: DeepSpeed, script: Script) -> Violations:
    """The script and the DeepSpeed file must not both create an optimizer.

    Without it: prepare fails with `You cannot specify an optimizer in the config file and in the code at the same
    time`, after the model is built.
    Why: accelerate passes the script's optimizer to an engine that already has one.
    Instead: remove the optimizer from the file, or use `accelerate.utils.DummyOptim` in the script.
    Source: seen with accelerate 1.15.0 and DeepSpeed 0.19.8
    """
    names = [(call, script.names.resolved(call.node.func)) for call in script.calls]
    made = [call for call, name in names if name.startswith("torch.optim.") and name.count(".") == 2]
    dummies = any(name.endswith("DummyOptim") for _, name in names)
    if deepspeed.has("optimizer") and made and not dummies and script.called("accelerate.Accelerator"):
        yield violation(
            "the file creates an optimizer, and the script creates one in line {line}",
            remedy("delete this block, or use accelerate.utils.DummyOptim in the script", {"optimizer": None}),
            line=made[0].node.lineno,
        )


@rule("TW255", level=Level.ERROR, field="bf16.enabled")
def the_precision_is_the_scripts(deepspeed: DeepSpeed, script: Script) -> Violations:
    """`Accelerator(mixed_precision=…)` and the DeepSpeed file must name the same precision.

    Without it: bf16 in the script and fp16 in the file stop with `--mixed_precision arg cannot be set to bf16 when
    fp16 is set`. With bf16 in the script and `"enabled": false` in the file, the training silently runs in fp32;
    with no and true, it silently runs in bf16.
    Why: the DeepSpeed engine uses the precision in its file.
    Instead: set "enabled": "auto" for both types in the file.
    Source: seen with accelerate 1.15.0
    """
    named = _asked(script, "mixed_precision")
    asked = named.value if named else None
    for kind, other in (("bf16", "fp16"), ("fp16", "bf16")):
        path, here = f"{kind}.enabled", deepspeed.get(f"{kind}.enabled")
        if (asked in (other, "no") and here is True) or (asked == kind and here is False):
            yield violation(
                "{key} is {here}, but the script asks for mixed_precision {asked}",
                remedy("write auto", {path: "auto"}),
                where=path,
                key=path,
                here=str(here).lower(),
                asked=asked,
            )


@rule("TW338", level=Level.ERROR, field="deepspeed")
def nobody_fills_an_auto_of_deepspeedhands_to_deepspeed(deepspeed: DeepSpeed, script: Script) -> Violations:
    """If the script calls deepspeed.initialize itself, its DeepSpeed file must not contain `auto`.

    Without it: every rank fails with `TypeError: '>' not supported between instances of 'str' and 'int'` after the
    model is built. Inside zero_optimization, fp16 and bf16, DeepSpeed silently uses the default: `"enabled":
    "auto"` means off.
    Why: `auto` only works with accelerate and the Trainer of transformers, and this script uses neither.
    Instead: write the actual values.
    Source: seen with DeepSpeed 0.19.8
    """
    if not hands_to_deepspeed(script):
        return
    for keys, entry in deepspeed.document.entries.items():
        path = ".".join(keys)
        if entry.key and deepspeed.get(path) == "auto" and path in FILLED_SETTINGS:
            yield violation(
                "DeepSpeed itself does not replace auto, and the script uses no library that does",
                remedy("write a value"),
                where=path,
            )


def hands_to_deepspeed(script: Script) -> bool:
    """Whether the script passes a file to DeepSpeed unchanged; a dictionary may have been filled in before."""
    others = any(
        call.name.endswith(("Accelerator", "Trainer", "TrainingArguments", "DeepSpeedConfig")) for call in script.calls
    )
    made = script.called("deepspeed.initialize")
    configs = [call.keyword("config") or call.keyword("config_params") for call in made]
    values = [script.values.of(config) for config in configs if config is not None]
    return bool(made) and not others and all(value and isinstance(value.value, str) for value in values)


def _asked(script: Script, argument: str) -> Value | None:
    """The argument of the script's only Accelerator; None if it is missing or cannot be read."""
    calls = script.called("accelerate.Accelerator")
    return script.values.of(calls[0].keyword(argument)) if len(calls) == 1 else None


def _apart(here: int, asked: Value) -> Message:
    if asked.option:
        return say(
            "the file accumulates {here} micro-batches and overrides {option} (default: {there})",
            here=here,
            option=asked.option,
            there=asked.value,
        )
    return say(
        "the file accumulates {here} micro-batches and overrides the script's {there}", here=here, there=asked.value
    )


def _differ(here: Any, there: Any) -> bool:
    return type(here) is int and type(there) is int and here != there
