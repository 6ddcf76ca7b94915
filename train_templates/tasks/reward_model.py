"""The task: a reward model, which scores answers as people judge them. Data, model and loss; train.py is the loop.

A sample is two answers to one prompt. The loop divides the summed loss by the samples of the whole real batch, over all
micro-batches and ranks, so the gradient is that of one big batch for any split.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

# feature: lora
import adapter

# end: lora
import chat

# feature: pretrained_model
import heads

# end: pretrained_model
# feature: whole_model
import model_folder

# end: whole_model
# feature: whole_model
# feature: new_tokens
import new_tokens

# end: new_tokens
# end: whole_model
import pairs

# feature: loaded_weights
# feature: built_once
import sharding

# end: built_once
# end: loaded_weights
# feature: weighted
from mixture import mixture_of

# end: weighted
# feature: eval
from sources import is_part

# end: eval
# feature: eval
from token_cache import tell_repeated

# end: eval
from token_cache import Tokens, tokens_of

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = pairs.Batch
# feature: dtype
FP32 = {"dtype": torch.float32}
# end: dtype
# feature: torch_dtype
FP32 = {"torch_dtype": torch.float32}  # its name in transformers before 4.56
# end: torch_dtype
SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the model from transformers names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"  # sources, as sources.py reads them
    # feature: eval
    eval_data: str = "embedded"  # the same, or a part of the training data: 5%, 200
    # end: eval
    # feature: weighted
    source_weights: str = "1,1"  # each source's share of an epoch, in the order of the sources
    weigh_by: str = "tokens"  # or samples
    # end: weighted
    # feature: own_columns
    columns: str = "prompt=question,completion=answer"  # what columns with other names are read as
    # end: own_columns
    max_rows: int = 0  # rows that are read of each source; 0: all
    min_tokens: int = 0  # samples whose longest answer with its prompt is shorter are left out
    max_tokens: int = 0  # longer ones are left out, too; 0: none
    sequence_length: int = 256
    # feature: own_template
    chat_template: str = "chatml"  # or a file with a template in Jinja
    # end: own_template
    # feature: chosen_attention
    attention: str = "sdpa"  # or eager, flash_attention_2
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
    modules_to_save: str = ""  # modules that are trained in full: embed_tokens
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


def tokens(config: TaskConfig, source: str, split: str) -> Tokens:
    """Return the tokens of the data, from files that the first rank of each machine writes once."""
    # feature: weighted
    if split == "train":
        return mixture_of(config, pairs.recipe)
    # end: weighted
    return tokens_of(config.cache_dir, pairs.recipe(config, source, split))


def load_pairs(config: TaskConfig, source: str, split: str, evaluation: bool = False) -> pairs.Answers:
    """Return the preferences as samples."""
    return pairs.Answers(config, tokens(config, source, split), evaluation)


def load_train_data(config: TaskConfig) -> pairs.Answers:
    """Return the training data."""
    return load_pairs(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> pairs.Answers:
    """Return the evaluation data, or the part of the training data that is kept for it."""
    if is_part(config.eval_data):
        return load_pairs(config, config.train_data, "train", evaluation=True)
    tell_repeated(tokens(config, config.train_data, "train"), tokens(config, config.eval_data, "validation"))
    return load_pairs(config, config.eval_data, "validation")


# end: eval
def collate(samples: list[dict[str, Any]], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch, padded at the end to its longest row, and the number of pairs that count.

    Of n pairs, the first n rows are the chosen answers behind their prompts. A pair whose `counted` is false only pads
    the last batch of an epoch and counts zero.
    """
    rows = [sample["rows"][side] for side in (0, 1) for sample in samples]
    inputs = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        inputs[i, : len(row)] = torch.from_numpy(np.where(row < 0, ~row, row))  # prompts are stored as complements
    ends = torch.tensor([len(row) - 1 for row in rows])
    return {"inputs": inputs, "ends": ends, "counted": torch.tensor(counted, dtype=torch.float32)}, sum(counted)


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the pretrained model with a new head, in fp32. The engine moves, casts and shards it."""
    # feature: built_by_all
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    # end: built_by_all
    # feature: built_once
    load = sharding.Loader(transformers.AutoModelForSequenceClassification).from_pretrained
    # end: built_once
    model = load(
        config.model_name,
        **FP32,
        **heads.loading(config.model_name, {"num_labels": 1}),
        # feature: chosen_attention
        attn_implementation=config.attention,
        # end: chosen_attention
    )
    heads.fit(model, config.model_name, {"num_labels": 1})
    # feature: new_tokens
    new_tokens.fit(model, config)
    # end: new_tokens
    return scored(model, config)


# end: pretrained_model
# feature: lora
def build_model(config: TaskConfig) -> nn.Module:
    """Return the frozen pretrained model with an adapter and a new head to train. The engine moves and shards it."""
    model = adapter.build(
        # feature: built_by_all
        transformers.AutoModelForSequenceClassification,
        # end: built_by_all
        # feature: built_once
        sharding.Loader(transformers.AutoModelForSequenceClassification),
        # end: built_once
        config,
        num_labels=1,
        # feature: chosen_attention
        attn_implementation=config.attention,
        # end: chosen_attention
    )
    return scored(model, config)


# end: lora
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name, num_labels=1)
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    return scored(from_shape(config, shape), config)


# end: config_model
# feature: preset_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return a model of the configured shape with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.for_model(
        config.model_type,
        num_labels=1,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    dropouts = {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"}
    shape.update(dict.fromkeys(dropouts & vars(shape).keys(), 0.0))
    return scored(from_shape(config, shape), config)


# end: preset_model
# feature: random_weights
def from_shape(config: TaskConfig, shape: Any) -> Any:
    """Return a model with random weights in fp32."""
    # feature: chosen_attention
    shape._attn_implementation = config.attention
    # end: chosen_attention
    return transformers.AutoModelForSequenceClassification.from_config(shape, **FP32)


# end: random_weights
def scored(model: Any, config: TaskConfig) -> nn.Module:
    """Make `model(inputs, ends)` return the score at the last token of each row, whatever token that is.

    transformers finds the end of a row by its padding, so the token that pads must not be one that ends an answer.
    """
    if not hasattr(model, "score"):
        raise SystemExit(f"{type(model).__name__} cannot be a reward model: it does not read text in one direction")
    model.config.pad_token_id = pairs.padding_of(chat.Chat(config).tokenizer) or 0
    pairs.expect_one_document()

    def forward(self: Any, inputs: Tensor, ends: Tensor) -> Tensor:
        hidden = self.base_model(input_ids=inputs, use_cache=False)[0]
        return self.score(hidden[torch.arange(len(ends), device=ends.device), ends])[:, 0]

    model.forward = types.MethodType(forward, model)
    return model


def losses_and_rewards(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of each pair, and the rewards of its answers (https://arxiv.org/abs/2203.02155, equation 1)."""
    rewards = model(batch["inputs"], batch["ends"]).float().view(2, -1).T
    return -nn.functional.logsigmoid(rewards[:, 0] - rewards[:, 1]), rewards


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss **summed** over the pairs that count, a scalar in fp32. The loop divides it."""
    return (losses_and_rewards(model, batch)[0] * batch["counted"]).sum()


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: loss, pairs, those whose chosen answer has the higher reward, and both rewards."""
    return pairs.comparison_sums(*losses_and_rewards(model, batch), batch["counted"])


evaluation_metrics = pairs.comparison_metrics  # of the whole evaluation set, from the sums over it


# end: eval
# feature: whole_model
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `from_pretrained` loads."""
    model_folder.save(model, weights, folder, config.output_dtype, pairs.padded_by(chat.Chat(config).tokenizer))


# end: whole_model
# feature: lora
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter and the head for `adapter.load(folder)`, which also loads the base model."""
    adapter.save(model, weights, folder, config.output_dtype, pairs.padded_by(chat.Chat(config).tokenizer))


# end: lora
# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 3) -> str:
    """Return how the trained model scores the answers of some pairs. It is loaded from where it was saved."""
    # feature: whole_model
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **FP32).eval()
    # end: whole_model
    # feature: lora
    padding = pairs.padding_of(chat.Chat(config).tokenizer) or 0
    model = adapter.load(folder, num_labels=1, pad_token_id=padding).eval()
    # end: lora
    lines, data = [], load_train_data(config)
    for place in range(0, len(data), max(1, len(data) // count)):
        rows = [np.where(row < 0, ~row, row) for row in data[place]["rows"]]
        chosen, rejected = (float(model(torch.from_numpy(row)[None]).logits) for row in rows)
        lines.append(f"pair {place + 1}: the chosen answer is worth {chosen:.3g}, the rejected one {rejected:.3g}")
    return "\n".join(lines[:count])


# end: final_weights
