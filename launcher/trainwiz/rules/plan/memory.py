"""Whether a training fits into the memory of the GPUs and of the machine."""

from __future__ import annotations

from trainwiz import strategies, tasks
from trainwiz.estimate import Estimate
from trainwiz.estimate.loading import built_first, built_once
from trainwiz.estimate.reserve import FILLED
from trainwiz.finding import Fix, Level, Violations, remedy, violation
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.plan import Plan
from trainwiz.quantities import gib
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import used_gpus

CROWDED = 0.85
"""Above this share of a GPU, what is left is seldom enough for activations, the loss and the CUDA context."""


@rule("TW321", level=Level.ERROR, field="strategy.kind")
def state_fits_the_gpu(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """Weights, gradients and optimizer state of each rank must fit in its GPU.

    Without it: `torch.OutOfMemoryError: CUDA out of memory`, in the first optimizer step at the latest.
    Why: AdamW with fp32 master weights takes 16 bytes per parameter before any activations; ZeRO and FSDP divide parts
    of that by the number of ranks.
    Instead: use a higher ZeRO stage or FSDP, more ranks, or offload.
    Source: ZeRO, https://arxiv.org/abs/1910.02054, section 3; the tables in trainwiz.strategies, whose 16
    bytes (alone and under DDP) were the limit on a CPU with torch 2.13
    """
    smallest = _smallest_gpu(plan, machine)
    if smallest and estimate.device_bytes_per_rank > smallest:
        yield violation(
            "{strategy} needs {need} GiB of model state per rank ({parameters} parameters), but a GPU has {have} GiB",
            Fix(message=_more_sharding(plan)),
            strategy=plan.strategy.label,
            need=gib(estimate.device_bytes_per_rank),
            have=gib(smallest),
            parameters=f"{estimate.parameters:,}",
        )


@rule("TW322", level=Level.WARNING, field="strategy.kind")
def state_leaves_room(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """Model state and activations must leave enough GPU memory for each other and for the CUDA context.

    Without it: `CUDA out of memory` in the first forward pass, or later at the first long sequence.
    Why: activations grow with micro-batch × sequence length; the loss takes 12 bytes for each token and word of
    the vocabulary, for 1024 tokens at a time. The CUDA context, NCCL and gaps between blocks of memory take about a
    tenth of a GPU, which is why trainwiz chooses no plan that needs more than the rest.
    Instead: use a smaller micro-batch with more accumulation (the real batch stays the same), or more sharding.
    Source: https://arxiv.org/abs/2205.05198 (activation memory of transformers)
    """
    smallest = _smallest_gpu(plan, machine)
    if smallest and CROWDED * smallest < estimate.device_bytes_per_rank <= smallest:
        yield violation(
            "{strategy} uses {need} of {have} GiB for model state; activations need more memory in addition",
            Fix(message=_more_sharding(plan)),
            strategy=plan.strategy.label,
            need=gib(estimate.device_bytes_per_rank),
            have=gib(smallest),
        )
    elif smallest and FILLED * smallest < estimate.peak_bytes_per_rank <= smallest:
        yield violation(
            "the peak of {need} GiB leaves too little of {have} GiB for the CUDA context and fragmented memory",
            _fewer_activations(plan),
            where="batch.per_device_batch_size",
            need=gib(estimate.peak_bytes_per_rank),
            have=gib(smallest),
        )


@rule("TW325", level=Level.ERROR, field="batch.per_device_batch_size")
def activations_fit_the_gpu(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """Model state, buffers and the activations of one micro-batch must fit into the GPU.

    Without it: `torch.OutOfMemoryError: CUDA out of memory` in the first forward pass.
    Why: a forward pass keeps tensors of every layer for the backward pass. They grow with micro-batch × sequence length
    and do not depend on how the state is sharded. In addition there are the logits of 1024 tokens, and the strategy's
    temporary buffers: casts, gathered weights, buckets. For compiled layers, only the results of matrix multiplications
    and attention are counted: the compiler recomputes the rest. model.attention eager keeps scores of all pairs of
    tokens.
    Instead: recompute activations (model.activation_checkpointing), or use a smaller micro-batch with more
    accumulation, which keeps the real batch, or a shorter sequence.
    Source: what autograd saves, counted with transformers 5.23 (tests/models/test_activations.py)
    """
    # docs/decisions/wizard.md: Activations decide the default micro-batch, and TW325
    smallest, beside = _smallest_gpu(plan, machine), estimate.beside_bytes_per_rank
    if not smallest or estimate.device_bytes_per_rank > smallest:
        return
    if beside + estimate.activation_bytes_per_rank > smallest:
        yield violation(
            "a micro-batch of {per_device_batch_size} × {sequence_length} tokens needs {need} GiB of activations "
            "in addition to {state} GiB of model state and buffers; a GPU has {have} GiB",
            _fewer_activations(plan),
            need=gib(estimate.activation_bytes_per_rank),
            state=gib(beside),
            have=gib(smallest),
        )
    elif estimate.peak_bytes_per_rank > smallest:
        yield violation(
            "the gradients of the embeddings and the head need {need} GiB at the end of the backward pass, in "
            "addition to {state} GiB of model state; a GPU has {have} GiB",
            Fix(message=_more_sharding(plan)),
            need=gib(estimate.peak_bytes_per_rank - estimate.device_bytes_per_rank),
            state=gib(estimate.device_bytes_per_rank),
            have=gib(smallest),
        )


def _fewer_activations(plan: Plan) -> Fix:
    if plan.model.activation_checkpointing == "full" and plan.machine.device == "cuda" and not plan.model.compile:
        return remedy(
            "set model.activation_checkpointing to offload, or lower batch.per_device_batch_size and raise "
            "batch.gradient_accumulation_steps"
        )
    if plan.model.activation_checkpointing in ("full", "offload"):
        return remedy("lower batch.per_device_batch_size and raise batch.gradient_accumulation_steps")
    return remedy(
        "set model.activation_checkpointing to full, or lower batch.per_device_batch_size and raise "
        "batch.gradient_accumulation_steps"
    )


@rule("TW323", level=Level.ERROR, field="strategy.offload_optimizer_device")
def offload_fits_the_host(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """Offloaded state and activations must fit in the memory of each machine.

    Without it: the kernel kills a rank. The only visible sign is `exit code: -9`, often minutes after the start.
    Why: an offloaded AdamW keeps about 18 bytes per parameter in host memory, or 20 with offloaded parameters;
    pinned blocks are rounded up to powers of two. Offloaded activations are the inputs of all layers, for each rank.
    Instead: use more machines (each keeps only its part), nvme at stage 3, less offload, or a smaller micro-batch.
    Source: deepspeedai/DeepSpeed issues 4239, 4571; 18 bytes seen with DeepSpeed 0.19.8 at ZeRO 2 (and 4 of weights
    and gradients, which stay on the GPU)
    """
    need, have = estimate.host_bytes_per_machine, machine.memory.total_bytes
    if plan.machine.device != "cpu" and have and need > have:
        yield violation(
            "offload needs {need} GiB of host memory on each machine, but there are only {have} GiB",
            _less_on_the_host(plan),
            where=None if _offloads_state(plan) else "model.activation_checkpointing",
            need=gib(need),
            have=gib(have),
        )


@rule("TW328", level=Level.ERROR, field="strategy.kind")
def models_fit_the_host_while_they_load(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """The models that all ranks of a machine build must fit in its memory.

    Without it: the kernel kills a rank before the first update. The only visible sign is `exit code: -9`.
    Why: the engine takes the model from host memory, where each rank has built it: 4 bytes per parameter and rank, or 2
    for frozen weights in 16 bits. With LoRA under DDP or ZeRO 0 to 2, language models are loaded onto the GPUs, tensor
    by tensor. With zero.Init, ZeRO 3 shards the weights while they are loaded. Under fsdp, also with an adapter, each
    rank reads its rows of the safetensors files; if these do not match the model's weights, only rank 0 builds the
    model. So it does under fsdp and ZeRO 3 with a model that task.py makes itself, unless its build_model reads
    weights: then all ranks build it, and the training says so.
    Instead: use ZeRO 3 with strategy.zero3_init, or fsdp.
    Source: seen with transformers 5.23 and accelerate 1.15 on CPU ranks (tests/train_templates/test_sharding.py)
    """
    need, have = estimate.load_bytes_per_machine, machine.memory.total_bytes
    if plan.machine.device == "cpu" or not have or need <= have:
        return
    if built_once(plan) or built_first(plan) or plan.machine.ranks_per_machine == 1:
        yield violation(
            "rank 0 builds the model in {need} GiB of host memory, but there are only {have} GiB",
            _loaded_in_parts(plan),
            need=gib(need),
            have=gib(have),
        )
    else:
        yield violation(
            "{ranks} ranks build the model in {need} GiB of host memory, but there are only {have} GiB",
            _loaded_in_parts(plan),
            ranks=plan.machine.ranks_per_machine,
            need=gib(need),
            have=gib(have),
        )


@rule("TW329", level=Level.ERROR, field="strategy.zero3_init")
def the_whole_model_fits_the_gpu_at_first(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """At ZeRO stage 3 without zero.Init, the whole model must fit in each GPU once; a 4-bit model always must.

    Without it: `torch.OutOfMemoryError: CUDA out of memory` in `accelerator.prepare`, or for QLoRA in
    `from_pretrained`, although its shard would fit, even if the weights are offloaded.
    Why: DeepSpeed moves the model to the device in its compute type and then shards the weights. 4-bit weights are
    created on the device, and transformers does not use zero.Init for them.
    Instead: set strategy.zero3_init to true: the weights are then sharded while the model is built. For a model that is
    too large in 4 bits, set strategy.kind to fsdp, which quantizes one matrix at a time and shards it, on
    several GPUs.
    Source: `DeepSpeedEngine._configure_distributed_model` in DeepSpeed 0.19.8;
    `PreTrainedModel.get_init_context` in transformers 5.23
    """
    smallest = _smallest_gpu(plan, machine)
    if smallest and estimate.whole_bytes_per_rank > smallest and plan.model.adapter == "qlora":
        yield violation(
            "QLoRA under ZeRO 3 loads the whole 4-bit model ({need} GiB) onto a GPU of {have} GiB before it is sharded",
            remedy("set strategy.kind to fsdp, which shards 4-bit weights one by one", {"strategy.kind": "fsdp"})
            if plan.machine.num_processes > 1
            else remedy("use more GPUs and set strategy.kind to fsdp, or choose a smaller model"),
            where="strategy.kind",
            need=gib(estimate.whole_bytes_per_rank),
            have=gib(smallest),
        )
    elif smallest and estimate.whole_bytes_per_rank > smallest:
        yield violation(
            "ZeRO 3 moves the whole model ({need} GiB) to a GPU of {have} GiB before it is sharded",
            remedy("set strategy.zero3_init to true", {"strategy.zero3_init": True}),
            need=gib(estimate.whole_bytes_per_rank),
            have=gib(smallest),
        )


def _less_on_the_host(plan: Plan) -> Fix:
    if plan.model.activation_checkpointing != "offload":
        return remedy("use nvme with ZeRO 3, use more machines, or offload less")
    if _offloads_state(plan):
        return remedy("use nvme with ZeRO 3, lower batch.per_device_batch_size, or offload less")
    return remedy("lower batch.per_device_batch_size or batch.sequence_length")


def _offloads_state(plan: Plan) -> bool:
    return plan.strategy.offload_optimizer_device != "none" or plan.strategy.offload_param_device != "none"


def _loaded_in_parts(plan: Plan) -> Fix:
    strategy = strategies.of(plan)
    if not tasks.of(plan).state_is_whole and (strategy.partitions_weights or strategy.builds_once):
        return remedy("rank 0 builds the whole model: use machines with more memory, or a smaller model")
    if strategy.uses_deepspeed and strategy.partitions_weights:
        return remedy("set strategy.zero3_init to true", {"strategy.zero3_init": True})
    if strategy.builds_once:
        return remedy("set strategy.kind to deepspeed, with strategy.zero_stage 3 and strategy.zero3_init true")
    return remedy("set strategy.kind to fsdp, or to deepspeed with strategy.zero_stage 3 and strategy.zero3_init true")


@rule("TW324", level=Level.ERROR, field="machine.num_processes")
def cpu_ranks_fit_the_host(plan: Plan, machine: Machine, estimate: Estimate) -> Violations:
    """The state of all CPU ranks must fit in the machine's memory.

    Without it: the machine swaps, or the kernel kills a rank (`exit code: -9`). If a limit is set (ulimit),
    `DefaultCPUAllocator: can't allocate memory`, in the first optimizer step at the latest.
    Why: on the CPU, all ranks of a machine share its memory, and ddp keeps a full copy on each rank.
    Instead: use fewer ranks, or ZeRO 3, which keeps one copy across all ranks.
    Source: seen with torch 2.13: within a byte per parameter, the tables in trainwiz.strategies are the limit
    """
    ranks, have = plan.machine.ranks_per_machine, machine.memory.total_bytes
    need = ranks * estimate.device_bytes_per_rank + estimate.host_bytes_per_machine
    alone = estimate.device_bytes_per_rank + estimate.host_bytes_per_machine
    if plan.machine.device == "cpu" and have and alone > have:
        yield violation(
            "the model state needs {need} GiB for a single CPU rank, but this machine has {have} GiB",
            remedy("use a smaller model; to plan for other machines, run: trainwiz init --machine 8xH100"),
            where="model.name",
            need=gib(alone),
            have=gib(have),
        )
    elif plan.machine.device == "cpu" and have and need > have:
        yield violation(
            "the model state of {ranks} CPU ranks needs {need} GiB, but this machine has {have} GiB",
            remedy("use a smaller model or fewer ranks"),
            ranks=ranks,
            need=gib(need),
            have=gib(have),
        )


def _smallest_gpu(plan: Plan, machine: Machine) -> int | None:
    return min((gpu.memory_bytes for gpu in used_gpus(plan, machine)), default=None)


def _more_sharding(plan: Plan) -> Message:
    strategy = strategies.of(plan)
    if strategy.partitions_weights and strategy.uses_deepspeed:
        return say("use more GPUs, or offload the optimizer: strategy.offload_optimizer_device cpu")
    if strategy.partitions_weights:
        return say("use more GPUs, or use DeepSpeed ZeRO 3 with strategy.offload_optimizer_device cpu")
    if plan.machine.num_processes == 1:
        return say("use more GPUs with ZeRO 3 or fsdp, or set strategy.kind to deepspeed with optimizer offload")
    return say("set strategy.kind to deepspeed with strategy.zero_stage 3, or to fsdp")
