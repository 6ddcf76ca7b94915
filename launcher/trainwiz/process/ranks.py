"""Spawn the ranks of a world and supervise them until all have exited.

Each rank is a session of its own: the terminal's Ctrl-C reaches trainwiz alone, which then asks the ranks to save.
A rank writes straight into its log file, so that no line can be lost and no rank ever waits for a slow terminal; rank
0's log is followed and shown. This process never imports torch: that is two seconds and a good part of a gigabyte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say
from trainwiz.outcome import Outcome
from trainwiz.process import agents, early_signals
from trainwiz.process.child import Process, Running, Spawn, start
from trainwiz.process.follow import Files, Follower
from trainwiz.process.guardian import MARK, Guardian, kill_marked, marked, new_mark
from trainwiz.process.heartbeats import Straggler
from trainwiz.process.stacks import Stacks
from trainwiz.process.standby import StandbyRanks
from trainwiz.process.supervision import GRACE_SECONDS, Action, Elsewhere, Send, Supervisor
from trainwiz.process.watch import Resumed, Stall, Watch, Watching

OPTIONS = "PET_"
"""Variables that torchrun reads as its options: https://docs.pytorch.org/docs/stable/elastic/run.html"""
LEFTOVER_SECONDS = 5.0
"""After a good end: how long processes that the ranks started (an uploader, a data loader) may take to end."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""SIGUSR1 is what schedulers send ahead of a time limit (Slurm: `--signal=B:USR1@120`)."""


class Audience(Protocol):
    """The observer of a run. `output` gets rank 0's bytes as they are; `tick` is called about twice a second."""

    def output(self, data: bytes) -> None: ...
    def tick(self) -> None: ...
    def say(self, message: Message) -> None: ...


def run(
    processes: Sequence[Process],
    *,
    audience: Audience,
    grace: float = GRACE_SECONDS,
    show: Files | None = None,
    inbox: Inbox | None = None,
    watching: Watching | None = None,
    standby: StandbyRanks | None = None,
    stopped_code: int = 0,
    spawn: Spawn | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run the processes to their end. Must be called from the main thread, which it needs for the signals.

    `show` names the files to follow for the audience (default: the first process's log). `inbox` is that of
    `listening`, where one run is made of several calls; the processes of `standby` take the ranks' places in the call
    after this one. A rank that ends with `stopped_code` was stopped in order.

    Raises `TrainwizError` if one cannot be started; those that were are ended.
    """
    mark = standby.mark if standby else new_mark()
    supervisor = Supervisor([p.rank for p in processes], grace=grace, stopped_code=stopped_code)
    with contextlib.nullcontext(inbox) if inbox else listening() as events, _guarded(mark):
        started = clock()
        running = _spawn_all(_answering(processes, watching), mark, spawn or _with(standby))
        started_by_rank = {p.rank: (p, running[p.rank]) for p in processes}
        if standby:
            standby.prepare(processes)
        for rank, process in running.items():
            threading.Thread(target=_wait, args=(rank, process, events, clock), daemon=True).start()
        follower = Follower(show or (lambda: [processes[0].log]), audience.output, audience.tick)
        real = dict.fromkeys(watching.ranks) if watching and any(p.agent for p in processes) else {}
        watch = Watch(watching, lambda: {**(real or supervisor.codes)}, events.put) if watching else None
        try:
            _consume(events, supervisor, clock, lambda action: _act(action, started_by_rank, audience))
            outcome = supervisor.outcome(clock() - started)
            _sweep(mark, audience, LEFTOVER_SECONDS if outcome.stopped or outcome.exit_code == 0 else 0.0)
        finally:
            if watch:
                watch.close()
            follower.close()
    return outcome


def _answering(processes: Sequence[Process], watching: Watching | None) -> Sequence[Process]:
    if watching is None:
        return processes
    stacks = Stacks(watching.stacks)
    inherited = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return [
        dataclasses.replace(p, environ=stacks.environ({**inherited, **p.environ}, None if p.agent else p.rank))
        for p in processes
    ]


@dataclass(frozen=True)
class _Stopped:
    rank: int
    code: int
    at: float


Inbox = queue.SimpleQueue[_Stopped | Stall | Resumed | Straggler | Elsewhere | int]
"""What happens meanwhile: a rank's end, what the watch or another machine finds, or the number of a signal."""


def pause(inbox: Inbox, seconds: float) -> int | None:
    """Wait. Return the number of the signal that interrupted it, or None."""
    try:
        event = inbox.get(timeout=seconds)
    except queue.Empty:
        return None
    return event if isinstance(event, int) else None


def kept(inbox: Inbox) -> None:
    """Forget what was found during an attempt that is over; signals stay."""
    signals = []
    with contextlib.suppress(queue.Empty):
        while True:
            event = inbox.get_nowait()
            signals += [event] if isinstance(event, int) else []
    for number in signals:
        inbox.put(number)


def _consume(events: Inbox, supervisor: Supervisor, clock: Callable[[], float], act: Callable[[Action], None]) -> None:
    while not supervisor.finished:
        timeout = None if supervisor.deadline is None else max(0.0, supervisor.deadline - clock())
        try:
            event = events.get(timeout=timeout)
        except queue.Empty:
            actions = supervisor.due(clock())
        else:
            if isinstance(event, _Stopped):
                actions = supervisor.stopped(event.rank, event.code, event.at)
            elif isinstance(event, Stall):
                actions = supervisor.stalled(event, clock())
            elif isinstance(event, Straggler):
                actions = supervisor.late(event)
            elif isinstance(event, Elsewhere):
                actions = supervisor.elsewhere(event, clock())
            elif isinstance(event, Resumed):
                actions = supervisor.resumed(event.silence, event.suspects)
            else:
                actions = supervisor.asked(event, clock())
        for action in actions:
            act(action)


def _act(action: Action, processes: Mapping[int, tuple[Process, Running]], audience: Audience) -> None:
    if isinstance(action, Message):
        audience.say(action)
        return
    assert isinstance(action, Send)
    for rank in action.ranks:
        process, running = processes[rank]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if action.signal == signal.SIGKILL:
                os.killpg(running.pid, signal.SIGKILL)
            elif not process.agent:
                # Only the rank itself: a data loader's worker that got it would fail the rank in mid-save.
                os.kill(running.pid, action.signal)
            elif action.signal in process.ignored:
                agents.signal_ranks(running.pid, action.signal)
            else:
                agents.signal_children(running.pid, action.signal)


def _wait(rank: int, process: Running, events: Inbox, clock: Callable[[], float]) -> None:
    code = process.wait()
    events.put(_Stopped(rank, code, clock()))


def _spawn_all(processes: Sequence[Process], mark: str, spawn: Spawn) -> dict[int, Running]:
    running: dict[int, Running] = {}
    for process in processes:
        # Each print reaches the log when it happens, also before a SIGKILL.
        environ = {**_inherited(process), "PYTHONUNBUFFERED": "1", **process.environ, MARK: mark}
        try:
            running[process.rank] = spawn(process, environ)
        except OSError as error:
            kill_marked(mark)
            for other in running.values():
                other.wait()
            raise TrainwizError(
                say("cannot start rank {rank}: {error}", rank=process.rank, error=error),
                say("check that {program} exists and is executable", program=process.argv[0]),
            ) from None
    return running


def _inherited(process: Process) -> dict[str, str]:
    """Without variables that would set an agent's options, such as an outer torchrun's rendezvous."""
    if not process.agent:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not name.startswith(OPTIONS)}


def _with(standby: StandbyRanks | None) -> Spawn:
    if standby is None:
        return start
    return lambda process, environ: standby.take(process, environ) or start(process, environ)


def _sweep(mark: str, audience: Audience, patience: float) -> None:
    until = time.monotonic() + patience
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        if patience:
            audience.say(say("ending processes that the ranks left behind: {pids}", pids=", ".join(map(str, left))))
        kill_marked(mark)


@contextlib.contextmanager
def _guarded(mark: str) -> Iterator[None]:
    guardian = Guardian(mark)
    try:
        yield
    except BaseException:
        kill_marked(mark)
        raise
    finally:
        guardian.close()


@contextlib.contextmanager
def listening() -> Iterator[Inbox]:
    """Catch the signals that ask for the end, and queue them in the inbox."""
    inbox = Inbox()
    previous = {}
    for signum in _STOPPING:
        # nohup starts us with SIGHUP ignored, and means it.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            previous[signum] = signal.signal(signum, lambda number, _frame: inbox.put(number))
    for number in early_signals.deferred():
        inbox.put(number)
    try:
        yield inbox
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
