"""The MLP of a layer: one for all tokens, or experts behind a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainwiz.models.sizes import Config, Sizes


@dataclass(frozen=True, slots=True)
class Mlp:
    """The MLP of one layer. Weights are numbers of parameters."""

    width: int
    """Intermediate features of one token, over all experts that it sees."""
    weights: int
    """Of all matrices, the router's included."""
    active: int
    """Of these, the weights that one token is multiplied with."""
    biases: int = 0
    """Of all matrices together; they are no part of `weights`."""
    routed: int = 0
    """Experts behind a router that one token is given to, each as a copy."""
    joined: int = 0
    """Of all weights, those of the routed experts and of the router, which are in no linear layer."""
    joined_features: int = 0
    """Features that enter and leave their adapters, at the adapter's rank; 0 where peft makes none."""


def dense(sizes: Sizes, *, gated: bool, bias: bool) -> Mlp:
    """Up and down, and a gate beside up where there is one."""
    inner, matrices = sizes.intermediate_size, 3 if gated else 2
    weights = matrices * sizes.hidden_size * inner
    biases = (matrices - 1) * inner + sizes.hidden_size if bias else 0
    return Mlp(inner, weights, weights, biases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Routed experts, each with a gate, and what stands beside them."""

    shared: bool = False
    """`n_shared_experts` more of the same width see every token."""
    shared_gate: bool = False
    """One expert of width `shared_expert_intermediate_size` sees every token, behind a gate of its own."""
    bias: bool = False
    """Experts and router have biases."""
    adapted: bool = True
    """peft makes adapters for the routed experts and the router."""

    def mlp(self, config: Config, sizes: Sizes) -> Mlp:
        """The experts of one layer. Raises `KeyError` where config.json does not say how many there are."""
        hidden, width = sizes.hidden_size, int(config.get("moe_intermediate_size") or sizes.intermediate_size)
        number = int(config[next((key for key in _NUMBER if config.get(key)), _NUMBER[0])])
        seen = int(config["num_experts_per_tok"])
        common = int(config["n_shared_experts"] or 0) * width if self.shared else 0
        if self.shared_gate:
            common = int(config["shared_expert_intermediate_size"])
        always = 3 * hidden * common + hidden * (number + self.shared_gate)
        each = 3 * hidden * width
        biases = number * (2 * width + hidden + 1) if self.bias else 0
        # peft gives a gate and an up projection that are one tensor twice the rank.
        adapters = number * (2 * (hidden + 2 * width) + width + hidden) + hidden + number
        return Mlp(
            seen * width + common,
            number * each + always,
            seen * each + always,
            biases,
            seen,
            joined=number * (each + hidden),
            joined_features=adapters if self.adapted else 0,
        )


def unnamed(config: Config) -> Experts | None:
    """The experts of a family without a row, by the keys that its config.json has; None without any."""
    if not any(int(config.get(key) or 0) > 1 for key in _NUMBER):
        return None
    return Experts(
        shared=bool(config.get("n_shared_experts")), shared_gate=bool(config.get("shared_expert_intermediate_size"))
    )


_NUMBER = ("num_experts", "num_local_experts", "n_routed_experts")
"""What the families call the number of routed experts."""

DenseLayer = Callable[[Config, int], bool]
"""Whether a layer, counted from 0, has one MLP for all tokens where others have experts."""


def listed_or_between(config: Config, layer: int) -> bool:
    """As Qwen says it: `mlp_only_layers`, and every layer but each `decoder_sparse_step`th."""
    step = int(config.get("decoder_sparse_step") or 1)
    return layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step != 0


def any_layout(config: Config, layer: int) -> bool:
    """In whichever of these ways, or as Jamba says it: experts in each `expert_layer_period`th layer."""
    period = int(config.get("expert_layer_period") or 1)
    between = layer % period != int(config.get("expert_layer_offset") or 0) % period
    return between or first(config, layer) or listed_or_between(config, layer)


def first(config: Config, layer: int) -> bool:
    """As DeepSeek says it: the first `first_k_dense_replace` layers."""
    return layer < int(config.get("first_k_dense_replace") or 0)
