"""DeepSpeed: versions, and the keys of its configuration file with the versions in which they came and went.

Read from the version in `TRIED`, and from 0.16.5 and 0.18.9 for what changed; tests compare these lists with the
installed version.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trainwiz.engines.names import names

Version = tuple[int, ...]

TRIED = "0.19.8"
"""The version that the rules were tried with."""
OLDEST = "0.16"
"""The oldest version that generated projects were tried with; also the lower bound in pyproject.toml."""

ZERO_KEYS = names(
    """
    allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients
    cpu_offload cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
    gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights
    log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear
    model_persistence_threshold module_granularity_threshold offload_optimizer offload_param overlap_comm
    override_module_apply param_persistence_threshold parameter_alignment pipeline_loading_checkpoint
    prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory
    stage stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save
    stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters stage3_max_reuse_distance
    stage3_model_persistence_threshold stage3_module_granularity_threshold stage3_param_persistence_threshold
    stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size
    use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size
    zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
    """
)
"""Keys of `zero_optimization`. Source: `DeepSpeedZeroConfig` in deepspeed/runtime/zero/config.py."""
ZERO_SINCE_0_17 = names(
    """
    allgather_sequential enable_sanity_checks leaf_module save_muon_momentum_buffer_in_memory
    stage3_allgather_sequential zenflow
    """
)
"""Those of them that are not in 0.16.5, and are in 0.18.9."""
ZERO_SINCE_0_19 = names("compute_grad_norm parameter_alignment")
ZERO_UNTIL_0_18 = names("mics_hierarchical_params_gather mics_shard_size zeropp_loco_param")
"""Keys that DeepSpeed 0.19 refuses. Source: `_REMOVED_ZERO_CONFIG_KEYS` in deepspeed/runtime/config.py."""
STRICT_BLOCKS = {
    "zero_optimization": ZERO_KEYS,
    "zero_optimization.offload_param": names("buffer_count buffer_size device max_in_cpu nvme_path pin_memory"),
    "zero_optimization.offload_optimizer": names(
        """
        buffer_count cpuadam_cores_perc device fast_init nvme_path pin_memory pipeline_read pipeline_write ratio
        super_offload
        """
    ),
    "fp16": names(
        """
        auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis initial_scale_power
        loss_scale loss_scale_window min_loss_scale
        """
    ),
    "bf16": names(
        """
        bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update
        """
    ),
    "tensor_parallel": names(
        """
        autotp_size dtype injection_policy_tuple keep_module_on_host kernel_inject partition_config preset_model
        replace_with_kernel_inject tensor_parallel tp tp_overlap_comm vocab_parallel_ce_backend
        vocab_parallel_lm_head
        """
    ),
    "compile": names(
        """
        autoep_non_moe debug_log deepcompile double_buffer free_activation free_activation_threshold
        keep_all_input_tensors keep_int_input_tensors offload_activation offload_activation_pin_memory
        offload_opt_states offload_parameters passes symmetric_memory sync_after_allgather sync_after_reduce
        sync_before_allgather sync_before_reduce
        """
    ),
    "hybrid_engine": names(
        """
        enable_cuda_graph enabled inference_tp_size max_out_tokens pin_parameters release_inference_cache
        tp_gather_partition_size
        """
    ),
    "comms_logger": names("debug enabled prof_all prof_ops verbose"),
    "tensorboard": names("enabled job_name output_path"),
    "csv_monitor": names("enabled job_name output_path"),
    "wandb": names("enabled group project team"),
    "comet": names(
        """
        api_key enabled experiment_key experiment_name mode online project samples_log_interval workspace
        """
    ),
}
"""Blocks that refuse keys they do not know. Source: the pydantic class of each block."""
STRICT_IN_0_19 = names("comet comms_logger compile csv_monitor hybrid_engine tensor_parallel tensorboard wandb")
"""Those of them whose keys were not compared with older versions."""
MILD_BLOCKS = {
    "activation_checkpointing": names(
        """
        contiguous_memory_optimization cpu_checkpointing number_checkpoints partition_activations profile
        synchronize_checkpoint_boundary
        """
    ),
    "aio": names(
        """
        block_size intra_op_parallelism overlap_events queue_depth single_submit thread_count use_gds
        """
    ),
    "checkpoint": names("load_universal parallel_write tag_validation use_node_local_storage writer"),
    "data_types": names("grad_accum_dtype"),
    "flops_profiler": names(
        """
        detailed enabled module_depth output_file profile_step recompute_fwd_factor top_modules
        """
    ),
    "optimizer": names("legacy_fusion params type"),
    "scheduler": names("params type"),
    "torch_autocast": names("dtype enabled lower_precision_safe_modules"),
}
"""Blocks that ignore keys they do not know; only misspelled names are reported."""
REMOVED_IN_0_19 = names(
    """
    amp compression_training curriculum_learning eigenvalue elasticity graph_harvesting nebula
    progressive_layer_drop quantize_training sparse_attention sparse_gradients
    """
)
"""Top-level keys that 0.18.9 still took. Source: `_REMOVED_TOP_LEVEL_CONFIG_KEYS` in deepspeed/runtime/config.py."""
# docs/decisions/files.md: The list of known top-level keys of a DeepSpeed file is generous
TOP_LEVEL_KEYS = REMOVED_IN_0_19 | names(
    """
    activation_checkpointing aio amp_params autotuning bf16 bfloat16 checkpoint comet comms_logger
    communication_data_type compile csv_monitor cuda_graph data_efficiency data_parallel_size data_routing
    data_sampling data_types dataloader_drop_last datastates_ckpt debug disable_allgather disable_python_gc
    dump_state ep_size eval_batch_size expert_parallel flops_profiler fp16 fp32_allreduce fp8
    gradient_accumulation_steps gradient_allreduce_op gradient_clipping gradient_predivide_factor hybrid_engine
    inference load_universal_checkpoint local_rank log_level managed_gradient_accumulation memory_breakdown moe
    msamp optimizer pipeline prescale_gradients scheduler seed seq_parallel_communication_data_type
    sequence_parallel_size steps_per_print tensor_parallel tensor_parallel_size tensorboard timers torch_autocast
    train_batch_size train_micro_batch_size_per_gpu train_steps use_data_before_expert_parallelism version
    vocabulary_size wall_clock_breakdown wandb weight_quantization zenflow zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer zero_optimization zero_state
    """
)
"""Top-level keys, and some that only its examples and integrations use, so that no known key is called unknown."""
DEEPSPEED_MARKS = names(
    """
    train_batch_size train_micro_batch_size_per_gpu zero_allow_untested_optimizer zero_optimization
    """
)
"""Keys by which a file is recognized as DeepSpeed's."""
_WARM_UP = names("last_batch_iteration warmup_max_lr warmup_min_lr warmup_num_steps warmup_type")
SCHEDULERS = {
    "LRRangeTest": names(
        """
        last_batch_iteration lr_range_test_min_lr lr_range_test_staircase lr_range_test_step_rate
        lr_range_test_step_size
        """
    ),
    "OneCycle": names(
        """
        cycle_first_stair_count cycle_first_step_size cycle_max_lr cycle_max_mom cycle_min_lr cycle_min_mom
        cycle_momentum cycle_second_stair_count cycle_second_step_size decay_lr_rate decay_mom_rate decay_step_size
        last_batch_iteration
        """
    ),
    "WarmupLR": _WARM_UP,
    "WarmupDecayLR": _WARM_UP | {"total_num_steps"},
    "WarmupCosineLR": names(
        """
        cos_min_ratio last_batch_iteration total_num_steps warmup_min_ratio warmup_num_steps warmup_type
        """
    ),
}
"""The schedulers with their parameters. Source: deepspeed/runtime/lr_schedules.py (`VALID_LR_SCHEDULES`)."""
OPTIMIZERS = names("adagrad adam adamw lamb lion muadam muadamw muon musgd")
"""Names that are taken in any case. Source: `DEEPSPEED_OPTIMIZERS` in deepspeed/runtime/config.py."""
ONE_BIT_OPTIMIZERS = names("onebitadam onebitlamb zerooneadam")
"""The same, until `REMOVALS`."""
TESTED_OPTIMIZERS = names("adagrad adam adamw lion muon")
"""Those tested with ZeRO. Source: `ZERO_SUPPORTED_OPTIMIZERS` in deepspeed/runtime/zero/utils.py."""
_ADAM = names(
    """
    adam_w_mode adamw_mode amsgrad betas bias_correction capturable decoupled_weight_decay differentiable eps foreach
    fp32_optimizer_states fused lr maximize set_grad_none torch_adam weight_decay
    """
)
"""Of FusedAdam, DeepSpeedCPUAdam and torch's: which of them is made depends on the device and on offload."""
OPTIMIZER_PARAMETERS = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "lion": names("betas fp32_optimizer_states lr set_grad_none weight_decay"),
}
"""What the optimizers take, by their names in lower case."""
_DTYPES = names(
    """
    bf16 bfloat16 float float16 float32 fp16 fp32 half int8 torch.bfloat16 torch.float16 torch.float32 torch.int8
    """
)
DTYPES_OF = {
    "communication_data_type": names("bf16 fp16 fp32"),
    "seq_parallel_communication_data_type": names("bf16 fp16 fp32"),
    "data_types.grad_accum_dtype": _DTYPES,
    "torch_autocast.dtype": _DTYPES,
}
"""The names of data types that each setting takes. Source: `DtypeEnum` in deepspeed/runtime/config.py."""
LAUNCHER_PROGRAMS = {"pdsh": "pdsh", "slurm": "sinfo"}
"""What launchers look for. Source: `backend_exists` in deepspeed/launcher/multinode_runner.py."""
LAUNCHERS_WITHOUT_FILTERS = ("openmpi", "mpich", "mvapich", "impi")
"""Launchers that refuse --num_gpus and filters. Source: `validate_args`, same file."""
OTHER_NAMES = {
    **{
        name: f"stage3_{name}"
        for name in (
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "module_granularity_threshold",
            "gather_16bit_weights_on_model_save",
            "use_all_reduce_for_fetch_params",
            "allgather_sequential",
        )
    },
    "stage3_use_all_reduce_for_fetch_params": "stage3_use_all_reduce_for_fetch_params",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}
"""Other names of settings in zero_optimization, each with the name that counts."""
DEFAULTS: dict[str, Any] = {
    "zero_optimization.contiguous_gradients": True,
    "zero_optimization.reduce_scatter": True,
    "zero_optimization.reduce_bucket_size": 500_000_000,
    "zero_optimization.allgather_partitions": True,
    "zero_optimization.allgather_bucket_size": 500_000_000,
    "zero_optimization.round_robin_gradients": False,
    "zero_optimization.stage3_prefetch_bucket_size": 50_000_000,
    "zero_optimization.stage3_param_persistence_threshold": 100_000,
    "zero_optimization.stage3_max_live_parameters": 1_000_000_000,
    "zero_optimization.stage3_max_reuse_distance": 1_000_000_000,
    "zero_optimization.sub_group_size": 1_000_000_000,
    "zero_optimization.offload_optimizer.pin_memory": True,
    "zero_optimization.offload_optimizer.buffer_count": 4,
    "zero_optimization.offload_optimizer.fast_init": False,
    "zero_optimization.offload_optimizer.pipeline_read": False,
    "zero_optimization.offload_optimizer.pipeline_write": False,
    "zero_optimization.offload_param.pin_memory": True,
    "zero_optimization.offload_param.buffer_count": 5,
    "zero_optimization.offload_param.buffer_size": 100_000_000,
    "zero_optimization.offload_param.max_in_cpu": 1_000_000_000,
    "fp16.loss_scale": 0,
    "fp16.initial_scale_power": 16,
    "fp16.loss_scale_window": 1000,
    "fp16.hysteresis": 2,
    "fp16.consecutive_hysteresis": False,
    "fp16.min_loss_scale": 1,
    "aio.block_size": 1_048_576,
    "aio.queue_depth": 8,
    "aio.intra_op_parallelism": 1,
    "aio.single_submit": False,
    "aio.overlap_events": True,
    "data_types.grad_accum_dtype": None,
    "zero_force_ds_cpu_optimizer": True,
    "wall_clock_breakdown": False,
    "timers.throughput.enabled": True,
}
"""What DeepSpeed takes for settings that are left out, of those that `render` writes.

The default of `overlap_comm` depends on the stage.
"""

STRICT_PRECISION = (0, 18)
"""Since then, fp16 and bf16 are read by classes that refuse unknown keys (0.16.5: not yet; 0.18.9: yes)."""
REMOVALS = (0, 19)
"""Since then, features are gone (`REMOVED_IN_0_19`), and a file that does not say otherwise clips at 1.0."""
UNREAD = (0, 20)
"""The first version whose source was not read for these lists; it may have more keys."""


def default_clipping(version: Version) -> float:
    """The norm that gradients are clipped at where a file does not say; 0.0 for no clipping."""
    return 1.0 if version >= REMOVALS else 0.0


def is_removed(key: str, version: Version) -> bool:
    """Whether a version stops at a key that older ones took."""
    return version >= REMOVALS and key in REMOVED_IN_0_19 | ZERO_UNTIL_0_18


def strict_blocks(version: Version) -> dict[str, Collection[str]]:
    """The blocks in which a version refuses unknown keys, with the keys that it knows."""
    zero = ZERO_KEYS
    if version < REMOVALS:
        zero = (zero - ZERO_SINCE_0_19) | ZERO_UNTIL_0_18
    # Somewhere between these two, so neither is called unknown there.
    if version <= (0, 16, 5):
        zero -= ZERO_SINCE_0_17
    loose = STRICT_IN_0_19 if version < REMOVALS else frozenset()
    loose |= {"fp16", "bf16"} if version < STRICT_PRECISION else frozenset()
    known: dict[str, Collection[str]] = {**STRICT_BLOCKS, "zero_optimization": zero}
    return {block: keys for block, keys in known.items() if block not in loose}
