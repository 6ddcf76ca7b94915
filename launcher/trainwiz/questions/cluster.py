"""The questions about who starts the machines, and what is requested for them."""

from __future__ import annotations

from collections.abc import Callable

from trainwiz import schedulers
from trainwiz.message import say
from trainwiz.questions.table import YES_NO, Choice, Question, Values


def _takes(key: str) -> Callable[[Values], bool]:
    """Whether the chosen scheduler's file needs the key."""

    def takes(values: Values) -> bool:
        scheduler = schedulers.named(values.get("cluster.kind") or "")
        return scheduler is not None and key in scheduler.keys

    return takes


def _submits(values: Values) -> bool:
    return schedulers.named(values.get("cluster.kind") or "") is not None


CLUSTER: tuple[Question, ...] = (
    Question(
        key="cluster.kind",
        prompt=say("Where will it run?"),
        choices=(
            Choice(value="none", label=say("this machine, or several on which you run trainwiz launch yourself")),
            *(Choice(value=each.name, label=each.summary) for each in schedulers.every()),
        ),
        help="Who starts the machines. With a scheduler, the project gets its file (job.sbatch, trainjob.yaml or "
        "sky.yaml), `trainwiz submit` checks and submits it, and `trainwiz launch` inside the job finds the other "
        "machines by itself. The training is the same everywhere.",
    ),
    Question(
        key="cluster.job_name",
        prompt=say("Name of the job"),
        when=_submits,
        help="The job's name in the scheduler's lists: lowercase letters, digits and hyphens, at most 40 characters.",
    ),
    Question(
        key="cluster.time_limit",
        prompt=say("Time limit"),
        when=_takes("time_limit"),
        help="How long the job may take: 90m, 12h, 2d, 12:00:00 or 1-12:00:00. A checkpoint is saved before the "
        "end, and with cluster.requeue the job then continues. Shorter limits often start sooner.",
    ),
    Question(
        key="cluster.grace",
        prompt=say("Seconds to save a checkpoint before the end"),
        when=_submits,
        help="How long before its end the job is asked to stop: by Slurm before the time limit, by Kubernetes "
        "before a pod is killed. It must be longer than one update plus one checkpoint.",
    ),
    Question(
        key="cluster.requeue",
        prompt=say("Continue automatically after a stop or a lost machine"),
        when=_takes("requeue"),
        choices=YES_NO,
        help="Whether the scheduler restarts the job after a preemption, a lost machine or the time limit; it "
        "continues from the newest checkpoint. false leaves that to you.",
    ),
    Question(
        key="cluster.gpu_type",
        prompt=say("Type of GPU"),
        when=_takes("gpu_type"),
        help="The name that the cluster or cloud uses: a100 or h100 in many Slurm clusters, A100-80GB or H100 for "
        "SkyPilot. Empty accepts any type. The number of GPUs follows from the ranks on each machine.",
    ),
    Question(
        key="cluster.cpus",
        prompt=say("CPU cores of each machine"),
        when=_takes("cpus"),
        help="How many cores the job requests on each machine: at least one per rank, plus those of the data "
        "workers. Empty leaves it to the scheduler, which often gives a single core.",
    ),
    Question(
        key="cluster.memory",
        prompt=say("Memory of each machine"),
        when=_takes("memory"),
        help="How much memory the job requests on each machine: 64G, 512G. Empty leaves it to the scheduler.",
    ),
    Question(
        key="cluster.setup",
        prompt=say("Shell line that prepares each machine"),
        when=_takes("setup"),
        help="Runs in the job before trainwiz: module load cuda && source ~/venv/bin/activate. It is written to "
        "the file as it is.",
    ),
    Question(
        key="cluster.folder",
        prompt=say("Folder of the project on the machines"),
        when=_takes("folder"),
        help="The absolute path of the project where the job runs, if it differs from the path here. All machines "
        "must see the same folder there: checkpoints and logs are written to it.",
    ),
    Question(
        key="cluster.partition",
        prompt=say("Partition"),
        when=_takes("partition"),
        help="Slurm's partition; `sinfo` lists them with their time limits. Empty uses the cluster's default.",
    ),
    Question(
        key="cluster.account",
        prompt=say("Account"),
        when=_takes("account"),
        help="The Slurm account that is charged; `sacctmgr show associations user=$USER` lists yours. Empty uses "
        "your default.",
    ),
    Question(
        key="cluster.qos",
        prompt=say("Quality of service"),
        when=_takes("qos"),
        help="Slurm's QOS, which decides priority, limits and preemption in many clusters. Empty uses the default.",
    ),
    Question(
        key="cluster.workload",
        prompt=say("Kind of object"),
        when=_takes("workload"),
        choices=(
            Choice(value="trainjob", label=say("TrainJob: needs Kubeflow Trainer 2.0 or newer in the cluster")),
            Choice(value="jobset", label=say("JobSet: needs JobSet in the cluster")),
            Choice(value="job", label=say("Job: part of every cluster; one machine")),
        ),
        help="What trainjob.yaml creates. `kubectl api-resources` lists what the cluster supports: trainjobs of "
        "trainer.kubeflow.org, or jobsets of jobset.x-k8s.io. All three run the same pods.",
    ),
    Question(
        key="cluster.namespace",
        prompt=say("Namespace"),
        when=_takes("namespace"),
        help="The Kubernetes namespace of the job, its volume and its queue. Empty uses kubectl's current one.",
    ),
    Question(
        key="cluster.queue",
        prompt=say("Queue of Kueue"),
        when=_takes("queue"),
        help="The LocalQueue of Kueue that admits the job, if the cluster has Kueue; `kubectl get localqueues` "
        "lists them. Empty does not use Kueue.",
    ),
    Question(
        key="cluster.image",
        prompt=say("Container image"),
        when=_takes("image"),
        help="An image with Python, PyTorch, trainwiz and the packages of requirements.txt. Kubernetes needs one; "
        "SkyPilot otherwise prepares plain machines with cluster.setup.",
    ),
    Question(
        key="cluster.volume",
        prompt=say("Volume with the project"),
        when=_takes("volume"),
        help="The name of a PersistentVolumeClaim (Kubernetes) or of a SkyPilot volume, mounted at cluster.folder "
        "on all machines: the project, its data and its checkpoints. Several machines need a volume that all "
        "of them can write to (ReadWriteMany).",
    ),
    Question(
        key="cluster.shared_memory",
        prompt=say("Size of /dev/shm"),
        when=_takes("shared_memory"),
        help="Containers have 64 MiB of shared memory unless a memory volume is mounted there; NCCL and data "
        "workers need more. What is used counts as memory of the pod.",
    ),
    Question(
        key="cluster.infra",
        prompt=say("Cloud, region or context"),
        when=_takes("infra"),
        help="Where SkyPilot may rent: aws, gcp/us-central1, k8s/my-context. Empty uses the cheapest of all "
        "clouds with credentials; `sky check` lists them.",
    ),
    Question(
        key="cluster.spot",
        prompt=say("Spot machines"),
        when=_takes("spot"),
        choices=YES_NO,
        help="Spot machines cost a fraction and can be taken away at any time; SkyPilot then rents others, and "
        "training continues from the newest checkpoint. Save often: there is little warning.",
    ),
)
"""Where it runs; all but the first are asked only for a scheduler that needs them."""
