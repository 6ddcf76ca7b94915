"""transformers: the defaults of its Trainer, and which model types can be split in which way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainwiz.engines.names import names

TRAINER_DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "warmup_steps": 0,
    "lr_scheduler_type": "linear",
    "seed": 42,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
}
"""What TrainingArguments (5.23) takes for arguments that are left out; a test compares."""
MASKS_SINCE = {
    "cohere2": (4, 53),
    "gemma2": (4, 53),
    "gemma3_text": (4, 53),
    "gpt2": (4, 52),
    "gpt_bigcode": (4, 54),
    "xglm": (5, 0),
}
"""The version with which models of a type take a mask for each pair of tokens, as packed documents need it.

Seen with 4.51.3, 4.52.4, 4.53.3, 4.54.1 and 5.23 on 34 types: earlier ones stop, or let documents see each other.
"""


MIXING = names(
    """
    axk2 bailing_hybrid bamba bloom camembert cpmant data2vec-text deepseek_v32 deepseek_v4 doge dots3_note
    dots3_note_text falcon_h1 falcon_mamba glm_moe_dsa granitemoehybrid hy_v4 inkling2_text inkling_text jamba
    kimi_linear lfm2 lfm2_moe lfm3 llama4 llama4_text mamba mamba2 minimax moshi mpt nemotron_h olmo_hybrid
    openai-gpt qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma
    roberta roberta-prelayernorm roformer rwkv trocr whisper xlm-roberta xlm-roberta-xl xlnet xlstm xmod zamba zamba2
    zaya
    """
)
"""Model types that pass more between tokens than a mask can stop (5.23), such as states or convolutions."""
MASKED_LAYERS = ("full_attention", "sliding_attention")
"""The kinds of layers in a config.json that documents of one row can share."""
ENCODERS = names(
    """
    bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert reformer rembert roberta
    roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xmod
    """
)
"""Model types that see the tokens they would predict, unless their config.json has `is_decoder` (5.23)."""
CUT_DECODERS = names(
    """
    bart bigbird_pegasus blenderbot blenderbot-small marian mbart moss_transcribe_diarize mvp pegasus plbart prophetnet
    """
)
"""Model types whose causal model is a decoder without the encoder that it needs (5.23)."""


def mixes(config: Mapping[str, Any]) -> str:
    """What documents in one row would share in a model with this config.json; empty if they stay apart."""
    text = text_part(config)
    kind, kinds = str(text.get("model_type") or ""), text.get("layer_types")
    others = sorted({str(one) for one in kinds} - {*MASKED_LAYERS}) if isinstance(kinds, list) else []
    return ", ".join([kind, *others]) if kind in MIXING or others else ""


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says about the language model, also in a model that reads pictures."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def predicts_nothing(config: Mapping[str, Any]) -> bool:
    """Whether a model with this config.json cannot learn to write text: it is an encoder, or lacks one."""
    kind = str(config.get("model_type") or "")
    sees_all = kind == "cpmant" or (kind in ENCODERS and config.get("is_decoder") is not True)
    return sees_all or kind in CUT_DECODERS


def takes_masks(model_type: str, version: str) -> bool:
    """Whether models of this type take a mask for each pair of tokens in this version of transformers."""
    found = re.match(r"(\d+)\.(\d+)", version)
    since = MASKS_SINCE.get(model_type)
    return since is None or found is None or (int(found[1]), int(found[2])) >= since


OPTIMIZERS = {
    **dict.fromkeys(
        (
            "adamw_torch",
            "adamw_torch_fused",
            "adamw_torch_xla",
            "adamw_torch_npu_fused",
            "adamw_apex_fused",
            "adamw_hf",
        ),
        "AdamW",
    ),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit"), "adamw_8bit"),
    "paged_adamw_8bit": "paged_adamw_8bit",
    "sgd": "SGD",
}
"""The words of a Trainer's `optim` (5.23) for the optimizers that a plan has: torch's class, or the plan's name."""
ONE_KIND_OF_HEADS = names(
    """
    albert bert biogpt bloom codegen ctrl deberta-v2 distilbert electra gpt2 gpt_neo gpt_neox gptj mpt opt roberta
    xglm xlm-roberta
    """
)
"""Model types whose configuration class has no num_key_value_heads, not even a default one (5.23)."""
CUT_BY_HEADS = names(
    """
    cohere cohere2 ernie4_5 gemma gemma2 gemma3_text glm glm4 gpt_neox granite helium internlm3 llama ministral mistral
    mixtral nemotron olmo phi qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 starcoder2
    """
)
"""Model types in which each rank keeps its rows of queries, keys and values; others gather them first."""
WITHOUT_PLAN = names(
    """
    biogpt bloom codegen ctrl falcon gpt2 gpt_bigcode gpt_neo gptj mpt opt persimmon stablelm xglm
    """
)
"""Model types that transformers (5.23) cannot cut for tensor parallelism."""
LOADED_AS_SAVED = names(
    """
    cohere gemma gemma2 gemma3_text glm glm4 gpt2 granite llama mistral olmo olmo2 olmo3 phi phi3 qwen2 qwen3 smollm3
    stablelm starcoder2
    """
)
"""Model types whose weights transformers (5.23) neither renames nor splits nor merges as it loads them.

And whose models are published as safetensors files: OPT, GPT-J and others are not, so rank 0 loads them.
"""
