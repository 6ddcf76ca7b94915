"""A transformer as its config.json describes it: its blocks, and how many weights each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One kind of layer, and how often it occurs. Sizes are numbers of features, weights are numbers of parameters."""

    count: int
    """How many layers of this kind there are."""
    heads: int
    """Attention heads of the queries."""
    query_size: int
    """Width of all queries of a token together: heads × head size."""
    key_value_size: int
    """Width of all keys of a token together; the values have the same."""
    intermediate_size: int
    """Width of the MLP that a token passes: with experts, of all those that see the token, shared ones included."""
    gated: bool
    """The MLP has a gate beside its up projection (SwiGLU, GeGLU)."""
    attention_weights: int
    """Weights of the attention's matrices."""
    mlp_weights: int
    """Weights of the MLP's matrices: of all experts, and of the router."""
    active_mlp_weights: int
    """Of these, the weights that one token is multiplied with."""
    small_weights: int
    """Biases and norms."""
    routed: int = 0
    """Experts behind a router that one token is given to, each as a copy; 0 without a router."""
    joined_weights: int = 0
    """Of the MLP's weights, those of routed experts and their router. transformers 5 joins the experts of a layer in
    tensors, which are no linear layers, so that bitsandbytes does not quantize them.
    """
    joined_features: int = 0
    """Features that enter and leave the adapters of those, at the adapter's rank; 0 where peft makes none."""
    window: int | None = None
    """How many tokens back attention reaches; None: all of them."""

    @property
    def matrix_weights(self) -> int:
        """The weights of all matrices."""
        return self.attention_weights + self.mlp_weights

    @property
    def linear_weights(self) -> int:
        """Of these, the weights of linear layers, which bitsandbytes quantizes."""
        return self.matrix_weights - self.joined_weights

    @property
    def parameters(self) -> int:
        """All weights of one layer."""
        return self.matrix_weights + self.small_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """The sizes of a language model or text encoder, in transformers' own words."""

    model_type: str
    """The family, as config.json names it."""
    hidden_size: int
    """Width of the residual stream."""
    vocab_size: int
    """Rows of the embedding table."""
    max_position_embeddings: int | None
    """The longest sequence the model was made for; None where config.json does not say."""
    blocks: tuple[Block, ...]
    """Its layers by kind, in the order of their first occurrence."""
    embedding_weights: int
    """The tables of tokens, positions and segments."""
    head_weights: int
    """The output layer; 0 where it shares the weights of the embedding."""
    small_weights: int
    """Norms and whatever else is neither in a block nor in the embedding or the head."""
    tied: bool
    """The output layer shares the weights of the embedding."""
    learned_positions: bool
    """Positions are looked up in a table: a sequence longer than it is an index out of range."""
    exact: bool
    """The family is known, and all of the model is counted; otherwise it is counted as a Llama of the same sizes."""

    changed_logits: bool = False
    """Its logits are scaled or capped after the head (Gemma 2, Cohere): chunks of them are computed twice."""

    kernels: Literal["any", "blocks", "none"] = "any"
    """Its attention in transformers: any kernel, flex_attention alone, or the scores of all pairs of tokens."""

    @property
    def num_hidden_layers(self) -> int:
        """Layers of all kinds."""
        return sum(block.count for block in self.blocks)

    @property
    def parameters(self) -> int:
        """The exact number of parameters; tied ones count once."""
        layers = sum(block.count * block.parameters for block in self.blocks)
        return self.embedding_weights + layers + self.small_weights + self.head_weights

    @property
    def largest_layer(self) -> int:
        """The parameters of its largest layer."""
        return max((block.parameters for block in self.blocks), default=0)

    @property
    def largest_matrix(self) -> int:
        """The weights of the largest matrix in a layer."""
        widest = max((max(block.intermediate_size, block.query_size) for block in self.blocks), default=0)
        return self.hidden_size * widest

    @property
    def largest_table(self) -> int:
        """The parameters of the embeddings or of the head, whichever has more."""
        return max(self.embedding_weights, self.head_weights)

    @property
    def linear_weights(self) -> int:
        """The weights of all linear layers inside the blocks, which bitsandbytes quantizes."""
        return sum(block.count * block.linear_weights for block in self.blocks)

    @property
    def joined_weights(self) -> int:
        """The weights of all routed experts and their routers, which bitsandbytes leaves in 16 bits."""
        return sum(block.count * block.joined_weights for block in self.blocks)

    @property
    def joined_features(self) -> int:
        """Features that enter and leave the adapters of those."""
        return sum(block.count * block.joined_features for block in self.blocks)
