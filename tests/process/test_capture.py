"""The door to subprocesses: ends, limits, missing programs, and nothing left behind."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import patience

from trainwiz.process.capture import COULD_NOT_START, Running, capture


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds * patience()
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


GRANDCHILD = (
    "import subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print(child.pid, flush=True); {after}"
)


def test_it_keeps_both_streams_and_the_code() -> None:
    ended = capture(
        python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), timeout=20 * patience()
    )
    assert (ended.code, ended.stdout, ended.stderr, ended.timed_out) == (3, "out\n", "err\n", False)
    assert ended.last_line == "err"


def test_a_signal_is_a_negative_code() -> None:
    assert capture(python("import os; os.kill(os.getpid(), 15)"), timeout=20 * patience()).code == -15


@pytest.mark.parametrize("program", ["/no/such/program", "/etc/passwd", "/", "a\0b"])
def test_what_cannot_be_started_is_an_outcome(program: str) -> None:
    ended = capture([program], timeout=5)
    assert ended.code == COULD_NOT_START
    assert ended.stderr
    assert not ended.timed_out


def test_bytes_that_are_no_text_survive() -> None:
    assert (
        capture(python("import sys; sys.stdout.buffer.write(b'a\\xffb')"), timeout=20 * patience()).stdout == "a\ufffdb"
    )


def test_output_larger_than_a_pipe_does_not_block() -> None:
    ended = capture(python("import sys; sys.stderr.write('x' * 1_000_000); print('done')"), timeout=30 * patience())
    assert ended.stdout == "done\n"
    assert len(ended.stderr) == 1_000_000


def test_it_reads_no_terminal() -> None:
    assert capture(python("import sys; print(repr(sys.stdin.read()))"), timeout=20 * patience()).stdout == "''\n"


def test_environment_and_folder(tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('A'), os.environ.get('HOME'), os.getcwd())"
    ended = capture(python(code), timeout=20 * patience(), env={"A": "1"}, cwd=str(tmp_path))
    assert ended.stdout.split() == ["1", "None", str(tmp_path)]


@pytest.mark.waits
def test_the_time_limit_ends_the_whole_group_and_keeps_what_was_said() -> None:
    begin = time.monotonic()
    ended = capture(python(GRANDCHILD.format(after="time.sleep(600)")), timeout=4 * patience())
    assert time.monotonic() - begin < 120 * patience()
    assert ended.timed_out
    assert ended.code == -9
    assert gone(int(ended.stdout))


@pytest.mark.waits
def test_a_grandchild_that_holds_the_pipe_does_not_hold_us() -> None:
    ended = capture(python(GRANDCHILD.format(after="")), timeout=4 * patience())
    assert ended.timed_out
    assert gone(int(ended.stdout))


@pytest.mark.waits
def test_a_grandchild_in_a_session_of_its_own_does_not_hold_us() -> None:
    escape = GRANDCHILD.format(after="").replace("time.sleep(600)'])", "time.sleep(600)'], start_new_session=True)")
    begin = time.monotonic()
    ended = capture(python(escape), timeout=2 * patience())
    assert time.monotonic() - begin < 60 * patience()
    assert ended.timed_out
    os.kill(int(ended.stdout), signal.SIGKILL)


def test_cancel_ends_it_and_may_be_repeated() -> None:
    running = Running(python("import os, time; print(os.getpid(), flush=True); time.sleep(600)"))
    assert running.code is None
    running.cancel()
    running.cancel()
    assert running.result(1).code == -9


@pytest.mark.waits
def test_cancel_wakes_a_thread_that_waits() -> None:
    running = Running(python("import time; print('said', flush=True); time.sleep(600)"))
    ends = []
    thread = threading.Thread(target=lambda: ends.append(running.result(60)))
    thread.start()
    time.sleep(0.7)
    running.cancel()
    thread.join(60)
    assert ends[0].code == -9
    assert not ends[0].timed_out


PARENT = """
import os, sys, time
from trainwiz.process.capture import Running
file = sys.argv[1]
Running([sys.executable, "-c", f"import os, time; open({file!r}, 'w').write(str(os.getpid())); time.sleep(600)"])
while not os.path.exists(file) or not open(file).read():
    time.sleep(0.02)
"""


def test_nothing_survives_a_parent_that_never_asked(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert capture([*python(PARENT), str(file)], timeout=30 * patience()).code == 0
    assert gone(int(file.read_text()))
