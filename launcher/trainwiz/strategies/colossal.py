"""Colossal-AI's Booster: what its plugins have in common, and the plugins, one row each.

Devices by `supported_devices` of each plugin (0.5.0); that TorchDDP also trains on CPU ranks was seen. The plugins
partition the same parts of the state as ddp, zero1, zero2 and fsdp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from trainwiz.message import Message, say
from trainwiz.strategies.fsdp import Sharded
from trainwiz.strategies.single import replicated_bytes
from trainwiz.strategies.strategy import WHOLE, Strategy, Training

if TYPE_CHECKING:
    from trainwiz.plan import Plan
    from trainwiz.vocabulary import Engine

CHUNK_ELEMENTS = 32 * 2**20
"""The smallest chunk that Gemini looks for (`min_chunk_size_m` of its plugin)."""
_ZERO_LAYOUT = "colossal_zero"


class Plugin(Strategy):
    """A plugin of the Booster."""

    engine: ClassVar[Engine] = "colossalai"
    library_bytes = 58 * 2**20
    runs_exactly: ClassVar[Literal["update", "model", "nothing"]] = "nothing"
    replaces: ClassVar[tuple[str, ...]] = ()
    """The strategies of accelerate's that it is the counterpart of."""

    @property
    def rehearsable(self) -> bool:
        """Only TorchDDP trains on CPU ranks."""
        return "cpu" in self.devices

    def stands_in_for(self, label: str, *, bf16_on_gpu: bool) -> bool:  # noqa: ARG002
        """By `replaces`."""
        return label in self.replaces

    def regions(self, plan: Plan) -> dict[str, bool]:
        """Regions of the colossalai loop that most plugins share."""
        scaled = plan.precision.mixed_precision == "fp16"
        return {
            self.layout if self.layout == _ZERO_LAYOUT else self.kind: True,
            "parts": self.layout != WHOLE,
            "untrained": self.layout != WHOLE,
            "torch_adamw": True,
            "repeated_backward": True,
            "engine_step": not scaled,
            "engine_fp16_step": scaled,
            "scaler": scaled,
            "plain_backward": True,
            "weight_norm": True,
            "as_saved": True,
        }


class TorchDdp(Plugin):
    """TorchDDPPlugin."""

    kind = "colossal_ddp"
    summary = say("Colossal-AI: every rank holds the full state")
    devices = ("cuda", "npu", "cpu")
    whole_parameters: ClassVar[bool] = True
    precisions = ("no", "fp16")
    default_precision = ("no", say("Booster's DDP does not support bf16, and fp16 needs loss scaling"))
    layout = WHOLE

    def state_bytes(self, training: Training) -> int:
        """As under DDP."""
        return replicated_bytes(training)

    def tables_on_host(self, *, tied: bool) -> int:
        """As under DDP, and two more: Booster's loop does not fuse the loss with the head."""
        return 4 if tied else 3

    def link_bytes(self, training: Training, accumulation: int) -> float:  # noqa: ARG002
        """As under DDP."""
        return 2 * training.ring_share * training.weight_bytes * training.parameters

    def any_world(self, plan: Plan) -> bool:  # noqa: ARG002
        """Every rank holds everything."""
        return True

    def stands_in_for(self, label: str, *, bf16_on_gpu: bool) -> bool:
        """For what shards nothing, unless bf16 is wanted, which Booster does not have for DDP."""
        return label in ("single", "ddp") and not bf16_on_gpu

    def regions(self, plan: Plan) -> dict[str, bool]:
        """DDP synchronizes in the backward pass, and steps by itself."""
        scaled = plan.precision.mixed_precision == "fp16"
        return {
            **super().regions(plan),
            "repeated_backward": False,
            "no_sync": True,
            "bare_no_sync": not scaled,
            "engine_step": False,
            "engine_fp16_step": False,
            "ddp_step": not scaled,
            "ddp_fp16_step": scaled,
            "settled": True,
        }


class CastsAll(Plugin):
    """A plugin that computes in 16 bits by casting the model: every weight and buffer, also those not trained."""

    def regions(self, plan: Plan) -> dict[str, bool]:
        """Its casts take the frequencies of rotary positions along."""
        return {**super().regions(plan), "engine_casts": plan.precision.mixed_precision != "no"}

    def refused_hooks(self, plan: Plan) -> Mapping[str, Message]:
        """In 16 bits, what a function adds to the weights, or to an average of them, is rounded away."""
        if plan.precision.mixed_precision == "no":
            return {}
        why = say(
            "{strategy} keeps the whole model in 16 bits, in which the small changes of an average are rounded away",
            strategy=self.label,
        )
        return {"after_update": why}


class LowLevelZero(CastsAll):
    """LowLevelZeroPlugin, stages 1 and 2."""

    stage: ClassVar[int]
    """The stage that the plugin is given."""
    partitions_moments = True

    devices = ("cuda", "npu")
    precisions = ("bf16", "fp16", "no")
    sums_in_compute_dtype: ClassVar[bool] = True
    autocasts: ClassVar[bool] = False
    layout = _ZERO_LAYOUT

    def link_bytes(self, training: Training, accumulation: int) -> float:
        """Gradients are reduced, at stage 2 in each micro-batch, and weights gathered after the step."""
        reductions = accumulation if self.stage == 2 else 1
        return training.ring_share * training.compute_bytes * training.parameters * (reductions + 1)

    @property
    def settings(self) -> dict[str, int]:
        """The stage."""
        return {"zero_stage": self.stage}

    def regions(self, plan: Plan) -> dict[str, bool]:
        """Parts of a flat buffer, with a loss scaler of its own."""
        return {
            **super().regions(plan),
            "flat_parts": True,
            "zero_scaler": plan.precision.mixed_precision == "fp16",
        }


class Zero1(LowLevelZero):
    """Optimizer state is partitioned."""

    kind = "colossal_zero1"
    stage = 1
    summary = say("Colossal-AI: shards optimizer state across the ranks")
    replaces = ("zero1",)

    def state_bytes(self, training: Training) -> int:
        """As DeepSpeed's stage 1."""
        p, b = training.parameters, training.compute_bytes
        return 2 * b * p + (8 + training.moment_bytes) * p // training.world

    def stands_in_for(self, label: str, *, bf16_on_gpu: bool) -> bool:
        """Also for what shards nothing, in bf16: it hardly communicates more than DDP."""
        return label in self.replaces or (bf16_on_gpu and label in ("single", "ddp"))

    def regions(self, plan: Plan) -> dict[str, bool]:
        """Gradients are whole until the step, so the accumulation needs no communication."""
        return {**super().regions(plan), "repeated_backward": False, "no_sync": True, "bare_no_sync": True}


class Zero2(LowLevelZero):
    """Optimizer state and gradients are partitioned."""

    kind = "colossal_zero2"
    stage = 2
    summary = say("Colossal-AI: also shards gradients")
    replaces = ("zero2",)

    def state_bytes(self, training: Training) -> int:
        """As DeepSpeed's stage 2."""
        p, b = training.parameters, training.compute_bytes
        return b * p + (8 + training.moment_bytes + b) * p // training.world


class Gemini(CastsAll):
    """GeminiPlugin: weights, gradients and optimizer state in chunks, partitioned."""

    kind = "gemini"
    summary = say("Colossal-AI: also shards weights, in memory chunks")
    devices = ("cuda", "npu")
    precisions = ("bf16", "fp16")
    default_precision = ("bf16", say("Gemini computes only in 16 bits; bf16 needs no loss scaling"))
    optimizers = ("adamw",)
    compiles_optimizer: ClassVar[bool] = True
    autocasts: ClassVar[bool] = False
    partitions_weights = True
    partitions_moments = True
    sums_in_compute_dtype: ClassVar[bool] = True
    layout = "gemini"
    replaces = ("zero3", "zero2+offload", "zero3+offload")

    def state_bytes(self, training: Training) -> int:
        """Accumulated gradients are kept beside the weights; one chunk is gathered."""
        p, b = training.parameters, training.compute_bytes
        return (2 * b + 4 + training.moment_bytes) * p // training.world + min(p, CHUNK_ELEMENTS) * b

    def link_bytes(self, training: Training, accumulation: int) -> float:
        """Chunks gathered for the forward and the backward pass, and gradients scattered, in each micro-batch."""
        return 3 * training.ring_share * training.compute_bytes * training.parameters * accumulation

    def regions(self, plan: Plan) -> dict[str, bool]:
        """It takes its own Adam, and has a loss scaler of its own."""
        return {
            **super().regions(plan),
            "torch_adamw": False,
            "fused_adamw": plan.optimizer.name == "adamw",
            "gemini_scaler": plan.precision.mixed_precision == "fp16",
        }


class TorchFsdp(Sharded, Plugin):
    """TorchFSDPPlugin: PyTorch's first FSDP."""

    kind = "colossal_fsdp"
    summary = say("Colossal-AI: PyTorch's older sharding (FSDP1)")
    devices = ("cuda",)
    precisions = ("bf16", "no")
    superseded_by = "fsdp"
    uses_fsdp: ClassVar[bool] = False
    keeps_inputs_of_frozen_layers: ClassVar[bool] = True
    layers_at_once = 1
    layout = "colossal_fsdp"

    def regions(self, plan: Plan) -> dict[str, bool]:
        """torch's optimizer steps by itself; there is no loss scaler."""
        shared = Plugin.regions(self, plan)
        return {
            **shared,
            "flat_parts": True,
            "untrained": False,
            "engine_step": False,
            "engine_fp16_step": False,
            "scaler": False,
        }


STRATEGIES = (TorchDdp(), Zero1(), Zero2(), Gemini(), TorchFsdp())
