"""What the machines of a cluster say before a rank starts: Kubernetes, Slurm's queue, MPI and Ray."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "pod_waits": Signature(
        r"is waiting to start: (?P<problem>(?!Err|Image|trying|Crash)\w+)",
        r"(?P<problem>(?:(?:Mount|Attach)Volume\.\S+ failed|Unable to attach or mount volumes|Failed to create pod "
        r"sandbox)[^\n]*)",
        r"\b(?P<problem>CreateContainer(?:Config)?Error|(?:secret|configmap|persistentvolumeclaim) \"[^\"\n]+\" not "
        r"found)",
        r"Back-off restarting failed container[ =](?P<problem>init-pytorch)\b",
        r"^\S+ +\d+/\d+ +(?P<problem>Pending|ContainerCreating|PodInitializing|Init:(?:\d+/\d+|Error))(?: |$)",
        cause="the pod has not started: {problem}",
        remedy="kubectl describe pod NAME lists at its end what is missing: a volume, a secret, or an init "
        "container; the init container of a PyTorchJob's worker waits until the master's name resolves, so "
        "look at the master first",
        transient=None,
    ),
    "pod_crashes": Signature(
        r"^(?P<pod>\S+) +\d+/\d+ +(?:Init:)?CrashLoopBackOff\b",
        r"Back-off restarting failed container(?:[ =](?P<pod>\S+))?",
        r"container \"(?P<pod>[^\"]+)\" in pod \S+ is waiting to start: CrashLoopBackOff",
        cause="a container keeps crashing, and this text does not say why: {pod}",
        remedy="read its last output: kubectl logs POD --all-containers --previous",
        transient=None,
        secondary=True,
    ),
    "kubernetes_refused": Signature(
        r"Error from server \(\w+\): (?P<problem>(?!container \").+)$",
        r"(?P<problem>no matches for kind \"\w+\" in version .+)$",
        r"(?P<problem>pods? \"[^\"\n]+\" is forbidden: .+)$",
        r"(?P<problem>admission webhook \"?[\w.-]+\"? denied the request: .+)$",
        cause="Kubernetes rejected it: {problem}",
        remedy="for a quota, see kubectl describe quota; for rights, kubectl auth can-i create pods; an unknown kind "
        "means that its operator is not installed in this cluster, or has a different version",
    ),
    "slurm_waits": Signature(
        r"^ *\d[\d_\[\]-]* +\S+ +\S.* (?:PD|PENDING) +\S.*\((?P<reason>[A-Z]\w+[^()\n]*)\) *$",
        cause="the job waits in Slurm's queue: {reason}",
        remedy="Resources and Priority mean that it only has to wait; for a limit (QOS…, Assoc…, Partition…), "
        "request less or use another partition; ReqNodeNotAvail means that nodes are down or reserved: sinfo "
        "-R",
        transient=None,
    ),
    "no_slots": Signature(
        r"There are not enough slots available in the system to satisfy",
        r"All nodes which are allocated for this job are already filled",
        cause="MPI has fewer slots than the ranks that it should start",
        remedy="write HOST slots=GPUS for each machine in the hostfile; under Slurm, request as many tasks as ranks "
        "(--ntasks-per-node)",
    ),
    "mpi_init": Signature(
        r"An error occurred in MPI_Init(?:_thread)?\b",
        cause="MPI could not be initialized in a rank, and ended all of them",
        remedy="start the ranks with MPI's own launcher (mpirun, or srun --mpi=pmix), with the MPI that the program "
        "was built for; where only Transformer Engine's overlap of tensor parallelism asks for MPI, turn that off or "
        "set its bootstrap to nccl",
        transient=None,
    ),
    "ray_resources": Signature(
        r"No available node types can fulfill resource requests? (?P<request>\{.+?\})",
        r"Total available GPUs (?P<request>\d+\S* is less than total desired GPUs \d+)",
        r"(?P<request>\{[^{}\n]+\}): \d+\+? pending (?:tasks|placement)",
        cause="no machine of the Ray cluster has what is requested: {request}",
        remedy="compare ray status with the request (trainer.nnodes, n_gpus_per_node): a machine has not joined, was "
        "started without its GPUs (ray start --num-gpus), or its GPUs are used by another job",
        transient=None,
    ),
    "ray_missing": Signature(
        r"Could not find any running Ray instance",
        r"ConnectionError: ray client connection timeout",
        r"(?:Failed|Unable) to connect to GCS",
        cause="no Ray cluster responds at this address",
        remedy="start it with ray start --head, and give the other machines its address; to start one on this "
        "machine only, unset RAY_ADDRESS",
        transient=None,
    ),
}
