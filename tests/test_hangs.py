"""Runs that stand still: who is where, who is waited for; and none is suspected that is only slow to start."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import projects
import pytest
import warm
from patience import patience
from test_launch import TRAINWIZ, launch, project, read
from test_ranks import gone, wait_for

from trainwiz.hangs import Frame, Rank, State, compare, parse
from trainwiz.process.progress import Progress
from trainwiz.store import plans

SITE = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITS = (Frame(SITE, 3000, "all_reduce"), Frame(SITE, 9, "wrapper"), Frame("/home/u/train.py", 40, "step"))
LOADS = (Frame("/home/u/data.py", 12, "load_batch"), Frame("/home/u/train.py", 31, "step"))


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


def words(*ranks: Rank, before: tuple[Rank, ...] | None = None) -> tuple[str, tuple[int, ...], bool]:
    verdict = compare(before or ranks, ranks)
    return "; ".join(map(str, verdict.sentences)), verdict.suspects, verdict.still


def test_a_dump_is_read_with_its_threads() -> None:
    dump = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f2 [python] (most recent call first):
  File "/home/u/data.py", line 12 in load_batch
  File "/home/u/train.py", line ??? in <module>
"""
    assert parse(dump) == (Frame("/home/u/data.py", 12, "load_batch"), Frame("/home/u/train.py", 0, "<module>"))
    assert parse("") == parse("process 12\n") == ()


def test_the_one_that_is_elsewhere_is_named() -> None:
    said, suspects, still = words(Rank(rank=0, stack=WAITS), Rank(rank=1, stack=LOADS), Rank(rank=2, stack=WAITS))
    assert "rank 0 is waiting in all_reduce, called at train.py:40" in said
    assert "rank 1 is sleeping in load_batch, data.py:12" in said
    assert "the other ranks are waiting for rank 1" in said
    assert (suspects, still) == ((1,), True)


def test_one_at_work_is_a_straggler_and_not_still() -> None:
    ranks = (Rank(rank=0, stack=WAITS), Rank(rank=1, stack=LOADS, state=State.BUSY))
    said, suspects, still = words(*ranks)
    assert "rank 1 is busy in load_batch" in said
    assert "a straggler" in said
    assert (suspects, still) == ((1,), False)
    moved = (Rank(rank=0, stack=WAITS), Rank(rank=1, stack=LOADS[1:]))
    assert words(*moved, before=(moved[0], Rank(rank=1, stack=LOADS)))[2] is False


def test_one_that_has_ended_or_is_stopped_comes_before_where_the_others_are() -> None:
    said, suspects, still = words(Rank(rank=0, stack=LOADS), Rank(rank=1, state=State.ENDED, code=0))
    assert "rank 1 has ended (exit code 0)" in said
    assert "rank 1 ended while the other ranks are waiting" in said
    assert (suspects, still) == ((1,), True)
    said, suspects, still = words(Rank(rank=0, stack=WAITS), Rank(rank=1, state=State.STOPPED))
    assert "rank 1 is stopped (SIGSTOP)" in said
    assert (suspects, still) == ((1,), True)


def test_where_nobody_can_say_who_is_wrong() -> None:
    barrier = (Frame(SITE, 5000, "barrier"), Frame("/home/u/train.py", 50, "save"))
    said, suspects, _ = words(Rank(rank=0, stack=WAITS), Rank(rank=1, stack=barrier))
    assert "the ranks are at different places" in said
    assert suspects == (0, 1)
    assert words(Rank(rank=0, stack=WAITS), Rank(rank=1, stack=barrier), Rank(rank=2, stack=WAITS))[1] == (1,)
    said, suspects, _ = words(Rank(rank=0, stack=WAITS), Rank(rank=1, stack=WAITS))
    assert "all ranks are waiting at the same place: check the network" in said
    assert suspects == ()
    said, _, still = words(Rank(rank=0), Rank(rank=1))
    assert "returned no Python stack" in said
    assert not still


def test_who_works_while_other_machines_wait_is_named() -> None:
    ranks = (Rank(rank=0, stack=WAITS), Rank(rank=1, stack=WAITS))
    assert compare(ranks, ranks, elsewhere=True).suspects == ()
    ranks = (Rank(rank=2, stack=LOADS), Rank(rank=3, stack=LOADS))
    assert compare(ranks, ranks, elsewhere=True).suspects == (2, 3)
    assert compare(ranks, ranks).suspects == ()


# The limit


def history(*events: tuple[float, bool], floor: float = 300) -> Progress:
    progress = Progress(0.0, floor)
    for now, update in events:
        progress.sign(now, update=update)
    return progress


def test_a_slow_first_step_is_no_hang() -> None:
    start = history((1.0, False), (2.0, False), (3.0, False))
    assert start.silence(800) < start.limit(800)
    assert start.silence(1000) > start.limit(1000)
    compiled = history((1.0, False), (890.0, True))
    assert compiled.limit(890) == 900


def test_the_limit_follows_the_slowest_recent_update() -> None:
    updates = [(10.0 * n, True) for n in range(10)]
    assert history(*updates).limit(100) == 300
    slow = history(*updates, (290.0, True))
    assert slow.limit(290) == 5 * 200
    for n in range(40):
        slow.sign(300 + 100.0 * n, update=True)
    assert slow.limit(4300) == 500  # the slow one was more than an hour ago


def test_output_without_metrics_needs_more_of_it() -> None:
    assert history(*[(float(n), False) for n in range(19)]).limit(20) == 900
    assert history(*[(float(n), False) for n in range(20)]).limit(20) == 300


def test_one_update_tells_that_silence_means_something() -> None:
    assert not history((1.0, False), (2.0, False)).known
    assert history((1.0, True)).known
    assert history(*[(float(n), False) for n in range(20)]).known


def test_a_rank_that_ended_well_shortens_the_limit() -> None:
    progress = history(*[(float(n), True) for n in range(9)])
    progress.ended_well(9.0)
    progress.ended_well(50.0)
    assert progress.limit(50) == 60
    assert progress.silence(50) == 41


# Real ranks. The stand-in for a collective of two: a module whose file lies where torch's does. Like a real one it
# waits in a single native call, so that every look finds the rank at the same place; opening a pipe waits for its
# other end.

COLLECTIVE = """
import contextlib, os
made = 0
def all_reduce(n):
    global made
    pipe, made = f"here-{made}", made + 1
    with contextlib.suppress(FileExistsError): os.mkfifo(pipe)
    os.close(os.open(pipe, os.O_RDONLY if int(os.environ["RANK"]) % 2 else os.O_WRONLY))
"""
LOOP = """
import threading
sys.path.insert(0, "torch/distributed")
from collective import all_reduce
rank = os.environ["RANK"]
Path(f"pid-{rank}").write_text(str(os.getpid()))
lock = threading.Lock()
def load_batch(n):
    if n == 30 and rank == "1":
        TROUBLE
for n in range(LENGTH):
    load_batch(n)
    if (n, rank) != (SKIPPED, "1"): all_reduce(n)
    print("update", n, flush=True)
    if rank == "0":
        with open(sys.argv[2] + "/metrics.jsonl", "a") as metrics: metrics.write(json.dumps({"update": n}) + "\\n")
    time.sleep(0.06)
"""


class Limit:
    """What counts as a hang here and now: where ranks have to wait for a core, longer than elsewhere."""

    def __init__(self, seconds: float = 1.5) -> None:
        self.times = patience()
        self.words = ("--hang-limit", f"{seconds * self.times:.1f}")

    def sleep(self, seconds: float) -> str:
        """A line that sleeps for longer by as much as the limit is."""
        return f"time.sleep({seconds * self.times:.1f})"


def let_go(folder: Path, said: str, *words: str) -> tuple[int, str]:
    """Launch, and let rank 1 go on once this is said: its exit code and all that it said.

    The limit grows with the slowest update, so that no number of seconds is long enough on every machine.
    """
    command = [*TRAINWIZ, "launch", *words]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr
        heard = []
        for line in process.stderr:
            heard.append(line)
            if said in line:
                break
        else:
            raise AssertionError("".join(heard))
        # A file, or a pipe at which rank 1 waits: where it does not, this fails and does not wait for it.
        os.close(os.open(folder / "go", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK))
        heard += process.stderr
        return process.wait(180), "".join(heard)


def hanging(folder: Path, trouble: str = "pass", *, skipped: int = -1, length: int = 60) -> Path:
    script = LOOP.replace("TROUBLE", trouble).replace("SKIPPED", str(skipped)).replace("LENGTH", str(length))
    made = project(folder / "p", script)
    (made / "torch" / "distributed").mkdir(parents=True)
    (made / "torch" / "distributed" / "collective.py").write_text(COLLECTIVE)
    return made


@pytest.mark.waits
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("time.sleep(600)", r"rank 1 is sleeping in load_batch, train.py:\d+"),
        ("lock.acquire(); lock.acquire()", r"rank 1 is sleeping in load_batch, train.py:\d+"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", r"rank 1 is stopped \(SIGSTOP\)"),
        ("sys.exit(0)", r"rank 1 has ended \(exit code 0\)"),
    ],
)
def test_the_hung_rank_is_named_and_the_run_ended(tmp_path: Path, trouble: str, said: str) -> None:
    folder = hanging(tmp_path, trouble)
    limit, started = Limit(), time.monotonic()
    done = launch(folder, "--on-hang", "stop", *limit.words)
    assert done.returncode == 124, done.stderr
    assert time.monotonic() - started < 120 * limit.times
    assert re.search(said, done.stderr), done.stderr
    assert re.search(r"rank 0 is waiting in all_reduce, called at train.py:\d+", done.stderr), done.stderr
    assert re.search(r"waiting for rank 1|rank 1 ended while the other ranks are waiting", done.stderr), done.stderr
    outcome = read(folder, "outcome")
    assert outcome["hung"] is True
    assert outcome["stalls"][0]["suspects"] == [1]  # type: ignore[index]
    assert all(gone(int((folder / f"pid-{rank}").read_text())) for rank in (0, 1))


@pytest.mark.waits
@pytest.mark.parametrize(("options", "code"), [((), 124), (("--on-hang", "wait", "--hang-limit", "0"), 0)])
def test_the_plan_says_what_a_hang_is_and_an_option_says_otherwise(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    # What is to be ended never comes back by itself: the limit grows with the slowest update before.
    limit = Limit()
    folder = hanging(tmp_path, "time.sleep(600)" if code else limit.sleep(6))
    plan = folder / "trainwiz.yaml"
    changes = {"supervision.on_hang": "stop", "supervision.hang_limit": float(limit.words[1])}
    plan.write_text(plans.edited(plan, changes, comment="tried"))
    done = launch(folder, *options)
    assert done.returncode == code, done.stderr
    assert ("no progress" in done.stderr) == bool(code)


@pytest.mark.waits
def test_a_skipped_collective(tmp_path: Path) -> None:
    # From then on rank 1 is one ahead; at the end it has left, and rank 0 waits for it in vain.
    folder = hanging(tmp_path, skipped=30, length=32)
    done = launch(folder, "--on-hang", "stop", *Limit().words)
    assert done.returncode == 124, done.stderr
    assert "rank 1 ended while the other ranks are waiting" in done.stderr
    assert "rank 0 is waiting in all_reduce" in done.stderr


@pytest.mark.waits
def test_by_default_it_is_only_said_and_a_straggler_is_named_when_it_comes_back(tmp_path: Path) -> None:
    folder = hanging(tmp_path, 'open("go").read()')
    os.mkfifo(folder / "go")
    code, said = let_go(folder, "waiting for rank 1", *Limit(3).words)
    assert code == 0, said
    assert said.count("no progress for") == 1, said
    assert re.search(r"progress resumed after \d+ s: the ranks were waiting for rank 1, slower than the others", said)


def test_a_busy_rank_is_not_ended(tmp_path: Path) -> None:
    folder = hanging(tmp_path, 'while not os.access("go", os.F_OK): sum(range(1000))')
    code, said = let_go(folder, "rank 1, alive but slow (a straggler)", "--on-hang", "stop", *Limit().words)
    assert code == 0, said
    assert "rank 1 is busy in load_batch" in said


def test_a_slow_start_and_a_slow_update_are_no_alarm(tmp_path: Path) -> None:
    limit = Limit()
    slow = f"{limit.sleep(4)}\n" + LOOP.replace("TROUBLE", limit.sleep(1.5)).replace("SKIPPED", "-1").replace(
        "LENGTH", "40"
    )
    folder = hanging(tmp_path)
    (folder / "train.py").write_text("import json, os, signal, sys, time\nfrom pathlib import Path\n" + slow)
    done = launch(folder, "--on-hang", "stop", *limit.words)
    assert done.returncode == 0, done.stderr
    assert "no progress" not in done.stderr


@pytest.mark.waits
def test_a_foreign_script_keeps_its_own_sitecustomize_and_path(tmp_path: Path) -> None:
    limit = Limit(0.8)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'loaded'")
    (tmp_path / "theirs.yaml").write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n")
    (tmp_path / "their.py").write_text(
        "import os, sys, time, signal\nassert theirs == 'loaded'\n"
        "assert not any(p.endswith('inside') for p in sys.path), sys.path\n"
        "import sitecustomize; assert 'theirs' in sitecustomize.__file__\n"
        "def load_batch():\n    time.sleep(600 if os.environ['RANK'] == '1' else 0.01)\n"
        f"for n in range(30): print(n, flush=True); {limit.sleep(0.25)}\nload_batch()\ntime.sleep(1000)\n"
    )
    done = launch(
        tmp_path,
        "--on-hang",
        "stop",
        *limit.words,
        "--config",
        "theirs.yaml",
        "their.py",
        PYTHONPATH=projects.python_path(tmp_path / "theirs"),
    )
    assert done.returncode == 124, done.stderr
    assert "rank 1 is sleeping in load_batch, their.py:6" in done.stderr


@pytest.mark.waits
def test_who_is_waited_for_is_said_again_when_it_changes(tmp_path: Path) -> None:
    # At the first look rank 0 is not there yet; later it waits for rank 1.
    limit, folder = Limit(1), hanging(tmp_path, length=1)
    late = f"import os, time\nif os.environ['RANK'] == '1': {limit.sleep(14)}\nelse: {limit.sleep(6)}\n"
    (folder / "train.py").write_text(late + (folder / "train.py").read_text())
    done = launch(folder, *limit.words)
    assert done.returncode == 0, done.stderr
    assert "all ranks are at the same place" not in done.stderr
    assert done.stderr.count("no progress for") == 2, done.stderr
    assert done.stderr.index("rank 0 is sleeping in <module>") < done.stderr.index("rank 0 is waiting in all_reduce")
    assert "the other ranks are waiting for rank 1" in done.stderr


@pytest.mark.waits
def test_one_that_never_says_a_word_is_not_ended(tmp_path: Path) -> None:
    limit = Limit(0.5)
    done = launch(project(tmp_path / "p", limit.sleep(5), ranks=1), "--on-hang", "stop", *limit.words)
    assert done.returncode == 0, done.stderr
    assert "no progress" in done.stderr
    assert "rank 0 is sleeping in <module>, train.py:3" in done.stderr


@pytest.mark.waits
def test_a_script_without_the_hook_is_not_signalled(tmp_path: Path) -> None:
    # A program that ignores PYTHONPATH: the signal would end it.
    limit = Limit(0.5)
    script = f"""
import subprocess
sys.exit(subprocess.run([sys.executable, "-I", "-c", "import time; print('x'); {limit.sleep(4)}"]).returncode)
"""
    done = launch(project(tmp_path / "p", script, ranks=1), *limit.words)
    assert done.returncode == 0, done.stderr
    assert "no progress" in done.stderr


@pytest.mark.waits
def test_ctrl_c_while_it_hangs_ends_in_order(tmp_path: Path) -> None:
    folder = hanging(tmp_path, "time.sleep(600)")
    process = subprocess.Popen(
        [*TRAINWIZ, "launch", *Limit().words, "--grace", "1"],
        cwd=folder,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stderr
    assert any("no progress" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert all(gone(int(wait_for(folder / f"pid-{rank}"))) for rank in (0, 1))


def test_wrong_words() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainwiz", "launch", "--on-hang", "x"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--on-hang x: must be wait or stop" in done.stderr


@pytest.mark.train
@pytest.mark.parametrize(
    ("place", "trouble", "said"),
    [
        ("def collate(", "time.sleep(600)", r"rank 1 is sleeping in collate, task.py:\d+"),
        ("def loss_sum(", "torch.distributed.barrier()", r"rank 1 is waiting in barrier, called at task.py:\d+"),
    ],
    ids=["in a batch", "in a barrier"],
)
def test_a_real_training_that_hangs(tmp_path: Path, place: str, trouble: str, said: str) -> None:
    endless = {"schedule.n_steps": 100_000, "checkpoint.checkpointing_steps": 0, "data.eval": ""}
    folder = projects.make(tmp_path / "p", {**projects.REGRESSION, **endless})
    task = folder / "task.py"
    source = task.read_text()
    start = source.index(place)
    body = source.index("\n", source.index('"""', source.index('"""', start) + 3)) + 1
    hook = f"    calls.append(time.time())\n    if os.environ['RANK'] == '1' and len(calls) > 60: {trouble}\n"
    task.write_text(source[:start] + "import os, time\ncalls = []\n\n\n" + source[start:body] + hook + source[body:])
    done = warm.launch(folder, "--on-hang", "stop", *Limit(2).words)
    assert done.code == 124, done.err
    assert re.search(said, done.err), done.err
    assert re.search(r"rank 0 is waiting in \w+, called at (train|task|batches).py:\d+", done.err), done.err
