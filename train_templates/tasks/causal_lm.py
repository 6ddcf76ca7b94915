"""The task: next-token prediction on text. This file holds data, model and loss; the loop is in train.py.

The loop divides the summed loss by the tokens of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

# feature: lora
import adapter

# end: lora
import documents

# feature: whole_model
import model_folder

# end: whole_model
# feature: whole_model
# feature: new_tokens
import new_tokens

# end: new_tokens
# end: whole_model
import rows

# feature: loaded_weights
# feature: built_once
import sharding

# end: built_once
# end: loaded_weights
from documents import Tokens

# feature: weighted
from mixture import mixture_of

# end: weighted
# feature: eval
from sources import is_part

# end: eval
# feature: eval
from token_cache import tell_repeated

# end: eval
from token_cache import tokens_of

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = rows.Batch

SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the model from transformers names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"  # sources, as sources.py reads them
    # feature: eval
    eval_data: str = "embedded"  # the same, or a part of the training data: 5%, 200
    # end: eval
    text_column: str = "text"
    # feature: weighted
    source_weights: str = "1,1"  # each source's share of an epoch, in the order of the sources
    weigh_by: str = "tokens"  # or samples
    # end: weighted
    max_rows: int = 0  # rows that are read of each source; 0: all
    min_tokens: int = 0  # shorter documents are left out
    max_tokens: int = 0  # longer ones are left out, too; 0: none
    sequence_length: int = 256
    # feature: generated
    generation_metrics: str = "exact_match"  # of what the model generates: exact_match,bleu,rouge
    generated_answers: int = 200  # prompts of the evaluation data that it answers; 0: all
    max_new_tokens: int = 128  # the most tokens that it generates for each
    # end: generated
    loss_chunk: int = 1024  # tokens whose logits are in memory at once
    # feature: chosen_attention
    attention: str = "sdpa"  # or eager, flash_attention_2, flex_attention
    # end: chosen_attention
    output_dtype: str = "source"  # dtype of the saved model: as it was loaded, or float32, bfloat16, float16
    cache_dir: str = ".cache"  # the tokenized data; can be shared, and deleted
    # feature: named_model
    model_name: str = "openai-community/gpt2"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "openai-community/gpt2"
    # end: tokenizer
    # feature: new_tokens
    special_tokens: str = "<|im_start|>,eos_token=<|im_end|>"  # added to the tokenizer if it lacks them
    added_tokens: str = ""  # other tokens: <tool_call>,</tool_call>
    # end: new_tokens
    # feature: lora
    frozen_dtype: str = "float32"  # dtype of the weights that are not trained
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"  # or module names: q_proj,v_proj
    lora_dropout: float = 0.0  # of the adapter's inputs
    lora_rslora: bool = False  # scale by alpha / sqrt(rank)
    lora_dora: bool = False  # also learn the length of each row of a matrix
    modules_to_save: str = ""  # modules that are trained in full: embed_tokens,lm_head
    # end: lora
    # feature: preset_model
    model_type: str = "llama"
    vocab_size: int = 257
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    intermediate_size: int = 352
    max_position_embeddings: int = 1024
    # end: preset_model


def tokens(config: TaskConfig, source: str, split: str) -> Any:
    """Return the tokens of the data, from files that the first rank of each machine writes once."""
    # feature: weighted
    if split == "train":
        return mixture_of(config, documents.recipe)
    # end: weighted
    return tokens_of(config.cache_dir, documents.recipe(config, source, split))


def load_rows(config: TaskConfig, source: str, split: str, evaluation: bool = False) -> rows.Rows:
    """Return the data as rows of tokens."""
    selection = rows.Selection(
        length=config.sequence_length,
        # feature: eval
        part=config.eval_data if is_part(config.eval_data) else "",
        # end: eval
        evaluation=evaluation,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
    )
    return rows.rows_of(tokens(config, source, split), selection)


def load_train_data(config: TaskConfig) -> rows.Rows:
    """Return the training data."""
    return load_rows(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> rows.Rows:
    """Return the evaluation data, or the part of the training data that is kept for it."""
    if is_part(config.eval_data):
        return load_rows(config, config.train_data, "train", evaluation=True)
    tell_repeated(tokens(config, config.train_data, "train"), tokens(config, config.eval_data, "validation"))
    return load_rows(config, config.eval_data, "validation")


# end: eval
collate = rows.collate  # makes a micro-batch and its count from samples


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the pretrained model in fp32. The engine moves, casts and shards it."""
    # feature: built_by_all
    load = transformers.AutoModelForCausalLM.from_pretrained
    # end: built_by_all
    # feature: built_once
    load = sharding.Loader(transformers.AutoModelForCausalLM).from_pretrained
    # end: built_once
    model = load(
        config.model_name,
        **rows.FP32,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    # feature: new_tokens
    new_tokens.fit(model, config)
    # end: new_tokens
    return rows.with_loss(model, config.loss_chunk, config.sequence_length)


# end: pretrained_model
# feature: lora
def build_model(config: TaskConfig) -> nn.Module:
    """Return the frozen pretrained model with an adapter to train. The engine moves and shards it."""
    model = adapter.build(
        # feature: built_by_all
        transformers.AutoModelForCausalLM,
        # end: built_by_all
        # feature: built_once
        sharding.Loader(transformers.AutoModelForCausalLM),
        # end: built_once
        config,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    return rows.with_loss(model, config.loss_chunk, config.sequence_length)


# end: lora
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name)
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    return rows.with_loss(model, config.loss_chunk, config.sequence_length)


# end: config_model
# feature: preset_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return a model of the configured shape with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.for_model(
        config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    shape.update(dict.fromkeys(rows.DROPOUTS & vars(shape).keys(), 0.0))
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: attention
        attn_implementation=rows.attention_of(config),
        # end: attention
    )
    return rows.with_loss(model, config.loss_chunk, config.sequence_length)


# end: preset_model
def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy **summed** over the tokens that count, a scalar in fp32. The loop divides it."""
    return model(**batch)


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return what the loop adds up over all evaluation batches and ranks: the loss and its count."""
    return rows.loss_and_count(loss_sum(model, batch), batch)


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the metrics of the whole evaluation set, from the sums over it."""
    loss, count = sums
    return {"eval_loss": loss / count}


# end: eval
# feature: whole_model
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `pipeline` and `from_pretrained` load."""
    model_folder.save(model, weights, folder, config.output_dtype, Tokens(config).tokenizer)


# end: whole_model
# feature: lora
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter for peft's `AutoPeftModelForCausalLM.from_pretrained`, which also loads its base model."""
    adapter.save(model, weights, folder, config.output_dtype, Tokens(config).tokenizer)


# end: lora
# feature: final_weights
def sample(config: TaskConfig, folder: Path, prompt: str = "The ", length: int = 200) -> str:
    """Return a text that the trained model generates. The model is loaded from where `save_model` saved it."""
    tokens = Tokens(config)
    # feature: whole_model
    written = rows.write_on(folder, tokens.encode([prompt])[0][:-1], length)
    # end: whole_model
    # feature: lora
    written = rows.write_on(folder, tokens.encode([prompt])[0][:-1], length, config.model_name)
    # end: lora
    return rows.TOO_LARGE if written is None else prompt + tokens.decode(written)


# end: final_weights
