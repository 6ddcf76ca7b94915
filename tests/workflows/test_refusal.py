"""One of several machines fails before the roll-call."""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_children import claimed
from patience import patience
from plans import BASE

from trainwiz import plan as plans
from trainwiz.errors import Refused, TrainwizError
from trainwiz.message import say
from trainwiz.network import ports, rollcall
from trainwiz.network.coordination import Coordinator, Participant
from trainwiz.network.rollcall import Machine, Roll
from trainwiz.plan import Plan
from trainwiz.store import secret
from trainwiz.workflows.launch import joint_build, refusal
from trainwiz.workflows.launch.request import Request


def planned() -> Plan:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    values = {"num_machines": 2, "num_processes": 2, "main_process_ip": "127.0.0.1", "main_process_port": port}
    return plans.with_changes(BASE, {f"machine.{name}": value for name, value in values.items()})


def fail(plan: Plan, folder: Path, **options: object) -> None:
    with (
        pytest.raises(Refused, match="no data"),
        refusal.told(Request(**options), plan, folder),  # type: ignore[arg-type]
    ):
        raise Refused(say("no data"), say("bring some"))


def test_the_other_machine_hears_why(tmp_path: Path) -> None:
    """Without a secret that was typed, it reads that of machine 0 in their folder."""
    plan = planned()
    telling = threading.Thread(target=fail, args=(plan, tmp_path), kwargs={"machine_rank": 0})
    telling.start()
    with pytest.raises(TrainwizError, match=r"machine 0 \(.+\) cannot start: no data; bring some"):
        rollcall.attend(
            Machine(rank=1, hostname="other", plan=plan.digest(), machines=2, facts={"code": "other"}),
            address="127.0.0.1",
            port=plan.machine.main_process_port,
            wait=120,
            secret=lambda: secret.read(tmp_path),
        )
    telling.join(60)
    assert not telling.is_alive()
    assert not secret.read(tmp_path)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_neither_ctrl_c_nor_odd_words_stand_before_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(refusal, "_SECONDS", 0.3)
    with pytest.raises(Refused), refusal.told(Request(machine_rank=0), planned(), tmp_path):
        raise Refused(say("no file caf\udce9.jsonl"))
    monkeypatch.setattr(rollcall, "refuse", interrupted)
    fail(planned(), tmp_path, machine_rank=0)


@pytest.mark.parametrize("options", [{"machine_rank": 0, "dry_run": True}, {"machine_rank": 7}, {}])
def test_its_own_error_is_what_ends_it_where_nobody_can_be_told(options: dict[str, object], tmp_path: Path) -> None:
    fail(planned(), tmp_path, **options)


def build_together(port: int, *builds: Callable[[joint_build.Look], None]) -> list[str]:
    """What each of several machines ends with, machine 0 first; empty where all have built."""
    machines = [Machine(rank=n, hostname=f"host-{n}", plan="p", machines=len(builds)) for n in range(len(builds))]
    roll = Roll(machines=len(builds), plan="p", present=tuple(machines))
    links: list[Coordinator | Participant] = [
        Coordinator(machines[0], roll, address="127.0.0.1", port=port, secret="three words"),
        *(Participant(m, address="127.0.0.1", port=port, secret="three words") for m in machines[1:]),
    ]
    ends = [""] * len(builds)

    def take_part(n: int) -> None:
        try:
            with joint_build.together(links[n]) as look:
                builds[n](look)
        except TrainwizError as error:
            ends[n] = str(error)
        joint_build.disconnect(links[n])

    threads = [threading.Thread(target=take_part, args=(n,)) for n in range(len(builds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def at_once(_look: joint_build.Look) -> None: ...


def for_minutes(look: joint_build.Look) -> None:
    until = time.monotonic() + 60 * patience()
    while time.monotonic() < until:
        look()
        time.sleep(0.05)


def in_vain(_look: joint_build.Look) -> None:
    raise Refused(say("DeepSpeed cannot compile its op"), say("install nvcc"))


@pytest.mark.parametrize("unable", [0, 1])
def test_one_that_cannot_build_is_known_at_once_where_others_still_build(unable: int) -> None:
    began = time.monotonic()
    builds = [for_minutes, for_minutes, at_once]
    builds[unable] = in_vain
    own, why = "DeepSpeed cannot compile its op", "DeepSpeed cannot compile its op; install nvcc"
    host = f"host-{unable}" if unable else os.uname().nodename
    told = f"machine {unable} ({host}) cannot start: {why}"
    assert build_together(claimed.port(), *builds) == [own if n == unable else told for n in range(3)]
    assert time.monotonic() - began < 30 * patience()


def test_all_that_have_built_begin_and_the_port_is_free_again() -> None:
    port = claimed.port()
    assert build_together(port, at_once, at_once, at_once) == ["", "", ""]
    assert ports.is_free(port)
