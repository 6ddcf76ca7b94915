"""The task: text classification. This file holds data, model and loss; the loop is in train.py.

The loop divides the summed loss by the texts of the whole real batch, over all micro-batches and ranks, so the gradient
is that of one big batch for any split. Within a real batch it groups texts of similar length, because each micro-batch
is padded to its longest text.
"""

from __future__ import annotations

import functools
import json

# feature: hashes
import re
import zlib

# end: hashes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

import model_folder

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = dict[str, Tensor]
Sample = tuple[Tensor, int, int]  # token ids, the class, and the id for padding
IGNORED = -100  # a label that does not count; the default of cross_entropy
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

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    text_column: str = "text"
    label_column: str = "label"
    sequence_length: int = 256  # longer texts are truncated
    output_dtype: str = "source"  # of the saved model: as it was loaded, or float32, bfloat16, float16
    # feature: named_model
    model_name: str = "google-bert/bert-base-uncased"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "google-bert/bert-base-uncased"
    # end: tokenizer
    # feature: preset_model
    model_type: str = "bert"
    vocab_size: int = 4096
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 256
    max_position_embeddings: int = 1024
    # end: preset_model


# feature: tokenizer
class Tokens:
    """Converts text to token ids, with the model's tokenizer."""

    def __init__(self, config: TaskConfig) -> None:
        self.tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
        self.length = config.sequence_length
        # Models that generate text often have no padding token. Then the end-of-text token pads; no text contains it.
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        self.pad = next((i for i in known if i is not None), 0)
        self.tokenizer.pad_token_id = self.pad  # the saved one pads as this training did

    def encode(self, text: str) -> list[int]:
        """Return the text's token ids, with the special tokens that the model expects around it."""
        return self.tokenizer.encode(text, truncation=True, max_length=self.length)


# end: tokenizer
# feature: hashes
class Tokens:
    """Words and punctuation by their hash, after a 1 that stands for the whole text. No vocabulary to download."""

    WHOLE = 1
    pad = 0
    tokenizer = None  # transformers has none that does this

    def __init__(self, config: TaskConfig) -> None:
        self.length, self.buckets = config.sequence_length, config.vocab_size - 2

    def encode(self, text: str) -> list[int]:
        """Return `WHOLE` and a number for each word; equal words have equal numbers."""
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        return [self.WHOLE, *(2 + zlib.crc32(word.encode()) % self.buckets for word in words)][: self.length]


# end: hashes
@functools.cache
def labelled(source: str, split: str, text_column: str, label_column: str) -> list[tuple[str, str]]:
    """Return the texts of a data set with their labels: embedded, a .jsonl file, or a hub id."""
    if source == "embedded":
        found = list(embedded_paragraphs(split))
    elif Path(source).is_file():
        found = list(rows(Path(source), text_column, label_column))
    else:
        from datasets import load_dataset

        table = load_dataset(source, split=split)
        found = list(zip(table[text_column], table[label_column], strict=True))
    if not found:
        raise SystemExit(f"{source}: no text to train on")
    for number, (text, label) in enumerate(found, start=1):
        if not isinstance(text, str) or label is None:
            raise SystemExit(f"{source}: sample {number}: the text is {text!r}, its label {label!r}")
    return [(text, str(label)) for text, label in found]


def rows(file: Path, text_column: str, label_column: str) -> Iterator[tuple[Any, Any]]:
    """Yield the text and the label of each line of a .jsonl file."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                if line.strip():
                    row = json.loads(line)
                    yield row[text_column], row[label_column]
            except (ValueError, KeyError, TypeError) as error:
                columns = f'"{text_column}" and "{label_column}"'
                raise SystemExit(f"{file}:{number}: not a JSON object with {columns}: {error!r}") from None


def embedded_paragraphs(split: str) -> Iterator[tuple[str, str]]:
    """Yield paragraphs of five chapters of Python's reference, labelled by chapter. Every fifth is for evaluation."""
    from pydoc_data.topics import topics

    for chapter in ("compound", "debugger", "specialnames", "string-methods", "types"):
        paragraphs = (" ".join(paragraph.split()) for paragraph in topics[chapter].split("\n\n"))
        for i, paragraph in enumerate(text for text in paragraphs if len(text) >= 40):
            if (i % 5 == 4) == (split == "validation"):
                yield paragraph, chapter


def class_names(config: TaskConfig) -> list[str]:
    """Return the sorted labels of the training data. A label's index is its class."""
    texts = labelled(config.train_data, "train", config.text_column, config.label_column)
    return sorted({label for _, label in texts})


class Texts(Dataset[Sample]):
    """Labelled texts as token ids. The loop groups them by `sizes`, their lengths, within a real batch."""

    def __init__(self, config: TaskConfig, source: str, split: str) -> None:
        tokens, numbers = Tokens(config), {name: i for i, name in enumerate(class_names(config))}
        texts = labelled(source, split, config.text_column, config.label_column)
        if strange := sorted({label for _, label in texts} - set(numbers)):
            raise SystemExit(f"{source}: labels that {config.train_data} does not have: {', '.join(strange[:5])}")
        self.ids = [torch.tensor(tokens.encode(text), dtype=torch.int32) for text, _ in texts]
        self.labels, self.pad = [numbers[label] for _, label in texts], tokens.pad
        self.sizes = torch.tensor([len(ids) for ids in self.ids])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        return self.ids[index], self.labels[index], self.pad


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """Return the training data."""
    return Texts(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """Return the evaluation data."""
    return Texts(config, config.eval_data, "validation")


# end: eval
def collate(samples: list[Sample], counted: list[bool]) -> tuple[Batch, int]:
    """Return one micro-batch, padded to its longest text, and the number of texts that count.

    A sample whose `counted` is false only pads the last batch of an epoch and counts zero.
    """
    shape = len(samples), max(len(ids) for ids, _, _ in samples)
    inputs, mask = torch.full(shape, samples[0][2]), torch.zeros(shape, dtype=torch.long)
    for row, (ids, _, _) in enumerate(samples):
        inputs[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    labels = [label if counts else IGNORED for (_, label, _), counts in zip(samples, counted, strict=True)]
    return {"inputs": inputs, "mask": mask, "labels": torch.tensor(labels)}, sum(counted)


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the pretrained model with a new head, in fp32. The engine moves, casts and shards it."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        config.model_name, **FP32, id2label=dict(enumerate(class_names(config)))
    )
    model.config.pad_token_id = Tokens(config).pad
    return mask_on_the_device(model)


# end: pretrained_model
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    names = dict(enumerate(class_names(config)))
    shape = transformers.AutoConfig.from_pretrained(config.model_name, id2label=names, pad_token_id=Tokens(config).pad)
    return mask_on_the_device(transformers.AutoModelForSequenceClassification.from_config(shape, **FP32))


# end: config_model
# feature: preset_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return an encoder of the configured shape with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.for_model(
        config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(class_names(config))),
    )
    return mask_on_the_device(transformers.AutoModelForSequenceClassification.from_config(shape, **FP32))


# end: preset_model
ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert")
"""Models in which every token attends to all others, and that accept a mask of token pairs."""


def mask_on_the_device(model: Any) -> nn.Module:
    """Make `model(inputs, mask)` return logits without waiting for the device in each micro-batch.

    transformers reads a mask of tokens from the device, to see whether it masks anything. It uses a mask of pairs as it
    is. Causal models need no mask, because padding comes last. Other models get the mask of tokens, and wait.
    """
    seen = {part.is_causal for part in model.modules() if hasattr(part, "is_causal")}
    in_pairs = model.config.model_type in ENCODERS and model.config._attn_implementation == "sdpa"

    def forward(inputs: Tensor, mask: Tensor) -> Tensor:
        if seen == {True}:
            return whole(input_ids=inputs).logits
        pairs = mask[:, None, None].bool().expand(-1, 1, mask.shape[1], -1)
        return whole(input_ids=inputs, attention_mask=pairs if in_pairs else mask).logits

    whole, model.forward = model.forward, forward
    return model


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits (samples, classes) in fp32."""
    return model(batch["inputs"], batch["mask"]).float()


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy **summed** over the texts that count, a scalar in fp32. The loop divides it."""
    return cross_entropy_sum(logits_of(model, batch), batch["labels"])


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over the labels that count."""
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return sums over a batch: the loss, and per class the numbers of actual, guessed and right samples."""
    logits, labels = logits_of(model, batch), batch["labels"]
    counted = labels != IGNORED
    actual = nn.functional.one_hot(labels.clamp(min=0), logits.shape[1]) * counted[:, None]
    guessed = nn.functional.one_hot(logits.argmax(1), logits.shape[1]) * counted[:, None]
    numbers = torch.cat([actual.sum(0), guessed.sum(0), (actual * guessed).sum(0)])
    return torch.cat([cross_entropy_sum(logits, labels)[None], numbers])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return loss, accuracy, and macro F1 (the mean over classes that occur or are guessed) from the sums."""
    loss, *numbers = sums
    n = len(numbers) // 3
    actual, guessed, right = numbers[:n], numbers[n : 2 * n], numbers[2 * n :]
    f1 = [2 * r / (a + g) for a, g, r in zip(actual, guessed, right, strict=True) if a + g]
    total = sum(actual)
    return {"eval_loss": loss / total, "eval_accuracy": sum(right) / total, "eval_f1": sum(f1) / len(f1)}


# end: eval
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `pipeline` and `from_pretrained` load."""
    model_folder.save(model, weights, folder, config.output_dtype, Tokens(config).tokenizer)


# feature: final_weights
@torch.no_grad()
def sample(config: TaskConfig, folder: Path, count: int = 5) -> str:
    """Return how the trained model classifies some texts. It is loaded from where `save_model` saved it."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **FP32).eval()
    tokens, texts = Tokens(config), labelled(config.train_data, "train", config.text_column, config.label_column)
    lines = []
    for text, label in texts[:: max(1, len(texts) // count)][:count]:
        seen = model(input_ids=torch.tensor([tokens.encode(text)])).logits.argmax()
        lines.append(f"{label}, seen as {model.config.id2label[int(seen)]}: {text[:80]}")
    return "\n".join(lines)


# end: final_weights
