"""The task: next-token prediction on text. Data, model and loss; the loop is in train.py.

The loop divides the summed loss by the tokens of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch, however it is split.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

import rows

transformers.utils.logging.disable_progress_bar()  # the loop has one

Batch = rows.Batch
TABLES = (".csv", ".tsv", ".parquet")

SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the transformers model names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task; `--name value` overrides one."""

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    sequence_length: int = 256
    loss_chunk: int = 1024  # tokens of a micro-batch whose logits are held at once
    cache_dir: str = ".cache"  # the data as tokens; may be deleted
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
    """Text to token ids and back, with the tokenizer of the model."""

    def __init__(self, config: TaskConfig) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(config.tokenizer_name)
        if self.tokenizer.eos_token_id is None:
            raise SystemExit(f"the tokenizer of {config.tokenizer_name} has no end-of-text token")
        # What it puts before a text, if anything (Llama, Gemma), is there at inference, and was in pretraining.
        self.begin = [i for i in self.tokenizer("")["input_ids"] if i == self.tokenizer.bos_token_id][:1]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The documents' token ids, each begun as the tokenizer does and ended by the end-of-text token."""
        end = [self.tokenizer.eos_token_id]
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [self.begin + ids + end for ids in encoded if ids]

    def decode(self, ids: list[int]) -> str:
        """The text of some token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


# end: tokenizer
# feature: bytes
class Tokens:
    """Text as its UTF-8 bytes; 256 ends a document. No vocabulary to download."""

    END = 256

    def __init__(self, config: TaskConfig) -> None:
        assert config.vocab_size > self.END

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The documents' bytes, each ended by `END`."""
        return [[*text.encode(), self.END] for text in texts]

    def decode(self, ids: list[int]) -> str:
        """The text of some ids; bytes that are no UTF-8 show as �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
def documents(source: str, split: str) -> Iterator[str]:
    """The texts of a data set: embedded, a .txt, .jsonl or .json file, a folder of the first two, or a hub id."""
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
    """A .jsonl file has a document per line, a .json file a list of them, under "text". Any other is a document."""
    if file.suffix in TABLES:
        raise SystemExit(f'{file}: a table is no text; make it a .jsonl file, with a "text" per line')
    if file.suffix in (".jsonl", ".json"):
        yield from rows.read_json(file, text_of, 'a "text"')
    else:
        yield file.read_text(encoding="utf-8")


def text_of(row: dict[str, Any]) -> str:
    """A row's text. Raises `TypeError` for what is none."""
    if not isinstance(row["text"], str):
        raise TypeError(f"{row['text']!r} is no text")
    return row["text"]


def embedded_documents(split: str) -> Iterator[str]:
    """Python's language reference, which every Python carries: every tenth topic is kept for evaluation."""
    from pydoc_data.topics import topics

    for i, name in enumerate(sorted(topics)):
        if (i % 10 == 9) == (split == "validation"):
            yield topics[name]


def load_rows(config: TaskConfig, source: str, split: str) -> rows.Rows:
    """The data as rows of tokens, from a file that the first rank of each machine writes once."""
    settings = {field.name: getattr(config, field.name) for field in fields(TaskConfig)}
    folder = rows.rows_folder(config.cache_dir, source, split, settings, Path(__file__).read_bytes())
    return rows.Rows(source, folder, config.sequence_length, encoded(config, source, split))


def encoded(config: TaskConfig, source: str, split: str) -> Iterator[list[int]]:
    """The documents as token ids, many at a time: a tokenizer uses all cores."""
    tokens, texts = Tokens(config), documents(source, split)
    while some := list(itertools.islice(texts, 1000)):
        yield from tokens.encode(some)


def load_train_data(config: TaskConfig) -> rows.Rows:
    """The data to train on."""
    return load_rows(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> rows.Rows:
    """The data to evaluate on."""
    return load_rows(config, config.eval_data, "validation")


# end: eval
collate = rows.collate  # samples to a micro-batch and its count


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """The pretrained model in fp32; the engine moves, casts and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_name,
        **rows.FP32,
        use_cache=False,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


# end: pretrained_model
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """The named model's architecture with random weights in fp32; the engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name, use_cache=False)
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
    """A model of the configured shape with random weights in fp32; the engine moves, casts and shards it."""
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
        use_cache=False,
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
    """Cross-entropy **summed** over the tokens that count; the loop divides. A scalar in fp32."""
    return model(**batch)


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """What the loop adds up over all evaluation batches and ranks: the loss and its count."""
    return rows.loss_and_count(loss_sum(model, batch), batch)


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """The metrics of the whole evaluation set, from the sums over it."""
    loss, count = sums
    return {"eval_loss": loss / count}


# end: eval
# feature: final_weights
def save_model(model: transformers.PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    """The final weights, gathered from all ranks, for `AutoModelForCausalLM.from_pretrained(folder)`."""
    model.save_pretrained(folder, state_dict=weights)


def sample(config: TaskConfig, folder: Path, prompt: str = "The ", length: int = 200) -> str:
    """A text that the trained model writes, loaded from where `save_model` put it."""
    tokens = Tokens(config)
    return prompt + tokens.decode(rows.write_on(folder, tokens.encode([prompt])[0][:-1], length))


# end: final_weights
