"""What DeepSpeed is told, by its own file or by accelerate's block, as answers of a plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trainwiz import vocabulary
from trainwiz.adoption import optimizer
from trainwiz.adoption.free import ACCELERATE_SAYS, acts, default, is_free, rendered, same
from trainwiz.adoption.ledger import Ledger
from trainwiz.adoption.settings import BLOCK, Settings
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import SETTINGS_OF_BLOCK
from trainwiz.engines.deepspeed import REMOVED_IN_0_19, TOP_LEVEL_KEYS, ZERO_KEYS
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.adoption.ledger import Kind
    from trainwiz.config import Accelerate
    from trainwiz.message import Message
    from trainwiz.plan import Plan


def read(ledger: Ledger, settings: Settings, accelerate: Accelerate | None) -> None:
    """Enter what the plan has keys for."""
    file, values = settings.file, settings.values
    ledger.carry(file, settings.path("zero_optimization.stage"), "strategy.kind", "deepspeed")
    why = None
    if "zero_optimization.stage" not in values:
        why = say("not set; the default stage is {stage}", stage=settings.stage)
    ledger.carry(file, settings.path("zero_optimization.stage"), "strategy.zero_stage", settings.stage, why)
    _offload(ledger, settings)
    gather = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    if values.get(gather) == "auto":
        _open(ledger, settings, gather)
    elif settings.stage == 3 or gather in values:
        none = None if gather in values else say("not set; weights are not gathered")
        ledger.carry(file, settings.path(gather), "strategy.zero3_save_16bit_model", bool(values.get(gather)), none)
    if settings.stage == 3 and not (accelerate and accelerate.has(f"{BLOCK}zero3_init_flag")):
        ledger.carry(
            file,
            settings.path("zero_optimization.stage"),
            "strategy.zero3_init",
            True,
            say("not set; accelerate defaults to true at stage 3"),
        )
    _batch(ledger, settings)
    _clipping(ledger, settings)
    if not settings.block:
        _precision(ledger, settings, accelerate)
        optimizer.read(ledger, settings)
        for name, reason in ACCELERATE_SAYS.items():
            if name in values:
                ledger.leave(file, settings.path(name), "inert", reason)


def compare(ledger: Ledger, settings: Settings, accelerate: Accelerate | None, plan: Plan) -> None:
    """Enter everything that is otherwise in the files that the project gets."""
    if accelerate is not None and not settings.block:
        _block_beside_file(ledger, settings, accelerate)
    project = rendered(plan, plan.deepspeed) if plan.strategy.kind == "deepspeed" else {}
    for name, path in settings.paths.items():
        if ledger.knows(settings.file, path):
            continue
        value, now = settings.values[name], project.get(name, default(name, plan))
        if not project:
            ledger.leave(settings.file, path, "lost", say("the plan's strategy is not DeepSpeed"), key="strategy.kind")
        elif value == "auto":
            _open(ledger, settings, name, now)
        elif name in vocabulary.DECIDED_SETTINGS:
            key = vocabulary.DECIDED_SETTINGS[name]
            ledger.leave(settings.file, path, "lost", say("the plan has a different value"), key=key)
        elif same(now, value):
            ledger.same(settings.file, path)
        elif is_free(name) and not acts(name, plan):
            ledger.leave(settings.file, path, "inert", say("has no effect at this stage and precision"))
        else:
            ledger.leave(settings.file, path, *_why_lost(name))


def _block_beside_file(ledger: Ledger, settings: Settings, accelerate: Accelerate) -> None:
    for key, name in SETTINGS_OF_BLOCK.items():
        if accelerate.has(path := BLOCK + key):
            if same(settings.effective(name), accelerate.get(path)):
                ledger.same(accelerate, path)
            else:
                ledger.leave(
                    accelerate,
                    path,
                    "inert",
                    say("DeepSpeed's own file decides; accelerate rejects this key next to deepspeed_config_file"),
                )


def _offload(ledger: Ledger, settings: Settings) -> None:
    for part, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        name, key = f"zero_optimization.{part}.device", f"strategy.{part}_device"
        older = f"zero_optimization.{old}"
        value = settings.values.get(name)
        if value in ("none", "cpu", "nvme"):
            ledger.carry(settings.file, settings.path(name), key, value)
        elif value == "auto":
            _open(ledger, settings, name)
        elif settings.values.get(older) is True:
            ledger.carry(settings.file, settings.path(older), key, "cpu")
        elif value is None:
            # An offload block without a device offloads nothing.
            ledger.carry(settings.file, settings.path("zero_optimization.stage"), key, "none", say("not offloaded"))
        if settings.values.get(older) is False:
            ledger.same(settings.file, settings.path(older))
        folder = settings.values.get(f"zero_optimization.{part}.nvme_path")
        path = settings.path(f"zero_optimization.{part}.nvme_path")
        if isinstance(folder, str) and folder not in ("none", "auto", ""):
            first = ledger.carried.get("strategy.nvme_path")
            if value == "nvme" and (first is None or first.value == folder):
                ledger.carry(settings.file, path, "strategy.nvme_path", folder)
            elif value == "nvme":
                ledger.leave(
                    settings.file,
                    path,
                    "lost",
                    say("a plan has only one nvme_path for optimizer and parameters"),
                    key="strategy.nvme_path",
                )
            else:
                ledger.leave(settings.file, path, "inert", say("nothing is offloaded to nvme"))
        elif folder in ("none", ""):
            ledger.same(settings.file, path)


def _batch(ledger: Ledger, settings: Settings) -> None:
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    for name in names:
        value = settings.values.get(name)
        if type(value) is int and value > 0:
            ledger.carry(settings.file, settings.path(name), vocabulary.DECIDED_SETTINGS[name], value)
        elif value == "auto" or (settings.block and isinstance(value, str)):
            _open(ledger, settings, name)
    if not settings.block and "gradient_accumulation_steps" not in settings.values:
        by_product = {names[0], names[2]} <= {n for n in names if type(settings.values.get(n)) is int}
        if not by_product:
            ledger.carry(
                settings.file, "", "batch.gradient_accumulation_steps", 1, say("not set; accelerate defaults to 1")
            )


def _clipping(ledger: Ledger, settings: Settings) -> None:
    name, key = "gradient_clipping", "optimizer.gradient_clipping"
    value = settings.values.get(name)
    if value == 0 and settings.block:
        ledger.carry(
            settings.file,
            settings.path(name),
            key,
            1.0,
            say("accelerate drops a value of 0; DeepSpeed then clips at 1.0"),
        )
    elif value == math.inf:
        ledger.carry(settings.file, settings.path(name), key, 0.0, say("an infinite limit clips nothing"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        ledger.carry(settings.file, settings.path(name), key, float(value))
    elif value == "auto":
        _open(ledger, settings, name)
    elif value is None:
        newer = settings.block or settings.file.version >= (0, 19)
        why = (
            say("not set; accelerate clips at 1.0")
            if settings.block
            else say(
                "not set; DeepSpeed {version} defaults to {value}",
                version=".".join(map(str, settings.file.version)),
                value=1.0 if newer else 0.0,
            )
        )
        ledger.carry(settings.file, settings.path(name), key, 1.0 if newer else 0.0, why)


def _precision(ledger: Ledger, settings: Settings, accelerate: Accelerate | None) -> None:
    key = "precision.mixed_precision"
    said = {word: settings.values.get(f"{word}.enabled") for word in ("bf16", "fp16")}
    chosen = next((word for word, value in said.items() if value is True), None)
    yaml = accelerate is not None and accelerate.has("mixed_precision")
    for word, value in said.items():
        name = f"{word}.enabled"
        if value == "auto" and not yaml:
            _open(ledger, settings, name)
        elif word == chosen and key in ledger.carried and ledger.carried[key].value != word:
            ledger.leave(settings.file, settings.path(name), "lost", say("already set by another value"), key=key)
        elif word == chosen:
            ledger.carry(settings.file, settings.path(name), key, word)
        elif value is not None:
            ledger.same(settings.file, settings.path(name))
    if chosen is None and not yaml and "auto" not in said.values():
        ledger.carry(settings.file, settings.path("bf16.enabled"), key, "no", say("neither bf16 nor fp16 is enabled"))


def _open(ledger: Ledger, settings: Settings, name: str, now: Any = None) -> None:
    key = vocabulary.DECIDED_SETTINGS.get(name)
    if key:
        why = say("only the script knows the value")
    else:
        why = say("taken from the model or the script; the project uses {value}", value=str(now))
    ledger.leave(settings.file, settings.path(name), "open", why, key=key)


def _why_lost(name: str) -> tuple[Kind, Message]:
    top, _, rest = name.partition(".")
    if top not in TOP_LEVEL_KEYS or (top == "zero_optimization" and rest and rest.split(".")[0] not in ZERO_KEYS):
        names = ZERO_KEYS if top == "zero_optimization" else TOP_LEVEL_KEYS
        near = nearest(rest.split(".")[0] if top == "zero_optimization" else top, names)
        # At the top DeepSpeed passes by what it does not know; inside of zero_optimization it stops.
        kind: Kind = "lost" if top == "zero_optimization" else "inert"
        if near:
            return kind, say("DeepSpeed has no such setting; did you mean {near}?", near=near)
        return kind, say("DeepSpeed has no such setting")
    if top in REMOVED_IN_0_19:
        return "lost", say("DeepSpeed 0.19 removed this feature")
    return "lost", say("the generated loop does not support it")
