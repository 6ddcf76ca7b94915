"""Slurm: job.sbatch, sbatch, squeue, sacct, scontrol, scancel. https://slurm.schedmd.com/sbatch.html"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainwiz.message import Message, say
from trainwiz.schedulers.scheduler import Argv, Job, Phase, Scheduler, Seen

if TYPE_CHECKING:
    from trainwiz.plan import Plan

_SIGNAL_SECONDS = 15
"""How much earlier than the ranks' grace the signal comes, for trainwiz itself to end."""
_SIGNAL_DEFAULT_SECONDS = 60
"""Of `--signal` without a time: https://slurm.schedmd.com/sbatch.html"""
_EARLY_SECONDS = 90
"""By how much its signal may be early, with the time that a save takes until Slurm is asked."""
_WANTED = {"JobState": "RUNNING", "Requeue": "1", "BatchFlag": "1"}
"""Of a job that its owner has not cancelled, that may be queued again, and that has a script to begin with."""
_OF_NO_JOB = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_JWT", "SLURM_TIME_FORMAT")
"""Variables by which users, not jobs, configure Slurm's commands."""
_OF_SBATCH = ("SBATCH_DEBUG", "SBATCH_EXPORT", "SBATCH_WAIT")
"""Variables of sbatch that change nothing of what its script asks for."""
_PHASES = {
    "BOOT_FAIL": Phase.FAILED,
    "CANCELLED": Phase.STOPPED,
    "COMPLETED": Phase.DONE,
    "COMPLETING": Phase.RUNNING,
    "CONFIGURING": Phase.QUEUED,
    "DEADLINE": Phase.FAILED,
    "EXPEDITING": Phase.QUEUED,
    "FAILED": Phase.FAILED,
    "LAUNCH_FAILED": Phase.REQUEUED,
    "NODE_FAIL": Phase.FAILED,
    "OUT_OF_MEMORY": Phase.FAILED,
    "PENDING": Phase.QUEUED,
    "POWER_UP_NODE": Phase.QUEUED,
    "PREEMPTED": Phase.PREEMPTED,
    "RECONFIG_FAIL": Phase.FAILED,
    "REQUEUED": Phase.REQUEUED,
    "REQUEUE_HOLD": Phase.REQUEUED,
    "REQUEUE_FED": Phase.REQUEUED,
    "RESIZING": Phase.RUNNING,
    "RESV_DEL_HOLD": Phase.QUEUED,
    "REVOKED": Phase.STOPPED,
    "RUNNING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "SPECIAL_EXIT": Phase.REQUEUED,
    "STAGE_OUT": Phase.RUNNING,
    "STOPPED": Phase.RUNNING,
    "SUSPENDED": Phase.QUEUED,
    "TIMEOUT": Phase.FAILED,
    "UPDATE_DB": Phase.RUNNING,
}
"""Slurm's states and flags: https://slurm.schedmd.com/job_state_codes.html"""
_SAID = {
    "CANCELLED": say("cancelled"),
    "BOOT_FAIL": say("a node did not boot"),
    "DEADLINE": say("its deadline passed"),
    "NODE_FAIL": say("a node failed"),
    "OUT_OF_MEMORY": say("it used more memory than it had requested (cluster.memory)"),
    "PREEMPTED": say("another job took its nodes"),
    "RECONFIG_FAIL": say("a node could not be configured for it"),
    "REVOKED": say("another cluster of the federation runs it"),
    "TIMEOUT": say("the time limit was reached (cluster.time_limit)"),
}
_WAITS = {
    "Priority": say("jobs with higher priority go first"),
    "Resources": say("waiting for nodes to become free"),
    "BeginTime": say("it cannot start yet; after a requeue, Slurm waits for up to two minutes"),
    "Dependency": say("waiting for another job"),
    "JobHeldUser": say("held; release it with: scontrol release {id}"),
    "JobHeldAdmin": say("held by an administrator"),
    "PartitionConfig": say("the partition cannot give what the job asks for"),
    "PartitionTimeLimit": say("cluster.time_limit exceeds the limit of the partition"),
    "PartitionNodeLimit": say("the partition has too few nodes"),
    "ReqNodeNotAvail": say("the nodes are down or reserved"),
    "Nodes_required_for_job_are_DOWN": say("the nodes are down, drained, or reserved for jobs with higher priority"),
    "DependencyNeverSatisfied": say("the job that it depends on has failed, so it will never start"),
    "QOSMaxJobsPerUserLimit": say("this user has too many jobs in this QOS"),
    "AssocGrpGRES": say("the account's limit on GPUs is used up"),
    "JobArrayTaskLimit": say("the array already runs as many jobs at a time as its % allows"),
    "JobHoldMaxRequeue": say("held after too many requeues; release it with: scontrol release {id}"),
    "job_requeued_in_held_state": say("requeued and held; release it with: scontrol release {id}"),
    "launch_failed_requeued_held": say(
        "a node could not start it, so it is held; release it with: scontrol release {id}"
    ),
    "BadConstraints": say("no node can ever give what the job asks for"),
    "InvalidAccount": say("the account does not exist or is not yours (cluster.account)"),
    "InvalidQOS": say("the QOS does not exist or is not yours (cluster.qos)"),
    "PartitionDown": say("the partition is down"),
    "PartitionInactive": say("the partition starts no jobs now"),
    "NodeDown": say("the nodes are down"),
    "Cleaning": say("its last run is still being cleaned up"),
    "Prolog": say("the nodes are being prepared"),
}
"""Common reasons: https://slurm.schedmd.com/job_reason_codes.html"""
_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)\w+|Max\w+PerAccount|Association\w+Limit|QOS\w+Limit")
"""Reasons of many names: some limit of an account or a QOS."""
_NO_OUTPUT = "53"
"""As a job's signal: slurmstepd could not open its output or enter its folder (the signal is its ESLURM code)."""


class Slurm(Scheduler):
    """A batch script with one trainwiz per node."""

    name = "slurm"
    order = 1
    summary = say("Slurm: job.sbatch, submitted with sbatch")
    program = "sbatch"
    file = "job.sbatch"
    logs = ("/slurm-*.log",)
    id_pattern = r"[0-9]{1,18}(?:_[0-9]{1,9})?"
    keys = frozenset(
        {"time_limit", "requeue", "gpu_type", "cpus", "memory", "setup", "folder", "partition", "account", "qos"}
    )

    def files(self, plan: Plan) -> dict[str, str | Sequence[Mapping[str, Any]]]:
        """The batch script."""
        return {self.file: "\n".join(_script(plan)) + "\n"}

    def submission(self, plan: Plan) -> tuple[Argv, ...]:  # noqa: ARG002 (the script says it all)
        """One command; `--parsable` prints the id alone."""
        return ((self.program, "--parsable", self.file),)

    def submitted(self, plan: Plan, stdout: str) -> Job | None:  # noqa: ARG002 (the same for every plan)
        """`17`, or `17;cluster` where there are several."""
        found = re.search(r"^(\d+)(;\S+)?\s*$", stdout, re.MULTILINE)
        return Job(scheduler=self.name, id=found[1]) if found else None

    def around(self, environ: Mapping[str, str]) -> Job | None:
        """Of a job array, the one job: the last one's own number is also that of all of them."""
        found = environ.get("SLURM_JOB_ID", "")
        array = [environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK")]
        if found.isdecimal() and all(map(str.isdecimal, array)):
            return Job(scheduler=self.name, id="_".join(array))
        return Job(scheduler=self.name, id=found) if found.isdecimal() else None

    def whole(self, job: Job) -> Job:
        """Of `17_3`, the array 17."""
        return Job(scheduler=job.scheduler, id=job.id.partition("_")[0])

    def outside(self, environ: Mapping[str, str]) -> dict[str, str]:
        """sbatch passes all on, and srun takes the memory or the tasks of the job that it was typed in for its own."""
        if not self.around(environ):
            return dict(environ)
        return {k: v for k, v in environ.items() if not k.startswith("SLURM") or k in _OF_NO_JOB}

    def overriding(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """They come before the script: https://slurm.schedmd.com/sbatch.html (INPUT ENVIRONMENT)"""
        return tuple(sorted(name for name in environ if name.startswith("SBATCH_") and name not in _OF_SBATCH))

    def questions(self, job: Job) -> tuple[Argv, ...]:
        """squeue forgets a job soon after its end, sacct needs accounting, and scontrol remembers for minutes."""
        return (
            ("scontrol", "--oneliner", "show", "job", job.id),
            ("sacct", "--allocations", "--noheader", "--parsable2", "--format=State,ExitCode", f"--jobs={job.id}"),
        )

    def seen(self, job: Job, argv: Argv, stdout: str) -> Seen | None:
        """The state, with what Slurm says of it."""
        return _in_record(job, stdout) if argv[0] == "scontrol" else _in_accounting(stdout)

    def written(self, job: Job) -> str:
        """As its script says; srun's own words are there, too, where nothing was started."""
        return f"slurm-{job.id}.log"

    def requeue(self, job: Job) -> Argv:
        """Slurm itself starts a job again after a node failure only, and not after its own early signal."""
        return ("scontrol", "requeue", job.id)

    def batch_file(self, job: Job) -> Argv:
        """The batch script, as it was submitted."""
        return ("scontrol", "write", "batch_script", job.id, "-")

    def notice(self, file: str) -> float | None:
        """By `#SBATCH --signal`; Slurm looks once a minute, and may be earlier by that."""
        found = re.findall(r"^#SBATCH\s+--signal[ =](?:[RB]+:)?\w+(?:@(\d{1,6}))?\s*(?:#|$)", file, re.MULTILINE)
        return int(found[-1] or _SIGNAL_DEFAULT_SECONDS) + _EARLY_SECONDS if found else None

    # docs/decisions/launching.md: A job is queued again only while its scheduler calls it running
    def obstacle(self, job: Job, stdout: str, *, now: float, notice: float) -> Message | None:
        """A job that was cancelled, that may not be queued again, that has no script, or whose end is not near."""
        fields = _fields(job, stdout)
        if others := [f"{key}={fields.get(key, '-')}" for key, value in _WANTED.items() if fields.get(key) != value]:
            return say("Slurm decides whether the job runs again: {states}", states=" ".join(others))
        if not _is_ending(fields, now, notice):
            return say(
                "the job is not requeued: its end at {time} is not near, so a user requested this stop; to "
                "continue, run: {command}",
                time=fields["EndTime"],
                command=" ".join(self.requeue(job)),
            )
        return None

    def drop_waiting(self, job: Job) -> tuple[Argv, ...]:
        """Those of an array that have begun are left alone."""
        return (("scancel", "--state=PENDING", job.id),)

    def stop(self, job: Job, *, runs: bool) -> tuple[Argv, ...]:
        """A job that was asked to stop would be requeued, unless that is turned off first."""
        if not runs:
            return (("scancel", job.id),)
        return (("scontrol", "update", f"JobId={job.id}", "Requeue=0"), ("scancel", "--signal=TERM", job.id))


def _is_ending(fields: Mapping[str, str], now: float, notice: float) -> bool:
    """Whether Slurm may have sent the signal: it preempts the job, or its end is near."""
    if fields.get("PreemptTime", "None") not in ("None", "Unknown"):
        return True
    end = fields.get("EndTime")
    if end is None or notice == math.inf:
        return True
    if end == "Unknown":  # without a time limit only a preemption is Slurm's
        return False
    try:
        return datetime.fromisoformat(end).timestamp() - now <= notice
    except ValueError:  # SLURM_TIME_FORMAT can set any format
        return True


def _script(plan: Plan) -> list[str]:
    cluster = plan.cluster
    lines = [
        "#!/bin/bash",
        "# Submit it with `trainwiz submit`, or here with `sbatch job.sbatch`; made from trainwiz.yaml.",
    ]
    lines += [f"#SBATCH --{option}" for option in _asked_for(plan)]
    lines += [
        f"# {cluster.grace + _SIGNAL_SECONDS} s before the end of time, SIGTERM: trainwiz saves a checkpoint and ends.",
        f"#SBATCH --signal=TERM@{cluster.grace + _SIGNAL_SECONDS}",
        "# A requeued job goes on from the newest checkpoint, and its log grows.",
        f"#SBATCH --{'requeue' if cluster.requeue else 'no-requeue'}",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=slurm-%j.log",
        "",
    ]
    if cluster.setup:
        lines += [cluster.setup, ""]
    cpus = f" --cpus-per-task={cluster.cpus}" if cluster.cpus else ""
    lines += [
        "# One trainwiz on each node starts the ranks there. The others go on writing when one has failed.",
        f"srun --ntasks-per-node=1{cpus} --kill-on-bad-exit=0 trainwiz launch --grace {cluster.grace}",
    ]
    return lines


def _asked_for(plan: Plan) -> list[str]:
    cluster = plan.cluster
    options = [f"job-name={cluster.job_name}", f"nodes={plan.machine.num_machines}", "ntasks-per-node=1"]
    if plan.machine.device == "cuda":
        kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
        options.append(f"gpus-per-node={kind}{plan.machine.ranks_per_machine}")
    elif plan.machine.device != "cpu":
        options.append(f"gres={cluster.gpu_type or plan.machine.device}:{plan.machine.ranks_per_machine}")
    given = {
        "cpus-per-task": cluster.cpus,
        # Slurm's units are binary, although they do not say so.
        "mem": cluster.memory.removesuffix("i") if cluster.memory else None,
        "time": _clock(cluster.time_limit_seconds) if cluster.time_limit_seconds else None,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "chdir": _quoted(cluster.folder) if cluster.folder else None,
    }
    return [*options, *(f"{option}={value}" for option, value in given.items() if value is not None)]


def _quoted(folder: str) -> str:
    # sbatch splits its directives at blanks, and begins a comment at any #; it takes quotes, and the plan allows none
    # inside.
    return f'"{folder}"' if {" ", "#"} & {*folder} else folder


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _fields(job: Job, text: str) -> dict[str, str]:
    """What scontrol says of this job, not of others of its array; no name, path or comment can say it instead."""
    records = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)
    own = next((record for record in records if re.match(rf"JobId={job.id}\b", record)), text)
    # The name is the only text of a person before the state; of the rest, what comes first is Slurm's own.
    words = re.findall(r"(\w+)=(\S*)", re.sub(r"\bJobName=.*?\sUserId=", "UserId=", own, count=1, flags=re.DOTALL))
    return dict(reversed(words))


def _in_record(job: Job, text: str) -> Seen | None:
    fields = _fields(job, text)
    state = fields.get("JobState", "")
    if state not in _PHASES:
        return None
    phase = _PHASES[state]
    if phase in (Phase.QUEUED, Phase.REQUEUED):
        again = fields.get("Restarts", "0") not in ("", "0")
        return Seen(phase=Phase.REQUEUED if again else phase, reason=_waiting(job, fields.get("Reason", "")))
    return Seen(phase=phase, reason=_ended(state, fields.get("ExitCode", "")))


def _in_accounting(lines: str) -> Seen | None:
    # A requeued job has a line for each start; the last one counts.
    *_, last = lines.strip().splitlines() or [""]
    state, _, code = last.partition("|")
    state = state.split()[0] if state else ""  # `CANCELLED by 1000`
    return Seen(phase=_PHASES[state], reason=_ended(state, code)) if state in _PHASES else None


def _waiting(job: Job, reason: str) -> Message | None:
    if reason in ("", "None"):
        return None
    # `ReqNodeNotAvail,_UnavailableNodes:n7`: what follows the reason names the nodes.
    head, _, more = reason.partition(",_")
    if head == "ReqNodeNotAvail" and (nodes := more.removeprefix("UnavailableNodes:")) != more:
        return say("the nodes are down or reserved: {nodes}", nodes=nodes)
    known = _WAITS.get(head)
    if known:
        return Message(known.template, {"id": job.id})
    if _LIMIT.fullmatch(head):
        return say("a limit of the account or of the QOS is reached: {reason}", reason=head)
    return say("Slurm's reason: {reason}", reason=reason.replace("_", " "))


def _ended(state: str, code: str) -> Message | None:
    exit_code, _, signal = code.partition(":")
    if state == "FAILED" and signal == _NO_OUTPUT:
        return say("Slurm could not write the job's output or enter its folder there (cluster.folder)")
    if state == "FAILED" and exit_code == "0" and signal not in ("", "0"):
        return say("the job was ended by signal {number}", number=signal)
    if state == "FAILED" and exit_code:
        return say("the job exited with code {code}", code=exit_code)
    return _SAID.get(state)


SCHEDULER = Slurm()
