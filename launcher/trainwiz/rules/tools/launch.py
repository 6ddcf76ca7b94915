"""What jobs say of their launcher, held against the machines that they ask for."""

from __future__ import annotations

from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule

_PER_NODE = ("nproc_per_node", "num_gpus")
_RANKS = ("node_rank", "machine_rank")
_HERE = ("localhost", "127.0.0.1", "0.0.0.0")


@rule("TW901", level=Level.ERROR, field="nproc_per_node")
def a_rank_for_each_gpu(tool_file: ToolFile) -> Violations:
    """A launcher must not start more ranks on a machine than the job has GPUs there.

    Without it: the ranks beyond the last GPU stop with `CUDA error: invalid device ordinal`, and the others wait.
    Why: the number of GPUs was changed in the job and not in the command.
    Instead: give the same number in both, or `--nproc_per_node gpu`.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    job = tool_file.tool.job(tool_file.document)
    ranks = next((n for key in _PER_NODE if (n := job.number(key)) is not None), None) if job else None
    if job and ranks and job.gpus and ranks > job.gpus:
        yield violation(
            "{ranks} ranks on each machine, but each machine has {gpus} GPUs in this job",
            remedy("start {gpus} ranks on each machine", gpus=job.gpus),
            where=job.at.get("text"),
            ranks=int(ranks),
            gpus=job.gpus,
        )


@rule("TW902", level=Level.ERROR, field="nnodes")
def every_machine_is_waited_for(tool_file: ToolFile) -> Violations:
    """A launcher's --nnodes must be the number of machines of the job.

    Without it: if it is larger, all wait for machines that do not exist, until the rendezvous times out; if it is
    smaller, the remaining machines stop or train by themselves.
    Why: the number of machines was changed in the job and not in the command.
    Instead: take it from the job: $SLURM_NNODES, $SKYPILOT_NUM_NODES, or, with Kubeflow, omit it to use PET_NNODES.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    job = tool_file.tool.job(tool_file.document)
    nodes = next((n for key in ("nnodes", "num_machines") if (n := job.number(key)) is not None), None) if job else None
    # A job whose rank is written into it is one of several, each for a machine.
    of_several = job and job.machines == 1 and any(job.number(key) is not None for key in _RANKS)
    if job and nodes and job.machines and nodes != job.machines and not of_several:
        yield violation(
            "the launcher waits for {nodes} machines; this job has {machines}",
            remedy("start with {machines} machines", machines=job.machines),
            where=job.at.get("text"),
            nodes=int(nodes),
            machines=job.machines,
        )


@rule("TW903", level=Level.ERROR, field="master_addr")
def machines_meet_on_the_first(tool_file: ToolFile) -> Violations:
    """The rendezvous address of several machines must be an address of one of them, not localhost.

    Without it: each machine waits for the others at its own address, until the rendezvous times out.
    Why: on each machine, localhost is that machine itself.
    Instead: Slurm: the first name of `scontrol show hostnames $SLURM_JOB_NODELIST`; SkyPilot: the first line of
    $SKYPILOT_NODE_IPS; Kubeflow: omit it.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    job = tool_file.tool.job(tool_file.document)
    if job is None or (job.machines or 1) < 2:
        return
    for key in ("master_addr", "main_process_ip", "rdzv_endpoint"):
        address = str(job.options.get(key, "")).partition(":")[0]
        if address in _HERE:
            yield violation(
                "{machines} machines cannot rendezvous at {address}",
                remedy("give the address of the first machine"),
                where=job.at.get("text"),
                machines=job.machines,
                address=address,
            )


@rule("TW904", level=Level.WARNING, field="nnodes")
def machines_know_of_each_other(tool_file: ToolFile) -> Violations:
    """On several machines, torchrun needs --nnodes and a rendezvous address.

    Without it: each machine trains by itself, with a batch that is too small, and they overwrite each other's
    checkpoints.
    Why: without --nnodes, torchrun assumes one machine.
    Instead: set --nnodes and --rdzv_endpoint (or --node_rank and --master_addr).
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html; Kubeflow sets PET_NNODES and is exempt
    """
    job = tool_file.tool.job(tool_file.document)
    if job and (job.machines or 1) > 1 and job.program == "torchrun" and not job.knows_machines:
        yield violation(
            "torchrun has no --nnodes, so each of the {machines} machines trains by itself",
            remedy("add --nnodes and --rdzv_endpoint"),
            where=job.at.get("text"),
            machines=job.machines,
        )


@rule("TW905", level=Level.WARNING, field="mixed_precision")
def old_gpus_have_no_bf16(tool_file: ToolFile) -> Violations:
    """bf16 needs GPUs from 2020 or later.

    Without it: transformers stops: `Your setup doesn't support bf16/gpu`; others compute bf16 in software, slowly.
    Why: V100, T4 and P100 have no bf16.
    Instead: use fp16 there, or request L4, A10G, A100 or newer.
    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide (compute capability 8.0); transformers 5.23.0
    """
    job = tool_file.tool.job(tool_file.document)
    if job and job.old_gpu and job.bf16:
        yield violation(
            "{gpu} has no bf16, but the command requests it",
            remedy("use fp16, or newer GPUs"),
            where=job.at.get("gpu"),
            gpu=job.old_gpu,
        )
