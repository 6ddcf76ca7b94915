"""What a scheduler is: the file it reads, the commands that people type, and how it names a job's states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from trainwiz.message import Message

if TYPE_CHECKING:
    from trainwiz.plan import Plan

Argv = tuple[str, ...]


class Phase(str, Enum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    REQUEUED = "requeued"
    """It ran before, and waits to run again."""
    PREEMPTED = "preempted"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One submitted job."""

    scheduler: str
    """The scheduler's name, as `cluster.kind` has it."""
    id: str
    """As the scheduler's commands take it."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the scheduler says about a job."""

    phase: Phase
    """Whether it waits, runs or has ended."""
    reason: Message | None = None
    """Why it waits, or why it ended; None: nothing to say."""
    again: bool = False
    """Whether it was started before."""

    @property
    def over(self) -> bool:
        """Whether the job will not run again."""
        return self.phase in (Phase.DONE, Phase.FAILED, Phase.STOPPED, Phase.PREEMPTED)


class Scheduler:
    """One way to get machines. Every command is a list of arguments; nothing is run here."""

    name: str
    """Its value of `cluster.kind`."""
    order: int
    """Its place in the wizard's list."""
    summary: Message
    """Its line in the wizard's list."""
    program: str
    """The program that submits."""
    traces: tuple[str, ...] = ()
    """Files and variables ($NAME) that are there once a person has set it up; empty: the program is enough."""
    id_pattern: str = r"[0-9]{1,18}"
    """All of a job's id. Ids also come from a project's files, and become arguments of commands."""
    dated: bool = False
    """What `output` prints has times in front, for `in_order` and `dated_line`."""
    keys: frozenset[str]
    """The keys of `cluster:` that its file needs, beside `kind`, `job_name` and `grace`."""
    file: str
    """The file that people edit and submit."""
    logs: tuple[str, ...] = ()
    """Patterns of what it writes into the project's folder."""

    def files(self, plan: Plan) -> dict[str, str | Sequence[Mapping[str, Any]]]:
        """Its files by name: as text, or as the YAML documents that they hold."""
        raise NotImplementedError

    def submission(self, plan: Plan) -> tuple[Argv, ...]:
        """The commands that submit the files, typed in the project's folder; the last one prints the job's id."""
        raise NotImplementedError

    def submitted(self, plan: Plan, stdout: str) -> Job | None:
        """The job, by what the last command printed."""
        raise NotImplementedError

    def whole(self, job: Job) -> Job:
        """What was submitted, where a job is one of several that were submitted at once."""
        return job

    def around(self, environ: Mapping[str, str]) -> Job | None:
        """The job that a process with this environment runs in."""
        raise NotImplementedError

    def outside(self, environ: Mapping[str, str]) -> dict[str, str]:
        """An environment without the variables that mark a process as part of a job, for starting another job."""
        return dict(environ)

    def overriding(self, environ: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002 (most read no such variables)
        """Variables by which the program that submits does something else than its file says."""
        return ()

    def questions(self, job: Job) -> tuple[Argv, ...]:
        """The commands that ask for a job's state: the next one where one does not know the job."""
        raise NotImplementedError

    def seen(self, job: Job, argv: Argv, stdout: str) -> Seen | None:
        """What one of them answered; None where it does not know the job."""
        raise NotImplementedError

    def details(self, job: Job) -> Argv:  # noqa: ARG002 (most need none)
        """The command that says more about why a job waits or failed; empty if `questions` suffice."""
        return ()

    def explained(self, job: Job, seen: Seen, stdout: str) -> Seen:  # noqa: ARG002 (the same)
        """The job's state, completed by the output of the command of `details`."""
        return seen

    def output(self, job: Job, machine: int, *, follow: bool, since: str) -> Argv:  # noqa: ARG002 (the same)
        """The command that prints what a job writes on a machine; empty where that lies in the project's folder.

        `since` is a time as RFC 3339 has it: only what was written after it; empty for all.
        """
        return ()

    def in_order(self, printed: str) -> list[str]:
        """The lines that the command of `output` printed without following, in the order in which they were written."""
        return printed.splitlines()

    def dated_line(self, line: str) -> tuple[str, str]:
        """The time in front of a line of `output`, as a text that sorts, and the line itself."""
        return "", line

    def written(self, job: Job) -> str:  # noqa: ARG002 (most write elsewhere)
        """The file in the project's folder with what a job's machines write; empty where there is none."""
        return ""

    def requeue(self, job: Job) -> Argv:  # noqa: ARG002 (most see to that themselves)
        """The command that starts a stopped job again; empty where the scheduler does that by itself."""
        return ()

    def batch_file(self, job: Job) -> Argv:  # noqa: ARG002 (most need none)
        """The command that prints the file of a job, by which `notice` knows when its end is announced."""
        return ()

    def notice(self, file: str) -> float | None:  # noqa: ARG002 (the same)
        """How many seconds before its end a job is at most asked to stop, by its file; None where that does not say."""
        return None

    def obstacle(self, job: Job, stdout: str, *, now: float, notice: float) -> Message | None:
        """Why not to start it again, by what the first of `questions` answered; None where nothing speaks against it.

        `now` is the time (seconds since 1970); a scheduler asks for the end at most `notice` seconds before it.
        """
        raise NotImplementedError

    def drop_waiting(self, job: Job) -> tuple[Argv, ...]:  # noqa: ARG002 (most submit one job at a time)
        """The commands that remove those jobs from the queue that `job` is as a whole, and that have not begun."""
        return ()

    def stop(self, job: Job, *, runs: bool) -> tuple[Argv, ...]:
        """The commands that end a job: one that runs saves a checkpoint first, and neither starts again."""
        raise NotImplementedError
