"""The generated trust.py: what is unpickled of a checkpoint, by whom it was signed, and what is said of others."""

import io
import os
import pickle
import resource
import stat
import struct
import time
import zipfile
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
    refused = (
        (trust.UnknownClass, r"posix\.system") if zipped or name == ".metadata" else (trust.Unsound, "not an archive")
    )
    with pytest.raises(refused[0], match=refused[1]), trust.known_classes_only(tmp_path):
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


class Rebuilt:
    """A tensor whose shape is not that of its numbers."""

    def __init__(self, *shape: int, stride: int) -> None:
        self.shape, self.strides, self.numbers = shape, (stride,) * len(shape), torch.zeros(4)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (storage, _, _, _, *rest), *_ = self.numbers.__reduce_ex__(2)
        return rebuild, (storage, 0, self.shape, self.strides, *rest)


def compressed(file: Path) -> None:
    """Write an archive anew, so that a thousand bytes of zeros are one."""
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def overlapping(file: Path) -> None:
    """Let every record of an archive be the largest one."""
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    at = content.find(b"PK\1\2")
    while at >= 0:
        struct.pack_into("<LL", content, at + 20, largest.file_size, largest.file_size)
        struct.pack_into("<L", content, at + 42, largest.header_offset)
        at = content.find(b"PK\1\2", at + 1)
    file.write_bytes(content)


def two_directories(file: Path) -> None:
    """Show Python's zipfile, which looks right before the end, another directory than torch."""
    compressed(file)
    content = file.read_bytes()
    length, place = struct.unpack("<LL", content[-10:-2])
    honest = bytearray(content[place : place + length])
    at = honest.find(b"PK\1\2")
    while at >= 0:
        struct.pack_into("<H", honest, at + 10, zipfile.ZIP_STORED)
        at = honest.find(b"PK\1\2", at + 1)
    file.write_bytes(content[:-22] + honest + content[-22:])
    assert {record.compress_type for record in zipfile.ZipFile(file).infolist()} == {zipfile.ZIP_STORED}
    assert len(torch.load(file)["a"]) == 1 << 18, "torch would load it"


ONE = torch.zeros(1 << 18)
BOMBS: dict[str, tuple[object, Callable[[Path], None], str]] = {
    "compressed": (ONE, compressed, "compressed"),
    "overlapping": (ONE, overlapping, "bytes in an archive of"),
    "two directories": (ONE, two_directories, "compressed"),
    "expanded": (Rebuilt(1 << 40, stride=0), lambda _: None, "bytes of tensors"),
    "many views": ([ONE[i:] for i in range(9)], lambda _: None, "bytes of tensors"),
    "empty": (0, lambda file: file.write_bytes(b""), "not an archive"),
    "cut off": (ONE, lambda file: os.truncate(file, 99_999), "not an archive"),
    "pickled": ([[]] * (1 << 18), lambda _: None, "bytes are pickled"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_asks_for_more_than_it_has_is_not_loaded(
    trust: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "SMALL", 1 << 18)
    value, crafted, says = BOMBS[name]
    file = tmp_path / "rank-0.pt"
    torch.save({"a": value}, file)
    crafted(file)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for given in (file, io.BytesIO(file.read_bytes())):
        with pytest.raises(trust.Unsound, match=says), trust.known_classes_only(tmp_path):
            torch.load(given, weights_only=False)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 100 << 10
    assert time.process_time() - began < 5


def test_a_file_with_shared_and_odd_tensors_is_loaded(trust: ModuleType, tmp_path: Path) -> None:
    tied = torch.randn(300_000)
    state = {
        "names": {str(i): tied for i in range(24)},
        "views": [tied[:100_000], tied[100_000:]],
        "expanded": torch.arange(9).expand(7, 9),
        "empty": torch.zeros(0, 5),
        "sparse": torch.eye(5).to_sparse(),
        "nested": ({"b": [torch.ones(3)]},),
    }
    torch.save(state, tmp_path / "optimizer.pt")
    with trust.known_classes_only(tmp_path):
        found = torch.load(tmp_path / "optimizer.pt", weights_only=False, mmap=True)
    assert torch.equal(found["names"]["23"], tied)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "not a pickle that torch writes"),
        (b"\x80\x04Np2147483647\n.", "not a pickle that torch writes"),
        (b"\x80\x04\x96\0\0\0\0\1\0\0\0.", "not a pickle that torch writes"),
        (b"\x80\x04" + b"]" * (1 << 18) + b"aaa.", "bytes of names and places"),
    ],
)
def test_an_index_that_would_fill_the_memory_is_not_read(
    trust: ModuleType, index: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "SMALL", 1 << 16)
    (tmp_path / ".metadata").write_bytes(index)
    with pytest.raises(trust.Unsound, match=says), trust.known_classes_only(tmp_path):
        pytest.fail("the index was read")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("named", ["../mine.distcp", "/dev/zero", "..", "part/mine.distcp", Path("../mine.distcp")])
def test_an_index_leads_to_files_beside_it_only(trust: ModuleType, named: Any, tmp_path: Path) -> None:
    """Weights of another training, or a pipe, could be loaded as those of this one."""
    folder, state = tmp_path / "checkpoint", {"w": torch.arange(6.0)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    index = pickle.loads((folder / ".metadata").read_bytes())
    for place in index.storage_data.values():
        (tmp_path / "mine.distcp").write_bytes((folder / place.relative_path).read_bytes())
        place.relative_path = named
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(trust.Unsound, match="is not beside it"), trust.known_classes_only(folder):
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    with trust.known_classes_only(folder, trust=True):
        pass


def test_a_header_of_millions_of_names_is_not_read(
    trust: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "SMALL", 1 << 18)
    header = b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(40_000)) + b"}}"
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(trust.Unsound, match="bytes are names"), trust.known_classes_only(tmp_path):
        pytest.fail("the header was read")


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


# docs/decisions/checkpoints.md: A foreign checkpoint is reported, not refused
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
