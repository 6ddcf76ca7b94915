"""What an exit code or a signal means by itself, if the log does not show a cause."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.diagnose.known import SIGNATURES
from trainwiz.diagnose.signature import Signature

_NAMED = {signature.name: signature for signature in SIGNATURES}
KILLED_FOR_MEMORY = _NAMED["cgroup_memory"]
"""SIGKILL, and the cgroup counted an out-of-memory kill during the run."""
DISK_FILLED = _NAMED["disk_full"]
"""Nothing was free at the end, so that not even the traceback could be written."""
EXITED = Signature(
    name="exit_code",
    cause="the script exited with this code without raising an exception",
    remedy="look for sys.exit or os._exit in the script; its output is in {log}",
    transient=None,
)
"""An exit code above 1 without an exception; 1 is Python's own for an exception."""

BY_CODE: Mapping[int, Signature] = {
    -9: Signature(
        name="killed",
        cause="the rank was killed from outside; usually by the kernel or the container, because memory ran out",
        remedy="check `dmesg | grep -i oom` or the container's events; lower data.num_workers or the micro-batch",
        transient=True,
        plan_change="less_host_memory",
    ),
    -11: Signature(
        name="segfault",
        cause="the rank crashed in native code",
        remedy="to see where, run: PYTHONFAULTHANDLER=1 trainwiz launch; usually an extension or a driver does not "
        "match the torch build: run trainwiz doctor",
        transient=None,
    ),
    -7: Signature(
        name="bus_error",
        cause="the rank accessed memory that does not exist; usually because /dev/shm is full",
        remedy="enlarge /dev/shm (docker run --shm-size 16g) or lower data.num_workers",
        plan_change="fewer_workers",
    ),
    -6: Signature(
        name="aborted",
        cause="the rank aborted; usually because of a collective watchdog or an assertion in native code",
        remedy="check the last lines of its log, and whether another rank hung or died shortly before",
        transient=None,
    ),
    -4: Signature(
        name="illegal_instruction",
        cause="the code used an instruction that the processor does not support",
        remedy="a package was built for another processor: reinstall it on this machine",
    ),
    -8: Signature(
        name="arithmetic_fault",
        cause="integer division by zero in native code",
        remedy="to see where, run: PYTHONFAULTHANDLER=1 trainwiz launch",
    ),
    -15: Signature(
        name="terminated",
        cause="the rank was asked to end, but not by trainwiz",
        remedy="check the events of the scheduler or the container; to continue, run: trainwiz launch --resume",
        transient=True,
    ),
    -1: Signature(
        name="hung_up",
        cause="the rank's terminal was closed",
        remedy="run trainwiz in tmux or with nohup; to continue, run: trainwiz launch --resume",
        transient=True,
    ),
    2: Signature(
        name="usage",
        cause="exit code 2 without an exception: the command line was refused before the script began",
        remedy="the line above the launcher's report says which option or file it is; under torch.distributed.launch "
        "it is often --local-rank: read LOCAL_RANK in the script and start it with torchrun",
    ),
    -25: _NAMED["file_too_large"],
    -24: Signature(
        name="cpu_time",
        cause="the rank used up its CPU time limit",
        remedy="run ulimit -t unlimited before the launch, or request more time from the scheduler",
    ),
}
"""By exit code, negative for a signal (signal(7), Linux)."""
