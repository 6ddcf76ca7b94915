"""An all-reduce over the ranks of this machine, each in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from trainwiz.checkup.surroundings import Comm
from trainwiz.process.capture import Captured, Running

SECONDS = 120.0
SIZE_BYTES = {"cuda": 256 << 20, "cpu": 16 << 20}
"""Large enough for the bandwidth to dominate the latency."""

_ALL_REDUCE = Path(__file__).parent / "inside" / "all_reduce.py"


def all_reduce(
    python: str,
    *,
    world: int,
    device: str,
    port: int,
    seconds: float = SECONDS,
    environ: Mapping[str, str] = os.environ,
) -> Comm:
    """Run it over `world` ranks at a free port. If a rank fails, the others are killed; nothing is raised."""
    backend, size = "nccl" if device == "cuda" else "gloo", SIZE_BYTES[device]
    argv = [python, str(_ALL_REDUCE), device, str(size)]
    ranks = [Running(argv, env={**environ, **_contract(rank, world, port)}) for rank in range(world)]
    ended = _wait(ranks, time.monotonic() + seconds)
    found = _spoken(ended[0])
    if found:
        return Comm(world=world, backend=backend, size_bytes=size, seconds=found[0], correct=found[1])
    failed = [(rank, end) for rank, end in enumerate(ended) if end.code and not end.timed_out]
    # Ranks that were killed because another one failed do not show the reason.
    own = [(rank, end) for rank, end in failed if end.code != -9]
    if not own and any(end.timed_out for end in ended):
        return Comm(world=world, backend=backend, error=f"no end within {seconds:g} s")
    if failed:
        rank, end = (own or failed)[0]
        return Comm(world=world, backend=backend, error=f"rank {rank}: {end.last_line or end.code}")
    return Comm(world=world, backend=backend, error=ended[0].last_line or "rank 0 said nothing")


def _spoken(rank_0: Captured) -> tuple[float, bool] | None:
    """Seconds and correctness, if rank 0 reported them; how the ranks ended after that does not matter."""
    try:
        found = json.loads(rank_0.stdout.strip().splitlines()[-1])
        return float(found["seconds"]), bool(found["correct"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None


def _contract(rank: int, world: int, port: int) -> dict[str, str]:
    # https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", **{name: str(n) for name, n in numbers.items()}}


def _wait(ranks: list[Running], deadline: float) -> list[Captured]:
    """How each rank ended. If one fails, the others would wait for it forever and are killed."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        try:
            waiting: set[Future[Captured]] = set()
            ends = [pool.submit(rank.result, max(0.1, deadline - time.monotonic())) for rank in ranks]
            waiting.update(ends)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                if any(end.result().code for end in done):
                    _cancel(ranks)
            return [end.result() for end in ends]
        except BaseException:
            _cancel(ranks)
            raise


def _cancel(ranks: list[Running]) -> None:
    for rank in ranks:
        rank.cancel()
