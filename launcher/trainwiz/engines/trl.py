"""TRL's arguments, as its configuration classes name them."""

from __future__ import annotations

from trainwiz.engines.names import names

TRIED = "1.10.0"
"""The version whose source was read."""
RATES = {
    "SFTConfig": 2e-5,
    "DPOConfig": 1e-6,
    "RewardConfig": 1e-4,
    "KTOConfig": 1e-6,
    "ORPOConfig": 1e-6,
    "CPOConfig": 1e-6,
}
"""The learning rate of a configuration that is given none (1.16); they are in bf16 unless fp16 is set."""
WRITES_ANSWERS = names(
    """
    A2POTrainer AsyncDistillationTrainer AsyncGRPOTrainer DistillationTrainer GKDTrainer GMPOTrainer GOLDTrainer
    GRPOTrainer GRPOWithReplayBufferTrainer IWOPDTrainer MiniLLMTrainer NashMDTrainer OnlineDPOTrainer PAPOTrainer
    PPOTrainer PPOv2Trainer RLOOTrainer RLOOv2Trainer SDFTTrainer SDPOTrainer ServerDistillationTrainer XPOTrainer
    """
)
"""Trainers whose samples the model itself writes as it trains, also those of older versions."""
OF_ALL_SAMPLES = names("aot aot_unpaired bco_pair")
"""Values of DPO's loss_type that compare the pairs of a micro-batch with each other, or with those before."""
OF_TOKENS = "sft"
"""The value of DPO's loss_type that is a mean over tokens, and not over pairs."""
OWN_ARGUMENTS = names(
    """
    activation_offloading alpha assistant_only_loss attn_implementation batch_size beta beta1 beta2
    bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation callbacks cast_lm_head_to_fp32
    center_rewards_coefficient chat_template_kwargs chat_template_path cliprange cliprange_value columns
    completion_only_loss cpo_alpha data_dir data_files dataset_config dataset_kwargs dataset_name
    dataset_num_proc dataset_streaming dataset_test_split dataset_text_field dataset_train_split datasets delta
    desirable_weight diagnostics_flat_tolerance diagnostics_warning_interval disable_dropout discopop_tau
    distillation_add_tail distillation_alpha distillation_is_clip distillation_mode distillation_objective
    distillation_topk distillation_weight dont_reprompt_on_self_success ds3_gather_for_generation dtype
    entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target env
    environment_feedback_only_without_solution eos_token epsilon epsilon_high eval_packing
    f_alpha_divergence_coef f_divergence_type feedback_template filter_all_incorrect filter_empty
    fork_threshold_tokens fraction gamma generate_during_eval generate_from_teacher generation_batch_size
    generation_kwargs heartbeat_stale_after_s ignore_bias_buffers importance_sampling_level
    include_environment_feedback is_encoder_decoder iw_opd_epsilon iw_opd_gamma kd_temperature kl_coef
    kl_estimator label_smoothing lam ld_alpha length_normalization lmbda load_in_4bit load_in_8bit
    local_batch_size local_mini_batch_size local_rollout_forward_batch_size log_completions
    log_completions_hub_repo log_completions_steps log_multimodal log_unique_prompts lora_alpha lora_dropout
    lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type loss_add_tail
    loss_top_k loss_type loss_weights mask_truncated_completions max_completion_length max_density_ratio
    max_inflight_tasks max_length max_new_tokens max_prompt_length max_reprompt_len max_staleness
    max_tool_calling_iterations micro_batch_size min_density_ratio min_p mini_batch_size missing_eos_penalty
    mixture_coef model_adapter_name model_init_kwargs model_name_or_path model_revision
    multi_objective_aggregation name normalize_advantages num_completions_to_print num_generations
    num_generations_eval num_iterations num_loss_tokens_to_skip num_mini_batches num_ppo_epochs
    num_sample_generations num_total_batches num_value_samples off_policy_mask_threshold packing
    packing_strategy pad_to_multiple_of pad_token padding_free padding_value path precompute_ref_batch_size
    precompute_ref_log_probs prompt_sample_size queue_maxsize ref_adapter_name ref_model_mixup_alpha
    ref_model_sync_steps remove_thinking_from_demonstration repetition_penalty replay_buffer_size
    reprompt_template request_timeout response_length reverse_kl_top_1_mode reward_clip_range reward_funcs
    reward_model_name_or_path reward_model_path reward_weights rkl_advantage router_aux_loss_coef
    sapo_temperature_neg sapo_temperature_pos scale_rewards seq_kd sft_model_path shuffle_dataset simpo_gamma
    single_step_decomposition solution_template split step_separator steps_per_generation stop_token
    stop_token_id streaming success_reward_threshold sync_ref_model teacher_model_init_kwargs teacher_model_kind
    teacher_model_name_or_path teacher_model_revision teacher_model_server_url teacher_prompt_template
    teacher_sync_steps teacher_tokenizer_name_or_path teacher_update_rate temperature test_split_size
    token_budget top_entropy_quantile top_k top_p total_episodes tpo_alpha tpo_l_gamma train_on_last_step_only
    transformers_continuous_batching_config truncation_mode trust_remote_code uld_crossentropy_weight
    uld_distillation_weight uld_hybrid_matched_weight uld_hybrid_unmatched_weight uld_skip_student_eos
    uld_skip_teacher_eos uld_student_temperature uld_teacher_temperature uld_token_merge_strategy
    uld_use_hybrid_loss undesirable_weight use_adaptive_entropy use_bias_correction_kl use_bnb_nested_quant
    use_dora use_extended_uld use_peft use_rslora use_successful_as_teacher use_teacher_server
    use_transformers_continuous_batching use_transformers_paged use_uld_loss use_vllm use_weighting vespo_k_neg
    vespo_k_pos vespo_lambda_neg vespo_lambda_pos vf_coef vllm_enable_sleep_mode vllm_gpu_memory_utilization
    vllm_group_port vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port
    vllm_server_timeout vllm_structured_outputs_regex vllm_sync_frequency vllm_tensor_parallel_size
    wandb_log_unique_prompts weight_sync_steps whiten_rewards world_size
    """
)
"""Arguments of its trainers and scripts beside those of transformers' Trainer. Others stop it."""
