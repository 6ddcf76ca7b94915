"""Loading a model or its tokenizer with transformers."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "offloaded_model": Signature(
        r"You can't move a model that has some modules offloaded",
        r"had weights offloaded to the disk\. Please provide an `offload_folder`",
        r"Some modules are dispatched on the CPU or the disk",
        r"can't train a model that has been loaded with `?device_map.*offloaded",
        cause="the model does not fit the GPUs, so device_map put parts of it on the CPU or the disk, where they "
        "cannot be "
        "trained",
        remedy="free the GPUs (nvidia-smi), load it in 4-bit with an adapter, or shard it with FSDP or ZeRO 3 "
        "instead of device_map='auto'",
    ),
    "no_model_type": Signature(
        r"Unrecognized model in (?P<folder>\S+)\. Should have a `model_type` key",
        cause="the config.json in {folder} has no model_type, so transformers cannot tell which model it is",
        remedy="give the folder of the model itself, not that of an adapter or of part of a checkpoint; if it is "
        "correct, download config.json again, or update transformers",
    ),
    "no_such_attention": Signature(
        r"\b(?P<model>\w+) does not support (?:an attention implementation through "
        r"torch\.nn\.functional\.scaled_dot_product_attention|Flash ?Attention[ \d.]*|SDPA|flex attention)[^\n]* yet",
        cause="{model} cannot use this attention in the installed transformers",
        remedy="load it with attn_implementation='eager', or with a newer transformers",
    ),
    "few_samples": Signature(
        r"AssertionError: last epoch number of samples exceeded max value",
        cause="Megatron counts more samples in the last epoch than its data holds: there are too few documents for "
        "this "
        "sequence length, or the cached index was built with other settings",
        remedy="delete the cached index (the .npy files next to the data, or data-cache-path), and let all ranks see "
        "the "
        "same one; if it comes again, give more data or a larger share in --split, or shorter sequences",
    ),
    "padding_side": Signature(
        r"(?:batched generation with|to have) `?padding_side ?= ?['\"]right['\"]`? this may lead to unexpected "
        r"behaviou?r",
        cause="this model uses FlashAttention with a cache, which requires texts padded on the left",
        remedy="set tokenizer.padding_side = 'left', and use_cache=False during training",
    ),
    "tokenizer_code": Signature(
        r"AttributeError: '(?P<type>\w*Tokenizer(?:Fast)?)' object has no attribute '(?P<name>(?!unsloth_)\w+)'",
        r"AttributeError: (?P<type>\w*Tokenizer(?:Fast)?) has no attribute (?P<name>\w+)",
        cause="{type} has no {name}: the tokenizer's code, which often comes with the model, does not match the "
        "version of transformers",
        remedy="install the transformers version that the model's page or its config.json (transformers_version) "
        "names, or download the newest files of the model; code that uses old names of the tokenizer must "
        "be updated",
    ),
    "config_attribute": Signature(
        r"AttributeError: '(?P<type>(?!OmegaConf|Dict)\w+(?:Config|Arguments))' object has no attribute "
        r"'(?P<name>\w+)'",
        cause="{type} has no {name}: the code that accesses it, transformers and the model's config.json are from "
        "different versions",
        remedy="update transformers, accelerate, peft, trl and the tool together, or install what the tool "
        "requires; a vision-language model keeps the text model's values in config.text_config",
    ),
    "trainer_override": Signature(
        r"TypeError: (?:\w+\.)?(?P<method>training_step|compute_loss|prediction_step|evaluate|log|create_optimizer\w*|"
        r"_save_checkpoint|_maybe_log_save_evaluate|_get_train_sampler|_inner_training_loop|get_batch_samples|"
        r"floating_point_ops|_save|_load_rng_state)\(\) (?:takes |missing |got )[^\n]+",
        cause="transformers calls {method} with other arguments than the overriding method accepts: a subclass of "
        "Trainer was written for another version",
        remedy="let the method accept the arguments of the installed Trainer, or **kwargs; or install the "
        "transformers version that the project requires",
    ),
    "text_expected": Signature(
        r"TextEncodeInput must be Union|TextInputSequence must be str|text input must be of type `?str",
        cause="the tokenizer got something other than text: an empty value, a number, or a nested list",
        remedy="look for rows without text: dataset.filter(lambda row: isinstance(row['text'], str)); check that "
        "the column name matches the data",
    ),
    "number_too_large": Signature(
        r"OverflowError: (?P<problem>int too big to convert|Python int too large to convert to C \w+|out of range "
        r"integral "
        r"type conversion attempted|can't convert negative int to unsigned)",
        cause="a number is out of range for native code ({problem}): usually a tokenizer's model_max_length without "
        "a limit, or an id of -100 that is decoded",
        remedy="set a maximum length (batch.sequence_length), or set tokenizer.model_max_length; before decoding, "
        "replace -100 with tokenizer.pad_token_id",
    ),
}
