"""Gradients under DDP: where they lie while micro-batches without communication add up."""

from pathlib import Path

import pytest
import warm
from projects import make
from test_colossalai import PYTHON, STANDIN

TEXTS = {
    "task": "causal_lm",
    "strategy.kind": "ddp",
    "machine.num_processes": 2,
    "batch.real_batch_size": 8,
    "batch.per_device_batch_size": 1,
    "batch.gradient_accumulation_steps": 4,
    "schedule.n_steps": 2,
    "optimizer.gradient_clipping": 1.0,
}
COUNT = "len({p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.requires_grad})"
LINES = {
    "accelerate": "                norm = backward(config, accelerator, model, loss * scale)\n",
    "colossalai": "                booster.backward(loss * scale, optimizer)\n",
}


# docs/decisions/loop.md: Gradients stay in DDP's buckets between updates
@pytest.mark.parametrize("engine", LINES)
def test_no_gradient_lies_beside_its_bucket(engine: str, tmp_path: Path) -> None:
    """From the first micro-batch on, many parameters' gradients share the few storages of DDP's buckets."""
    if engine == "colossalai" and not PYTHON.exists():
        pytest.skip("colossalai is not installed")
    other = {"strategy.kind": "colossal_ddp"} if engine == "colossalai" else {}
    python = ("--python", str(PYTHON)) if engine == "colossalai" else ()
    folder = make(tmp_path / "project", {**TEXTS, **other}, *python)
    script, line = folder / "train.py", LINES[engine]
    text = script.read_text()
    assert line in text
    script.write_text(text.replace(line, f'{line}                print("storages", {COUNT}, flush=True)\n'))
    standin = {"env": STANDIN, "python": str(PYTHON)} if engine == "colossalai" else {}
    for done in warm.run(folder, ["train.py"], 2, **standin):
        assert done.code == 0, done.err[-3000:]
        counts = [int(said.split()[1]) for said in done.out.splitlines() if said.startswith("storages")]
        assert len(counts) == 8
        assert max(counts) <= 2, counts
