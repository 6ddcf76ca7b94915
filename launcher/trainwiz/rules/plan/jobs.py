"""What a plan asks a scheduler for: time, machines, a place for checkpoints, and what the scheduler does not take."""

from __future__ import annotations

from pathlib import PurePosixPath

from trainwiz import plan as plans
from trainwiz import schedulers, strategies
from trainwiz.estimate.gpus import gpu_model
from trainwiz.estimate.speed import pace
from trainwiz.estimate.state import work_of
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.quantities import clock_time
from trainwiz.rules.registry import rule
from trainwiz.rules.sizes import total_updates

_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/scratch/local", "/local")
"""Folders that each machine usually has for itself."""
_EVERYWHERE = frozenset({"kind", "job_name", "grace"})


@rule("TW620", level=Level.WARNING, field="cluster.time_limit")
def time_limit_covers_the_training(plan: Plan, project: Project) -> Violations:
    """A job that is not requeued must have time for the whole training.

    Without it: the job ends at its limit with a checkpoint, and is not continued.
    Why: the forecast multiplies the updates by the time of one update on the GPU in cluster.gpu_type, without
    evaluation and checkpoints; docs/forecast.md compares it with published runs.
    Instead: set cluster.requeue true, or a longer cluster.time_limit.
    Source: docs/forecast.md; https://slurm.schedmd.com/sbatch.html (--time, --requeue)
    """
    limit, seconds = plan.cluster.time_limit_seconds, _forecast(plan, project)
    if _takes(plan, "time_limit") and limit and seconds and seconds > limit and not plan.cluster.requeue:
        yield violation(
            "cluster.time_limit is {time_limit}, but the training takes about {forecast}, and the job is not requeued",
            setting("cluster.requeue", True),
            time_limit=plan.cluster.time_limit,
            forecast=clock_time(seconds),
        )


@rule("TW621", level=Level.ERROR, field="cluster.time_limit")
def time_limit_is_longer_than_the_grace(plan: Plan) -> Violations:
    """The time limit must be longer than the time that is reserved for saving.

    Without it: the stop signal arrives as soon as the job starts: the training stops immediately, and a requeued job
    repeats this forever.
    Why: the job is asked to stop cluster.grace seconds, and a few more, before its limit.
    Instead: set a longer cluster.time_limit, or a shorter cluster.grace.
    Source: seen with Slurm 22.05 (`--time=2 --signal=TERM@120`)
    """
    limit, grace = plan.cluster.time_limit_seconds, plan.cluster.grace
    if _takes(plan, "time_limit") and limit and limit < 2 * grace:
        yield violation(
            "cluster.time_limit is {time_limit}, of which the last {grace} s are for saving a checkpoint",
            remedy("set a time limit of at least {least} s, or a shorter cluster.grace", least=2 * grace),
            time_limit=plan.cluster.time_limit,
            grace=grace,
        )


@rule("TW622", level=Level.WARNING, field="checkpoint.checkpointing_steps")
def spot_machines_save_on_the_way(plan: Plan) -> Violations:
    """A training on machines that can be taken away must save checkpoints before its end.

    Without it: each time a machine is taken away, the training restarts at update 0.
    Why: a spot machine is taken away seconds or minutes after its notice, if there is one; with checkpointing_steps 0
    the only checkpoint is written at the end.
    Instead: set checkpointing_steps to the number of updates that you can afford to lose.
    Source: https://docs.skypilot.co/en/latest/examples/managed-jobs.html
    """
    if _takes(plan, "spot") and plan.cluster.spot and plan.checkpoint.checkpointing_steps == 0:
        yield violation(
            "cluster.spot is true, but checkpoint.checkpointing_steps is 0: a lost machine loses everything",
            remedy("set checkpoint.checkpointing_steps to the number of updates that you can afford to lose"),
        )


@rule("TW623", level=Level.ERROR, field="cluster.image")
def pods_have_an_image(plan: Plan) -> Violations:
    """A pod needs a container image.

    Without it: the API server rejects the job: `spec.containers[0].image: Required value`.
    Why: Kubernetes has no default image.
    Instead: set cluster.image to an image with Python, PyTorch, trainwiz and the packages of requirements.txt.
    Source: https://kubernetes.io/docs/concepts/containers/images/
    """
    if _takes(plan, "workload") and plan.cluster.image is None:
        yield violation(
            "cluster.kind is {kind}, but cluster.image is not set",
            remedy("set cluster.image to an image with PyTorch and trainwiz"),
            kind=plan.cluster.kind,
        )


@rule("TW624", level=Level.ERROR, field="cluster.volume")
def containers_share_a_volume(plan: Plan) -> Violations:
    """Temporary machines need a volume for the project and its checkpoints.

    Without it: checkpoints and the trained model are lost with the pod or the rented machine; a restart begins at
    update 0. Several machines do not see each other's files, so a resume cannot find all shards of a checkpoint.
    Why: files in a container, or on a rented machine's own disk, are lost together with it.
    Instead: set cluster.volume to a volume that all machines can write to, with the project on it.
    Source: https://kubernetes.io/docs/concepts/storage/persistent-volumes/ (access modes);
    https://docs.skypilot.co/en/latest/reference/volumes.html
    """
    if _takes(plan, "volume") and plan.cluster.volume is None:
        yield violation(
            "cluster.volume is not set: checkpoints and the trained model would be lost with the machines",
            remedy("set cluster.volume to a volume that all machines can write to"),
        )


@rule("TW625", level=Level.ERROR, field="cluster.workload")
def several_machines_need_a_jobset(plan: Plan) -> Violations:
    """A Kubernetes Job runs on one machine.

    Without it: one pod waits for the others, which are never started, and then fails.
    Why: without a service of their own, the pods of a Job cannot find each other by name, and they are not restarted
    together.
    Instead: set cluster.workload to trainjob or jobset.
    Source: https://jobset.sigs.k8s.io/docs/overview/
    """
    machines = plan.machine.num_machines
    if _takes(plan, "workload") and plan.cluster.workload == "job" and machines > 1:
        yield violation(
            "cluster.workload is job, but there are {num_machines} machines", setting("cluster.workload", "jobset")
        )


@rule("TW626", level=Level.WARNING, field="cluster.kind")
def every_key_reaches_the_scheduler(plan: Plan) -> Violations:
    """Keys of `cluster:` only apply to a scheduler that uses them.

    Without it: the job requests something different from the plan: a partition is ignored, a limit never applies.
    Why: each scheduler has its own settings; a key without a counterpart cannot be written to its file.
    Instead: remove the key, or choose a scheduler that uses it.
    Source: `keys` of the schedulers in trainwiz
    """
    scheduler, defaults = schedulers.of(plan), plans.defaults()
    taken = _EVERYWHERE | scheduler.keys if scheduler else {"kind"}
    for name, value in plan.cluster.model_dump().items():
        key = f"cluster.{name}"
        if name not in taken and value != defaults[key]:
            yield violation(
                "{key} is {value}, but cluster.kind {kind} does not use it",
                remedy("remove {key}, or set cluster.kind to a scheduler that uses it", {key: defaults[key]}, key=key),
                where=key,
                key=key,
                value=value,
                kind=plan.cluster.kind,
            )


@rule("TW627", level=Level.WARNING, field="cluster.shared_memory")
def containers_have_shared_memory(plan: Plan) -> Violations:
    """Ranks and data workers in a container need shared memory.

    Without it: `DataLoader worker … is killed by signal: Bus error`, or NCCL's `No space left on device` for /dev/shm.
    Why: a container has 64 MiB of /dev/shm unless a memory volume is mounted there.
    Instead: set cluster.shared_memory, for example to 8Gi.
    Source: https://pytorch.org/docs/stable/multiprocessing.html; NCCL's troubleshooting guide (shared memory)
    """
    busy = plan.machine.ranks_per_machine > 1 or plan.data.num_workers
    if _takes(plan, "shared_memory") and plan.cluster.shared_memory is None and busy:
        yield violation(
            "cluster.shared_memory is not set: {ranks} ranks and their data workers would share 64 MiB",
            setting("cluster.shared_memory", "8Gi"),
            ranks=plan.machine.ranks_per_machine,
        )


@rule("TW628", level=Level.ERROR, field="cluster.gpu_type")
def a_cloud_knows_which_gpu(plan: Plan) -> Violations:
    """SkyPilot needs the type of GPU to rent.

    Without it: it rents the cheapest machine, which has no GPU, and the job fails there at its first check.
    Why: SkyPilot's accelerators have a type and a count; there is no value for any GPU.
    Instead: set cluster.gpu_type; `sky show-gpus` lists them.
    Source: https://docs.skypilot.co/en/latest/reference/yaml-spec.html (resources.accelerators)
    """
    if _takes(plan, "infra") and plan.machine.device == "cuda" and plan.cluster.gpu_type is None:
        yield violation(
            "machine.device is cuda, but cluster.gpu_type does not say which GPU to rent",
            remedy("set cluster.gpu_type; `sky show-gpus` lists the types"),
        )


@rule("TW629", level=Level.WARNING, field="cluster.folder")
def machines_see_the_same_folder(plan: Plan, project: Project) -> Violations:
    """All nodes of a job must see the project's folder.

    Without it: sbatch starts the job, but on nodes without the folder it fails with `couldn't chdir`, or finds no
    trainwiz.yaml. Shards of checkpoints stay on the node that wrote them.
    Why: /tmp, /dev/shm and scratch folders are usually local to each machine.
    Instead: move the project to a shared file system, or set cluster.folder to its folder on the nodes.
    Source: https://slurm.schedmd.com/sbatch.html (--chdir)
    """
    folder = plan.cluster.folder or project.folder
    there = plan.machine.num_machines > 1 or plan.cluster.requeue
    if _takes(plan, "partition") and there and any(PurePosixPath(folder).is_relative_to(each) for each in _LOCAL):
        yield violation(
            "{folder} is usually local to each machine; the {num_machines} machines of the job would not share it",
            remedy("move the project to a file system that all machines share"),
            folder=folder,
        )


@rule("TW630", level=Level.WARNING, field="cluster.cpus")
def ranks_have_cores(plan: Plan) -> Violations:
    """Each rank and each of its data workers should have a core.

    Without it: ranks take turns on the job's cores, and the GPUs wait for them.
    Why: schedulers bind a job to the cores that it requested; by default, Slurm gives one per task.
    Instead: set cluster.cpus to the ranks on each machine × (1 + data workers), or to all cores of a machine.
    Source: https://slurm.schedmd.com/sbatch.html (--cpus-per-task)
    """
    ranks, workers = plan.machine.ranks_per_machine, plan.data.num_workers
    needed, asked = ranks * (1 + workers), plan.cluster.cpus
    if not _takes(plan, "cpus") or (asked or 1) >= needed or (asked is None and not _takes(plan, "partition")):
        return
    yield violation(
        "cluster.cpus is {cpus}, but {ranks} ranks with {workers} data workers each need {needed} cores",
        setting("cluster.cpus", needed),
        cpus=asked or "null (1)",
        ranks=ranks,
        workers=workers,
        needed=needed,
    )


def _takes(plan: Plan, key: str) -> bool:
    """Whether the plan's scheduler takes a key of `cluster:`."""
    scheduler = schedulers.of(plan)
    return scheduler is not None and key in scheduler.keys


def _forecast(plan: Plan, project: Project) -> float | None:
    """Seconds of the whole training; None where model, GPU or length are not known."""
    gpu = gpu_model(plan.cluster.gpu_type) if plan.cluster.gpu_type else None
    updates, model = total_updates(plan, project), project.model
    if gpu is None or updates is None or model is None or not model.parameters:
        return None
    found = pace(
        strategies.of(plan),
        work_of(plan, model.parameters, model.transformer),
        gpu,
        accumulation=plan.batch.gradient_accumulation_steps,
        ranks_per_machine=plan.machine.ranks_per_machine,
    )
    return updates * found.seconds if found else None
