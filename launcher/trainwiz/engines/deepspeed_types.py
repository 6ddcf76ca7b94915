"""What DeepSpeed reads at each key of its file: a block, a number, a truth value, text, a list, or one of some words.

Source: the fields of DeepSpeed's classes, which a test compares; for blocks and the top level, all other types
that were tried stopped it. `tests/rules/test_borders.py` gives values at the border of each key to the engine.
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
    zero_optimization.leaf_module bfloat16 checkpoint.parallel_write checkpoint.writer expert_parallel
    tensor_parallel.partition_config tensor_parallel.tensor_parallel tensor_parallel.tp timers
    """
)
"""Keys with keys below them."""
MAY_BE_NULL = names(
    """
    aio bf16 log_level optimizer.params optimizer.type scheduler.type
    zero_optimization.offload_optimizer zero_optimization.offload_param
    zero_optimization.overlap_comm zero_optimization.zenflow
    activation_checkpointing.number_checkpoints checkpoint.writer comet.api_key comet.experiment_key
    comet.experiment_name comet.mode comet.online comet.project comet.workspace compile.passes expert_parallel
    flops_profiler.output_file scheduler.params.cycle_second_step_size scheduler.params.warmup_max_lr steps_per_print
    tensor_parallel.injection_policy_tuple tensor_parallel.partition_config tensor_parallel.preset_model
    tensor_parallel.vocab_parallel_lm_head vocabulary_size wandb.group wandb.team
    zero_optimization.cpu_offload zero_optimization.cpu_offload_param zero_optimization.cpu_offload_use_pin_memory
    zero_optimization.leaf_module zero_optimization.offload_optimizer.nvme_path
    zero_optimization.offload_param.nvme_path
    aio.block_size aio.intra_op_parallelism aio.queue_depth flops_profiler.module_depth flops_profiler.profile_step
    flops_profiler.recompute_fwd_factor flops_profiler.top_modules gradient_predivide_factor
    scheduler.params.cycle_second_stair_count
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
    comet.samples_log_interval compile.free_activation_threshold hybrid_engine.inference_tp_size
    hybrid_engine.max_out_tokens hybrid_engine.tp_gather_partition_size tensor_parallel.autotp_size
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
BARE_NUMBERS = (
    names(
        """
    gradient_clipping gradient_predivide_factor optimizer.params.eps optimizer.params.lr optimizer.params.weight_decay
    sequence_parallel_size steps_per_print vocabulary_size
    """
    )
    | names(
        """
    activation_checkpointing.number_checkpoints aio.block_size aio.intra_op_parallelism aio.queue_depth
    flops_profiler.module_depth flops_profiler.profile_step flops_profiler.recompute_fwd_factor
    flops_profiler.top_modules
    """
    )
    | names(
        """
    cos_min_ratio cycle_first_stair_count cycle_first_step_size cycle_max_lr cycle_max_mom cycle_min_lr cycle_min_mom
    cycle_second_stair_count cycle_second_step_size decay_lr_rate decay_mom_rate decay_step_size last_batch_iteration
    lr_range_test_min_lr lr_range_test_step_rate lr_range_test_step_size total_num_steps warmup_max_lr warmup_min_lr
    warmup_min_ratio warmup_num_steps
    """,
        below="scheduler.params.",
    )
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
    allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients cpu_offload cpu_offload_param
    cpu_offload_use_pin_memory elastic_checkpoint
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
TRUTH |= names(
    """
    autoep_non_moe debug_log deepcompile double_buffer free_activation keep_all_input_tensors keep_int_input_tensors
    offload_activation offload_activation_pin_memory offload_opt_states offload_parameters symmetric_memory
    sync_after_allgather sync_after_reduce sync_before_allgather sync_before_reduce
    """,
    below="compile.",
) | names(
    """
    comet.enabled comet.online comms_logger.debug comms_logger.enabled comms_logger.prof_all comms_logger.verbose
    csv_monitor.enabled hybrid_engine.enable_cuda_graph hybrid_engine.enabled hybrid_engine.pin_parameters
    hybrid_engine.release_inference_cache tensor_parallel.keep_module_on_host tensor_parallel.kernel_inject
    tensor_parallel.replace_with_kernel_inject tensor_parallel.tp_overlap_comm tensor_parallel.vocab_parallel_lm_head
    tensorboard.enabled wandb.enabled
    """
)
"""True, false, 0, 1, or one of the words below in quotes."""
TRUE_OR_FALSE = names("0 1 f false n no off on t true y yes")
BARE_TRUTH = names(
    """
    dataloader_drop_last disable_allgather disable_python_gc dump_state memory_breakdown optimizer.legacy_fusion
    prescale_gradients torch_autocast.enabled use_data_before_expert_parallelism wall_clock_breakdown
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    """
) | names(
    """
    activation_checkpointing.contiguous_memory_optimization activation_checkpointing.cpu_checkpointing
    activation_checkpointing.partition_activations activation_checkpointing.profile
    activation_checkpointing.synchronize_checkpoint_boundary aio.overlap_events aio.single_submit aio.use_gds
    checkpoint.load_universal checkpoint.parallel_write.pipeline_stage checkpoint.use_node_local_storage
    flops_profiler.detailed flops_profiler.enabled
    optimizer.params.adam_w_mode optimizer.params.amsgrad optimizer.params.bias_correction
    optimizer.params.differentiable optimizer.params.torch_adam scheduler.params.cycle_momentum
    scheduler.params.lr_range_test_staircase
    """
)
"""Truth values that are read from no word in quotes: "false" acts as true, or stops the engine."""
NO_WORD = names("checkpoint.parallel_write.pipeline_stage flops_profiler.enabled wall_clock_breakdown")
"""Those at which a word in quotes stops the engine; at the others, every word counts as true."""
BARE_TRUTH_MAY_BE_NULL = BARE_TRUTH - names(
    "checkpoint.parallel_write.pipeline_stage flops_profiler.enabled optimizer.params.differentiable "
    "wall_clock_breakdown"
)
"""Those for which null counts as false."""
TEXTS = names(
    """
    comet.api_key comet.experiment_key comet.experiment_name comet.mode comet.project comet.workspace
    csv_monitor.job_name csv_monitor.output_path optimizer.type scheduler.type tensor_parallel.preset_model
    tensorboard.job_name
    tensorboard.output_path wandb.group wandb.project wandb.team zero_optimization.offload_optimizer.nvme_path
    zero_optimization.offload_param.nvme_path
    """
)
"""Text, which no number stands for."""
LISTS = names(
    """
    comms_logger.prof_ops compile.passes tensor_parallel.injection_policy_tuple
    torch_autocast.lower_precision_safe_modules
    """
)
"""Lists."""
PER_GROUP = names(
    """
    cycle_max_lr cycle_max_mom cycle_min_lr cycle_min_mom lr_range_test_min_lr warmup_max_lr warmup_min_lr
    """,
    below="scheduler.params.",
)
"""Numbers of which a list has one for each parameter group."""
NOT_IN_A_FILE = names("tensor_parallel.dtype")
"""Keys whose type JSON does not have."""
NOT_TRUTH = names("fp16.loss_scale fp16.loss_scale_window fp16.min_loss_scale")
"""Numbers at which true and false stop the engine; elsewhere they count as 1 and 0."""
WORDS = {
    "scheduler.params.warmup_type": ("log", "linear"),
    "tensor_parallel.vocab_parallel_ce_backend": ("torch", "liger"),
    "checkpoint.tag_validation": ("Ignore", "Warn", "Fail"),
    "gradient_allreduce_op": ("mean", "sum"),
    "log_level": ("debug", "info", "warning", "error", "critical"),
}
"""Keys that take one of some words."""
WORDS_OR_DEFAULT = names("scheduler.params.warmup_type")
"""Those for which the engine takes its default where the word is another."""
EXACT_WORDS = names("scheduler.params.warmup_type tensor_parallel.vocab_parallel_ce_backend")
"""Those whose case counts."""
WORDS_SINCE_0_19 = names("gradient_allreduce_op log_level")
LEAST = {
    "fp16.loss_scale": 0,
    "hybrid_engine.max_out_tokens": 1,
    "optimizer.params.eps": 0,
    "optimizer.params.lr": 0,
    "optimizer.params.weight_decay": 0,
    "scheduler.params.cycle_second_step_size": 0,
    "scheduler.params.lr_range_test_step_size": 1,
    "scheduler.params.warmup_num_steps": 1,
    "sequence_parallel_size": 1,
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": 0,
}
"""The smallest number at each of these keys."""
MOST = {"zero_optimization.offload_optimizer.cpuadam_cores_perc": 1}
"""The largest one."""
POSITIVE = names("scheduler.params.cycle_first_step_size")
"""Numbers above 0."""
WHOLE_STEPS = names("scheduler.params.lr_range_test_step_size scheduler.params.warmup_num_steps")
"""Steps of which only whole ones count."""
CHECKED = frozenset().union(
    BLOCKS, COUNTS, WHOLE, WHOLE_FROM_0, NUMBERS, BARE_NUMBERS, TRUTH, BARE_TRUTH, WORDS, TEXTS, LISTS, NOT_IN_A_FILE
) | names(
    """
    communication_data_type data_types.grad_accum_dtype optimizer.params.betas seq_parallel_communication_data_type
    torch_autocast.dtype zero_optimization.offload_optimizer.device zero_optimization.offload_param.device
    zero_optimization.stage
    """
)
"""Every key whose values are checked."""
