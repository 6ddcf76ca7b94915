"""The optimizer and its groups of parameters: which weights decay, and which have a learning rate of their own."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from train import Config


def parameter_groups(config: Config, model: nn.Module) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of one weight decay and one rate each.

    `rates` and `decays` decide for parameters whose names they match: `head=10,embed=0.1`. A later pattern overrides
    an earlier one. The loop multiplies the rate of an update by each group's `factor`.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    rates, decays = pairs_of("rates", config.rates, named), pairs_of("decays", config.decays, named)
    # feature: muon
    hidden = hidden_matrices(model)
    # end: muon
    groups: dict[Any, dict[str, Any]] = {}
    for name, parameter in named:
        decay = config.weight_decay
        # feature: spared_vectors
        shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO 3 a rank holds only a flat shard
        decay = decay if len(shape) > 1 else 0.0  # matrices and embeddings decay, vectors (biases, norms) do not
        # end: spared_vectors
        settings = {
            "weight_decay": value_of(name, decays, decay),
            "factor": value_of(name, rates, 1.0),
            # feature: muon
            "muon": name in hidden,
            # end: muon
        }
        groups.setdefault(tuple(settings.values()), {**settings, "params": []})["params"].append(parameter)
    return list(groups.values())


def pairs_of(field: str, text: str, named: list[tuple[str, nn.Parameter]]) -> list[tuple[str, float]]:
    """Return the patterns with their numbers. Exit if one matches no trained parameter."""
    pairs = [
        (pattern.strip(), float(number)) for pattern, _, number in (p.partition("=") for p in text.split(",") if p)
    ]
    for pattern, _ in pairs:
        if not any(matches(name, pattern) for name, _ in named):
            some = ", ".join(name for name, _ in named[:: max(1, len(named) // 5)])
            raise SystemExit(f"{field}: {pattern} matches no trained parameter; some of them are {some}")
    return pairs


def matches(name: str, pattern: str) -> bool:
    """Whether the pattern is a part of the name; `*` stands for anything."""
    return fnmatchcase(name, f"*{pattern}*")


def value_of(name: str, pairs: list[tuple[str, float]], usual: float) -> float:
    """Return the number of the last pattern that matches."""
    return next((number for pattern, number in reversed(pairs) if matches(name, pattern)), usual)


# feature: own_adamw
def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return AdamW. Each update sets the rate."""
    return torch.optim.AdamW(
        parameter_groups(config, model),
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=device is not None and device.type in ("cuda", "cpu"),  # one kernel for all parameters
    )


# end: own_adamw
# feature: own_fused_adamw
def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return the AdamW of Gemini, which updates chunks of memory. Each update sets the rate."""
    from colossalai.nn.optimizer import FusedAdam

    betas = (config.beta1, config.beta2)
    return FusedAdam(parameter_groups(config, model), lr=0.0, betas=betas, eps=config.epsilon)


# end: own_fused_adamw
# feature: own_sgd
def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return SGD with momentum; all parameters decay. Each update sets the rate."""
    return torch.optim.SGD(parameter_groups(config, model), lr=0.0, momentum=config.beta1)


# end: own_sgd
# feature: adafactor
def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return Adafactor (https://arxiv.org/abs/1804.04235). Its steps are relative to the size of each weight."""
    return torch.optim.Adafactor(parameter_groups(config, model), lr=0.0, eps=(None, config.epsilon))


# end: adafactor
# feature: adamw_8bit
def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return AdamW with state in 8 bits (https://arxiv.org/abs/2110.02861)."""
    from bitsandbytes.optim import AdamW8bit

    betas = (config.beta1, config.beta2)
    return AdamW8bit(parameter_groups(config, model), lr=0.0, betas=betas, eps=config.epsilon)


# end: adamw_8bit
# feature: paged_adamw_8bit
def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return AdamW with state in 8 bits (https://arxiv.org/abs/2110.02861), paged to host memory if need be."""
    from bitsandbytes.optim import PagedAdamW8bit

    betas = (config.beta1, config.beta2)
    return PagedAdamW8bit(parameter_groups(config, model), lr=0.0, betas=betas, eps=config.epsilon)


# end: paged_adamw_8bit
# feature: lion
class Lion(torch.optim.Optimizer):
    """Lion (https://arxiv.org/abs/2302.06675): each weight moves by the rate, along a mean of gradients."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        """Move each weight that has a gradient."""
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                mean, gradient = state["exp_avg"], parameter.grad
                direction = (mean * beta1 + gradient * (1 - beta1)).sign_()
                parameter.mul_(1 - rate * group["weight_decay"]).add_(direction, alpha=-rate)
                mean.mul_(beta2).add_(gradient, alpha=1 - beta2)


def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return Lion. Each update sets the rate."""
    return Lion(parameter_groups(config, model), (config.beta1, config.beta2))


# end: lion
# feature: muon
def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the matrices that map hidden states to hidden states: not embeddings, not the head."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = layers[-1][0] if layers else ""  # of transformers' models and of most others, the last linear layer
    inside = [(name, layer) for name, layer in layers if name != head and id(layer.weight) not in tables]
    return {f"{name}.weight" for name, _ in inside}


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon (https://arxiv.org/abs/2502.16982) for the groups that say so, and AdamW for the others.

    Muon's step has the size of AdamW's, so that both have the same learning rate and weight decay.
    """

    def __init__(self, groups: list[dict[str, Any]], config: Config, model: str) -> None:
        matrices = [group for group in groups if group["muon"]]
        others = [group for group in groups if not group["muon"]]
        if not matrices:
            raise SystemExit(f"muon: {model} has no linear layers inside; set optimizer.name to adamw")
        muon = torch.optim.Muon(matrices, lr=0.0, momentum=config.beta1, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, lr=0.0, betas=(0.9, config.beta2), eps=config.epsilon)
        self.parts = (muon, adamw)
        super().__init__([group for part in self.parts for group in part.param_groups], {"lr": 0.0})

    def step(self, _closure: Any = None) -> None:
        """Let each part update its groups."""
        for part, is_muon in zip(self.parts, (True, False), strict=True):
            part.state = self.state  # loading a checkpoint replaces both
            part.param_groups = [group for group in self.param_groups if group["muon"] is is_muon]
            part.step()


def build_optimizer(config: Config, model: nn.Module, device: torch.device | None = None) -> torch.optim.Optimizer:
    """Return Muon for the matrices inside the model, and AdamW for embeddings, head and vectors."""
    return MuonAndAdamW(parameter_groups(config, model), config, type(model).__name__)


# end: muon
