"""How launchers (torchrun, accelerate, DeepSpeed, srun) and shells report that a worker failed."""

from __future__ import annotations

import re

from trainwiz.outcome import signal_number

# torch.distributed.elastic.multiprocessing.errors: `rank      : 1 (local_rank: 1)`, `exitcode  : 42 (pid: 7)`
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (?P<rank>\d+) .*?exitcode\s*: (?P<code>-?\d+)", re.DOTALL
)
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
_SUBPROCESS = re.compile(r"returned non-zero exit status (?P<code>\d+)\.|died with <Signals\.\w+: (?P<signal>\d+)>")
# torch.multiprocessing.spawn: its workers are ranks by convention
_SPAWN = re.compile(
    r"ProcessExitedException: process (?P<rank>\d+) terminated with "
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


def first_failure(text: str) -> tuple[int | None, int] | None:
    """Rank (None: not reported) and exit code (negative: a signal) of the first failure; None if none is reported."""
    for pattern in (_ROOT_CAUSE, _FAILED):
        if match := pattern.search(text):
            return int(match["rank"]), int(match["code"])
    if match := _SPAWN.search(text):
        code = int(match["code"]) if match["code"] else -(signal_number(match["signal"]) or 9)
        return int(match["rank"]), code
    if match := _SRUN.search(text):
        code = int(match["code"]) if match["code"] else _SIGNALS.get(match["word"], 1)
        return int(match["rank"]), code
    if match := _DEEPSPEED.search(text):
        return int(match["rank"]) if match["rank"] else None, int(match["code"])
    if match := _SUBPROCESS.search(text):
        return None, int(match["code"]) if match["code"] else -int(match["signal"])
    if match := _WORDS.search(text):
        return None, _SIGNALS[match["word"].split()[0]]
    return None
