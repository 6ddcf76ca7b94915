"""What DeepSpeed is told, by its own file or by accelerate's block, as answers of a plan.

Defaults are those of DeepSpeed 0.19.8, which a test asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz import vocabulary
from trainwiz.adoption import optimizer
from trainwiz.adoption.ledger import Ledger, leaves, place_of
from trainwiz.config import vocabulary as known
from trainwiz.message import say

if TYPE_CHECKING:
    from trainwiz.adoption.ledger import Kind
    from trainwiz.config import Accelerate, DeepSpeed
    from trainwiz.message import Message
    from trainwiz.plan import Plan

_BLOCK = "deepspeed_config."
_IN_BLOCK = {
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
"""The keys of accelerate's block, as its DeepSpeedPlugin (1.15) makes a configuration of them."""
_OTHER_NAMES = {
    **{name: f"stage3_{name}" for name in ("prefetch_bucket_size", "param_persistence_threshold",
       "model_persistence_threshold", "max_live_parameters", "max_reuse_distance", "module_granularity_threshold",
       "gather_16bit_weights_on_model_save", "use_all_reduce_for_fetch_params", "allgather_sequential")},
    "stage3_use_all_reduce_for_fetch_params": "stage3_use_all_reduce_for_fetch_params",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}  # fmt: skip
"""Two names of one setting in zero_optimization."""
DEFAULTS: dict[str, Any] = {
    "zero_optimization.contiguous_gradients": True,
    "zero_optimization.reduce_scatter": True,
    "zero_optimization.reduce_bucket_size": 500_000_000,
    "zero_optimization.allgather_partitions": True,
    "zero_optimization.allgather_bucket_size": 500_000_000,
    "zero_optimization.round_robin_gradients": False,
    "zero_optimization.stage3_prefetch_bucket_size": 50_000_000,
    "zero_optimization.stage3_param_persistence_threshold": 100_000,
    "zero_optimization.stage3_max_live_parameters": 1_000_000_000,
    "zero_optimization.stage3_max_reuse_distance": 1_000_000_000,
    "zero_optimization.sub_group_size": 1_000_000_000,
    "zero_optimization.offload_optimizer.pin_memory": True,
    "zero_optimization.offload_optimizer.buffer_count": 4,
    "zero_optimization.offload_optimizer.fast_init": False,
    "zero_optimization.offload_optimizer.pipeline_read": False,
    "zero_optimization.offload_optimizer.pipeline_write": False,
    "zero_optimization.offload_param.pin_memory": True,
    "zero_optimization.offload_param.buffer_count": 5,
    "zero_optimization.offload_param.buffer_size": 100_000_000,
    "zero_optimization.offload_param.max_in_cpu": 1_000_000_000,
    "fp16.loss_scale": 0,
    "fp16.initial_scale_power": 16,
    "fp16.loss_scale_window": 1000,
    "fp16.hysteresis": 2,
    "fp16.consecutive_hysteresis": False,
    "fp16.min_loss_scale": 1,
    "aio.block_size": 1_048_576,
    "aio.queue_depth": 8,
    "aio.intra_op_parallelism": 1,
    "aio.single_submit": False,
    "aio.overlap_events": True,
    "data_types.grad_accum_dtype": None,
    "zero_force_ds_cpu_optimizer": True,
    "wall_clock_breakdown": False,
}
"""What DeepSpeed takes where nothing is said, of everything that `render` writes. `overlap_comm` hangs on the stage."""
_ACCELERATE_SAYS = {
    "steps_per_print": say("accelerate sets it to infinity, whatever the file says"),
    "zero_allow_untested_optimizer": say("accelerate allows every optimizer that the script makes"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """DeepSpeed's settings by their path in its file, and where each really stands."""

    file: Accelerate | DeepSpeed
    values: Mapping[str, Any]
    paths: Mapping[str, str]
    block: bool

    def path(self, name: str) -> str:
        """Where a setting stands, or would stand."""
        if name in self.paths:
            return self.paths[name]
        return "deepspeed_config" if self.block else name

    def shown(self, name: str) -> str | None:
        """`ds.json:7`; None where the file does not say it."""
        if name not in self.paths:
            return None
        place = place_of(self.file.document, self.paths[name])
        return f"{place.file.rpartition('/')[2]}:{place.line}"

    @property
    def stage(self) -> int:
        """The ZeRO stage, or what counts where none is given: 2 from accelerate, else 0."""
        value = self.values.get("zero_optimization.stage", 2 if self.block else 0)
        return int(value) if str(value) in ("0", "1", "2", "3") else 2

    def effective(self, name: str) -> Any:
        """A setting as DeepSpeed takes it; of one that is `auto` the word."""
        if name == "zero_optimization.overlap_comm":
            value = self.values.get(name)
            return self.stage == 3 if value is None else value
        return self.values.get(name, DEFAULTS.get(name))


def of(accelerate: Accelerate | None, deepspeed: DeepSpeed | None) -> Settings | None:
    """The settings of DeepSpeed's file, else of accelerate's block; None where DeepSpeed is not used."""
    if deepspeed is not None:
        names = {path: _name(path) for path, _ in leaves(deepspeed.document)}
        values = {names[path]: value for path, value in leaves(deepspeed.document)}
        return Settings(file=deepspeed, values=_numbers(values), paths={n: p for p, n in names.items()}, block=False)
    if accelerate is None or accelerate.kind != "DEEPSPEED":
        return None
    held = {name: accelerate.get(f"{_BLOCK}{key}") for key, name in _IN_BLOCK.items() if accelerate.has(_BLOCK + key)}
    held = {name: value for name, value in held.items() if value is not None}
    paths = {name: f"{_BLOCK}{key}" for key, name in _IN_BLOCK.items() if name in held}
    return Settings(file=accelerate, values=_numbers(held), paths=paths, block=True)


def read(ledger: Ledger, settings: Settings, accelerate: Accelerate | None) -> None:
    """Enter what the plan has keys for."""
    file, values = settings.file, settings.values
    ledger.carry(file, settings.path("zero_optimization.stage"), "strategy.kind", "deepspeed")
    why = None
    if "zero_optimization.stage" not in values:
        why = say("DeepSpeed's stage where none is given: {stage}", stage=settings.stage)
    ledger.carry(file, settings.path("zero_optimization.stage"), "strategy.zero_stage", settings.stage, why)
    _offload(ledger, settings)
    gather = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    if values.get(gather) == "auto":
        _open(ledger, settings, gather)
    elif settings.stage == 3 or gather in values:
        none = None if gather in values else say("left out, so weights are not gathered")
        ledger.carry(file, settings.path(gather), "strategy.zero3_save_16bit_model", bool(values.get(gather)), none)
    if settings.stage == 3 and not (accelerate and accelerate.has(f"{_BLOCK}zero3_init_flag")):
        ledger.carry(file, settings.path("zero_optimization.stage"), "strategy.zero3_init", True,
                     say("left out, so accelerate takes true at stage 3"))  # fmt: skip
    _batch(ledger, settings)
    _clipping(ledger, settings)
    if not settings.block:
        _precision(ledger, settings, accelerate)
        optimizer.read(ledger, settings)
        for name, reason in _ACCELERATE_SAYS.items():
            if name in values:
                ledger.leave(file, settings.path(name), "inert", reason)


def free_settings(settings: Settings, plan: Plan) -> dict[str, Any]:
    """What has to be written beside the plan's keys for DeepSpeed to be set as before."""
    if plan.strategy.kind != "deepspeed":
        return {}
    base = _rendered(plan, {})
    found = {}
    for name in dict.fromkeys([*settings.values, *base]):
        wanted = settings.effective(name)
        if not _is_free(name) or wanted == "auto" or _same(base.get(name, _default(name, plan)), wanted):
            continue
        if _acts(name, plan):
            found[name] = wanted
    return found


def compare(ledger: Ledger, settings: Settings, accelerate: Accelerate | None, plan: Plan) -> None:
    """Enter everything that is otherwise in the files that the project gets."""
    if accelerate is not None and not settings.block:
        _block_beside_file(ledger, settings, accelerate)
    project = _rendered(plan, plan.deepspeed) if plan.strategy.kind == "deepspeed" else {}
    for name, path in settings.paths.items():
        if ledger.knows(settings.file, path):
            continue
        value, now = settings.values[name], project.get(name, _default(name, plan))
        if not project:
            ledger.leave(settings.file, path, "lost", say("the plan's strategy is not DeepSpeed"), key="strategy.kind")
        elif value == "auto":
            _open(ledger, settings, name, now)
        elif name in vocabulary.DECIDED_SETTINGS:
            key = vocabulary.DECIDED_SETTINGS[name]
            ledger.leave(settings.file, path, "lost", say("the plan says otherwise"), key=key)
        elif _same(now, value):
            ledger.same(settings.file, path)
        elif _is_free(name) and not _acts(name, plan):
            ledger.leave(settings.file, path, "inert", say("nothing reads it at this stage and precision"))
        else:
            ledger.leave(settings.file, path, *_why_lost(name))


def _block_beside_file(ledger: Ledger, settings: Settings, accelerate: Accelerate) -> None:
    for key, name in _IN_BLOCK.items():
        if accelerate.has(path := _BLOCK + key):
            if _same(settings.effective(name), accelerate.get(path)):
                ledger.same(accelerate, path)
            else:
                ledger.leave(accelerate, path, "inert", say("DeepSpeed's own file decides; accelerate refuses both"))


def _offload(ledger: Ledger, settings: Settings) -> None:
    for part, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        name, key = f"zero_optimization.{part}.device", f"strategy.{part}_device"
        value = settings.values.get(name)
        if value in ("none", "cpu", "nvme"):
            ledger.carry(settings.file, settings.path(name), key, value)
        elif value == "auto":
            _open(ledger, settings, name)
        elif settings.values.get(f"zero_optimization.{old}") is True:
            ledger.carry(settings.file, settings.path(f"zero_optimization.{old}"), key, "cpu")
        elif value is None:
            # An offload block without a device offloads nothing.
            ledger.carry(settings.file, settings.path("zero_optimization.stage"), key, "none", say("not offloaded"))
        folder = settings.values.get(f"zero_optimization.{part}.nvme_path")
        path = settings.path(f"zero_optimization.{part}.nvme_path")
        if isinstance(folder, str) and folder not in ("none", "auto", ""):
            first = ledger.carried.get("strategy.nvme_path")
            if value == "nvme" and (first is None or first.value == folder):
                ledger.carry(settings.file, path, "strategy.nvme_path", folder)
            elif value == "nvme":
                ledger.leave(settings.file, path, "lost", say("a plan has one folder for both"),
                             key="strategy.nvme_path")  # fmt: skip
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
            ledger.carry(settings.file, "", "batch.gradient_accumulation_steps", 1,
                         say("left out, so accelerate takes 1"))  # fmt: skip


def _clipping(ledger: Ledger, settings: Settings) -> None:
    name, key = "gradient_clipping", "optimizer.gradient_clipping"
    value = settings.values.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        ledger.carry(settings.file, settings.path(name), key, float(value))
    elif value == "auto":
        _open(ledger, settings, name)
    elif value is None:
        newer = settings.block or settings.file.version >= (0, 19)
        why = say("left out: accelerate then clips at 1.0") if settings.block else say(
            "left out: DeepSpeed {version} then takes {value}", version=".".join(map(str, settings.file.version)),
            value=1.0 if newer else 0.0,
        )  # fmt: skip
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
        elif word == chosen:
            ledger.carry(settings.file, settings.path(name), key, word)
        elif value is not None:
            ledger.same(settings.file, settings.path(name))
    if chosen is None and not yaml and "auto" not in said.values():
        ledger.carry(
            settings.file, settings.path("bf16.enabled"), key, "no", say("neither bf16 nor fp16 is switched on")
        )


def _open(ledger: Ledger, settings: Settings, name: str, now: Any = None) -> None:
    key = vocabulary.DECIDED_SETTINGS.get(name)
    if key:
        why = say("only the script could tell")
    else:
        why = say("filled in from the model or the script; the project writes {value}", value=str(now))
    ledger.leave(settings.file, settings.path(name), "open", why, key=key)


def _why_lost(name: str) -> tuple[Kind, Message]:
    top, _, rest = name.partition(".")
    if top not in known.DEEPSPEED or (top == "zero_optimization" and rest and rest.split(".")[0] not in known.ZERO):
        names = known.ZERO if top == "zero_optimization" else known.DEEPSPEED
        near = known.nearest(rest.split(".")[0] if top == "zero_optimization" else top, names)
        # At the top DeepSpeed passes by what it does not know; inside of zero_optimization it stops.
        kind: Kind = "lost" if top == "zero_optimization" else "inert"
        if near:
            return kind, say("DeepSpeed has no such setting; did you mean {near}?", near=near)
        return kind, say("DeepSpeed has no such setting")
    if top in known.REMOVED:
        return "lost", say("DeepSpeed 0.19 has no such feature any more")
    return "lost", say("the generated loop does not work with it")


def _rendered(plan: Plan, free: Mapping[str, Any]) -> dict[str, Any]:
    from trainwiz.render import deepspeed

    config = deepspeed.config(plan.model_copy(update={"deepspeed": dict(free)}))
    return dict(_flat(config, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _default(name: str, plan: Plan) -> Any:
    if name == "zero_optimization.overlap_comm":
        return plan.strategy.zero_stage == 3
    return DEFAULTS.get(name)


def _is_free(name: str) -> bool:
    if name in vocabulary.DECIDED_SETTINGS or name in _ACCELERATE_SAYS or name == "fp16.auto_cast":
        return False
    block, _, last = name.rpartition(".")
    if block in known.STRICT and last not in known.STRICT[block]:
        return False
    return any(name == free or (free.endswith(".") and name.startswith(free)) for free in vocabulary.FREE_SETTINGS)


def _acts(name: str, plan: Plan) -> bool:
    """Whether anything reads a setting under this plan."""
    strategy, precision = plan.strategy, plan.precision.mixed_precision
    if name.startswith("fp16."):
        return precision == "fp16"
    if name.startswith("bf16."):
        return precision in ("bf16", "fp8")
    if name == "data_types.grad_accum_dtype":
        return precision != "no"
    if name.startswith("zero_optimization.stage3_"):
        return strategy.zero_stage == 3
    if name.startswith("zero_optimization.offload_optimizer."):
        return strategy.offload_optimizer_device != "none"
    if name.startswith("zero_optimization.offload_param."):
        return strategy.offload_param_device != "none"
    if name.startswith("zero_optimization."):
        return strategy.zero_stage != 0
    if name == "zero_force_ds_cpu_optimizer":
        return strategy.offload_optimizer_device != "none"
    if name.startswith("aio."):
        return "nvme" in (strategy.offload_optimizer_device, strategy.offload_param_device)
    return True


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _name(path: str) -> str:
    block, _, name = path.partition(".")
    return f"{block}.{_OTHER_NAMES.get(name, name)}" if block == "zero_optimization" else path


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's `2e8` is a float, and means a whole number of elements; a quoted number is read as one."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> Any:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1000 else value
