"""The task: a chat model, trained on conversations. This file holds data, model and loss; the loop is in train.py.

Only the assistant's messages are learned. The loop divides the summed loss by the learned tokens of the whole real
batch, over all micro-batches and ranks, so the gradient is that of one big batch for any split.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

# feature: lora
import adapter

# end: lora
import chat
import conversations

# feature: whole_model
import model_folder

# end: whole_model
import rows

# feature: pretrained_model
# feature: built_once
import sharding

# end: built_once
# end: pretrained_model
from conversations import Conversation

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = rows.Batch
SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the model from transformers names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    sequence_length: int = 256
    loss_chunk: int = 1024  # tokens whose logits are in memory at once
    output_dtype: str = "source"  # of the saved model: as it was loaded, or float32, bfloat16, float16
    cache_dir: str = ".cache"  # the tokenized data; can be deleted
    # feature: named_model
    model_name: str = "openai-community/gpt2"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "openai-community/gpt2"
    # end: tokenizer
    # feature: lora
    frozen_dtype: str = "float32"  # dtype of the weights that are not trained
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"  # or module names: q_proj,v_proj
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


MODULES = (
    "builtins collections functools itertools json math operator os os.path pathlib random re shutil statistics string "
    "textwrap time"
)


def embedded_conversations(split: str) -> Iterator[Conversation]:
    """Yield questions about Python, answered by its documentation. Every tenth answer is for evaluation."""
    documented: dict[str, str] = {}  # by text, because a function may have several names
    for module in map(importlib.import_module, MODULES.split()):
        for name, thing in sorted(vars(module).items()):
            members = sorted(vars(thing).items()) if isinstance(thing, type) else ()
            for path, member in ((name, thing), *((f"{name}.{member}", value) for member, value in members)):
                text = inspect.getdoc(member) if callable(member) and not re.search(r"(^|\.)_", path) else None
                if text and len(text) >= 40:
                    documented.setdefault(text, path if module.__name__ == "builtins" else f"{module.__name__}.{path}")
    for i, (text, name) in enumerate(documented.items()):
        if (i % 10 == 9) == (split == "validation"):
            first, _, rest = text.partition("\n\n")
            said = [f"What is {name}?", first, *(["Tell me more.", rest.strip()] if rest else [])]
            roles = ["user", "assistant"] * (len(said) // 2)
            messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
            yield Conversation(messages, [role == "assistant" for role in roles], name)


def load_rows(config: TaskConfig, source: str, split: str) -> rows.Rows:
    """Return the conversations as rows of tokens, from a file that the first rank of each machine writes once."""
    settings = {field.name: getattr(config, field.name) for field in fields(TaskConfig)}
    code = b"".join(Path(str(file)).read_bytes() for file in (__file__, chat.__file__, conversations.__file__))
    folder = rows.rows_folder(config.cache_dir, source, split, settings, code)
    return rows.Rows(source, folder, config.sequence_length, samples(config, source, split))


def samples(config: TaskConfig, source: str, split: str) -> Iterator[list[int]]:
    """Yield the conversations' tokens, cut to the sequence length. Samples without an answer left are dropped."""
    talker, notes, count, cut, dropped = chat.Chat(config), conversations.Notes(), 0, 0, 0
    for talk in embedded_conversations(split) if source == "embedded" else conversations.read(source, split):
        notes.add(talk, talker.reads)
        try:
            encoded = talker.encode(talk)
        except Exception as error:  # templates may refuse a system message or two questions in a row
            raise SystemExit(
                f"{talk.place}: this conversation cannot be used with the chat template: {error}"
            ) from None
        for tokens in encoded:
            count, cut = count + 1, cut + (len(tokens) > config.sequence_length + 1)
            tokens = tokens[: config.sequence_length + 1]
            if any(token >= 0 for token in tokens[1:]):
                yield tokens
            else:
                dropped += 1
    told = f"{cut} cut to {config.sequence_length} tokens, {dropped} dropped, since nothing of an answer was left"
    print(f"{source} ({split}): samples: {count}, {told}", *notes.lines(), sep="\n", flush=True)


def load_train_data(config: TaskConfig) -> rows.Rows:
    """Return the training data."""
    return load_rows(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> rows.Rows:
    """Return the evaluation data."""
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
    load = sharding.loader(transformers.AutoModelForCausalLM)
    # end: built_once
    model = load(
        config.model_name,
        **rows.FP32,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


# end: pretrained_model
# feature: lora
def build_model(config: TaskConfig) -> nn.Module:
    """Return the frozen pretrained model with an adapter to train. The engine moves and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_name,
        dtype=config.frozen_dtype,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
        # feature: qlora
        **adapter.four_bits(),
        # end: qlora
    )
    adapter.add(model, config.lora_rank, config.lora_alpha, config.lora_targets)
    return rows.with_loss(model, config.loss_chunk)


# end: lora
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name)
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


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
        # feature: bytes
        eos_token_id=chat.Chat.END,
        # end: bytes
    )
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


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
    model_folder.save(model, weights, folder, config.output_dtype, chat.Chat(config).tokenizer)


# end: whole_model
# feature: lora
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter for `AutoModelForCausalLM.from_pretrained(folder)`, which also loads its base model."""
    adapter.save(model, weights, folder, config.output_dtype, chat.Chat(config).tokenizer)


# end: lora
# feature: final_weights
def sample(config: TaskConfig, folder: Path, question: str = "What is str.split?", length: int = 200) -> str:
    """Return an answer of the trained model, which is loaded from where `save_model` saved it."""
    talker = chat.Chat(config)
    answer = rows.write_on(folder, talker.prompt(question), length)
    return f"{question}\n{talker.decode(answer)}"


# end: final_weights
