"""How the ranks were started, and by whom they were stopped."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "time_limit": Signature(
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        r"DUE TO TIME LIMIT \*\*\*",
        r"=>> PBS: job killed: walltime",
        cause="the scheduler ended the job at its time limit",
        remedy="request more time (sbatch --time), save more often (checkpoint.checkpointing_steps), continue with "
        "--resume",
        transient=True,
    ),
    "preempted": Signature(
        r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)",
        r"[Pp]reempted by (?:higher priority|scheduler)",
        cause="the scheduler gave the machine to a job with higher priority",
        remedy="run: trainwiz launch --resume; to requeue automatically: sbatch --requeue --signal=B:USR1@120",
        transient=True,
    ),
    "node_failed": Signature(
        r"DUE TO NODE FAILURE",
        r"srun: error: Node failure on \S+",
        cause="a machine of the job failed",
        remedy="exclude it (sbatch --exclude NODE), then run: trainwiz launch --resume",
        transient=True,
    ),
    "cancelled": Signature(
        r"CANCELLED AT \S+ \*\*\*",
        r"SignalException: Process \d+ got signal: (?:15|1|2)\b",
        cause="a user or the scheduler asked the job to end",
        remedy="find out who did it with `sacct -j JOB` or the container's events; to continue, run: trainwiz launch "
        "--resume",
        transient=None,
    ),
    "debugger": Signature(
        r"[Tt]imed out waiting for debuggee to spawn",
        cause="the debugger did not attach to the process that it started",
        remedy="attach by port instead: trainwiz launch --debug RANK, or python -m debugpy --listen 5678 "
        "--wait-for-client train.py; then attach to the port (the project's .vscode/launch.json has an entry "
        "for each rank)",
    ),
    "not_launched": Signature(
        r"environment variable (?P<variable>\w+) expected, but not set",
        cause="the script was started without a launcher: {variable} is not set",
        remedy="run: trainwiz launch, or torchrun --nproc_per_node N script.py",
    ),
    "no_process_group": Signature(
        r"Default process group has not been initialized",
        cause="a collective was called before the process group was initialized",
        remedy="create the Accelerator (or call init_process_group) before calling collectives",
    ),
    "spawn_without_main": Signature(
        r"attempt has been made to start a new process before the",
        cause="the script starts processes when it is imported, and each of them starts the script again",
        remedy="put the main part of the script under: if __name__ == '__main__':",
    ),
    "pickling": Signature(
        r"Can't (?:pickle|get) local object",
        r"(?:Pickling|Attribute|Type)Error: (?:Can't pickle|cannot pickle) ",
        cause="an object cannot be sent to a data loader worker: a local class, a lambda, or an open file",
        remedy="move it to the top level of the module, or set data.num_workers to 0",
        plan_change="fewer_workers",
    ),
    "no_threads": Signature(
        r"can't start new thread",
        r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        r"pthread_create failed|libgomp: Thread creation failed",
        cause="the limit of processes or threads is reached",
        remedy="check the limit with `ulimit -u` and the container's pids limit (docker --pids-limit); lower "
        "data.num_workers, set OMP_NUM_THREADS=1",
        plan_change="fewer_workers",
    ),
    "script_missing": Signature(
        r"can't open file '(?P<file>[^']+)': \[Errno 2\]",
        cause="script not found: {file}",
        remedy="go to the project folder, or give the path of the script",
    ),
    "local_rank_argument": Signature(
        r"error: unrecognized arguments: .*--local[-_]rank",
        cause="the launcher passes the local rank as an argument, which the script does not accept",
        remedy="start it with torchrun or trainwiz launch, and read os.environ['LOCAL_RANK']; or accept the argument: "
        "parser.add_argument('--local-rank', '--local_rank', type=int)",
    ),
    "arguments": Signature(
        r"error: unrecognized arguments: (?P<words>.+)$",
        r"error: the following arguments are required: (?P<words>.+)$",
        r"error: argument (?P<words>\S+): (?:invalid|expected)",
        r"^Error: No such option:? '?(?P<words>--?[\w-]+)",
        cause="the script does not accept these arguments, or needs them: {words}",
        remedy="to list the arguments, run python script.py --help; in trainwiz launch, put the script's arguments "
        "after --",
    ),
    "syntax": Signature(
        r"^(?:\[rank\d+\]: )?(?:SyntaxError|IndentationError|TabError): (?P<problem>.+)$",
        cause="the code is not valid Python: {problem}",
        remedy="fix the line shown; to check it, run: python -m py_compile FILE",
    ),
    "child_failed": Signature(
        r"elastic\.multiprocessing\.errors\.ChildFailedError:",
        cause="a rank failed, but this log has nothing of what it wrote",
        remedy="read that rank's own log; torchrun writes them with --log-dir logs --redirects 3, and trainwiz launch "
        "always does",
        secondary=True,
    ),
    "quit_while_ending": Signature(
        r"terminate called without an active exception",
        cause="a process group thread was still running when the program ended",
        remedy="call torch.distributed.destroy_process_group() at the end; the training itself may be complete",
        transient=True,
        at_exit=True,
    ),
    "interrupted": Signature(
        r"^(?:\[rank\d+\]: )?KeyboardInterrupt$",
        cause="interrupted by Ctrl-C",
        remedy="to continue, run: trainwiz launch --resume",
        transient=True,
    ),
}
