"""Rotary frequencies keep their bits where a whole model is cast to 16 bits: a position is a product with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from projects import SMALL, begins_with, make
from test_training import SINGLE, STRATEGIES

pytestmark = pytest.mark.train

LLAMA = {**SMALL, "schedule.n_steps": 1, "schedule.n_warmup_steps": 0}
HALF = {"precision.mixed_precision": "bf16"}
CAST: dict[str, dict[str, Any]] = {
    "weights in bf16": {**SINGLE, **HALF, "precision.weights": "bfloat16"},
    # Versions before 0.19 cast buffers unasked.
    "zero2": {**STRATEGIES["zero2"], **HALF, "deepspeed.data_types.buffer_dtype": "bf16"},
    "zero3": {**STRATEGIES["zero3"], **HALF, "deepspeed.data_types.buffer_dtype": "bf16"},
}
SAYS = (
    "import json; print('KEPT', json.dumps([[n, str(b.dtype), b.tolist()] for n, b in model.named_buffers() "
    "if n.endswith('rotary_emb.inv_freq')]), flush=True)"
)


def are_exact(said: str) -> None:
    """Whether the trained model, whose task says them as it saves it, has the frequencies of its configuration."""
    (line,) = [line for line in said.splitlines() if "KEPT " in line]
    ((_, kind, numbers),) = json.loads(line.partition("KEPT ")[2])
    width = 2 * len(numbers)
    assert kind == "torch.float32"
    assert numbers == pytest.approx([10000 ** (-i / width) for i in range(0, width, 2)], rel=1e-6)


@pytest.mark.parametrize("name", CAST)
def test_a_model_in_16_bits_keeps_its_positions(name: str, tmp_path: Path) -> None:
    folder = begins_with(make(tmp_path / "project", {**LLAMA, **CAST[name]}), "save_model", SAYS)
    done = warm.launch(folder)
    assert done.code == 0, done.err
    are_exact(done.out + done.err)
    frequency = torch.tensor(10000 ** (-2 / 128))  # the second in a head of the usual width
    assert float((frequency.bfloat16().float() - frequency).abs()) * 1000 > 1, "radians at position 1,000"
