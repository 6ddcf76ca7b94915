"""What DeepSpeed reads at each key of its file: a block, a whole number, a number, a truth value, or one of some words.

Source: the fields of DeepSpeed's classes, which a test compares; for blocks and the top level, all other types
that were tried stopped it.
"""

from __future__ import annotations

from trainwiz.engines.names import names

# docs/decisions/files.md: The types in a DeepSpeed file were found by giving variants to the engine
BLOCKS = names(
    """
    activation_checkpointing aio autotuning bf16 checkpoint comet comms_logger compile csv_monitor data_efficiency
    data_types flops_profiler fp16 hybrid_engine optimizer optimizer.params pipeline scheduler scheduler.params
    tensor_parallel tensorboard torch_autocast wandb weight_quantization zero_optimization
    zero_optimization.offload_optimizer zero_optimization.offload_param zero_optimization.zenflow
    """
)
"""Keys with keys below them."""
MAY_BE_NULL = names(
    """
    aio bf16 log_level optimizer.params zero_optimization.offload_optimizer zero_optimization.offload_param
    zero_optimization.overlap_comm zero_optimization.zenflow
    """
)
"""Keys for which null counts as left out."""
SWITCHED = names(
    """
    activation_checkpointing bf16 comms_logger csv_monitor flops_profiler fp16 tensorboard wandb
    """
)
"""Blocks that are switched on by `enabled`, for which people write `true`."""

COUNTS = names("gradient_accumulation_steps train_batch_size train_micro_batch_size_per_gpu")
"""Whole numbers of at least 1; null counts as left out."""
WHOLE = names(
    """
    fp16.hysteresis fp16.initial_scale_power fp16.loss_scale_window fp16.min_loss_scale
    zero_optimization.module_granularity_threshold zero_optimization.stage3_module_granularity_threshold
    """
)
"""Whole numbers of any size."""
WHOLE_FROM_0 = names(
    """
    allgather_bucket_size max_live_parameters max_reuse_distance model_persistence_threshold
    offload_optimizer.buffer_count offload_param.buffer_count offload_param.buffer_size offload_param.max_in_cpu
    param_persistence_threshold prefetch_bucket_size reduce_bucket_size stage3_max_live_parameters
    stage3_max_reuse_distance stage3_model_persistence_threshold stage3_param_persistence_threshold
    stage3_prefetch_bucket_size sub_group_size zero_hpz_partition_size
    """,
    below="zero_optimization.",
)
"""Whole numbers of at least 0."""
NUMBERS = names(
    """
    fp16.loss_scale zero_optimization.offload_optimizer.cpuadam_cores_perc zero_optimization.offload_optimizer.ratio
    """
)
"""Numbers, also in quotes."""
BARE_NUMBERS = names(
    """
    gradient_clipping optimizer.params.eps optimizer.params.lr optimizer.params.weight_decay
    scheduler.params.total_num_steps scheduler.params.warmup_max_lr scheduler.params.warmup_min_lr
    scheduler.params.warmup_num_steps
    """
)
"""Numbers that DeepSpeed does not read from a string: quotes stop it."""
TRUTH = names(
    """
    bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states bf16.check_grad_overflow bf16.enabled
    bf16.immediate_grad_update fp16.auto_cast fp16.consecutive_hysteresis fp16.enabled
    fp16.fp16_master_weights_and_grads
    """
) | names(
    """
    allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients elastic_checkpoint
    enable_sanity_checks gather_16bit_weights_on_model_save ignore_unused_parameters legacy_stage1
    load_from_fp32_weights log_trace_cache_warnings memory_efficient_linear offload_optimizer.fast_init
    offload_optimizer.pin_memory offload_optimizer.pipeline_read offload_optimizer.pipeline_write
    offload_optimizer.super_offload offload_param.pin_memory overlap_comm override_module_apply parameter_alignment
    pipeline_loading_checkpoint reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory
    stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce
    zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
    """,
    below="zero_optimization.",
)
"""True, false, 0, 1, or one of the words below in quotes."""
TRUE_OR_FALSE = names("0 1 f false n no off on t true y yes")
BARE_TRUTH = names("wall_clock_breakdown")
"""Truth values that are read from no word in quotes."""
WORDS = {
    "checkpoint.tag_validation": ("Ignore", "Warn", "Fail"),
    "gradient_allreduce_op": ("mean", "sum"),
    "log_level": ("debug", "info", "warning", "error", "critical"),
}
"""Keys that take one of some words."""
WORDS_SINCE_0_19 = names("gradient_allreduce_op log_level")
