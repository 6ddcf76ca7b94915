"""DeepSpeed's ops, compiled before the ranks start: a rank that compiles is silent for minutes, and the others wait."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwiz import strategies
from trainwiz.errors import Refused, TrainwizError
from trainwiz.language import t, text
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.outcome import shell_code
from trainwiz.plan import Plan
from trainwiz.probe import locks, ops
from trainwiz.probe.interpreter import installed
from trainwiz.process.lines import Lines
from trainwiz.store import cache
from trainwiz.ui import console
from trainwiz.ui.ops import Progress
from trainwiz.workflows.launch import build_locks

_LOOK_SECONDS = 1.0
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
"""What ninja writes before a command that has ended."""
_ERROR = re.compile(r"\berror\b|FAILED|undefined reference|cannot find -l|not found", re.IGNORECASE)
_SHOWN_LINES = 12
_KEPT_LINES = 2000


def remove_stale_locks(plan: Plan) -> None:
    """Remove the locks of builds that died, if this plan would wait for them."""
    if strategies.of(plan).uses_deepspeed:
        build_locks.remove_stale_locks({}, 0.0, console.talk)


# docs/decisions/deepspeed.md: The launcher has DeepSpeed's ops compiled before the ranks start
def build(
    plan: Plan,
    *,
    python: str,
    machine: Machine,
    added: Mapping[str, str] | None = None,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Have this plan's ops compiled by DeepSpeed, where they are not. Raises `Refused` where that fails.

    `added` are variables that the ranks get beside those of the strategy. `look` is called about once a second; what it
    raises ends the build.
    """
    wanted = strategies.of(plan).ops(plan)
    if not wanted:
        return
    device = strategies.of(plan).environment(plan.machine.device)
    environ = {**os.environ, **device, **(added or {}), "PYTHONUNBUFFERED": "1"}
    key = _key(wanted, environ, python, machine)
    if _as_remembered(cache.recall("ops", key), wanted):
        return
    missing = [op for op in wanted if not ops.libraries(op, environ)]
    build = _Build(progress=Progress(missing), environ=environ, missing=frozenset(missing), look=look)
    code = build.run(ops.building(python, wanted))
    if code and (build.lock_removed or build.waited):
        # A process that waits for a lock assumes that its holder has compiled the op.
        build = dataclasses.replace(
            build, files={}, lines=[], op="", lock_removed=False, waited=False, _step=None, _waits=False
        )
        code = build.run(ops.building(python, wanted))
    if code:
        raise _refusal(build, code)
    if unfit := [op for op in wanted if not build.files.get(op)]:
        names = ", ".join(unfit)
        build.progress.aside(t("DeepSpeed does not use these ops here: {ops}; trainwiz doctor says why", ops=names))
    if build.compiled:
        build.progress.done()
    cache.remember("ops", key, {op: _times(file) for op, file in build.files.items()})


def build_if_possible(plan: Plan, *, python: str, machine: Machine) -> None:
    """The same for a script that trainwiz did not write, which may need no op: a failure is shown, and no more."""
    try:
        build(plan, python=python, machine=machine)
    except Refused as refused:
        console.failure(refused)
        console.talk(t("starting the script anyway: it may not need this op"), style="warning")


@dataclass(kw_only=True)
class _Build:
    """One run of the program that compiles."""

    progress: Progress
    environ: Mapping[str, str]
    missing: frozenset[str]
    """Ops of which nothing is there."""
    look: Callable[[], None] = lambda: None
    """Called about once a second."""
    files: dict[str, str | None] = field(default_factory=dict)
    """By op, the library that was loaded; None: DeepSpeed does without the op here."""
    lines: list[str] = field(default_factory=list)
    op: str = ""
    """The op that is being loaded."""
    lock_removed: bool = False
    waited: bool = False
    """Whether another process was compiling an op."""
    compiled: bool = False
    """Whether anything was compiled."""
    _step: tuple[int, int] | None = None
    _waits: bool = False

    def run(self, argv: Sequence[str]) -> int:
        """Run it to its end; return its exit code."""
        watch = build_locks.Watch(self.environ, self._removed)
        try:
            with Lines(argv, environ=self.environ) as program:
                for line in program.read(_LOOK_SECONDS):
                    self.look()
                    if line is None:
                        watch.look()
                    else:
                        self._heard(line)
                    self.progress.show(self.op, self._step, waits=self._waits)
                return program.code()
        except OSError as error:
            raise TrainwizError(say("cannot start {python}: {error}", python=argv[0], error=error)) from None
        finally:
            self.progress.end()

    def _heard(self, line: str) -> None:
        if told := ops.told(line):
            if "op" in told:
                self.op, self._step = str(told["op"]), None
                self._waits = self.op in self.missing and ops.locked(self.op, self.environ)
                self.waited = self.waited or self._waits
            elif "loaded" in told:
                self.files[str(told["loaded"])] = told.get("file")
            return
        if step := _STEP.match(line):
            self._step = int(step[1]), int(step[2])
            # Ninja runs for us: the lock that was seen is our own.
            self._waits = self.waited = False
            self.compiled = True
        if line.strip():
            self.lines = [*self.lines[1 - _KEPT_LINES :], line]

    def _removed(self, message: Message) -> None:
        self.lock_removed = True
        self.progress.aside(text(message))


def _refusal(build: _Build, code: int) -> Refused:
    # Only where something failed: they bring all signatures.
    from trainwiz.diagnose import of_log
    from trainwiz.diagnose.known import builds, deepspeed

    errors = [i for i, line in enumerate(build.lines) if _ERROR.search(line) and not line.startswith("  File ")]
    start = min(errors[0], max(0, len(build.lines) - _SHOWN_LINES)) if errors else max(0, len(build.lines) - 5)
    for line in build.lines[start : start + _SHOWN_LINES]:
        console.talk(f"  | {line}", style="dim")
    file = _kept(build)
    found = of_log("\n".join(build.lines), log=str(file or "-"))
    diagnosis = found if found and found.name in {*builds.SIGNATURES, *deepspeed.SIGNATURES} else None
    return Refused(
        say(
            "DeepSpeed cannot compile its op {op} (exit code {code}): {cause}",
            op=build.op or "-",
            code=shell_code(code),
            cause=text(diagnosis.cause) if diagnosis else build.lines[-1].strip() if build.lines else "-",
        ),
        say(
            "{remedy}; full compiler output: {file}",
            remedy=text(diagnosis.remedy)
            if diagnosis
            else t("to check the compiler, ninja, headers and nvcc, run: trainwiz doctor"),
            file=file or "-",
        ),
    )


def _kept(build: _Build) -> Path | None:
    from trainwiz.store import atomic

    file = cache.folder() / "ops.log"
    try:
        atomic.write(file, "\n".join(build.lines) + "\n")
    except TrainwizError:
        return None
    return file


def _key(wanted: Sequence[str], environ: Mapping[str, str], python: str, machine: Machine) -> str:
    """What must be the same for libraries to be used again."""
    interpreter = machine.interpreter
    packages = ("torch", "deepspeed")
    versions = [interpreter.version(name) if interpreter else installed(python, name) for name in packages]
    built_for = interpreter.cuda_build if interpreter else None
    gpus = sorted({gpu.name for gpu in machine.gpus})
    folder = locks.extensions_folder(environ)
    return repr([python, versions, built_for, gpus, str(folder), list(wanted), environ.get("DS_ACCELERATOR")])


def _times(file: str | None) -> tuple[str, int] | None:
    return (file, os.stat(file).st_mtime_ns) if file else None


def _as_remembered(remembered: Any, wanted: Sequence[str]) -> bool:
    """Whether every op's library is still the one that was loaded."""
    if not isinstance(remembered, dict) or not all(remembered.get(op) for op in wanted):
        return False
    try:
        return all(os.stat(file).st_mtime_ns == time for file, time in (remembered[op] for op in wanted))
    except (OSError, TypeError, ValueError):
        return False
