"""What DeepSpeed is told, by its own file or by accelerate's block, as answers of a plan."""

from __future__ import annotations

import math
from typing import Any

from trainwiz import vocabulary
from trainwiz.adoption import optimizer
from trainwiz.adoption.free import ACCELERATE_SAYS, acts, default, is_free, rendered, same
from trainwiz.adoption.ledger import Kind, Page
from trainwiz.adoption.settings import BLOCK, Settings
from trainwiz.config import Accelerate
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import SETTINGS_OF_BLOCK
from trainwiz.engines.deepspeed import REMOVED_IN_0_19, TOP_LEVEL_KEYS, ZERO_KEYS, default_clipping
from trainwiz.message import Message, say
from trainwiz.plan import Plan


def read(page: Page, settings: Settings, accelerate: Accelerate | None) -> None:
    """Enter what the plan has keys for."""
    values, stage = settings.values, "zero_optimization.stage"
    page.carry(stage, "strategy.kind", "deepspeed")
    why = None if stage in values else say("not set; the default stage is {stage}", stage=settings.stage)
    page.carry(stage, "strategy.zero_stage", settings.stage, why)
    _offload(page, settings)
    gather = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    if values.get(gather) == "auto":
        _open(page, gather)
    elif settings.stage == 3 or gather in values:
        none = None if gather in values else say("not set; weights are not gathered")
        page.carry(gather, "strategy.zero3_save_16bit_model", bool(values.get(gather)), none)
    if settings.stage == 3 and not (accelerate and accelerate.has(f"{BLOCK}zero3_init_flag")):
        page.carry(stage, "strategy.zero3_init", True, say("not set; accelerate defaults to true at stage 3"))
    _batch(page, settings)
    _clipping(page, settings)
    if not settings.block:
        _precision(page, settings, accelerate)
        optimizer.read(page, settings)
        for name, reason in ACCELERATE_SAYS.items():
            if name in values:
                page.leave(name, "inert", reason)


# docs/decisions/files.md: An import keeps the engine's behavior, even where the file says nothing
def compare(page: Page, settings: Settings, accelerate: Accelerate | None, plan: Plan) -> None:
    """Enter everything that differs in the files that the project gets."""
    if accelerate is not None and not settings.block:
        _block_beside_file(Page(page.ledger, accelerate), settings)
    project = rendered(plan, plan.deepspeed) if plan.strategy.kind == "deepspeed" else {}
    for name in settings.paths:
        if page.knows(name):
            continue
        value, now = settings.values[name], project.get(name, default(name, plan))
        if not project:
            page.leave(name, "lost", say("the plan's strategy is not DeepSpeed"), key="strategy.kind")
        elif value == "auto":
            _open(page, name, now)
        elif name in vocabulary.DECIDED_SETTINGS:
            key = vocabulary.DECIDED_SETTINGS[name]
            page.leave(name, "lost", say("the plan has a different value"), key=key)
        elif same(now, value):
            page.same(name)
        elif is_free(name) and not acts(name, plan):
            page.leave(name, "inert", say("has no effect at this stage and precision"))
        else:
            page.leave(name, *_why_lost(name))


def _block_beside_file(page: Page, settings: Settings) -> None:
    why = say("DeepSpeed's own file decides; accelerate rejects this key next to deepspeed_config_file")
    for key, name in SETTINGS_OF_BLOCK.items():
        if page.file.has(path := BLOCK + key):
            if same(settings.effective(name), page.file.get(path)):
                page.same(path)
            else:
                page.leave(path, "inert", why)


def _offload(page: Page, settings: Settings) -> None:
    for part, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        name, key = f"zero_optimization.{part}.device", f"strategy.{part}_device"
        older = f"zero_optimization.{old}"
        value = settings.values.get(name)
        if value in ("none", "cpu", "nvme"):
            page.carry(name, key, value)
        elif value == "auto":
            _open(page, name)
        elif settings.values.get(older) is True:
            page.carry(older, key, "cpu")
        elif value is None:
            # An offload block without a device offloads nothing.
            page.carry("zero_optimization.stage", key, "none", say("not offloaded"))
        if settings.values.get(older) is False:
            page.same(older)
        path = f"zero_optimization.{part}.nvme_path"
        folder = settings.values.get(path)
        if folder in ("none", ""):
            page.same(path)
        elif isinstance(folder, str) and folder != "auto":
            first = page.ledger.carried.get("strategy.nvme_path")
            if value != "nvme":
                page.leave(path, "inert", say("nothing is offloaded to nvme"))
            elif first is None or first.value == folder:
                page.carry(path, "strategy.nvme_path", folder)
            else:
                why = say("a plan has only one nvme_path for optimizer and parameters")
                page.leave(path, "lost", why, key="strategy.nvme_path")


def _batch(page: Page, settings: Settings) -> None:
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    for name in names:
        value = settings.values.get(name)
        if type(value) is int and value > 0:
            page.carry(name, vocabulary.DECIDED_SETTINGS[name], value)
        elif value == "auto" or (settings.block and isinstance(value, str)):
            _open(page, name)
    by_product = all(type(settings.values.get(name)) is int for name in (names[0], names[2]))
    if not settings.block and names[1] not in settings.values and not by_product:
        page.carry("", "batch.gradient_accumulation_steps", 1, say("not set; accelerate defaults to 1"))


def _clipping(page: Page, settings: Settings) -> None:
    name, key = "gradient_clipping", "optimizer.gradient_clipping"
    value = settings.values.get(name)
    if value == 0 and settings.block:
        page.carry(name, key, 1.0, say("accelerate drops a value of 0; DeepSpeed then clips at 1.0"))
    elif value == math.inf:
        page.carry(name, key, 0.0, say("an infinite limit clips nothing"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        page.carry(name, key, float(value))
    elif value == "auto":
        _open(page, name)
    elif value is None and settings.block:
        page.carry(name, key, 1.0, say("not set; accelerate clips at 1.0"))
    elif value is None:
        usual, version = default_clipping(settings.file.version), settings.file.shown_version
        why = say("not set; DeepSpeed {version} defaults to {value}", version=version, value=usual)
        page.carry(name, key, usual, why)


def _precision(page: Page, settings: Settings, accelerate: Accelerate | None) -> None:
    key = "precision.mixed_precision"
    said = {word: settings.values.get(f"{word}.enabled") for word in ("bf16", "fp16")}
    chosen = next((word for word, value in said.items() if value is True), None)
    yaml = accelerate is not None and accelerate.has("mixed_precision")
    for word, value in said.items():
        name = f"{word}.enabled"
        if value == "auto" and not yaml:
            _open(page, name)
        elif word == chosen and key in page.ledger.carried and page.ledger.carried[key].value != word:
            page.leave(name, "lost", say("already set by another value"), key=key)
        elif word == chosen:
            page.carry(name, key, word)
        elif value is not None:
            page.same(name)
    if chosen is None and not yaml and "auto" not in said.values():
        page.carry("bf16.enabled", key, "no", say("neither bf16 nor fp16 is enabled"))


def _open(page: Page, name: str, now: Any = None) -> None:
    key = vocabulary.DECIDED_SETTINGS.get(name)
    why = say("taken from the model or the script; the project uses {value}", value=str(now))
    page.leave(name, "open", say("only the script knows the value") if key else why, key=key)


def _why_lost(name: str) -> tuple[Kind, Message]:
    top, _, rest = name.partition(".")
    if top not in TOP_LEVEL_KEYS or (top == "zero_optimization" and rest and rest.split(".")[0] not in ZERO_KEYS):
        names = ZERO_KEYS if top == "zero_optimization" else TOP_LEVEL_KEYS
        near = nearest(rest.split(".")[0] if top == "zero_optimization" else top, names)
        # At the top level, DeepSpeed ignores unknown keys; inside zero_optimization it stops.
        kind: Kind = "lost" if top == "zero_optimization" else "inert"
        if near:
            return kind, say("DeepSpeed has no such setting; did you mean {near}?", near=near)
        return kind, say("DeepSpeed has no such setting")
    if top in REMOVED_IN_0_19:
        return "lost", say("DeepSpeed 0.19 removed this feature")
    return "lost", say("the generated loop does not support it")
