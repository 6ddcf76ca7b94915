"""What follows a failed attempt: histories replayed, then real launches that are restarted."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import projects
import pytest
import warm
from test_launch import TRAINWIZ, launch, project, read

from trainwiz.batch import Batch
from trainwiz.diagnose.known import SIGNATURES
from trainwiz.message import Message
from trainwiz.outcome import Outcome
from trainwiz.recovery import OUT_OF_MEMORY, Attempt, Policy, Recovery, Retry
from trainwiz.store import plans

DONE = Attempt(outcome=Outcome(exit_code=0, codes={0: 0}), update=100)


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


def failed(code: int = -9, update: int = 0, passing: bool | None = None, memory: bool = False) -> Attempt:
    exit_code = 128 - code if code < 0 else code
    outcome = Outcome(exit_code=exit_code, codes={0: -15, 1: code}, first_failed=1)
    return Attempt(outcome=outcome, update=update, passing=passing, out_of_memory=memory)


def delay(follows: object) -> float:
    assert isinstance(follows, Retry), str(follows)
    return follows.delay


def reason(follows: object) -> str:
    assert isinstance(follows, Message)
    return str(follows)


def test_nothing_follows_a_good_end_or_a_request_or_without_permission() -> None:
    assert Recovery(Policy(max_restarts=3)).after(DONE, 0.0) is None
    assert Recovery(Policy()).after(failed(), 0.0) is None
    asked = Attempt(outcome=Outcome(exit_code=143, codes={0: -15}, signal=15))
    assert Recovery(Policy(max_restarts=3)).after(asked, 0.0) is None
    stuck = Attempt(outcome=Outcome(exit_code=137, codes={0: None, 1: -9}, first_failed=1))
    assert Recovery(Policy(max_restarts=3)).after(stuck, 0.0) is None  # two worlds must not share a checkpoint


def test_it_is_tried_so_often_and_no_more() -> None:
    world = Recovery(Policy(max_restarts=2))
    assert delay(world.after(failed(update=10), 0.0)) == 0
    assert delay(world.after(failed(update=20), 100.0)) == 0
    assert "--max-restarts allows 2, and all are used up" in reason(world.after(failed(update=30), 200.0))


@pytest.mark.parametrize(
    ("attempt", "again"),
    [
        (failed(-9), True),
        (failed(1), False),
        (failed(1, passing=True), True),
        (failed(-9, passing=False), False),
        (Attempt(outcome=Outcome(exit_code=124, codes={0: -15, 1: -9}, hung=True)), True),
        (Attempt(outcome=Outcome(exit_code=124, codes={0: 124}, first_failed=0)), False),
    ],
)
def test_only_a_passing_failure_is_tried_again(attempt: Attempt, again: bool) -> None:
    follows = Recovery(Policy(max_restarts=1)).after(attempt, 0.0)
    assert isinstance(follows, Retry) == again
    if not again:
        assert "would happen again" in reason(follows)


def test_back_off_doubles_while_nothing_is_trained_and_ends_with_progress() -> None:
    world = Recovery(Policy(max_restarts=99, per_hour=99))
    codes = [-9, -11, -9, -11, -9, -11, -9, -11]  # not twice the same, so that it goes on
    delays = [delay(world.after(failed(code), 0.0)) for code in codes]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert delay(world.after(failed(update=5), 0.0)) == 0
    assert delay(world.after(failed(update=5), 0.0)) == 1


def test_the_same_end_at_the_same_update_is_no_accident() -> None:
    world = Recovery(Policy(max_restarts=99))
    world.after(failed(update=7), 0.0)
    world.after(failed(update=7), 9.0)
    assert "3 attempts in a row ended the same way after update 7" in reason(world.after(failed(update=7), 20.0))


def test_the_budget_of_an_hour_is_a_window() -> None:
    world = Recovery(Policy(max_restarts=99, per_hour=2))
    for i, now in enumerate((0.0, 1000.0)):
        delay(world.after(failed(update=i + 1), now))
    assert "2 restarts within an hour" in reason(world.after(failed(update=9), 2000.0))
    assert delay(world.after(failed(update=10), 3700.0)) == 0


def test_memory_halves_the_micro_batch_and_keeps_the_real_batch() -> None:
    world = Recovery(Policy(auto_batch=True), Batch(micro=8, accumulation=3, world=2))
    for micro in (4, 2, 1):
        follows = world.after(failed(1, memory=True), 0.0)
        assert isinstance(follows, Retry)
        assert follows.batch == world.batch == Batch(micro=micro, accumulation=24 // micro, world=2)
        assert f"48 = {micro} × {24 // micro} × 2" in str(follows.why)
    assert "which cannot be halved" in reason(world.after(failed(1, memory=True), 0.0))
    assert world.restarts == 0
    assert Recovery(Policy(), Batch(micro=8, accumulation=3, world=2)).after(failed(1, memory=True), 0.0) is None


@pytest.mark.parametrize("seed", range(50))
def test_any_history_ends(seed: int) -> None:
    chance = random.Random(seed)
    world = Recovery(Policy(max_restarts=5, per_hour=4, auto_batch=True), Batch(micro=4, accumulation=1, world=1))
    for n in range(100):
        memory = chance.random() < 0.3
        follows = world.after(failed(chance.choice([-9, -11]), chance.randrange(50), memory=memory), n * 10.0)
        if not isinstance(follows, Retry):
            break
    assert n <= 5 + 2


def test_memory_is_what_the_diagnosis_calls_so() -> None:
    assert set(OUT_OF_MEMORY) <= {signature.name for signature in SIGNATURES}


# Real launches

COUNTED = """
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
n = len(list(Path().glob(f"attempt-{os.environ.get('RANK', '0')}-*")))
Path(f"attempt-{os.environ.get('RANK', '0')}-{n}").write_text(" ".join(sys.argv[3:]))
print("attempt", n, flush=True)
other = Path(f"attempt-{1 - int(os.environ.get('RANK', '0'))}-{n}")
while os.environ.get("WORLD_SIZE") == "2" and not other.exists(): time.sleep(0.01)
"""


def test_a_killed_rank_is_replaced_in_the_same_run(tmp_path: Path) -> None:
    script = COUNTED + "if n == 0: os.environ.get('RANK', '0') == '1' and os.kill(os.getpid(), 9); time.sleep(60)\n"
    folder = project(tmp_path / "p", script)
    done = launch(folder, "--max-restarts", "2", "--", "--lr", "1")
    assert done.returncode == 0, done.stderr
    said = done.stderr.partition("restart 1 of 2 in 1 s, from the newest complete checkpoint")
    assert said[1]
    assert "rank 1 failed first, ended by SIGKILL" in said[0]
    assert "the rank was killed from outside" in said[0]
    assert done.stdout == "attempt 0\nattempt 1\n"
    assert (folder / "attempt-0-0").read_text() == "--lr 1"
    assert (folder / "attempt-1-1").read_text() == "--lr 1 --resume auto"
    outcome = read(folder, "outcome")
    attempts = outcome["attempts"]
    assert isinstance(attempts, list)
    assert [(a["exit_code"], a["first_failed_rank"]) for a in attempts] == [(137, 1), (0, None)]
    # The run took as long as its attempts, and the second between them.
    assert outcome["seconds"] >= sum(a["seconds"] for a in attempts) + 1
    logs = folder / "runs" / "latest" / "logs"
    assert (logs / "rank-0.attempt-1.log").read_text() == "attempt 0\n"
    assert (logs / "rank-0.log").read_text() == "attempt 1\n"


def test_build_locks_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    script = (
        COUNTED
        + """
ops = Path(os.environ["TORCH_EXTENSIONS_DIR"])
if n == 0:
    (ops / "mine").mkdir(exist_ok=True)
    held = os.open(ops / "mine" / "lock", os.O_CREAT | os.O_EXCL)
    os.kill(os.getpid(), 9)
print(sorted(str(lock.relative_to(ops)) for lock in ops.glob("*/lock")))
"""
    )
    folder = project(tmp_path / "p", script, ranks=1)
    ops = tmp_path / "ops"
    for name in ("older", "held"):
        (ops / name).mkdir(parents=True)
        (ops / name / "lock").touch()
    os.utime(ops / "older" / "lock", (1, 1))  # an earlier launch's
    with (ops / "held" / "lock").open() as held:
        os.utime(held.name, (time.time() + 5,) * 2)
        done = launch(folder, "--max-restarts", "1", TORCH_EXTENSIONS_DIR=str(ops))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['held/lock']"
    for name in ("mine", "older"):
        assert f"removed a build lock that no process owns: {ops / name / 'lock'}" in done.stderr


def test_an_exception_is_not_tried_again(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", COUNTED + "raise ValueError('the same each time')", ranks=1)
    done = launch(folder, "--max-restarts", "5")
    assert done.returncode == 1
    assert "would happen again" in done.stderr
    assert len(list(folder.glob("attempt-*"))) == 1


def test_a_signal_during_the_back_off_ends_it(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", COUNTED + "os.kill(os.getpid(), 9 if n % 2 else 11)", ranks=1)
    process = subprocess.Popen(
        [*TRAINWIZ, "launch", "--max-restarts", "9"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr
    while b"restart 3 of 9 in 4 s" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=180)[1]
    assert b"restart 4" not in said
    assert len(list(folder.glob("attempt-*"))) == 3
    assert process.returncode == 139
    assert read(folder, "outcome")["preempted"] is True


def test_the_micro_batch_is_halved_until_it_fits(tmp_path: Path) -> None:
    script = (
        COUNTED
        + """
micro = int(sys.argv[-3]) if "--per_device_batch_size" in sys.argv else 8
if micro > 2: raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
"""
    )
    folder = project(tmp_path / "p", script)
    done = launch(folder, "--auto-batch")
    assert done.returncode == 0, done.stderr
    last = (folder / "attempt-0-2").read_text()
    assert last == "--resume auto --per_device_batch_size 2 --gradient_accumulation_steps 8"
    assert "32 = 2 × 8 × 2" in done.stderr
    attempts = read(folder, "outcome")["attempts"]
    assert isinstance(attempts, list)
    assert [a["out_of_memory"] for a in attempts] == [True, True, False]
    assert attempts[-1]["batch"] == {"micro": 2, "accumulation": 8, "world": 2}


def test_where_they_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n")
    (tmp_path / "their.py").write_text("")
    done = launch(tmp_path, "--auto-batch", "--config", "theirs.yaml", "their.py")
    assert (done.returncode, "sets its batch size itself" in done.stderr.replace("\n", " ")) == (2, True)
    folder = project(tmp_path / "p", "")
    plan = folder / "trainwiz.yaml"
    plan.write_text(plans.edited(plan, {"machine.num_machines": 2}, comment="tried"))
    address = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29999"}
    for option, words in (
        (("--spares",), "--spares works on one machine only"),
        (("--nnodes", "3"), "the plan has 2 machines, so MAX must be 2"),
        (("--nnodes", "0:2"), "MIN must be from 1 to 2"),
        (("--nnodes", "two"), "must be MIN:MAX, such as 1:2"),
    ):
        done = launch(folder, *option, "--machine-rank", "0", "--ignore", "TW", **address)
        assert done.returncode == 2, done.stderr
        assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("options", "attempts"),
    [((), 2), (("--max-restarts", "0"), 1)],
)
def test_the_plan_allows_restarts_and_an_option_says_otherwise(
    tmp_path: Path, options: tuple[str, ...], attempts: int
) -> None:
    folder = project(tmp_path / "p", "os.kill(os.getpid(), signal.SIGKILL)", ranks=1)
    plan = folder / "trainwiz.yaml"
    plan.write_text(plans.edited(plan, {"supervision.max_restarts": 1}, comment="tried"))
    done = launch(folder, *options)
    assert done.returncode == 137, done.stderr
    assert len(read(folder, "outcome")["attempts"]) == attempts  # type: ignore[arg-type]


SABOTAGE = """
import os, signal
from pathlib import Path
def sabotage(micro):
    if micro > {most}: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    if os.environ["RANK"] == "1":
        done = Path("sabotaged"); calls = int(done.read_text()) + 1 if done.exists() else 1
        done.write_text(str(calls))
        if calls in {deaths}: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.train
@pytest.mark.parametrize("kind", ["ddp"])
def test_a_training_that_is_shot_and_out_of_memory_has_the_same_curve(tmp_path: Path, kind: str) -> None:
    strategy = {"strategy.kind": "ddp"} if kind == "ddp" else {"strategy.kind": "deepspeed", "strategy.zero_stage": 2}
    folder = projects.make(tmp_path / "p", {**projects.REGRESSION, **strategy, "data.eval": ""})
    assert warm.launch(folder).code == 0
    whole = projects.losses(folder)
    task = folder / "task.py"
    source = task.read_text()
    start = source.index("def loss_sum(")
    body = source.index("\n", source.index('"""', source.index('"""', start) + 3)) + 1
    hook = "    sabotage(next(iter(batch.values())).shape[0])\n"
    task.write_text(
        source[:start].rstrip()
        + "\n\n"
        + SABOTAGE.format(most=2, deaths="(12, 31)")
        + "\n\n"
        + source[start:body]
        + hook
        + source[body:]
    )
    done = warm.launch(folder, "--max-restarts", "3", "--auto-batch")
    assert done.code == 0, done.err
    attempts = json.loads((folder / "runs" / "latest" / "outcome.json").read_text())["attempts"]
    assert [a["out_of_memory"] for a in attempts] == [True, False, False, False]
    assert [a["exit_code"] for a in attempts[1:]] == [137, 137, 0]  # after an exception gloo may abort: 134 for 1
    assert projects.losses(folder) == pytest.approx(whole, rel=1e-4)
