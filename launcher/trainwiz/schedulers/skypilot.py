"""SkyPilot: sky.yaml, a managed job on whichever cloud has the machines. https://docs.skypilot.co/"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwiz.message import say
from trainwiz.outcome import STOPPED_CODE
from trainwiz.schedulers.scheduler import Argv, Job, Phase, Scheduler, Seen

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_PROJECT = "/project"
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_MANAGED = re.compile(r"^sky-managed-.*_(\d+)-\d+$")
"""SKYPILOT_TASK_ID of a managed job; newer releases also set SKYPILOT_MANAGED_JOB_ID."""
_MOST_WORDS = 400
_PHASES = {
    "PENDING": Phase.QUEUED,
    "SUBMITTED": Phase.QUEUED,
    "STARTING": Phase.QUEUED,
    "RUNNING": Phase.RUNNING,
    "WINDING_DOWN": Phase.RUNNING,
    "RECOVERING": Phase.REQUEUED,
    "CANCELLING": Phase.STOPPED,
    "SUCCEEDED": Phase.DONE,
    "CANCELLED": Phase.STOPPED,
    "FAILED": Phase.FAILED,
    "FAILED_SETUP": Phase.FAILED,
    "FAILED_PRECHECKS": Phase.FAILED,
    "FAILED_NO_RESOURCE": Phase.FAILED,
    "FAILED_CONTROLLER": Phase.FAILED,
}
"""https://docs.skypilot.co/en/latest/reference/cli.html (sky jobs queue)"""
_SAID = {
    "PENDING": say("SkyPilot's controller has not started it yet"),
    "SUBMITTED": say("SkyPilot's controller has not started it yet"),
    "STARTING": say("SkyPilot is provisioning its machines"),
    "CANCELLING": say("its machines are being shut down"),
    "RECOVERING": say("a machine was lost; SkyPilot is looking for another one"),
    "FAILED_SETUP": say("the commands of cluster.setup failed"),
    "FAILED_NO_RESOURCE": say("no cloud has such machines, or its credentials are missing"),
    "FAILED_PRECHECKS": say("SkyPilot's checks before the start failed"),
    "FAILED_CONTROLLER": say("SkyPilot's controller failed; the machines may still run: sky status"),
}


class SkyPilot(Scheduler):
    """A managed job: SkyPilot rents the machines, and others where it loses them."""

    name = "skypilot"
    order = 3
    summary = say("a cloud: sky.yaml, a managed job of SkyPilot")
    program = "sky"
    traces = ("~/.sky",)
    file = "sky.yaml"
    keys = frozenset({"requeue", "gpu_type", "cpus", "memory", "setup", "folder", "image", "volume", "infra", "spot"})

    def files(self, plan: Plan) -> dict[str, str | Sequence[Mapping[str, Any]]]:
        """The task."""
        return {self.file: [_task(plan)]}

    def submission(self, plan: Plan) -> tuple[Argv, ...]:  # noqa: ARG002 (the file says it all)
        """One command, which does not wait for the job's end."""
        return (("sky", "jobs", "launch", "--yes", "--detach-run", self.file),)

    def submitted(self, plan: Plan, stdout: str) -> Job | None:  # noqa: ARG002 (the same for every plan)
        """`Managed Job ID: 5`, in colors on some terminals."""
        found = re.findall(r"Job ID:? *(\d+)", _COLORS.sub("", stdout), re.IGNORECASE)
        return Job(scheduler=self.name, id=found[-1]) if found else None

    def around(self, environ: Mapping[str, str]) -> Job | None:
        """Only a managed job: one on a cluster of the user's own was not submitted from here."""
        found = environ.get("SKYPILOT_MANAGED_JOB_ID", "")
        named = _MANAGED.match(environ.get("SKYPILOT_TASK_ID", ""))
        found = found or (named[1] if named else "")
        return Job(scheduler=self.name, id=found) if found.isdecimal() else None

    def questions(self, job: Job) -> tuple[Argv, ...]:  # noqa: ARG002 (one list for all)
        """All managed jobs of the user."""
        return (("sky", "jobs", "queue", "--all", "--output", "json"),)

    def seen(self, job: Job, argv: Argv, stdout: str) -> Seen | None:  # noqa: ARG002 (one question)
        """The state in the list."""
        start = stdout.find("[")  # other lines may come before it
        try:
            listed = json.loads(stdout[start:]) if start >= 0 else []
        except (ValueError, RecursionError):
            return None
        own = next((each for each in listed if isinstance(each, Mapping) and str(each.get("job_id")) == job.id), {})
        state = str(own.get("status")).rpartition(".")[2]
        if state not in _PHASES:
            return None
        phase, words = _PHASES[state], " ".join(str(own.get("failure_reason") or "").split())[:_MOST_WORDS]
        # SkyPilot keeps the reason of a failure that it recovered from.
        if words and phase is Phase.FAILED:
            return Seen(phase=phase, reason=say("{state}: {words}", state=state, words=words))
        return Seen(phase=phase, reason=_SAID.get(state))

    def output(self, job: Job, machine: int, *, follow: bool, since: str) -> Argv:  # noqa: ARG002
        """Of all machines, each line with its rank; SkyPilot itself follows a job through its recoveries."""
        return ("sky", "jobs", "logs", "--follow" if follow else "--no-follow", job.id)

    def stop(self, job: Job, *, runs: bool) -> tuple[Argv, ...]:  # noqa: ARG002 (the same for both)
        """SkyPilot has no signal for a managed job: what was trained since the newest checkpoint is lost."""
        return (("sky", "jobs", "cancel", "--yes", job.id),)


def _task(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    folder = cluster.folder or _PROJECT
    # Without a volume, the project is copied to each machine, and what it writes there is lost with the machine.
    place = {"volumes": {folder: cluster.volume}} if cluster.volume else {"workdir": "."}
    launch = shlex.join(["trainwiz", "launch", "--grace", str(cluster.grace)])
    lines = [*([f"cd {shlex.quote(folder)}"] if cluster.volume else []), *([cluster.setup] if cluster.setup else [])]
    return {
        "name": cluster.job_name,
        "num_nodes": plan.machine.num_machines,
        "resources": _resources(plan),
        **place,
        # A failed line ends the job; trainwiz takes the shell's place, so that its exit code is the job's.
        "run": "\n".join(["set -e", *lines, f"exec {launch}"]) + "\n",
    }


def _resources(plan: Plan) -> dict[str, Any]:
    cluster, ranks = plan.cluster, plan.machine.ranks_per_machine
    asked: dict[str, Any] = {}
    if cluster.infra:
        asked["infra"] = cluster.infra
    if plan.machine.device == "cuda" and cluster.gpu_type:
        asked["accelerators"] = f"{cluster.gpu_type}:{ranks}"
    if cluster.cpus:
        asked["cpus"] = f"{cluster.cpus}+"
    if cluster.memory:
        asked["memory"] = f"{_gigabytes(cluster.memory)}+"
    if cluster.image:
        asked["image_id"] = f"docker:{cluster.image}"
    asked["use_spot"] = cluster.spot
    if cluster.requeue:
        asked["job_recovery"] = {"recover_on_exit_codes": [STOPPED_CODE]}
    return asked


def _gigabytes(memory: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([MGT])i?", memory).groups()  # type: ignore[union-attr]
    return max(1, round(int(number) * {"M": 1e-3, "G": 1, "T": 1e3}[unit]))


SCHEDULER = SkyPilot()
