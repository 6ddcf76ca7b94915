"""Errors of DeepSpeed, and of accelerate about DeepSpeed."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 1
SIGNATURES = {
    "deepspeed_batch": Signature(
        r"Check batch related parameters.*?(?P<equation>\d+ != \d+ \* \d+ \* \d+)",
        cause="DeepSpeed's batch equation does not hold: {equation}",
        remedy="train_batch_size = micro-batch × accumulation × ranks; remove train_batch_size, and start the "
        "planned number of ranks",
    ),
    "zero_gradients": Signature(
        r"assert all_groups_norm > 0\.?\n(?:[\s^~]+\n)?AssertionError",
        cause="DeepSpeed's BF16_Optimizer stopped because all gradients are zero or NaN",
        remedy="look for a loss of NaN or 0: labels that are all masked (-100), a frozen model, too high a learning "
        "rate; or use ZeRO stage 1 or higher, which continues",
    ),
    "several_models": Signature(
        r"You can't use same `Accelerator\(\)` instance with multiple models",
        cause="one Accelerator prepares several models, which DeepSpeed and Megatron-LM do not allow",
        remedy="use one Accelerator for each model, with a DeepSpeedPlugin each; or put the models into one module",
    ),
    "no_sync_zero": Signature(
        r"no[_ ]sync context manager is incompatible with gradient partitioning",
        cause="no_sync cannot be used with ZeRO 2 and 3, which partition gradients in every backward pass",
        remedy="remove no_sync and let the engine accumulate; or set strategy.zero_stage to 1",
    ),
    "cpu_adam": Signature(
        r"Unable to JIT load the (?:fused_adam|cpu_adam|cpu_lion|cpu_adagrad) op",
        r"RuntimeError: DeepSpeedCPU\w+ requires the cpu_\w+ op, which failed to build",
        r"'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
        r"ImportError: \S*/(?:fused_adam|cpu_adam|cpu_lion|cpu_adagrad)\.so: cannot open shared object file",
        cause="DeepSpeed's CPU optimizer, which offloading needs, failed to build",
        remedy="to see what is missing (compiler, ninja, headers, nvcc), run: trainwiz doctor; to list the ops, run: "
        "ds_report",
    ),
    "libaio": Signature(
        r"Unable to JIT load the async_io op",
        r"libaio\.h: No such file|cannot find -laio",
        cause="offloading to NVMe needs libaio, which is not installed",
        remedy="apt-get install libaio-dev, or offload to the CPU: strategy.offload_optimizer_device cpu",
        plan_change="offload_to_cpu",
    ),
    "nvme_buffer": Signature(
        r"num_elems (?P<needed>\d+) ?> ?buffer (?P<size>\d+)",
        r"More elements (?P<needed>\d+) than buffer size (?P<size>\d+)",
        cause="a parameter has {needed} elements, more than the buffer for NVMe holds ({size})",
        remedy="set buffer_size of offload_param to at least {needed} (of the largest parameter, usually the "
        "embedding), and raise buffer_count only if the host memory allows",
    ),
    "nvme_failed": Signature(
        r"deepspeed_\w*aio_handle_t::\w+\([^\n]*Assertion|Assertion `0 == _num_pending_ops' failed",
        cause="reading or writing data offloaded to NVMe failed",
        remedy="check the free space and the permissions of nvme_path; it must be on a local disk whose file system "
        "supports O_DIRECT (not tmpfs, overlay or a network), and the buffers must be large enough; to "
        "continue, offload to the CPU",
        plan_change="offload_to_cpu",
    ),
    "other_world": Signature(
        r"The checkpoint being loaded used a DP world size of (?P<saved>\d+) "
        r"but the current world size is (?P<now>\d+)",
        r"was saved by (?P<saved>\d+) ranks; \w+ can only load it with the same number, not with (?P<now>\d+)",
        cause="the checkpoint was saved by {saved} ranks, but {now} ranks are loading it: the ZeRO shards do not match",
        remedy="resume with {saved} ranks, or convert the checkpoint: python zero_to_fp32.py (weights), "
        "ds_to_universal (everything)",
    ),
    "two_optimizers": Signature(
        r"You cannot specify an? (?P<thing>optimizer|scheduler) in the config file and in the code at the same time",
        cause="the {thing} is set twice: in DeepSpeed's configuration and in the code",
        remedy="remove it from the JSON, or use accelerate.utils.DummyOptim in the code",
    ),
    "fused_on_cpu": Signature(
        r"RuntimeError: expected input to be on cuda",
        cause="a fused optimizer (FusedAdam, apex) got tensors that are on the CPU, as under offload",
        remedy="use DeepSpeedCPUAdam with offload, or turn offload off; without offload, move the model to the GPU "
        "before the optimizer is made",
    ),
    "offload_optimizer": Signature(
        r"You are using ZeRO-Offload with a client provided optimizer",
        cause="ZeRO offload needs DeepSpeed's own CPU optimizer, but the script uses another one",
        remedy="use DeepSpeedCPUAdam, or set zero_force_ds_cpu_optimizer to false in the JSON",
    ),
    "deepspeed_auto": Signature(
        r"requires you to pass at least one of training or evaluation dataloaders",
        cause="DeepSpeed's configuration sets the micro-batch to auto, and there is no data loader to take it from",
        remedy="set train_micro_batch_size_per_gpu in the JSON, or also pass the loader to accelerator.prepare",
    ),
    "deepspeed_twice": Signature(
        r"When using `deepspeed_config_file`, the following accelerate config variables will be ignored: "
        r"\[(?P<keys>[^\]]+)\]",
        cause="accelerate's file sets what DeepSpeed's own file decides: {keys}",
        remedy="delete these keys from deepspeed_config (and mixed_precision) of the accelerate YAML, and from the "
        "options of accelerate launch; set them in the JSON that deepspeed_config_file names",
    ),
    "deepspeed_differs": Signature(
        r"Please correct the following DeepSpeed config values that mismatch",
        cause="DeepSpeed's JSON and the Trainer's arguments do not match",
        remedy='find the values in the lines below; set each of them to "auto" in the JSON',
    ),
    "deepspeed_alone": Signature(
        r"in mpi_discovery\n[^\n]*\n(?:[^\n]*\n)?ModuleNotFoundError: No module named 'mpi4py'",
        cause="DeepSpeed was started without a launcher and tried to use MPI",
        remedy="run: trainwiz launch; or torchrun --nproc_per_node N script.py, deepspeed script.py",
    ),
    "fsdp_uniform": Signature(
        r"(?:Must flatten tensors with|`FlatParameter` requires) uniform (?P<what>dtype|`requires_grad`)",
        cause="FSDP 1 flattens the parameters of a layer into one tensor, but they differ in {what}",
        remedy="use FSDP 2, which has no such limit; in FSDP 1, set use_orig_params=True and use one dtype for all "
        "weights",
    ),
    "partition_twice": Signature(
        r"AssertionError: ZeRO parameter intra parallel group is already initialized",
        cause="two models in one process use ZeRO++'s secondary partition (zero_hpz_partition_size), which "
        "DeepSpeed creates only once",
        remedy="set zero_hpz_partition_size to 1, or set it for one engine only: a reference or a reward model does "
        "not need it",
    ),
    "fsdp_lost_name": Signature(
        r"FSDP assumes (?P<name>\S+) is in the state_dict but the state_dict only has",
        cause="FSDP looks for {name} in the state dict, but another hook or wrapper has renamed or removed it",
        remedy="save the state dict of the outermost FSDP module, inside one state_dict_type for the whole model; if "
        "activation checkpointing, LoRA or torch.compile wraps it, update torch",
    ),
    "fsdp_root": Signature(
        r"[Nn]on-root FSDP instance's `_is_root` should not have been set",
        cause="a part that FSDP had wrapped ran before the model around it, and took itself for the outermost one",
        remedy="call only the outermost FSDP model (not a part of it, to generate or to test), and only after the "
        "whole model is wrapped",
    ),
    "fsdp_state": Signature(
        r"expected to be in states? .*TrainingState\.\w+.*but current state is (?:\w*TrainingState\.)?(?P<state>\w+)",
        cause="FSDP found a module in an unexpected state ({state}): a hook was skipped, or ran twice",
        remedy="call the outermost FSDP module, once per backward; with gradient checkpointing, set use_reentrant to "
        "false and wrap FSDP around the checkpointed layers; do not catch exceptions of the forward pass",
    ),
    "fsdp_unsharded": Signature(
        r"AssertionError: Expects sharded strategy",
        r"can only be used when parameters are flatten and sharded",
        cause="FSDP does not shard these weights (one rank, or NO_SHARD), so there is no sharded state dict",
        remedy="start at least two ranks, or use StateDictType.FULL_STATE_DICT",
    ),
    "sharded_4bit": Signature(
        r"'Parameter' object has no attribute '(?P<name>quant_state)'",
        r"'Params4bit' object has no attribute '(?P<name>\w+)'",
        cause="4-bit weights lost their quantization state ({name}): they were moved or sharded as plain tensors",
        remedy="turn CPU offload of parameters off, save only the adapter, update bitsandbytes; with FSDP set "
        "bnb_4bit_quant_storage to the dtype of the other weights",
    ),
    "fsdp_ungathered": Signature(
        r"/torch/distributed/fsdp/[\s\S]{0,2000}RuntimeError: (?:'weight' must be 2-D|mat2 must be a matrix, got 1-D)",
        r"/torch/distributed/fsdp/[\s\S]{0,2000}its data is not allocated yet",
        r"RuntimeError: setStorage: .* are out of bounds for storage of size 0",
        cause="a weight is used while FSDP holds only its shard: its module was called without its FSDP wrapper",
        remedy="wrap whole layers (auto_wrap_policy), share no weight between two wrapped modules, and call modules "
        "instead of functions on their weights; elsewhere use FSDP.summon_full_params",
    ),
    "zero3_ungathered": Signature(
        r"'status': '?(?:<?ZeroParamStatus\.)?(?:NOT_AVAILABLE|INFLIGHT)",
        r"RuntimeError: still have inflight params",
        r"assert param\.ds_status == ZeroParamStatus\.AVAILABLE\b",
        # Only a placeholder of ZeRO 3 makes a layer's weight empty.
        r"/peft/tuners/[^\n]*, in merge\n(?:    [^\n]*\n)*RuntimeError: The size of tensor a \(0\) must match",
        r"RuntimeError: disagreement between rank\d+ and rank\d+",
        r"RuntimeError: (?:'weight' must be 2-D|weight should have at least three dimensions)",
        r"RuntimeError: Function \w+ returned an invalid gradient at index \d+ - got "
        r"(?:\[0\] but expected shape compatible with|.+ but expected shape compatible with \[0\]$)",
        cause="a weight is used while ZeRO 3 or FSDP holds only its shard: it was not gathered, or the ranks "
        "run different layers",
        remedy="call modules, not functions with their weights; outside of forward use "
        "deepspeed.zero.GatheredParameters; run the same layers on every rank (mixture of experts: "
        "deepspeed.utils.set_z3_leaf_modules); or use ZeRO 2",
    ),
    "zero3_lost_track": Signature(
        r"IndexError: pop from an empty deque",
        r"assert len\(set\(p\.ds_id for p in self\.params_in_ipg_bucket\)\)[^\n]*\n(?:[\s^~]+\n)?AssertionError",
        r"^assert not param\.ds_active_sub_modules|AssertionError: \{'id': \d+, 'status': '(?:\w+\.)?AVAILABLE'",
        r"assert not param\.ds_active_sub_modules\b[^\n]*\n(?:[\s^~]+\n)?AssertionError",
        cause="ZeRO 3 lost track of a weight: a module ran again, or ended, while its weights were still in use",
        remedy="with gradient checkpointing, set use_reentrant to false; call the engine once per backward, and "
        "generate inside unwrap_model_for_generation or GatheredParameters; update deepspeed, or use ZeRO 2",
    ),
    "cross_mesh": Signature(
        r"(?P<operation>aten\.[\w.]+): DTensor does not support cross-mesh operation",
        cause="{operation} got weights on different device meshes: only some of the layers are tensor parallel",
        remedy="name every module in the tensor parallel plan before fully_shard is called (those that are not "
        "split, as replicated), or update torch; gradient clipping and foreach optimizers are the first to "
        "fail on such a mixture",
    ),
    "mixed_sharding": Signature(
        r"RuntimeError: (?P<operation>[\w.]+): got mixed torch\.Tensor and DTensor",
        cause="{operation} got a sharded tensor (DTensor) and a whole one: not all of its inputs were sharded by "
        "fully_shard or the tensor parallel plan",
        remedy="run the layer by calling the sharded module, not its inner parts or its weights alone; shard every "
        "module that has weights of its own, create the optimizer afterwards, and distribute tensors that you "
        "create yourself: distribute_tensor(t, mesh, placements), or get whole weights with .full_tensor()",
    ),
    "mixed_tensors": Signature(
        r"(?:^|[^\w:] ?)got mixed torch\.Tensor and DTensor",
        cause="an operation got a sharded tensor (DTensor) and a whole one",
        remedy="run the layer by calling the sharded module, not its inner parts or its weights alone; shard every "
        "module that has weights, and create the optimizer afterwards; the line of the exception names the operation",
    ),
    "dummy_optimizer": Signature(
        r"'DummyOptim' object has no attribute|'DummyScheduler' object has no attribute",
        cause="DummyOptim is only a placeholder for the optimizer in DeepSpeed's JSON, and DeepSpeed is not active "
        "here",
        remedy="start with accelerate launch and a DeepSpeed configuration that has an optimizer; without DeepSpeed "
        "(also on one GPU in some tools), use a real optimizer",
    ),
    "deepspeed_config": Signature(
        r"validation errors? for (?P<section>DeepSpeed\w*)",
        r"DeepSpeedConfigError: (?P<section>.+)",
        cause="DeepSpeed rejected its configuration ({section})",
        remedy="find the key in the lines below; trainwiz check finds such keys before a launch",
    ),
    "wrap_class": Signature(
        r"Could not find the transformer layer class\s+(?P<layer>\S+)",
        cause="FSDP is configured to wrap layers of class {layer}, which the model does not have",
        remedy="to list the classes, use print(model); write several names without spaces: Block,Linear",
    ),
}
