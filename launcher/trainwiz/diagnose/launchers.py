"""How launchers (torchrun, accelerate, DeepSpeed, srun) and shells report that a worker failed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainwiz.outcome import signal_number

# torch.distributed.elastic.multiprocessing.errors: `rank      : 1 (local_rank: 1)`, `exitcode  : 42 (pid: 7)`
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (?P<rank>\d+) .*?exitcode\s*: (?P<code>-?\d+)", re.DOTALL
)
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
_SUBPROCESS = re.compile(r"returned non-zero exit status (?P<code>\d+)\.|died with <Signals\.\w+: (?P<signal>\d+)>")
# torch.multiprocessing.spawn: its workers are ranks by convention
_SPAWN = re.compile(
    r"(?:ProcessExitedException|Exception): process (?P<rank>\d+) terminated with "
    r"(?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))"
)
# deepspeed/launcher/launch.py
_DEEPSPEED = re.compile(r"(?:--local_rank=(?P<rank>\d+).*)?\] exits with return code = (?P<code>-?\d+)")
# srun: error: node0: task 3: Exited with exit code 1 | Killed | Segmentation fault
_SRUN = re.compile(
    r"srun: error: \S+: tasks? (?P<rank>\d+)[\d,-]*: (?:Exited with exit code (?P<code>\d+)|(?P<word>\w+))"
)
# How shells and faulthandler report the death of a process.
_WORDS = re.compile(
    r"^(?:Fatal Python error: |.*: line \d+: +\d+ )?"
    r"(?P<word>Killed|Segmentation|Bus error|Aborted|Terminated|Illegal instruction|Floating point exception)"
    r"(?: fault)?(?: +\(core dumped\).*| +\S*python.*)?$",
    re.MULTILINE,
)
# glog, UCX, Open MPI, MPICH: `*** SIGSEGV (@0x0) received by PID 7`, `Caught signal 11 (Segmentation fault`,
# `exited on signal 9`, `EXIT STRING: Bus error (signal 7)`
_MPI = re.compile(
    r"(?:\*\*\* (?=SIG\w+ \(@)|Caught signal |exited on signal |EXIT STRING: [\w ]+\(signal )(?P<signal>SIG[A-Z]+|\d+)"
)
# docker, Kubernetes and SageMaker: `Exit Code: 137`, `exited with code 139`, `terminated with exit code 137`
_CONTAINER = re.compile(
    r"(?:[Ee]xit ?[Cc]ode:|exited with code|(?:terminated|finished) with exit code) *\(?(?P<code>13[4-9]|14[0-3])\b"
)
_SIGNALS = {
    "Killed": -9,
    "Out": -9,
    "Segmentation": -11,
    "Bus": -7,
    "Aborted": -6,
    "Terminated": -15,
    "Illegal": -4,
    "Floating": -8,
}


_REPORTS = (_ROOT_CAUSE, _FAILED, _SPAWN, _SRUN, _DEEPSPEED, _SUBPROCESS, _WORDS, _MPI, _CONTAINER)


def first_failure(text: str) -> tuple[int | None, int] | None:
    """Rank (None: not reported) and exit code (negative: a signal) of the first failure; None if none is reported."""
    match = next((match for report in _REPORTS if (match := report.search(text))), None)
    if match is None:
        return None
    told = match.groupdict()
    return int(told["rank"]) if told.get("rank") else None, _code(told)


def _code(told: Mapping[str, str | None]) -> int:
    if code := told.get("code"):
        return int(code)
    if signal := told.get("signal"):
        return -(int(signal) if signal.isdecimal() else signal_number(signal) or 9)
    return _SIGNALS.get((told["word"] or "").split()[0], 1)
