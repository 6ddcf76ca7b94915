"""Machines that call the roll over loopback, each a thread here."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from engine_children import claimed

from trainwiz.errors import TrainwizError
from trainwiz.network import ports, rollcall
from trainwiz.network.rollcall import Machine, Roll


def machine(rank: int, host: str = "", plan: str = "p" * 64, machines: int = 2) -> Machine:
    return Machine(rank=rank, hostname=host or f"host-{rank}", plan=plan, machines=machines)


def together(port: int, *machines: Machine, wait: float = 5) -> list[Roll | TrainwizError]:
    """What each machine got to hear."""
    results: list[Roll | TrainwizError | None] = [None] * len(machines)

    def take_part(i: int, me: Machine) -> None:
        call: Callable[[], Roll] = (
            (lambda: rollcall.host(me, address="127.0.0.1", port=port, wait=wait, agreed={"run": "r"}))
            if me.rank == 0
            else (lambda: rollcall.attend(me, address="127.0.0.1", port=port, wait=wait))
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


@pytest.fixture
def port() -> int:
    return claimed.port()


def test_all_there_is_quick_and_agrees(port: int) -> None:
    started = time.monotonic()
    heard = together(port, machine(0, machines=3), machine(1, machines=3), machine(2, machines=3), wait=60)
    assert time.monotonic() - started < 25  # nobody waits for the time to be over
    for roll in heard:
        assert isinstance(roll, Roll)
        assert roll.agreed == {"run": "r"}
        assert sorted(m.hostname for m in roll.present) == ["host-0", "host-1", "host-2"]
    # torchrun binds the same port right after.
    assert ports.is_free(port)


def test_who_is_missing_is_named_on_every_machine(port: int) -> None:
    heard = together(port, machine(0, machines=4), machine(2, machines=4), wait=2)
    assert len(heard) == 2
    for error in heard:
        assert "missing after 2 s: machine rank 1, 3" in str(error)
        assert "2 (host-2)" in str(error)


def test_who_is_there_twice_is_named_before_the_time_is_over(port: int) -> None:
    started = time.monotonic()
    heard = together(port, machine(0, machines=3), machine(1, "a", machines=3), machine(1, "b", machines=3), wait=60)
    assert time.monotonic() - started < 25
    assert len(heard) == 3
    for error in heard:
        assert "machine rank 1 is used 2 times: " in str(error)


def test_another_plan_is_named(port: int) -> None:
    heard = together(port, machine(0), machine(1, plan="q" * 64), wait=20)
    assert len(heard) == 2
    words = "machine 1 (host-1) has a different plan: qqqqqqqqqqqq; machine 0 has pppppppppppp"
    assert all(words in str(e) for e in heard)


def test_a_rank_beyond_the_plan_is_named(port: int) -> None:
    heard = together(port, machine(0), machine(5), wait=20)
    assert all("host-5 reports machine rank 5, but the plan has machines 0 to 1" in str(e) for e in heard)


def test_nobody_answers(port: int) -> None:
    (error,) = together(port, machine(1), wait=0.5)
    assert f"machine 0 did not answer at 127.0.0.1:{port} within 0.5 s" in str(error)


def test_a_taken_port_is_said(port: int) -> None:
    with socket.create_server(("", port)):
        (error,) = together(port, machine(0), wait=1)
    assert f"port {port} is in use" in str(error)


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
