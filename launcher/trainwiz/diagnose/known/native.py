"""Native code that ends a program, where nothing else says why."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 5
SIGNATURES = {
    "python_fatal": Signature(
        r"^Fatal Python error: (?P<problem>(?!Segmentation|Aborted|Bus error|Illegal|Floating|Killed|Terminated).+)$",
        cause="the Python interpreter itself stopped: {problem}",
        remedy="the stacks of its threads, below, show where: usually a process was forked while threads were "
        "running (start workers with spawn), or PYTHONHOME and PYTHONPATH belong to another Python",
        transient=None,
    ),
    "npu_inner": Signature(
        r"^E[A-Z]9999: Inner Error\b[^\n]*\n(?:E[A-Z]9999:? *)?(?P<problem>[^\n]+)",
        cause="CANN, the NPU's software, reports an internal error: {problem}",
        remedy="compare the versions of driver, firmware, CANN and torch_npu, and run source set_env.sh in the shell "
        "of the launch; pip install numpy decorator sympy attrs psutil cffi scipy protobuf, which its compiler needs; "
        "plog/ in ~/ascend/log has the reason",
    ),
    "collective_aborted": Signature(
        r"ProcessGroupNCCL's watchdog got stuck for \d+ seconds",
        r"Some NCCL operations have failed or timed out",
        r"we are taking the entire process down",
        cause="torch ended the process because a collective failed or timed out; this message does not say which one",
        remedy="look further up, and in the other ranks' logs, for the first `Watchdog caught` or exception; the "
        "cause is the rank that wrote it, or the rank that it was waiting for",
        transient=None,
        secondary=True,
    ),
    "replica_failed": Signature(
        r"Caught (?P<type>\w+) in replica \d+ on device \d+",
        cause="a copy of the model failed ({type}): one process sees several GPUs, and torch's DataParallel splits "
        "each batch over them",
        remedy="read the original traceback below this message; start one process per GPU (torchrun, accelerate "
        "launch), or show the process only one GPU: CUDA_VISIBLE_DEVICES=0",
        secondary=True,
    ),
    "native_exception": Signature(
        r"terminate called after throwing an instance of '(?P<type>[^'\n]+)'\n\s*what\(\): +(?P<words>[^\n]+)",
        cause="native code ended the program with an uncaught exception ({type}): {words}",
        remedy="the message names the library and what it rejected; the lines above show what the script did "
        "last; to see the Python calls, run: PYTHONFAULTHANDLER=1 trainwiz launch",
        transient=None,
        secondary=True,
    ),
}
