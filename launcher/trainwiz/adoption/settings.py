"""DeepSpeed's settings by their path in its file, whether they stand there or in accelerate's block.

Defaults are those of DeepSpeed 0.19.8, which a test asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwiz.adoption.ledger import leaves, place_of

if TYPE_CHECKING:
    from trainwiz.config import Accelerate, DeepSpeed

BLOCK = "deepspeed_config."
IN_BLOCK = {
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
    **{
        name: f"stage3_{name}"
        for name in (
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "module_granularity_threshold",
            "gather_16bit_weights_on_model_save",
            "use_all_reduce_for_fetch_params",
            "allgather_sequential",
        )
    },
    "stage3_use_all_reduce_for_fetch_params": "stage3_use_all_reduce_for_fetch_params",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
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
    held = {name: accelerate.get(f"{BLOCK}{key}") for key, name in IN_BLOCK.items() if accelerate.has(BLOCK + key)}
    held = {name: value for name, value in held.items() if value is not None}
    paths = {name: f"{BLOCK}{key}" for key, name in IN_BLOCK.items() if name in held}
    return Settings(file=accelerate, values=_numbers(held), paths=paths, block=True)


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
