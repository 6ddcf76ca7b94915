"""Interfaces, ports, the hub, and the result of an all-reduce."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.checkup.line import Line, joined
from trainwiz.checkup.surroundings import Comm, Hub, Port, Surroundings
from trainwiz.finding import Level
from trainwiz.machine import Interface, Machine
from trainwiz.message import say
from trainwiz.quantities import size


def lines(machine: Machine, around: Surroundings | None) -> Iterator[Line]:
    """Interfaces, ports, hub, collectives."""
    outside = [_interface(i) for i in machine.interfaces if not i.loopback and i.addresses]
    yield Line(subject="interfaces", title=say("interfaces"), found=joined(outside))
    if around is None:
        return
    yield from (_port(port) for port in around.ports)
    if around.hub:
        yield _hub(around.hub)
    if around.comm:
        yield _comm(around.comm)


def _interface(interface: Interface) -> str:
    speed = f", {interface.speed_mbps / 1000:g} Gb/s" if interface.speed_mbps else ""
    return f"{interface.name} ({interface.addresses[0]}{speed})"


def _port(port: Port) -> Line:
    title = say("port {number}", number=port.number)
    if port.free:
        return Line(subject="port", title=title, found=say("free"))
    fix = say("a single machine uses another port automatically; for several machines, set machine.main_process_port")
    found = say("already in use")
    return Line(subject="port", title=title, found=found, level=Level.HINT, fix=fix)


def _hub(hub: Hub) -> Line:
    title = say("model hub")
    if hub.offline:
        found = say("{variable} is set; {endpoint} was not contacted", variable=hub.offline, endpoint=hub.endpoint)
        return Line(subject="hub", title=title, found=found)
    if hub.reachable:
        return Line(subject="hub", title=title, found=say("{endpoint} is reachable", endpoint=hub.endpoint))
    found = say("{endpoint} is not reachable: {problem}", endpoint=hub.endpoint, problem=hub.detail)
    fix = say("set HF_ENDPOINT to a mirror, or set HF_HUB_OFFLINE=1 to use only local files; local data needs no hub")
    return Line(subject="hub", title=title, found=found, level=Level.HINT, fix=fix)


def _comm(comm: Comm) -> Line:
    title = say("all-reduce")
    if comm.error:
        found = say(
            "failed; ranks: {world} ({backend}): {problem}",
            world=comm.world,
            backend=comm.backend,
            problem=comm.error,
        )
        fix = say("export TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO and check again: trainwiz doctor --comm")
        return Line(subject="comm", title=title, found=found, level=Level.ERROR, fix=fix)
    if not comm.correct:
        found = say("wrong sums; ranks: {world} ({backend})", world=comm.world, backend=comm.backend)
        fix = say("the link or the driver is faulty: export NCCL_P2P_DISABLE=1 and check again")
        return Line(subject="comm", title=title, found=found, level=Level.ERROR, fix=fix)
    found = say(
        "correct; ranks: {world} ({backend}); {size} in {milliseconds} ms: bus bandwidth {bus} GB/s = {algorithm} "
        "GB/s × 2 × ({world} - 1) / {world}",
        world=comm.world,
        backend=comm.backend,
        size=size(comm.size_bytes),
        milliseconds=f"{comm.seconds * 1000:.2f}",
        bus=f"{comm.bus_bandwidth / 1e9:.2f}",
        algorithm=f"{comm.algorithm_bandwidth / 1e9:.2f}",
    )
    return Line(subject="comm", title=title, found=found)
