"""What the rules' manual says of machines that meet, asked of torchrun's own rendezvous. Prints one JSON object.

No machine sees the loopback address of another: so machines that meet there get a port each, at which nobody else is.
"""

import contextlib
import io
import json
import logging
import socket
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import Any

warnings.simplefilter("ignore")

from claimed import port as free_port  # noqa: E402
from meeting import MET, at_once, machine  # noqa: E402
from torch.distributed.run import parse_args  # noqa: E402

CLAIMS: dict[str, Callable[[], Any]] = {}
SOON, LONG = 1, 60  # seconds, for nobody and for one that comes


def claim(function: Callable[[], Any]) -> Callable[[], Any]:
    CLAIMS[function.__name__] = function
    return function


def one_of_two(rank: int, seconds: int = SOON, *, address: str | None = None, port: int) -> str:
    where = ["--master_addr", address] if address else []
    words = ["--nnodes", "2", "--node_rank", str(rank), *where, "--master_port", str(port), "train.py"]
    return machine(parse_args(words), seconds)


def ranks_at_once(ranks: tuple[int, int], seconds: int, port: int) -> list[str]:
    return at_once([lambda rank=rank: one_of_two(rank, seconds, address="127.0.0.1", port=port) for rank in ranks])


@claim
def an_address_and_a_port_are_enough() -> Any:
    return ranks_at_once((0, 1), LONG, free_port())


@claim
def tw613_without_an_address_each_is_alone() -> Any:
    return at_once([lambda rank=rank: one_of_two(rank, port=free_port()) for rank in (0, 1)])


@claim
def tw614_each_has_a_loopback_of_its_own() -> Any:
    cases = [(name, rank) for name in ("127.0.0.1", "localhost") for rank in (0, 1)]
    return at_once([lambda case=case: one_of_two(case[1], address=case[0], port=free_port()) for case in cases])


@claim
def tw615_any_port_is_another_port() -> Any:
    """Even where both have one address."""
    return ranks_at_once((0, 1), SOON, 0)


@claim
def tw616_a_port_that_is_taken() -> Any:
    """Something else listens there, takes the call of the second machine, and says nothing."""
    with ThreadPoolExecutor(1) as pool:
        with socket.socket() as other:
            other.bind(("", 0))
            other.listen()
            taken = {"address": "127.0.0.1", "port": other.getsockname()[1]}
            first = one_of_two(0, **taken)
            second = pool.submit(one_of_two, 1, **taken)
            with contextlib.suppress(TimeoutError):
                second.result(timeout=3 * SOON)
            waits = not second.done()
        return [first, waits, second.result() == MET]


logging.disable(logging.CRITICAL)
results: dict[str, Any] = {}
for name, ask in CLAIMS.items():
    with contextlib.redirect_stderr(io.StringIO()):
        results[name] = ask()
print("\n" + json.dumps(results))
