"""An all-reduce over the ranks of this machine, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from trainwiz.language import t
from trainwiz.process.capture import Captured, Running
from trainwiz.surroundings import Comm

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
    ended = _wait(ranks, seconds)
    # What rank 0 reported counts; how the ranks ended after that does not matter.
    if found := ended[0].answer:
        return Comm(world=world, backend=backend, size_bytes=size, **found)
    return Comm(world=world, backend=backend, error=_problem(ended))


def _problem(ended: Sequence[Captured]) -> str:
    failed = [(rank, end) for rank, end in enumerate(ended) if end.code and not end.timed_out]
    # Ranks that were killed because another one failed do not show the reason.
    own = [(rank, end) for rank, end in failed if end.code != -9]
    if not own and (late := next((end for end in ended if end.timed_out), None)):
        return late.problem
    rank, end = (own or failed or [(0, ended[0])])[0]
    return t("rank {rank}: {problem}", rank=rank, problem=end.problem)


def _contract(rank: int, world: int, port: int) -> dict[str, str]:
    # https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", **{name: str(n) for name, n in numbers.items()}}


def _wait(ranks: list[Running], seconds: float) -> list[Captured]:
    """How each rank ended. If one fails, the others would wait for it forever and are killed."""
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(len(ranks)) as pool:
        try:
            ends = [pool.submit(rank.result, max(0.1, deadline - time.monotonic()), limit=seconds) for rank in ranks]
            for end in as_completed(ends):
                if end.result().code:
                    _cancel(ranks)
            return [end.result() for end in ends]
        except BaseException:
            _cancel(ranks)
            raise


def _cancel(ranks: list[Running]) -> None:
    for rank in ranks:
        rank.cancel()
