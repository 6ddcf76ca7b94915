"""The format that the forward and backward pass compute in, and the hardware that can."""

from __future__ import annotations

from trainwiz import strategies, tasks
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Gpu, Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import used_gpus
from trainwiz.rules.versions import install, parts

AMPERE = (8, 0)
ADA = (8, 9)


@rule("TW201", level=Level.ERROR, field="precision.mixed_precision")
def fp16_needs_a_gpu(plan: Plan) -> Violations:
    """fp16 does not work on the CPU.

    Without it: accelerate reports `mixed_precision: fp16` but computes in fp32 and uses as much memory as fp32;
    DeepSpeed stops with `ValueError: Type fp16 is not supported on your device.`
    Why: accelerate enables fp16 autocast only if the device is not the CPU, and reports nothing.
    Instead: use bf16, which needs no loss scaling and works on CPUs, or no.
    Source: seen with accelerate 1.15 and DeepSpeed 0.19.8; `Accelerator.__init__`, `_do_sanity_check`.
    """
    if plan.machine.device == "cpu" and plan.precision.mixed_precision == "fp16":
        better = "bf16" if strategies.of(plan).computes_in("bf16") else "no"
        yield violation(
            "fp16 on the CPU: accelerate would report fp16 but compute in fp32, DeepSpeed would stop with an error",
            remedy("set precision.mixed_precision to bf16 or no", {"precision.mixed_precision": better}),
        )


@rule("TW202", level=Level.ERROR, field="precision.mixed_precision")
def fp8_needs_a_gpu(plan: Plan) -> Violations:
    """fp8 has no benefit on the CPU.

    Without it: the CPU multiplies in fp8 without any gain: with torchao, updates of the smallest model took minutes.
    Why: fp8 saves time only on the tensor cores of Ada, Hopper and newer GPUs.
    Instead: use bf16, or no.
    Source: seen with torchao 0.18 on a busy machine
    """
    if plan.machine.device == "cpu" and plan.precision.mixed_precision == "fp8":
        fix = remedy("set precision.mixed_precision to bf16 or no", {"precision.mixed_precision": "bf16"})
        yield violation("fp8 needs a GPU with fp8 tensor cores, but machine.device is cpu", fix)


@rule("TW203", level=Level.WARNING, field="precision.mixed_precision")
def bf16_needs_ampere(plan: Plan, machine: Machine) -> Violations:
    """bf16 needs GPUs of compute capability 8.0 (Ampere) or higher to be fast.

    Without it: training works, but several times slower than in fp16, and no message says why.
    Why: older GPUs have no bf16 tensor cores. torch emulates bf16, and `torch.cuda.is_bf16_supported()` still
    returns True, so accelerate accepts it.
    Instead: use fp16 on Volta and Turing (V100, T4), and check that the loss scale does not drop towards zero.
    Source: `is_bf16_supported(including_emulation=True)` in torch/cuda/__init__.py (2.13).
    """
    if plan.precision.mixed_precision == "bf16" and (gpu := _below(plan, machine, AMPERE)):
        yield violation(
            "bf16 on {gpu} (compute capability {capability}) is emulated and slow; hardware support starts at 8.0",
            setting("precision.mixed_precision", "fp16"),
            gpu=gpu.name,
            capability=gpu.capability,
        )


@rule("TW204", level=Level.ERROR, field="precision.mixed_precision")
def fp8_needs_ada(plan: Plan, machine: Machine) -> Violations:
    """fp8 needs GPUs of compute capability 8.9 (Ada, Hopper) or higher.

    Without it: accelerate warns once, `… insufficient for FP8 mixed precision training`, and trains in fp16.
    Why: older tensor cores do not support fp8. accelerate asks nvidia-smi only about the first GPU of the machine.
    Instead: use bf16 on Ampere, and fp16 on older GPUs.
    Source: `AcceleratorState.__init__` and `check_cuda_fp8_capability` in accelerate 1.15, seen with the GPU's
    capability faked
    """
    if plan.precision.mixed_precision == "fp8" and (gpu := _below(plan, machine, ADA)):
        better = "bf16" if (gpu.compute_capability or (0, 0)) >= AMPERE else "fp16"
        yield violation(
            "fp8 needs compute capability 8.9, but {gpu} has {capability}",
            setting("precision.mixed_precision", better),
            gpu=gpu.name,
            capability=gpu.capability,
        )


@rule("TW205", level=Level.ERROR, field="precision.mixed_precision")
def fp8_needs_a_library(plan: Plan, machine: Machine) -> Violations:
    """fp8 needs torchao.

    Without it: train.py stops while it builds the model: `ModuleNotFoundError: No module named 'torchao'`.
    Why: torch itself only provides the fp8 data types, not a recipe to train with them.
    Instead: install torchao, or use bf16.
    Source: the generated fp8.py
    """
    interpreter = machine.interpreter
    if plan.precision.mixed_precision != "fp8" or plan.machine.device == "cpu" or not interpreter:
        return
    version = interpreter.packages.get("torchao", "unknown")
    if version and (0,) < parts(version) < (0, 9):
        yield violation(
            "fp8 needs torchao 0.9 or newer, but {python} has {version}",
            install(interpreter.python, "torchao>=0.9"),
            python=interpreter.python,
            version=version,
        )
    if version is None:
        yield violation(
            "fp8 needs torchao, which is not installed in {python}",
            install(interpreter.python, "torchao>=0.9"),
            python=interpreter.python,
        )


# docs/decisions/loop.md: fp8 comes from torchao, with a scale per row
@rule("TW209", level=Level.ERROR, field="precision.mixed_precision")
def fp8_trains_whole_linear_layers(plan: Plan) -> Violations:
    """fp8 only helps weights that are trained and that each rank holds whole while it computes.

    Without it: with an adapter, train.py stops: none of the layers can be trained in fp8. Under ZeRO 3, torchao keeps
    each gathered weight until the backward pass, so that sharding saves nothing.
    Why: torchao computes the gradient of each weight in fp8, needed or not, and keeps the weight for this, so that
    DeepSpeed cannot free it.
    Instead: use bf16, or fsdp in place of ZeRO 3.
    Source: torchao/float8/float8_linear.py (`matmul_with_hp_or_float8_args`) in torchao 0.18
    """
    if plan.precision.mixed_precision != "fp8":
        return
    fix = setting("precision.mixed_precision", "bf16")
    if tasks.of(plan).adapters and plan.model.adapter != "none":
        yield violation("fp8 has no effect: model.adapter is {adapter}, and all other weights are frozen", fix)
    elif strategies.of(plan).uses_deepspeed and strategies.of(plan).partitions_weights:
        yield violation("fp8 keeps the weights that ZeRO 3 gathers in memory until the backward pass", fix)


@rule("TW210", level=Level.WARNING, field="precision.mixed_precision")
def fp8_is_compiled(plan: Plan) -> Violations:
    """fp8 is faster than bf16 only if the layers are compiled.

    Without it: the results are correct, but training is usually slower than in bf16.
    Why: each multiplication needs the maximum of each row, a scale and a cast. When compiled, they are fused into the
    preceding kernels; otherwise they read and write all data several more times.
    Instead: set model.compile to true.
    Source: torchao/float8/README.md (torchao 0.18)
    """
    if plan.precision.mixed_precision == "fp8" and not plan.model.compile and plan.machine.device == "cuda":
        yield violation("fp8 without model.compile is usually slower than bf16", setting("model.compile", True))


# docs/decisions/loop.md: TF32 stays as torch sets it
@rule("TW206", level=Level.HINT, field="precision.mixed_precision")
def fp32_wastes_the_gpu(plan: Plan, machine: Machine) -> Violations:
    """On a GPU that supports bf16, training in fp32 wastes most of its speed.

    Without it: nothing breaks, but matrix multiplications run at a fraction of the tensor cores' speed, and activations
    take twice the memory.
    Why: an A100 reaches 312 dense TFLOPS in bf16, and 19.5 in fp32 (156 with TF32).
    Instead: use bf16, unless the task is known to need fp32. Master weights stay in fp32 either way.
    Source: https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet.pdf
    """
    gpus = used_gpus(plan, machine)
    capable = bool(gpus) and all(gpu.compute_capability and gpu.compute_capability >= AMPERE for gpu in gpus)
    known = strategies.of(plan).computes_in("bf16")
    if plan.precision.mixed_precision == "no" and capable and known:
        fix = setting("precision.mixed_precision", "bf16")
        yield violation("{gpu} computes bf16 many times faster than fp32", fix, gpu=gpus[0].name)


def _below(plan: Plan, machine: Machine, capability: tuple[int, int]) -> Gpu | None:
    """The first GPU of the plan that is known to be older."""
    gpus = used_gpus(plan, machine)
    return next((g for g in gpus if g.compute_capability and g.compute_capability < capability), None)


@rule("TW208", level=Level.ERROR, field="precision.weights")
def weights_are_kept_in_16_bits(plan: Plan) -> Violations:
    """bf16 weights without fp32 masters need single or ddp, bf16, and neither an adapter nor an average.

    Without it: DeepSpeed, FSDP and Colossal-AI keep fp32 masters whatever the model has; without autocast, fp32
    inputs meet bf16 weights and stop the training; a bf16 average hardly moves; an adapter is trained in fp32.
    Why: accelerate casts trained weights up for FSDP, and the other engines keep their own sharded masters.
    Instead: set precision.weights to float32; sharding saves more memory than bf16 weights.
    Source: `fsdp2_prepare_model` in accelerate 1.15; the generated train.py
    """
    if plan.precision.weights == "float32":
        return
    fix = setting("precision.weights", "float32")
    if not strategies.of(plan).keeps_trained_dtype:
        yield violation(
            "precision.weights is {weights}, but {strategy} keeps fp32 masters", fix, strategy=plan.strategy.label
        )
    elif plan.precision.mixed_precision != "bf16":
        yield violation("precision.weights is {weights}, but precision.mixed_precision is {mixed_precision}", fix)
    elif plan.optimizer.ema_decay or plan.model.adapter != "none":
        key = "optimizer.ema_decay" if plan.optimizer.ema_decay else "model.adapter"
        yield violation(
            "precision.weights is {weights}, but {key} is {value}, which needs fp32", fix, key=key, value=plan.get(key)
        )
