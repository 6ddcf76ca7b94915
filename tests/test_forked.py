"""A forked command is what an interpreter that was started for it would be."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import forked
import projects
import psutil
import pytest
import warm
from patience import patience

LOG = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nMemoryError\n'


@pytest.mark.parametrize(
    ("words", "env", "text"),
    [
        (["diagnose", "-"], {"TRAINWIZ_LANG": "zh", "COLUMNS": "50"}, LOG),
        (["explain", "TW10"], {"TRAINWIZ_LANG": "zh"}, ""),
        (["init", ".", "--wrong"], {"NO_COLOR": "1"}, ""),
    ],
)
def test_it_says_and_returns_the_same(words: list[str], env: dict[str, str], text: str, tmp_path: Path) -> None:
    environ = projects.environment(env)
    one = forked.run(words, env=environ, cwd=tmp_path, text=text)
    other = forked._cold(words, environ, str(tmp_path), 240, text, None, forked.COMMAND)
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)
    assert one.stdout + one.stderr


SCRIPT = """\
import json, os, resource, signal, sys, tempfile
state = [os.getcwd(), dict(os.environ), sys.argv[1:], sys.stdin.read(), tempfile.gettempdir(), os.umask(0)]
state += [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
state += [resource.getrlimit(resource.RLIMIT_AS), "torch" in sys.modules, "huggingface_hub" in sys.modules]
print(json.dumps(state, default=repr), flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_finds_the_same_around_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {**projects.environment(), "TMPDIR": str(tmp_path), "HOME": "/a"}
    given = (environ, str(tmp_path), 60, "typed", 8 << 30, script)
    other = forked._cold(["a b"], *given)
    one = forked.run(["a b"], env=environ, cwd=tmp_path, text="typed", memory=8 << 30, script=script)
    assert (one.returncode, one.stdout) == (other.returncode, other.stdout) == (-9, one.stdout)


def test_what_is_read_early_gets_an_interpreter_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(*_: object) -> str:
        raise AssertionError("a server was asked")

    monkeypatch.setattr(warm, "server", none)
    path = projects.python_path(tmp_path)
    for name, value in (("PYTHONPATH", path), ("LC_ALL", "C"), ("FORCE_COLOR", "1")):
        said = forked.run(["--version"], env={**os.environ, name: value})
        assert said.stdout.startswith("trainwiz "), said.stderr


def test_an_engine_answers_a_fork_as_it_does_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    child = warm.SERVER.with_name("borders.py")
    adam = {"optimizer": {"type": "AdamW", "params": {"lr": "x"}}}
    asked = json.dumps([{"train_batch_size": 1}, {}, {"train_batch_size": 1, **adam}, {"train_batch_size": "x"}])
    one = warm.child(child, text=asked)
    monkeypatch.setattr(warm, "cold", True)
    other = warm.child(child, text=asked)
    assert (one.code, one.out) == (other.code, other.out)
    assert list(map(bool, json.loads(one.out.splitlines()[-1]))) == [False, True, True, True]


def test_a_server_outlives_those_who_ask_it_and_are_killed(tmp_path: Path) -> None:
    """Launchers are killed at any moment: before they have said what they want, and together with what they began."""
    server, environ = warm.Server(sys.executable, os.environ, tmp_path), projects.environment()
    words = (str(tmp_path / "script.py"),)
    Path(*words).write_text("import time; time.sleep(60)")
    streams = (0, 1, 2)
    try:
        for said in (b"", warm.LENGTH.pack(99) + b"{"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(server.address)
                if said:
                    socket.send_fds(connection, [said], streams)
        # Both are told to the server at once, the end of the rank first.
        rank = warm.begun(server.address, words, str(tmp_path), environ, (), *streams)
        os.kill(server.process.pid, signal.SIGSTOP)
        os.kill(rank.pid, signal.SIGKILL)
        while psutil.Process(rank.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        rank.connection.shutdown(socket.SHUT_RDWR)
        os.kill(server.process.pid, signal.SIGCONT)
        Path(*words).write_text("raise SystemExit(3)")
        assert warm.begun(server.address, words, str(tmp_path), environ, (), *streams).wait(60) == 3
    finally:
        server.close()


BEGINNER = """\
import os, pathlib, sys, time, warm
folder = pathlib.Path(sys.argv[1])
server = warm.Server(sys.executable, os.environ, folder)
rank = warm.begun(server.address, [str(folder / "script.py")], str(folder), os.environ, (), 0, 1, 2)
print(server.process.pid, rank.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["waits", "stopped", "asked by somebody who says nothing", "killed"])
def test_a_server_and_its_ranks_end_with_whoever_began_it(state: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; time.sleep(600)")
    environ = projects.environment({"PYTHONPATH": projects.python_path(Path(warm.__file__).parent)})
    command = [sys.executable, "-c", BEGINNER, str(tmp_path)]
    with (
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as beginner,
        socket.socket(socket.AF_UNIX) as silent,
    ):
        assert beginner.stdout
        server, rank = map(psutil.Process, map(int, beginner.stdout.readline().split()))
        try:
            if state == "stopped":
                server.suspend()
            elif state != "waits" and state != "killed":
                silent.connect(str(tmp_path / "socket"))
            (server if state == "killed" else beginner).kill()
            _, left = psutil.wait_procs([rank] if state == "killed" else [server, rank], 60 * patience())
            assert not left
        finally:
            for process in (beginner, server, rank):
                with contextlib.suppress(psutil.Error):
                    process.kill()
