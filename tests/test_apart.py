"""A run of the tests is apart from the person who starts it, and from other runs."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apart
import operators
from engine_children import claimed

PREPARED = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import apart, os, signal, subprocess
own = apart.prepare()
apart.leave(failed=False)
child = "import os, signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, " \\
        "signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, os.environ['HOME'], 'RANK' in os.environ)"
print(own, flush=True)
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_started_in_the_background_and_by_nohup_children_hear_signals_and_have_a_home_of_their_own() -> None:
    environ = {name: value for name, value in os.environ.items() if name != apart.RUN and "XDIST" not in name}
    command = ["sh", "-c", 'trap "" INT HUP; exec "$0" -c "$1"', sys.executable, PREPARED]
    said = subprocess.check_output(command, text=True, env={**environ, "RANK": "3"}).split()
    assert said == [said[0], "True", "True", f"{said[0]}/home", "False"]
    assert not Path(said[0]).parent.exists()


def test_this_run_is_apart() -> None:
    run = os.environ[apart.RUN]
    assert os.environ["HOME"].startswith(run)
    assert tempfile.gettempdir().startswith(run)
    assert not [name for name in os.environ if name.startswith(("XDG_", "TORCH_EXTENSIONS", "HF_HO", "HF_HUB_C"))]
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_a_claimed_port_is_nobody_elses() -> None:
    ports = {claimed.port(), claimed.port()}
    program = (
        f"import sys; sys.path.insert(0, {str(Path(claimed.__file__).parent)!r}); import claimed; print(claimed.port())"
    )
    ports.add(int(subprocess.check_output([sys.executable, "-c", program], text=True)))
    assert len(ports) == 3


def test_a_builder_that_was_killed_makes_nobody_wait(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(operators, "CACHE", tmp_path)
    holder = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); time.sleep(600)"  # noqa: E501
    (tmp_path / "new-left").mkdir()
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / "lock")], stdout=subprocess.PIPE) as killed:
        assert killed.stdout
        killed.stdout.readline()
        killed.kill()

    def compiled(home: str) -> None:
        (Path(home) / operators.BUILT_BELOW / "op").mkdir(parents=True)

    monkeypatch.setattr(operators, "compiled", compiled)
    operators.main()
    assert (operators.place() / "op").is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["lock", operators.place().name])
    assert operators.copied(tmp_path / "home")


def test_what_killed_runs_left_a_day_ago_is_deleted(tmp_path: Path) -> None:
    days = {"tw-killed": 2, "tw-running": 0, "somebody": 2}
    for name, old in days.items():
        (tmp_path / name / "t").mkdir(parents=True)
        os.utime(tmp_path / name, times=(time.time() - old * apart.DAY,) * 2)
    environ = {name: value for name, value in os.environ.items() if name != apart.RUN and "XDIST" not in name}
    subprocess.check_call([sys.executable, "-c", PREPARED], env={**environ, "TMPDIR": str(tmp_path)})
    assert sorted(left.name for left in tmp_path.iterdir()) == ["somebody", "tw-running"]
