"""Kubernetes: a TrainJob of Kubeflow Trainer, or a JobSet or a Job for clusters without it, created with kubectl.

A TrainJob runs in a TrainingRuntime of its own: its fields are the same in Kubeflow Trainer 2.0 to 2.3, where those by
which a TrainJob changes another runtime's pods were renamed twice.
https://www.kubeflow.org/docs/components/trainer/ https://jobset.sigs.k8s.io/docs/
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwiz.message import Message, say
from trainwiz.outcome import STOPPED_CODE
from trainwiz.schedulers import pods
from trainwiz.schedulers.scheduler import Argv, Job, Phase, Scheduler, Seen

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_PROJECT = "/project"
"""Where the volume with the project is mounted, if the plan names no folder."""
_VARIABLE = "TRAINWIZ_JOB"
_RUNTIME_FILE = "runtime.yaml"
_CONTAINER = "node"
"""Kubeflow Trainer looks for the job and the container of this name."""
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_JOB_LABEL = "batch.kubernetes.io/job-name"
_STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ?")
_INDEX = f"metadata.annotations['{_INDEX_LABEL}']"
_JOBSET_NAME = f"metadata.labels['{_JOBSET_LABEL}']"
_JOB_NAME = f"metadata.labels['{_JOB_LABEL}']"
_MOST_RESTARTS = 10
_MARGIN_SECONDS = 15
"""How much longer than the ranks' grace a pod gets, for trainwiz itself to end."""
_RESOURCES = {
    "cuda": "nvidia.com/gpu",
    "npu": "huawei.com/Ascend910",
    "xpu": "gpu.intel.com/i915",
    "mlu": "cambricon.com/mlu",
}
"""What device plugins call one device."""
_TYPES = {
    "trainjob": "trainjob.trainer.kubeflow.org",
    "jobset": "jobset.jobset.x-k8s.io",
    "job": "job.batch",
}
"""As `kubectl create --output=name` prints them."""
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
"""Of an object or a namespace: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""


class Kubernetes(Scheduler):
    """Pods with one trainwiz each, which find each other by the variables that torchrun reads, too."""

    name = "kubernetes"
    order = 2
    summary = say("Kubernetes: trainjob.yaml, created with kubectl")
    program = "kubectl"
    traces = ("$KUBECONFIG", "~/.kube/config")
    id_pattern = rf"(?:{_NAME}:)?(?:{'|'.join(map(re.escape, _TYPES.values()))})/{_NAME}"
    dated = True
    file = "trainjob.yaml"
    keys = frozenset(
        {
            *("time_limit", "requeue", "gpu_type", "cpus", "memory", "setup", "folder", "queue", "namespace"),
            *("image", "volume", "shared_memory", "workload"),
        }
    )

    def files(self, plan: Plan) -> dict[str, str | Sequence[Mapping[str, Any]]]:
        """The job; a TrainJob's runtime has a file of its own, since it outlives the jobs."""
        match plan.cluster.workload:
            case "trainjob":
                return {self.file: [_train_job(plan)], _RUNTIME_FILE: [_runtime(plan)]}
            case "jobset":
                return {self.file: [_job_set(plan)]}
        return {self.file: [_job(plan)]}

    def submission(self, plan: Plan) -> tuple[Argv, ...]:
        """A created job gets a new name, where an applied one would be left alone once it has ended."""
        space = ("--namespace", plan.cluster.namespace) if plan.cluster.namespace else ()
        runtime = (("kubectl", "apply", *space, "--filename", _RUNTIME_FILE),)
        created = ("kubectl", "create", *space, "--filename", self.file, "--output", "name")
        return (*(runtime if _RUNTIME_FILE in self.files(plan) else ()), created)

    def submitted(self, plan: Plan, stdout: str) -> Job | None:
        """`trainjob.trainer.kubeflow.org/train-x7f2q`, with the namespace before it where the plan names one."""
        lines = [line.strip() for line in stdout.splitlines() if line.startswith(tuple(_TYPES.values()))]
        return Job(scheduler=self.name, id=_id(plan, lines[-1])) if lines else None

    def around(self, environ: Mapping[str, str]) -> Job | None:
        """By the variable that the files set."""
        scheduler, _, found = environ.get(_VARIABLE, "").partition(" ")
        return Job(scheduler=self.name, id=found) if scheduler == self.name and found else None

    def questions(self, job: Job) -> tuple[Argv, ...]:
        """One command; its JSON has the conditions. A job that is gone is an answer, too."""
        return (("kubectl", "get", *_named(job), "--ignore-not-found", "--output", "json"),)

    def seen(self, job: Job, argv: Argv, stdout: str) -> Seen | None:  # noqa: ARG002 (one question)
        """The job's state by its conditions and its pods."""
        if not stdout.strip():
            return Seen(phase=Phase.STOPPED, reason=say("deleted from the cluster"))
        try:
            found = json.loads(stdout)
        except (ValueError, RecursionError):
            return None
        status = found.get("status") if isinstance(found, dict) else None
        return _seen(status) if isinstance(status, dict) else Seen(phase=Phase.QUEUED)

    def details(self, job: Job) -> Argv:
        """Its pods, which say what their job sums up."""
        space, labels = _pods_of(job)
        return ("kubectl", "get", "pods", *space, "--selector", labels, "--output", "json")

    def explained(self, job: Job, seen: Seen, stdout: str) -> Seen:  # noqa: ARG002 (the pods are the job's)
        """The state by the pods; a time limit that was reached says all."""
        try:
            found = json.loads(stdout)
        except (ValueError, RecursionError):
            return seen
        items = found.get("items") if isinstance(found, dict) else None
        if not isinstance(items, list) or seen.reason == _LIMITS["DeadlineExceeded"]:
            return seen
        return pods.told(seen, items, restarted=seen.again)

    def output(self, job: Job, machine: int, *, follow: bool, since: str) -> Argv:
        """By labels, where a restarted pod has another name; kubectl would show ten lines.

        kubectl prints one pod after the other, in an order of chance, so that only times say what was last.
        """
        space, labels = _pods_of(job)
        indexed = "" if labels.startswith(_JOB_LABEL) else f",{_INDEX_LABEL}={machine}"
        more = ("--timestamps", *(("--follow",) if follow else ()), *((f"--since-time={since}",) if since else ()))
        chosen = ("--selector", labels + indexed, "--container", _CONTAINER)
        return ("kubectl", "logs", *space, *chosen, "--tail=-1", f"--max-log-requests={2 * _MOST_RESTARTS}", *more)

    def in_order(self, printed: str) -> list[str]:
        """By the time in front of each line; one without stays behind the line before it."""
        at, lines = "", []
        for line in printed.removesuffix("\n").split("\n") if printed else ():
            at = self.dated_line(line)[0] or at
            lines.append((at, line))
        return [line for _, line in sorted(lines, key=lambda each: each[0])]

    def dated_line(self, line: str) -> tuple[str, str]:
        """RFC 3339 with up to nine digits of a second."""
        stamped = _STAMPED.match(line)
        if not stamped:
            return "", line
        return f"{stamped[1]}.{stamped[2] or '':0<9}", line[stamped.end() :]

    def stop(self, job: Job, *, runs: bool) -> tuple[Argv, ...]:  # noqa: ARG002 (the same for both)
        """Its pods get SIGTERM and their grace. A suspended job would be started again by Kueue."""
        return (("kubectl", "delete", *_named(job), "--wait=false"),)


def _id(plan: Plan, name: str) -> str:
    return f"{plan.cluster.namespace}:{name}" if plan.cluster.namespace else name


def _named(job: Job) -> tuple[str, ...]:
    space, colon, name = job.id.rpartition(":")
    return ("--namespace", space, name) if colon else (name,)


def _pods_of(job: Job) -> tuple[tuple[str, ...], str]:
    """Options for the namespace, and the labels of a job's pods: a TrainJob's JobSet has its name."""
    *space, name = _named(job)
    kind, _, name = name.partition("/")
    return tuple(space), f"{_JOB_LABEL if kind == _TYPES['job'] else _JOBSET_LABEL}={name}"


def _train_job(plan: Plan) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(plan),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": f"{plan.cluster.job_name}-runtime",
            },
            "trainer": {"numNodes": plan.machine.num_machines, "numProcPerNode": plan.machine.ranks_per_machine},
        },
    }


def _runtime(plan: Plan) -> dict[str, Any]:
    space = {"namespace": plan.cluster.namespace} if plan.cluster.namespace else {}
    # Kubeflow Trainer itself sets the number of pods and torchrun's variables.
    job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": _job_spec(plan, _JOBSET_NAME),
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": f"{plan.cluster.job_name}-runtime", **space},
        "spec": {
            "mlPolicy": {"numNodes": plan.machine.num_machines, "torch": {}},
            "template": {
                "spec": {
                    "failurePolicy": _restarts(plan),
                    "replicatedJobs": [{"name": _CONTAINER, "replicas": 1, "template": job}],
                }
            },
        },
    }


def _job_set(plan: Plan) -> dict[str, Any]:
    job = {"spec": {**_indexed(plan), **_job_spec(plan, _JOBSET_NAME, _torchrun_variables(plan))}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(plan),
        "spec": {
            "failurePolicy": _restarts(plan),
            "replicatedJobs": [{"name": _CONTAINER, "replicas": 1, "template": job}],
        },
    }


def _job(plan: Plan) -> dict[str, Any]:
    spec = _job_spec(plan, _JOB_NAME)
    # One pod: nothing else has to start again with it.
    if plan.cluster.requeue:
        spec["backoffLimit"] = _MOST_RESTARTS
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(plan), "spec": spec}


def _metadata(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    return {
        "generateName": f"{cluster.job_name}-",
        **({"namespace": cluster.namespace} if cluster.namespace else {}),
        **({"labels": {"kueue.x-k8s.io/queue-name": cluster.queue}} if cluster.queue else {}),
    }


def _restarts(plan: Plan) -> dict[str, Any]:
    """All pods start again together; a training that failed by itself does not."""
    return {
        "maxRestarts": _MOST_RESTARTS if plan.cluster.requeue else 0,
        "rules": [{"name": "failed", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }


def _indexed(plan: Plan) -> dict[str, Any]:
    machines = plan.machine.num_machines
    return {"completionMode": "Indexed", "completions": machines, "parallelism": machines}


def _job_spec(plan: Plan, name_field: str, variables: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    cluster = plan.cluster
    limit = {"activeDeadlineSeconds": cluster.time_limit_seconds} if cluster.time_limit_seconds else {}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    stopped = {"containerName": _CONTAINER, "operator": "NotIn", "values": [STOPPED_CODE]}
    return {
        **limit,
        "backoffLimit": 0,
        # The first rule that fits decides: a pod that was preempted, then one that was stopped in order.
        "podFailurePolicy": {
            "rules": [
                {"action": "Count", "onPodConditions": [disrupted]},
                {"action": "FailJob", "onExitCodes": stopped},
            ]
        },
        "template": {"spec": _pod(plan, name_field, variables)},
    }


def _pod(plan: Plan, name_field: str, variables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cluster = plan.cluster
    folder = cluster.folder or _PROJECT
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if cluster.volume:
        volumes.append({"name": "project", "persistentVolumeClaim": {"claimName": cluster.volume}})
        mounts.append({"name": "project", "mountPath": folder})
    if cluster.shared_memory:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": cluster.shared_memory}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    container: dict[str, Any] = {
        "name": _CONTAINER,
        "image": cluster.image or "",
        "command": _command(plan),
        "workingDir": folder,
        "env": [
            {"name": f"{_VARIABLE}_NAME", "valueFrom": {"fieldRef": {"fieldPath": name_field}}},
            {"name": _VARIABLE, "value": f"kubernetes {_id(plan, _TYPES[cluster.workload])}/$({_VARIABLE}_NAME)"},
            *variables,
        ],
    }
    if resources := _resources(plan):
        container["resources"] = resources
    if mounts:
        container["volumeMounts"] = mounts
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": cluster.grace + _MARGIN_SECONDS,
        **({"nodeSelector": {"nvidia.com/gpu.product": cluster.gpu_type}} if cluster.gpu_type else {}),
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }


def _command(plan: Plan) -> list[str]:
    launch = ["trainwiz", "launch", "--grace", str(plan.cluster.grace)]
    if not plan.cluster.setup:
        return launch
    # trainwiz takes the shell's place, which would keep SIGTERM to itself.
    # On lines of their own: a comment or a semicolon at their end would take the launch along.
    lines = f"{{ {plan.cluster.setup}\n}} && exec {shlex.join(launch)}"
    # Kubernetes makes $ of $$, and a variable's value of $(NAME).
    return ["bash", "-c", re.sub(r"\$(?=[$(])", "$$", lines)]


def _resources(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    asked: dict[str, Any] = {}
    if cluster.cpus:
        asked["cpu"] = str(cluster.cpus)
    if cluster.memory:
        asked["memory"] = cluster.memory
    if resource := _RESOURCES.get(plan.machine.device):
        asked[resource] = str(plan.machine.ranks_per_machine)
    return {"requests": asked, "limits": dict(asked)} if asked else {}


def _torchrun_variables(plan: Plan) -> list[dict[str, Any]]:
    """What Kubeflow Trainer sets in a TrainJob's pods."""
    name = f"$({_VARIABLE}_NAME)"
    return [
        {"name": "PET_NNODES", "value": str(plan.machine.num_machines)},
        {"name": "PET_NPROC_PER_NODE", "value": str(plan.machine.ranks_per_machine)},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-{_CONTAINER}-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(plan.machine.main_process_port)},
    ]


def _seen(status: Mapping[str, Any]) -> Seen:
    conditions = {
        str(each.get("type")): each
        for each in status.get("conditions") or ()
        if isinstance(each, Mapping) and each.get("status") == "True"
    }
    for name, phase in _ENDS.items():
        if name in conditions:
            return Seen(phase=phase, reason=_reason(conditions[name]) if phase is Phase.FAILED else None)
    if "Suspended" in conditions:
        return Seen(phase=Phase.QUEUED, reason=say("suspended by its queue or by a user"))
    again = bool(status.get("restarts") or status.get("failed"))
    if _active(status):
        return Seen(phase=Phase.RUNNING, again=again)
    return Seen(phase=Phase.REQUEUED if again else Phase.QUEUED, reason=pods.NOT_STARTED, again=again)


_ENDS = {"Complete": Phase.DONE, "Completed": Phase.DONE, "Failed": Phase.FAILED}
"""The conditions of TrainJobs, JobSets and Jobs that have ended."""

_LIMITS = {
    "DeadlineExceeded": say("the time limit was reached (cluster.time_limit)"),
    "BackoffLimitExceeded": say("its pods failed more often than restarts are allowed"),
}
"""Reasons of a job's own for its failure."""


def _active(status: Mapping[str, Any]) -> bool:
    parts = [*(status.get("jobsStatus") or ()), *(status.get("replicatedJobsStatus") or ()), status]
    return any(isinstance(part, Mapping) and (part.get("ready") or part.get("active")) for part in parts)


def _reason(condition: Mapping[str, Any]) -> Message:
    known = _LIMITS.get(str(condition.get("reason")))
    return known or say("{text}", text=str(condition.get("message") or condition.get("reason") or ""))


SCHEDULER = Kubernetes()
