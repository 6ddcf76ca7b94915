"""The generated checkpoints.py: killed while saving, damaged, out of room, read-only, shared, out of order."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import planting
import projects
import pytest
import warm
from plans import BASE

from trainwiz import plan as plans
from trainwiz.render import script
from trainwiz.store import templates

KILLED_SAVES = Path(__file__).parents[1] / "engine_children" / "killed_saves.py"

MEMORY = Path("/dev/shm")
"""Others use the disk, too; a killed process leaves the same files in memory."""


def write_code(folder: Path, **changes: object) -> Path:
    """A folder with checkpoints.py as a plan renders it."""
    plan = plans.with_changes(BASE, {key.replace("__", "."): value for key, value in changes.items()})
    texts = {a.path: a.text for a in script.scripts(plan, templates.load())}
    folder.mkdir(parents=True, exist_ok=True)
    for name in {"checkpoints.py", "manifest.py", "trust.py", "staging.py"} & texts.keys():
        (folder / name).write_text(texts[name])
    return folder


def killed(
    code: Path, output: Path, *, trials: int, ranks: int, behind: int, seed: int = 0, seconds: float = 200
) -> dict[str, Any]:
    """What became of trainings that were killed while they saved."""
    numbers = map(str, (trials, ranks, behind, seed))
    command = [warm.python(), str(KILLED_SAVES), str(code), str(output), *numbers]
    done = subprocess.run(
        command, capture_output=True, text=True, env=projects.environment(), timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("background", "ranks", "trials"), [(False, 1, 40), (False, 2, 30), (True, 1, 20), (True, 2, 10)]
)
def test_a_hundred_kills_while_saving_lose_nothing(tmp_path: Path, background: bool, ranks: int, trials: int) -> None:
    """Each time it resumes from the newest that was complete, and all files in it are of one update."""
    code = write_code(tmp_path / "code", checkpoint__background=background)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
        found = killed(code, Path(folder) / "output", trials=trials, ranks=ranks, behind=int(background))
    assert found["killed_while_writing"] >= trials // 4, "the kills must hit saves"
    assert found["saved"] >= trials // 2
    assert (found["skipped"], found["complete"] - found["whole"]) == (0, 0)
    assert found["complete"] in (2, 3), "the last kill may come before the oldest is removed"


SAMPLES = 100


@dataclass
class Config:
    """What checkpoints.py asks of a config."""

    output_dir: str
    resume: str = "auto"
    trust: bool = False
    seed: int = 1
    real_batch_size: int = 8
    learning_rate: float = 0.1
    checkpoints_total_limit: int = 0
    on_failed_save: str = "continue"


class Training:
    """A training whose state is a text; it notes what it was made to load."""

    def __init__(self, module: ModuleType, output: Path, layout: str = "whole", size: int = 10, **settings: Any):
        self.size, self.state, self.loaded = size, "", ""
        self.checkpoints = module.Checkpoints(Config(str(output), **settings), layout, self.save_state, self.load_state)

    def save_state(self, folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "state").write_text(self.state)
        (folder / "deep" / "more").write_bytes(b"x" * self.size)

    def load_state(self, folder: Path) -> None:
        self.loaded = self.state = (folder / "state").read_text()

    def train(self, *updates: int) -> "Training":
        for update in updates:
            self.state = f"after {update}"
            self.checkpoints.save(update)
        return self


Start = Callable[..., Training]


@pytest.fixture(params=["foreground", "background"])
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generated checkpoints.py, imported."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.delitem(sys.modules, "trust", raising=False)
    file = write_code(tmp_path / "code", checkpoint__background=request.param == "background") / "checkpoints.py"
    spec = importlib.util.spec_from_file_location("generated_checkpoints", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def start(module: ModuleType, tmp_path: Path) -> Iterator[Start]:
    """Begins a training in `tmp_path/run`; the one before it counts as ended."""
    begun: list[Training] = []

    def begin(output: Path = tmp_path / "run", **settings: Any) -> Training:
        for training in begun:
            end(training)
        begun.append(Training(module, output, **settings))
        return begun[-1]

    yield begin
    for training in begun:
        end(training)


def end(training: Training) -> None:
    """What the end of its process would do: nothing is in flight, and its lock is gone."""
    if finish := getattr(training.checkpoints, "finish", None):
        finish()
    if lock := getattr(training.checkpoints, "lock", None):
        lock.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name != ".lock")


def test_what_was_saved_is_resumed_and_the_oldest_are_removed(start: Start, tmp_path: Path) -> None:
    first = start(checkpoints_total_limit=2)
    assert first.checkpoints.resume(SAMPLES) == 0
    first.train(1, 2, 3).checkpoints.close()
    assert names(tmp_path / "run") == ["checkpoint-00000002", "checkpoint-00000003"]
    again = start()
    assert again.checkpoints.resume(SAMPLES) == 3
    assert again.loaded == "after 3"


def test_an_earlier_run_is_not_trained_over(start: Start) -> None:
    first = start()
    first.checkpoints.resume(SAMPLES)
    first.train(1)
    with pytest.raises(SystemExit, match="holds an earlier run: --resume auto continues it"):
        start(resume="none").checkpoints.resume(SAMPLES)


def flips(file: Path) -> Iterator[bytes]:
    """Each byte of a small file with one bit changed, then the file cut short in three ways."""
    content = file.read_bytes()
    for position in range(len(content)):
        yield content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
    for length in {0, len(content) // 2, len(content) - 1}:
        yield content[:length]


@pytest.mark.parametrize("module", ["foreground"], indirect=True)
def test_every_changed_bit_and_every_cut_is_found(module: ModuleType, start: Start, tmp_path: Path) -> None:
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(7)
    end(training)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-00000007"
    assert module.damage_in(checkpoint, {}) == []
    tried = 0
    for file in [path for path in checkpoint.rglob("*") if path.is_file()]:
        content = file.read_bytes()
        for changed in flips(file):
            file.write_bytes(changed)
            assert module.damage_in(checkpoint, {}), (file.name, changed)
            tried += 1
        file.unlink()
        assert module.damage_in(checkpoint, {})
        file.write_bytes(content)
    assert tried > 500
    (checkpoint / "stray.pkl").write_bytes(b"")
    assert module.damage_in(checkpoint, {}) == ["stray.pkl: not in the manifest"]
    (checkpoint / "stray.pkl").unlink()
    assert module.damage_in(checkpoint, {}) == []
    checkpoint.rename(checkpoint.with_name("checkpoint-00000009"))
    assert module.damage_in(checkpoint.with_name("checkpoint-00000009"), {}) == [
        "manifest.json: ValueError of update 7"
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("module", ["foreground"], indirect=True)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: planting.reseal(path, bytes=[1]), "manifest.json: AttributeError"),
        (lambda path: planting.reseal(path, config=None), "of another form"),
        (lambda path: planting.reseal(path, sha256={}), "of another form"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json: "),
        (lambda path: (path / "manifest.json").write_text("[" * 60_000), "RecursionError"),
        (lambda path: (path / "manifest.json").unlink() or os.mkfifo(path / "manifest.json"), "not a regular file"),
        (lambda path: os.mkfifo(path / "optimizer.pt"), "optimizer.pt: neither a file nor a folder"),
        (lambda path: (path / "other").symlink_to(path / "deep"), "other: neither a file nor a folder"),
    ],
)
def test_what_a_stranger_made_of_it_is_damage(
    module: ModuleType, start: Start, tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(7)
    end(training)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-00000007"
    damage(checkpoint)
    (found,) = module.damage_in(checkpoint)
    assert says in found


@pytest.mark.parametrize("module", ["foreground"], indirect=True)
def test_a_lock_that_leads_elsewhere_is_not_followed(start: Start, tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "run" / "checkpoints"
    theirs.write_text("of somebody")
    folder.mkdir(parents=True)
    (folder / ".lock").symlink_to(theirs)
    with pytest.raises(SystemExit, match=r"\.lock"):
        start().checkpoints.resume(SAMPLES)
    assert theirs.read_text() == "of somebody"


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("state", "state: changed"),
        ("deep/more", "deep/more: missing"),
        ("manifest.json", "manifest.json: FileNotFound"),
    ],
)
def test_the_newest_that_is_whole_is_loaded_and_the_others_are_named(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str], file: str, says: str
) -> None:
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(1, 2, 3)
    end(training)
    damaged = tmp_path / "run" / "checkpoints" / "checkpoint-00000003"
    if file == "state":
        (damaged / file).write_text("after 9")
    else:
        (damaged / file).unlink()
    again = start()
    assert again.checkpoints.resume(SAMPLES) == 2
    assert again.loaded == "after 2", "nothing of a damaged checkpoint may be loaded"
    said = capfd.readouterr().out
    assert f"skipping {damaged}: {says}" in said
    assert f"resuming from {damaged.with_name('checkpoint-00000002')}" in said
    again.train(3)
    end(again)
    assert damaged.is_dir(), "the damaged one does not stand in the way"
    assert len([n for n in names(tmp_path / "run") if ".damaged-" in n]) == 1


def test_order_is_by_update_whatever_clocks_and_names_say(start: Start, tmp_path: Path) -> None:
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(99_999_999, 100_000_000)
    end(training)
    folder = tmp_path / "run" / "checkpoints"
    for name in ("checkpoint-final", "checkpoint-00000005.tmp", "checkpoint-9999999999.old", "logs"):
        (folder / name).mkdir()
    (folder / "checkpoint_2000000000").write_text("")
    os.utime(folder / "checkpoint-100000000", (0, 0))  # the clock was set back
    again = start(checkpoints_total_limit=1)
    assert again.checkpoints.resume(SAMPLES) == 100_000_000
    again.train(100_000_001)
    end(again)
    kept = [name for name in names(tmp_path / "run") if (folder / name / "manifest.json").exists()]
    assert kept == ["checkpoint-100000001"]
    assert {"checkpoint-final", "checkpoint-9999999999.old", "logs"} <= set(names(tmp_path / "run"))
    assert "checkpoint-00000005.tmp" not in names(tmp_path / "run"), "what a killed run left half written is removed"


# docs/decisions/checkpoints.md: A checkpoint gets its final name only once it is on the disk
def test_nothing_has_its_name_before_it_is_on_the_disk(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the rename every file and folder in it was synced; the folder around it is synced after."""
    training = start(checkpoints_total_limit=1)
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    end(training)
    synced: set[Path] = set()
    renamed: list[str] = []
    in_order: list[bool] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real_sync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        # Noted, not asserted: what is raised in here counts as a failed save.
        if Path(target).suffix == "":
            in_order.append({path, *path.rglob("*")} <= synced and (path / "manifest.json").exists())
            synced.clear()
        else:
            in_order.append(synced == {path.parent})  # the old one goes only when the new name is on the disk
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    training.train(2)
    end(training)
    assert renamed == ["checkpoint-00000002", "checkpoint-00000001.removed"]
    assert in_order == [True, True]


# docs/decisions/checkpoints.md: A POSIX lock keeps a second training out of the folder
def test_two_trainings_never_write_into_one_folder(start: Start, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    holding = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", holding, str(tmp_path / "run" / "checkpoints" / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SystemExit, match=r"another training writes into .*checkpoints"):
            start().checkpoints.resume(SAMPLES)
        other.kill()
    assert start().checkpoints.resume(SAMPLES) == 0, "a killed training holds nothing"


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ({}, {"seed": 2}, "was trained with seed 1, not 2: its data order would not continue"),
        ({}, {"real_batch_size": 16}, "was trained with real_batch_size 8, not 16"),
        ({}, {"layout": "fsdp"}, "was saved as whole, and cannot be loaded as fsdp"),
        ({"layout": "zero2"}, {"layout": "zero3"}, "was saved as zero2, and cannot be loaded as zero3"),
    ],
)
def test_what_could_not_go_on_exactly_is_refused(
    start: Start, before: dict[str, Any], now: dict[str, Any], says: str
) -> None:
    training = start(**before)
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    other = start(**now)
    with pytest.raises(SystemExit, match=says):
        other.checkpoints.resume(SAMPLES)
    assert other.loaded == ""


@pytest.mark.parametrize(
    ("layout", "refused"), [("whole", False), ("fsdp", False), ("zero0", False), ("zero2", True), ("gemini", True)]
)
def test_another_number_of_ranks_is_for_layouts_that_can_be_cut_anew(start: Start, layout: str, refused: bool) -> None:
    training = start(layout=layout)
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    other = start(layout=layout)
    other.checkpoints.world = 4
    if refused:
        with pytest.raises(
            SystemExit, match=f"saved by 1 ranks; {layout} can only load it with the same number, not with 4"
        ):
            other.checkpoints.resume(SAMPLES)
    else:
        assert other.checkpoints.resume(SAMPLES) == 1


# docs/decisions/checkpoints.md: A resume compares the number of samples, not their contents
def test_other_data_is_not_gone_on_with(start: Start) -> None:
    """The order of the samples is a permutation of their number: some would come twice, and others never."""
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    other = start()
    with pytest.raises(SystemExit, match="was trained with samples 100, not 101: its data order would not continue"):
        other.checkpoints.resume(SAMPLES + 1)
    assert other.loaded == ""


def test_a_resume_says_what_has_changed(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    training = start()
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    start(learning_rate=0.2).checkpoints.resume(SAMPLES)
    said = capfd.readouterr().out
    assert "\n  changed since: learning_rate 0.1 -> 0.2\n  so the learning rate follows" in said
    start(learning_rate=0.1, on_failed_save="stop").checkpoints.resume(SAMPLES)
    assert "changed since: on_failed_save continue -> stop\n" in (said := capfd.readouterr().out)
    assert "learning rate" not in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_costs_no_earlier_checkpoint(
    start: Start, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = start(small_disk, size=400_000)
    training.checkpoints.resume(SAMPLES)
    training.train(1, 2, 3, 4)
    end(training)
    assert names(small_disk) == ["checkpoint-00000001", "checkpoint-00000002"]
    said = capfd.readouterr().out
    assert "update 3 was not saved: rank 0: OSError: [Errno 28] No space left on device: " in said
    assert "bytes needed, " in said
    assert f"training goes on, the newest checkpoint is {small_disk}/checkpoints/checkpoint-00000002" in said
    with pytest.raises(SystemExit, match=r"update 4 was not saved: rank 0: OSError: .* No space left"):
        training.checkpoints.close()
    (small_disk / "checkpoints" / "checkpoint-00000001" / "deep" / "more").unlink()  # somebody makes room
    assert training.checkpoints.save(5) == 2
    training.checkpoints.close()
    assert start(small_disk).checkpoints.resume(SAMPLES) == 5


def test_a_disk_that_fills_up_while_writing(start: Start, small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training = start(small_disk)
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    training.size = 2_000_000
    training.train(2)
    end(training)
    assert names(small_disk) == ["checkpoint-00000001"], "what was half written is gone"
    assert "update 2 was not saved: rank 0: OSError: [Errno 28] No space left" in capfd.readouterr().out
    stopping = start(small_disk, on_failed_save="stop")
    assert stopping.checkpoints.resume(SAMPLES) == 1
    stopping.size = 2_000_000
    with pytest.raises(SystemExit, match=r"update 2 was not saved: .*; the newest checkpoint is .*checkpoint-00000001"):
        stopping.train(2)


# docs/decisions/checkpoints.md: A training that cannot write its first checkpoint ends
def test_a_training_that_could_never_save_ends_at_once(start: Start, small_disk: Path) -> None:
    training = start(small_disk, size=2_000_000)
    training.checkpoints.resume(SAMPLES)
    with pytest.raises(SystemExit, match=r"update 1 was not saved: .*no checkpoint could be written so far"):
        training.train(1)


def test_a_read_only_folder_is_named_before_anything_is_trained(start: Start, small_disk: Path) -> None:
    training = start(small_disk)
    training.checkpoints.resume(SAMPLES)
    training.train(1)
    end(training)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(SystemExit, match=rf"Read-only file system: '{small_disk}"):
        start(small_disk).checkpoints.resume(SAMPLES)
