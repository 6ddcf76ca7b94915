"""How long `trainwiz check` takes: 0.4 s for a project, 1.5 s for the corpus, on a quiet machine.

A clock is no judge on a busy one. Function calls are the same everywhere: what they come to is held here, and that
they grow with what is checked and no faster. Beside it stands what `import torch` costs on this very machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
ONE_FILE = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 2, gradient_clipping: 1.0}\n"
# docs/decisions/cli.md: Speed is tested by counting calls
COUNTING = """
import sys
calls = 0
def seen(frame, event, argument):
    global calls
    calls += event == "call"
from trainwiz.__main__ import main
sys.setprofile(seen)
try:
    main(sys.argv[1:])
except SystemExit:
    pass
finally:
    sys.setprofile(None)
print("\\n%d" % calls)
"""


def environ(folder: Path) -> dict[str, str]:
    """Caches of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINWIZ_", "COVERAGE"))}
    return {**kept, **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "STATE")}}


def calls(folder: Path, *arguments: str, cwd: Path | None = None) -> int:
    """Python functions that a command calls, imports included."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, *arguments],
        cwd=cwd,
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=180,
    )
    return int(done.stdout.splitlines()[-1])


def cpu_seconds(folder: Path, *command: str, times: int) -> float:
    """What a process of Python computes, at its best."""
    found = []
    for _ in range(times):
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, *command], stdin=null, stdout=null, stderr=null, env=environ(folder)
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        found.append(usage.ru_utime + usage.ru_stime)
    return min(found)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    flags = ("--defaults", "--yes", "--device", "cpu", "--num-processes", "2", "--strategy", "ddp")
    command = [sys.executable, "-m", "trainwiz", "init", str(tmp_path / "project"), *flags]
    subprocess.run(command, env=environ(tmp_path), capture_output=True, timeout=180, check=True)
    return tmp_path / "project"


def test_a_project_is_checked_in_0_4_seconds(project: Path, tmp_path: Path) -> None:
    calls(tmp_path, "check", str(project))  # which looks at the interpreter that will train, and remembers it
    # 153,000 were 0.24 s.
    assert 50_000 < calls(tmp_path, "check", str(project)) < 245_000
    torch = cpu_seconds(tmp_path, "-c", "import torch", times=2)
    ours = cpu_seconds(tmp_path, "-m", "trainwiz", "check", str(project), times=3)
    # Where import torch takes 1.2 s; it is usually a fifth.
    assert ours < torch / 3, f"{ours:.2f} s of CPU time; import torch takes {torch:.2f} s"


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus of public configurations at {CORPUS}: NOT CHECKED")
def test_the_corpus_is_checked_in_1_5_seconds(tmp_path: Path) -> None:
    # 143,000 were 0.3 s.
    assert 50_000 < calls(tmp_path, "check", ".", cwd=CORPUS) < 300_000


def test_twice_the_files_are_twice_the_work(tmp_path: Path) -> None:
    def of_files(n: int) -> int:
        folder = tmp_path / str(n)
        folder.mkdir()
        for i in range(n):
            (folder / f"{i}.yaml").write_text(ONE_FILE)
        return calls(tmp_path, "check", str(folder))

    one, some, many = of_files(1), of_files(21), of_files(41)
    assert some > one
    assert many - some < 1.2 * (some - one)


def test_twice_the_script_is_twice_the_work(tmp_path: Path) -> None:
    part = (Path(__file__).parents[1] / "lint" / "right").glob("*.py")
    text = max((file.read_text() for file in part), key=len)

    def of_parts(n: int) -> int:
        functions = [f"def part_{i}():\n" + "".join(f"    {line}\n" for line in text.splitlines()) for i in range(n)]
        (tmp_path / "script.py").write_text("\n".join(functions))
        return calls(tmp_path, "lint", str(tmp_path / "script.py"))

    one, some, many = of_parts(1), of_parts(3), of_parts(5)
    assert some > one
    assert many - some < 1.5 * (some - one)
