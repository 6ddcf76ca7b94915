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
            "train_batch_size = micro-batch × accumulation × ranks; leave train_batch_size out, "
            "and start as many ranks as planned"
        ),
    ),
    known(
        "no_sync_zero",
        r"no_sync context manager is incompatible with gradient partitioning",
        cause=say("no_sync cannot be used with ZeRO 2 and 3, which partition gradients in every backward pass"),
        remedy=say("leave no_sync out and let the engine accumulate; or set strategy.zero_stage 1"),
    ),
    known(
        "cpu_adam",
        r"Unable to JIT load the (?:fused_adam|cpu_adam|cpu_lion|cpu_adagrad) op",
        r"RuntimeError: DeepSpeedCPU\w+ requires the cpu_\w+ op, which failed to build",
        r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
        cause=say("DeepSpeed's CPU optimizer, which offloading needs, could not be built"),
        remedy=say("trainwiz doctor shows what is missing (compiler, ninja, headers, nvcc); ds_report lists the ops"),
    ),
    known(
        "libaio",
        r"Unable to JIT load the async_io op",
        r"libaio\.h: No such file|cannot find -laio",
        cause=say("offloading to NVMe needs libaio, which is not here"),
        remedy=say("apt-get install libaio-dev, or offload to the CPU: strategy.offload_optimizer_device cpu"),
        plan_change="offload_to_cpu",
    ),
    known(
        "other_world",
        r"The checkpoint being loaded used a DP world size of (?P<saved>\d+) "
        r"but the current world size is (?P<now>\d+)",
        r"was saved by (?P<saved>\d+) ranks, and \w+ loads it with as many only, not with (?P<now>\d+)",
        cause=say("the checkpoint is of {saved} ranks, and {now} load it: ZeRO's parts do not fit"),
        remedy=say("resume with {saved} ranks, or convert it: python zero_to_fp32.py (weights), ds_to_universal (all)"),
    ),
    known(
        "two_optimizers",
        r"You cannot specify an? (?P<thing>optimizer|scheduler) in the config file and in the code at the same time",
        cause=say("the {thing} is given twice: in DeepSpeed's configuration and in the code"),
        remedy=say("remove it from the JSON, or use accelerate.utils.DummyOptim in the code"),
    ),
    known(
        "offload_optimizer",
        r"You are using ZeRO-Offload with a client provided optimizer",
        cause=say("ZeRO offload wants DeepSpeed's own CPU optimizer, and the script brings another"),
        remedy=say("use DeepSpeedCPUAdam, or set zero_force_ds_cpu_optimizer false in the JSON"),
    ),
    known(
        "deepspeed_auto",
        r"requires you to pass at least one of training or evaluation dataloaders",
        cause=say("DeepSpeed's configuration leaves the micro-batch open (auto), and no loader says it either"),
        remedy=say("set train_micro_batch_size_per_gpu in the JSON, or pass the loader to accelerator.prepare, too"),
    ),
    known(
        "deepspeed_differs",
        r"Please correct the following DeepSpeed config values that mismatch",
        cause=say("DeepSpeed's JSON and the arguments of the Trainer say different things"),
        remedy=say('the lines below name them; write "auto" for each in the JSON'),
    ),
    known(
        "deepspeed_alone",
        r"in mpi_discovery\n[^\n]*\n(?:[^\n]*\n)?ModuleNotFoundError: No module named 'mpi4py'",
        cause=say("DeepSpeed was started without a launcher, and so it looked for MPI"),
        remedy=say("trainwiz launch; or torchrun --nproc_per_node N script.py, deepspeed script.py"),
    ),
    known(
        "fsdp_uniform",
        r"Must flatten tensors with uniform (?P<what>dtype|`requires_grad`)",
        cause=say("FSDP 1 lays the parameters of a layer into one, and they differ in {what}"),
        remedy=say("FSDP 2 has no such limit; in FSDP 1: use_orig_params=True, and all weights of one dtype"),
    ),
    known(
        "deepspeed_config",
        r"validation errors? for (?P<section>DeepSpeed\w*)",
        r"DeepSpeedConfigError: (?P<section>.+)",
        cause=say("DeepSpeed refuses its configuration ({section})"),
        remedy=say("the lines below name the key; trainwiz check finds such keys before a launch"),
    ),
    known(
        "wrap_class",
        r"Could not find the transformer layer class\s+(?P<layer>\S+)",
        cause=say("FSDP is to wrap layers of the class {layer}, which the model does not have"),
        remedy=say("print(model) shows the classes; several are written without spaces: Block,Linear"),
    ),
)
