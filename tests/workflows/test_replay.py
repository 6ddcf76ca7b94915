"""`trainwiz replay`: a run once more, in the project or rebuilt beside it, and the curves compared."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import projects
import pytest
import warm

from trainwiz.cli import run
from trainwiz.store import code_files
from trainwiz.store.manifest import sha256
from trainwiz.workflows import launch as launching
from trainwiz.workflows.launch.request import Request

PLAN = {
    **projects.REGRESSION,
    "strategy.kind": "single",
    "machine.num_processes": 1,
    "batch.per_device_batch_size": 16,
    "data.eval": "",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was launched once; nobody changes it."""
    folder = projects.make(tmp_path_factory.mktemp("replay") / "project", PLAN)
    done = warm.launch(folder, "--", "--seed", "7")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Path(shutil.copytree(trained, tmp_path / "project", symlinks=True))


def first(project: Path) -> Path:
    return next(path for path in sorted((project / "runs").iterdir()) if path.name[0].isdigit())


def dry(project: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["replay", str(first(project)), "--dry-run", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def edit_record(project: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = first(project) / "command.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def test_an_unchanged_project_repeats_the_run_to_the_last_bit(trained: Path) -> None:
    done = projects.trainwiz("replay", str(trained))
    assert done.code == 0, done.err
    assert "plan and code are unchanged" in done.err
    assert "identical; updates: 8" in done.out
    runs = [path for path in sorted((trained / "runs").iterdir()) if path.name[0].isdigit()]
    before, after = (json.loads((path / "command.json").read_text()) for path in runs[:2])
    assert (before["replays"], after["replays"]) == (None, runs[0].name)
    assert after["arguments"] == before["arguments"] == ["--seed", "7"]
    assert (after["files"], after["plan"], after["versions"]) == (before["files"], before["plan"], before["versions"])


def test_a_changed_project_is_rebuilt_beside_it_and_trains_the_same(project: Path) -> None:
    """Old code, with data and modules that only the project has; what was added since is not there."""
    task, plan = project / "task.py", project / "trainwiz.yaml"
    old = task.read_text()
    task.write_text(old.replace("loss", "lots"))
    plan.write_text(plan.read_text().replace("learning_rate: 0.003", "learning_rate: 0.004"))
    (project / "new.py").write_text("new")
    (project / "data").mkdir()
    (project / "data" / "a.txt").write_text("there")
    name = first(project).name
    done = projects.trainwiz("replay", str(project / "runs" / name))
    assert done.code == 0, done.err
    assert "optimizer.learning_rate: 0.003 → 0.004" in done.err
    assert "task.py: " in done.err
    rebuilt = project.with_name(f"project-replay-{name}")
    assert "identical; updates: 8" in done.out
    assert (rebuilt / "task.py").read_text() == old
    assert (rebuilt / "data" / "a.txt").read_text() == "there"
    assert not (rebuilt / "new.py").exists()
    # The same again finds its folder; a folder with other files is left alone.
    (rebuilt / "task.py").write_text("mine")
    done = projects.trainwiz("replay", str(project / "runs" / name))
    assert (done.code, (rebuilt / "task.py").read_text()) == (2, "mine")
    assert "contains other files: task.py" in done.err


def test_what_differs_is_said_by_section(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(project, capsys)["differences"] == []
    edit_record(project, lambda record: record["versions"].update(torch="1.0"))
    plan = project / "trainwiz.yaml"
    plan.write_text(plan.read_text() + "# a comment changes nothing\n")
    found = dry(project, capsys)
    assert [(one["section"], one["key"], one["before"]) for one in found["differences"]] == [
        ("versions", "torch", "1.0")
    ]
    assert (found["rebuilt"], found["folder"]) == (False, str(project))
    (project / "batches.py").unlink()
    found = dry(project, capsys, "--into", str(project / "elsewhere"))
    assert [one["key"] for one in found["differences"]] == ["torch", "batches.py"]
    assert (found["rebuilt"], found["folder"]) == (True, str(project / "elsewhere"))
    assert not (project / "elsewhere").exists()


def test_a_python_that_is_gone_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_record(project, lambda record: record.update(argv=["/opt/gone/python", *record["argv"][1:]]))
    assert run(["replay", str(first(project)), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "the run's Python, /opt/gone/python, is no longer there; using " in said
    assert run(["replay", str(first(project)), "--dry-run", "--python", warm.python()]) == 0
    assert "/opt/gone" not in capsys.readouterr().err


def test_the_code_of_a_rebuilt_project_is_the_old_one(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_record(project, lambda record: record.update(git={"commit": "0" * 40, "branch": "b", "dirty": 0}))
    assert run(["replay", str(first(project)), "--dry-run"]) == 0
    assert "Code (then → now; the replay uses the current one)" in capsys.readouterr().err
    (project / "task.py").write_text((project / "task.py").read_text() + "# more\n")
    assert run(["replay", str(first(project)), "--dry-run"]) == 0
    assert "Code (then → now; the replay uses the old one)" in capsys.readouterr().err


def test_arguments_instead_of_the_plan_are_no_difference(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The record's plan is what the script used; the file's plan is what is compared."""
    assert json.loads((first(project) / "command.json").read_text())["plan"]["seed"] == 7
    assert dry(project, capsys)["differences"] == []


@pytest.mark.parametrize("source", ["git", "nowhere"])
def test_a_file_that_was_not_kept_comes_from_git_or_stops_the_replay(
    project: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    if source == "git":
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q"], ["add", "task.py"], ["commit", "-qm", "x"]):
            subprocess.run([*git, *words], cwd=project, check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True)
        edit_record(project, lambda record: record.update(git={"commit": commit.stdout.strip(), "dirty": 3}))
    digest = json.loads((first(project) / "command.json").read_text())["files"]["task.py"]
    (project / code_files.KEPT / digest).unlink()
    (project / "task.py").write_text("lost")
    capsys.readouterr()
    code = run(["replay", str(first(project)), "--dry-run"])
    told = capsys.readouterr().err
    assert (code, "cannot be found" in told) == ((0, False) if source == "git" else (1, True)), told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.pop("files"), "did not record its files"),
        (lambda record: record.pop("plan"), "has no plan"),
        (lambda record: record.update(arguments=["--token", "***"]), "hidden in its record"),
        (lambda record: record["files"].update({"../x.py": "0"}), "outside its project"),
        (lambda record: record["files"].update({"runs/x.py": "0"}), "outside its project"),
        (lambda record: record["plan"].update(task="haiku"), "cannot read the recorded plan"),
        (lambda record: record.clear(), "it is unknown how it was launched"),
    ],
)
def test_records_that_cannot_be_repeated_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], object], words: str
) -> None:
    edit_record(project, change)
    assert run(["replay", str(first(project)), "--dry-run"]) in (1, 2)
    assert words in capsys.readouterr().err


def test_every_machine_of_a_run_replays_it(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told its rank and launches the same folder; the roll-call is that of the launch, and 0 compares."""
    asked: list[Request] = []
    monkeypatch.setattr(launching, "launch", lambda request: asked.append(request) or 0)
    for repeated in [path for path in (project / "runs").iterdir() if path.is_dir() and path != first(project)]:
        repeated.unlink() if repeated.is_symlink() else shutil.rmtree(repeated)
    plan = project / "trainwiz.yaml"
    for edited in (plan, first(project) / "plan.yaml"):
        edited.write_text(edited.read_text().replace("num_machines: 1", "num_machines: 2"))
    edit_record(project, lambda record: record["plan"]["machine"].update(num_machines=2))
    edit_record(project, lambda record: record["files"].update({"trainwiz.yaml": sha256(plan.read_bytes())}))
    name = first(project).name
    for words, says in (([], "--machine-rank N"), (["--machine-rank", "2"], "machines 0 to 1")):
        assert run(["replay", str(first(project)), *words]) == 2
        assert says in capsys.readouterr().err
    monkeypatch.chdir(project)
    assert run(["replay"]) == 2
    assert f"trainwiz replay {name} --machine-rank N" in capsys.readouterr().err
    for rank in ("1", "0"):
        assert run(["replay", name, "--machine-rank", rank, "--wait", "5", "--secret", "eight words"]) == 0
    assert [(r.machine_rank, r.wait, r.secret, r.replays) for r in asked] == [
        (rank, 5.0, "eight words", name) for rank in (1, 0)
    ]
    assert len({r.folder for r in asked}) == 1


def test_an_empty_file_is_kept_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    edit_record(project, lambda record: record["files"].update({"m/__init__.py": digest}))
    (project / "m").mkdir()
    (project / "m" / "__init__.py").write_text("")
    code_files.keep(project, frozenset())
    (project / "m" / "__init__.py").write_text("changed = True\n")
    assert dry(project, capsys)["rebuilt"]
    (project / "notes.txt").write_text("mine")
    assert run(["replay", str(first(project)), "--into", str(project / "notes.txt")]) == 2
    assert "contains other files" in capsys.readouterr().err


def test_two_runs_are_compared_without_training(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = first(project)
    other = Path(shutil.copytree(one, one.with_name("2031-01-01_00-00-00-1")))
    assert run(["replay", str(one), "--compare", "latest"]) == 0
    assert "identical; updates" in capsys.readouterr().out
    records = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    records[3]["loss"] *= 1.001
    (other / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run(["replay", str(one), "--compare", other.name, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["parted_at"], found["parted_in"]) == ("diverged", records[3]["update"], "loss")
    assert run(["replay", str(one), "--compare", other.name, "--tolerance", "0.01"]) == 0
    assert "the same" in capsys.readouterr().out
    assert run(["replay", str(one), "--json"]) == 2
