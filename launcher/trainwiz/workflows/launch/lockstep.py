"""Attempts of a run over several machines: machine 0 decides when one begins and what follows, the others follow."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainwiz import recovery
from trainwiz.batch import Batch
from trainwiz.errors import TrainwizError
from trainwiz.message import Message, say
from trainwiz.network import ports
from trainwiz.network.coordination import Coordinator, Participant
from trainwiz.outcome import PREEMPTING, SIGNAL_BASE, STOPPED_CODE, Outcome, shell_code
from trainwiz.process import ranks, signals
from trainwiz.process.ranks import Audience, Inbox
from trainwiz.process.supervision import KILL_SECONDS, TEARDOWN_SECONDS, Elsewhere
from trainwiz.recovery import Attempt, Retry
from trainwiz.store.jsonl import JsonLines
from trainwiz.workflows.launch import build_locks
from trainwiz.workflows.launch.attempts import Attempts, entry, planned_batch
from trainwiz.workflows.launch.formation import Formation, formed, usable
from trainwiz.workflows.launch.metrics import Remembered
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.team import Team

Once = Callable[[Prepared, Inbox], Outcome]

_FIRST_SECONDS = 40.0
"""After the roll-call: how long machines may take to connect again, which then find the port open."""
_EXIT_SECONDS = TEARDOWN_SECONDS + KILL_SECONDS + 6.0
"""After a failure: how long the other machines have to end their ranks and say how."""
_OVER_SECONDS = 10.0
"""At the end: how long the other machines have to write down how their part ended."""
_LEAVING_SECONDS = 10.0
"""How long a machine that was asked to stop waits for machine 0's word on how the whole run ended."""
_POLL_SECONDS = 0.2
_NOTICE_SECONDS = 30.0


def attempts_of(prepared: Prepared) -> Attempts:
    """The attempts of a run, by the part that this machine has in it."""
    if prepared.team is None:
        return Attempts(prepared)
    signals.keep_going()
    return Leading(prepared) if isinstance(prepared.team.link, Coordinator) else Following(prepared)


# docs/decisions/supervision.md: Restarts over several machines are torchrun once per attempt
class Leading(Attempts):
    """Machine 0's side."""

    _last: Formation | None = None
    _growing = False
    _left: frozenset[int] = frozenset()
    """Machines that were asked to stop, and are not waited for."""

    def run(self, once: Once, audience: Audience, update: Callable[[], int]) -> Outcome:
        """Repeat attempts until the run ends or must. `once` runs one; `update` is the last one that was trained."""
        coordinator, began, started = self._coordinator, time.time(), time.monotonic()
        policy = recovery.Policy(
            max_restarts=self.prepared.max_restarts,
            per_hour=self.prepared.request.restarts_per_hour,
            auto_batch=self.prepared.request.auto_batch,
            elastic=self._team.least < self._machines,
        )
        decide = recovery.Recovery(policy, planned_batch(self.prepared))
        outcome = Outcome(exit_code=1)
        try:
            with ranks.listening() as inbox:
                while True:
                    formation = self._gathered(inbox, audience, decide.batch, outcome)
                    if isinstance(formation, Outcome):
                        outcome = formation
                        break
                    if formation.attempt:
                        self._put_logs_aside(formation.attempt)
                        build_locks.remove_stale_locks(self.prepared.command.environ, began, audience.say)
                    outcome = self._attempted(formation, once, inbox, update)
                    if formation.attempt:  # the run took as long as all attempts, with the waiting
                        outcome = dataclasses.replace(outcome, seconds=time.monotonic() - started)
                    follows = self._follows(outcome, decide, update(), audience)
                    if isinstance(follows, Message):
                        audience.say(follows)
                    if follows is None or isinstance(follows, Message):
                        break
                    audience.say(follows.why)
                    if signum := ranks.pause(inbox, follows.delay):
                        outcome = dataclasses.replace(outcome, signal=signum)
                        break
            self._dismiss(outcome)
        finally:
            coordinator.close()
        return outcome

    @property
    def _team(self) -> Team:
        assert self.prepared.team
        return self.prepared.team

    @property
    def _coordinator(self) -> Coordinator:
        assert isinstance(self._team.link, Coordinator)
        return self._team.link

    @property
    def _machines(self) -> int:
        assert self.prepared.place
        return self.prepared.place.machines

    def _usable(self, batch: Batch) -> tuple[tuple[int, ...], Batch] | None:
        assert self.prepared.plan
        return usable(
            self._coordinator.present,
            batch,
            ranks_per_machine=self.prepared.plan.machine.ranks_per_machine,
            least=self._team.least,
        )

    def _gathered(self, inbox: Inbox, audience: Audience, batch: Batch | None, outcome: Outcome) -> Formation | Outcome:
        """The next attempt's machines; where too few are there in time, or a signal came, how the run ends."""
        assert batch
        last = self._last
        wanted = set(last.machines) - self._left if last else {m.rank for m in self._coordinator.expected}
        limit = self.prepared.request.rejoin if last else _FIRST_SECONDS
        signum = self._awaited(wanted, limit, inbox, audience)
        if signum:
            return dataclasses.replace(outcome, signal=signum) if last else _not_begun(self.prepared, signum)
        found = self._usable(batch)
        if found is None:
            return self._too_few(outcome, wanted)
        machines, split = found
        if last and machines != last.machines:
            audience.say(
                say(
                    "continuing with {n} of {all} machines ({ranks}): {real} = {micro} × {accumulation} × {world}",
                    n=len(machines),
                    all=self._machines,
                    ranks=", ".join(map(str, machines)),
                    **{**dataclasses.asdict(split), "real": split.real},
                )
            )
        with ports.claim(0) as port:
            number = port.number
        self._last = Formation(
            attempt=last.attempt + 1 if last else 0,
            machines=machines,
            port=number,
            batch=split,
            resume=last is not None or self.prepared.continues is not None,
        )
        return self._last

    def _awaited(self, wanted: set[int], limit: float, inbox: Inbox, audience: Audience) -> int | None:
        """Wait for these machines; the number of the signal that cut it short."""
        coordinator, start = self._coordinator, time.monotonic()
        told = start - _NOTICE_SECONDS
        while missing := sorted(wanted - coordinator.present.keys()):
            now = time.monotonic()
            if now >= start + limit:
                return None
            if now >= told + _NOTICE_SECONDS:
                told = now
                audience.say(
                    say(
                        "waiting for machine {ranks}: {seconds:.0f} s of at most {limit:g} s",
                        ranks=", ".join(map(str, missing)),
                        seconds=now - start,
                        limit=limit,
                    )
                )
            if signum := ranks.pause(inbox, _POLL_SECONDS):
                return signum
        return None

    def _too_few(self, outcome: Outcome, wanted: set[int]) -> Outcome:
        missing = sorted(wanted - self._coordinator.present.keys())
        lost = {rank: self._how_lost(rank) for rank in missing}
        code = outcome.exit_code if outcome.exit_code not in (0, self.prepared.request.stopped_code) else 1
        return dataclasses.replace(outcome, exit_code=code, stopped=False, lost=lost)

    def _how_lost(self, rank: int) -> str:
        found = self._coordinator.lost.get(rank)
        return f"{found.machine.hostname}: {found.why}" if found else "-"

    def _attempted(self, formation: Formation, once: Once, inbox: Inbox, update: Callable[[], int]) -> Outcome:
        """One attempt on all its machines."""
        coordinator, others = self._coordinator, formation.machines[1:]
        coordinator.reports.clear()
        for rank in coordinator.present:  # one that is back was lost to the attempt before
            coordinator.lost.pop(rank, None)
        for rank in others:
            coordinator.tell(rank, do="start", formation=formation.to_dict())
        self._growing, told, before, lock = False, False, update(), threading.Lock()
        trained = Remembered(JsonLines(self.prepared.run.metrics))

        def look() -> None:
            nonlocal told
            with lock:
                if not told and (event := self._event(formation, lambda: trained.update() > before)):
                    told = not event.orderly  # a machine may be lost while the others save
                    inbox.put(event)

        coordinator.notice = look
        try:
            outcome = once(formed(self.prepared, formation), inbox)
        finally:
            coordinator.notice = lambda: None
            with lock:  # a thread that is still looking puts nothing into the inbox of the next attempt
                told = True
            ranks.kept(inbox)
        return self._merged(formation, outcome)

    # docs/decisions/supervision.md: A world grows by an orderly stop
    def _event(self, formation: Formation, trained: Callable[[], bool]) -> Elsewhere | None:
        """What ends the attempt that goes on, if anything does."""
        coordinator = self._coordinator
        for rank in formation.machines[1:]:
            if rank in coordinator.lost:
                why = say("machine {rank} is lost ({how}); ending this attempt", rank=rank, how=self._how_lost(rank))
                return Elsewhere(why=why)
            if code := self._failed(rank):
                return Elsewhere(
                    why=say("machine {rank} failed with exit code {code}; ending this attempt", rank=rank, code=code)
                )
        better = None if self._growing else self._usable(formation.batch)
        if better and len(better[0]) > len(formation.machines) and trained():
            self._growing = True
            return Elsewhere(
                why=say(
                    "machine {ranks} is available: saving, to continue with {n} machines",
                    ranks=", ".join(map(str, sorted(set(better[0]) - set(formation.machines)))),
                    n=len(better[0]),
                ),
                orderly=True,
            )
        return None

    def _failed(self, rank: int) -> int:
        """The exit code with which a machine's part failed; 0 where it did not."""
        report = self._coordinator.reports.get(rank, {})
        return 0 if report.get("stopped") else int(report.get("exit_code") or 0)

    def _merged(self, formation: Formation, own: Outcome) -> Outcome:
        """The attempt's outcome over all its machines, with the one that failed first."""
        coordinator, others = self._coordinator, formation.machines[1:]
        # One that was asked to stop before it could save did not end in order, and the others wait for it in a
        # collective.
        orderly = all(code in (0, STOPPED_CODE) for code in own.codes.values()) and not any(map(self._failed, others))
        if not orderly:
            for rank in others:
                coordinator.tell(rank, do="end", attempt=formation.attempt)
        limit = _EXIT_SECONDS + (self.prepared.request.grace if orderly else 0.0)
        coordinator.wait(lambda: all(r in coordinator.reports or r in coordinator.lost for r in others), limit)
        lost = {rank: self._how_lost(rank) for rank in others if rank in coordinator.lost}
        for rank in set(others) - coordinator.reports.keys() - lost.keys():
            lost[rank] = f"{coordinator.present[rank].hostname}: {say('its ranks did not end')}"
            coordinator.dismiss(rank)
        reports = {rank: coordinator.reports[rank] for rank in others if rank in coordinator.reports}
        whole = _joined(own, reports, _culprits(self.prepared, own), lost)
        if whole.first_failed is not None:
            assert self.prepared.plan
            at = formation.machines[whole.first_failed // self.prepared.plan.machine.ranks_per_machine]
            host = coordinator.present[at].hostname if at in coordinator.present else self._how_lost(at)
            whole = dataclasses.replace(whole, machine=(at, host))
        return whole

    def _follows(
        self, outcome: Outcome, decide: recovery.Recovery, update: int, audience: Audience
    ) -> Retry | Message | None:
        diagnosis = self._diagnosis(outcome)
        attempt = Attempt(
            outcome=outcome,
            update=update,
            passing=diagnosis.transient if diagnosis else None,
            out_of_memory=diagnosis is not None and diagnosis.name in recovery.OUT_OF_MEMORY,
            lost=bool(outcome.lost),
        )
        follows = self._regrouped(outcome) or decide.after(attempt, time.monotonic())
        self.entries.append(
            {**entry(attempt, decide.batch, follows), "machines": self._last and [*self._last.machines]}
        )
        if isinstance(follows, Retry):
            for words in (diagnosis.how, diagnosis.cause) if diagnosis else ():
                audience.say(words)
            if outcome.machine:
                audience.say(_where(outcome))
        return follows

    def _regrouped(self, outcome: Outcome) -> Retry | None:
        """What follows an orderly stop that only was to change the machines."""
        if not outcome.stopped or outcome.signal is not None:
            return None
        leaving = [rank for rank, report in self._coordinator.reports.items() if report.get("leaving")]
        if leaving and len(self._coordinator.present.keys() - set(leaving)) >= self._team.least:
            self._left = frozenset(leaving)
            for rank in leaving:
                self._coordinator.dismiss(rank)
            ranks_ = ", ".join(map(str, leaving))
            return Retry(why=say("machine {ranks} was asked to stop; the others continue", ranks=ranks_))
        if self._growing and not leaving:
            return Retry(why=say("saved; continuing with all machines that are available"))
        return None

    def _dismiss(self, outcome: Outcome) -> None:
        """Tell the others that the run is over, and wait until they have written down how their part ended."""
        coordinator = self._coordinator
        for rank in coordinator.present:
            coordinator.tell(
                rank,
                do="over",
                exit_code=outcome.exit_code,
                first_failed=outcome.first_failed,
                machine=outcome.machine,
                lost={str(k): v for k, v in outcome.lost.items()},
                stopped=outcome.stopped,
            )
        coordinator.wait(lambda: len(coordinator.present) == 1, _OVER_SECONDS)


class Following(Attempts):
    """The side of any other machine."""

    def run(self, once: Once, audience: Audience, update: Callable[[], int]) -> Outcome:
        """Do what machine 0 says. `once` runs one attempt; `update` is the last one that was trained."""
        assert self.prepared.team
        participant = self.prepared.team.link
        assert isinstance(participant, Participant)
        outcome = Outcome(exit_code=1)
        with ranks.listening() as inbox:
            while True:
                outcome, order = self._order(outcome, participant, inbox)
                if order is None:
                    return outcome
                if isinstance(order, Message):
                    if outcome.interrupted:
                        return outcome
                    if participant.dropped and self._is_back(participant, audience):
                        continue
                    if participant.silent and self._is_reached(participant, audience, inbox):
                        continue
                    return self._without_machine_0(outcome, order, audience)
                if order.get("do") == "over":
                    return _over(outcome, order)
                if order.get("do") == "start":
                    if outcome.interrupted:  # it was asked to stop: machine 0 sees it leave
                        return outcome
                    outcome = self._attempted(Formation.told(order["formation"]), participant, once, inbox, update)

    # docs/decisions/supervision.md: A machine that was frozen comes back by itself
    def _is_back(self, participant: Participant, audience: Audience) -> bool:
        """Whether machine 0, which went on without this machine, takes it back."""
        audience.say(say("machine 0 continued without this machine, which did not respond; connecting again"))
        try:
            participant.again()
        except TrainwizError:
            return False
        return True

    def _is_reached(self, participant: Participant, audience: Audience, inbox: Inbox) -> bool:
        """Whether machine 0 answers again in time, as after a network outage."""
        limit, start = self.prepared.request.rejoin, time.monotonic()
        audience.say(say("machine 0 does not respond: trying to reach it again, for at most {limit:g} s", limit=limit))
        while time.monotonic() < start + limit and not ranks.pause(inbox, _POLL_SECONDS):
            with contextlib.suppress(TrainwizError):
                participant.again()
                return True
        return False

    def _without_machine_0(self, outcome: Outcome, how: Message, audience: Audience) -> Outcome:
        """The outcome if machine 0 is lost: that of the run if it has ended, as far as known here."""
        over = Outcome.of_record(self.prepared.run.read("outcome"))
        if over is None:
            audience.say(say("machine 0 is lost ({how})", how=how))
            return dataclasses.replace(outcome, exit_code=1, first_failed=None, lost={0: str(how)})
        audience.say(say("the run has meanwhile ended on machine 0"))
        return dataclasses.replace(
            outcome, exit_code=over.exit_code, first_failed=over.first_failed, lost=over.lost, stopped=over.stopped
        )

    def _order(
        self, outcome: Outcome, participant: Participant, inbox: Inbox
    ) -> tuple[Outcome, dict[str, Any] | Message | None]:
        """What to do next; a sentence where machine 0 is lost, None where this machine is to end and was not told."""
        until = time.monotonic() + _LEAVING_SECONDS
        while not outcome.interrupted or time.monotonic() < until:
            if (order := participant.next(_POLL_SECONDS)) is not None:
                return outcome, order
            if signum := ranks.pause(inbox, 0.0):
                until = time.monotonic() + _LEAVING_SECONDS
                outcome = dataclasses.replace(outcome, signal=signum)
        return outcome, None

    def _attempted(
        self,
        formation: Formation,
        participant: Participant,
        once: Once,
        inbox: Inbox,
        update: Callable[[], int],
    ) -> Outcome:
        told, lock = False, threading.Lock()

        def look() -> None:
            nonlocal told
            with lock:
                if not told and (why := participant.over(formation.attempt)):
                    told = True
                    inbox.put(Elsewhere(why=why))

        participant.notice = look
        look()
        try:
            outcome = once(formed(self.prepared, formation), inbox)
        finally:
            participant.notice = lambda: None
            with lock:
                told = True
            ranks.kept(inbox)
        found = _culprits(self.prepared, outcome)
        participant.report(
            attempt=formation.attempt,
            exit_code=outcome.exit_code,
            codes={str(rank): code for rank, code in outcome.codes.items()},
            first_failed=outcome.first_failed,
            culprits=found,
            stopped=outcome.stopped,
            hung=outcome.hung,
            leaving=outcome.signal is not None,
        )
        attempt = Attempt(outcome=outcome, update=update())
        self.entries.append({**entry(attempt, formation.batch, None), "machines": [*formation.machines]})
        return outcome


def _not_begun(prepared: Prepared, signum: int) -> Outcome:
    """The outcome where a signal came before any rank was started."""
    stopped = signum in PREEMPTING
    code = prepared.request.stopped_code if stopped else SIGNAL_BASE + signum
    return Outcome(exit_code=code, signal=signum, stopped=stopped)


def _culprits(prepared: Prepared, outcome: Outcome) -> Sequence[int]:
    """The ranks that failed by themselves, by what they wrote."""
    from trainwiz.workflows.launch import failure  # it brings all signatures: not before a rank has ended

    found = failure.culprits(prepared.run, outcome, outcome.codes)
    if outcome.first_failed is not None:
        return found
    # Nothing had failed here: torchrun that has no ranks yet is ended by SIGKILL.
    return [rank for rank in found if outcome.codes[rank] != -signal.SIGKILL]


def _joined(own: Outcome, reports: dict[int, dict[str, Any]], found: Sequence[int], lost: dict[int, str]) -> Outcome:
    """One outcome of all machines; `found` are the ranks of this one that failed by themselves."""
    codes, blamed, named = dict(own.codes), [*found], [own.first_failed]
    for report in reports.values():
        codes |= {int(rank): code for rank, code in report.get("codes", {}).items()}
        blamed += report.get("culprits", [])
        named.append(report.get("first_failed"))
    whole = dataclasses.replace(own, codes=codes, lost=lost)
    ended = [report.get("exit_code") for report in reports.values() if not report.get("stopped")]
    # Ranks that were asked to end because another machine failed may do so in order.
    stopped = own.stopped and not lost and (own.interrupted or not any(ended))
    if own.hung or stopped:
        return whole
    if own.exit_code == 0 and not any(ended) and not lost:
        return whole
    # A death by signal before an exception: a rank that only lost the others ends with one, too.
    blamed.sort(key=lambda rank: (codes.get(rank) or 0) > 0)
    first = next(iter(blamed), None if lost else next((rank for rank in named if rank is not None), None))
    code = shell_code(codes.get(first) or 0) if first is not None else 0
    # Ranks that were ended because a machine was lost have no code of their own.
    others = () if lost else (own.exit_code, *ended)
    code = code or next((c for c in others if c not in (0, None, STOPPED_CODE)), 1)
    return dataclasses.replace(whole, first_failed=first, exit_code=code, stopped=False)


def _over(outcome: Outcome, order: dict[str, Any]) -> Outcome:
    """This machine's outcome, with what machine 0 says of the whole run."""
    machine, lost = order.get("machine"), order.get("lost") or {}
    return dataclasses.replace(
        outcome,
        exit_code=int(order.get("exit_code") or 0),
        first_failed=order.get("first_failed"),
        machine=(machine[0], machine[1]) if machine else None,
        lost={int(rank): how for rank, how in lost.items()},
        stopped=bool(order.get("stopped")),
    )


def _where(outcome: Outcome) -> Message:
    assert outcome.machine
    machine, host = outcome.machine
    return say("rank {rank} ran on machine {machine} ({host})", rank=outcome.first_failed, machine=machine, host=host)
