"""The shapes of the preset models, and how many parameters each has, by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A transformer's shape in transformers' own words.

    `hub_id` names weights of this shape, for a model that does not start from scratch; empty where none exist.
    """

    model_type: Literal["llama", "gpt2", "bert"]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    hub_id: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields as the generated config dataclass has them."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "hub_id"}

    @property
    def parameters(self) -> int:
        """The exact number of parameters; tied ones count once."""
        return {"llama": _llama, "gpt2": _gpt2, "bert": _bert}[self.model_type](self)


_CLASSES = 5
"""What an estimate takes for the number of classes: the data decides it, and it hardly matters."""

DECODERS: Mapping[str, ModelShape] = MappingProxyType(
    {
        # Bytes instead of a tokenizer: 256 of them and the end of a document.
        "tiny": ModelShape(
            model_type="llama",
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=352,
            vocab_size=257,
            max_position_embeddings=1024,
        ),
        # https://huggingface.co/openai-community/gpt2/blob/main/config.json
        "gpt2-124m": ModelShape(
            model_type="gpt2",
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=12,
            intermediate_size=3072,
            vocab_size=50257,
            max_position_embeddings=1024,
            hub_id="openai-community/gpt2",
        ),
        # https://github.com/jzhang38/TinyLlama (22 layers, 4 query groups)
        "llama-1b": ModelShape(
            model_type="llama",
            hidden_size=2048,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            intermediate_size=5632,
            vocab_size=32000,
            max_position_embeddings=2048,
            hub_id="TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
        ),
    }
)
"""Language models."""

ENCODERS: Mapping[str, ModelShape] = MappingProxyType(
    {
        # Hashes of words instead of a tokenizer, a mark for the whole text, and one that pads.
        "tiny": ModelShape(
            model_type="bert",
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=256,
            vocab_size=4096,
            max_position_embeddings=1024,
        ),
    }
)
"""Models that classify texts."""


def _llama(shape: ModelShape) -> int:
    """Untied embedding and head; per layer q, o, k, v, three MLP matrices and two norms; one norm at the end."""
    hidden, key_value = shape.hidden_size, shape.hidden_size // shape.num_attention_heads * shape.num_key_value_heads
    attention = 2 * hidden * hidden + 2 * hidden * key_value
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden
    return 2 * shape.vocab_size * hidden + shape.num_hidden_layers * layer + hidden


def _gpt2(shape: ModelShape) -> int:
    """Tied head; learned positions; every matrix and norm has a bias."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    attention = (hidden + 1) * 3 * hidden + (hidden + 1) * hidden
    layer = attention + (hidden + 1) * inner + (inner + 1) * hidden + 4 * hidden
    return (shape.vocab_size + shape.max_position_embeddings) * hidden + shape.num_hidden_layers * layer + 2 * hidden


def _bert(shape: ModelShape) -> int:
    """Words, positions and two segments; every matrix and norm has a bias; a pooler, and a head for five classes."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    embeddings = (shape.vocab_size + shape.max_position_embeddings + 2) * hidden + 2 * hidden
    layer = 4 * (hidden + 1) * hidden + (hidden + 1) * inner + (inner + 1) * hidden + 4 * hidden
    return embeddings + shape.num_hidden_layers * layer + (hidden + 1) * hidden + (hidden + 1) * _CLASSES
