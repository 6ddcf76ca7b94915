"""Each family's formula against the model that transformers builds from the same config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainwiz import models
from trainwiz.models.families import FAMILIES

REMOTE = {"baichuan", "chatglm", "internlm", "internlm2"}
"""Their code lies beside the weights on the hub, not in transformers; test_known.py has their published numbers."""
ENCODERS = {"bert", "roberta", "xlm-roberta", "distilbert"}
SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "vocab_size": 101,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LARGER = {"intermediate_size": 80, "num_key_value_heads": 2, "tie_word_embeddings": True}
OTHERWISE: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**LARGER, "attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("llama", {"intermediate_size": 80, "tie_word_embeddings": False}),
    ("mistral", {**LARGER, "head_dim": 16, "sliding_window": 7}),
    ("mixtral", {**LARGER, "num_local_experts": 5, "num_experts_per_tok": 3}),
    ("qwen2", {**LARGER, "use_sliding_window": True, "max_window_layers": 2, "sliding_window": 9}),
    ("qwen2_moe", {**LARGER, "num_experts": 6, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}),
    ("qwen2_moe", {**LARGER, "num_experts": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1], "qkv_bias": False}),
    ("qwen3", {**LARGER, "attention_bias": True, "head_dim": 16}),
    ("qwen3_moe", {**LARGER, "num_local_experts": 6, "moe_intermediate_size": 24, "mlp_only_layers": [0, 3]}),
    ("gemma", {**LARGER, "head_dim": 16, "attention_bias": True}),
    ("gemma2", {**LARGER, "head_dim": 16, "sliding_window": 7}),
    ("gemma3_text", {**LARGER, "head_dim": 16, "tie_word_embeddings": False}),
    ("phi", {"intermediate_size": 80}),
    ("phi3", {"intermediate_size": 80, "num_key_value_heads": 3}),
    ("gpt2", {"n_inner": 70, "n_positions": 33, "tie_word_embeddings": False}),
    ("gpt_bigcode", {"multi_query": False, "n_positions": 33}),
    ("gpt_neox", {"intermediate_size": 80, "attention_bias": False}),
    ("gptj", {"n_positions": 33, "rotary_dim": 4}),
    ("opt", {"ffn_dim": 80, "max_position_embeddings": 33, "word_embed_proj_dim": 48}),
    ("bloom", {}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("falcon", {"parallel_attn": False, "multi_query": False}),
    ("starcoder2", {"intermediate_size": 80, "num_key_value_heads": 2, "use_bias": False}),
    ("stablelm", {**LARGER, "use_qkv_bias": True, "use_parallel_residual": True, "qk_layernorm": True}),
    ("glm", {**LARGER, "attention_bias": True, "head_dim": 16}),
    ("glm4", {**LARGER, "attention_bias": False, "head_dim": 16}),
    ("olmo", LARGER),
    ("olmo2", LARGER),
    ("olmoe", {**LARGER, "num_experts": 6}),
    ("cohere", {**LARGER, "use_qk_norm": True}),
    ("granite", {**LARGER, "attention_bias": True, "mlp_bias": True}),
    ("gpt_oss", {**LARGER, "num_local_experts": 6, "head_dim": 16, "attention_bias": False}),
    (
        "deepseek_v2",
        {
            "num_key_value_heads": 6,
            "num_experts_per_tok": 6,
            "q_lora_rank": None,
            "n_shared_experts": 3,
            "first_k_dense_replace": 2,
        },
    ),
    ("deepseek_v3", {"num_key_value_heads": 6, "n_routed_experts": 16, "first_k_dense_replace": 1}),
    ("smollm3", {**LARGER, "tie_word_embeddings": False}),
    ("bert", {"intermediate_size": 80, "type_vocab_size": 3, "max_position_embeddings": 33}),
    ("distilbert", {"hidden_dim": 80}),
]
"""Sizes and switches that are not the family's own."""


def built(model_type: str, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The config.json and the number of parameters of the model that transformers builds; no memory is taken."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

    config = CONFIG_MAPPING[model_type](**values)
    kind = AutoModel if model_type in ENCODERS else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    return json.loads(config.to_json_string(use_diff=False)), sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() - REMOTE))
def test_a_familys_own_sizes(model_type: str) -> None:
    # The config class of DeepSeek V2 leaves open how many experts see a token; its models do not.
    config, parameters = built(model_type, {"num_experts_per_tok": 6} if model_type == "deepseek_v2" else {})
    found = models.of_config(config)
    assert found is not None
    assert (found.parameters, found.exact) == (parameters, True)
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    assert found.num_hidden_layers == next(config[name] for name in names if name in config)


@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() - REMOTE - ENCODERS))
def test_a_family_has_the_attention_that_transformers_gives_it(model_type: str) -> None:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    model = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[model_type]]
    kernels = "any" if model._supports_sdpa else "blocks" if model._supports_flex_attn else "none"
    assert FAMILIES[model_type].kernels == kernels


@pytest.mark.parametrize(("model_type", "values"), OTHERWISE)
def test_other_sizes_and_switches(model_type: str, values: dict[str, Any]) -> None:
    config, parameters = built(model_type, SMALL | values)
    found = models.of_config(config)
    assert found is not None
    assert found.parameters == parameters


def test_a_token_sees_only_some_of_the_experts() -> None:
    config = {"model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
    config |= {"vocab_size": 10, "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 1}
    found = models.of_config(config)
    assert found is not None
    expert = 3 * 8 * 16
    assert found.blocks[0].count == 2
    assert found.blocks[0].mlp_weights - found.blocks[0].active_mlp_weights == 3 * expert
    assert found.blocks[0].active_mlp_weights == expert + 4 * 8  # and the router


EXPERTS = sorted(name for name, row in FAMILIES.items() if row.experts)


@pytest.mark.parametrize("model_type", EXPERTS)
def test_linear_layers_are_what_bitsandbytes_finds(model_type: str) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    values = SMALL | {"num_experts_per_tok": 2} | dict(next((more for name, more in OTHERWISE if name == model_type)))
    config = CONFIG_MAPPING[model_type](**values)
    found = models.of_config(json.loads(config.to_json_string(use_diff=False)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = [layer for name, layer in model.named_modules() if type(layer) is torch.nn.Linear and name != "lm_head"]
    assert found is not None
    assert found.linear_weights == sum(layer.weight.numel() for layer in layers)
    assert found.joined_weights > 0


@pytest.mark.filterwarnings("ignore:The following .* keys did not match any targeted module")  # peft: of parameters
@pytest.mark.parametrize("model_type", EXPERTS)
def test_adapters_of_experts_are_those_that_peft_makes(model_type: str) -> None:
    import torch
    from peft import LoraConfig
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    values = SMALL | {"num_experts_per_tok": 2} | dict(next((more for name, more in OTHERWISE if name == model_type)))
    config = CONFIG_MAPPING[model_type](**values)
    found = models.of_config(json.loads(config.to_json_string(use_diff=False)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        model.add_adapter(LoraConfig(r=3, target_modules="all-linear"))
    parts = (".mlp.experts.", ".mlp.gate.", ".mlp.router.")
    made = [
        w.numel() for name, w in model.named_parameters() if "lora_" in name and any(part in name for part in parts)
    ]
    assert found is not None
    assert 3 * found.joined_features == sum(made)


def test_windows_of_gemma_3_leave_out_every_sixth_layer() -> None:
    found = models.of_config({"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 512})
    assert found is not None
    assert [(block.count, block.window) for block in found.blocks] == [(10, 512), (2, None)]


def test_layers_that_a_configuration_names_one_by_one_have_their_own_windows() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    found = models.of_config({"model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 8, "layer_types": kinds})
    assert found is not None
    assert [(block.count, block.window) for block in found.blocks] == [(2, 8), (1, None)]


def test_a_part_of_a_larger_model_takes_its_familys_defaults() -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    found = models.of_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    assert found is not None
    assert found.parameters == 3_880_263_168  # the language model of google/gemma-3-4b-pt
    assert not found.exact  # what sees the pictures is not counted


SOUND = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 9,
}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama", "hidden_size": "4096"},
        {"model_type": "resnet", "hidden_sizes": [1, 2]},
        {
            "model_type": "qwen3_moe",
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "vocab_size": 2,
        },
        {"hidden_size": 0, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 2},
        {"hidden_size": True, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 2},
    ],
)
def test_without_sizes_there_is_no_answer(config: dict[str, Any]) -> None:
    assert (found := models.of_config(config)) is None or found.model_type == "llama", found


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "lie",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 10**300},
        {"hidden_size": 10**9},
        {"model_type": "mixtral", "num_local_experts": 10**300},
    ],
)
def test_sizes_that_no_model_has_are_none(lie: dict[str, Any]) -> None:
    assert models.of_config(SOUND)
    assert models.of_config({**SOUND, **lie}) is None


def test_an_unknown_family_counts_as_llamas() -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
    found = models.of_config({"model_type": "brand_new", "intermediate_size": 11008, **sizes})
    assert found is not None
    assert (found.parameters, found.exact) == (6_738_415_616, False)


MOE = {"num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96, "num_key_value_heads": 8}
LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        pytest.param(
            MOE
            | {"head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408, "vocab_size": 151552}
            | {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1},
            106.9,
            id="GLM-4.5-Air without the layer that predicts further tokens",
        ),
        pytest.param(
            LATENT
            | {"num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64, "intermediate_size": 18432}
            | {"moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1, "vocab_size": 163840}
            | {"num_experts_per_tok": 8, "first_k_dense_replace": 1},
            1026.4,
            id="Kimi-K2",
        ),
        pytest.param(
            {"num_hidden_layers": 62, "hidden_size": 3072, "num_attention_heads": 48, "num_key_value_heads": 8}
            | {"head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8}
            | {"vocab_size": 200064},
            228.7,
            id="MiniMax-M2",
        ),
    ],
)
def test_experts_of_a_family_that_nobody_counted(config: dict[str, Any], billions: float) -> None:
    """Each card says how many: 106B, 1T, 230B."""
    found = models.of_config(config | {"model_type": "unheard-of"})
    assert found
    assert not found.exact
    assert found.parameters == pytest.approx(billions * 1e9, rel=1e-3)


def test_an_encoder_with_a_decoder_is_not_read_as_one_of_them() -> None:
    assert models.of_config(MOE | {"vocab_size": 32128, "intermediate_size": 2048, "is_encoder_decoder": True}) is None
