"""Interfaces, ports, the hub, and the result of an all-reduce."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.checkup.line import Found, Line, joined, line
from trainwiz.finding import Level
from trainwiz.machine import Interface, Machine
from trainwiz.message import say
from trainwiz.quantities import size
from trainwiz.surroundings import Comm, Hub, Port, Surroundings


def lines(machine: Machine, around: Surroundings | None) -> Iterator[Line]:
    """Interfaces, ports, hub, collectives."""
    outside = [_interface(i) for i in machine.interfaces if not i.loopback and i.addresses]
    yield line("interfaces", say("interfaces"), Found(joined(outside)))
    if around is None:
        return
    for port in around.ports:
        yield line("port", say("port {number}", number=port.number), _port(port))
    if around.hub:
        yield line("hub", say("model hub"), _hub(around.hub))
    if around.comm:
        yield line("comm", say("all-reduce"), _comm(around.comm))


def _interface(interface: Interface) -> str:
    speed = f", {interface.speed_mbps / 1000:g} Gb/s" if interface.speed_mbps else ""
    return f"{interface.name} ({interface.addresses[0]}{speed})"


def _port(port: Port) -> Found:
    if port.free:
        return Found(say("free"))
    fix = say("a single machine uses another port automatically; for several machines, set machine.main_process_port")
    return Found(say("already in use"), Level.HINT, fix)


def _hub(hub: Hub) -> Found:
    if hub.offline:
        return Found(
            say("{variable} is set; {endpoint} was not contacted", variable=hub.offline, endpoint=hub.endpoint)
        )
    if hub.reachable:
        return Found(say("{endpoint} is reachable", endpoint=hub.endpoint))
    found = say("{endpoint} is not reachable: {problem}", endpoint=hub.endpoint, problem=hub.detail)
    fix = say("set HF_ENDPOINT to a mirror, or set HF_HUB_OFFLINE=1 to use only local files; local data needs no hub")
    return Found(found, Level.HINT, fix)


def _comm(comm: Comm) -> Found:
    values = {"world": comm.world, "backend": comm.backend}
    if comm.error:
        found = say("failed; ranks: {world} ({backend}): {problem}", problem=comm.error, **values)
        fix = say("export TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO and check again: trainwiz doctor --comm")
        return Found(found, Level.ERROR, fix)
    if not comm.correct:
        fix = say("the link or the driver is faulty: export NCCL_P2P_DISABLE=1 and check again")
        return Found(say("wrong sums; ranks: {world} ({backend})", **values), Level.ERROR, fix)
    return Found(
        say(
            "correct; ranks: {world} ({backend}); {size} in {milliseconds} ms: bus bandwidth {bus} GB/s = {algorithm} "
            "GB/s × 2 × ({world} - 1) / {world}",
            size=size(comm.size_bytes),
            milliseconds=f"{comm.seconds * 1000:.2f}",
            bus=f"{comm.bus_bandwidth / 1e9:.2f}",
            algorithm=f"{comm.algorithm_bandwidth / 1e9:.2f}",
            **values,
        )
    )
