"""Errors of DeepSpeed, and of accelerate about DeepSpeed."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 1
SIGNATURES = (
    known(
        "deepspeed_batch",
        r"Check batch related parameters.*?(?P<equation>\d+ != \d+ \* \d+ \* \d+)",
        cause=say("DeepSpeed's batch equation does not hold: {equation}"),
        remedy=say(
            "train_batch_size = micro-batch × accumulation × ranks; remove train_batch_size, and start as many "
            "ranks as planned"
        ),
    ),
    known(
        "no_sync_zero",
        r"no_sync context manager is incompatible with gradient partitioning",
        cause=say("no_sync cannot be used with ZeRO 2 and 3, which partition gradients in every backward pass"),
        remedy=say("remove no_sync and let the engine accumulate; or set strategy.zero_stage to 1"),
    ),
    known(
        "cpu_adam",
        r"Unable to JIT load the (?:fused_adam|cpu_adam|cpu_lion|cpu_adagrad) op",
        r"RuntimeError: DeepSpeedCPU\w+ requires the cpu_\w+ op, which failed to build",
        r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
        cause=say("DeepSpeed's CPU optimizer, which offloading needs, failed to build"),
        remedy=say(
            "to see what is missing (compiler, ninja, headers, nvcc), run: trainwiz doctor; to list the ops, run: "
            "ds_report"
        ),
    ),
    known(
        "libaio",
        r"Unable to JIT load the async_io op",
        r"libaio\.h: No such file|cannot find -laio",
        cause=say("offloading to NVMe needs libaio, which is not installed"),
        remedy=say("apt-get install libaio-dev, or offload to the CPU: strategy.offload_optimizer_device cpu"),
        plan_change="offload_to_cpu",
    ),
    known(
        "other_world",
        r"The checkpoint being loaded used a DP world size of (?P<saved>\d+) "
        r"but the current world size is (?P<now>\d+)",
        r"was saved by (?P<saved>\d+) ranks, and \w+ loads it with as many only, not with (?P<now>\d+)",
        cause=say(
            "the checkpoint was saved by {saved} ranks, but {now} ranks are loading it: the ZeRO shards do not match"
        ),
        remedy=say(
            "resume with {saved} ranks, or convert the checkpoint: python zero_to_fp32.py (weights), "
            "ds_to_universal (everything)"
        ),
    ),
    known(
        "two_optimizers",
        r"You cannot specify an? (?P<thing>optimizer|scheduler) in the config file and in the code at the same time",
        cause=say("the {thing} is set twice: in DeepSpeed's configuration and in the code"),
        remedy=say("remove it from the JSON, or use accelerate.utils.DummyOptim in the code"),
    ),
    known(
        "offload_optimizer",
        r"You are using ZeRO-Offload with a client provided optimizer",
        cause=say("ZeRO offload needs DeepSpeed's own CPU optimizer, but the script uses another one"),
        remedy=say("use DeepSpeedCPUAdam, or set zero_force_ds_cpu_optimizer to false in the JSON"),
    ),
    known(
        "deepspeed_auto",
        r"requires you to pass at least one of training or evaluation dataloaders",
        cause=say("DeepSpeed's configuration sets the micro-batch to auto, and there is no loader to take it from"),
        remedy=say("set train_micro_batch_size_per_gpu in the JSON, or also pass the loader to accelerator.prepare"),
    ),
    known(
        "deepspeed_differs",
        r"Please correct the following DeepSpeed config values that mismatch",
        cause=say("DeepSpeed's JSON and the Trainer's arguments do not match"),
        remedy=say('find the values in the lines below; set each of them to "auto" in the JSON'),
    ),
    known(
        "deepspeed_alone",
        r"in mpi_discovery\n[^\n]*\n(?:[^\n]*\n)?ModuleNotFoundError: No module named 'mpi4py'",
        cause=say("DeepSpeed was started without a launcher and tried to use MPI"),
        remedy=say("run: trainwiz launch; or torchrun --nproc_per_node N script.py, deepspeed script.py"),
    ),
    known(
        "fsdp_uniform",
        r"Must flatten tensors with uniform (?P<what>dtype|`requires_grad`)",
        cause=say("FSDP 1 flattens the parameters of a layer into one tensor, but they differ in {what}"),
        remedy=say(
            "use FSDP 2, which has no such limit; in FSDP 1, set use_orig_params=True and use one dtype for all weights"
        ),
    ),
    known(
        "deepspeed_config",
        r"validation errors? for (?P<section>DeepSpeed\w*)",
        r"DeepSpeedConfigError: (?P<section>.+)",
        cause=say("DeepSpeed rejected its configuration ({section})"),
        remedy=say("find the key in the lines below; trainwiz check finds such keys before a launch"),
    ),
    known(
        "wrap_class",
        r"Could not find the transformer layer class\s+(?P<layer>\S+)",
        cause=say("FSDP is configured to wrap layers of class {layer}, which the model does not have"),
        remedy=say("to list the classes, use print(model); write several names without spaces: Block,Linear"),
    ),
)
