"""The shapes of the preset models, and how many parameters each has, by formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from trainwiz import models
from trainwiz.models import Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A transformer's shape in transformers' own words."""

    model_type: Literal["llama", "gpt2", "bert"]
    """transformers' name of the family."""
    hidden_size: int
    """Features of the residual stream."""
    num_hidden_layers: int
    """Transformer layers."""
    num_attention_heads: int
    """Of a layer."""
    num_key_value_heads: int
    """Of a layer; fewer than attention heads where several queries share a key."""
    intermediate_size: int
    """Features inside an MLP."""
    vocab_size: int
    """Rows of the embedding."""
    max_position_embeddings: int
    """The longest sequence, in tokens."""
    hub_id: str = ""
    """Weights of this shape, for a model that does not start from scratch; empty where none exist."""
    outputs: int = 0
    """Numbers that a head on top of it gives for each sample; 0 for a model without one."""
    headless: bool = False
    """The head has the place of the one that predicts tokens, and no bias."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its fields as the generated config dataclass has them."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("hub_id", "outputs", "headless")}

    @property
    def transformer(self) -> Transformer:
        """Its layers and their weights."""
        found = models.of_config({**self.settings, **({"tie_word_embeddings": True} if self.headless else {})})
        assert found is not None
        return found

    @property
    def parameters(self) -> int:
        """The exact number of parameters, with a head's; tied ones count once."""
        return self.transformer.parameters + (self.hidden_size + (not self.headless)) * self.outputs


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
            vocab_size=50304,  # 50257, padded to a multiple of 64, which matrix multiplications prefer
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

# docs/decisions/tasks.md: The tiny text classifier reads hashed words, not bytes
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
            outputs=5,  # the classes of the embedded texts; other data hardly changes the size
        ),
    }
)
"""Models that put texts into classes."""
