"""The task: next-token prediction on text. This file holds data, model and loss; the loop is in train.py.

The loop divides the summed loss by the tokens of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch for any split.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

import model_folder
import rows

# feature: pretrained_model
# feature: built_once
import sharding

# end: built_once
# end: pretrained_model
transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = rows.Batch
TABLES = (".csv", ".tsv", ".parquet")

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


# feature: tokenizer
class Tokens:
    """Converts text to token ids and back, with the model's tokenizer."""

    def __init__(self, config: TaskConfig) -> None:
        self.tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
        if self.tokenizer.eos_token_id is None:
            raise SystemExit(f"the tokenizer of {config.tokenizer_name} has no end-of-text token")
        # Some tokenizers (Llama, Gemma) put a token before each text, in pretraining and at inference.
        self.begin = [i for i in self.tokenizer("")["input_ids"] if i == self.tokenizer.bos_token_id][:1]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each document, with the tokenizer's first token and the end-of-text token."""
        end = [self.tokenizer.eos_token_id]
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [self.begin + ids + end for ids in encoded if ids]

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


# end: tokenizer
# feature: bytes
class Tokens:
    """Text as UTF-8 bytes; 256 ends a document. No vocabulary to download."""

    END = 256

    def __init__(self, config: TaskConfig) -> None:
        assert config.vocab_size > self.END
        self.tokenizer = model_folder.byte_tokenizer(self.END)  # does the same, for other programs

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the bytes of each document, followed by `END`."""
        return [[*text.encode(), self.END] for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. Bytes that are not valid UTF-8 become �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
def documents(source: str, split: str) -> Iterator[str]:
    """Yield the texts of a data set: embedded, a .txt, .jsonl or .json file, a folder of the first two, or a hub id."""
    if source == "embedded":
        yield from embedded_documents(split)
    elif Path(source).is_dir():
        for file in sorted(Path(source).rglob("*")):
            if file.suffix in (".txt", ".jsonl"):
                yield from file_documents(file)
    elif Path(source).is_file():
        yield from file_documents(Path(source))
    else:
        from datasets import load_dataset

        yield from map(text_of, load_dataset(source, split=split))


def file_documents(file: Path) -> Iterator[str]:
    """Yield the "text" of each line of a .jsonl file or item of a .json list; any other file is one document."""
    if file.suffix in TABLES:
        raise SystemExit(f'{file}: a table is no text; make it a .jsonl file, with a "text" per line')
    if file.suffix in (".jsonl", ".json"):
        yield from rows.read_json(file, text_of, 'a "text"')
    else:
        yield file.read_text(encoding="utf-8")


def text_of(row: dict[str, Any]) -> str:
    """Return a row's text. Raises `TypeError` if it is not text."""
    if not isinstance(row["text"], str):
        raise TypeError(f"{row['text']!r} is no text")
    return row["text"]


def embedded_documents(split: str) -> Iterator[str]:
    """Yield the language reference that comes with Python. Every tenth topic is for evaluation."""
    from pydoc_data.topics import topics

    for i, name in enumerate(sorted(topics)):
        if (i % 10 == 9) == (split == "validation"):
            yield topics[name]


def load_rows(config: TaskConfig, source: str, split: str) -> rows.Rows:
    """Return the data as rows of tokens, from a file that the first rank of each machine writes once."""
    settings = {field.name: getattr(config, field.name) for field in fields(TaskConfig)}
    folder = rows.rows_folder(config.cache_dir, source, split, settings, Path(__file__).read_bytes())
    return rows.Rows(source, folder, config.sequence_length, encoded(config, source, split))


def encoded(config: TaskConfig, source: str, split: str) -> Iterator[list[int]]:
    """Yield the documents as token ids. They are encoded in batches, for which a tokenizer uses all cores."""
    tokens, texts = Tokens(config), documents(source, split)
    while some := list(itertools.islice(texts, 1000)):
        yield from tokens.encode(some)


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
        eos_token_id=None,
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
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `pipeline` and `from_pretrained` load."""
    model_folder.save(model, weights, folder, config.output_dtype, Tokens(config).tokenizer)


# feature: final_weights
def sample(config: TaskConfig, folder: Path, prompt: str = "The ", length: int = 200) -> str:
    """Return a text that the trained model generates. The model is loaded from where `save_model` saved it."""
    tokens = Tokens(config)
    return prompt + tokens.decode(rows.write_on(folder, tokens.encode([prompt])[0][:-1], length))


# end: final_weights
