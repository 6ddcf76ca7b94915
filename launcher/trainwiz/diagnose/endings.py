"""What an exit code or a signal means by itself, if the log does not show a cause."""

from __future__ import annotations

from collections.abc import Mapping

from trainwiz.diagnose.signature import Signature, known
from trainwiz.message import say

KILLED_FOR_MEMORY = known(
    "cgroup_memory",
    cause=say("the kernel killed the rank because its container or job reached its host memory limit"),
    remedy=say(
        "raise the limit (docker --memory, sbatch --mem, the pod's limits), or use less memory: data.num_workers "
        "0, a smaller micro-batch, no CPU offload"
    ),
    plan_change="less_host_memory",
)
"""SIGKILL, and the cgroup counted an out-of-memory kill during the run."""

EXITED = known(
    "exit_code",
    cause=say("the script exited with this code without raising an exception"),
    remedy=say("look for sys.exit or os._exit in the script; its output is in {log}", log=""),
    transient=None,
)
"""An exit code above 1 without an exception; 1 is Python's own for an exception."""

DISK_FILLED = known(
    "disk_full",
    cause=say("the disk is full, or your quota is used up"),
    remedy=say("check with df -h; free space on the disk of runs/, or lower checkpoint.checkpoints_total_limit"),
    plan_change="fewer_checkpoints",
)
"""Nothing was free at the end, so that not even the traceback could be written."""

BY_CODE: Mapping[int, Signature] = {
    -9: known(
        "killed",
        cause=say("the rank was killed from outside; usually by the kernel or the container, because memory ran out"),
        remedy=say("check `dmesg | grep -i oom` or the container's events; lower data.num_workers or the micro-batch"),
        transient=True,
        plan_change="less_host_memory",
    ),
    -11: known(
        "segfault",
        cause=say("the rank crashed in native code"),
        remedy=say(
            "to see where, run: PYTHONFAULTHANDLER=1 trainwiz launch; usually an extension or a driver does not "
            "match the torch build: run trainwiz doctor"
        ),
        transient=None,
    ),
    -7: known(
        "bus_error",
        cause=say("the rank accessed memory that does not exist; usually because /dev/shm is full"),
        remedy=say("enlarge /dev/shm (docker run --shm-size 16g) or lower data.num_workers"),
        plan_change="fewer_workers",
    ),
    -6: known(
        "aborted",
        cause=say("the rank aborted; usually because of a collective watchdog or an assertion in native code"),
        remedy=say("check the last lines of its log, and whether another rank hung or died shortly before"),
        transient=None,
    ),
    -4: known(
        "illegal_instruction",
        cause=say("the code used an instruction that the processor does not support"),
        remedy=say("a package was built for another processor: reinstall it on this machine"),
    ),
    -8: known(
        "arithmetic_fault",
        cause=say("integer division by zero in native code"),
        remedy=say("to see where, run: PYTHONFAULTHANDLER=1 trainwiz launch"),
    ),
    -15: known(
        "terminated",
        cause=say("the rank was asked to end, but not by trainwiz"),
        remedy=say("check the events of the scheduler or the container; to continue, run: trainwiz launch --resume"),
        transient=True,
    ),
    -1: known(
        "hung_up",
        cause=say("the rank's terminal was closed"),
        remedy=say("run trainwiz in tmux or with nohup; to continue, run: trainwiz launch --resume"),
        transient=True,
    ),
    -25: known(
        "file_too_large",
        cause=say("a file exceeded the file size limit"),
        remedy=say("run ulimit -f unlimited before the launch"),
    ),
    -24: known(
        "cpu_time",
        cause=say("the rank used up its CPU time limit"),
        remedy=say("run ulimit -t unlimited before the launch, or request more time from the scheduler"),
    ),
}
"""By exit code, negative for a signal (signal(7), Linux)."""
