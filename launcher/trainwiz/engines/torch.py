"""PyTorch: versions, its optimizers with their defaults, and the modes of torch.compile."""

from __future__ import annotations

from typing import Any

from trainwiz.engines.names import names

OLDEST = "2.6"
"""The oldest version that generated projects were tried with; also the lower bound in pyproject.toml."""
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 1e-3, "weight_decay": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8},
    "Adam": {"lr": 1e-3, "weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8},
    "SGD": {"lr": 1e-3, "weight_decay": 0.0, "momentum": 0.0},
}
"""The arguments of torch.optim's classes (2.13); a test compares."""
OPTIMIZERS = names(
    """
    ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam
    """
)
"""Classes of torch.optim (2.13); their case counts."""
COMPILE_MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of torch.compile (2.13)."""
