"""A time limit for calls that may hang: a driver, a network mount, a name server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from trainwiz.language import t

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`. Raises `TimeoutError`; a call that hangs stays in a thread that dies with the process."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError(t("no answer within {seconds} s", seconds=f"{seconds:g}"))
    return results[0]
