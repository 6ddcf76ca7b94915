"""Models of many families: trained, saved, resumed, exported and loaded again, by every way to spread the state.

Tiny models of random weights go one after another through one world of ranks (engine_children/families.py). What
differs between families are the names of weights, which are shared or joined (experts), and what wraps them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from projects import SMALL, make
from test_sft import CHATML, conversations_file, instructed
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import run

pytestmark = pytest.mark.train

CHILD = Path(__file__).parents[1] / "engine_children" / "families.py"
WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**WIDE, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    **WIDE,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
UNDROPPED = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": HEADS,
    "qwen3_moe": {**EXPERTS, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16},
    "mistral": GROUPED,
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "gemma2": HEADS,
    "gemma3_text": HEADS,
    "phi": WIDE,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, **UNDROPPED},
    "gpt_neox": WIDE,
    "glm": HEADS,
    "olmo": GROUPED,
    "olmo3": {**GROUPED, **SLIDING},
    "phi3": GROUPED,
    "glm4": HEADS,
    "glm4_moe": {**HEADS, **ROUTED},
    "smollm3": GROUPED,
    "granite": GROUPED,
    "seed_oss": {**HEADS, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "ernie4_5": HEADS,
    "hunyuan_v1_dense": HEADS,
    "minicpm3": LATENT,
    "deepseek_v3": {**LATENT, **ROUTED},
    "gpt_oss": {**EXPERTS, "head_dim": 8, "num_local_experts": 4},
    "qwen3_next": {
        **EXPERTS,
        **HYBRID,
        "head_dim": 8,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": {**HEADS, **HYBRID},
    "gemma3n_text": {
        **HEADS,
        **SLIDING,
        "intermediate_size": [48, 48],
        "vocab_size_per_layer_input": 320,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 2,
        "laurel_rank": 4,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0],
    },
}
"""By transformers' names: the sizes in their configurations."""
DIFFERENT = ("qwen3_moe", "gemma2", "gemma3_text", "qwen3_5_text", "gemma3n_text")
"""Those that real ranks train: experts joined into one weight, logits that are capped, embeddings that are scaled.

Of the last two, one names layers that it does not have, and one passes an adapter by.
"""
TUNED = {
    **SMALL,
    "task": "sft",
    "model.from_scratch": False,
    "batch.real_batch_size": 8,
    "batch.per_device_batch_size": 4,
    "batch.sequence_length": 64,
    "model.loss_chunk": 128,
    "schedule.n_steps": 2,
    "schedule.n_warmup_steps": 0,
    "evaluation.generation_metrics": "exact_match",
    "evaluation.generated_answers": 2,
    "evaluation.max_new_tokens": 2,
    "data.eval": "2",
    "checkpoint.checkpointing_steps": 1,
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each family, in bf16 as on the hub, with tied and with untied embeddings, and one tokenizer."""
    base = tmp_path_factory.mktemp("published")
    tokenizer = instructed(base / "tokenizer", CHATML)
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(tokenizer))
    found = {}
    for kind, sizes in FAMILIES.items():
        for tied in (True, False):
            torch.manual_seed(0)
            shape = transformers.AutoConfig.for_model(
                kind,
                vocab_size=vocabulary + 7,  # padded, as most are
                tie_word_embeddings=tied,
                bos_token_id=None,
                eos_token_id=256,
                pad_token_id=None,
                **sizes,
            )
            folder = found[f"{kind}-{'tied' if tied else 'untied'}"] = base / f"{kind}-{tied}"
            shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("model*", "config.json", "gen*"))
            transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(folder)
    return found


# docs/decisions/tasks.md: Whatever is not an adapter may be missing in an adapter's checkpoint
@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.parametrize("strategy", ["single", "ddp", "zero2", "zero3", "fsdp"])
def test_a_family_is_resumed_exported_and_loaded_as_it_was_trained(
    strategy: str, adapter: str, published: dict[str, Path], tmp_path: Path
) -> None:
    alone = strategy == "single"
    spread = SINGLE if alone else STRATEGIES[strategy]
    talks = conversations_file(tmp_path)
    tokens: dict[str, str] = {}
    if adapter == "none":  # all weights are trained, with two tokens more than there are rows
        talks.write_text(talks.read_text().replace(" + ", " <0> ").replace('"oo', '"<1><8>oo'))
        tokens = {"data.special_tokens": ",".join(f"<{i}>" for i in range(9))}
    values = {"model.adapter": adapter, "model.name": str(published["llama-tied"]), **tokens}
    project = make(tmp_path / "project", {**TUNED, **spread, **values, "data.train": str(talks)})
    shutil.copy(CHILD, project)
    compared = (*DIFFERENT, "llama") if tokens else DIFFERENT
    tried = compared if not alone and (strategy != "ddp" or tokens) else [*FAMILIES]
    jobs = {
        name: {
            "output": str(tmp_path / name),
            "by_hand": not alone,
            "config": {
                "model_name": str(folder),
                "tokenizer_name": str(folder),
                **({"special_tokens": "<0>,<1>"} if tokens and name == "llama-untied" else {}),
            },
        }
        for name, folder in published.items()
        if name.rpartition("-")[0] in tried
    }
    (project / "jobs.json").write_text(json.dumps(list(jobs.values())))
    environment = ON_STANDIN if strategy == "fsdp" else None
    ended = run(project, [CHILD.name, "jobs.json"], 1 if alone else 2, env=environment, seconds=240)
    assert [done.code for done in ended] == [0] * len(ended), ended[0].err[-2000:]
    found = {name: json.loads((tmp_path / name / "findings.json").read_text()) for name in jobs}
    assert len(found) == 2 * len(tried)
    assert {name: "\n".join(problems[:3]) for name, problems in found.items() if problems} == {}
