"""Run folders: names, records, the latest link, and chains of resumed runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwiz.errors import TrainwizError, UsageError
from trainwiz.store import runs
from trainwiz.store.runs import Run

NOON = 1_800_000_000.0


def checkpoint(run: Run, update: int) -> Path:
    folder = run.checkpoints / f"checkpoint-{update:08d}"
    folder.mkdir(parents=True)
    return folder


def test_a_run_has_its_folders_and_latest_points_to_it(tmp_path: Path) -> None:
    run = runs.create(tmp_path)
    assert run.logs.is_dir()
    assert runs.is_name(run.name)
    assert os.readlink(tmp_path / "runs" / "latest") == run.name
    assert not run.checkpoints.exists()
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == sorted([run.name, "latest"])


def test_two_runs_in_the_same_second(tmp_path: Path) -> None:
    first, second = runs.create(tmp_path, now=NOON), runs.create(tmp_path, now=NOON)
    assert (first.name[:-1], first.name[-1], second.name[-1]) == (second.name[:-1], "1", "2")
    assert (tmp_path / "runs" / "latest").resolve() == second.folder.resolve()


def test_a_link_that_leads_nowhere_has_a_runs_name(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / runs.next_name(tmp_path, NOON)).symlink_to("nowhere")
    assert runs.create(tmp_path, now=NOON).name.endswith("-2")
    assert not (tmp_path / "runs" / "nowhere").exists()


def test_many_processes_get_a_folder_each(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from trainwiz.store import runs; "
        f"print(runs.create(Path({str(tmp_path)!r}), now={NOON}).name)"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    names = [p.communicate(timeout=180)[0].strip() for p in started]
    assert len(set(names)) == 6
    assert (tmp_path / "runs" / "latest").resolve().name in names


def test_runs_are_ordered_by_time_then_number(tmp_path: Path) -> None:
    made = [runs.create(tmp_path, now=NOON).name for _ in range(11)]
    made.append(runs.create(tmp_path, now=NOON + 1).name)
    (tmp_path / "runs" / "notes").mkdir()
    assert [r.name for r in runs.every(tmp_path)] == made


def test_newest_complete_checkpoint_by_number(tmp_path: Path) -> None:
    run = runs.create(tmp_path)
    assert run.checkpoint() is None
    for update in (9, 100, 20):
        checkpoint(run, update)
    (run.checkpoints / "checkpoint-00000200.tmp").mkdir()
    (run.checkpoints / "checkpoint_final").mkdir()
    (run.checkpoints / "checkpoint-00000300").write_text("a file")
    assert run.checkpoint() == run.checkpoints / "checkpoint-00000100"


def test_resume_links_relatively_to_the_first_runs_checkpoints(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    first = runs.create(project, now=NOON)
    checkpoint(first, 10)
    second = runs.create(project, continues=runs.to_continue(project), now=NOON + 1)
    third = runs.create(project, continues=runs.to_continue(project), now=NOON + 2)
    assert os.readlink(third.checkpoints) == os.readlink(second.checkpoints) == f"../{first.name}/checkpoints"
    checkpoint(third, 20)
    assert first.checkpoint() == first.checkpoints / "checkpoint-00000020"
    project.rename(tmp_path / "moved")
    assert Run(tmp_path / "moved" / "runs" / third.name).checkpoint() is not None


def test_resume_without_a_run_or_a_checkpoint_is_clear(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no run to resume"):
        runs.to_continue(tmp_path)
    old = runs.create(tmp_path, now=NOON)
    with pytest.raises(TrainwizError, match="has no complete checkpoint") as caught:
        runs.to_continue(tmp_path)
    assert "start over" in str(caught.value.remedy)
    checkpoint(old, 5)
    runs.create(tmp_path, now=NOON + 1)
    with pytest.raises(TrainwizError, match="has no complete checkpoint") as caught:
        runs.to_continue(tmp_path)
    assert f"--resume {old.name}" in str(caught.value.remedy)
    assert runs.to_continue(tmp_path, old.name) == old
    assert runs.to_continue(tmp_path, f"runs/{old.name}") == old
    with pytest.raises(UsageError, match="no run nonsense in"):
        runs.to_continue(tmp_path, "nonsense")


def test_a_run_that_still_runs_is_not_continued(tmp_path: Path) -> None:
    run = runs.create(tmp_path)
    checkpoint(run, 5)
    with subprocess.Popen(
        [sys.executable, "-c", "input('trainwiz')"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        other.stdout.read(8)
        run.record("command", {"pid": other.pid, "hostname": os.uname().nodename})
        with pytest.raises(TrainwizError, match="is still running"):
            runs.to_continue(tmp_path)
        run.record("outcome", {"exit_code": 0})
        assert runs.to_continue(tmp_path) == run
        other.communicate(b"\n")


def test_records_are_whole_and_per_machine(tmp_path: Path) -> None:
    run = runs.create(tmp_path)
    run.record("command", {"argv": ["python", "训练.py"]})
    assert run.read("command") == {"argv": ["python", "训练.py"]}
    joined = runs.join(tmp_path, run.name, machine=1)
    assert joined.record("outcome", {"exit_code": 3}).name == "outcome-machine-1.json"
    assert json.loads((run.folder / "outcome-machine-1.json").read_text()) == {"exit_code": 3}
    assert run.read("outcome") == {}
    (run.folder / "outcome.json").write_text("{torn")
    assert run.read("outcome") == {}


def test_a_name_from_machine_0_cannot_leave_the_project(tmp_path: Path) -> None:
    with pytest.raises(TrainwizError, match="which is not a run name"):
        runs.join(tmp_path, "../../etc", machine=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_project_is_said_by_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrainwizError, match="cannot write to"):
        runs.create(tmp_path)


def test_a_project_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(TrainwizError, match="cannot write to"):
        runs.create(tmp_path)


def test_a_folder_called_latest_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    run = runs.create(tmp_path)
    assert run.folder.is_dir()
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == sorted([run.name, "latest"])
