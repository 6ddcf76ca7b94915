"""One of several machines fails before the roll-call."""

import socket
import threading
from pathlib import Path

import pytest
from plans import BASE

from trainwiz import plan as plans
from trainwiz.errors import Refused, TrainwizError
from trainwiz.message import say
from trainwiz.network import rollcall
from trainwiz.network.rollcall import Machine
from trainwiz.plan import Plan
from trainwiz.store import secret
from trainwiz.workflows.launch import refusal
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
