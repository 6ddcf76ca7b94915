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
        cause=say("the job's time was up, so the scheduler ended it"),
        remedy=say("ask for more (sbatch --time), save more often (checkpoint.checkpointing_steps), go on: --resume"),
        transient=True,
    ),
    known(
        "preempted",
        r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)",
        r"[Pp]reempted by (?:higher priority|scheduler)",
        cause=say("the scheduler gave the machine to a more important job"),
        remedy=say("trainwiz launch --resume; ask for requeueing: sbatch --requeue --signal=B:USR1@120"),
        transient=True,
    ),
    known(
        "node_failed",
        r"DUE TO NODE FAILURE",
        r"srun: error: Node failure on \S+",
        cause=say("a machine of the job failed"),
        remedy=say("leave it out (sbatch --exclude NODE), then trainwiz launch --resume"),
        transient=True,
    ),
    known(
        "cancelled",
        r"CANCELLED AT \S+ \*\*\*",
        r"SignalException: Process \d+ got signal: (?:15|1|2)\b",
        cause=say("somebody, or the scheduler, asked the job to end"),
        remedy=say("see `sacct -j JOB` or the container's events for who; trainwiz launch --resume goes on"),
        transient=None,
    ),
    known(
        "debugger",
        r"[Tt]imed out waiting for debuggee to spawn",
        cause=say("the debugger never attached to the process that it started"),
        remedy=say(
            "attach by port instead: trainwiz launch --debug RANK, or python -m debugpy --listen 5678 --wait-for-"
            "client train.py; then attach to the port (a project's .vscode/launch.json has an entry for each rank)"
        ),
    ),
    known(
        "not_launched",
        r"environment variable (?P<variable>\w+) expected, but not set",
        cause=say("the script was started alone and needs a launcher: {variable} is not set"),
        remedy=say("trainwiz launch, or torchrun --nproc_per_node N script.py"),
    ),
    known(
        "no_process_group",
        r"Default process group has not been initialized",
        cause=say("a collective was called before the ranks had found each other"),
        remedy=say("make the Accelerator (or init_process_group) first, then call collectives"),
    ),
    known(
        "spawn_without_main",
        r"attempt has been made to start a new process before the",
        cause=say("the script starts processes while it is imported, and so starts itself over and over"),
        remedy=say("put its main part below: if __name__ == '__main__':"),
    ),
    known(
        "pickling",
        r"Can't (?:pickle|get) local object",
        r"(?:Pickling|Attribute|Type)Error: (?:Can't pickle|cannot pickle) ",
        cause=say(
            "something that goes to a data loader's worker cannot be sent: a local class, a lambda, an open file"
        ),
        remedy=say("move it to the top of the module, or set data.num_workers 0"),
        plan_change="fewer_workers",
    ),
    known(
        "no_threads",
        r"can't start new thread",
        r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        r"pthread_create failed|libgomp: Thread creation failed",
        cause=say("no more processes or threads may be started here"),
        remedy=say(
            "`ulimit -u` and the container's pids limit (docker --pids-limit) say how many; lower data.num_workers, "
            "OMP_NUM_THREADS=1"
        ),
        plan_change="fewer_workers",
    ),
    known(
        "script_missing",
        r"can't open file '(?P<file>[^']+)': \[Errno 2\]",
        cause=say("there is no script {file}"),
        remedy=say("go to the project's folder, or name the script by its path"),
    ),
    known(
        "arguments",
        r"error: unrecognized arguments: (?P<words>.+)$",
        r"error: the following arguments are required: (?P<words>.+)$",
        r"error: argument (?P<words>\S+): (?:invalid|expected)",
        r"^Error: No such option:? '?(?P<words>--?[\w-]+)",
        cause=say("the script does not take these arguments, or misses some: {words}"),
        remedy=say("python script.py --help lists them; arguments for it go after -- in trainwiz launch"),
    ),
    known(
        "syntax",
        r"^(?:\[rank\d+\]: )?(?:SyntaxError|IndentationError|TabError): (?P<problem>.+)$",
        cause=say("the code is not valid Python: {problem}"),
        remedy=say("mend the line that is shown; python -m py_compile FILE checks it in a second"),
    ),
    known(
        "quit_while_ending",
        r"terminate called without an active exception",
        cause=say("a thread of the process group was still there when the program ended"),
        remedy=say("end with torch.distributed.destroy_process_group(); the training itself may be complete"),
        transient=True,
    ),
    known(
        "interrupted",
        r"^(?:\[rank\d+\]: )?KeyboardInterrupt$",
        cause=say("somebody pressed Ctrl-C"),
        remedy=say("trainwiz launch --resume goes on"),
        transient=True,
    ),
)
