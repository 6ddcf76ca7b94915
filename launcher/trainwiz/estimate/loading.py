"""Host memory for the model while it is built, before the engine moves it to the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz import strategies, tasks
from trainwiz.engines.transformers import LOADED_AS_SAVED
from trainwiz.estimate.adapter import four_bit_bytes, trained_parameters
from trainwiz.estimate.experts import left_out

if TYPE_CHECKING:
    from trainwiz.models import Transformer
    from trainwiz.plan import Plan
    from trainwiz.strategies import Strategy

_FP32 = 4
_SAVED = 2
"""Bytes of a weight in most models' files."""
_HALF = ("bf16", "fp16")


# docs/decisions/loop.md: Each rank reads its shards under FSDP2
def built_once(plan: Plan) -> bool:
    """Whether no rank but the first one holds the model, which sends the others their parts, if they read none."""
    return strategies.of(plan).builds_once and tasks.of(plan).state_is_whole


# docs/decisions/loop.md: Rank 0 alone builds the weights of task.py's own models
def built_first(plan: Plan) -> bool:
    """Whether rank 0 alone has the weights of a model that task.py makes itself, and the engine sends their shards."""
    strategy = strategies.of(plan)
    cut = strategy.builds_once or (strategy.uses_deepspeed and strategy.partitions_weights)
    return cut and plan.engine == "accelerate" and not tasks.of(plan).state_is_whole


def read_in_parts(plan: Plan, transformer: Transformer | None) -> bool:
    """Whether each rank reads its own rows of the weights: of whole models that transformers loads as they are."""
    as_saved = transformer is not None and transformer.model_type in LOADED_AS_SAVED
    changed = plan.data.special_tokens or plan.data.added_tokens or plan.model.modules_to_save
    loaded = tasks.of(plan).generative and not plan.model.from_scratch
    return built_once(plan) and loaded and as_saved and not changed


# docs/decisions/deepspeed.md: Beside an adapter, ranks that hold all weights load them onto their GPUs
def loaded_onto_device(plan: Plan) -> bool:
    """Whether each rank loads frozen weights straight onto its GPU, where all of them will be anyway.

    What task.py makes new (heads, rows of new tokens) begins with random numbers of the CPU, as under every strategy.
    """
    strategy, data = strategies.of(plan), plan.data
    frozen = plan.model.adapter == "lora" and plan.machine.device == "cuda" and plan.engine == "accelerate"
    whole = not strategy.partitions_weights and not strategy.builds_once
    return frozen and whole and tasks.of(plan).generative and not (data.special_tokens or data.added_tokens)


# docs/decisions/loop.md: Each 4-bit matrix is rounded by one rank, which sends the others their shards
def quantized_on_device(plan: Plan, transformer: Transformer | None) -> bool:
    """Whether each rank reads one tensor at a time and makes four bits of it on its GPU."""
    by_each = not built_once(plan) or read_in_parts(plan, transformer)
    return by_each and plan.model.adapter == "qlora" and plan.machine.device == "cuda"


def load_bytes(plan: Plan, parameters: int, transformer: Transformer | None = None) -> int:
    """Host memory on rank 0's machine: each rank builds the model, or rank 0 does, or it is cut at once."""
    if strategies.of(plan).builds_in_parts(plan) and not built_first(plan):
        return 0
    each = bytes_built(strategies.of(plan), adapter=plan.model.adapter, precision=plan.precision.mixed_precision)
    if transformer and (loaded_onto_device(plan) or quantized_on_device(plan, transformer)):
        each = max(each, _SAVED)
        own = _adapter_bytes(plan, parameters, transformer)
        return each * _at_once(transformer) * plan.machine.ranks_per_machine + own
    if built_first(plan):
        return each * parameters
    if not built_once(plan):
        return each * parameters * plan.machine.ranks_per_machine
    at_once = parameters
    if transformer and read_in_parts(plan, transformer):
        at_once = _at_once(transformer)
    return each * at_once + _adapter_bytes(plan, parameters, transformer)


def _at_once(transformer: Transformer) -> int:
    """Of weights that are read tensor by tensor."""
    return max(transformer.largest_table, transformer.largest_layer)


# docs/decisions/loop.md: Beside an adapter, each rank reads frozen weights in 16 bits
def _adapter_bytes(plan: Plan, parameters: int, transformer: Transformer | None) -> int:
    """Each rank makes the adapter by itself, in fp32."""
    if plan.model.adapter == "none":
        return 0
    spared = left_out(plan.model.lora_targets)
    trained = trained_parameters(
        parameters, plan.model.adapter, plan.model.lora_rank, transformer, frozen_experts=spared
    )
    return _FP32 * trained * plan.machine.ranks_per_machine


def bytes_built(strategy: Strategy, *, adapter: str, precision: str) -> int:
    """Of each parameter: fp32, unless it is frozen. Weights in four bits go to the device one by one.

    Where rank 0 alone holds the model, they are whole there until all of it is read.
    """
    if adapter == "none":
        return _FP32
    if adapter == "qlora" and not strategy.builds_once:
        return 1
    return 2 if precision in _HALF and strategy.keeps_frozen_dtype else _FP32


def whole_bytes(plan: Plan, parameters: int, transformer: Transformer | None = None) -> int:
    """Device memory on each rank for the whole model: DeepSpeed moves it there, cast, before it cuts the weights.

    Weights in four bits are made on the device, and zero.Init leaves a model alone that has them.
    """
    strategy = strategies.of(plan)
    if not (strategy.uses_deepspeed and strategy.partitions_weights):
        return 0
    if plan.model.adapter == "qlora":
        return four_bit_bytes(parameters, transformer.linear_weights if transformer else None)
    each = 2 if plan.precision.mixed_precision != "no" else _FP32
    return 0 if strategy.builds_in_parts(plan) else each * parameters
