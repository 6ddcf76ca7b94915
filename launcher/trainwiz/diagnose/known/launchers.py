"""How the ranks were started, and by whom they were stopped."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 3
SIGNATURES = (
    known(
        "time_limit",
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        r"DUE TO TIME LIMIT \*\*\*",
        r"=>> PBS: job killed: walltime",
        cause=say("the scheduler ended the job at its time limit"),
        remedy=say(
            "request more time (sbatch --time), save more often (checkpoint.checkpointing_steps), continue with "
            "--resume"
        ),
        transient=True,
    ),
    known(
        "preempted",
        r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)",
        r"[Pp]reempted by (?:higher priority|scheduler)",
        cause=say("the scheduler gave the machine to a job with higher priority"),
        remedy=say("run: trainwiz launch --resume; to requeue automatically: sbatch --requeue --signal=B:USR1@120"),
        transient=True,
    ),
    known(
        "node_failed",
        r"DUE TO NODE FAILURE",
        r"srun: error: Node failure on \S+",
        cause=say("a machine of the job failed"),
        remedy=say("exclude it (sbatch --exclude NODE), then run: trainwiz launch --resume"),
        transient=True,
    ),
    known(
        "cancelled",
        r"CANCELLED AT \S+ \*\*\*",
        r"SignalException: Process \d+ got signal: (?:15|1|2)\b",
        cause=say("a user or the scheduler asked the job to end"),
        remedy=say(
            "find out who did it with `sacct -j JOB` or the container's events; to continue, run: trainwiz launch "
            "--resume"
        ),
        transient=None,
    ),
    known(
        "debugger",
        r"[Tt]imed out waiting for debuggee to spawn",
        cause=say("the debugger did not attach to the process that it started"),
        remedy=say(
            "attach by port instead: trainwiz launch --debug RANK, or python -m debugpy --listen 5678 "
            "--wait-for-client train.py; then attach to the port (the project's .vscode/launch.json has an entry "
            "for each rank)"
        ),
    ),
    known(
        "not_launched",
        r"environment variable (?P<variable>\w+) expected, but not set",
        cause=say("the script was started without a launcher: {variable} is not set"),
        remedy=say("run: trainwiz launch, or torchrun --nproc_per_node N script.py"),
    ),
    known(
        "no_process_group",
        r"Default process group has not been initialized",
        cause=say("a collective was called before the process group was initialized"),
        remedy=say("create the Accelerator (or call init_process_group) before calling collectives"),
    ),
    known(
        "spawn_without_main",
        r"attempt has been made to start a new process before the",
        cause=say("the script starts processes when it is imported, and each of them starts the script again"),
        remedy=say("put the main part of the script under: if __name__ == '__main__':"),
    ),
    known(
        "pickling",
        r"Can't (?:pickle|get) local object",
        r"(?:Pickling|Attribute|Type)Error: (?:Can't pickle|cannot pickle) ",
        cause=say("an object cannot be sent to a data loader worker: a local class, a lambda, or an open file"),
        remedy=say("move it to the top level of the module, or set data.num_workers to 0"),
        plan_change="fewer_workers",
    ),
    known(
        "no_threads",
        r"can't start new thread",
        r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        r"pthread_create failed|libgomp: Thread creation failed",
        cause=say("the limit of processes or threads is reached"),
        remedy=say(
            "check the limit with `ulimit -u` and the container's pids limit (docker --pids-limit); lower "
            "data.num_workers, set OMP_NUM_THREADS=1"
        ),
        plan_change="fewer_workers",
    ),
    known(
        "script_missing",
        r"can't open file '(?P<file>[^']+)': \[Errno 2\]",
        cause=say("script not found: {file}"),
        remedy=say("go to the project folder, or give the path of the script"),
    ),
    known(
        "arguments",
        r"error: unrecognized arguments: (?P<words>.+)$",
        r"error: the following arguments are required: (?P<words>.+)$",
        r"error: argument (?P<words>\S+): (?:invalid|expected)",
        r"^Error: No such option:? '?(?P<words>--?[\w-]+)",
        cause=say("the script does not accept these arguments, or needs them: {words}"),
        remedy=say(
            "to list the arguments, run python script.py --help; in trainwiz launch, put the script's arguments "
            "after --"
        ),
    ),
    known(
        "syntax",
        r"^(?:\[rank\d+\]: )?(?:SyntaxError|IndentationError|TabError): (?P<problem>.+)$",
        cause=say("the code is not valid Python: {problem}"),
        remedy=say("fix the line shown; to check it, run: python -m py_compile FILE"),
    ),
    known(
        "quit_while_ending",
        r"terminate called without an active exception",
        cause=say("a process group thread was still running when the program ended"),
        remedy=say("call torch.distributed.destroy_process_group() at the end; the training itself may be complete"),
        transient=True,
        at_exit=True,
    ),
    known(
        "interrupted",
        r"^(?:\[rank\d+\]: )?KeyboardInterrupt$",
        cause=say("interrupted by Ctrl-C"),
        remedy=say("to continue, run: trainwiz launch --resume"),
        transient=True,
    ),
)
