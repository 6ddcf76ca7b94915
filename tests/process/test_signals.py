"""Nothing of a run is left after any end, and the exit code is true: the trials of benchmarks/signals.py."""

import sys
from pathlib import Path

import pytest
import warm
from patience import patience

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import signals

ASKED = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "terminal lost"]
FORKED = {("ddp", "foreign"), ("deepspeed", "generated")}
"""Real trainings whose ranks need not start from scratch: others of the same engine do."""
CODES = dict.fromkeys(ASKED, 75) | {"SIGKILL": -9, "rank 1: SIGKILL": 137, "rank 0: SIGSEGV": 139}


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.getbasetemp()))


def check(seen: signals.Seen, event: str, code: int) -> None:
    assert seen.code == code
    assert seen.left == 0
    assert seen.seconds is not None
    assert seen.seconds < (signals.LIMIT_SECONDS + (signals.GRACE if event in ASKED else 0)) * patience()


def test_every_event_is_here() -> None:
    assert set(CODES) == set(signals.EVENTS)


@pytest.mark.parametrize("event", CODES)
def test_ranks_that_save(event: str) -> None:
    check(signals.trial("trainwiz", "light", "foreign", event, 0), event, CODES[event])


@pytest.mark.train
@pytest.mark.parametrize(
    ("engine", "script", "event", "code"),
    [
        ("ddp", "generated", "rank 1: SIGKILL", 137),
        ("ddp", "foreign", "terminal lost", 129),
        ("deepspeed", "foreign", "SIGKILL", -9),
        ("deepspeed", "generated", "rank 0: SIGSEGV", 139),
    ],
)
def test_real_trainings(engine: str, script: str, event: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if (engine, script) in FORKED:
        started = signals.command

        def forked(launcher: str, engine: str, script: str, folder: Path) -> list[str]:
            _trainwiz, *words = started(launcher, engine, script, folder)
            environ = {"ACCELERATE_USE_CPU": "true"} if engine == "ddp" else {"DS_ACCELERATOR": "cpu"}
            return warm.command(folder / ("train.py" if script == "generated" else "their.py"), *words, env=environ)

        monkeypatch.setattr(signals, "command", forked)
    check(signals.trial("trainwiz", engine, script, event, 0), event, code)
