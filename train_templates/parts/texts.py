"""Texts with labels: how they are read, converted to token ids, and padded, and the encoder that reads them.

The loop groups texts of similar length within a real batch, because each micro-batch is padded to its longest text.
"""

from __future__ import annotations

import contextlib
import itertools
import os

# feature: hashes
import re
import zlib

# end: hashes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

# feature: lora
import adapter

# end: lora
# feature: pretrained_model
import heads

# end: pretrained_model
# feature: tokenizer
import model_folder

# feature: new_tokens
import new_tokens

# end: new_tokens
# end: tokenizer
# feature: loaded_weights
# feature: built_once
import sharding

# end: built_once
# end: loaded_weights
# feature: names
from labels import as_classes

# end: names
# feature: scored
from labels import as_numbers

# end: scored
from labels import label_of

# feature: weighted
from source_weights import places

# end: weighted
from sources import Row, Sources, columns, hash_of, held_out, kind, text_of

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

OTHERS = {"1": "2", "2": "1", "a": "b", "b": "a"}
"""Endings of the names of columns that hold two texts of a pair."""
Batch = dict[str, Tensor]
Sample = tuple[Tensor, Any, int]  # token ids, the label, and the id for padding
# feature: dtype
FP32 = {"dtype": torch.float32}
# end: dtype
# feature: torch_dtype
FP32 = {"torch_dtype": torch.float32}  # its name in transformers before 4.56
# end: torch_dtype


class Labeled(NamedTuple):
    """A text of a dataset."""

    text: str
    label: Any
    source: str = ""


# feature: tokenizer
class Tokens:
    """Converts text to token ids, with the model's tokenizer."""

    def __init__(self, config: Any) -> None:
        self.tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
        # feature: new_tokens
        new_tokens.add(self.tokenizer, config)
        # end: new_tokens
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

    def __init__(self, config: Any) -> None:
        self.length, self.buckets = config.sequence_length, config.vocab_size - 2

    def encode(self, text: str) -> list[int]:
        """Return `WHOLE` and a number for each word; equal words have equal numbers."""
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        return [self.WHOLE, *(2 + zlib.crc32(word.encode()) % self.buckets for word in words)][: self.length]


# end: hashes
class Texts(Dataset[Sample]):
    """Labeled texts as token ids. The loop groups them by `sizes`, their lengths, within a real batch."""

    def __init__(
        self,
        config: Any,
        texts: Sequence[str],
        labels: Sequence[Any],
        classes: Sequence[str] | None = None,
        # feature: weighted
        sources: Sequence[str] | None = None,
        # end: weighted
    ) -> None:
        tokens = Tokens(config)
        self.ids = [torch.tensor(tokens.encode(text), dtype=torch.int32) for text in texts]
        self.labels, self.pad = labels, tokens.pad
        self.classes = classes  # their names by number, which a resume compares
        # feature: weighted
        if sources is not None:  # each text as often as the weight of its source asks for
            chosen = places(config, sources, [len(ids) for ids in self.ids], [text.encode() for text in texts])
            self.ids, self.labels = [self.ids[i] for i in chosen], [labels[i] for i in chosen]
        # end: weighted
        self.sizes = torch.tensor([len(ids) for ids in self.ids])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        return self.ids[index], self.labels[index], self.pad


def padded(samples: Sequence[Sample]) -> Batch:
    """Return the token ids of one micro-batch, padded to its longest text, and which of them are not padding."""
    shape = len(samples), max(len(ids) for ids, _, _ in samples)
    inputs, mask = torch.full(shape, samples[0][2]), torch.zeros(shape, dtype=torch.long)
    for row, (ids, _, _) in enumerate(samples):
        inputs[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    return {"inputs": inputs, "mask": mask}


def reading(config: Any) -> tuple[str, str, int]:
    """Return what decides how data is read: the columns of texts and labels, and how many rows."""
    return config.text_column, config.label_column, config.max_rows


def read(source: str, split: str, text_column: str, label_column: str, max_rows: int) -> list[Labeled]:
    """Return the texts of some sources with their labels."""
    data = Sources(source, split, max_rows)
    found = [
        Labeled(one_text(row, text_column), label_of(row, label_column), name)
        for name in data.found
        for row in Sources(name, split, max_rows)
    ]
    if not found:
        raise SystemExit(f"{source}: no text to train on")
    if (empty := sum(not one.text.strip() for one in found)) and os.environ.get("RANK", "0") == "0":
        print(f"{source}: {empty} of {len(found)} texts are empty, and learned with their labels", flush=True)
    if {kind(file) for file in data.all_files()} <= {".csv", ".tsv"} and all(data.found.values()):
        labels = [one.label for one in found]
        # feature: names
        labels = as_classes(labels)
        # end: names
        # feature: scored
        labels = as_numbers(labels)
        # end: scored
        found = [one._replace(label=label) for one, label in zip(found, labels, strict=True)]
    return found


def one_text(row: Row, column: str) -> str:
    """Return the text of a row. Exit if it is one of two that belong together: `sentence1` and `sentence2`."""
    stem, last = column[:-1], column[-1:]
    other = {"premise": "hypothesis", "hypothesis": "premise"}.get(column, stem + OTHERS.get(last, last))
    if stem and other != column and other in columns(row):
        raise SystemExit(
            f"{row[0]}: {column} and {other} are two texts that belong together, and only {column} would be read: "
            "write both into one column"
        )
    return text_of(row, column)


def part_of(samples: list[Labeled], part: str, *, evaluation: bool) -> list[Labeled]:
    """Return the samples that are kept for evaluation (`5%`, `200`), or the rest. Equal texts stay together."""
    chosen = held_out(np.array([hash_of(one.text.encode()) for one in samples], dtype=np.uint64), part)
    return list(itertools.compress(samples, (chosen == evaluation).tolist()))


# feature: eval
def tell_repeated(config: Any, trained: list[Labeled], evaluated: list[Labeled]) -> None:
    """Say how many texts for evaluation are trained on, too."""
    known = {one.text for one in trained}
    count = sum(one.text in known for one in evaluated)
    if count and os.environ.get("RANK", "0") == "0":
        told = f"{count:,} of {len(evaluated):,} texts for evaluation are also in the training data"
        print(f"{config.eval_data}: {told}: {config.train_data}", flush=True)


# end: eval
def embedded_paragraphs(split: str) -> Iterator[Labeled]:
    """Yield paragraphs of five chapters of Python's reference with the chapter. Every fifth is for evaluation."""
    from pydoc_data.topics import topics

    for chapter in ("compound", "debugger", "specialnames", "string-methods", "types"):
        paragraphs = (" ".join(paragraph.split()) for paragraph in topics[chapter].split("\n\n"))
        for i, paragraph in enumerate(text for text in paragraphs if len(text) >= 40):
            if (i % 5 == 4) == (split == "validation"):
                yield Labeled(paragraph, chapter)


# feature: names
def named(names: Sequence[str]) -> dict[str, Any]:
    """Return what a model's configuration says about its classes."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


# end: names
# feature: pretrained_model
def build_encoder(config: Any, **head: Any) -> nn.Module:
    """Return the pretrained model with its head, in fp32. The engine moves, casts and shards it."""
    # feature: built_by_all
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    # end: built_by_all
    # feature: built_once
    load = sharding.Loader(transformers.AutoModelForSequenceClassification).from_pretrained
    # end: built_once
    # feature: chosen_attention
    head["attn_implementation"] = config.attention
    # end: chosen_attention
    model = load(config.model_name, **FP32, **heads.loading(config.model_name, head))
    heads.fit(model, config.model_name, head)
    # feature: new_tokens
    new_tokens.fit(model, config)
    # end: new_tokens
    model.config.pad_token_id = Tokens(config).pad
    return mask_on_the_device(model)


# end: pretrained_model
# feature: lora
def build_encoder(config: Any, **head: Any) -> nn.Module:
    """Return the frozen pretrained model with an adapter and a new head to train. The engine moves and shards it."""
    # feature: chosen_attention
    head["attn_implementation"] = config.attention
    # end: chosen_attention
    model = adapter.build(
        # feature: built_by_all
        transformers.AutoModelForSequenceClassification,
        # end: built_by_all
        # feature: built_once
        sharding.Loader(transformers.AutoModelForSequenceClassification),
        # end: built_once
        config,
        **head,
    )
    model.config.pad_token_id = Tokens(config).pad
    return mask_on_the_device(model)


# end: lora
# feature: config_model
def build_encoder(config: Any, **head: Any) -> nn.Module:
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name, pad_token_id=Tokens(config).pad, **head)
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    return mask_on_the_device(from_shape(config, shape))


# end: config_model
# feature: preset_model
def build_encoder(config: Any, **head: Any) -> nn.Module:
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
        **head,
    )
    # feature: new_tokens
    new_tokens.grow(shape, config)
    # end: new_tokens
    return mask_on_the_device(from_shape(config, shape))


# end: preset_model
# feature: random_weights
def from_shape(config: Any, shape: Any) -> Any:
    """Return a model with random weights in fp32."""
    # feature: chosen_attention
    shape._attn_implementation = config.attention
    # end: chosen_attention
    return transformers.AutoModelForSequenceClassification.from_config(shape, **FP32)


# end: random_weights
ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert")
"""Models in which every token attends to all others, and that accept a mask of token pairs."""


def mask_on_the_device(model: Any) -> nn.Module:
    """Make `model(inputs, mask)` return logits without waiting for the device in each micro-batch.

    transformers reads a mask of tokens from the device, to see whether it masks anything. It uses a mask of pairs as it
    is. Causal models need no mask, because padding comes last. Other models get the mask of tokens, and wait.
    """
    seen = {part.is_causal for part in model.modules() if hasattr(part, "is_causal")}
    with contextlib.suppress(ImportError):  # without a mask, it looks for packed texts, and waits
        from transformers import masking_utils

        masking_utils.find_packed_sequence_indices = lambda _positions: None
    in_pairs = model.config.model_type in ENCODERS and model.config._attn_implementation == "sdpa"

    def forward(inputs: Tensor, mask: Tensor) -> Tensor:
        if seen == {True}:
            return whole(input_ids=inputs).logits
        pairs = mask[:, None, None].bool().expand(-1, 1, mask.shape[1], -1)
        return whole(input_ids=inputs, attention_mask=pairs if in_pairs else mask).logits

    whole, model.forward = model.forward, forward
    return model
