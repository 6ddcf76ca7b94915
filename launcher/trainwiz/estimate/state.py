"""What a plan needs of memory and disk.

The bytes of state per rank are each strategy's own (`strategies/`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwiz import models, optimizers, strategies, tasks
from trainwiz.engines.deepspeed import DEFAULTS
from trainwiz.engines.liger import FAMILIES as FUSED_FAMILIES
from trainwiz.estimate.activations import Loss, keeps_scores
from trainwiz.estimate.adapter import dropped_features, trained_parameters
from trainwiz.estimate.device import Needs, Work, needs, offloaded_activations, offloaded_frozen, training_of
from trainwiz.estimate.disk import checkpoint_bytes
from trainwiz.estimate.experts import left_out
from trainwiz.estimate.frozen import frozen_parameters, head_is_frozen
from trainwiz.estimate.loading import load_bytes, whole_bytes
from trainwiz.models import Transformer
from trainwiz.models.pictures import PictureNetwork, network_of_timm
from trainwiz.strategies.strategy import LIVE_ELEMENTS, REDUCE_BUCKET_ELEMENTS, SUB_GROUP_ELEMENTS
from trainwiz.tasks.networks import NetworkShape

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_DIGITS = 8
"""Pixels along each edge of the embedded pictures: scikit-learn's digits."""
_PRIVATE = 152 * 2**20
"""Host memory that a rank shares with no other, where its model is about to be built: Python, torch, accelerate, gloo.

Seen in `/proc/self/smaps_rollup` with torch 2.13 and accelerate 1.15: 152 MiB, 180 with transformers 5.23, and 209 with
DeepSpeed 0.19 as well. What an engine adds is in `Strategy.library_bytes`. CUDA's own is not in it.
"""
_PRIVATE_TRANSFORMERS = 28 * 2**20
"""What transformers adds to that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a plan needs; the CUDA context is not in it."""

    parameters: int
    """The model's size, frozen weights included."""
    device_bytes_per_rank: int
    """Device memory for model state on each rank."""
    activation_bytes_per_rank: int
    """What a micro-batch keeps for its backward pass, and its logits or the layer that is computed again; 0 for other
    networks.
    """
    beside_bytes_per_rank: int
    """State and buffers that are in memory beside those activations: autocast's copy, gathered weights, buckets."""
    peak_bytes_per_rank: int
    """The most that is in memory at any moment of an update."""
    host_bytes_per_machine: int
    """Host memory for offloaded state and activations on each machine."""
    staged_bytes_per_machine: int
    """Host memory for the copies that checkpoints in the background are written from."""
    process_bytes_per_machine: int
    """Host memory of the ranks of a machine themselves, before their models."""
    whole_bytes_per_rank: int
    """Device memory for the whole model, where the engine moves it there before it shards it."""
    load_bytes_per_machine: int
    """Host memory for the models that the ranks of a machine build before the engine takes them."""
    checkpoint_bytes: int
    """Disk for one checkpoint."""


def estimate(plan: Plan, parameters: int, transformer: Transformer | None = None) -> Estimate:
    """The bytes that a plan needs for a model with this many parameters, and with these layers."""
    strategy = strategies.of(plan)
    work = work_of(plan, parameters, transformer)
    trained, device = training_of(work).parameters, device_needs(plan, parameters, transformer)
    host = strategy.host_bytes_per_parameter(plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device)
    beside = offloaded_activations(strategy, work)
    beside += offloaded_frozen(strategy, work) if plan.strategy.offload_param_device == "cpu" else 0
    return Estimate(
        parameters=parameters,
        device_bytes_per_rank=device.state,
        activation_bytes_per_rank=device.activations,
        beside_bytes_per_rank=device.beside,
        peak_bytes_per_rank=device.total,
        host_bytes_per_machine=host * trained // plan.machine.num_machines + beside * plan.machine.ranks_per_machine,
        staged_bytes_per_machine=staged_bytes(plan, checkpoint_bytes(strategy, work)),
        process_bytes_per_machine=process_bytes(plan) * plan.machine.ranks_per_machine,
        whole_bytes_per_rank=whole_bytes(plan, parameters, work.transformer),
        load_bytes_per_machine=load_bytes(plan, parameters, transformer),
        checkpoint_bytes=checkpoint_bytes(strategy, work),
    )


def device_needs(plan: Plan, parameters: int, transformer: Transformer | None) -> Needs:
    """What a plan needs in the memory of each rank, at each moment."""
    return needs(strategies.of(plan), replace(work_of(plan, parameters, transformer), compiled=plan.model.compile))


def process_bytes(plan: Plan) -> int:
    """Host memory that each rank has for itself before its model."""
    return _PRIVATE + (_PRIVATE_TRANSFORMERS if tasks.of(plan).from_hub else 0) + strategies.of(plan).library_bytes


def staged_bytes(plan: Plan, checkpoint: int) -> int:
    """Host memory on the first machine for the copy that a checkpoint in the background is written from."""
    strategy = strategies.of(plan)
    if not (plan.checkpoint.background and strategy.copies_state):
        return 0
    return checkpoint // plan.machine.num_machines if strategy.partitions_weights else checkpoint


def work_of(plan: Plan, parameters: int, transformer: Transformer | None) -> Work:
    """What a plan trains, and how."""
    task = tasks.of(plan)
    shape, weight_bytes = layers(task, plan.model.name, parameters, transformer), 2 if _in_half(plan) else 4
    patterns = plan.model.frozen.split(",") if plan.model.frozen else []
    frozen = frozen_parameters(shape, patterns) if shape else 0
    trained = parameters - frozen if frozen else None
    spared = left_out(plan.model.lora_targets)
    if shape and plan.model.adapter != "none" and plan.model.modules_to_save:  # each at most a table of embeddings
        tables = shape.largest_table * len(plan.model.modules_to_save.split(","))
        own = trained_parameters(parameters, plan.model.adapter, plan.model.lora_rank, shape, frozen_experts=spared)
        trained = min(parameters, own + tables)
    return Work(
        parameters=parameters,
        transformer=shape,
        network=network(task, plan.model.name),
        picture_size=picture_size(plan.data.train, plan.data.image_size),
        trained=trained,
        frozen_bytes=weight_bytes if frozen else None,
        frozen_head=shape is not None and head_is_frozen(shape, patterns),
        generates=task.generative,
        adapter=plan.model.adapter,
        lora_rank=plan.model.lora_rank,
        targets=plan.model.lora_targets,
        frozen_experts=spared,
        dropped_features=dropped_features(shape, plan.model.adapter, plan.model.lora_dropout, plan.model.lora_targets),
        measured=plan.model.adapter != "none" and plan.model.lora_dora,
        precision=plan.precision.mixed_precision,
        world=plan.machine.num_processes,
        moment_bytes=_moment_bytes(plan),
        weight_bytes=weight_bytes,
        optimizer_offloaded=plan.strategy.offload_optimizer_device != "none",
        parameters_offloaded=plan.strategy.offload_param_device != "none",
        bucket=_elements(plan, "reduce_bucket_size", REDUCE_BUCKET_ELEMENTS),
        sub_group=_elements(plan, "sub_group_size", SUB_GROUP_ELEMENTS),
        live=_elements(plan, "stage3_max_live_parameters", LIVE_ELEMENTS),
        prefetch=_elements(plan, "stage3_prefetch_bucket_size", REDUCE_BUCKET_ELEMENTS),
        saves_gathered=plan.deepspeed.get("zero_optimization.memory_efficient_linear") is False,
        overlaps=plan.machine.device != "cpu",
        accumulates=plan.batch.gradient_accumulation_steps > 1,
        whole_gradients=plan.batch.gradient_accumulation_steps > 1 and not plan.strategy.sync_each_batch,
        checkpointing=plan.model.activation_checkpointing,
        loss=Loss(tokens_at_once=plan.model.loss_chunk),
        samples=plan.batch.per_device_batch_size,
        fused_head=fuses_head(task, plan.precision.mixed_precision),
        rows=task.rows(plan.preference.loss),
        length=plan.batch.sequence_length,
        keeps_scores=keeps_scores(plan.model.attention, shape, by_blocks=attends_by_blocks(plan)),
        fused_layers=plan.model.kernels == "liger" and shape is not None and shape.model_type in FUSED_FAMILIES,
    )


def fuses_head(task: tasks.Task, precision: str) -> bool:
    """Whether head and loss are computed together: not in fp16, which scales the loss before gradients are rounded."""
    return task.packs and precision != "fp16"


def attends_by_blocks(plan: Plan) -> bool:
    """Whether attention of packed rows may be flex_attention's, which needs a GPU."""
    packed = plan.data.packing and tasks.of(plan).packs
    suits = plan.machine.device == "cuda" and plan.engine == "accelerate"
    return packed and suits and plan.model.attention in ("auto", "flex_attention")


def _elements(plan: Plan, key: str, generated: int) -> int:
    """The elements that ZeRO works on at once; DeepSpeed's own number where the plan leaves it to DeepSpeed."""
    told = plan.deepspeed.get(f"zero_optimization.{key}", generated)
    if isinstance(told, int | float) and not isinstance(told, bool) and told > 0:
        return int(told)
    return int(DEFAULTS[f"zero_optimization.{key}"])


def _in_half(plan: Plan) -> bool:
    return plan.precision.weights != "float32" and strategies.of(plan).keeps_trained_dtype


def _moment_bytes(plan: Plan) -> int:
    """What the optimizer keeps, which has the type of the weights, and their average."""
    row = optimizers.named(plan.optimizer.name)
    kept = row.moment_bytes // 2 if _in_half(plan) and not row.package else row.moment_bytes
    return kept + (4 if plan.optimizer.ema_decay else 0)


def layers(task: tasks.Task, name: str, parameters: int, found: Transformer | None) -> Transformer | None:
    """The layers of a model: a preset's, those that were found, or the usual ones for its size. None for a network."""
    if not task.from_hub:
        return None
    preset = task.transformer(name)
    return preset.transformer if preset else found or models.of_parameters(parameters)


def picture_size(data: str, asked: int) -> int:
    """Pixels along each edge of a picture; those of the embedded digits are not changed."""
    return _DIGITS if data == "embedded" else asked


def network(task: tasks.Task, name: str) -> PictureNetwork | None:
    """The layers of a network for pictures: a preset's, or those of timm's that is known by this name."""
    if task.samples != "pictures":
        return None
    preset = task.shape(name)
    return preset if isinstance(preset, NetworkShape) else network_of_timm(name)
