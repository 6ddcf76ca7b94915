"""The goodput benchmark made small: random ranks are killed, and the losses are those of a run that nobody disturbs."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import warm

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import goodput


def test_losses_that_differ_or_lack_are_told() -> None:
    whole = {1: 4.0, 2: 2.0, 3: 1.0}
    assert goodput.difference({1: 4.0, 2: 2.0}, whole) == 0
    assert goodput.difference({1: 4.0, 2: 2.5}, whole) == 0.25
    assert goodput.difference({1: 4.0, 3: 1.0}, whole) == float("inf")


@pytest.mark.train
def test_a_training_under_fire_has_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is killed starts as users start it, and so do its spares; what it is compared with does not."""
    folder, chance = tmp_path / "p", random.Random(1)
    goodput.make(folder, every=10)
    process = goodput.launch(folder, 0.02, "--max-restarts", "9", "--spares")
    try:
        for update in (15, 40):
            goodput.reach(folder, update, process)
            os.kill(goodput.ranks_of(process.pid)[chance.randrange(2)], signal.SIGKILL)
            while goodput.attempts(folder) < update // 25 + 1:
                time.sleep(0.05)
        goodput.reach(folder, 60, process)
    finally:
        code = goodput.stop(process)
    assert code == 75, "that of a stopped run"
    assert goodput.attempts(folder) == 2
    losses = goodput.losses(folder)
    if not warm.cold:
        monkeypatch.setattr(goodput, "TRAINWIZ", str(Path(warm.python(offspring=True)).with_name("trainwiz")))
    assert goodput.difference(losses, goodput.uninterrupted(folder, max(losses) + 5)) == 0
