"""The keys that accelerate and DeepSpeed know, and when DeepSpeed's came and went.

Read from accelerate 1.15.0 and DeepSpeed 0.19.8, with 0.16.5 and 0.18.9 beside them for what changed; the tests
compare these lists with the installed engines.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_BASE = {
    "compute_environment",
    "debug",
    "distributed_type",
    "dynamo_config",
    "enable_cpu_affinity",
    "gpu_ids",
    "mixed_precision",
    "num_machines",
    "use_cpu",
}
CLUSTER = frozenset(
    _BASE
    | {
        "command_file",
        "commands",
        "deepspeed_config",
        "downcast_bf16",
        "fp8_config",
        "fsdp_config",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "megatron_lm_config",
        "mpirun_config",
        "num_processes",
        "parallelism_config",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_name",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_zone",
    }
)
SAGEMAKER = frozenset(
    _BASE
    | {
        "additional_args",
        "base_job_name",
        "ec2_instance_type",
        "iam_role_name",
        "image_uri",
        "profile",
        "py_version",
        "pytorch_version",
        "region",
        "sagemaker_inputs_file",
        "sagemaker_metrics_file",
        "transformers_version",
    }
)
OLD = frozenset({"fp16", "dynamo_backend"})
"""Top-level keys of old files that accelerate converts."""
ACCELERATE_MARKS = frozenset(
    {
        "distributed_type",
        "compute_environment",
        "num_machines",
        "num_processes",
        "machine_rank",
        "fsdp_config",
        "deepspeed_config",
    }
)
COMMAND_LINE_ONLY = {
    "num_cpu_threads_per_process": "--num_cpu_threads_per_process",
    "max_restarts": "--max_restarts",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "monitor_interval": "--monitor_interval",
}
"""What `accelerate launch` takes on its command line and refuses at the top of a file."""
GONE = frozenset({"ipex_config", "use_xpu", "use_ipex"})

BLOCKS: dict[str, tuple[str, frozenset[str]]] = {
    "deepspeed_config": (
        "",
        frozenset(
            {
                "deepspeed_config_file",
                "deepspeed_exclusion_filter",
                "deepspeed_hostfile",
                "deepspeed_inclusion_filter",
                "deepspeed_moe_layer_cls_names",
                "deepspeed_multinode_launcher",
                "gradient_accumulation_steps",
                "gradient_clipping",
                "offload_optimizer_device",
                "offload_optimizer_nvme_path",
                "offload_param_device",
                "offload_param_nvme_path",
                "zero3_init_flag",
                "zero3_save_16bit_model",
                "zero_stage",
            }
        ),
    ),
    "fsdp_config": (
        "fsdp_",
        frozenset(
            {
                "fsdp_activation_checkpointing",
                "fsdp_activation_checkpointing_offload",
                "fsdp_auto_wrap_policy",
                "fsdp_backward_prefetch",
                "fsdp_cpu_ram_efficient_loading",
                "fsdp_forward_prefetch",
                "fsdp_ignored_modules",
                "fsdp_min_num_params",
                "fsdp_offload_params",
                "fsdp_reshard_after_forward",
                "fsdp_sharding_strategy",
                "fsdp_state_dict_type",
                "fsdp_sync_module_states",
                "fsdp_transformer_layer_cls_to_wrap",
                "fsdp_use_orig_params",
                "fsdp_version",
            }
        ),
    ),
    "fp8_config": (
        "fp8_",
        frozenset(
            {
                "fp8_amax_compute_algo",
                "fp8_amax_history_len",
                "fp8_backend",
                "fp8_enable_fsdp_float8_all_gather",
                "fp8_format",
                "fp8_interval",
                "fp8_margin",
                "fp8_opt_level",
                "fp8_override_linear_precision",
                "fp8_pad_inner_dim",
                "fp8_use_autocast_during_eval",
            }
        ),
    ),
    "dynamo_config": (
        "dynamo_",
        frozenset(
            {
                "dynamo_backend",
                "dynamo_mode",
                "dynamo_use_dynamic",
                "dynamo_use_fullgraph",
                "dynamo_use_regional_compilation",
            }
        ),
    ),
    "parallelism_config": (
        "parallelism_config_",
        frozenset(
            {
                "parallelism_config_cp_backend",
                "parallelism_config_cp_comm_strategy",
                "parallelism_config_cp_size",
                "parallelism_config_dp_replicate_size",
                "parallelism_config_dp_shard_size",
                "parallelism_config_sp_attn_implementation",
                "parallelism_config_sp_backend",
                "parallelism_config_sp_seq_length",
                "parallelism_config_sp_seq_length_is_variable",
                "parallelism_config_sp_size",
                "parallelism_config_tp_size",
            }
        ),
    ),
    "mpirun_config": ("", frozenset({"mpirun_hostfile"})),
    "megatron_lm_config": (
        "",
        frozenset(
            f"megatron_lm_{name}"
            for name in (
                "attention_backend",
                "attention_dropout",
                "attention_softmax_in_fp32",
                "calculate_per_token_loss",
                "context_parallel_size",
                "decoder_last_pipeline_num_layers",
                "eod_mask_loss",
                "expert_model_parallel_size",
                "expert_tensor_parallel_size",
                "gradient_clipping",
                "hidden_dropout",
                "no_load_optim",
                "no_save_optim",
                "num_micro_batches",
                "optimizer_cpu_offload",
                "overlap_cpu_optimizer_d2h_h2d",
                "pp_degree",
                "recompute_activations",
                "recompute_granularity",
                "recompute_method",
                "recompute_num_layers",
                "sequence_parallelism",
                "tp_degree",
                "use_custom_fsdp",
                "use_distributed_optimizer",
                "use_precision_aware_optimizer",
                "use_rotary_position_embeddings",
            )
        ),
    ),
}
"""Blocks of an accelerate file: the prefix of their keys, and the keys that reach anything."""

LAUNCH_ARGUMENTS = frozenset(
    {
        "aws_access_key_id",
        "aws_secret_access_key",
        "config_file",
        "cpu",
        "debug",
        "downcast_bf16",
        "enable_cpu_affinity",
        "env",
        "gpu_ids",
        "log_dir",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "max_restarts",
        "mixed_precision",
        "module",
        "monitor_interval",
        "multi_gpu",
        "no_python",
        "num_cpu_threads_per_process",
        "num_machines",
        "num_processes",
        "quiet",
        "rdzv_backend",
        "rdzv_conf",
        "role",
        "same_network",
        "tee",
        "tpu",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "training_script",
        "training_script_args",
        "use_deepspeed",
        "use_fsdp",
        "use_megatron_lm",
        "use_parallelism_config",
        "vm",
    }
)
"""Arguments of `accelerate launch` that no block is for; a block that holds one sets it all the same."""

DISTRIBUTED = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_HPU",
    "MULTI_NEURON",
    "DEEPSPEED",
    "FSDP",
    "XLA",
    "MEGATRON_LM",
)
SAGEMAKER_DISTRIBUTED = ("NO", "DATA_PARALLEL", "MODEL_PARALLEL")
DYNAMO = (
    "NO",
    "EAGER",
    "AOT_EAGER",
    "INDUCTOR",
    "AOT_TS_NVFUSER",
    "NVPRIMS_NVFUSER",
    "CUDAGRAPHS",
    "OFI",
    "FX2TRT",
    "ONNXRT",
    "TENSORRT",
    "AOT_TORCHXLA_TRACE_ONCE",
    "TORCHXLA_TRACE_ONCE",
    "TVM",
    "HPU_BACKEND",
    "NEURON",
)
PRECISIONS = ("no", "fp16", "bf16", "fp8")
ENVIRONMENTS = ("LOCAL_MACHINE", "AMAZON_SAGEMAKER")

ZERO = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "allgather_sequential",
        "compute_grad_norm",
        "contiguous_gradients",
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "elastic_checkpoint",
        "enable_sanity_checks",
        "gather_16bit_weights_on_model_save",
        "ignore_unused_parameters",
        "leaf_module",
        "legacy_stage1",
        "load_from_fp32_weights",
        "log_trace_cache_warnings",
        "max_live_parameters",
        "max_reuse_distance",
        "memory_efficient_linear",
        "model_persistence_threshold",
        "module_granularity_threshold",
        "offload_optimizer",
        "offload_param",
        "overlap_comm",
        "override_module_apply",
        "param_persistence_threshold",
        "parameter_alignment",
        "pipeline_loading_checkpoint",
        "prefetch_bucket_size",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "save_muon_momentum_buffer_in_memory",
        "stage",
        "stage3_allgather_sequential",
        "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "use_all_reduce_for_fetch_params",
        "use_multi_rank_bucket_allreduce",
        "zenflow",
        "zero_hpz_partition_size",
        "zero_quantized_gradients",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_weights",
    }
)
STRICT: dict[str, frozenset[str]] = {
    "zero_optimization": ZERO,
    "zero_optimization.offload_param": frozenset(
        {"buffer_count", "buffer_size", "device", "max_in_cpu", "nvme_path", "pin_memory"}
    ),
    "zero_optimization.offload_optimizer": frozenset(
        {
            "buffer_count",
            "cpuadam_cores_perc",
            "device",
            "fast_init",
            "nvme_path",
            "pin_memory",
            "pipeline_read",
            "pipeline_write",
            "ratio",
            "super_offload",
        }
    ),
    "fp16": frozenset(
        {
            "auto_cast",
            "consecutive_hysteresis",
            "enabled",
            "fp16_master_weights_and_grads",
            "hysteresis",
            "initial_scale_power",
            "loss_scale",
            "loss_scale_window",
            "min_loss_scale",
        }
    ),
    "bf16": frozenset(
        {
            "bf16_master_weights_and_grads",
            "bf16_optimizer_states",
            "check_grad_overflow",
            "enabled",
            "immediate_grad_update",
        }
    ),
    "tensor_parallel": frozenset(
        {
            "autotp_size",
            "dtype",
            "injection_policy_tuple",
            "keep_module_on_host",
            "kernel_inject",
            "partition_config",
            "preset_model",
            "replace_with_kernel_inject",
            "tensor_parallel",
            "tp",
            "tp_overlap_comm",
            "vocab_parallel_ce_backend",
            "vocab_parallel_lm_head",
        }
    ),
    "compile": frozenset(
        {
            "autoep_non_moe",
            "debug_log",
            "deepcompile",
            "double_buffer",
            "free_activation",
            "free_activation_threshold",
            "keep_all_input_tensors",
            "keep_int_input_tensors",
            "offload_activation",
            "offload_activation_pin_memory",
            "offload_opt_states",
            "offload_parameters",
            "passes",
            "symmetric_memory",
            "sync_after_allgather",
            "sync_after_reduce",
            "sync_before_allgather",
            "sync_before_reduce",
        }
    ),
    "hybrid_engine": frozenset(
        {
            "enable_cuda_graph",
            "enabled",
            "inference_tp_size",
            "max_out_tokens",
            "pin_parameters",
            "release_inference_cache",
            "tp_gather_partition_size",
        }
    ),
    "comms_logger": frozenset({"debug", "enabled", "prof_all", "prof_ops", "verbose"}),
    "tensorboard": frozenset({"enabled", "job_name", "output_path"}),
    "csv_monitor": frozenset({"enabled", "job_name", "output_path"}),
    "wandb": frozenset({"enabled", "group", "project", "team"}),
    "comet": frozenset(
        {
            "api_key",
            "enabled",
            "experiment_key",
            "experiment_name",
            "mode",
            "online",
            "project",
            "samples_log_interval",
            "workspace",
        }
    ),
}
"""Blocks of a DeepSpeed file that refuse what they do not know."""
MILD: dict[str, frozenset[str]] = {
    "activation_checkpointing": frozenset(
        {
            "contiguous_memory_optimization",
            "cpu_checkpointing",
            "number_checkpoints",
            "partition_activations",
            "profile",
            "synchronize_checkpoint_boundary",
        }
    ),
    "aio": frozenset(
        {
            "block_size",
            "intra_op_parallelism",
            "overlap_events",
            "queue_depth",
            "single_submit",
            "thread_count",
            "use_gds",
        }
    ),
    "checkpoint": frozenset({"load_universal", "parallel_write", "tag_validation", "use_node_local_storage", "writer"}),
    "data_types": frozenset({"grad_accum_dtype"}),
    "flops_profiler": frozenset(
        {"detailed", "enabled", "module_depth", "output_file", "profile_step", "recompute_fwd_factor", "top_modules"}
    ),
    "optimizer": frozenset({"legacy_fusion", "params", "type"}),
    "scheduler": frozenset({"params", "type"}),
    "torch_autocast": frozenset({"dtype", "enabled", "lower_precision_safe_modules"}),
}
"""Blocks that ignore what they do not know; of these only misspelt names are told."""
STRICT_IN_0_19 = frozenset(
    {"tensor_parallel", "compile", "hybrid_engine", "comms_logger", "tensorboard", "csv_monitor", "wandb", "comet"}
)
"""Those of them whose keys were not compared with older versions."""
ZERO_SINCE_0_17 = frozenset(
    {
        "allgather_sequential",
        "stage3_allgather_sequential",
        "enable_sanity_checks",
        "leaf_module",
        "save_muon_momentum_buffer_in_memory",
        "zenflow",
    }
)
"""Not in 0.16.5, in 0.18.9."""
ZERO_SINCE_0_19 = frozenset({"compute_grad_norm", "parameter_alignment"})
ZERO_UNTIL_0_18 = frozenset({"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"})
REMOVED = frozenset(
    {
        "nebula",
        "compression_training",
        "amp",
        "quantize_training",
        "sparse_gradients",
        "eigenvalue",
        "sparse_attention",
        "elasticity",
        "graph_harvesting",
        "curriculum_learning",
        "progressive_layer_drop",
    }
)
"""Top-level keys that DeepSpeed 0.19 refuses, and 0.18.9 still took."""
DEEPSPEED = frozenset(
    REMOVED
    | {
        "activation_checkpointing",
        "aio",
        "autotuning",
        "bf16",
        "bfloat16",
        "checkpoint",
        "comet",
        "comms_logger",
        "communication_data_type",
        "compile",
        "csv_monitor",
        "data_efficiency",
        "data_types",
        "dataloader_drop_last",
        "datastates_ckpt",
        "disable_allgather",
        "disable_python_gc",
        "dump_state",
        "expert_parallel",
        "flops_profiler",
        "fp16",
        "fp32_allreduce",
        "gradient_accumulation_steps",
        "gradient_allreduce_op",
        "gradient_clipping",
        "gradient_predivide_factor",
        "hybrid_engine",
        "local_rank",
        "log_level",
        "managed_gradient_accumulation",
        "memory_breakdown",
        "msamp",
        "optimizer",
        "pipeline",
        "prescale_gradients",
        "scheduler",
        "seq_parallel_communication_data_type",
        "sequence_parallel_size",
        "steps_per_print",
        "tensor_parallel",
        "tensorboard",
        "timers",
        "torch_autocast",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "train_steps",
        "use_data_before_expert_parallelism",
        "vocabulary_size",
        "wall_clock_breakdown",
        "wandb",
        "weight_quantization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "zero_optimization",
        "zenflow",
        "data_sampling",
        "data_routing",
        "ep_size",
        "inference",
        "eval_batch_size",
        "zero_state",
        "load_universal_checkpoint",
        "data_parallel_size",
        "tensor_parallel_size",
        "cuda_graph",
        "amp_params",
        "debug",
        "seed",
        "fp8",
        "moe",
        "version",
    }
)
"""Top-level keys of a DeepSpeed file; some that only its examples and integrations use, so that no known key is
called unknown."""
DEEPSPEED_MARKS = frozenset(
    {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "zero_allow_untested_optimizer"}
)
FILLED = frozenset(
    {
        "bf16.enabled",
        "fp16.enabled",
        "fp16.opt_level",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "optimizer.params.betas",
        "optimizer.params.eps",
        "optimizer.params.lr",
        "optimizer.params.weight_decay",
        "scheduler.params.total_num_steps",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_num_steps",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_prefetch_bucket_size",
    }
)
"""Where accelerate or transformers' Trainer put a value in the place of `auto`."""
SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


def tried_with_accelerate(version: tuple[int, ...]) -> bool:
    """Whether the lists of accelerate's keys hold for this version, as far as is known; others are judged mildly."""
    return (1, 10) <= version < (1, 16)


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that a misspelt one most likely means; None where none is near."""
    if word.lower() in {k.lower() for k in known}:
        return next(k for k in known if k.lower() == word.lower())
    longer = [k for k in known if k.lower().startswith(f"{word.lower()}_")]
    if len(longer) == 1 and len(word) > 2:
        return longer[0]
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.75)), None)
