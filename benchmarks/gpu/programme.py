"""All that only a GPU can show, in parts of less than eight minutes each, the most worth first.

    python benchmarks/gpu/bring.py wheels                       # where there is a network: what the machine lacks
    python benchmarks/gpu/programme.py --part a --wheels wheels --out OUT       # there; then --part b, c, d
    python benchmarks/gpu/programme.py --little                 # all of it in little on the CPU

a: every strategy that one GPU can run, in every precision, against the CPU's curve; activation checkpointing, adapters,
compiled layers, attention by documents; resuming to the same weights; what waits for the device. b: peak memory beside
its forecast. c: throughput.py, speed beside other loops. d: colossalai.py, Colossal-AI's plugins.

For a bare machine with one GPU of 40 GB or more, Python 3.12, torch 2.11 with CUDA, accelerate 1.15, transformers 5.17
and no network. Every row is in OUT/PART.json and OUT/PART.md as soon as it is known, so a part that is cut off has lost
only what was running; with `--results DIR` the tables are there, without the projects. What runs when a part's time is
up is ended. Exit code 1 where a row is off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import cases
from cases import Bench, Case

HERE = Path(__file__).parent
PARTS = {"a": "right", "b": "memory", "c": "speed", "d": "Colossal-AI"}
SECONDS = 450.0
"""Of a part: eight minutes, with time left for its start and its end."""
AT_ONCE = 4
"""Trainings of part a that share the GPU: they are small, and their time is not measured."""


@dataclass
class Table:
    """Rows, on the disk after each."""

    file: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(row)
        self.file.with_suffix(".json").write_text(json.dumps(self.rows, indent=1) + "\n")
        self.file.with_suffix(".md").write_text(self.markdown())
        print(json.dumps(row), flush=True)

    def markdown(self) -> str:
        """All rows as a table of all their columns."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        lines += ["| " + " | ".join(_shown(row.get(name, "")) for name in names) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("\n", " ").replace("|", "/")[:200]


def measured(bench: Bench, wanted: Sequence[Case], measure: Callable[[Case], dict[str, Any]]) -> Table:
    """A row for each case, in the order in which they end; what does not begin in time is said to be left out."""
    table = Table(bench.rows)

    def one(case: Case) -> dict[str, Any]:
        began = time.monotonic()
        if began > bench.end:
            return {"case": case.name, "ok": None, "problem": "left out: the time was up"}
        try:
            found = measure(case)
        except (subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
            found = {"ok": False, "problem": cases.problem(error)}
        return {"case": case.name, **found, "seconds": round(time.monotonic() - began, 1)}

    with ThreadPoolExecutor(1 if bench.little or bench.part == "b" else AT_ONCE) as pool:
        for done in as_completed([pool.submit(one, case) for case in wanted]):
            table.add(done.result())
    return table


def right(bench: Bench) -> Table:
    """Part a."""
    wanted = [case for case in cases.right(bench) if bench.wants(case.name)]
    reference = cases.curve(bench, cases.REFERENCE)
    for case in cases.right(bench):
        if case.name in {other.same_as for other in wanted}:
            with suppress(subprocess.SubprocessError):  # its own row says why
                cases.curve(bench, case)
    return measured(bench, wanted, lambda case: cases.compare(bench, case, reference))


def memory(bench: Bench) -> Table:
    """Part b."""
    wanted = [case for case in cases.memory(bench) if bench.wants(case.name)]
    return measured(bench, wanted, lambda case: cases.peak(bench, case))


def speed(bench: Bench) -> Table:
    """Part c."""
    arguments = ["--out", str(bench.out / "throughput"), "--budget", f"{bench.left():.0f}"]
    arguments += ["--toy", "--per-cell", "300"] if bench.little else []  # a busy machine imports for minutes
    arguments += ["--only", bench.only] if bench.only else []
    return _ran(bench, "throughput.py", arguments, lambda: cases.speeds(bench.out / "throughput" / "results.json"))


def colossalai(bench: Bench) -> Table:
    """Part d, in the interpreter that has Colossal-AI."""
    output = bench.out / "colossalai.json"
    arguments = ["--python", bench.colossalai, "--output", str(output), "--seconds", f"{bench.left():.0f}"]
    arguments += ["--device", "cpu", "--kinds", "colossal_ddp"] if bench.little else []
    return _ran(bench, "colossalai.py", arguments, lambda: cases.plugins(output))


def _ran(bench: Bench, name: str, arguments: list[str], rows: Callable[[], Iterator[dict[str, Any]]]) -> Table:
    table = Table(bench.rows)
    log = bench.out / f"{bench.part}.log"
    with log.open("w") as written:
        command = [sys.executable, str(HERE / name), *arguments]
        done = subprocess.run(command, env=bench.environment, stdout=written, stderr=written, check=False)
    try:
        for row in rows():
            table.add(row)
    except (OSError, ValueError) as error:
        table.add({"case": name, "ok": False, "problem": f"{error}; see {log}"})
    if done.returncode and all(row["ok"] is not False for row in table.rows):
        table.add({"case": name, "ok": False, "problem": f"ended with {done.returncode}; see {log}"})
    return table


RUN: dict[str, Callable[[Bench], Table]] = {"a": right, "b": memory, "c": speed, "d": colossalai}


def unpack(wheels: Path, site: Path) -> None:
    """Install what was brought along into a folder of its own, for PYTHONPATH."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if files and not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*pip, *files], check=True)


def interpreter(site: Path) -> str:
    """Make a program that is this Python with the packages of a folder before its own."""
    program = site.with_name(f"{site.name}-python")
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def main() -> int:
    """Run the parts; 1 where a row is off or nothing was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="by default all, in this order")
    parser.add_argument("--out", type=Path, default=Path("gpu-programme"))
    parser.add_argument("--results", type=Path, help="another folder for the tables, without projects and packages")
    parser.add_argument("--wheels", type=Path, help="folder that bring.py made")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each part")
    parser.add_argument("--only", default="", help="cases whose name matches this pattern")
    parser.add_argument(
        "--colossalai", default="", help="for part d: an interpreter with Colossal-AI; by default the wheels"
    )
    parser.add_argument("--little", action="store_true", help="tiny shapes on the CPU")
    options = parser.parse_args()
    for folder in filter(None, (options.out, options.results)):
        folder.mkdir(parents=True, exist_ok=True)
    site = (options.out / "site").resolve()
    if options.wheels:
        unpack(options.wheels, site)
        if not options.colossalai and (options.wheels / "colossalai").is_dir():
            unpack(options.wheels / "colossalai", site.with_name("colossalai"))
            options.colossalai = interpreter(site.with_name("colossalai"))
    code = 0
    for part in options.part or PARTS:
        if part == "d" and not options.colossalai:
            print("part d needs --wheels, or --colossalai PYTHON", file=sys.stderr)
            code = 1
            continue
        bench = Bench(
            part=part,
            out=options.out.resolve(),
            results=options.results and options.results.resolve(),
            little=options.little,
            only=options.only,
            site=site,
            colossalai=os.path.abspath(options.colossalai or sys.executable),
            end=time.monotonic() + options.seconds,
        )
        try:
            table = RUN[part](bench)
        except (subprocess.SubprocessError, OSError) as error:  # of what all its rows need
            table = Table(bench.rows)
            table.add({"case": PARTS[part], "ok": False, "problem": cases.problem(error)})
        off = [row["case"] for row in table.rows if row["ok"] is False]
        print(f"part {part} ({PARTS[part]}): {len(table.rows)} rows, off: {', '.join(off) or 'none'}", file=sys.stderr)
        code = code or int(bool(off) or not any(row["ok"] for row in table.rows))
    return code


if __name__ == "__main__":
    sys.exit(main())
