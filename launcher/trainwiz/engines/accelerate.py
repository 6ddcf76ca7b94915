"""accelerate: versions, the keys of its configuration file, its defaults, and the variables of its launcher.

Read from the version in `TRIED`; tests compare these lists with the installed version.
"""

from __future__ import annotations

from typing import Any

from trainwiz.engines.names import in_order, names

TRIED = "1.15.0"
"""The version that the rules and the launcher were tried with."""
# docs/decisions/cli.md: Lower bounds of the training packages
OLDEST = "1.10"
"""The oldest version that generated projects were tried with; also the lower bound in pyproject.toml."""

_KEYS_OF_BOTH = names(
    """
    compute_environment debug distributed_type dynamo_config enable_cpu_affinity gpu_ids mixed_precision
    num_machines use_cpu
    """
)
CLUSTER_KEYS = _KEYS_OF_BOTH | names(
    """
    command_file commands deepspeed_config downcast_bf16 fp8_config fsdp_config machine_rank main_process_ip
    main_process_port main_training_function megatron_lm_config mpirun_config num_processes parallelism_config
    rdzv_backend same_network tpu_env tpu_name tpu_use_cluster tpu_use_sudo tpu_vm tpu_zone
    """
)
"""Top-level keys of a file. Source: `ClusterConfig` in accelerate/commands/config/config_args.py."""
SAGEMAKER_KEYS = _KEYS_OF_BOTH | names(
    """
    additional_args base_job_name ec2_instance_type iam_role_name image_uri profile py_version pytorch_version
    region sagemaker_inputs_file sagemaker_metrics_file transformers_version
    """
)
"""The same for SageMaker. Source: `SageMakerConfig`, same file."""
OLD_KEYS = names("dynamo_backend fp16")
"""Top-level keys of old files that accelerate converts."""
REMOVED_KEYS = names("ipex_config use_ipex use_xpu")
"""Top-level keys that older versions of accelerate took."""
ACCELERATE_MARKS = names(
    """
    compute_environment deepspeed_config distributed_type fsdp_config machine_rank num_machines num_processes
    """
)
"""Keys by which a file is recognized as accelerate's."""
COMMAND_LINE_ONLY = {
    "num_cpu_threads_per_process": "--num_cpu_threads_per_process",
    "max_restarts": "--max_restarts",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "monitor_interval": "--monitor_interval",
}
"""What `accelerate launch` takes on its command line and refuses at the top of a file."""


def _block(words: str, prefix: str = "") -> tuple[str, frozenset[str]]:
    """A block by the names of its keys, which are written without their prefix."""
    return prefix, names(words, below=prefix)


BLOCKS: dict[str, tuple[str, frozenset[str]]] = {
    "deepspeed_config": _block(
        """
        deepspeed_config_file deepspeed_exclusion_filter deepspeed_hostfile deepspeed_inclusion_filter
        deepspeed_moe_layer_cls_names deepspeed_multinode_launcher gradient_accumulation_steps gradient_clipping
        offload_optimizer_device offload_optimizer_nvme_path offload_param_device offload_param_nvme_path
        zero3_init_flag zero3_save_16bit_model zero_stage
        """
    ),
    "fsdp_config": _block(
        """
        activation_checkpointing activation_checkpointing_offload auto_wrap_policy backward_prefetch
        cpu_ram_efficient_loading forward_prefetch ignored_modules min_num_params offload_params
        reshard_after_forward sharding_strategy state_dict_type sync_module_states transformer_layer_cls_to_wrap
        use_orig_params version
        """,
        prefix="fsdp_",
    ),
    "fp8_config": _block(
        """
        amax_compute_algo amax_history_len backend enable_fsdp_float8_all_gather format interval margin
        opt_level override_linear_precision pad_inner_dim use_autocast_during_eval
        """,
        prefix="fp8_",
    ),
    "dynamo_config": _block(
        """
        backend mode use_dynamic use_fullgraph use_regional_compilation
        """,
        prefix="dynamo_",
    ),
    "parallelism_config": _block(
        """
        cp_backend cp_comm_strategy cp_size dp_replicate_size dp_shard_size sp_attn_implementation sp_backend
        sp_seq_length sp_seq_length_is_variable sp_size tp_size
        """,
        prefix="parallelism_config_",
    ),
    "mpirun_config": _block("mpirun_hostfile"),
    "megatron_lm_config": _block(
        """
        megatron_lm_attention_backend megatron_lm_attention_dropout megatron_lm_attention_softmax_in_fp32
        megatron_lm_calculate_per_token_loss megatron_lm_context_parallel_size
        megatron_lm_decoder_last_pipeline_num_layers megatron_lm_eod_mask_loss
        megatron_lm_expert_model_parallel_size megatron_lm_expert_tensor_parallel_size
        megatron_lm_gradient_clipping megatron_lm_hidden_dropout megatron_lm_no_load_optim
        megatron_lm_no_save_optim megatron_lm_num_micro_batches megatron_lm_optimizer_cpu_offload
        megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_pp_degree megatron_lm_recompute_activations
        megatron_lm_recompute_granularity megatron_lm_recompute_method megatron_lm_recompute_num_layers
        megatron_lm_sequence_parallelism megatron_lm_tp_degree megatron_lm_use_custom_fsdp
        megatron_lm_use_distributed_optimizer megatron_lm_use_precision_aware_optimizer
        megatron_lm_use_rotary_position_embeddings
        """
    ),
}
"""Blocks of a file: the prefix of their keys, and the keys that have an effect."""
LAUNCH_ARGUMENTS = names(
    """
    aws_access_key_id aws_secret_access_key config_file cpu debug downcast_bf16 enable_cpu_affinity env gpu_ids
    log_dir machine_rank main_process_ip main_process_port main_training_function max_restarts mixed_precision
    module monitor_interval multi_gpu no_python num_cpu_threads_per_process num_machines num_processes quiet
    rdzv_backend rdzv_conf role same_network tee tpu tpu_use_cluster tpu_use_sudo training_script
    training_script_args use_deepspeed use_fsdp use_megatron_lm use_parallelism_config vm
    """
)
"""Arguments of `accelerate launch` that belong to no block; a block that contains one sets it all the same.

Source: `launch_command_parser` in accelerate/commands/launch.py.
"""
DISTRIBUTED_TYPES = in_order(
    """
    NO MULTI_CPU MULTI_GPU MULTI_NPU MULTI_MLU MULTI_SDAA MULTI_MUSA MULTI_XPU MULTI_HPU MULTI_NEURON DEEPSPEED FSDP
    XLA MEGATRON_LM
    """
)
"""Source: `DistributedType` in accelerate/utils/dataclasses.py."""
SAGEMAKER_TYPES = ("NO", "DATA_PARALLEL", "MODEL_PARALLEL")
"""Source: `SageMakerDistributedType`, same file."""
DYNAMO_BACKENDS = in_order(
    """
    NO EAGER AOT_EAGER INDUCTOR AOT_TS_NVFUSER NVPRIMS_NVFUSER CUDAGRAPHS OFI FX2TRT ONNXRT TENSORRT
    AOT_TORCHXLA_TRACE_ONCE TORCHXLA_TRACE_ONCE TVM HPU_BACKEND NEURON
    """
)
"""Source: `DynamoBackend`, same file."""
PRECISIONS = ("no", "fp16", "bf16", "fp8")
COMPUTE_ENVIRONMENTS = ("LOCAL_MACHINE", "AMAZON_SAGEMAKER")
FILLED_SETTINGS = names(
    """
    bf16.enabled fp16.enabled fp16.opt_level gradient_accumulation_steps gradient_clipping optimizer.params.betas
    optimizer.params.eps optimizer.params.lr optimizer.params.weight_decay scheduler.params.total_num_steps
    scheduler.params.warmup_max_lr scheduler.params.warmup_min_lr scheduler.params.warmup_num_steps train_batch_size
    train_micro_batch_size_per_gpu zero_optimization.offload_optimizer.device
    zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.device
    zero_optimization.offload_param.nvme_path zero_optimization.reduce_bucket_size zero_optimization.stage
    zero_optimization.stage3_gather_16bit_weights_on_model_save zero_optimization.stage3_param_persistence_threshold
    zero_optimization.stage3_prefetch_bucket_size
    """
)
"""Settings of DeepSpeed whose `auto` accelerate or transformers' Trainer replaces by a value."""

DUMMY_OPTIMIZER_DEFAULTS = {"lr": 1e-3, "weight_decay": 0.0}
"""The arguments of `DummyOptim` in accelerate/utils/deepspeed.py."""
DYNAMO_VARIABLES = {
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}
"""What its launcher sets where torch.compile is not asked for.

Source: `prepare_multi_gpu_env` in accelerate/utils/launch.py.
"""
FP8_VARIABLES = {
    "ACCELERATE_FP8_AMAX_COMPUTE_ALGO": "most_recent",
    "ACCELERATE_FP8_AMAX_HISTORY_LEN": "1024",
    "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER": "1",
    "ACCELERATE_FP8_FORMAT": "HYBRID",
    "ACCELERATE_FP8_INTERVAL": "1",
    "ACCELERATE_FP8_MARGIN": "0",
    "ACCELERATE_FP8_OPT_LEVEL": "O2",
    "ACCELERATE_FP8_OVERRIDE_DGRAD": "False",
    "ACCELERATE_FP8_OVERRIDE_FPROP": "False",
    "ACCELERATE_FP8_OVERRIDE_WGRAD": "False",
    "ACCELERATE_FP8_PAD_INNER_DIM": "1",
    "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL": "False",
}
"""What its launcher sets for mixed_precision fp8, same source."""
FSDP_DEFAULTS: dict[str, Any] = {
    "fsdp_version": 1,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": True,
    "fsdp_offload_params": False,
    "fsdp_min_num_params": 100_000_000,
    "fsdp_auto_wrap_policy": None,
    "fsdp_transformer_layer_cls_to_wrap": None,
    "fsdp_backward_prefetch": None,
    "fsdp_state_dict_type": None,
    "fsdp_forward_prefetch": False,
    "fsdp_use_orig_params": True,
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_sync_module_states": True,
    "fsdp_activation_checkpointing": False,
    "fsdp_activation_checkpointing_offload": False,
}
"""What accelerate's launcher takes for each key of `fsdp_config` that is left out."""
FSDP_PLUGIN_DEFAULTS = {
    1: {"fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_auto_wrap_policy": "NO_WRAP"},
    2: {"fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_auto_wrap_policy": "NO_WRAP"},
}
"""What `FullyShardedDataParallelPlugin` takes where the launcher sets nothing, by version of FSDP."""
DEEPSPEED_VARIABLES = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
"""The keys of `deepspeed_config` that reach a script, and as what."""

SETTINGS_OF_BLOCK = {
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
"""The keys of `deepspeed_config`, and the setting of DeepSpeed that its DeepSpeedPlugin makes of each."""


def knows_keys_of(version: tuple[int, ...]) -> bool:
    """Whether these lists hold for a version, as far as is known; files for others are judged mildly."""
    return (1, 10) <= version < (1, 16)


def starts_sagemaker(version: tuple[int, ...]) -> bool:
    """Whether the launcher takes files for SageMaker. Source: `_validate_launch_command` in commands/launch.py."""
    return not (1, 15) <= version < (1, 16)


TRUE_WORDS = ("true", "yes", "on", "1", "y", "t")
TRUTH_WORDS = (*TRUE_WORDS, "false", "no", "off", "0", "n", "f")
"""What accelerate reads as a truth value, in any case. Source: `str_to_bool` in accelerate/utils/environment.py."""
CHECKED = frozenset(
    {
        *("compute_environment", "distributed_type", "gpu_ids", "machine_rank", "main_process_ip", "main_process_port"),
        *("mixed_precision", "num_machines", "num_processes"),
        *BLOCKS,
        *(
            f"{block}.{key}"
            for block in ("deepspeed_config", "dynamo_config", "fsdp_config", "parallelism_config")
            for key in BLOCKS[block][1]
        ),
    }
)
"""Every key whose values are judged."""
