"""How the ranks were started, and by whom they were stopped."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "time_limit": Signature(
        r"\bTIMEOUT +\d+:\d+ *$",
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        r"DUE TO TIME LIMIT \*\*\*",
        r"=>> PBS: job killed: walltime",
        r"TERM_(?:RUNLIMIT|CPULIMIT): ",
        cause="the scheduler ended the job at its time limit",
        remedy="request more time (sbatch --time), save more often (checkpoint.checkpointing_steps), continue with "
        "--resume",
        transient=True,
    ),
    "slurm_credential": Signature(
        r"[Mm]unge (?:decode|encode) failed: (?P<problem>.+)$",
        cause="Slurm's authentication between machines failed: {problem}",
        remedy="tell the administrators: the nodes' clocks differ, or munged is not running on one of them; exclude "
        "the node (sbatch --exclude NODE), then run: trainwiz launch --resume",
        transient=True,
    ),
    "slurm_unconfigured": Signature(
        r"(?:fatal|error): Could not establish a configuration source",
        cause="this machine does not belong to a Slurm cluster: it finds neither slurm.conf nor the controller",
        remedy="submit from the cluster's login node; in a container, mount /etc/slurm and munge's socket, or set "
        "SLURM_CONF; without a cluster, start the script with torchrun instead of sbatch",
    ),
    "preempted": Signature(
        r"\bPREEMPTED +\d+:\d+ *$",
        r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)",
        r"[Pp]reempted by (?:higher priority|scheduler)",
        cause="the scheduler gave the machine to a job with higher priority",
        remedy="run: trainwiz launch --resume; to requeue automatically: sbatch --requeue --signal=B:USR1@120",
        transient=True,
    ),
    "node_failed": Signature(
        r"\bNODE_FAIL\w* +\d+:\d+ *$",
        r"DUE TO NODE FAILURE",
        r"srun: error: Node failure on \S+",
        cause="a machine of the job failed",
        remedy="exclude it (sbatch --exclude NODE), then run: trainwiz launch --resume",
        transient=True,
    ),
    "cancelled": Signature(
        r"\bCANCELLED(?:\+| by \d+)? +\d+:\d+ *$",
        r"CANCELLED AT \S+ \*\*\*",
        r"SignalException: Process \d+ got signal: (?:15|2)\b",
        r"TERM_(?:OWNER|ADMIN|FORCE_OWNER|FORCE_ADMIN): ",
        cause="a user or the scheduler asked the job to end",
        remedy="find out who did it with `sacct -j JOB` or the container's events; to continue, run: trainwiz launch "
        "--resume",
        transient=None,
        asked=True,
        follows=r"srun: error: [^\n]*: Exited with exit code |failed \(exitcode: |exited on signal |"
        r"Primary job  ?terminated normally, but",
    ),
    "debugger_left": Signature(
        r"^(?:\[rank\d+\]: )?bdb\.BdbQuit",
        cause="the debugger was left: a breakpoint stopped a rank that has no terminal, or quit was typed",
        remedy="take out breakpoint() and pdb.set_trace(); to debug one rank, use "
        "torch.distributed.breakpoint(), or start one process",
    ),
    "terminal_closed": Signature(
        r"SignalException: Process \d+ got signal: 1\b",
        cause="the terminal that the launcher was started from was closed (SIGHUP)",
        remedy="start it where it outlives the terminal (tmux, nohup, setsid, or as a job); to continue, run: trainwiz "
        "launch --resume",
        transient=True,
        asked=True,
    ),
    "agent_ended": Signature(
        r"Received (?:Signals\.SIG(?:TERM|INT|HUP)|15|2|1) death signal",
        cause="a user or the scheduler asked the job to end",
        remedy="find out who did it with `sacct -j JOB` or the container's events; to continue, run: trainwiz launch "
        "--resume",
        transient=None,
        secondary=True,
        at_exit=True,
    ),
    "debugger": Signature(
        r"[Tt]imed out waiting for debuggee to spawn",
        cause="the debugger did not attach to the process that it started",
        remedy="attach by port instead: trainwiz launch --debug RANK, or python -m debugpy --listen 5678 "
        "--wait-for-client train.py; then attach to the port (the project's .vscode/launch.json has an entry "
        "for each rank)",
    ),
    "one_process": Signature(
        r"DeepSpeed is not compatible with MP\. n_gpu: (?P<gpus>\d+), local_world_size: 1\b",
        cause="one process was started for {gpus} GPUs, but DeepSpeed needs one process for each GPU",
        remedy="start it with torchrun --nproc_per_node {gpus}, deepspeed or accelerate launch; ms-swift: "
        "NPROC_PER_NODE={gpus} before `swift`, on every machine and without --hostfile; or set CUDA_VISIBLE_DEVICES "
        "to one GPU",
    ),
    "not_launched": Signature(
        r"Error initializing torch\.distributed using \w+:// rendezvous: (?P<variable>[\w ]+) parameter missing",
        r"environment variable (?P<variable>\w+) expected, but not set",
        r"KeyError: '(?P<variable>LOCAL_RANK|RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SLURM_\w+)'",
        cause="the script was started without a launcher: {variable} is not set",
        remedy="run: trainwiz launch, or torchrun --nproc_per_node N script.py",
    ),
    "no_process_group": Signature(
        r"Default process group (?:has not been|is not) initialized",
        r"DeepSpeed backend not set, please initialize it using init_process_group",
        cause="a collective was called before the process group was initialized",
        remedy="create the Accelerator (or call init_process_group) before calling collectives",
    ),
    "spawn_without_main": Signature(
        r"attempt has been made to start a new process before the",
        cause="the script starts processes when it is imported, and each of them starts the script again",
        remedy="put the main part of the script under: if __name__ == '__main__':",
    ),
    "shared_twice": Signature(
        r"bad value\(s\) in fds_to_keep",
        cause="the same tensor is passed to a process that is started, more than once: as tied weights, or in two "
        "models",
        remedy="build or load the model inside of the started function instead of passing it; or before the start: "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    "pickling": Signature(
        r"Can't (?:pickle|get) local object",
        r"(?:Pickling|Attribute|Type|Pickle)Error: (?:Can't pickle |cannot pickle |\w+ cannot be pickled)",
        cause="an object cannot be pickled, which is required to send it to a data loader worker, to copy it or to "
        "save it: a local class, a lambda, an open file, scripted code",
        remedy="move it to the top level of the module, or set data.num_workers to 0",
        plan_change="fewer_workers",
    ),
    "no_threads": Signature(
        r"can't start new thread",
        r"(?:BlockingIOError: \[Errno 11\]|RuntimeError:) Resource temporarily unavailable",
        r"pthread_create failed|libgomp: Thread creation failed",
        cause="the maximum number of processes or threads is reached",
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
    "rendezvous_address": Signature(
        r"The (?:hostname|port number) of the rendezvous endpoint '(?P<endpoint>[^']*)' must be",
        r"error: argument (?:--master[-_]addr|--rdzv[-_]endpoint)\S*: expected one argument(?P<endpoint>)",
        cause="torchrun got no valid address of machine 0 ({endpoint})",
        remedy="give it as HOST:PORT; if it comes from a variable, that variable is empty here: print it on every "
        "machine before the launch (Slurm: MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1))",
    ),
    "program_moved": Signature(
        r"(?:^| )failed to create process\.(?P<python>)$",
        r"Fatal error in launcher: Unable to create process using '\"?(?P<python>[^\"'\n]*)",
        cause="the command's .exe starts a Python that no longer exists: the environment was moved, copied or "
        "renamed ({python})",
        remedy="start it as a module: python -m accelerate.commands.launch, python -m torch.distributed.run; or "
        "reinstall the package in this environment: pip install --force-reinstall --no-deps PACKAGE",
    ),
    "other_program": Signature(
        r"^Error: No such command:? '(?P<command>[\w-]+)'",
        cause="the program that was started has no command {command}: it is another program of the same name, or "
        "another version",
        remedy="run `which -a NAME` and `pip show PACKAGE` to see which program it is; install the package that you "
        "mean into an environment of its own",
    ),
    "arguments": Signature(
        r"^[Ee]rror: (?:Missing (?:argument|option|parameter)|Invalid value for) '?(?P<words>[^'\n]+)",
        r"(?:error: |^#? ?)\W{0,4}unrecognized arguments\W{0,4}: (?P<words>.+)$",
        r"error: the following arguments are required: (?P<words>.+)$",
        r"error: argument (?P<words>\S+): (?:invalid|expected)",
        r"^Error: No such option:? '?(?P<words>[\w-]+)",
        r"^\S+\.py: error: (?P<words>.+)$",
        r"(?:ConfigAttributeError: |^Could not override )(?P<words>.+)$",
        cause="the script does not accept these arguments, or requires them: {words}",
        remedy="to list the arguments, run python script.py --help; in trainwiz launch, put the script's arguments "
        "after --",
    ),
    "usage_shown": Signature(
        r"^usage: (?P<program>[^\n]{1,100}?) (?:\[-h\]|\[--help\])[^\n]*(?:\n [^\n]*){0,200}\n*\Z",
        cause="the command printed how it is used ({program}): an argument is unknown, missing, or in the wrong place",
        remedy="the line that says which one is below the usage and missing from this log; compare the command with "
        "the usage, the launcher's options before the script and the script's after it",
        secondary=True,
    ),
    "shell_by_python": Signature(
        r"File \"(?P<file>[^\"\n]+\.(?:sh|bash|sbatch|slurm))\", line \d+\n"
        r"(?:.*\n){0,4}?(?:\[rank\d+\]: )?SyntaxError: ",
        cause="{file} is a shell script, and was started with python",
        remedy="run: bash {file}",
    ),
    "syntax": Signature(
        r"^(?:\[rank\d+\]: )?(?:SyntaxError|IndentationError|TabError): (?P<problem>.+)$",
        # as two ranks write it at the same time
        r"^\W{0,4}SyntaxError(?:\W{0,4}SyntaxError){0,7}\W{0,4}(?P<problem>[a-z]\w+ \w.*)$",
        cause="the code is not valid Python: {problem}",
        remedy="fix the line shown; to check it, run: python -m py_compile FILE",
    ),
    "group_twice": Signature(
        r"trying to initialize the default process group twice",
        cause="the process group is initialized twice: by the script and by a library, or by two calls",
        remedy="call init_process_group only if torch.distributed.is_initialized() is false; leave it to Accelerator, "
        "Trainer, Lightning or deepspeed.initialize where one of them is used",
    ),
    "state_missing": Signature(
        r"properly initialize your accelerator via `accelerator = Accelerator\(\)`",
        r"You must initialize the accelerate state by calling either `PartialState\(\)` or `Accelerator\(\)`",
        cause="accelerate is used before an Accelerator was created: its state does not exist yet",
        remedy="create the Accelerator first; get_logger, trackers and set_seed with device_specific come after it; "
        "if a tracker creates a state of its own, update its package",
    ),
    "state_twice": Signature(
        r"AcceleratorState has already been initialized and cannot be changed",
        r"the `Accelerator` should only be initialized inside your training function",
        cause="an Accelerator was already created with other settings",
        remedy="create one Accelerator per process; in a notebook, restart the kernel and create it inside the "
        "function that notebook_launcher starts",
    ),
    "slurm_plugin": Signature(
        r"srun: (?P<problem>unrecognized option '--(?:no-)?(?:container|mpi)[^'\n]*')",
        r"srun: error: (?P<problem>task \d+ launch failed: .+)$",
        r"srun: error: (?P<problem>.*(?:mpi/\w+|MPI plugin|plugin_load).*)$",
        cause="srun lacks a plugin that the job asks for, or the plugin fails: {problem}",
        remedy="--container-image needs pyxis on every node (srun --help lists it there); srun --mpi=list shows the "
        "kinds of "
        "MPI: try --mpi=pmi2, and none where torchrun or accelerate start the ranks",
    ),
    "slurm_refused": Signature(
        # Sites have words of their own; a job that was submitted in spite of them is none.
        r"sbatch: error: (?:\*+ )?(?P<problem>(?!Batch job submission|Could not establish|Unable to |spank: |"
        r"Job submit/allocate )[^\n]{8,}?)(?: sbatch: error: [^\n]*)?$(?![\s\S]{0,2000}^Submitted batch job)",
        r"^(?:srun|salloc): fatal: (?P<problem>(?!Could not establish).+)$",
        r"(?:srun|sbatch|salloc): error: (?P<problem>You must specify .+|The \S+ partition .+|CPU count per node .+|"
        r"Memory specification .+)$",
        r"(?:srun|sbatch|salloc): error: (?:Batch job submission failed: |Unable to (?:allocate resour"
        r"ces|create step for "
        r"job \d+|confirm allocation for job \d+): |Task launch for \S+ failed on node \S+: )(?P<problem>.+)$",
        r"slurmstepd(?:-[\w.-]+)?: error: execve\(\): (?P<problem>(?![\w.-]+: No such file).+)$",
        cause="Slurm did not start it: {problem}",
        remedy="check partition, account and limits with `sinfo` and `sacctmgr show assoc`, and that the nodes can "
        "provide what is requested; an expired credential means that the nodes' clocks differ",
        transient=None,
    ),
    "trainwiz_refused": Signature(
        r"^(?:error|错误): (?P<problem>.+)\n→ (?P<advice>.+)$",
        cause="{problem}",
        remedy="{advice}",
        secondary=True,
    ),
    "unschedulable": Signature(
        r"FailedScheduling .*?(?P<problem>\d+/\d+ nodes are available: .+)$",
        r"Unable to schedule pod; [^\n]*?(?P<problem>\d+/\d+ nodes are available: [^\"\n]+)",
        cause="Kubernetes finds no node for the pod: {problem}",
        remedy="compare the requests (nvidia.com/gpu, memory, tolerations, node selectors) with `kubectl describe "
        "node`",
        transient=None,
    ),
    "image_pull": Signature(
        r"manifest unknown|pull access denied for|manifest for \S+ not found",
        r"ImagePullBackOff|ErrImagePull|Failed to pull image|trying and failing to pull image",
        r"Error: Status 40[134] trying to pull repository",
        cause="the container's image cannot be fetched",
        remedy="check its name and tag, and the pull secret: kubectl describe pod NAME",
        transient=None,
    ),
    "container_refused": Signature(
        r"(?P<problem>docker: (?:Error response from daemon: (?!manifest|pull|Get )|Cannot connect to the "
        r"Docker)[^\n]*)",
        r"(?P<problem>nvidia-container-cli: (?!.*(?:debug|info):)[^\n]+)",
        r"(?P<problem>could not select device driver \S* ?with capabilities: \S+)",
        r"(?P<problem>OCI runtime (?:create|exec) failed: [^\n]+)",
        r"pyxis: (?:\[ERROR\] )?(?P<problem>(?:failed to import|child \d+ failed|couldn't start container)[^\n]*)",
        cause="the container could not be started: {problem}",
        remedy="check the driver and nvidia-container-toolkit of that machine (nvidia-smi there, then docker run --rm "
        "--gpus "
        "all IMAGE nvidia-smi), the image's name, and its mounts",
        transient=None,
    ),
    "hostfile": Signature(
        r"(?P<problem>Hostfile contains (?:a bad entry|multiple entries)[^\n]*|Hostfile is empty[^\n]*)",
        r"ValueError: (?P<problem>No slot '?\w+'? specified on host \S+|Hostname \S+ not found in hostfile)",
        cause="DeepSpeed's hostfile does not contain what was requested: {problem}",
        remedy="write one machine per line as HOST slots=N; without a hostfile, only this machine's GPUs count; "
        "--include and --num_gpus may name only existing slots",
    ),
    "ssh_refused": Signature(
        r"(?P<problem>ssh exited with exit code 255)",
        r"(?P<problem>host=\S+ was not reachable via ssh)",
        r"(?P<problem>Host key verification failed|Permission denied \(publickey[^)]*\)|ssh: Could not"
        r" resolve hostname "
        r"[^\s:]+|ssh: connect to host \S+ port \d+: .+)",
        cause="another machine cannot be reached by ssh: {problem}",
        remedy="set up passwordless login (ssh-copy-id HOST), and log in once by hand to each machine of the hostfile",
    ),
    "no_libuv": Signature(
        r"use_libuv was requested but PyTorch was (?:build|built) without libuv support|USE_LIBUV=0 to disable it",
        cause="this torch build (Windows) has no libuv, which the rendezvous store requires",
        remedy="set USE_LIBUV=0 in the environment before the launch; with torchrun: --rdzv-conf use_libuv=0",
    ),
    "no_backend": Signature(
        r"Distributed package doesn't have (?P<backend>NCCL|MPI|UCC|XCCL)\b",
        cause="this torch build has no {backend}: it is a build for the CPU, for macOS or for Windows",
        remedy="use gloo there: init_process_group('gloo'); for GPUs on Linux, install a CUDA build of torch",
    ),
    "mkl_threading": Signature(
        r"MKL_THREADING_LAYER=INTEL is incompatible with libgomp",
        cause="MKL and libgomp are loaded in the wrong order",
        remedy="set MKL_THREADING_LAYER=GNU (or MKL_SERVICE_FORCE_INTEL=1) before the launch, or import numpy before "
        "torch",
    ),
    "two_openmp": Signature(
        r"OMP: Error #15: Initializing (?P<library>\S+), but found",
        cause="two copies of the OpenMP library are loaded ({library})",
        remedy="install numpy, torch and scikit-learn from one source (all pip or all conda); "
        "KMP_DUPLICATE_LIB_OK=TRUE "
        "only hides it",
    ),
    "child_failed": Signature(
        r"^(?:.*[ .])?ChildFailedError:|^torch\.distributed\.elastic\.multiprocessing\.errors\.\w*$",
        r"failed \(exitcode: [1-9]\d*\) local_rank: \d+ \(pid: \d+\) of binary: ",
        r"^Root Cause \(first observed failure\):",
        r"(?:^|[\s,])(?:subprocess\.)?CalledProcessError: Command .* returned non-zero exit status [1-9]\d*",
        r"^(?:subprocess\.)?CalledProcessError: Command '\[.*,$",
        r"AlgorithmError: (?:ExecuteUserScriptError|Exit Code: [1-9])|^ ?MPI_ABORT was invoked on rank ",
        r"mpi(?:run|exec) detected that one or more processes exited with non-zero status",
        r"^Error: failed to run torchrun ",
        r"\] exits with return code = [1-9]\d*$",
        r"\[launch\.py:\d+:sigkill_handler\] Killing subprocess \d+",
        r"^\s*traceback : To enable traceback see: https://pytorch\.org/docs/stable/elastic/errors",
        r"^RuntimeError: Step \d+ exited with non-zero status [1-9]\d*",
        r"\b(?:exited with code|exitCode:|terminated with exit code) [1-9]\d*\b",
        cause="a rank failed, but this log contains nothing that it wrote",
        remedy="read that rank's own log; torchrun writes them with --log-dir logs --redirects 3, and trainwiz launch "
        "always does",
        secondary=True,
    ),
    "other_file": Signature(
        # LSF writes the last sentence also below a job that succeeded.
        r"^Exited (?:with|by) .*\n(?:(?!Exited (?:with|by) |Successfully completed\.).*\n)*?"
        r"Read file <(?P<file>[^>\n]+)> for stderr output of this job\.",
        cause="the job's errors are in another file: {file}",
        remedy="run: trainwiz diagnose {file}",
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
        r"^(?:\[rank\d+\]: )?KeyboardInterrupt:?$",
        r"\[launch\.py:\d+:sigkill_handler\] Main process received SIGINT",
        cause="interrupted by Ctrl-C",
        remedy="to continue, run: trainwiz launch --resume",
        transient=True,
    ),
}
