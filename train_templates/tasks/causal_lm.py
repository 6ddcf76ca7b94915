"""The task: next-token prediction on text. Data, model and loss; the loop is in train.py.

The loop divides the summed loss by the tokens of the whole real batch, over all micro-batches and ranks, so the
gradient is that of one big batch, however it is split.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

transformers.utils.logging.disable_progress_bar()  # the loop has one

Batch = dict[str, Tensor]
IGNORED = -100  # a label that counts nothing: cross_entropy's own default

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

    def encode(self, text: str) -> list[int]:
        """The document's token ids, ended by the end-of-text token."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

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

    def encode(self, text: str) -> list[int]:
        """The document's bytes, ended by `END`."""
        return [*text.encode(), self.END]

    def decode(self, ids: list[int]) -> str:
        """The text of some ids; bytes that are no UTF-8 show as �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
def documents(source: str, split: str) -> Iterator[str]:
    """The texts of a data set: embedded, a .txt or .jsonl file, a folder of them, or a hub id."""
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

        yield from load_dataset(source, split=split)["text"]


def file_documents(file: Path) -> Iterator[str]:
    """A .txt file is one document; a .jsonl file has one per line, under "text"."""
    if file.suffix != ".jsonl":
        yield file.read_text(encoding="utf-8")
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise SystemExit(f'{file}:{number}: not a JSON object with a "text": {error!r}') from None


def embedded_documents(split: str) -> Iterator[str]:
    """Python's language reference, which every Python carries: every tenth topic is kept for evaluation."""
    from pydoc_data.topics import topics

    for i, name in enumerate(sorted(topics)):
        if (i % 10 == 9) == (split == "validation"):
            yield topics[name]


class TextDataset(Dataset[Tensor]):
    """Documents one after another, cut into windows: each token is predicted exactly once per epoch."""

    def __init__(self, config: TaskConfig, source: str, split: str) -> None:
        tokens = Tokens(config)
        ids = [i for text in documents(source, split) for i in tokens.encode(text)]
        if len(ids) < 2:
            raise SystemExit(f"{source}: no text to train on")
        self.ids = torch.tensor(ids, dtype=torch.int32)
        self.length = config.sequence_length

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // self.length)

    def __getitem__(self, index: int) -> Tensor:
        # One token more than the window: inputs and labels are the same tokens, one apart.
        return self.ids[index * self.length : (index + 1) * self.length + 1].long()


def load_train_data(config: TaskConfig) -> Dataset[Any]:
    """The data to train on."""
    return TextDataset(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> Dataset[Any]:
    """The data to evaluate on."""
    return TextDataset(config, config.eval_data, "validation")


# end: eval
def collate(samples: list[Tensor], counted: list[bool]) -> tuple[Batch, int]:
    """Windows (samples, length) and the number of tokens that count.

    Where `counted` is false, the sample only fills up the last batch of an epoch and counts zero.
    """
    longest = max(len(sample) for sample in samples) - 1
    inputs = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full((len(samples), longest), IGNORED)
    for row, (sample, counts) in enumerate(zip(samples, counted, strict=True)):
        inputs[row, : len(sample) - 1] = sample[:-1]
        if counts:
            labels[row, : len(sample) - 1] = sample[1:]
    return {"inputs": inputs, "labels": labels}, int((labels != IGNORED).sum())


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """The pretrained model in fp32; the engine moves, casts and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(config.model_name, dtype=torch.float32, use_cache=False)
    return chunk_the_loss(model, config.loss_chunk)


# end: pretrained_model
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """The named model's architecture with random weights in fp32; the engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    return chunk_the_loss(model, config.loss_chunk)


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
        eos_token_id=None,  # windows cross documents: generation has no natural end
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    return chunk_the_loss(model, config.loss_chunk)


# end: preset_model
def chunk_the_loss(model: Any, size: int) -> nn.Module:
    """Let `model(inputs, labels)` return the summed loss, holding the logits of at most `size` tokens at once.

    The logits of a whole micro-batch are often its largest tensor: tokens × vocabulary. They are computed in parts,
    dropped, and computed again for the gradient. It happens inside of the model's forward, where engines look.
    """
    if any(getattr(model.config, name, None) not in (None, 1.0) for name in LOGIT_SETTINGS):
        size = 0  # this model does more to its logits than its head does: left to itself

    def part(hidden: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy_sum(model.get_output_embeddings()(hidden), labels)

    def forward(self: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        if size == 0:
            return cross_entropy_sum(whole(input_ids=inputs).logits.flatten(0, 1), labels.flatten())
        hidden, labels = self.base_model(input_ids=inputs)[0].flatten(0, 1), labels.flatten()
        if len(labels) <= size:
            return part(hidden, labels)
        parts = zip(hidden.split(size), labels.split(size), strict=True)
        return sum(checkpoint(part, *some, use_reentrant=False, preserve_rng_state=False) for some in parts)

    whole, model.forward = model.forward, types.MethodType(forward, model)
    return model


LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings by which some models (Gemma 2, Cohere, Granite) change their logits after the head."""


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over the labels that count, in fp32 or better."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy **summed** over the tokens that count; the loop divides. A scalar in fp32."""
    return model(batch["inputs"], batch["labels"])


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """What the loop adds up over all evaluation batches and ranks: the loss and its count."""
    return torch.stack((loss_sum(model, batch), (batch["labels"] != IGNORED).sum()))


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """The metrics of the whole evaluation set, from the sums over it."""
    loss, count = sums
    return {"eval_loss": loss / count}


# end: eval
# feature: final_weights
def save_model(model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """The final weights, gathered from all ranks, for `AutoModelForCausalLM.from_pretrained(folder)`."""
    model.save_pretrained(folder, state_dict=weights)


def sample(config: TaskConfig, folder: Path, prompt: str = "The ", length: int = 200) -> str:
    """A text that the trained model writes, loaded from where `save_model` put it."""
    tokens = Tokens(config)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([tokens.encode(prompt)[:-1]])
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=True, temperature=0.8, top_k=40
    )
    return tokens.decode(written[0].tolist())


# end: final_weights
