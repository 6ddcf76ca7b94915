"""How long trainwiz takes to begin, beside the tools it wraps: `make benchmark`, or `python benchmarks/startup.py`.

Every command is run once per round and the rounds are interleaved, so that a busy machine slows all of them alike;
what counts is the difference or the ratio of medians. The table goes to stdout and into docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import pty
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
CORPUS = Path(__file__).parent.parent.parent / "shared" / "corpus"
BEGIN, END = "<!-- startup: written by benchmarks/startup.py -->", "<!-- startup: end -->"
LAST_LINE_OF_THE_FIRST_QUESTION = b"Ctrl-C"
WHERE_IS_THE_CURSOR, CURSOR = b"\x1b[6n", b"\x1b[1;1R"
_SECONDS = 120.0
_DROPPED = ("TRAINWIZ_", "ACCELERATE_", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command. `prepare` runs before it, outside the clock; `asks` means: until its first question is shown."""

    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    prepare: Callable[[], None] = lambda: None
    asks: bool = False


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A promise: `case` against the case `beside`, as a ratio or with an allowance in seconds."""

    case: str
    beside: str | None = None
    ratio: float | None = None
    seconds: float = 0.0


MARKS = (
    Mark(case="trainwiz --help", beside="accelerate --help", ratio=0.1),
    Mark(case="first question of trainwiz init", seconds=0.3),
    Mark(case="first question, machine never probed", seconds=0.3),
    Mark(case="trainwiz init --defaults --yes", beside="python -c 'import torch'", seconds=0.5),
    Mark(case="the same, machine never probed", beside="python -c 'import torch'", seconds=0.5),
    Mark(case="trainwiz check", seconds=0.4),
    Mark(case="trainwiz check, a corpus of public files", seconds=1.5),
    Mark(case="trainwiz launch, 1 rank", beside="python train.py", seconds=0.3),
    Mark(case="trainwiz launch, 1 rank", beside="accelerate launch, 1 rank", ratio=0.3),
    Mark(case="trainwiz launch, 2 ranks", beside="python train.py", seconds=0.3),
    Mark(case="trainwiz launch, 2 ranks", beside="accelerate launch, 2 ranks", ratio=0.3),
    Mark(case="trainwiz launch, 2 ranks", beside="torchrun, 2 ranks", ratio=0.3),
)


def cases(scratch: Path) -> dict[str, Case]:
    """Every command by its name in the table. Makes two projects whose training script is empty."""
    trainwiz, python, accelerate = str(BIN / "trainwiz"), sys.executable, str(BIN / "accelerate")
    one, two = _project(scratch, 1), _project(scratch, 2)
    new = scratch / "new"

    def without_project() -> None:
        shutil.rmtree(new, ignore_errors=True)

    def never_probed() -> None:
        without_project()
        shutil.rmtree(scratch / "empty", ignore_errors=True)

    unknown = {"XDG_CACHE_HOME": str(scratch / "empty")}
    init = [trainwiz, "init", str(new)]
    decided = [*init, "--defaults", "--yes"]
    # Only where there is one: configurations of public projects, which tests/workflows/test_check_files.py knows, too.
    files = {
        "trainwiz check, a corpus of public files": Case(argv=["sh", "-c", f"{trainwiz} check {CORPUS} || test $? = 1"])
    }
    return (files if CORPUS.is_dir() else {}) | {
        "trainwiz --help": Case(argv=[trainwiz, "--help"]),
        "accelerate --help": Case(argv=[accelerate, "--help"]),
        "first question of trainwiz init": Case(argv=init, prepare=without_project, asks=True),
        "first question, machine never probed": Case(argv=init, prepare=never_probed, asks=True, environ=unknown),
        "python -c 'import torch'": Case(argv=[python, "-c", "import torch"]),
        "trainwiz init --defaults --yes": Case(argv=decided, prepare=without_project),
        "the same, machine never probed": Case(argv=decided, prepare=never_probed, environ=unknown),
        "trainwiz check": Case(argv=[trainwiz, "check", str(two)]),
        "python train.py": Case(argv=[python, "train.py"], cwd=one),
        "trainwiz launch, 1 rank": Case(argv=[trainwiz, "launch"], cwd=one),
        "trainwiz launch, 2 ranks": Case(argv=[trainwiz, "launch"], cwd=two),
        "accelerate launch, 1 rank": Case(
            argv=[accelerate, "launch", "--config_file", "accelerate.yaml", "train.py"], cwd=one
        ),
        # A CPU configuration would start one process whatever it says; an empty script needs no GPU.
        "accelerate launch, 2 ranks": Case(
            argv=[
                accelerate,
                "launch",
                "--multi_gpu",
                "--num_processes",
                "2",
                "--mixed_precision",
                "no",
                "--num_machines",
                "1",
                "--dynamo_backend",
                "no",
                "train.py",
            ],
            cwd=two,
        ),
        "torchrun, 2 ranks": Case(
            argv=[str(BIN / "torchrun"), "--standalone", "--nproc_per_node", "2", "train.py"], cwd=two
        ),
    }


def _project(scratch: Path, ranks: int) -> Path:
    folder = scratch / f"{ranks}-ranks"
    strategy = "single" if ranks == 1 else "ddp"
    made = subprocess.run(
        [
            str(BIN / "trainwiz"),
            "init",
            str(folder),
            "--defaults",
            "--yes",
            "--device",
            "cpu",
            "--task",
            "custom",
            "--num-processes",
            str(ranks),
            "--strategy",
            strategy,
        ],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(scratch),
        timeout=_SECONDS,
    )
    if made.returncode:
        sys.exit(made.stderr)
    # Empty, and as if it had been generated so: the launch of an edited file says that it is.
    (folder / "train.py").write_text("")
    manifest = folder / ".trainwiz" / "manifest.json"
    written = json.loads(manifest.read_text())
    written["files"]["train.py"] = hashlib.sha256(b"").hexdigest()
    manifest.write_text(json.dumps(written))
    return folder


def _environment(scratch: Path) -> dict[str, str]:
    # What the caller's shell adds must not count: a first run compiles, every later one finds the bytecode.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    private = {f"XDG_{kind}_HOME": str(scratch / kind.lower()) for kind in ("CACHE", "STATE", "CONFIG")}
    # accelerate, asked for 2 ranks, would otherwise read the person's own default configuration.
    return {**kept, **private, "TRAINWIZ_LANG": "en", "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}


def _took(case: Case, environ: Mapping[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run, its children included."""
    case.prepare()
    environ = {**environ, **case.environ}
    started = time.perf_counter()
    if case.asks:
        wall = _until_asked(case, environ, started)
        return wall, float("nan")
    null = subprocess.DEVNULL
    process = subprocess.Popen(case.argv, env=environ, cwd=case.cwd, stdin=null, stdout=null, stderr=null)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(case.argv)} ended with {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def _until_asked(case: Case, environ: Mapping[str, str], started: float) -> float:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(case.argv[0], list(case.argv), dict(environ))
    seen, until = b"", time.monotonic() + _SECONDS
    try:
        while LAST_LINE_OF_THE_FIRST_QUESTION not in seen:
            if not select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RuntimeError(f"no question within {_SECONDS:g} s:\n{seen.decode(errors='replace')}")
            new = os.read(terminal, 1 << 16)
            seen += new
            if WHERE_IS_THE_CURSOR in new:
                os.write(terminal, CURSOR)
        return time.perf_counter() - started
    finally:
        _leave(pid, terminal)


def _leave(pid: int, terminal: int) -> None:
    with contextlib.suppress(OSError):
        os.write(terminal, b"\x03")
    until = time.monotonic() + 5
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        with contextlib.suppress(OSError):
            if select.select([terminal], [], [], 0.02)[0]:
                os.read(terminal, 1 << 16)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
    os.close(terminal)


def measure(rounds: int, wanted: str) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) seconds of each command whose name matches, one per round, after one round that does not count."""
    with _scratch() as scratch:
        chosen = {name: case for name, case in cases(scratch).items() if re.search(wanted, name)}
        environ = _environment(scratch)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
        for number in range(rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr)
            for name, case in chosen.items():
                result = _took(case, environ)
                if number:
                    taken[name].append(result)
    return taken


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trainwiz-startup-") as folder:
        yield Path(folder)


def table(taken: Mapping[str, Sequence[tuple[float, float]]]) -> tuple[str, bool]:
    """Both tables as Markdown, and whether every mark that could be judged was met."""
    median = {name: statistics.median(wall for wall, _ in runs) for name, runs in taken.items()}
    lines = ["| promise | measured | limit | met |", "|---|---|---|---|"]
    met = True
    for mark in MARKS:
        if mark.case in median and (mark.beside is None or mark.beside in median):
            line, kept = _judged(mark, median)
            lines.append(line)
            met = met and kept
    lines += ["", "| command | wall s, median | fastest | CPU s, median |", "|---|---|---|---|"]
    for name, runs in taken.items():
        cpu = statistics.median(seconds for _, seconds in runs)
        shown = "" if cpu != cpu else f"{cpu:.2f}"
        lines.append(f"| `{name}` | {median[name]:.2f} | {min(wall for wall, _ in runs):.2f} | {shown} |")
    return "\n".join(lines), met


def _judged(mark: Mark, median: Mapping[str, float]) -> tuple[str, bool]:
    beside = median[mark.beside] if mark.beside else 0.0
    if mark.ratio is not None:
        value, limit = median[mark.case] / beside, mark.ratio
        words, shown, limit_shown = f"`{mark.case}` / `{mark.beside}`", f"{value:.2f}", f"{limit:.2f}"
    else:
        value, limit = median[mark.case] - beside, mark.seconds
        words = f"`{mark.case}` − `{mark.beside}`" if mark.beside else f"`{mark.case}`"
        shown, limit_shown = f"{value:.2f} s", f"{limit:.2f} s"
    return f"| {words} | {shown} | {limit_shown} | {'yes' if value <= limit else '**no**'} |", value <= limit


def _circumstances(rounds: int) -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("trainwiz", "torch", "accelerate", "typer")]
    return (
        f"`make benchmark`: medians of {rounds} interleaved rounds, after one that warms up. Python "
        f"{platform.python_version()}, {', '.join(versions)}, {os.cpu_count()} CPU cores; load average per core before "
        f"the first round: {os.getloadavg()[0] / (os.cpu_count() or 1):.1f}."
    )


def write(text: str) -> None:
    """Put the text between the page's two marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measure, show, write; 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how often each command is run")
    parser.add_argument("--only", default="", help="commands whose name matches this pattern; nothing is written")
    options = parser.parse_args()
    circumstances = _circumstances(options.rounds)
    shown, met = table(measure(options.rounds, options.only))
    print(shown)
    if not options.only:
        write(f"{circumstances}\n\n{shown}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
