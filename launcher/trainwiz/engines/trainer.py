"""The arguments of transformers' Trainer, which many tools take over into their own files.

Read in transformers 5.23.0, with those that older versions back to 4.41 had.
"""

from __future__ import annotations

from trainwiz.engines.names import names

TRIED = "5.23.0"
"""The version that these facts were tried with."""
ARGUMENTS = names(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2
    adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval
    data_seed dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug
    deepspeed disable_tqdm do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object fp16 fp16_full_eval
    fsdp fsdp_config full_determinism generation_config generation_max_length generation_num_beams
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs greater_is_better
    hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip
    include_for_metrics include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica
    log_on_each_node logging_first_step logging_nan_inf_filter logging_steps logging_strategy
    lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model neftune_noise_alpha
    num_train_epochs optim optim_args optim_target_modules output_dir parallelism_config
    per_device_eval_batch_size per_device_train_batch_size predict_with_generate prediction_loss_only project
    push_to_hub remove_unused_columns report_to restore_callback_states_from_checkpoint resume_from_checkpoint
    run_name save_on_each_node save_only_model save_steps save_strategy save_total_limit seed
    skip_memory_metrics sortish_sampler tf32 torch_compile torch_compile_backend torch_compile_mode
    torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy
    use_cache use_cpu use_liger_kernel warmup_steps weight_decay
    """
)
"""Fields of `Seq2SeqTrainingArguments`."""
OLD_ARGUMENTS = names(
    """
    adafactor dispatch_batches evaluation_strategy fp16_backend fp16_opt_level fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap group_by_length half_precision_backend include_inputs_for_metrics
    include_tokens_per_second jit_mode_eval logging_dir mp_parameters no_cuda overwrite_output_dir past_index
    per_gpu_eval_batch_size per_gpu_train_batch_size push_to_hub_model_id push_to_hub_organization
    push_to_hub_token ray_scope save_safetensors sharded_ddp split_batches torchdynamo tp_size tpu_metrics_debug
    tpu_num_cores use_ipex use_legacy_prediction_loop use_mps_device warmup_ratio xpu_backend
    """
)
"""Fields that older versions had."""
LEARNS_THE_SAME = names(
    """
    average_tokens_across_devices bf16_full_eval data_seed dataloader_in_order dataloader_multiprocessing_context
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug disable_tqdm
    dispatch_batches do_predict do_train enable_jit_checkpoint fp16_full_eval full_determinism gradient_checkpointing
    gradient_checkpointing_kwargs hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token
    ignore_data_skip include_num_input_tokens_seen include_tokens_per_second jit_mode_eval label_names
    length_column_name local_rank log_level log_level_replica log_on_each_node logging_dir logging_first_step
    logging_nan_inf_filter logging_steps logging_strategy no_cuda output_dir overwrite_output_dir past_index project
    push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope remove_unused_columns
    report_to resume_from_checkpoint restore_callback_states_from_checkpoint run_name save_on_each_node
    save_only_model save_safetensors save_steps save_strategy save_total_limit skip_memory_metrics torch_compile
    torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo trackio_bucket_id trackio_space_id
    trackio_static_space_id use_cache use_cpu use_ipex use_mps_device
    """
)
"""Those of them that decide where, how fast and with which records a training runs, and not what is learned."""
OF_EVALUATION = names(
    """
    batch_eval_metrics do_eval eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps
    eval_strategy eval_use_gather_object evaluation_strategy generation_config generation_max_length
    generation_num_beams greater_is_better include_for_metrics include_inputs_for_metrics metric_for_best_model
    per_device_eval_batch_size per_gpu_eval_batch_size predict_with_generate prediction_loss_only
    use_legacy_prediction_loop
    """
)
"""Those of evaluation."""
ORDERS_SAMPLES = names("group_by_length sortish_sampler train_sampling_strategy")
"""Those that choose the order of samples."""
METHODS = names(
    """
    __init__ compute_loss evaluate evaluation_loop floating_point_ops get_eval_dataloader get_test_dataloader log
    log_metrics metrics_format predict prediction_loop prediction_step push_to_hub save_metrics save_model save_state
    _load_best_model _load_from_checkpoint _maybe_log_save_evaluate _save _save_checkpoint
    """
)
"""Methods of a Trainer that are none of its training, or that are looked at on their own."""
