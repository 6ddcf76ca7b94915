"""Machines that call the roll over loopback, each a thread here."""

import contextlib
import json
import os
import random
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_children import claimed
from patience import patience

from trainwiz.cluster import Place
from trainwiz.errors import TrainwizError
from trainwiz.machine import Machine as Found
from trainwiz.network import messages, ports, rollcall
from trainwiz.network.listener import Listener
from trainwiz.network.rollcall import Machine, Roll
from trainwiz.probe import fingerprint
from trainwiz.store import secret
from trainwiz.workflows.launch import machines

SECRET = "these three words"


def machine(rank: int, host: str = "", plan: str = "p" * 64, machines: int = 2, **facts: str) -> Machine:
    return Machine(rank=rank, hostname=host or f"host-{rank}", plan=plan, machines=machines, facts=facts)


def together(
    port: int, *machines: Machine, wait: float = 5, secrets: Mapping[int, str] | None = None
) -> list[Roll | TrainwizError]:
    """What each machine got to hear; `secrets` are those of machines that know another one."""
    results: list[Roll | TrainwizError | None] = [None] * len(machines)

    def take_part(i: int, me: Machine) -> None:
        secret, there = (secrets or {}).get(me.rank, SECRET), {"address": "127.0.0.1", "port": port, "wait": wait}
        call: Callable[[], Roll] = (
            (lambda: rollcall.host(me, **there, secret=secret, agreed={"run": "r"}))  # type: ignore[arg-type]
            if me.rank == 0
            else (lambda: rollcall.attend(me, **there, secret=lambda: secret))  # type: ignore[arg-type]
        )
        try:
            results[i] = call()
        except TrainwizError as error:
            results[i] = error

    threads = [threading.Thread(target=take_part, args=pair) for pair in enumerate(machines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [r for r in results if r is not None]


@pytest.mark.parametrize("unable", [0, 1])
def test_a_machine_that_cannot_start_tells_the_others(unable: int, port: int) -> None:
    """None of them waits for the end of its time."""
    there: dict[str, Any] = {"address": "127.0.0.1", "port": port}
    me = machine(unable, machines=3).model_copy(update={"problem": "no GPU", "plan": "-"})
    telling = threading.Thread(
        target=rollcall.refuse, args=(me,), kwargs={**there, "wait": 60, "secret": lambda: SECRET}
    )
    telling.start()
    heard = together(port, *(machine(r, machines=3) for r in range(3) if r != unable), wait=120)
    telling.join(30)
    assert not telling.is_alive()
    assert [str(error) for error in heard] == [f"machine {unable} (host-{unable}) cannot start: no GPU"] * 2


def test_where_fewer_are_enough_one_that_cannot_start_is_only_missing(port: int) -> None:
    there: dict[str, Any] = {"address": "127.0.0.1", "port": port}
    me = machine(1).model_copy(update={"problem": "no GPU"})
    telling = threading.Thread(
        target=rollcall.refuse, args=(me,), kwargs={**there, "wait": 5, "secret": lambda: SECRET}
    )
    telling.start()
    roll = rollcall.host(machine(0), **there, wait=2, secret=SECRET, agreed={}, least=1)
    telling.join(30)
    assert (roll.missing, roll.unable) == ((1,), ())


@pytest.fixture
def port() -> int:
    return claimed.port()


def test_all_there_is_quick_and_agrees(port: int) -> None:
    started = time.monotonic()
    heard = together(port, machine(0, machines=3), machine(1, machines=3), machine(2, machines=3), wait=60)
    assert time.monotonic() - started < 25 * patience()  # nobody waits for the time to be over
    for roll in heard:
        assert isinstance(roll, Roll)
        assert roll.agreed == {"run": "r"}
        assert sorted(m.hostname for m in roll.present) == ["host-0", "host-1", "host-2"]
    # torchrun binds the same port right after.
    assert ports.is_free(port)


def test_who_does_not_see_machine_0s_folder_says_so(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Roll] = []
    there: dict[str, Any] = {"address": "127.0.0.1", "port": port, "wait": 20}
    guest = threading.Thread(
        target=lambda: heard.append(rollcall.attend(machine(1), **there, secret=lambda: SECRET, sees=lambda: False))
    )
    guest.start()
    heard.append(rollcall.host(machine(0), **there, secret=SECRET, agreed={}))
    guest.join(30)
    assert [roll.apart for roll in heard] == [(1,), (1,)]
    with pytest.raises(TrainwizError, match="machine 1 does not see the folder of machine 0"):
        machines._look_at_folders(heard[0], must_share=True)
    machines._look_at_folders(heard[0], must_share=False)
    assert "checkpoints exist only on machine 0" in capfd.readouterr().err


def test_the_interface_is_the_one_that_others_come_by() -> None:
    """Debian lets a machine's own name stand for 127.0.1.1."""
    assert ports.outside(("127.0.1.1", "::ffff:127.0.0.1", "10.0.0.2")) == "10.0.0.2"
    assert ports.outside(("127.0.0.1",)) is None


def test_gloo_and_nccl_take_that_interface_unless_somebody_named_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks agree over gloo also where they train over NCCL, and gloo takes the address of the host's name."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    asked: list[str] = []
    monkeypatch.setattr(ports, "interface_towards", lambda address, _: asked.append(address) or "ib0")
    roll = Roll(machines=2, plan="p", present=(), peers=("127.0.0.1", "10.0.0.2"))
    place = Place(rank=0, machines=2, address="10.0.0.1", port=29500)
    assert machines._interfaces(roll, place) == dict.fromkeys(names, "ib0")
    assert asked == ["10.0.0.2"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert machines._interfaces(roll, place) == {"NCCL_SOCKET_IFNAME": "ib0"}


def test_who_is_missing_is_named_on_every_machine(port: int) -> None:
    heard = together(port, machine(0, machines=4), machine(2, machines=4), wait=2)
    assert len(heard) == 2
    for error in heard:
        assert "missing after 2 s: machine rank 1, 3" in str(error)
        assert "2 (host-2)" in str(error)


def test_who_is_there_twice_is_named_before_the_time_is_over(port: int) -> None:
    started = time.monotonic()
    heard = together(port, machine(0, machines=3), machine(1, "a", machines=3), machine(1, "b", machines=3), wait=60)
    assert time.monotonic() - started < 25 * patience()
    assert len(heard) == 3
    for error in heard:
        assert "machine rank 1 is used 2 times: " in str(error)


def test_another_plan_is_named(port: int) -> None:
    heard = together(port, machine(0), machine(1, plan="q" * 64), wait=20)
    assert len(heard) == 2
    words = "machine 1 (host-1) has a different plan: qqqqqqqqqqqq; machine 0 has pppppppppppp"
    assert all(words in str(e) for e in heard)
    assert all(isinstance(e, TrainwizError) and "same plan on every machine" in str(e.remedy) for e in heard)


def test_a_rank_beyond_the_plan_is_named(port: int) -> None:
    heard = together(port, machine(0), machine(5), wait=20)
    assert all("host-5 reports machine rank 5, but the plan has machines 0 to 1" in str(e) for e in heard)


def test_nobody_answers(port: int) -> None:
    (error,) = together(port, machine(1), wait=0.5)
    assert f"machine 0 did not answer at 127.0.0.1:{port} within 0.5 s" in str(error)


def test_a_taken_port_is_said_or_waited_for(port: int) -> None:
    with socket.create_server(("", port)) as taken:
        (error,) = together(port, machine(0), wait=1)
        assert f"port {port} is in use" in str(error)
        threading.Timer(0.1, taken.close).start()  # as the job's own start before this one
        with rollcall.listen("127.0.0.1", port, patience=10):
            pass


def test_something_else_listens_there(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:

        def greet() -> None:
            with server.accept()[0] as line:
                line.sendall(b"SSH-2.0-OpenSSH\n")
            server.close()

        thread = threading.Thread(target=greet)
        thread.start()
        (error,) = together(port, machine(1), wait=0.5)
        thread.join()
    assert "did not answer" in str(error)


def test_noise_does_not_disturb(port: int) -> None:
    def noise() -> None:
        for said in (b"", b"GET / HTTP/1.0\r\n\r\n", b"{}\n", b'{"machine": 3}\n', b'{"machine": {"rank": "x"}}\n'):
            with socket.create_connection(("127.0.0.1", port)) as line:
                line.sendall(said)

    def late() -> None:
        time.sleep(0.5)
        noise()

    thread = threading.Thread(target=late)
    thread.start()
    heard = together(port, machine(0), wait=2.5)
    thread.join()
    assert "missing after 2.5 s: machine rank 1" in str(heard[0])


def test_other_code_versions_and_data_are_named_like_another_plan(port: int) -> None:
    ours = {"task.py": "aaaa", "torch": "2.13.0", "data.train": "bbbb"}
    heard = together(port, machine(0, **ours), machine(1, **{**ours, "task.py": "cccc", "extra.py": "dddd"}), wait=20)
    assert len(heard) == 2
    for error in heard:
        assert "machine 1 (host-1) has a different task.py: cccc; machine 0 has aaaa" in str(error)
        assert "machine 1 (host-1) has a different extra.py: dddd; machine 0 has -" in str(error)
        assert "torch" not in str(error)
        assert isinstance(error, TrainwizError)
        assert "copy the project's folder and its data from machine 0" in str(error.remedy)


# docs/decisions/launching.md: Machines prove to each other that they know the launch's secret
def test_a_machine_with_another_secret_is_neither_heard_nor_believed(port: int) -> None:
    host, attending = together(port, machine(0), machine(1), wait=2, secrets={1: "quite another one"})
    assert "missing after 2 s: machine rank 1" in str(host)
    assert "connections without this launch's secret: " in str(host)
    assert "does not accept the secret of this launch" in str(attending)
    assert "--secret WORDS" in str(attending.remedy)  # type: ignore[union-attr]


def test_a_machine_without_a_secret_waits_for_one_and_says_what_to_type(port: int) -> None:
    host, attending = together(port, machine(0), machine(1), wait=2, secrets={1: ""})
    assert "missing after 2 s" in str(host)
    assert "this launch has no secret, so machine 0 cannot recognize machine 1" in str(attending)


def test_what_was_recorded_cannot_be_said_again() -> None:
    said, greeting = messages.nonce(), machine(1)
    line = messages.signed(greeting, secret=SECRET, own=messages.nonce(), theirs=said)
    assert messages.checked(Machine, line, secret=SECRET, own=said)[0] == greeting
    for words, own in ((SECRET, messages.nonce()), ("quite another one", said)):
        with pytest.raises(messages.InvalidMessage):
            messages.checked(Machine, line, secret=words, own=own)
    with pytest.raises(messages.InvalidMessage):
        messages.checked(messages.Verdict, line, secret=SECRET, own=said)
    for i in range(len(line) - 1):
        changed = line[:i] + bytes([line[i] ^ 1]) + line[i + 1 :]
        with pytest.raises(messages.InvalidMessage):
            messages.checked(Machine, changed, secret=SECRET, own=said)


FORGED = (
    {"rank": "0"},
    {"rank": -1},
    {"rank": True},
    {"rank": 1 << 40},
    {"key": ["x"]},
    {"hostname": None},
    {"hostname": "x" * 300},
    {"plan": {"a": 1}},
    {"facts": {"a": 1}},
    {"facts": {str(i): "x" for i in range(100)}},
    {"more": 1},
)


@pytest.mark.parametrize("change", FORGED)
def test_values_of_other_types_are_no_message_even_with_the_secret(change: dict[str, Any]) -> None:
    said = messages.nonce()
    body = {**machine(1).model_dump(), **change}
    other = messages.nonce()
    line = json.dumps({"nonce": other, "body": body, "mac": messages._mac(SECRET, said, other, body)}).encode()
    with pytest.raises(messages.InvalidMessage):
        messages.checked(Machine, line, secret=SECRET, own=said)


def noisy(seed: int, count: int) -> Iterator[bytes]:
    """What strangers, fuzzers and broken machines send: bytes, cut and changed messages, deep and long ones."""
    chance = random.Random(seed)
    good = messages.signed(machine(1), secret="another", own=messages.nonce(), theirs=messages.nonce())
    values: list[Any] = [None, True, -1, 1e999, "x" * 99, [], {}, [[]], {"nonce": 1}, 10**40]
    for _ in range(count):
        kind = chance.randrange(6)
        if kind == 0:
            yield chance.randbytes(chance.randrange(200)) + b"\n"
        elif kind == 1:
            yield good[: chance.randrange(len(good))]
        elif kind == 2:
            at = chance.randrange(len(good))
            yield good[:at] + chance.randbytes(3) + good[at + 1 :]
        elif kind == 3:
            yield chance.choice([b"[", b'{"a":', b"9"]) * chance.randrange(8000) + b"\n"
        elif kind == 4:
            yield json.dumps({k: chance.choice(values) for k in ("nonce", "body", "mac")}).encode() + b"\n"
        else:
            yield json.dumps({"machine": {"rank": 0, "key": ["x"]}}).encode() + b"\n"


@pytest.mark.parametrize("seed", [0])
def test_ten_thousand_messages_do_not_keep_two_machines_apart(port: int, seed: int) -> None:
    """9,900 of them to the reader of messages, 100 through the socket, while machine 1 comes late."""
    count = int(os.environ.get("FUZZ_MESSAGES", "10000"))
    for line in noisy(seed, count - 100):
        for kind in (Machine, messages.Verdict):
            with pytest.raises(messages.InvalidMessage):
                messages.checked(kind, line, secret=SECRET, own=messages.nonce())
    results: list[list[Roll | TrainwizError]] = []
    thread = threading.Thread(target=lambda: results.append(together(port, machine(0), wait=60)))
    thread.start()
    until = time.monotonic() + 30 * patience()
    while ports.is_free(port) and time.monotonic() < until:
        time.sleep(0.01)
    open_lines = []
    for line in noisy(seed + 1, 100):
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), 5)
            open_lines.append(connection)  # most stay open, and say nothing more
            connection.sendall(line)
    started = time.monotonic()
    roll = rollcall.attend(machine(1), address="127.0.0.1", port=port, wait=60, secret=lambda: SECRET)
    assert time.monotonic() - started < 20 * patience()
    thread.join(60)
    for connection in open_lines:
        connection.close()
    assert sorted(m.rank for m in roll.present) == [0, 1]
    ((heard,),) = results
    assert isinstance(heard, Roll)


def test_who_drips_bytes_holds_nobody_up(port: int) -> None:
    """One byte a second would have kept the old roll-call waiting for hours."""
    done = threading.Event()

    def drip() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as line:
                while not done.wait(0.1):
                    line.sendall(b"[")

    threads = [threading.Thread(target=drip) for _ in range(20)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    (error,) = together(port, machine(0), wait=2)
    assert time.monotonic() - started < 15 * patience()
    assert "missing after 2 s: machine rank 1" in str(error)
    done.set()
    for thread in threads:
        thread.join()


def test_who_drips_bytes_in_machine_0s_place_ends_no_wait(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollcall, "_CHALLENGE_SECONDS", 0.5)
    there: dict[str, Any] = {"address": "127.0.0.1", "port": port, "wait": 30 * patience()}
    heard: list[Roll] = []
    guest = threading.Thread(
        target=lambda: heard.append(rollcall.attend(machine(1), **there, secret=lambda: SECRET)), daemon=True
    )
    with socket.create_server(("127.0.0.1", port)) as server:
        guest.start()
        line, _ = server.accept()
        with line, contextlib.suppress(OSError):
            for _ in range(100):
                line.sendall(b"{")
                time.sleep(0.05)
    rollcall.host(machine(0), **there, secret=SECRET, agreed={})
    guest.join(30)
    assert [len(roll.present) for roll in heard] == [2]


def test_a_flood_of_connections_keeps_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands that say nothing, or nonsense: few are kept open, and who knows the secret is heard."""
    done, opened, most = threading.Event(), [0], [0]
    accept = Listener._accept

    def counted(listener: Listener) -> None:
        accept(listener)
        most[0] = max(most[0], len(listener._connections))

    monkeypatch.setattr(Listener, "_accept", counted)

    def flood() -> None:
        lines: list[socket.socket] = []
        while not done.is_set():
            line = socket.socket()
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", port))
            with contextlib.suppress(OSError):
                line.send(b"nonsense\n"[: opened[0] % 2 * 9])
            opened[0] += 1
            lines.append(line)
            if len(lines) > 400:
                lines.pop(0).close()
        for line in lines:
            line.close()

    results: list[list[Roll | TrainwizError]] = []
    machine_0 = threading.Thread(target=lambda: results.append(together(port, machine(0), wait=60)))
    flooding = threading.Thread(target=flood)
    machine_0.start()
    flooding.start()
    try:
        until = time.monotonic() + 30 * patience()
        while opened[0] < 2000 and time.monotonic() < until:
            time.sleep(0.02)
        roll = rollcall.attend(machine(1), address="127.0.0.1", port=port, wait=60, secret=lambda: SECRET)
    finally:
        done.set()
        flooding.join(30)
    machine_0.join(60)
    assert sorted(m.rank for m in roll.present) == [0, 1]
    assert isinstance(results[0][0], Roll)
    assert opened[0] >= 2000
    assert 0 < most[0] <= 256


def test_only_the_interface_towards_the_others_is_listened_on(port: int) -> None:
    with rollcall.listen("127.0.0.1", port) as server:
        assert server.getsockname()[0] == "127.0.0.1"
    name = socket.gethostname()
    assert rollcall._own("localhost", port, socket.AF_INET) == "127.0.0.1"
    assert not rollcall._own(name, port, socket.AF_INET).startswith("127."), "Debian's 127.0.1.1 is nobody's address"
    with rollcall.listen("192.0.2.1", port) as server:  # behind a translation of addresses
        assert server.getsockname()[0] == "0.0.0.0"


def test_a_secret_is_shared_with_nobody_but_the_user_and_only_meanwhile(tmp_path: Path) -> None:
    words = secret.made()
    assert len(set(words)) > 3
    assert secret.made() != words
    with secret.shared(tmp_path, words):
        assert secret.read(tmp_path) == words
        (file,) = (tmp_path / "runs").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret.read(tmp_path) == ""
    assert not (tmp_path / "runs").exists()


def test_a_fingerprint_changes_with_code_and_data(tmp_path: Path) -> None:
    plain = Found()
    (tmp_path / "task.py").write_text("a = 1\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("{}\n")
    named = {"data.train": "data/a.jsonl, data", "data.eval": "hub/name", "other": None}
    before = fingerprint.facts(tmp_path, plain, named)
    assert before.keys() == {"task.py", "data.train"}
    assert fingerprint.facts(tmp_path, plain, named) == before
    (tmp_path / "data" / "b").write_text("")
    (tmp_path / "task.py").write_text("a = 2\n")
    after = fingerprint.facts(tmp_path, plain, named)
    assert {name for name in before if before[name] != after[name]} == {"task.py", "data.train"}


def test_a_claimed_port_is_not_given_twice() -> None:
    first = ports.claim(0)
    second = ports.claim(first.number)
    assert second.number != first.number
    first.release()
    again = ports.claim(first.number)
    assert again.number == first.number
    again.release()
    second.release()


def test_a_listening_port_is_not_claimed(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        other = ports.claim(port)
        assert other.number != port
        other.release()


def test_the_interface_towards_loopback() -> None:
    assert ports.interface_towards("127.0.0.1", 1) == "lo"
    assert ports.interface_towards("no such host.invalid", 1) is None
