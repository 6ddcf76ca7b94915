"""The generated trust.py: what is unpickled of a checkpoint, by whom it was signed, and what is said of others."""

import io
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import planting
import pytest
import test_checkpoints
import torch
import torch.distributed.checkpoint as dcp
from test_checkpoints import SAMPLES, Start, end, module, names, start  # noqa: F401 - fixtures

from trainwiz import resources
from trainwiz.probe.inside import gather_weights
from trainwiz.store import checkpoints

TRUST = resources.train_templates() / "parts" / "trust.py"


@pytest.fixture(scope="module")
def trust() -> ModuleType:
    made: ModuleType = gather_weights.loaded(TRUST)
    return made


def read(checkpoint: Path, name: str) -> Callable[[], object]:
    """Read a file as the careless of the engines do."""
    if name.endswith(".pt"):
        return lambda: torch.load(checkpoint / name, weights_only=False)
    return lambda: pickle.loads((checkpoint / name).read_bytes())


@pytest.mark.parametrize("layout", planting.KINDS)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_planted_command_does_not_run_in_any_layout(
    trust: ModuleType, layout: str, zipped: bool, tmp_path: Path
) -> None:
    name, canary = planting.KINDS[layout], tmp_path / "canary"
    (tmp_path / "state").mkdir()
    (tmp_path / "manifest.json").write_text('{"self": "", "bytes": {}, "sha256": {}}')
    planting.plant(tmp_path, name, canary, zipped=zipped)
    careless = read(tmp_path, name)
    with pytest.raises(trust.UnknownClass, match=r"posix\.system"), trust.known_classes_only(tmp_path):
        careless()
    assert not canary.exists()
    with trust.known_classes_only(tmp_path, trust=True):
        careless()
    assert canary.exists(), "the file does run its command where nothing holds it"


@pytest.mark.parametrize(
    "reached",
    [
        ("builtins", "getattr"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.metadata", "Metadata.__init__"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.serialization", "load"),
        ("functools", "partial"),
    ],
)
def test_only_the_named_classes_are_reached_in_an_index(
    trust: ModuleType, reached: tuple[str, str], tmp_path: Path
) -> None:
    """Through dotted names a pickle would reach whatever a known module has imported."""
    text = io.BytesIO()
    pickler = pickle._Pickler(text, 4)
    text.write(b"\x80\x04")
    pickler.save(reached[0])
    pickler.save(reached[1])
    text.write(pickle.STACK_GLOBAL + pickle.STOP)
    (tmp_path / ".metadata").write_bytes(text.getvalue())
    with (
        pytest.raises(trust.UnknownClass, match=".".join(reached).replace(".", r"\.")),
        trust.known_classes_only(tmp_path),
    ):
        pytest.fail("the index was read")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_trainings_write_is_read(trust: ModuleType, tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(6.0, dtype=torch.bfloat16)}, "optimizer": {"step": torch.ones(())}, "lr": 0.1}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    found = {"model": {"w": torch.zeros(6, dtype=torch.bfloat16)}, "optimizer": {"step": torch.zeros(())}, "lr": 0.0}
    with trust.known_classes_only(tmp_path):
        dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path), no_dist=True)
    assert found["lr"] == 0.1
    assert torch.equal(found["model"]["w"], state["model"]["w"])  # type: ignore[index]


def test_the_environment_is_as_it_was_after_success_and_failure(
    trust: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    before = dict(os.environ)
    with trust.known_classes_only(tmp_path):
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
    with pytest.raises(KeyError), trust.known_classes_only(tmp_path):
        raise KeyError
    assert dict(os.environ) == before


# docs/decisions/checkpoints.md: A foreign checkpoint is named, not refused
@pytest.mark.parametrize("module", ["foreground"], indirect=True)
def test_a_checkpoint_of_somebody_else_is_named_and_resumed(
    start: Start,  # noqa: F811
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    end(training)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-00000001"
    key = tmp_path / "state" / checkpoints.KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert os.listdir(key.parent) == [key.name]
    assert start().checkpoints.resume(SAMPLES) == 1
    assert "not signed with your key" not in capfd.readouterr().out
    assert checkpoints.is_own(checkpoint)
    (checkpoint / "state").write_text("of a stranger")
    planting.renew(checkpoint, "state")
    assert not checkpoints.is_own(checkpoint)
    assert start().checkpoints.resume(SAMPLES) == 1
    assert "not signed with your key" in capfd.readouterr().out
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not checkpoints.is_own(checkpoint)


@pytest.mark.parametrize("module", ["foreground"], indirect=True)
def test_without_a_home_to_write_to_checkpoints_are_saved_unsigned(
    start: Start,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(1).checkpoints.close()
    assert names(tmp_path / "run") == ["checkpoint-00000001"]
    assert start().checkpoints.resume(SAMPLES) == 1


@pytest.mark.parametrize("module", ["foreground"], indirect=True)
def test_an_unknown_class_ends_a_resume_with_its_name(start: Start, tmp_path: Path) -> None:  # noqa: F811
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    end(training)
    checkpoint, canary = tmp_path / "run" / "checkpoints" / "checkpoint-00000001", tmp_path / "canary"
    planting.plant(checkpoint, "optimizer.pt", canary)

    careless = read(checkpoint, "optimizer.pt")

    def resumed(**settings: Any) -> test_checkpoints.Training:
        training = start(**settings)
        training.checkpoints.load_state = lambda _: careless()
        training.checkpoints.resume(SAMPLES)
        return training

    with pytest.raises(SystemExit, match=r"holds posix\.system, which is not part of a checkpoint .* --trust true"):
        resumed()
    assert not canary.exists()
    resumed(trust=True)
    assert canary.exists()
