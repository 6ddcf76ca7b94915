"""Lightning: what its Trainer is told, and the methods of a module that it calls as it trains."""

from __future__ import annotations

from trainwiz.engines.names import names

TRIED = "2.6"
"""The version whose source was read."""
READ = names("accumulate_grad_batches gradient_clip_val max_epochs max_steps precision")
"""Arguments of its Trainer that a plan has keys for."""
LEARNS_THE_SAME = names(
    """
    accelerator auto_select_gpus barebones benchmark check_val_every_n_epoch checkpoint_callback default_root_dir
    detect_anomaly deterministic devices enable_autolog_hparams enable_checkpointing enable_model_summary
    enable_progress_bar gpus inference_mode limit_predict_batches limit_test_batches limit_val_batches
    log_every_n_steps logger max_time min_epochs min_steps model_registry num_nodes num_processes num_sanity_val_steps
    profiler progress_bar_refresh_rate resume_from_checkpoint strategy use_distributed_sampler val_check_interval
    weights_summary
    """
)
"""Arguments that decide where, how fast and with which records a training runs, and not what is learned."""
CALLBACKS = names(
    """
    DeviceStatsMonitor EarlyStopping LearningRateMonitor ModelCheckpoint ModelSummary RichModelSummary
    RichProgressBar TQDMProgressBar ThroughputMonitor Timer
    """
)
"""Callbacks that change no update."""
HOOKS = names(
    """
    backward configure_callbacks configure_gradient_clipping configure_model configure_sharded_model
    lr_scheduler_step on_after_backward on_after_batch_transfer on_before_backward on_before_batch_transfer
    on_before_optimizer_step on_before_zero_grad on_fit_start on_load_checkpoint on_save_checkpoint
    on_train_batch_end on_train_batch_start on_train_end on_train_epoch_end on_train_epoch_start on_train_start
    optimizer_step optimizer_zero_grad prepare_data setup training_epoch_end training_step_end
    transfer_batch_to_device
    """
)
"""Methods of a module that its Trainer calls as it trains, besides those that a project calls, too."""
COUNTERS = names("current_epoch estimated_stepping_batches global_rank global_step local_rank trainer")
"""What a module knows from its Trainer."""
