"""Ranks in waiting: what they import, that they become ranks like any other, and that none stays behind."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience
from test_launch import latest, launch, project, read
from test_ranks import gone

INSIDE = Path(__file__).parents[2] / "launcher" / "trainwiz" / "process" / "inside"


@pytest.fixture(scope="module", autouse=True)
def environ() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINWIZ_LANG", "en")
        yield


SCRIPT = """
import heavy
rank, out = os.environ["RANK"], Path(sys.argv[sys.argv.index("--output_dir") + 1])
spare = b"standby.py" in Path("/proc/self/cmdline").read_bytes()
n = len(list(Path().glob(f"attempt-{rank}-*")))
Path(f"attempt-{rank}-{n}").write_text(f"{os.getpid()} {spare} {__name__} {sys.argv[3:]} {Path(__file__).name} {os.getpgid(0)}")
print("rank", rank, "attempt", n, file=sys.stderr)
while len(list(Path().glob(f"attempt-*-{n}"))) < 2: time.sleep(0.01)
while len(list(Path().glob("imported-*"))) < 2 * (n + 2):
    time.sleep(0.1)
    if rank == "0": (out / "metrics.jsonl").write_text('{"update": %d, "loss": 1.0}\\n' % (n + 1))
if n < 2:
    if rank == "1": os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
print("stacks", Path(out / "logs" / f"rank-{rank}.stack").read_text())
"""  # noqa: E501
HEAVY = """
import os, time
print("importing heavy", flush=True)
open(f"imported-{os.getpid()}", "w").close()
"""


def test_the_spares_take_the_places_of_the_dead(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "heavy.py").write_text(HEAVY)
    folder = project(tmp_path / "p", SCRIPT)
    paths = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    done = launch(folder, "--max-restarts", "5", "--spares", "--", "--lr", "1", PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    outcome = read(folder, "outcome")
    assert [a["exit_code"] for a in outcome["attempts"]] == [137, 137, 0]  # type: ignore[attr-defined]
    for n, was_spare in enumerate((False, True, True)):
        for rank in (0, 1):
            pid, spare, name, rest = (folder / f"attempt-{rank}-{n}").read_text().split(" ", 3)
            resumed = ", '--resume', 'auto'" if n else ""
            assert (spare, name) == (str(was_spare), "__main__")
            assert rest == f"['--lr', '1'{resumed}] train.py {pid}"
    log = (latest(folder) / "logs" / "rank-1.log").read_text()
    pid = (folder / "attempt-1-2").read_text().split()[0]
    # What was said while importing comes first; the stack hook answers for the rank, as in any other.
    assert log == f"importing heavy\nrank 1 attempt 2\nstacks process {pid}\n\n"
    started = [int(p.name.partition("-")[2]) for p in folder.glob("imported-*")]
    assert len(started) == 8  # the last two waited in vain
    assert all(gone(pid) for pid in started)


def test_without_restarts_there_are_none(tmp_path: Path) -> None:
    script = "print(len([p for p in os.listdir('/proc') if p.isdigit() and b'standby.py' in cmdline(p)]))"
    helper = (
        "def cmdline(p):\n    try: return Path(f'/proc/{p}/cmdline').read_bytes() "
        "if os.getppid() == int(Path(f'/proc/{p}/stat').read_text().rpartition(')')[2].split()[1]) else b''\n"
        "    except OSError: return b''\n"
    )
    folder = project(tmp_path / "p", helper + "time.sleep(0.3)\n" + script, ranks=1)
    assert launch(folder, "--spares").stdout == "0\n"
    assert launch(folder, "--spares", "--max-restarts", "1").stdout == "1\n"


def start(folder: Path, script: str) -> tuple[subprocess.Popen[bytes], int]:
    """A spare as the launcher starts it, and where its orders go."""
    (folder / "train.py").write_text(script)
    reading, writing = os.pipe()
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen(
            [sys.executable, str(INSIDE / "standby.py"), str(reading), "train.py", str(folder / "metrics.jsonl")],
            cwd=folder,
            stdout=said,
            stderr=said,
            pass_fds=(reading,),
        )
    os.close(reading)
    return process, writing


def test_it_imports_what_neighbors_import_and_never_them(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "deep.py").write_text("import os; open('deep', 'w').close()")
    (tmp_path / "task.py").write_text("open('mine', 'w').close()\nimport train, no_such_thing\nimport packages.deep")
    process, orders = start(tmp_path, "import task\nopen('mine', 'w').close()")
    time.sleep(0.6)
    assert not (tmp_path / "deep").exists()  # not before the others train
    (tmp_path / "metrics.jsonl").write_text("{}")
    until = time.monotonic() + 90 * patience()
    while not (tmp_path / "deep").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert (tmp_path / "deep").exists()
    os.close(orders)
    assert process.wait(90) == 0  # the end of the launcher is the end of the spare
    assert not (tmp_path / "mine").exists()
