"""Offload and less common features of DeepSpeed: what each of them needs."""

from __future__ import annotations

from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.config.spelling import nearest
from trainwiz.engines.deepspeed import DTYPES_OF
from trainwiz.finding import Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_LONG = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
_PLUS_PLUS = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")


def _short(name: str) -> str:
    name = name.removeprefix("torch.")
    return _LONG.get(name, name)


@rule("TW350", level=Level.ERROR, field="zero_optimization.allgather_bucket_size")
def gather_buckets_are_even(deepspeed: DeepSpeed) -> Violations:
    """allgather_bucket_size must be an even number.

    Without it: every rank fails with `AssertionError: allgather_bucket_size must be a multiple of
    nccl_start_alignment_factor, 2` after the model is built.
    Why: each piece of a bucket must start at an address aligned to 4 bytes.
    Instead: use an even number of elements, such as 200000000.
    Source: seen with DeepSpeed 0.19.8 at stages 1 and 2
    """
    path = "zero_optimization.allgather_bucket_size"
    size = deepspeed.get(path)
    if deepspeed.stage in (1, 2) and isinstance(size, int | float) and size % 2 == 1:
        even = int(size) + 1
        fix = safe(remedy("write {number}", {path: even}, number=even))
        yield violation("allgather_bucket_size {size} is odd; it must be even", fix, size=size)


@rule("TW351", level=Level.ERROR, field="prescale_gradients")
def stage_3_scales_afterwards(deepspeed: DeepSpeed) -> Violations:
    """prescale_gradients does not work with ZeRO stage 3.

    Without it: `AssertionError: pre-scale gradients is not yet supported with ZeRO-3 with reduce scatter enabled`.
    Why: the reduce-scatter of stage 3 divides after the sum.
    Instead: remove prescale_gradients. If fp16 needed it against overflow, use bf16, which does not overflow there.
    Source: seen with DeepSpeed 0.19.8
    """
    scatter = deepspeed.get("zero_optimization.reduce_scatter", True)
    if deepspeed.stage == 3 and deepspeed.get("prescale_gradients") is True and scatter is True:
        yield violation("ZeRO stage 3 rejects prescale_gradients", remedy("delete it", {"prescale_gradients": None}))


@rule("TW374", level=Level.ERROR, field="data_types.grad_accum_dtype")
def stage_0_accumulates_in_the_models_type(deepspeed: DeepSpeed) -> Violations:
    """At ZeRO stage 0, grad_accum_dtype must equal the data type of the model.

    Without it: every rank fails with `NotImplementedError: unsupported mix of model_dtype=torch.bfloat16 and
    grad_accum_dtype=torch.float32`.
    Why: without a partitioned optimizer, nothing keeps a second copy of the gradients.
    Instead: use stage 1, or remove grad_accum_dtype.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "data_types.grad_accum_dtype"
    wanted = str(deepspeed.get(path))
    model = next((kind for kind in ("bf16", "fp16") if deepspeed.enabled(kind)), None)
    if deepspeed.stage != 0 or model is None or wanted not in DTYPES_OF[path]:
        return
    if _short(wanted) != model:
        yield violation(
            "at stage 0, gradients of a {model} model cannot be accumulated in {type}",
            remedy("delete it, or use stage 1", {path: None}),
            model=model,
            type=wanted,
        )


@rule("TW375", level=Level.ERROR, field="data_types.grad_accum_dtype")
def types_have_deepspeeds_names(deepspeed: DeepSpeed) -> Violations:
    """communication_data_type, grad_accum_dtype and torch_autocast.dtype must use DeepSpeed's type names.

    Without it: every rank fails with `ValueError: Invalid communication_data_type. Supported data types: ['fp16',
    'bf16', 'fp32']`, or `is not a valid DtypeEnum`.
    Why: DeepSpeed has its own list of type names for each of these settings.
    Instead: use fp32, bf16 or fp16.
    Source: seen with DeepSpeed 0.19.8
    """
    for path, known in DTYPES_OF.items():
        value = deepspeed.get(path)
        # Only communication_data_type ignores case.
        word = value.lower() if isinstance(value, str) and path.endswith("communication_data_type") else value
        if value is None or value == "auto" or (isinstance(word, str) and word in known):
            continue
        same = _short(str(word).lower())
        near = same if same in known else nearest(str(value).removeprefix("torch."), known)
        shown = _short(near) if near else None
        yield violation(
            "{key} is {value}; use fp32, bf16 or fp16",
            safe(remedy("did you mean {key}?", {path: shown}, key=shown), same == shown) if shown else None,
            where=path,
            value=str(value),
        )


@rule("TW376", level=Level.WARNING, field="zero_optimization")
def zero_plus_plus_is_stage_3(deepspeed: DeepSpeed) -> Violations:
    """ZeRO++ (zero_hpz_partition_size, zero_quantized_weights, zero_quantized_gradients) needs ZeRO stage 3.

    Without it: DeepSpeed accepts the key but does nothing: below stage 3, every rank has the full weights.
    Why: ZeRO++ makes it cheaper to gather sharded weights and to reduce their gradients.
    Instead: use stage 3, or remove these keys.
    Source: https://www.deepspeed.ai/tutorials/zeropp/; read in DeepSpeed 0.19.8: only stage 3's optimizer gets them
    """
    if deepspeed.stage not in (0, 1, 2):
        return
    for key in ("zero_hpz_partition_size", *_PLUS_PLUS):
        path = f"zero_optimization.{key}"
        value = deepspeed.get(path)
        if value is True or (type(value) is int and value > 1):
            fix = remedy("delete it, or use stage 3", {path: None})
            yield violation("{key} only works at ZeRO stage 3; the stage is {stage}", fix, where=path)


@rule("TW377", level=Level.WARNING, field="zero_optimization.zero_hpz_partition_size")
def secondary_partitions_fit_the_world(accelerate: Accelerate, deepspeed: DeepSpeed) -> Violations:
    """zero_hpz_partition_size must divide the number of ranks per machine.

    Without it: a size larger than the world size is silently reduced to it. Groups that span two machines gather
    weights over the network instead of the fast links within a machine.
    Why: hpZ keeps a second copy of the weights within each group of that many ranks.
    Instead: set it to the number of GPUs in a machine.
    Source: seen with DeepSpeed 0.19.8; https://www.deepspeed.ai/tutorials/zeropp/
    """
    path = "zero_optimization.zero_hpz_partition_size"
    size, world = deepspeed.get(path), accelerate.world
    if type(size) is not int or size <= 1 or world is None or deepspeed.stage != 3:
        return
    ranks = max(1, world // accelerate.machines)
    if ranks % size:
        yield violation(
            "zero_hpz_partition_size {size} does not divide the {ranks} ranks of a machine",
            remedy("set it to {ranks}", {path: ranks}, ranks=ranks) if ranks > 1 else None,
            size=size,
            ranks=ranks,
        )


@rule("TW378", level=Level.ERROR, field="tensor_parallel.autotp_size")
def tensor_parallel_ranks_divide_the_world(accelerate: Accelerate, deepspeed: DeepSpeed) -> Violations:
    """tensor_parallel.autotp_size must divide num_processes.

    Without it: every rank fails with an `AssertionError` without text from DeepSpeed's groups.
    Why: each group of that many ranks holds one whole model.
    Instead: use a size that divides num_processes and the number of heads of the model.
    Source: seen with DeepSpeed 0.19.8; deepspeed/utils/groups.py
    """
    path = "tensor_parallel.autotp_size"
    size, world = deepspeed.get(path), accelerate.world
    if type(size) is int and size > 1 and world is not None and world % size:
        fix = remedy("set autotp_size to a divisor of {world}, or use more processes")
        yield violation("autotp_size {size} does not divide num_processes {world}", fix, size=size)


@rule("TW379", level=Level.WARNING, field="activation_checkpointing")
def contiguous_checkpoints_are_partitioned(deepspeed: DeepSpeed) -> Violations:
    """contiguous_memory_optimization needs partition_activations and number_checkpoints.

    Without it: `Contiguous Checkpointing is only available with partitioned activations` as soon as a model calls
    DeepSpeed's checkpointing. Models from transformers never call it, and the whole block is ignored.
    Why: the buffers are allocated for pieces of a known size and number.
    Instead: set partition_activations: true with number_checkpoints, or call model.gradient_checkpointing_enable().
    Source: deepspeed/runtime/activation_checkpointing/checkpointing.py (0.19.8)
    """
    block = "activation_checkpointing"
    path = f"{block}.contiguous_memory_optimization"
    missing = [key for key in ("partition_activations", "number_checkpoints") if not deepspeed.get(f"{block}.{key}")]
    if deepspeed.get(path) is True and missing:
        fix = remedy("delete it", {path: None})
        yield violation("contiguous_memory_optimization needs {keys}", fix, where=path, keys=", ".join(missing))


@rule("TW380", level=Level.WARNING, field="compile.deepcompile")
def deepcompile_needs_zero(deepspeed: DeepSpeed) -> Violations:
    """compile.deepcompile needs ZeRO, and a call of engine.compile() in the script; its passes need their own.

    Without it: at stage 0, DeepSpeed falls back to plain torch.compile and only logs one line. So does autosp at
    stages 2 and 3: no sequence is split. autotp with another pass stops with `NotImplementedError`.
    Why: DeepCompile moves ZeRO's collectives into the graph; without ZeRO there are none. AutoSP works without ZeRO or
    at stage 1, and AutoTP alone, with tensor_parallel.autotp_size.
    Instead: use stage 1 or 3, or remove deepcompile; with autosp, use stage 0 or 1.
    Source: deepspeed/runtime/engine.py, `compile` (0.19.8)
    """
    if deepspeed.get("compile.deepcompile") is not True:
        return
    given = deepspeed.get("compile.passes")
    passes = set(map(str, given)) if isinstance(given, list) else set()
    if "autotp" in passes and len(passes) > 1:
        others = ", ".join(sorted(passes - {"autotp"}))
        yield violation(
            "the pass autotp cannot be combined with {others}: engine.compile() stops",
            remedy("use one of them"),
            where="compile.passes",
            others=others,
        )
    elif "autosp" in passes and deepspeed.stage in (2, 3):
        yield violation(
            "the pass autosp has no effect at ZeRO stage {stage}: sequences are not split",
            remedy("use stage 0 or 1, or Ulysses (sequence_parallel_size)"),
            where="compile.passes",
        )
    elif deepspeed.stage == 0 and passes.isdisjoint({"autosp", "autotp"}):
        fix = remedy("delete it, or use stage 1", {"compile.deepcompile": None})
        yield violation("deepcompile has no effect at ZeRO stage 0", fix)


@rule("TW345", level=Level.WARNING, field="zero_optimization.offload_param")
def offload_fits_its_stage(deepspeed: DeepSpeed) -> Violations:
    """Parameter offload and nvme need ZeRO stage 3; optimizer offload to the CPU needs stage 1 or higher.

    Without it: below stage 3, offload_param is ignored, and an optimizer meant for nvme stays in host memory, both
    without any message. At stage 0, the optimizer becomes DeepSpeed's CPUAdam, which fails in its first step on GPU
    weights with `CPUAdam param is on cuda`.
    Why: below stage 3, every rank holds all weights, and the optimizer cannot swap. Stage 0 moves nothing at all.
    Instead: use stage 3, or offload only the optimizer to cpu at stage 1 or 2.
    Source: seen with DeepSpeed 0.19.8 at stages 0, 1 and 2
    """
    stage = deepspeed.stage
    if stage is None or stage == 3:
        return
    device = deepspeed.get("zero_optimization.offload_param.device", "none")
    if device in ("cpu", "nvme"):
        fix = remedy("use stage 3, or delete the block", {"zero_optimization.offload_param": None})
        yield violation("offload_param {device} is ignored at ZeRO stage {stage}", fix, device=device)
    if deepspeed.get("zero_optimization.offload_optimizer.device") == "nvme" and stage:
        path = "zero_optimization.offload_optimizer.device"
        yield violation(
            "at ZeRO stage {stage}, the optimizer is offloaded to host memory, not to nvme",
            remedy("use stage 3, or set the device to cpu", {path: "cpu"}),
            where=path,
        )
    away = deepspeed.get("zero_optimization.offload_optimizer.device")
    if stage == 0 and away in ("cpu", "nvme") and deepspeed.get("zero_force_ds_cpu_optimizer", True) is not False:
        yield violation(
            "at ZeRO stage 0, the weights stay on the GPU, and DeepSpeed's CPUAdam stops with an error",
            remedy("use stage 1 or higher, or delete the block", {"zero_optimization.offload_optimizer": None}),
            where="zero_optimization.offload_optimizer",
        )


@rule("TW346", level=Level.ERROR, field="zero_optimization.offload_optimizer.ratio")
def partial_offload_needs_stage_3(deepspeed: DeepSpeed) -> Violations:
    """offload_optimizer.ratio must be between 0 and 1; a value below 1 needs ZeRO stage 3.

    Without it: every rank fails with `Partial offloading only supported for ZeRO Stage 3` after the model is built.
    Why: only stage 3 splits the optimizer by parameters.
    Instead: set ratio to 1.0, or use stage 3.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "zero_optimization.offload_optimizer.ratio"
    ratio = deepspeed.get(path)
    if not isinstance(ratio, int | float):
        return
    if not 0 <= ratio <= 1:
        yield violation("ratio is {ratio}; it must be between 0 and 1", ratio=ratio)
    elif ratio < 1 and deepspeed.stage in (0, 1, 2):
        fix = remedy("set ratio to 1.0, or use stage 3", {path: 1.0})
        yield violation("ratio {ratio} needs ZeRO stage 3; the stage is {stage}", fix, ratio=ratio)


@rule("TW347", level=Level.ERROR, field="zero_optimization.offload_optimizer.nvme_path")
def nvme_has_a_folder(deepspeed: DeepSpeed) -> Violations:
    """Offload to nvme needs nvme_path, the folder to swap to.

    Without it: after the model is built, DeepSpeed fails: for parameters with `"nvme_path" in DeepSpeed Config
    cannot be None`; for the optimizer, deep inside DeepSpeed, with `TypeError: expected str, bytes or os.PathLike
    object, not NoneType`.
    Why: the path has no default.
    Instead: set nvme_path to a folder on a fast local disk.
    Source: seen with DeepSpeed 0.19.8; https://www.deepspeed.ai/docs/config-json/#parameter-offloading
    """
    for part in ("offload_optimizer", "offload_param"):
        block = f"zero_optimization.{part}"
        wanted = deepspeed.get(f"{block}.device") == "nvme" and deepspeed.stage == 3
        if wanted and not deepspeed.get(f"{block}.nvme_path"):
            fix = remedy("add nvme_path: a folder on a local NVMe disk, such as /local_nvme")
            yield violation("{part} uses nvme, but nvme_path is not set", fix, where=f"{block}.device", part=part)
