"""What distinguishes the families of transformers: one row each.

Source of every row: the family's modeling file in transformers 5.23. tests/models/test_families.py builds each model
and counts its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from trainwiz.models import mlps
from trainwiz.models.mlps import DenseLayer, Experts
from trainwiz.models.sizes import Config

Kernels = Literal["any", "blocks", "none"]
"""Attention without the scores of all pairs of tokens in memory: any kernel, flex_attention's blocks alone, or none."""
Flag = Callable[[Config], bool]
"""Whether a model has something, by its config.json."""


def says(key: str, default: bool = False) -> Flag:
    """What config.json sets a key to; `default` where it leaves it out."""
    return lambda config: default if config.get(key) is None else bool(config[key])


def always(config: Config) -> bool:  # noqa: ARG001 - a flag that no key decides
    """True."""
    return True


def never(config: Config) -> bool:  # noqa: ARG001
    """False."""
    return False


_says_tied = says("tie_word_embeddings")


@dataclass(frozen=True, kw_only=True)
class Family:
    """The models of one `model_type`: at first, Llama's."""

    gated: Flag = always
    """The MLP has a gate."""
    qkv_bias: Flag = never
    """Queries, keys and values have biases."""
    output_bias: Flag = never
    """The attention's output has a bias."""
    mlp_bias: Flag = never
    """The MLP has biases."""
    norms: Callable[[Config], int] = lambda config: 2  # noqa: ARG005
    """How many norms of the hidden size a layer has."""
    norm_numbers: int = 1
    """Numbers of a norm per feature: 1 for a weight, 2 for a bias beside it, 0 for neither."""
    final_norms: int = 1
    """Norms before the first layer and behind the last one."""
    query_key_norm: Literal["", "head", "heads", "width"] = ""
    """Norms over queries and keys: one per layer for a head's features, one for each head, or one over all heads."""
    has_query_key_norm: Flag = always
    """Whether it has those."""
    sinks: bool = False
    """Each head has a number that attention may go to."""
    latent: bool = False
    """Keys and values go through a latent vector."""
    tied: Flag = _says_tied
    """The output layer shares the weights of the embedding."""
    head: Literal["plain", "bias", "none"] = "plain"
    """The output layer; an encoder has none."""
    positions: Callable[[int], int] | None = None
    """Rows of a learned table of positions, from the number of positions; None without one."""
    segments: Callable[[Config], int] = lambda config: 0  # noqa: ARG005
    """Rows of a table of segments."""
    pooler: bool = False
    """A matrix with a bias stands behind the last layer."""
    experts: Experts | None = None
    """Experts in place of one MLP."""
    dense_layer: DenseLayer = lambda config, layer: False  # noqa: ARG005
    """Layers that have one MLP all the same."""
    window: Callable[[Config, int], bool] = lambda config, layer: True  # noqa: ARG005
    """Whether `sliding_window`, where config.json sets one, limits this layer."""
    kernels: Kernels = "any"
    """The attention of transformers that it can use."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What config.json may leave out, as a part of a larger model's config.json usually does."""


def _parallel(key: str, default: bool) -> Callable[[Config], int]:
    """One norm where attention and MLP read the same input, else two."""
    return lambda config: 1 if says(key, default)(config) else 2


def _in_turn(config: Config, layer: int) -> bool:  # noqa: ARG001
    """Every second layer has a window, the first one too."""
    return layer % 2 == 0


def _five_of_six(config: Config, layer: int) -> bool:
    return (layer + 1) % int(config.get("sliding_window_pattern") or 6) != 0


def _used(config: Config, layer: int) -> bool:
    """Qwen's: off unless it is switched on, and then behind the first `max_window_layers`."""
    return config.get("use_sliding_window") is True and layer >= int(config.get("max_window_layers") or 0)


_LLAMA = Family(
    qkv_bias=says("attention_bias"),
    output_bias=says("attention_bias"),
    mlp_bias=says("mlp_bias"),
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
)
_MISTRAL = Family(
    defaults={
        **_LLAMA.defaults,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
    }
)
_QWEN2 = Family(
    qkv_bias=always,
    window=_used,
    defaults={
        **_LLAMA.defaults,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
    },
)
_QWEN3 = replace(
    _QWEN2,
    qkv_bias=says("attention_bias"),
    output_bias=says("attention_bias"),
    query_key_norm="head",
    defaults={**_QWEN2.defaults, "head_dim": 128},
)
_GEMMA = replace(_LLAMA, mlp_bias=never, tied=says("tie_word_embeddings", True), defaults={"head_dim": 256})
_GEMMA2 = replace(
    _GEMMA,
    norms=lambda config: 4,  # noqa: ARG005
    window=_in_turn,
    kernels="blocks",
    defaults={**_GEMMA.defaults, "final_logit_softcapping": 30.0},
)
_GEMMA3 = replace(
    _GEMMA2,
    query_key_norm="head",
    kernels="any",
    window=_five_of_six,
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
)
_OLMO2 = replace(_LLAMA, mlp_bias=never, query_key_norm="width")
_GPT2 = Family(
    gated=never,
    qkv_bias=always,
    output_bias=always,
    mlp_bias=always,
    norm_numbers=2,
    tied=says("tie_word_embeddings", True),
    positions=lambda positions: positions,
)
_BERT = replace(
    _GPT2,
    head="none",
    segments=lambda config: int(config.get("type_vocab_size", 2)),
    pooler=True,
)
_DEEPSEEK = Family(
    qkv_bias=never,
    latent=True,
    experts=Experts(shared=True),
    dense_layer=mlps.first,
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "baichuan": _LLAMA,
        "bert": _BERT,
        "bloom": replace(_GPT2, positions=None, final_norms=2, kernels="none"),
        "chatglm": Family(qkv_bias=says("add_qkv_bias")),
        "cohere": replace(
            _LLAMA,
            mlp_bias=never,
            norms=lambda config: 1,  # noqa: ARG005
            query_key_norm="heads",
            has_query_key_norm=says("use_qk_norm"),
            tied=says("tie_word_embeddings", True),
        ),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "distilbert": replace(_BERT, segments=lambda config: 0, pooler=False),  # noqa: ARG005
        "falcon": replace(
            _GPT2,
            qkv_bias=says("bias"),
            output_bias=says("bias"),
            mlp_bias=says("bias"),
            norms=lambda config: (
                2 if says("new_decoder_architecture")(config) else _parallel("parallel_attn", True)(config)
            ),
            positions=None,
        ),
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3_text": _GEMMA3,
        "glm": Family(qkv_bias=says("attention_bias")),
        "glm4": Family(qkv_bias=says("attention_bias"), norms=lambda config: 4),  # noqa: ARG005
        "gpt2": _GPT2,
        "gpt_bigcode": _GPT2,
        "gpt_neo": replace(_GPT2, qkv_bias=never, kernels="none"),
        "gpt_neox": replace(
            _GPT2,
            qkv_bias=says("attention_bias", True),
            output_bias=says("attention_bias", True),
            tied=says("tie_word_embeddings"),
            positions=None,
        ),
        "gpt_oss": Family(
            qkv_bias=says("attention_bias", True),
            output_bias=says("attention_bias", True),
            sinks=True,
            experts=Experts(bias=True, adapted=False),
            window=_in_turn,
            kernels="blocks",
        ),
        "gptj": replace(
            _GPT2,
            qkv_bias=never,
            output_bias=never,
            norms=lambda config: 1,  # noqa: ARG005
            tied=says("tie_word_embeddings"),
            head="bias",
            positions=None,
            kernels="none",
        ),
        "granite": _LLAMA,
        "internlm": Family(qkv_bias=says("bias", True), output_bias=says("bias", True)),
        "internlm2": Family(qkv_bias=says("bias"), output_bias=says("bias")),
        "llama": _LLAMA,
        "mistral": _MISTRAL,
        "mixtral": Family(experts=Experts()),
        "mpt": Family(gated=never, tied=says("tie_word_embeddings", True), kernels="none"),
        "olmo": replace(_LLAMA, mlp_bias=never, norm_numbers=0),
        "olmo2": _OLMO2,
        "olmo3": _OLMO2,
        "olmoe": replace(_OLMO2, experts=Experts()),
        "opt": replace(_GPT2, positions=lambda positions: positions + 2),
        "phi": replace(
            _GPT2,
            norms=lambda config: 1,  # noqa: ARG005
            tied=says("tie_word_embeddings"),
            head="bias",
            positions=None,
        ),
        "phi3": Family(),
        "qwen2": _QWEN2,
        "qwen2_moe": replace(
            _QWEN2,
            qkv_bias=says("qkv_bias", True),
            experts=Experts(shared_gate=True, adapted=False),
            dense_layer=mlps.listed_or_between,
        ),
        "qwen3": _QWEN3,
        "qwen3_moe": replace(_QWEN3, experts=Experts(), dense_layer=mlps.listed_or_between, defaults={}),
        "roberta": _BERT,
        "smollm3": replace(_LLAMA, tied=says("tie_word_embeddings", True)),
        "stablelm": Family(
            qkv_bias=says("use_qkv_bias"),
            norms=_parallel("use_parallel_residual", False),
            norm_numbers=2,
            query_key_norm="heads",
            has_query_key_norm=says("qk_layernorm"),
        ),
        "starcoder2": replace(
            _GPT2,
            qkv_bias=says("use_bias", True),
            output_bias=says("use_bias", True),
            mlp_bias=says("use_bias", True),
            positions=None,
        ),
        "xlm-roberta": _BERT,
    }
)
"""By `model_type`."""
