"""The loss and its gradient are those of the model itself, for families that change something around head or attention.

Each model of random weights computes the loss of each document alone, by its own forward. The same documents in packed
rows, or padded, must give the same.
"""

from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from test_tasks import load
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, masking_utils

from trainwiz.engines.transformers import mixes, predicts_nothing

pytestmark = pytest.mark.filterwarnings("default")

WORDS = 40
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {
    **GROUPED,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
LATENT = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
"""Attention whose keys and values have different widths."""
NAMED = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
TRAINED: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, "tie_word_embeddings": True, "rope_parameters": YARN},
    "afmoe": {**EXPERTS, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},  # names its mask
    "bert": {**SHAPE, "is_decoder": True},  # its head is two layers
    "cohere": {**GROUPED, "logit_scale": 0.3},
    "deepseek_v3": LATENT,
    "electra": {**SHAPE, "embedding_size": 32, "is_decoder": True},  # a layer before its head
    "falcon": {**SHAPE, "new_decoder_architecture": True, "num_kv_heads": 2},
    "glm4": GROUPED,
    "gpt_neo": {**SHAPE, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_oss": {**EXPERTS, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "gptj": {**SHAPE, "rotary_dim": 4},
    "granite": {**GROUPED, "logits_scaling": 8.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "jetmoe": {**EXPERTS, "kv_channels": 8},  # it wants contiguous results of its attention
    "minicpm3": {**LATENT, "scale_emb": 3.0, "dim_model_base": 16},
    "modernbert-decoder": {**SHAPE, "local_attention": 4, **NAMED},  # a layer before its head
    "nemotron": GROUPED,  # it passes nothing on to its attention
    "olmo2": GROUPED,
    "phi3": {**GROUPED, "sliding_window": 4},
    "phimoe": {**EXPERTS, "sliding_window": 4},  # only its mask has the window
    "qwen2_moe": {**EXPERTS, "output_router_logits": True},
    "smollm3": {**GROUPED, "no_rope_layers": [1, 0]},
    "stablelm": GROUPED,
    "starcoder2": {**GROUPED, "sliding_window": 4},
}
APART: dict[str, dict[str, Any]] = {
    "bloom": SHAPE,
    "doge": {**GROUPED, "keep_window_size": 4},  # it chooses what to attend to by the values of the whole row
    "lfm2": {**GROUPED, "layer_types": ["conv", "full_attention"]},
    "llama4_text": {**EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 8},  # its body is not named
    "mamba": {**SHAPE, "state_size": 4},
    "moshi": {**GROUPED, "ffn_dim": 48, "sliding_window": 4},  # it does not use its window
    "mpt": {**SHAPE, "n_layers": 2, "n_heads": 4, "d_model": 32, "logit_scale": 0.3},
    "recurrent_gemma": {**GROUPED, "lru_width": 32, "logits_soft_cap": 2.0, "attention_window_size": 8},
    "xlm-roberta": {**SHAPE, "is_decoder": True, "pad_token_id": 1},  # its positions begin at 2
}
"""Families whose documents cannot share a row."""
ENDS = (0, 7, 16, 20)
"""Of the documents in each row."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, ModuleType]:
    """rows.py for packed documents, and for padded ones."""
    before = masking_utils.find_packed_sequence_indices
    found = {
        packed: load(tmp_path_factory.mktemp("project") / str(packed), "causal_lm", "rows", data__packing=packed)
        for packed in (True, False)
    }
    yield found
    masking_utils.find_packed_sequence_indices = before


def built(kind: str, shape: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**dict.fromkeys(NAMED), **shape})
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    return model


def documents() -> tuple[Tensor, Tensor, Tensor]:
    """Two rows of three documents: inputs, labels and positions."""
    inputs = torch.randint(3, WORDS, (2, 20), generator=torch.Generator().manual_seed(1))
    labels = inputs.roll(-1, 1)
    labels[:, [end - 1 for end in ENDS[1:]]] = -100
    return inputs, labels, torch.cat([torch.arange(b - a) for a, b in pairwise(ENDS)]).expand(2, -1)


def gradients(model: Any, loss: Tensor) -> Tensor:
    model.zero_grad(set_to_none=False)
    loss.backward()
    return torch.cat(
        [(each.new_zeros(each.shape) if each.grad is None else each.grad).flatten() for each in model.parameters()]
    )


def alone(model: Any) -> tuple[float, Tensor]:
    """The summed loss of each document by itself, and its gradient."""
    inputs, labels, _ = documents()
    logits = torch.cat([model(input_ids=inputs[:, a:b], use_cache=False).logits for a, b in pairwise(ENDS)], dim=1)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return float(loss.detach()), gradients(model, loss).clone()


def assert_same(model: Any, loss: Tensor, expected: tuple[float, Tensor]) -> None:
    assert float(loss.detach()) == pytest.approx(expected[0], rel=1e-5)
    assert float((gradients(model, loss) - expected[1]).norm()) <= 1e-5 * float(expected[1].norm())


# docs/decisions/tasks.md: The loss of each family is compared with its own
@pytest.mark.parametrize("kind", TRAINED)
def test_packed_documents_have_the_loss_and_gradient_of_each_alone(
    kind: str, generated: dict[bool, ModuleType]
) -> None:
    inputs, labels, positions = documents()
    expected = alone(model := built(kind, TRAINED[kind]))
    assert (mixes(said := model.config.to_dict()), predicts_nothing(said)) == ("", False)
    for longest in (20, 5000):  # with a mask, and without
        model = generated[True].with_loss(built(kind, TRAINED[kind]), 8, longest)
        assert_same(model, model(inputs=inputs, labels=labels, positions=positions), expected)


@pytest.mark.parametrize("kind", APART)
def test_families_that_would_mix_documents_are_trained_apart(kind: str, generated: dict[bool, ModuleType]) -> None:
    inputs, labels, _ = documents()
    expected = alone(model := built(kind, APART[kind]))
    assert mixes(model.config.to_dict())
    with pytest.raises(SystemExit, match="cannot keep packed documents apart"):
        generated[True].with_loss(built(kind, APART[kind]), 8)
    rows = torch.zeros(6, 9, dtype=torch.long), torch.full((6, 9), -100)  # one document each, padded
    for i, (row, (a, b)) in enumerate((row, ends) for row in range(2) for ends in pairwise(ENDS)):
        rows[0][i, : b - a], rows[1][i, : b - a] = inputs[row, a:b], labels[row, a:b]
    model = generated[False].with_loss(built(kind, APART[kind]), 8)
    assert_same(model, model(inputs=rows[0], labels=rows[1]), expected)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bert", "BertLMHeadModel sees the tokens that it would learn to predict: choose"),
        ("cpmant", "CpmAntForCausalLM sees the tokens that it would learn to predict: choose"),
        ("bart", "BartForCausalLM leaves out the encoder of its model: choose"),
    ],
)
def test_encoders_are_refused(kind: str, reason: str, packed: bool, generated: dict[bool, ModuleType]) -> None:
    model = built(kind, SHAPE)
    assert predicts_nothing(model.config.to_dict())
    with pytest.raises(SystemExit, match=reason):
        generated[packed].with_loss(model, 8)


def test_a_loss_of_routers_is_not_left_out_in_silence(
    generated: dict[bool, ModuleType], capfd: pytest.CaptureFixture[str]
) -> None:
    generated[True].with_loss(built("qwen2_moe", TRAINED["qwen2_moe"]), 8)
    assert "the routers' auxiliary loss is left out" in capfd.readouterr().out
