"""What the Trainer of transformers, and tools on top of it, refuse before or while they train."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
_WRAPPERS = (
    ""
    ""
    "DistributedDataParallel|DataParallel|FullyShardedDataParallel|DeepSpeedEngine|DeepSpeedHybridEngine|PipelineEngine|"
    "GeminiDDP|LowLevelZeroModel|TorchDDPModel|HybridParallelModule|OptimizedModule"
)
SIGNATURES = {
    "best_model": Signature(
        r"--load_best_model_at_end requires the save and eval strategy to match",
        r"--load_best_model_at_end requires the saving steps to be a (?:round )?multiple of the evaluation steps",
        cause="the best model can only be loaded at the end if every save follows an evaluation",
        remedy="give save_strategy and eval_strategy the same value, and make save_steps a multiple of eval_steps; or "
        "set load_best_model_at_end to false",
    ),
    "best_checkpoint_gone": Signature(
        r"ValueError: '(?P<folder>[^'\n]*checkpoint-\d+)' is not in list",
        cause="the Trainer's best checkpoint {folder} is missing from output_dir: it was deleted, moved, or "
        "belongs to another run",
        remedy="copy it back, resume with the output_dir that it was written to, or set best_model_checkpoint to "
        "null in the trainer_state.json of the checkpoint that you resume from",
    ),
    "missing_metric": Signature(
        r"The `metric_for_best_model` training argument is set to '(?P<metric>\w+)'",
        r"KeyError: '(?P<metric>eval_\w+)'",
        cause="the evaluation does not report {metric}, which should select the best model",
        remedy="return it from compute_metrics (without eval_), or set evaluation.best_metric to a name from the "
        "evaluation log; eval_loss needs labels in the evaluation data (label_names)",
    ),
    "two_precisions": Signature(
        r"At most one of fp16 and bf16 can be True|bfloat16 and fp16 modes cannot be simultaneously enabled|"
        r"fp16 and bf16 (?:cannot|can't|can not) (?:both )?be",
        cause="fp16 and bf16 are both enabled",
        remedy="keep one: bf16 on Ampere and newer, fp16 on older GPUs; also check DeepSpeed's JSON and "
        "accelerate's file",
    ),
    "two_lightnings": Signature(
        r"invalid strategy name\b[^\n]{0,40}(?<!')\b\w*Strategy\(",
        r"strategy=<lightning\.\S+ object|must be either a string or an instance of `pytorch_lightning|"
        r"`model` must be a `LightningModule`.*got `",
        cause="objects of the package lightning are passed to pytorch_lightning, or the other way around",
        remedy="import everything from only one of them: from lightning.pytorch import …, including callbacks and "
        "strategies",
    ),
    "tracker_not_started": Signature(
        r"(?P<problem>No active Run\. Call swanlab\.init|You must call wandb\.init\(\) before wandb\.[\w.]+)",
        cause="a rank logs to a tracker that it has not started: {problem}",
        remedy="log only on the main process (if accelerator.is_main_process:, trainer.is_world_process_zero()), "
        "or start the tracker on every rank that logs",
    ),
    "context_length": Signature(
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len \((?P<limit>[^)\n]+)\)",
        cause="vLLM is set to {asked} tokens, but the model's config.json allows fewer ({limit})",
        remedy="lower max_model_len (vllm_max_model_len, max_prompt_length + max_completion_length), or extend the "
        "model's "
        "positions in its config.json (rope_scaling)",
    ),
    "generation_failed": Signature(
        r"(?P<problem>Server \d+ failed: \d+[^\]\n]*|Rollout worker child has failed[^\n]*)",
        r"Exception: (?P<problem>Request failed: \d{3}, .+)$",
        cause="the server that generates text for the training failed: {problem}",
        remedy="the cause is in its own log: usually its memory (vllm_gpu_memory_utilization), a prompt that is "
        "too long, or a mismatched version",
        transient=None,
    ),
    "generation_awaited": Signature(
        r"vllm_client - Server is not up yet\. Retrying in (?![\s\S]*Server is up!)",
        cause="the training waits for a vLLM server that does not answer",
        remedy="start it first, on GPUs of its own: trl vllm-serve --model MODEL; its host and port are "
        "vllm_server_host and vllm_server_port; or generate on the training's own GPUs: vllm_mode: colocate",
        transient=None,
        as_warning=True,
    ),
    "no_evaluation_data": Signature(
        r"You have set `args\.eval(?:uation)?_strategy` to \S+ but you didn't pass an `eval_dataset`",
        r"Trainer: evaluation requires an eval_dataset",
        cause="the Trainer should evaluate, but has no evaluation data",
        remedy="pass eval_dataset (LLaMA-Factory and axolotl: val_size, val_set_size), or set eval_strategy to no",
    ),
    "quantized_alone": Signature(
        r"You cannot perform fine-tuning on purely quantized models",
        cause="the model is quantized and has no trainable parts",
        remedy="attach an adapter (LoRA: finetuning_type: lora, adapter: qlora), or load it without quantization",
    ),
    "zero3_device_map": Signature(
        r"DeepSpeed Zero-3 is not compatible with (?:passing a `device_map`|`low_cpu_mem_usage=True`)",
        cause="ZeRO 3 distributes the weights itself, but the model is loaded with a device_map or low_cpu_mem_usage",
        remedy="delete device_map and low_cpu_mem_usage where the model is loaded; for a quantized model use ZeRO 2",
    ),
    "unread_settings": Signature(
        r"Some keys are not used by the HfArgumentParser:\s*\[(?P<keys>[^\]]+)\]",
        r"Some specified arguments are not used by the HfArgumentParser:\s*\[(?P<keys>[^\]]+)\]",
        r"had unknown keys \(\[(?P<keys>[^\]]+)\]\)",
        r"ClusterConfig\.__init__\(\) got an unexpected keyword argument (?P<keys>'\w+')",
        r"ValueError: remaining_argv: \[(?P<keys>[^\]]+)\]",
        r"KeyError: '(?:Non-existent config key: )(?P<keys>[^']+)'",
        r"(?:^|Config\w+Error: )Key '(?P<keys>[^']+)' (?:is )?not in '\w+'$",
        r"Could not override '(?P<keys>[^'\n]+)'",
        r"(?:Config\w*|Key|Value|Type)Error: (?:Unknown|Unrecognized|Unexpected|Invalid) (?:config\w* )?"
        r"(?:setting|option|key)s?:? "
        r"(?P<keys>\[[^\]\n]+\]|['\"][\w.-]+['\"](?:, ?['\"][\w.-]+['\"])*)",
        cause="the file or the command line has settings that this version does not know: {keys}",
        remedy="correct their spelling, or delete them; a newer version may have renamed them",
    ),
    "setting_value": Signature(
        r"ValidationError: \d+ validation errors? for "
        r"(?P<what>(?!DeepSpeed)\w+)\n(?P<key>\S+)\n\s+(?P<problem>[^\[\n]+)",
        r"(?:(?P<what>omegaconf)\.\w+\.)?MissingMandatoryValue: (?P<problem>Missing mandatory value): (?P<key>\S+)",
        r"(?P<what>omegaconf)\.errors\.\w+: (?P<problem>Value '[^']*' of type '\w+' could not be converted to \w+)"
        r"\n\s+full_key: (?P<key>\S+)",
        r"(?P<what>omegaconf)\.errors\.\w+: (?P<problem>Interpolation key '(?P<key>[^'\n]+)' not found)",
        cause="the setting {key} has a value that {what} does not accept: {problem}",
        remedy="correct {key} in the configuration; if it is correct, the installed version defines it "
        "differently: see the reference of that version. Further settings may be listed below",
    ),
    "no_valid_samples": Signature(
        r"RuntimeError: Cannot find (?:valid|sufficient) samples, (?:check `data/README\.md`|consider increasing)",
        cause="LLaMA-Factory found no usable sample: columns, roles or template do not match the data",
        remedy="compare the dataset's columns and tags in data/dataset_info.json with one row of the file; a "
        "conversation must start with the user and end with the assistant",
    ),
    "generation_server": Signature(
        r"TimeoutError: Timed out after \S+ waiting for vLLM server at (?P<address>\S+?)\.?(?: |$)",
        r"ConnectionError: The vLLM server can't be reached at (?P<address>\S+)",
        cause="the server that generates text for the training does not respond at {address}",
        remedy="start it first, on separate GPUs: trl vllm-serve --model NAME; check its host and port in "
        "vllm_server_host and vllm_server_port, and its own log",
        transient=None,
    ),
    "registered_twice": Signature(
        r"'(?P<name>[\w.-]+)' is already used by a Transformers (?:config|model|tokenizer|processor), pick another "
        r"name",
        cause="another package brings its own {name}, which the installed transformers now also has",
        remedy="update that package (vLLM, SGLang, the model's own code), or install the transformers that it requires",
    ),
    "versions_apart": Signature(
        r"AttributeError: '\w*(?:Adam|AdamW|SGD|Adafactor|Lion|Optimizer)\w*' object has no attribute '(?:train|eval)'",
        r"unexpected keyword argument 'keep_torch_compile'",
        r"ImportError: cannot import name '(?:is_mlu_available|clear_device_cache|EncoderDecoderCache)' from "
        r"'(?:accelerate|transformers)[\w.]*'",
        cause="transformers, accelerate, peft and trl do not match: one calls what another does not have",
        remedy="run: pip install --upgrade transformers accelerate peft trl",
    ),
    "lightning_schedule": Signature(
        r"The provided lr scheduler [^\n]* doesn't follow PyTorch's LRScheduler API",
        cause="this Lightning is older than the installed torch, whose schedulers it does not recognize",
        remedy="update Lightning (1.9 and newer know torch 2), or install the torch that the project requires; a "
        "schedule of your own needs lr_scheduler_step in the module",
    ),
    "not_an_adapter": Signature(
        r"AttributeError: '(?P<model>\w+)' object has no attribute '(?:print_trainable_parameters|merge_and_unload|"
        r"disable_adapter|add_weighted_adapter|get_nb_trainable_parameters)'",
        cause="{model} is no model of PEFT: no adapter was put on it, or it was unwrapped",
        remedy="call get_peft_model(model, config) before, and keep what it returns; without an adapter, leave out the "
        "call",
    ),
    "compiled_names": Signature(
        r"KeyError: '_orig_mod\.(?P<name>[^'\n]+)'",
        cause="torch.compile puts _orig_mod. before the names of weights, and a dictionary has {name} without it, or "
        "the other way round",
        remedy="make the dictionary from the same model: before torch.compile, or from its _orig_mod",
    ),
    "compiled_part": Signature(
        r"KeyError: '_orig_mod'",
        cause="a part of the model was compiled before it was prepared, but accelerate expects the whole model to "
        "be compiled",
        remedy="update accelerate (1.15 accepts such a model), or compile after accelerator.prepare",
    ),
    "unsloth_modules": Signature(
        r"(?P<problem>Unsloth: Please file a bug report! [^\n]+)",
        r"RuntimeError: (?P<problem>(?:Unsloth: Failed to create dynamic compiled modules|"
        r"Direct module loading failed for Unsloth)[^\n]*)",
        cause="unsloth could not load the code that it generates for this version of the libraries: {problem}",
        remedy="run: pip install --upgrade --no-deps unsloth unsloth_zoo, and delete unsloth_compiled_cache in the "
        "working folder; with UNSLOTH_COMPILE_DISABLE=1 it compiles nothing",
    ),
    "empty_hypothesis": Signature(
        r"ValueError: Hypothesis is empty",
        cause="ROUGE got an empty text: the model generated nothing for a sample, or tokenizing left no words",
        remedy="skip samples whose prediction is empty before the metric is computed; raise max_new_tokens, and check "
        "the prompt's end and what is decoded",
    ),
    "image_tokens": Signature(
        r"Attempted to assign .* multimodal tokens to \d+ placeholders",
        r"Number of images provided \(\d+\) does not match|number of (?:images|videos|audios) does not match the "
        r"number of",
        r"Image features and image tokens do not match|Videos? features and video tokens do not match",
        cause="a sample has more or fewer image tokens than its images need: it was truncated in the middle of an "
        "image, or processor and model are from different versions",
        remedy="raise the maximum length (cutoff_len, max_length, sequence_len) or shrink the images "
        "(image_max_pixels); use the processor of the same model, and delete preprocessed data",
    ),
    "no_token_types": Signature(
        r"ValueError: `(?P<name>(?:mm_)?token_type_ids)` is required as a model input when training",
        cause="this model needs {name} for training, but the batches do not contain it",
        remedy="keep what its processor returns: set remove_unused_columns to false, and collate {name} too",
    ),
    "tokenizer_missing": Signature(
        r"OSError: Can't load tokenizer for '(?P<model>[^']+)'",
        cause="{model} has no tokenizer that transformers can load",
        remedy="copy tokenizer.json and tokenizer_config.json from the base model into it, or name the base model's "
        "tokenizer",
    ),
    "engine_lacks": Signature(
        r"/(?:site|dist)-packages/(?P<package>deepspeed|colossalai|accelerate|torch(?=/nn/parallel/))"
        r"/[^\"\n]+\", line \d+, in \w+\n"
        r"(?:    .*\n)*"
        r"(?:  File \"[^\"\n]*/torch/nn/modules/module\.py\".*\n(?:    .*\n)*)?"
        rf"AttributeError: '(?P<wrapper>{_WRAPPERS})' object has no attribute '(?P<name>\w+)'",
        cause="{package}'s own code accesses {name} on {wrapper}, which this version does not have",
        remedy="update {package} and the other packages in the traceback; if that does not help, leave out the "
        "option whose code the traceback shows",
    ),
    "wrapped_model": Signature(
        rf"AttributeError: '(?P<wrapper>{_WRAPPERS})' object has no attribute '(?P<name>(?!_)\w+)'",
        cause="{wrapper} wraps the model and does not have {name} itself",
        remedy="access it on the wrapped model: accelerator.unwrap_model(model).{name}, or .module.{name} "
        "(torch.compile: ._orig_mod.{name}); for the forward pass in training, call the wrapper itself",
    ),
}
