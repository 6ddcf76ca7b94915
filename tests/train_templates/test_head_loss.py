"""The bytes that the generated loss takes of each logit: what the estimate counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainwiz.estimate.activations import Loss, footprint
from trainwiz.models import known
from trainwiz.models.kept import Arithmetic
from trainwiz.probe.inside.live_memory import Live
from trainwiz.store import templates

TOKENS, WORDS, WIDTH = 64, 4000, 8
WAYS: dict[Arithmetic, tuple[torch.dtype, bool]] = {
    "fp32": (torch.float32, False),
    "autocast": (torch.float32, True),
    "16-bit": (torch.bfloat16, False),
}


def head_loss() -> dict[str, Any]:
    """What head_loss.py defines where nothing is compiled."""
    text = templates.load()["train_templates/parts/head_loss.py"]
    names: dict[str, Any] = {}
    exec(re.sub(r"# feature: compiled_loss\n.*?# end: compiled_loss\n", "", text, flags=re.DOTALL), names)
    return names


def whole(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(head(hidden).float(), labels, reduction="sum")


def in_chunks(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    parts = zip(hidden.split(TOKENS), labels.split(TOKENS), strict=True)
    return sum((checkpoint(whole, head, *part, use_reentrant=False) for part in parts), torch.zeros(()))


def capped(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    logits = (head(hidden) / 30).tanh() * 30
    return nn.functional.cross_entropy(logits.float(), labels, reduction="sum")


def fused(head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    found: Tensor = head_loss()["HeadLoss"].apply(hidden, head.weight, labels, TOKENS)
    return found


def logit_bytes(loss: Callable[..., Tensor], kind: Arithmetic, chunks: int) -> float:
    """Of the logits that are in memory at once, at their peak."""
    dtype, autocast = WAYS[kind]
    hidden = torch.randn(chunks * TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    head = nn.Linear(WIDTH, WORDS, bias=False, dtype=dtype)
    live = Live(lambda tensor: tensor.numel() >= TOKENS * WORDS, "/nowhere")
    live.keeps = True
    with live:
        with torch.autocast("cpu", torch.bfloat16, autocast):
            outcome = loss(head, hidden, torch.arange(chunks * TOKENS))
        outcome.backward()
    return max(most for most, _ in live.peaks.values()) / (TOKENS * WORDS)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize(
    ("loss", "chunks", "name"),
    [(whole, 1, "llama-3-8b"), (in_chunks, 3, "llama-3-8b"), (fused, 3, "llama-3-8b"), (capped, 1, "gemma-2-2b")],
)
def test_the_loss_takes_what_is_estimated(
    loss: Callable[..., Tensor], chunks: int, name: str, kind: Arithmetic
) -> None:
    model = known(name)
    assert model
    some, none = (
        footprint(model, kind, "full", tokens=100, generates=True, loss=Loss(logit_bytes=each)).logits
        for each in (None, 0)
    )
    assert logit_bytes(loss, kind, chunks) == (some - none) / 100 / model.vocab_size
