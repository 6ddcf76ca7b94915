"""Moving training state from the GPUs to host memory or NVMe."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies
from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule

_OFF = {"strategy.offload_optimizer_device": "none", "strategy.offload_param_device": "none"}


@rule("TW311", level=Level.WARNING, field="strategy.offload_param_device")
def parameter_offload_needs_stage_3(plan: Plan) -> Iterator[Violation]:
    """Parameters are offloaded at ZeRO stage 3 only.

    Without it: DeepSpeed ignores `offload_param` without a word; the weights stay on every GPU, and what was planned to
    fit does not.
    Why: below stage 3 each rank needs its whole weights all the time.
    Instead: stage 3, or offload the optimizer alone, which is the larger part: 12 of 16 bytes per parameter.
    Source: seen with DeepSpeed 0.19.8 at stage 2; https://www.deepspeed.ai/docs/config-json/#parameter-offloading
    """
    strategy = plan.strategy
    if _deepspeed(plan) and strategy.offload_param_device != "none" and strategy.zero_stage in (0, 1, 2):
        yield violation(
            "strategy.offload_param_device {device} is ignored at ZeRO stage {stage}; it needs stage 3",
            remedy("set strategy.zero_stage 3, or strategy.offload_param_device none", {"strategy.zero_stage": 3}),
            device=strategy.offload_param_device,
            stage=strategy.zero_stage,
        )


@rule("TW312", level=Level.ERROR, field="strategy.nvme_path")
def nvme_needs_a_path(plan: Plan) -> Iterator[Violation]:
    """Offload to nvme at ZeRO stage 3 needs the path of a folder there.

    Without it: an optimizer on nvme ends in `TypeError: expected str, bytes or os.PathLike object, not NoneType`, deep
    inside DeepSpeed, after the model is built; parameters in `"nvme_path" in DeepSpeed Config cannot be None`.
    Why: there is no default place; accelerate's own YAML keys for the path never reach DeepSpeed.
    Instead: a folder on a fast local disk, never a network file system.
    Source: seen with DeepSpeed 0.19.8 at stage 3 (below, nothing goes to nvme);
    https://www.deepspeed.ai/docs/config-json/ (nvme_path)
    """
    strategy = plan.strategy
    devices = (strategy.offload_optimizer_device, strategy.offload_param_device)
    if _deepspeed(plan) and strategies.of(plan).partitions_weights and "nvme" in devices and strategy.nvme_path is None:
        yield violation(
            "offload to nvme, and strategy.nvme_path is not given",
            remedy("set strategy.nvme_path to a folder on a local NVMe disk, like /local_nvme"),
        )


@rule("TW313", level=Level.WARNING, field="strategy.offload_optimizer_device")
def nvme_needs_stage_3(plan: Plan) -> Iterator[Violation]:
    """The optimizer goes to nvme at ZeRO stage 3 only.

    Without it: at stages 1 and 2 DeepSpeed keeps it in host memory instead, without a word: 18 bytes per parameter on
    each machine.
    Why: only the stage 3 optimizer knows how to swap.
    Instead: stage 3, or cpu if host memory is large enough.
    Source: seen with DeepSpeed 0.19.8 at stages 1 and 2
    """
    strategy = plan.strategy
    if _deepspeed(plan) and strategy.offload_optimizer_device == "nvme" and strategy.zero_stage in (1, 2):
        yield violation(
            "the optimizer goes to host memory, not to nvme, at ZeRO stage {stage}",
            remedy("set strategy.zero_stage 3, or strategy.offload_optimizer_device cpu", {"strategy.zero_stage": 3}),
            stage=strategy.zero_stage,
        )


@rule("TW314", level=Level.WARNING, field="strategy.offload_optimizer_device")
def offload_needs_deepspeed(plan: Plan) -> Iterator[Violation]:
    """Offload means something under DeepSpeed only.

    Without it: it is ignored; all state stays on the GPUs.
    Why: the offload keys are DeepSpeed's.
    Instead: strategy.kind deepspeed with a stage, or no offload.
    Source: https://www.deepspeed.ai/tutorials/zero-offload/
    """
    strategy = plan.strategy
    devices = (strategy.offload_optimizer_device, strategy.offload_param_device)
    if not _deepspeed(plan) and devices != ("none", "none"):
        yield violation(
            "offload (optimizer {optimizer}, parameters {parameters}) is ignored: strategy.kind is {kind}",
            remedy("set strategy.kind deepspeed with a strategy.zero_stage, or both offload devices none", _OFF),
            optimizer=devices[0],
            parameters=devices[1],
            kind=strategy.kind,
            where=None if devices[0] != "none" else "strategy.offload_param_device",
        )


@rule("TW315", level=Level.ERROR, field="strategy.offload_optimizer_device")
def offload_needs_zero(plan: Plan) -> Iterator[Violation]:
    """The optimizer is offloaded at ZeRO stage 1 or higher.

    Without it: the first update fails: `CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled
    'offload_optimizer': 'cpu' in your ZeRO config.`
    Why: accelerate puts DeepSpeedCPUAdam in the optimizer's place as soon as an offload is named, but stage 0 moves
    nothing to the host.
    Instead: stage 1 or 2.
    Source: seen with accelerate 1.15 and DeepSpeed 0.19.8: `Accelerator._prepare_deepspeed`,
    deepspeed/ops/adam/cpu_adam.py
    """
    strategy = plan.strategy
    if plan.machine.device == "cpu" or not _deepspeed(plan) or strategy.zero_stage != 0:
        return
    if strategy.offload_optimizer_device != "none":
        yield violation(
            "optimizer offload at ZeRO stage 0 fails at the first update: nothing is moved to the host",
            remedy("set strategy.zero_stage 2, or strategy.offload_optimizer_device none", {"strategy.zero_stage": 2}),
        )


@rule("TW316", level=Level.WARNING, field="optimizer.name")
def offload_wants_adam(plan: Plan) -> Iterator[Violation]:
    """With an offloaded optimizer, use AdamW.

    Without it: the generated ds_config.json forces torch's own SGD to run on the host, slowly. With any other
    configuration accelerate replaces SGD (or RMSprop, Adafactor …) by DeepSpeedCPUAdam and says nothing: the loss
    falls, with another optimizer than the one in the script.
    Why: DeepSpeed has vectorized host versions of Adam, Adagrad and Lion; accelerate takes Adagrad's and, for
    bitsandbytes' 32-bit Lion, Lion's. Everything else becomes Adam.
    Instead: adamw, or no offload: SGD keeps one number per parameter, not two.
    Source: seen with accelerate 1.15; `map_pytorch_optim_to_deepspeed` in accelerate/utils/deepspeed.py
    """
    strategy = plan.strategy
    if _deepspeed(plan) and strategy.offload_optimizer_device != "none" and plan.optimizer.name != "adamw":
        yield violation(
            "{optimizer} with an offloaded optimizer runs in plain torch on the host, and `accelerate launch` with "
            "another configuration would silently replace it by Adam",
            remedy(
                "set optimizer.name adamw, or strategy.offload_optimizer_device none",
                {"strategy.offload_optimizer_device": "none"},
            ),
            optimizer=plan.optimizer.name,
        )


def _deepspeed(plan: Plan) -> bool:
    return strategies.of(plan).uses_deepspeed
