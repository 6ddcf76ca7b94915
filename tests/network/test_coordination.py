"""Launchers that stay connected over loopback, and machine 0's decisions, with attempts that are played here."""

import dataclasses
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_children import claimed
from patience import patience
from plans import BASE

from trainwiz import plan as plans
from trainwiz.batch import Batch
from trainwiz.cluster import Place
from trainwiz.command import Command
from trainwiz.errors import Refused, TrainwizError
from trainwiz.message import Message, say
from trainwiz.network import coordination, rollcall
from trainwiz.network.coordination import Coordinator, Participant
from trainwiz.outcome import Outcome
from trainwiz.process.ranks import Inbox
from trainwiz.process.supervision import Elsewhere, Send, Supervisor
from trainwiz.recovery import Attempt, Policy, Recovery, Retry
from trainwiz.store import runs
from trainwiz.store.runs import Run
from trainwiz.workflows.launch import conclusion, formation, lockstep
from trainwiz.workflows.launch.formation import Formation, usable
from trainwiz.workflows.launch.lockstep import Leading
from trainwiz.workflows.launch.prepared import Prepared
from trainwiz.workflows.launch.request import Request
from trainwiz.workflows.launch.team import Team

SECRET = "these three words"
PLAN = plans.with_changes(
    BASE,
    {
        "machine.num_machines": 3,
        "machine.num_processes": 3,
        "machine.main_process_ip": "127.0.0.1",
        "batch.real_batch_size": 12,
        "batch.per_device_batch_size": 2,
        "batch.gradient_accumulation_steps": 2,
    },
)


def machine(rank: int, plan: str = "p") -> rollcall.Machine:
    return rollcall.Machine(rank=rank, hostname=f"host-{rank}", plan=plan, machines=3)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20 * patience()
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


class Audience:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: Message) -> None:
        self.said.append(str(message))

    def output(self, data: bytes) -> None: ...
    def tick(self) -> None: ...


class World:
    """Machine 0 with its connections, and the others as far as a test starts them."""

    def __init__(self, folder: Path, least: int = 3, **request: Any) -> None:
        self.port = claimed.port()
        present = tuple(machine(rank) for rank in range(3))
        roll = rollcall.Roll(machines=3, plan="p", present=present, agreed={"run": "r"})
        self.coordinator = Coordinator(machine(0), roll, address="127.0.0.1", port=self.port, secret=SECRET)
        (folder / "runs").mkdir()
        run = runs.create(folder)
        self.arguments: list[tuple[str, ...]] = []

        def command(_place: Place, _options: Any, more: Any) -> Command:
            self.arguments.append(tuple(more))
            return Command(argv=("python",), environ={}, ranks=(), cwd=str(folder))

        place = Place(rank=0, machines=3, address="127.0.0.1", port=self.port)
        self.leading = Leading(
            Prepared(
                request=Request(rejoin=0.3, **request),
                machine=None,  # type: ignore[arg-type]
                command=command(place, (), ()),
                run=run,
                ranks=range(1),
                plan=PLAN,
                place=place,
                team=Team(link=self.coordinator, command=command, least=least),
            )
        )
        self.audience = Audience()
        self.others: dict[int, Participant] = {}

    def join(self, *ranks: int) -> None:
        for rank in ranks:
            self.others[rank] = Participant(machine(rank), address="127.0.0.1", port=self.port, secret=SECRET)
        until(lambda: set(self.others) <= self.coordinator.present.keys())

    def run(self, *attempts: Callable[[Prepared, Inbox], Outcome], update: int = 5) -> Outcome:
        played = iter(attempts)
        return self.leading.run(lambda prepared, inbox: next(played)(prepared, inbox), self.audience, lambda: update)

    def order(self, rank: int) -> dict[str, Any]:
        found = self.others[rank].next(10)
        assert isinstance(found, dict), found
        return found


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    made: list[World] = []
    monkeypatch.setattr(lockstep, "_OVER_SECONDS", 0.2)

    def build(**options: Any) -> World:
        made.append(World(tmp_path, **options))
        return made[-1]

    yield build
    for world in made:
        for other in world.others.values():
            other.close()
        world.coordinator.close()


DONE = Outcome(exit_code=0, codes={0: 0})
LOST_A_PEER = Outcome(exit_code=1, codes={0: -15})


def report(world: World, rank: int, code: int = 0, **more: Any) -> None:
    values = {
        "attempt": 0,
        "exit_code": abs(code),
        "codes": {str(rank): code},
        "first_failed": rank if code else None,
        **more,
    }
    world.others[rank].report(**{"culprits": [rank] if code else [], **values})


def all_done(world: World) -> Callable[[Prepared, Inbox], Outcome]:
    def attempt(_prepared: Prepared, _inbox: Inbox) -> Outcome:
        for rank in world.others:
            if rank in world.coordinator.present:
                report(world, rank)
        return DONE

    return attempt


def test_the_rank_of_another_machine_is_blamed_and_all_begin_again(make: Callable[..., World]) -> None:
    world = make(max_restarts=1)
    world.join(1, 2)
    seen: list[Any] = []

    def failing(_prepared: Prepared, inbox: Inbox) -> Outcome:
        report(world, 2, -9)
        seen.append(inbox.get(timeout=90 * patience()))
        threading.Timer(0.2, lambda: report(world, 1, 1, culprits=[])).start()
        return LOST_A_PEER

    outcome = world.run(failing, all_done(world))
    assert (outcome.exit_code, outcome.lost) == (0, {})
    assert isinstance(seen[0], Elsewhere)
    assert "machine 2 failed with exit code 9" in str(seen[0].why)
    [first, last] = world.leading.entries
    assert (first["exit_code"], first["first_failed_rank"], last["exit_code"]) == (137, 2, 0)
    assert "rank 2 ran on machine 2 (host-2)" in world.audience.said
    orders = [world.order(1) for _ in range(3)]
    assert [order["do"] for order in orders] == ["start", "start", "over"]
    assert [Formation.told(order["formation"]).resume for order in orders[:2]] == [False, True]
    assert orders[0]["formation"]["port"] != world.port
    assert world.others[1].over(0) is not None


def test_ranks_that_end_in_order_do_not_hide_the_failure_of_another_machine(make: Callable[..., World]) -> None:
    world = make()
    world.join(1, 2)

    def ended() -> None:
        until(lambda: world.others[1].over(0) is not None)
        report(world, 1, 75, stopped=True, culprits=[])

    def failing(_prepared: Prepared, inbox: Inbox) -> Outcome:
        report(world, 2, 3)
        assert isinstance(inbox.get(timeout=90 * patience()), Elsewhere)
        threading.Thread(target=ended).start()
        return Outcome(exit_code=75, codes={0: 75}, stopped=True)

    outcome = world.run(failing)
    assert (outcome.exit_code, outcome.first_failed, outcome.stopped, outcome.lost) == (3, 2, False, {})


def test_a_machine_that_stays_away_ends_the_run_and_is_named(make: Callable[..., World]) -> None:
    world = make(max_restarts=3)
    world.join(1, 2)

    def losing(_prepared: Prepared, inbox: Inbox) -> Outcome:
        world.others.pop(1).close()
        event = inbox.get(timeout=90 * patience())
        assert isinstance(event, Elsewhere)
        assert not event.orderly
        report(world, 2, 1, culprits=[])
        return LOST_A_PEER

    outcome = world.run(losing)
    assert (outcome.exit_code, outcome.first_failed) == (1, None)
    assert outcome.lost == {1: "host-1: its launcher ended"}
    over = [world.order(2), world.order(2)][-1]
    assert (over["do"], over["lost"]) == ("over", {"1": "host-1: its launcher ended"})


def test_it_goes_on_with_as_many_as_the_batch_divides_over_and_grows_again(make: Callable[..., World]) -> None:
    world = make(least=1)
    world.join(1, 2)

    def losing(_prepared: Prepared, inbox: Inbox) -> Outcome:
        world.others.pop(1).close()
        inbox.get(timeout=90 * patience())
        report(world, 2, 1, culprits=[])
        return LOST_A_PEER

    def smaller(prepared: Prepared, inbox: Inbox) -> Outcome:
        assert prepared.place
        assert (prepared.place.machines, prepared.attempt) == (2, 1)
        world.join(1)
        prepared.run.metrics.write_text('{"update": 6, "loss": 1.0}\n')
        event = inbox.get(timeout=90 * patience())
        assert isinstance(event, Elsewhere)
        assert event.orderly
        report(world, 2, 75, stopped=True)
        return Outcome(exit_code=75, codes={0: 75}, stopped=True)

    assert world.run(losing, smaller, all_done(world)).exit_code == 0
    assert [entry["machines"] for entry in world.leading.entries] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    batch = ("--num_processes", "2", "--per_device_batch_size", "2", "--gradient_accumulation_steps", "3")
    assert world.arguments[1:] == [(), ("--resume", "auto", *batch), ("--resume", "auto")]
    assert "continuing with 2 of 3 machines (0, 2): 12 = 2 × 3 × 2" in world.audience.said


def test_a_machine_that_is_asked_to_stop_leaves_the_others_training(make: Callable[..., World]) -> None:
    world = make(least=2)
    world.join(1, 2)

    def stopping(_prepared: Prepared, _inbox: Inbox) -> Outcome:
        report(world, 1, 75, stopped=True, leaving=True)
        report(world, 2, 75, stopped=True)
        return Outcome(exit_code=75, codes={0: 75}, stopped=True)

    assert world.run(stopping, all_done(world)).exit_code == 0
    assert [entry["machines"] for entry in world.leading.entries] == [[0, 1, 2], [0, 2]]


def test_those_that_are_left_must_be_enough(make: Callable[..., World]) -> None:
    world = make(least=2)
    world.join(1, 2)

    def stopping(_prepared: Prepared, _inbox: Inbox) -> Outcome:
        for rank in (1, 2):
            report(world, rank, 75, stopped=True, leaving=True)
        return Outcome(exit_code=75, codes={0: 75}, stopped=True)

    outcome = world.run(stopping)
    assert (outcome.exit_code, outcome.stopped, outcome.lost) == (75, True, {}), "all saved: it can go on later"


def test_a_machine_that_is_back_before_the_attempt_is_over_was_lost_to_it(make: Callable[..., World]) -> None:
    world = make(least=1)
    world.join(1, 2)

    def losing(_prepared: Prepared, inbox: Inbox) -> Outcome:
        world.others.pop(1).close()
        inbox.get(timeout=90 * patience())
        report(world, 2, 1, culprits=[])
        world.join(1)
        return LOST_A_PEER

    began = time.monotonic()
    assert world.run(losing, all_done(world)).exit_code == 0
    assert time.monotonic() - began < 10 * patience(), "nobody waits for its report"
    assert [entry["machines"] for entry in world.leading.entries] == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(("signum", "code", "stopped"), [(15, 75, True), (2, 130, False)])
def test_a_signal_before_the_first_attempt_is_no_failure(
    signum: int, code: int, stopped: bool, make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    world.join(1)  # the other one is still to come
    monkeypatch.setattr(lockstep.ranks, "pause", lambda *_: signum)
    outcome = world.run()
    assert (outcome.exit_code, outcome.stopped, outcome.signal) == (code, stopped, signum)


def test_a_machine_that_was_asked_to_stop_begins_no_other_attempt(make: Callable[..., World]) -> None:
    world = make(least=2)
    world.join(1)
    link = world.others[1]
    alone = dataclasses.replace(
        world.leading.prepared, team=dataclasses.replace(world.leading.prepared.team, link=link)
    )
    for _ in range(2):
        world.coordinator.tell(1, do="start", formation=START.to_dict())
    begun: list[int] = []

    def once(prepared: Prepared, _inbox: Inbox) -> Outcome:
        begun.append(prepared.attempt)
        return Outcome(exit_code=75, codes={1: 75}, stopped=True, signal=15)

    outcome = lockstep.Following(alone).run(once, world.audience, lambda: 3)
    assert (len(begun), outcome.exit_code, outcome.signal) == (1, 75, 15)
    assert not world.audience.said


@pytest.mark.parametrize(
    "said",
    [
        {"ready": [1]},
        {"exit_code": 1},
        {"attempt": 0, "exit_code": "1"},
        {"attempt": 0, "exit_code": 1, "codes": {"x": 1}},
        {"attempt": 0, "exit_code": 1, "culprits": ["a"]},
        {"attempt": 0, "exit_code": 1, "first_failed": {}},
        {"attempt": 0, "exit_code": 1, "more": 1},
    ],
    ids=str,
)
def test_a_report_of_other_types_is_a_lost_machine(make: Callable[..., World], said: dict[str, Any]) -> None:
    world = make()
    world.join(1)
    world.others[1].report(**said)
    until(lambda: 1 in world.coordinator.lost)
    assert "cannot be understood" in str(world.coordinator.lost[1].why)
    assert not world.coordinator.reports


START = Formation(attempt=0, machines=(0, 1), port=1, batch=Batch(micro=2, accumulation=3, world=2), resume=False)
OVER = {"do": "over", "exit_code": 0, "first_failed": None, "machine": None, "lost": {}, "stopped": False}


@pytest.mark.parametrize(
    "said",
    [
        {"do": "run", "argv": ["sh"]},
        {"do": "end", "attempt": None},
        {"do": "start", "formation": {**START.to_dict(), "port": "1"}},
        {"do": "start", "formation": {**START.to_dict(), "machines": [0, 2]}},
        {"do": "start", "formation": {**START.to_dict(), "batch": {"micro": 0}}},
        {**OVER, "machine": [1]},
        {**OVER, "lost": {"a": "b"}},
    ],
    ids=str,
)
def test_an_order_of_other_types_is_a_lost_machine_0(make: Callable[..., World], said: dict[str, Any]) -> None:
    world = make()
    world.join(1)
    world.coordinator.tell(1, **said)
    why = world.others[1].next(20)
    assert "cannot be understood" in str(why)


def test_silence_is_a_lost_machine_and_strangers_are_not_kept(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "LOST_SECONDS", 0.5)
    monkeypatch.setattr(coordination, "BEAT_SECONDS", 60.0)  # nobody says anything: each side takes the other for lost
    monkeypatch.setattr(coordination, "_CONNECT_SECONDS", 0.5)
    world = make()
    world.join(1)
    until(lambda: 1 in world.coordinator.lost)
    seen = f"{world.coordinator.lost[1].why} {world.others[1].next(10)}"  # the other hears of it that is the later one
    assert "nothing was received from it for 0.5 s" in seen
    with pytest.raises(TrainwizError, match="no longer responds"):
        Participant(machine(2), address="127.0.0.1", port=world.port, secret="another secret")
    other = Participant(machine(2, plan="q"), address="127.0.0.1", port=world.port, secret=SECRET)
    assert isinstance(other.next(10), Message), "machine 0 hangs up on another plan"
    assert 2 not in world.coordinator.present


def test_a_machine_that_was_silent_hears_that_and_comes_back(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "LOST_SECONDS", 2.0)
    monkeypatch.setattr(coordination, "BEAT_SECONDS", 0.1)
    world = make()
    world.join(1)
    frozen = world.others[1]
    monkeypatch.setattr(frozen._line, "say", lambda **_: True)
    until(lambda: 1 in world.coordinator.lost)
    assert re.match(r"nothing was received from it for 2 s, since \d\d:\d\d:\d\d$", str(world.coordinator.lost[1].why))
    assert 1 not in world.coordinator.present
    assert "it received nothing from this machine for 2 s" in str(frozen.next(10))
    assert frozen.over(0) is not None
    monkeypatch.setattr(coordination, "LOST_SECONDS", 60.0)
    assert frozen.dropped
    frozen.again()
    until(lambda: 1 in world.coordinator.present)
    assert (frozen.dropped, frozen.over(0)) == (False, None)
    world.coordinator.tell(1, **OVER)
    assert world.order(1)["do"] == "over"


def test_the_end_of_the_old_connection_is_not_that_of_the_new_one(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be noticed while the machine connects again."""
    world = make()
    world.join(1)
    frozen = world.others[1]
    old, reached = frozen._connection, frozen._reached

    def reached_late(seconds: float) -> socket.socket:
        assert old is not None
        frozen._hear(old, None, say("its launcher ended"))
        return reached(seconds)

    monkeypatch.setattr(frozen, "_reached", reached_late)
    frozen.again()
    until(lambda: 1 in world.coordinator.present)
    assert (frozen.dropped, frozen.over(0)) == (False, None)


def test_a_launcher_that_notices_first_takes_the_place_of_its_own_connection(make: Callable[..., World]) -> None:
    world = make()
    world.join(1)
    first = world.others[1]
    until(lambda: 1 in world.coordinator.present)
    another = Participant(machine(1), address="127.0.0.1", port=world.port, secret=SECRET)
    assert isinstance(another.next(10), Message), "another launcher of that rank is not wanted"
    assert not world.coordinator.lost
    first.again()
    assert world.coordinator.wait(lambda: 1 in world.coordinator.lost, 10)
    until(lambda: 1 in world.coordinator.present)
    world.coordinator.tell(1, **OVER)
    assert world.order(1)["do"] == "over"


def test_torchrun_that_was_ended_before_it_had_ranks_is_not_to_blame(tmp_path: Path) -> None:
    prepared: Any = SimpleNamespace(run=Run(tmp_path))
    ended = Outcome(exit_code=137, codes={0: -9})
    assert lockstep._culprits(prepared, ended) == []
    assert [*lockstep._culprits(prepared, dataclasses.replace(ended, first_failed=0))] == [0]


def test_as_many_machines_as_the_real_batch_divides_over() -> None:
    batch = Batch(micro=4, accumulation=1, world=4)
    assert batch.over(2) == Batch(micro=4, accumulation=2, world=2)
    assert batch.over(8) == Batch(micro=2, accumulation=1, world=8)
    assert batch.over(3) is None
    assert usable([0, 1, 3], batch, ranks_per_machine=1, least=1) == ((0, 1), Batch(micro=4, accumulation=2, world=2))
    assert usable([0, 1, 3], batch, ranks_per_machine=1, least=3) is None


def test_worlds_that_cannot_change_are_refused() -> None:
    with pytest.raises(Refused, match="cannot be divided among 5 ranks"):
        formation.least(
            Request(nnodes="1:2"), plans.with_changes(PLAN, {"machine.num_machines": 2, "machine.num_processes": 10})
        )
    two = {"machine.num_machines": 2, "machine.num_processes": 2}
    zero = {"strategy.kind": "deepspeed", "strategy.zero_stage": 2, "optimizer.name": "sgd"}
    with pytest.raises(Refused, match="only with the number of ranks that saved it"):
        formation.least(Request(nnodes="1:2"), plans.with_changes(PLAN, {**two, **zero}))
    assert formation.least(Request(nnodes="1:2"), plans.with_changes(PLAN, two)) == 1
    assert formation.least(Request(), plans.with_changes(PLAN, two)) == 2


def test_a_lost_machine_is_no_restart_of_an_elastic_run() -> None:
    lost = Attempt(outcome=Outcome(exit_code=1, codes={0: 1}), update=3, lost=True)
    assert Recovery(Policy()).after(lost, 0.0) is None
    free = Recovery(Policy(elastic=True, per_hour=1))
    follows = free.after(lost, 0.0)
    assert isinstance(follows, Retry)
    assert (free.restarts, follows.delay) == (0, 0.0)
    assert isinstance(free.after(lost, 1.0), Message), "the hour's limit holds"


def test_the_end_elsewhere_is_no_failure_here() -> None:
    world = Supervisor([0], stopped_code=75)
    [why, send] = world.elsewhere(Elsewhere(why=say("it is over")), 0.0)
    assert isinstance(why, Message)
    assert send == Send(15, (0,))
    assert world.elsewhere(Elsewhere(why=say("again")), 0.1) == []
    assert Send(9, (0,)) in world.due(4.0)
    world.stopped(0, -9, 4.1)
    assert world.outcome(5.0).first_failed is None
    growing = Supervisor([0], stopped_code=75)
    growing.elsewhere(Elsewhere(why=say("a machine is back"), orderly=True), 0.0)
    assert growing.due(3600.0) == [], "nobody takes a machine away: saving may take its time"
    assert Send(15, (0,)) in growing.elsewhere(Elsewhere(why=say("it is lost again")), 3601.0)
    assert Send(9, (0,)) in growing.due(3605.0)
    assert lockstep._joined(world.outcome(5.0), {}, (), {1: "gone"}).lost == {1: "gone"}


def test_a_torchrun_that_was_killed_is_not_rank_0_of_machine_0(make: Callable[..., World]) -> None:
    prepared = dataclasses.replace(make().leading.prepared, ranks=range(2, 4))
    found = conclusion._as_ranks(prepared, Outcome(exit_code=137, codes={0: -9}, first_failed=0, killed=(0,)))
    assert (found.codes, found.first_failed, found.killed) == ({2: -9, 3: -9}, 2, (2, 3))
