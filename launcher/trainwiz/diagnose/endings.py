"""What an exit code or a signal means by itself, if the log does not show a cause."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.diagnose.signature import Signature, known
from trainwiz.message import say

KILLED_FOR_MEMORY = known(
    "cgroup_memory",
    cause=say("the kernel killed the rank, since its container or job may not use more host memory"),
    remedy=say(
        "allow more (docker --memory, sbatch --mem, the pod's limits), or use less: data.num_workers 0, a smaller "
        "micro-batch, no CPU offload"
    ),
    plan_change="less_host_memory",
)
"""SIGKILL, and the cgroup counted an out-of-memory kill during the run."""

EXITED = known(
    "exit_code",
    cause=say("the script ended itself with this exit code, and raised no exception"),
    remedy=say("look for sys.exit or os._exit in it; {log} holds what it said before", log=""),
    transient=None,
)
"""An exit code above 1 without an exception; 1 is Python's own for an exception."""

DISK_FILLED = known(
    "disk_full",
    cause=say("the disk is full, or your quota is"),
    remedy=say("df -h shows it; free space where runs/ lies, or lower checkpoint.checkpoints_total_limit"),
    plan_change="fewer_checkpoints",
)
"""Nothing was free at the end, so that not even the traceback could be written."""

BY_CODE: Mapping[int, Signature] = {
    -9: known(
        "killed",
        cause=say("the rank was killed from outside; mostly the kernel or the container does so when memory runs out"),
        remedy=say(
            "look at `dmesg | grep -i oom` or the container's events; lower data.num_workers or the micro-batch"
        ),
        transient=True,
        plan_change="less_host_memory",
    ),
    -11: known(
        "segfault",
        cause=say("the rank crashed in native code"),
        remedy=say(
            "PYTHONFAULTHANDLER=1 trainwiz launch shows where; mostly an extension or a driver that does not fit "
            "torch's build: trainwiz doctor"
        ),
        transient=None,
    ),
    -7: known(
        "bus_error",
        cause=say("the rank touched memory that is not there; mostly /dev/shm is full"),
        remedy=say("enlarge /dev/shm (docker run --shm-size 16g), or lower data.num_workers"),
        plan_change="fewer_workers",
    ),
    -6: known(
        "aborted",
        cause=say("the rank aborted itself; mostly a collective's watchdog or an assertion in native code"),
        remedy=say("see the last lines of its log, and whether another rank hung or died shortly before"),
        transient=None,
    ),
    -4: known(
        "illegal_instruction",
        cause=say("the processor does not know an instruction that was used"),
        remedy=say("a package was built for another processor: install it anew on this machine"),
    ),
    -8: known(
        "arithmetic_fault",
        cause=say("native code divided a whole number by zero"),
        remedy=say("PYTHONFAULTHANDLER=1 trainwiz launch shows where"),
    ),
    -15: known(
        "terminated",
        cause=say("somebody asked the rank to end, and not through trainwiz"),
        remedy=say("look at the scheduler's or the container's events; trainwiz launch --resume goes on"),
        transient=True,
    ),
    -1: known(
        "hung_up",
        cause=say("the terminal that the rank belonged to was closed"),
        remedy=say("run trainwiz in tmux, or with nohup; trainwiz launch --resume goes on"),
        transient=True,
    ),
    -25: known(
        "file_too_large",
        cause=say("a file grew beyond the limit for one file"),
        remedy=say("ulimit -f unlimited before the launch"),
    ),
    -24: known(
        "cpu_time",
        cause=say("the rank used all the processor time it may have"),
        remedy=say("ulimit -t unlimited before the launch, or ask the scheduler for more"),
    ),
}
"""By exit code, negative for a signal (signal(7), Linux)."""
