"""How launchers (torchrun, accelerate, DeepSpeed, srun) and shells report that a worker failed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainwiz.outcome import signal_number

# torch.distributed.elastic.multiprocessing.errors: `rank      : 1 (local_rank: 1)`, `exitcode  : 42 (pid: 7)`
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (?P<rank>\d{1,9}) .*?exitcode\s*: (?P<code>-?\d{1,9})",
    re.DOTALL,
)
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d{1,9})\)\s{1,2}local_rank: (?P<rank>\d{1,9})")
_SUBPROCESS = re.compile(
    r"returned non-zero exit\s+status (?P<code>\d{1,10})\.|died with <Signals\.\w+: (?P<signal>\d{1,9})>"
)
# A report that was cut: `exitcode  : -11 (pid: 7)`, `traceback : Signal 11 (SIGSEGV) received by PID 7`
_CUT = re.compile(
    r"^\s*(?:exitcode +: (?P<code>-\d{1,9}|2) |traceback : Signal (?P<signal>\d{1,9}) \(SIG)", re.MULTILINE
)
# libstdc++: native code that an exception ends
_UNCAUGHT = re.compile(r"terminate called after throwing an (?P<word>instance) of '")
# torch.multiprocessing.spawn: its workers are ranks by convention
_SPAWN = re.compile(
    r"(?:ProcessExitedException|Exception): process (?P<rank>\d{1,9}) terminated with "
    r"(?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d{1,9}))"
)
# deepspeed/launcher/launch.py
_DEEPSPEED = re.compile(r"(?:--local_rank=(?P<rank>\d{1,9}).*)?\] exits with return code = (?P<code>-?\d{1,9})")
# srun: error: node0: task 3: Exited with exit code 1 | Killed | Segmentation fault
_SRUN = re.compile(
    r"srun: error: \S+: tasks? (?P<rank>\d{1,9})[\d,-]*: (?:Exited with exit code (?P<code>\d{1,9})|(?P<word>\w+))"
)
# How shells and faulthandler report the death of a process.
_WORDS = re.compile(
    r"^(?:Fatal Python error: |.*: line \d+: +\d+ )?"
    r"(?P<word>Killed|Segmentation|Bus error|Aborted|Terminated|Illegal instruction|Floating point exception|"
    r"已杀死|段错误|总线错误|已放弃|已中止|已终止|非法指令|浮点数例外)"
    r"(?: fault)?(?: *[(（](?:core dumped|核心已转储|Speicherabzug geschrieben)[)）].*| +\S*python.*)?$",
    re.MULTILINE,
)
# glog, UCX, Open MPI, MPICH: `*** SIGSEGV (@0x0) received by PID 7`, `Caught signal 11 (Segmentation fault`,
# `exited on signal 9`, `EXIT STRING: Bus error (signal 7)`
_MPI = re.compile(
    r"(?:\*\*\* (?=SIG\w+ \(@)|Caught signal |exited on signal |EXIT STRING: [\w ]+\(signal )"
    r"(?P<signal>SIG[A-Z]+|\d{1,9})"
)
# docker, Kubernetes and SageMaker: `Exit Code: 137`, `exited with code 139`, `terminated with exit code 137`
_CONTAINER = re.compile(
    r"(?:[Ee]xit ?[Cc]ode:|exited with code|Exited(?= \()|(?:terminated|finished) with exit code) *"
    r"\(?(?P<code>13[4-9]|14[0-3])\b"
)
_SIGNALS = {
    "Killed": -9,
    "Out": -9,
    "Segmentation": -11,
    "Bus": -7,
    "Aborted": -6,
    "instance": -6,
    "Terminated": -15,
    "Illegal": -4,
    "Floating": -8,
    "已杀死": -9,
    "段错误": -11,
    "总线错误": -7,
    "已放弃": -6,
    "已中止": -6,
    "已终止": -15,
    "非法指令": -4,
    "浮点数例外": -8,
}
# NTSTATUS values that Windows gives as exit codes: access violation, stack overrun, illegal instruction, Ctrl-C
_WINDOWS = {0xC0000005: -11, 0xC0000409: -6, 0xC000001D: -4, 0xC0000094: -8, 0xC0000017: -9, 0xC000013A: -2}
_REPORTS = (_ROOT_CAUSE, _FAILED, _CUT, _SPAWN, _SRUN, _DEEPSPEED, _SUBPROCESS, _WORDS, _MPI, _CONTAINER, _UNCAUGHT)


def first_failure(text: str) -> tuple[int | None, int] | None:
    """Rank (None: not reported) and exit code (negative: a signal) of the first failure; None if none is reported."""
    match = next((match for report in _REPORTS if (match := report.search(text))), None)
    if match is None:
        return None
    told = match.groupdict()
    return int(told["rank"]) if told.get("rank") else None, _code(told)


def _code(told: Mapping[str, str | None]) -> int:
    if code := told.get("code"):
        return _WINDOWS.get(int(code), int(code))
    if signal := told.get("signal"):
        return -(int(signal) if signal.isdecimal() else signal_number(signal) or 9)
    return _SIGNALS.get((told["word"] or "").split()[0], 1)
