"""What a plan in the making trains, and the memory that there is for it."""

from __future__ import annotations

from trainwiz import optimizers
from trainwiz.decide.decision import Decision
from trainwiz.estimate.activations import Loss, keeps_scores
from trainwiz.estimate.adapter import dropped_features
from trainwiz.estimate.device import Work
from trainwiz.estimate.experts import left_out
from trainwiz.estimate.state import fuses_head, network, picture_size
from trainwiz.vocabulary import LOSS_CHUNK

ROOMY = 0.7
"""The part of a GPU up to which a little speed is worth more memory; above it, too low a forecast costs more."""


def work_of(d: Decision, length: int | None = None) -> Work:
    """What is trained, and how, as far as it is decided: with one sample in a micro-batch, of this length."""
    assert d.parameters is not None
    values = d.values
    targets = str(d.answers.get("model.lora_targets") or d.defaults["model.lora_targets"])
    data = values.get("data.train", "embedded")
    return Work(
        parameters=d.parameters,
        transformer=d.transformer,
        network=network(d.task, values["model.name"]),
        picture_size=picture_size(data, values.get("data.image_size", 0)),
        generates=d.task.generative,
        fused_head=fuses_head(d.task, values["precision.mixed_precision"]),
        rows=d.task.rows(values["preference.loss"]),
        adapter=values["model.adapter"],
        lora_rank=values["model.lora_rank"],
        targets=targets,
        frozen_experts=left_out(targets),
        dropped_features=dropped_features(
            d.transformer, values["model.adapter"], d.answers.get("model.lora_dropout"), targets
        ),
        measured=values["model.adapter"] != "none" and bool(values.get("model.lora_dora")),
        precision=values["precision.mixed_precision"],
        world=values["machine.num_processes"],
        moment_bytes=optimizers.named(
            str(d.answers.get("optimizer.name") or d.defaults["optimizer.name"])
        ).moment_bytes,
        optimizer_offloaded=values.get("strategy.offload_optimizer_device", "none") != "none",
        parameters_offloaded=values.get("strategy.offload_param_device", "none") != "none",
        checkpointing=values.get("model.activation_checkpointing", "none"),
        loss=Loss(tokens_at_once=values.get("model.loss_chunk") or d.answers.get("model.loss_chunk") or LOSS_CHUNK),
        # Most trainings accumulate: until the batch is decided, gradients are counted beside the activations.
        accumulates=values.get("batch.gradient_accumulation_steps") != 1,
        length=length or values["batch.sequence_length"],
        keeps_scores=keeps_scores(values["model.attention"], d.transformer, by_blocks=_attends_by_blocks(d)),
    )


def _attends_by_blocks(d: Decision) -> bool:
    """As in the estimate of a plan: packed rows on GPUs. Rows count as packed until that is decided."""
    packed = d.task.packs and d.values.get("data.packing", d.answers.get("data.packing")) is not False
    return packed and not d.on_cpu and d.answers.get("engine") != "colossalai"


def smallest_gpu_bytes(d: Decision) -> int | None:
    """The memory of the smallest GPU; None on a CPU and where it is unknown."""
    if d.on_cpu or d.machine is None or not d.machine.gpus:
        return None
    return min(g.memory_bytes for g in d.machine.gpus)
