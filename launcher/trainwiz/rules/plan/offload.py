"""Moving training state from the GPUs to host memory or NVMe."""

from __future__ import annotations

from trainwiz import strategies
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule

_OFF = {"strategy.offload_optimizer_device": "none", "strategy.offload_param_device": "none"}


@rule("TW311", level=Level.WARNING, field="strategy.offload_param_device")
def parameter_offload_needs_stage_3(plan: Plan) -> Violations:
    """Only ZeRO stage 3 can offload parameters.

    Without it: DeepSpeed silently ignores `offload_param`; every GPU holds all weights, and the model may not fit.
    Why: below stage 3, each rank needs its full weights all the time.
    Instead: use stage 3, or offload only the optimizer, which is the larger part: 12 of 16 bytes per parameter.
    Source: seen with DeepSpeed 0.19.8 at stage 2; https://www.deepspeed.ai/docs/config-json/#parameter-offloading
    """
    strategy = plan.strategy
    if _deepspeed(plan) and strategy.offload_param_device != "none" and strategy.zero_stage in (0, 1, 2):
        yield violation(
            "strategy.offload_param_device {offload_param_device} is ignored at ZeRO stage {zero_stage}; it needs "
            "stage 3",
            remedy(
                "set strategy.zero_stage to 3, or strategy.offload_param_device to none", {"strategy.zero_stage": 3}
            ),
        )


@rule("TW312", level=Level.ERROR, field="strategy.nvme_path")
def nvme_needs_a_path(plan: Plan) -> Violations:
    """Offload to nvme at ZeRO stage 3 needs a folder path.

    Without it: after the model is built, DeepSpeed fails. For an optimizer on nvme the error is `TypeError:
    expected str, bytes or os.PathLike object, not NoneType`, deep inside DeepSpeed; for parameters it is
    `"nvme_path" in DeepSpeed Config cannot be None`.
    Why: the path has no default, and accelerate's own YAML keys for it never reach DeepSpeed.
    Instead: set a folder on a fast local disk, never on a network file system.
    Source: seen with DeepSpeed 0.19.8 at stage 3 (below, nothing goes to nvme);
    https://www.deepspeed.ai/docs/config-json/ (nvme_path)
    """
    strategy = plan.strategy
    devices = (strategy.offload_optimizer_device, strategy.offload_param_device)
    if _deepspeed(plan) and strategies.of(plan).partitions_weights and "nvme" in devices and strategy.nvme_path is None:
        fix = remedy("set strategy.nvme_path to a folder on a local NVMe disk, for example /local_nvme")
        yield violation("offload to nvme is on, but strategy.nvme_path is not set", fix)


@rule("TW330", level=Level.ERROR, field="strategy.nvme_path")
def nvme_needs_a_toolkit(plan: Plan, machine: Machine) -> Violations:
    """On GPUs, offload to nvme needs the CUDA toolkit.

    Without it: `MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)` after the model is built.
    Why: DeepSpeed compiles async_io when it is first used, and its builder requires the toolkit, although it contains
    no CUDA code.
    Instead: install the CUDA toolkit of torch's version and set CUDA_HOME, or offload to cpu.
    Source: deepspeed/ops/op_builder/builder.py (`installed_cuda_version`) in DeepSpeed 0.19.8
    """
    strategy = plan.strategy
    on_nvme = "nvme" in (strategy.offload_optimizer_device, strategy.offload_param_device)
    if _deepspeed(plan) and on_nvme and machine.inspected and machine.gpus and machine.toolchain.nvcc is None:
        yield violation(
            "offload to nvme compiles async_io, which requires the CUDA toolkit, but there is no nvcc",
            remedy("install the CUDA toolkit and set CUDA_HOME, or offload to cpu"),
        )


@rule("TW313", level=Level.WARNING, field="strategy.offload_optimizer_device")
def nvme_needs_stage_3(plan: Plan) -> Violations:
    """Only ZeRO stage 3 can offload the optimizer to nvme.

    Without it: at stages 1 and 2, it silently stays in host memory: 18 bytes per parameter on each machine.
    Why: only the stage 3 optimizer supports swapping.
    Instead: use stage 3, or cpu if host memory is large enough.
    Source: seen with DeepSpeed 0.19.8 at stages 1 and 2
    """
    strategy = plan.strategy
    if _deepspeed(plan) and strategy.offload_optimizer_device == "nvme" and strategy.zero_stage in (1, 2):
        yield violation(
            "at ZeRO stage {zero_stage}, the optimizer is offloaded to host memory, not to nvme",
            remedy(
                "set strategy.zero_stage to 3, or strategy.offload_optimizer_device to cpu", {"strategy.zero_stage": 3}
            ),
        )


@rule("TW314", level=Level.WARNING, field="strategy.offload_optimizer_device")
def offload_needs_deepspeed(plan: Plan) -> Violations:
    """Offload only takes effect under DeepSpeed.

    Without it: the offload keys are ignored; all state stays on the GPUs.
    Why: offload is a DeepSpeed feature.
    Instead: set strategy.kind to deepspeed with a stage, or remove the offload.
    Source: https://www.deepspeed.ai/tutorials/zero-offload/
    """
    strategy = plan.strategy
    devices = (strategy.offload_optimizer_device, strategy.offload_param_device)
    if not _deepspeed(plan) and devices != ("none", "none"):
        yield violation(
            "offload (optimizer {optimizer}, parameters {parameters}) is ignored: strategy.kind is {kind}",
            remedy(
                "set strategy.kind to deepspeed and choose a strategy.zero_stage, or set both offload devices to none",
                _OFF,
            ),
            optimizer=devices[0],
            parameters=devices[1],
            where=None if devices[0] != "none" else "strategy.offload_param_device",
        )


@rule("TW315", level=Level.ERROR, field="strategy.offload_optimizer_device")
def offload_needs_zero(plan: Plan) -> Violations:
    """Offloading the optimizer needs ZeRO stage 1 or higher.

    Without it: the first update fails: `CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled
    'offload_optimizer': 'cpu' in your ZeRO config.`
    Why: for any offload, accelerate makes the optimizer a DeepSpeedCPUAdam, but stage 0 moves nothing to the host.
    Instead: use stage 1 or 2.
    Source: seen with accelerate 1.15 and DeepSpeed 0.19.8: `Accelerator._prepare_deepspeed`,
    deepspeed/ops/adam/cpu_adam.py
    """
    strategy = plan.strategy
    if plan.machine.device == "cpu" or not _deepspeed(plan) or strategy.zero_stage != 0:
        return
    if strategy.offload_optimizer_device != "none":
        yield violation(
            "optimizer offload at ZeRO stage 0 fails at the first update: no state is moved to the host",
            remedy(
                "set strategy.zero_stage to 2, or strategy.offload_optimizer_device to none", {"strategy.zero_stage": 2}
            ),
        )


@rule("TW316", level=Level.WARNING, field="optimizer.name")
def offload_wants_adam(plan: Plan) -> Violations:
    """Use AdamW if the optimizer is offloaded.

    Without it: the generated ds_config.json forces torch's own SGD to run on the host, which is slow. With any
    other configuration, accelerate silently replaces SGD (or RMSprop, Adafactor …) with DeepSpeedCPUAdam: the loss
    falls, but the optimizer is not the one in the script.
    Why: DeepSpeed has vectorized host versions of Adam, Adagrad and Lion. accelerate uses the Adagrad version for
    Adagrad and the Lion version for bitsandbytes' 32-bit Lion; everything else becomes Adam.
    Instead: use adamw, or no offload: SGD keeps only one number per parameter instead of two.
    Source: seen with accelerate 1.15; `map_pytorch_optim_to_deepspeed` in accelerate/utils/deepspeed.py
    """
    strategy = plan.strategy
    if _deepspeed(plan) and strategy.offload_optimizer_device != "none" and plan.optimizer.name != "adamw":
        yield violation(
            "with optimizer offload, {optimizer} runs in plain torch on the host; `accelerate launch` with another "
            "configuration would silently replace it with Adam",
            remedy(
                "set optimizer.name to adamw, or strategy.offload_optimizer_device to none",
                {"strategy.offload_optimizer_device": "none"},
            ),
            optimizer=plan.optimizer.name,
        )


def _deepspeed(plan: Plan) -> bool:
    return strategies.of(plan).uses_deepspeed
