"""A scheduler asks for the end: the ranks save, the checkpoint is compared, and the next launch goes on by itself."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import projects
import pytest
import warm
from patience import patience
from test_launch import TRAINWIZ, latest, launch, project, read
from test_ranks import gone, wait_for

from trainwiz.outcome import Verified
from trainwiz.store import checkpoints, plans

SAVING = """
import hashlib
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
print("arguments", sys.argv[3:])
def save(*_):
    if os.environ["RANK"] == "0":
        folder = out / "checkpoints" / "checkpoint-00000007"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model").write_bytes(b"weights")
        digest = hashlib.sha256(b"weights").hexdigest()
        (folder / "manifest.json").write_text(json.dumps({"sha256": {"model": os.environ.get("DIGEST", digest)}}))
    sys.exit(int(os.environ.get("CODE", "0")))
if "--resume" in sys.argv:
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
for _ in range(3000): time.sleep(0.02)
"""


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


def stopped_by(folder: Path, signum: int, *words: str, **environ: str) -> tuple[int, str]:
    """Launch, wait until the ranks are ready, signal the launcher (0: `trainwiz stop`); its exit code, what it said."""
    process = subprocess.Popen(
        [*TRAINWIZ, "launch", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    pids = [int(wait_for(folder / f"ready-{rank}")) for rank in (0, 1)]
    if signum:
        process.send_signal(signum)
    else:
        subprocess.run([*TRAINWIZ, "stop"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    _, said = process.communicate(timeout=180)
    assert all(gone(pid) for pid in pids)
    for rank in (0, 1):
        (folder / f"ready-{rank}").unlink()
    return process.returncode, said


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_preempted_run_is_compared_and_resumed_by_itself(tmp_path: Path, signum: signal.Signals) -> None:
    folder = project(tmp_path / "p", SAVING)
    code, said = stopped_by(folder, signum, "--grace", "7")
    assert code == 75
    assert f"{signum.name}: asked the ranks to save and exit; waiting up to 7 s" in said
    assert "its files are intact: 1" in said
    outcome = read(folder, "outcome")
    assert (outcome["preempted"], outcome["signal"]) == (True, signum)
    assert outcome["verified"] == {"whole": True, "files": 1, "read": 1, "damaged": []}
    first = latest(folder).name
    again = launch(folder)
    assert f"run {first} was preempted: continuing from its last checkpoint" in again.stderr
    assert again.stdout.strip() == "arguments ['--resume', 'auto']"
    assert read(folder, "command")["resumed_from"] == first
    # That one finished: the next starts anew.
    code, said = stopped_by(folder, signal.SIGINT)
    assert "was preempted" not in said
    assert (code, read(folder, "outcome")["preempted"]) == (75, False)
    code, said = stopped_by(folder, 0)
    assert "was preempted" not in said  # a person's Ctrl-C is no preemption
    outcome = read(folder, "outcome")
    assert (code, outcome["stopped"], outcome["preempted"]) == (75, True, False)
    assert "was preempted" not in launch(folder, "--dry-run", "--json").stderr


def test_a_preempted_run_is_left_where_somebody_wants_another(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", SAVING)
    stopped_by(folder, signal.SIGTERM)
    first = latest(folder)
    for words in (("--", "--lr", "1"), ("--new",)):
        shown = launch(folder, "--dry-run", "--json", *words)
        assert "--resume" not in json.loads(shown.stdout)["argv"], words
    assert "--resume" in json.loads(launch(folder, "--dry-run", "--json").stdout)["argv"]
    plan = folder / "trainwiz.yaml"
    plan.write_text(plans.edited(plan, {"optimizer.learning_rate": 0.5}, comment="tried"))
    shown = launch(folder, "--dry-run", "--json")
    assert "--resume" not in json.loads(shown.stdout)["argv"]
    assert f"run {first.name} was preempted, but the plan or the arguments changed" in shown.stderr
    assert launch(folder, "--new", "--resume").returncode == 2


def test_a_failure_is_not_resumed_by_itself(tmp_path: Path) -> None:
    folder = project(
        tmp_path / "p",
        "Path('runs/latest/checkpoints/checkpoint-00000001').mkdir(parents=True, exist_ok=True); exit(3)",
    )
    assert launch(folder).returncode == 3
    assert "preempted" not in launch(folder).stderr


def test_a_restart_that_is_stopped_before_its_script_began_is_stopped_too(tmp_path: Path) -> None:
    """What the attempt before had stated says nothing of this one, which has trained nothing yet."""
    script = """
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
if "--resume" not in sys.argv:
    if os.environ["RANK"] == "0":
        (out / "config.json").write_text("{}")
        os.kill(os.getpid(), 9)
    time.sleep(60)
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(60)
"""
    folder = project(tmp_path / "p", script)
    code, said = stopped_by(folder, signal.SIGTERM, "--max-restarts", "1")
    outcome = read(folder, "outcome")
    assert (code, outcome["stopped"], len(outcome["attempts"])) == (75, True, 2), said  # type: ignore[arg-type]


def test_a_failing_save_keeps_its_code(tmp_path: Path) -> None:
    code, _ = stopped_by(project(tmp_path / "p", SAVING), signal.SIGTERM, CODE="42")
    assert code == 42


def test_a_damaged_checkpoint_is_said(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", SAVING)
    _, said = stopped_by(folder, signal.SIGTERM, DIGEST="0" * 64)
    assert "that checkpoint is damaged (model)" in said
    assert read(folder, "outcome")["verified"]["damaged"] == ["model"]  # type: ignore[index]


def checkpoint(folder: Path, **files: bytes) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    (folder / "manifest.json").write_text(json.dumps({"sha256": hashes}))
    return folder


def test_comparing_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    checkpoint(tmp_path, large=b"x" * 5_000_000, small=b"y")
    times = iter([0.0, *[0.5] * 3, *[1.5] * 9])
    part = checkpoints.verify(tmp_path, seconds=1.0, clock=lambda: next(times))
    assert part == Verified(files=2, read=1)
    assert not part.whole
    assert checkpoints.verify(tmp_path, seconds=9) == Verified(files=2, read=2)


def test_what_is_missing_torn_or_unreadable_counts_as_damaged(tmp_path: Path) -> None:
    assert checkpoints.verify(tmp_path, seconds=9) is None
    checkpoint(tmp_path, a=b"1", b=b"2", c=b"3")
    (tmp_path / "a").write_bytes(b"changed")
    (tmp_path / "b").unlink()
    found = checkpoints.verify(tmp_path, seconds=9)
    assert found
    assert sorted(found.damaged) == ["a", "b"]
    for torn in ("{", "[]", '{"sha256": 3}'):
        (tmp_path / "manifest.json").write_text(torn)
        assert checkpoints.verify(tmp_path, seconds=9) == Verified(files=1, read=1, damaged=("manifest.json",))


@pytest.mark.train
def test_a_real_training_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    values = {**projects.REGRESSION, "schedule.n_steps": 40, "checkpoint.checkpointing_steps": 0, "data.eval": ""}
    folder = paced(projects.make(tmp_path / "p", values))
    environ = projects.environment()
    command = warm.command(folder / "train.py", "launch", str(folder))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ) as first:
        wait_for(folder / "runs" / "latest" / "metrics.jsonl", 60)
        first.send_signal(signal.SIGUSR1)
        _, said = first.communicate(timeout=180)
    assert first.returncode == 75, said
    assert "its files are intact" in said
    (folder / "slow").unlink()
    interrupted = projects.losses(folder)
    assert 0 < len(interrupted) < 40
    again = warm.launch(folder)
    assert again.code == 0, again.err
    assert "was preempted: continuing" in again.err
    resumed = projects.losses(folder)
    assert warm.launch(folder).code == 0  # finished: this one starts anew
    whole = projects.losses(folder)
    assert len(whole) == 40
    assert interrupted + resumed == pytest.approx(whole, rel=1e-6)


def paced(folder: Path) -> Path:
    """A project that trains slowly, until somebody deletes the file `slow`."""
    (folder / "slow").touch()
    return projects.begins_with(folder, "loss_sum", "import os, time; time.sleep(0.2 * os.path.exists('slow'))")


MOMENTS = '''
import os, time
from pathlib import Path

def moment(name):
    """Say once that it is here, and stay for a while: somebody signals meanwhile."""
    here = Path("here-" + os.environ.get("RANK", "0"))
    if os.environ.get("MOMENT") == name and not here.exists():
        here.touch()
        time.sleep(1.5)

save = torch.save
def slow_save(*arguments, **options):
    moment("saving")
    return save(*arguments, **options)
torch.save = slow_save
'''


def at_moments(folder: Path) -> Path:
    """A project whose training can be met while it loads, evaluates and saves."""
    task = folder / "task.py"
    for name, moment in (("load_train_data", "loading"), ("evaluation_sums", "evaluating")):
        projects.begins_with(folder, name, f'moment("{moment}")')
    source = task.read_text()
    head = source.index("Batch = dict")
    task.write_text(source[:head] + MOMENTS + "\n\n" + source[head:])
    return folder


def met(folder: Path, moment: str, signum: int) -> tuple[int, str, float]:
    """Launch, and signal the launcher when the training is there: its code, what it said, seconds until it ended."""
    # All ranks load; the last of them may still be starting, without a handler, when the first is there.
    awaited = [folder / f"here-{rank}" for rank in ((0, 1) if moment == "loading" else (0,))]
    for file in folder.glob("here-?"):
        file.unlink()
    command = warm.command(folder / "train.py", "launch", "--grace", "20")
    environ = projects.environment({"MOMENT": moment})
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        until = time.monotonic() + 120 * patience()
        while not all(file.exists() for file in awaited):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signum)
        began = time.monotonic()
        _, said = process.communicate(timeout=180)
    return process.returncode, said, time.monotonic() - began


@pytest.mark.train
def test_a_training_is_preempted_while_it_loads_evaluates_and_saves(tmp_path: Path) -> None:
    values = {
        **projects.REGRESSION,
        "batch.real_batch_size": 64,
        "batch.per_device_batch_size": 32,
        "schedule.n_steps": 40,
        "checkpoint.checkpointing_steps": 35,
        "checkpoint.checkpoints_total_limit": 2,
    }
    folder = at_moments(projects.make(tmp_path / "p", values))
    # Nothing is trained yet: nothing to save, and nothing to go on from.
    code, said, _ = met(folder, "loading", signal.SIGUSR1)
    assert code == 75, said
    assert not any(folder.glob("runs/latest/checkpoints/checkpoint-*"))
    curve: list[float] = []
    for moment, signum, last in (
        ("evaluating", signal.SIGTERM, 32),
        ("saving", signal.SIGUSR1, 36),
        ("loading", 15, 36),
    ):
        code, said, seconds = met(folder, moment, signum)
        assert code == 75, said
        assert seconds < 60 * patience(), said
        assert ("continuing from its last checkpoint" in said) == (moment != "evaluating")
        outcome = json.loads((folder / "runs/latest/outcome.json").read_text())
        assert outcome["preempted"] is True
        assert outcome["checkpoint"] == f"checkpoint-{last:08}"
        assert outcome["verified"]["whole"] is True
        curve += projects.losses(folder) if (folder / "runs/latest/metrics.jsonl").exists() else []
    done = warm.launch(folder)
    assert done.code == 0, done.err
    curve += projects.losses(folder)
    assert warm.launch(folder, "--new").code == 0
    whole = projects.losses(folder)
    assert len(whole) == 40
    assert curve == pytest.approx(whole, rel=1e-6)
