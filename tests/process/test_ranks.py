"""Real processes: output, order of deaths, signals, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import patience

from trainwiz.errors import TrainwizError
from trainwiz.message import Message
from trainwiz.outcome import Outcome
from trainwiz.process import ranks
from trainwiz.process.child import Process
from trainwiz.process.guardian import marked


class Heard:
    """An audience that remembers."""

    def __init__(self) -> None:
        self.bytes = b""
        self.sentences: list[str] = []

    def output(self, data: bytes) -> None:
        self.bytes += data

    def tick(self) -> None:
        pass

    def say(self, message: Message) -> None:
        self.sentences.append(str(message))


def world(folder: Path, code: str, n: int = 1, **environ: str) -> list[Process]:
    return [
        Process(
            rank=rank,
            argv=[sys.executable, "-c", code],
            environ={"RANK": str(rank), **environ},
            cwd=str(folder),
            log=folder / f"rank-{rank}.log",
        )
        for rank in range(n)
    ]


def run(folder: Path, code: str, n: int = 1, grace: float = 5) -> tuple[Outcome, Heard]:
    heard = Heard()
    return ranks.run(world(folder, code, n), audience=heard, grace=grace), heard


def gone(pid: int, within: float = 30) -> bool:
    until = time.monotonic() + within * patience()
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def wait_for(file: Path, within: float = 90) -> str:
    until = time.monotonic() + within * patience()
    while time.monotonic() < until:
        if file.exists() and (text := file.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{file} did not appear")


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_the_ranks_own(tmp_path: Path, code: int) -> None:
    outcome, _ = run(tmp_path, f"raise SystemExit({code})")
    assert outcome.exit_code == code
    assert outcome.codes == {0: code}
    assert outcome.first_failed == (0 if code else None)


def test_a_signal_is_128_and_n(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert outcome.exit_code == 139
    assert outcome.codes == {0: -11}


def test_first_failure_is_named_and_the_waiting_ones_are_ended(tmp_path: Path) -> None:
    code = "import os, time; os.environ['RANK'] == '2' and exit(7); time.sleep(60)"
    started = time.monotonic()
    outcome, heard = run(tmp_path, code, n=3)
    assert time.monotonic() - started < 40 * patience()
    assert (outcome.exit_code, outcome.first_failed) == (7, 2)
    assert outcome.codes == {0: -15, 1: -15, 2: 7}
    assert "rank 2 failed (exit code 7)" in heard.sentences[0]


def test_rank_0_is_shown_and_every_line_of_all_is_kept(tmp_path: Path) -> None:
    code = "import os, sys\nfor i in range(100_000): print(os.environ['RANK'], i)\nprint('end', file=sys.stderr)"
    outcome, heard = run(tmp_path, code, n=2)
    assert outcome.exit_code == 0
    for rank in (0, 1):
        log = (tmp_path / f"rank-{rank}.log").read_text()
        assert log == "".join(f"{rank} {i}\n" for i in range(100_000)) + "end\n"
    assert heard.bytes == (tmp_path / "rank-0.log").read_bytes()


def test_output_before_a_kill_is_kept(tmp_path: Path) -> None:
    run(tmp_path, "import os; print('last words', end=''); os.kill(os.getpid(), 9)")
    assert (tmp_path / "rank-0.log").read_text() == "last words"


def test_carriage_returns_and_bytes_pass_untouched(tmp_path: Path) -> None:
    _, heard = run(tmp_path, "import sys; sys.stdout.buffer.write(b'\\r 10%|\\xe2\\x96\\x88\\r\\xff\\x00\\x1b[K')")
    assert heard.bytes == b"\r 10%|\xe2\x96\x88\r\xff\x00\x1b[K"


def test_a_program_that_is_missing_is_said_and_the_others_end(tmp_path: Path) -> None:
    good = world(tmp_path, "import os, time; open('pid','w').write(str(os.getpid())); time.sleep(60)", 2)
    bad = Process(rank=1, argv=["/nowhere/python"], environ={}, cwd=str(tmp_path), log=tmp_path / "rank-1.log")
    with pytest.raises(TrainwizError, match="cannot start rank 1"):
        ranks.run([good[0], bad], audience=Heard())
    assert not (tmp_path / "pid").exists() or gone(int((tmp_path / "pid").read_text()))


def test_what_ranks_leave_behind_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LEFTOVER_SECONDS", 0.2)
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True); print(p.pid)"
    )
    outcome, heard = run(tmp_path, code)
    assert outcome.exit_code == 0
    assert gone(int(heard.bytes))
    assert "left behind" in heard.sentences[0]


def test_handlers_are_put_back(tmp_path: Path) -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    run(tmp_path, "pass")
    assert {s: signal.getsignal(s) for s in before} == before


LAUNCHER = """
import sys
from pathlib import Path
sys.path[:0] = {tests!r}
from test_ranks import Heard, world
from trainwiz.process import ranks
heard = Heard()
outcome = ranks.run(world(Path({folder!r}), Path({script!r}).read_text(), 2), audience=heard, grace={grace})
print(outcome.to_dict(), heard.sentences)
sys.exit(outcome.exit_code)
"""

SAVES = """
import os, signal, time
rank = os.environ["RANK"]
def save(*_):
    open(f"saved-{rank}", "w").write("x"); child.kill(); raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
open(f"pids-{rank}.part", "w").write(f"{os.getpid()} {child.pid}"); os.rename(f"pids-{rank}.part", f"pids-{rank}")
for _ in range(1200): time.sleep(0.05)
"""

STUBBORN = SAVES.replace("child.kill(); raise SystemExit(0)", "")


def launcher(folder: Path, script: str, grace: float = 20) -> tuple[subprocess.Popen[str], list[int]]:
    (folder / "script.py").write_text(script)
    code = LAUNCHER.format(
        tests=[str(Path(__file__).parent), str(Path(__file__).parents[1])],
        folder=str(folder),
        script=str(folder / "script.py"),
        grace=grace,
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(p) for rank in (0, 1) for p in wait_for(folder / f"pids-{rank}").split()]
    return process, pids


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_lets_the_ranks_save(tmp_path: Path, signum: int) -> None:
    process, pids = launcher(tmp_path, SAVES)
    process.send_signal(signum)
    out, _ = process.communicate(timeout=90 * patience())
    assert process.returncode == 0, out
    assert (tmp_path / "saved-0").exists()
    assert (tmp_path / "saved-1").exists()
    assert all(gone(pid) for pid in pids)
    assert f"'signal': {int(signum)}" in out


def test_ctrl_c_twice_ends_now(tmp_path: Path) -> None:
    process, pids = launcher(tmp_path, STUBBORN, grace=300)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert all(gone(pid) for pid in pids)


def test_the_grace_has_an_end(tmp_path: Path) -> None:
    process, pids = launcher(tmp_path, STUBBORN, grace=0.5)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 143
    assert "'killed_ranks': [0, 1]" in out
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGQUIT])
def test_a_killed_launcher_leaves_nothing(tmp_path: Path, signum: int) -> None:
    process, pids = launcher(tmp_path, STUBBORN)
    process.send_signal(signum)
    process.communicate(timeout=180)
    assert all(gone(pid) for pid in pids)


def test_the_mark_finds_a_process_by_its_environment() -> None:
    mark = f"mark of {os.getpid()}"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"TRAINWIZ_LAUNCH": mark})
    try:
        time.sleep(0.1)
        assert marked(mark) == [child.pid]
        assert marked(mark[:-1]) == []
    finally:
        child.communicate(b"\n")


LATE = """import os, signal, time
open("here", "w").write("x")
time.sleep(0.5)  # it still ignores what its launcher does
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
time.sleep(60)"""


@pytest.mark.parametrize(
    ("agent", "codes"),
    [
        (["sh", "-c", "echo x > here; exec sleep 60"], {0: -9}),  # waits for other machines: it has nothing to save
        (["sh", "-c", f"LOCAL_RANK=0 {sys.executable} -c '{LATE}'; exit $?"], {0: 75}),
        (["sh", "-c", f"env -i {sys.executable} -c '{LATE}'; exit $?"], {0: 75}),  # as setproctitle leaves it
    ],
    ids=["no rank yet", "a rank that hears late", "a rank without an environment"],
)
def test_a_stop_reaches_ranks_behind_a_launcher_that_ignores_it(
    tmp_path: Path, agent: list[str], codes: dict[int, int]
) -> None:
    process = Process(
        rank=0, argv=agent, environ={}, cwd=str(tmp_path), log=tmp_path / "l", agent=True, ignored=(signal.SIGTERM,)
    )

    def stop() -> None:
        wait_for(tmp_path / "here")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    outcome = ranks.run([process], audience=Heard(), grace=60, stopped_code=75)
    assert (outcome.codes, outcome.signal) == (codes, signal.SIGTERM)
    assert outcome.seconds < 20 * patience()
