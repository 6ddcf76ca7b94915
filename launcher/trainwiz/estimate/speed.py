"""How long an update takes: compute, memory traffic, kernel launches and communication.

A micro-batch needs the sum of four times: matrix products and attention, whose throughput is a share of the GPU's; the
tensors of each layer, which pass through memory; and a fixed time per layer to launch kernels. Communication runs
beside it, by the ring formulas (https://arxiv.org/abs/2006.15704, section 2.1, for all-reduce), and all but a small
part of the shorter of the two is hidden. `Rates` are fitted on the rows of docs/forecast.md and mean the same on every
GPU; what `GpuModel` says of one was measured by others.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.estimate import dora
from trainwiz.estimate.activations import arithmetic
from trainwiz.estimate.datasheets import GpuModel
from trainwiz.estimate.device import Work, stream_bytes, training_of
from trainwiz.estimate.experts import rounded_weights
from trainwiz.models import Transformer
from trainwiz.models.activations import input_bytes, layer_bytes
from trainwiz.strategies import Strategy

_DEQUANTIZED_BYTES = 5
"""Of a weight in four bits that is expanded to 16 for a product: read, written, and read again."""
_PACKED = 0.26
"""Of a weight in 16 bits, what one in four bits has."""
_STEP_BYTES = 28
"""Of each parameter in Adam's step: weight, gradient and two moments read, three of them written, in fp32."""
_FP8_SHARE = 0.92
"""What the largest products in fp8 reach of their rate, against those in bf16: 0.91 on an H200, 0.98 on a B200 (the
table that `GpuModel.matrix_share` is from).
"""
_CAST_BYTES = 5
"""Of a number that is cast to fp8: read for its largest value, read again, and written in 8 bits."""
_PCIE = 25e9
"""Bytes per second between host and device."""
_RECOMPUTED = ("full", "offload")
"""What computes the matrices and attention of each layer once more."""
_CONVOLVED = 0.55
"""The share of the largest products' throughput that convolutions reach, with channels first as the generated script
has them; with channels last it is 0.9.

This and the next constant are fitted on 55 networks that trained on an RTX 3090 under autocast (the table
results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv of https://github.com/huggingface/pytorch-image-models).
"""
_PICTURE_PASSES = 4
"""How often what a network for pictures keeps goes through memory in each of forward and twice backward."""
_MODULE_LAUNCHES = 0.05
"""The part of a language model's layer that launching one module's kernels takes. Chosen: the batches of that table are
large.
"""
_HOST_ADAM = 20e9
"""Bytes per second that the host's Adam goes through, for each rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What is fitted, on published rows of which each source was left out in turn (benchmarks/left_out.py)."""

    matrices: float = 0.87
    """The share that a training's matrix products reach of the largest ones' throughput."""
    passes: float = 1.75
    """How often what a layer keeps goes through memory in each of forward, recomputation and twice backward."""
    launches: float = 1.0e-3
    """Seconds to launch the kernels of one layer in one pass from Python."""
    ring: float = 0.28
    """The share of a link's bandwidth that NCCL's rings reach while the GPU computes beside them."""
    network: float = 0.4
    """The same of a network between machines, whose traffic the GPU's own memory and kernels disturb less."""
    not_hidden: float = 0.27
    """The share of the shorter of computation and communication that does not run beside the other."""


FITTED = Rates()
_COMPILED = 0.6
"""The share of those passes and launches that torch.compile leaves; of the launches, fused kernels, too, of which a
Llama's layer has about 17 operators less of 40.
"""
_ADAPTED = 2
"""How many times as many kernels a layer with adapters has."""
_MEASURED = 3
"""The same with DoRA: 0.34 ms more for each matrix in an update than LoRA (peft's method_comparison/MetaMathQA,
lora--llama-3.2-3B-rank32-dora.json against -rank32.json, 840 tokens on an L40S).
"""
_ADAPTER_BYTES = 5
"""Of each feature that enters or leaves a matrix with an adapter, in each pass: read by the adapter's own products, and
read and written where the result is scaled and added, 6 bytes forward and 9 in twice as many passes backward.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Seconds of one update."""

    compute: float
    """Matrix products and attention."""
    memory: float
    """Everything else that a layer does, bound by memory."""
    launches: float
    """Kernel launches."""
    communication: float
    """All of it, hidden or not."""
    step: float
    """The optimizer."""
    tokens: int
    """Tokens of one rank in the update; of a network for pictures, pictures."""
    not_hidden: float
    """Of the shorter of computation and communication."""

    @property
    def seconds(self) -> float:
        """Of one update: what is longer, computation or communication, and the part of the other that is not hidden."""
        computation = self.compute + self.memory + self.launches
        shorter = min(computation, self.communication)
        return max(computation, self.communication) + self.not_hidden * shorter + self.step

    @property
    def tokens_per_second(self) -> float:
        """Of one rank."""
        return self.tokens / self.seconds


def pace(
    strategy: Strategy,
    work: Work,
    gpu: GpuModel,
    *,
    accumulation: int = 1,
    ranks_per_machine: int | None = None,
    attended: int | None = None,
    compiled: bool = False,
    network: float | None = None,
    rates: Rates = FITTED,
) -> Pace | None:
    """The seconds of an update; None where the model's layers are unknown.

    `network` is what was measured between machines, in bytes per second and rank. `attended` is how many tokens a
    sample has, where a rank holds only a part of it.
    """
    model = work.transformer
    within = ranks_per_machine is None or work.world <= ranks_per_machine
    # Rings through all adapters of a machine: what a machine lacks comes in once, and NVLink hands it on.
    together = (ranks_per_machine or 1) * (network or gpu.network)
    link = rates.ring * gpu.link if within else min(rates.ring * gpu.link, rates.network * together)
    if work.network is not None:
        return _of_pictures(strategy, work, gpu, accumulation=accumulation, link=link, rates=rates)
    if model is None:
        return None
    training, tokens = training_of(work), work.tokens
    in_fp8 = work.precision == "fp8" and gpu.fp8_flops
    gain = _FP8_SHARE * gpu.fp8_flops / gpu.half_flops if in_fp8 and gpu.fp8_flops else 1
    half = work.precision in ("fp16", "bf16", "fp8")
    reached = gpu.half_flops * gpu.matrix_share if half else gpu.single_flops * gpu.single_share
    products = tokens * (_matrix_flops(model, work) / gain + _head_flops(model, work)) / (reached * rates.matrices)
    attention = tokens * _attention_flops(model, work, attended or work.length) / (reached * gpu.attention_share)
    kept = _COMPILED if compiled else 1
    passes = rates.passes * kept
    memory = passes * tokens * _traffic(model, work) / gpu.bandwidth
    memory += tokens * _rounds(work) * _ADAPTER_BYTES * work.adapted / gpu.bandwidth
    if in_fp8 and not work.fused_casts:
        memory += _CAST_BYTES * _cast_numbers(model, tokens) / gpu.bandwidth
    if work.measured:
        forward = _rounds(work) - 2
        memory += (forward * dora.pass_bytes(model) + _rounds(work) * tokens * dora.token_bytes(model)) / gpu.bandwidth
    if work.adapter == "qlora":
        memory += _rounds(work) * _DEQUANTIZED_BYTES * rounded_weights(strategy, model) / gpu.bandwidth
    if work.checkpointing == "offload":  # out in the forward pass, back in the backward pass, in the same queue
        number = work.stream_bytes or stream_bytes(strategy, work)
        inputs = input_bytes(model, work.arithmetic or arithmetic(strategy, work.precision), number)
        memory += 2 * tokens * model.num_hidden_layers * inputs / _PCIE
    more = _MEASURED if work.measured else _ADAPTED if work.adapter != "none" else 1
    launches = rates.launches * more * (_COMPILED if compiled or work.fused_layers else 1)
    return Pace(
        compute=accumulation * (products + attention),
        memory=accumulation * memory,
        launches=accumulation * launches * model.num_hidden_layers * _rounds(work),
        communication=strategy.link_bytes(training, accumulation) * _frozen_share(strategy, work) / link
        + accumulation * _host_seconds(work, training.compute_bytes),
        step=_step_seconds(strategy, work, gpu),
        tokens=accumulation * tokens,
        not_hidden=rates.not_hidden,
    )


def _of_pictures(
    strategy: Strategy, work: Work, gpu: GpuModel, *, accumulation: int, link: float, rates: Rates
) -> Pace | None:
    """The seconds of an update of a network for pictures."""
    network, pictures = work.network, accumulation * work.samples
    if network is None:
        return None
    half = work.precision in ("fp16", "bf16", "fp8")
    reached = gpu.half_flops * gpu.matrix_share if half else gpu.single_flops * gpu.single_share
    share = _CONVOLVED if network.convolves else rates.matrices
    rounds = _rounds(work)
    kept = network.kept(work.picture_size, work.arithmetic or arithmetic(strategy, work.precision), "none").saved
    again = work.checkpointing in _RECOMPUTED
    return Pace(
        compute=pictures * (4 if again else 3) * 2 * network.multiplications(work.picture_size) / (reached * share),
        memory=pictures * rounds * _PICTURE_PASSES * kept / gpu.bandwidth,
        launches=accumulation * rounds * network.modules * _MODULE_LAUNCHES * rates.launches,
        communication=strategy.link_bytes(training_of(work), accumulation) / link,
        step=_step_seconds(strategy, work, gpu),
        tokens=pictures,
        not_hidden=rates.not_hidden,
    )


def _rounds(work: Work) -> int:
    """Passes through the layers: forward, twice as much backward, and one to compute activations again."""
    return 3 if work.checkpointing == "none" else 4


def _matrix_flops(model: Transformer, work: Work) -> float:
    """Of one token in all layers: 2 for each weight in a forward pass, 2 for the gradient of the input, 2 for that of
    the weight.
    """
    weights = sum(block.count * (block.attention_weights + block.active_mlp_weights) for block in model.blocks)
    trained = 6 if work.adapter == "none" else 4
    again = 2.0 if work.checkpointing in _RECOMPUTED else 0.0
    return (trained + again) * weights


def _head_flops(model: Transformer, work: Work) -> float:
    """Of one token in the head, which stays in 16 bits beside layers in fp8."""
    return (6 if work.adapter == "none" else 4) * model.hidden_size * model.vocab_size if work.generates else 0


def _cast_numbers(model: Transformer, tokens: int) -> float:
    """Inputs of matrices, gradients of their results, and the weights, which the backward pass casts once more."""
    each = sum(
        block.count
        * (
            3 * model.hidden_size
            + 2 * (block.query_size + block.key_value_size)
            + (3 if block.gated else 2) * block.intermediate_size
            + model.hidden_size
        )
        for block in model.blocks
    )
    weights = sum(block.count * (block.attention_weights + block.active_mlp_weights) for block in model.blocks)
    return tokens * each + 2 * weights


def _attention_flops(model: Transformer, work: Work, length: int) -> float:
    """Of one token: causal attention multiplies it with half of the sample, twice."""
    forward = sum(
        block.count * block.query_size * 2 * min(length, 2 * (block.window or length)) for block in model.blocks
    )
    return (4 if work.checkpointing in _RECOMPUTED else 3) * forward


def _traffic(model: Transformer, work: Work) -> float:
    """Bytes of one token that pass through memory in all layers and the loss."""
    kind = work.arithmetic or "autocast"
    layers = sum(
        block.count * layer_bytes(model, block, kind, work.scored, fused=work.fused_layers) for block in model.blocks
    )
    logits = 3 * (work.loss.logit_bytes or 12) * model.vocab_size if work.generates else 0
    return _rounds(work) * layers + logits


def _frozen_share(strategy: Strategy, work: Work) -> float:
    """Frozen weights in four bits travel as they are; others do so in 16."""
    if work.adapter != "qlora" or work.transformer is None:
        return 1
    joined = 0 if strategy.packs_experts else work.transformer.joined_weights / work.transformer.parameters
    return _PACKED * (1 - joined) + joined


def _host_seconds(work: Work, number: int) -> float:
    """To bring offloaded weights twice and gradients back, of each rank's part, in one micro-batch."""
    numbers = (2 if work.parameters_offloaded else 0) + (1 if work.optimizer_offloaded else 0)
    return numbers * number * work.parameters / work.world / _PCIE


def _step_seconds(strategy: Strategy, work: Work, gpu: GpuModel) -> float:
    parameters = training_of(work).parameters / (work.world if strategy.partitions_moments else 1)
    if work.optimizer_offloaded:
        return parameters * (4 / _PCIE + _STEP_BYTES / _HOST_ADAM)
    return parameters * _STEP_BYTES / gpu.bandwidth
