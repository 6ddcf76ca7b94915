"""Machines that meet, by torchrun's own rendezvous: each does what torchrun does first, and starts nothing.

It reads its arguments, opens the store or joins it, and agrees with the others on the ranks. torchrun waits 15 minutes
for the others; here it is told to wait for some seconds.
"""

import argparse
import re
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

MET = "met"
OPEN: list[Any] = []
"""The stores, kept until this program ends: the first machine must not close its own while another still reads."""


def machine(arguments: argparse.Namespace, seconds: int) -> str:
    """What becomes of a machine with torchrun's arguments: `MET`, or what stopped it."""
    arguments.rdzv_conf = f"timeout={seconds}"
    config, *_ = torchrun.config_from_args(arguments)
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    try:
        found = get_rendezvous_handler(parameters).next_rendezvous()
        OPEN.append(found.store)
        spec = types.SimpleNamespace(role="default", local_world_size=config.nproc_per_node)
        SimpleElasticAgent._assign_worker_ranks(None, found.store, found.rank, found.world_size, spec)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        return re.sub(r"after \d+ seconds", "after SOME seconds", said)  # more on a busy machine
    return MET


def at_once(machines: list[Callable[[], str]]) -> list[str]:
    """What becomes of machines that start together."""
    with ThreadPoolExecutor(len(machines)) as pool:
        return [future.result() for future in [pool.submit(start) for start in machines]]
