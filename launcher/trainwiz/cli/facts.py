"""What is known before a command begins: the machine, and what lies around a plan."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwiz.machine import Interpreter, Machine, Toolchain
    from trainwiz.probe.interpreter import PendingInterpreter

_pending: dict[str, PendingInterpreter] = {}
"""Interpreters that `machine(wait=False)` began to look at; the next call takes them up."""


def machine(
    *, machine_file: str | None, python: str | None, folder: str, wait: bool = True, fresh: bool = False
) -> Machine:
    """The machine in a file, else this one, with the interpreter that will train (default: the one running).

    The interpreter is remembered, so that a second launch imports torch nowhere. Where it is not, `wait=False`
    starts looking and returns at once without it; `fresh` looks again. Raises `UsageError` for a bad file.
    """
    if machine_file is not None:
        from trainwiz.store import machines

        return machines.read(machine_file)
    from trainwiz.probe import host

    executable = python or sys.executable
    interpreter = None if fresh else _recalled(executable)
    if interpreter is None and executable not in _pending:
        from trainwiz.probe import interpreter as interpreters

        _pending[executable] = interpreters.start(executable)
    here = host.host(folder, toolchain=None if fresh else _toolchain)
    if interpreter is None and wait:
        interpreter = _looked_at(executable)
    return dataclasses.replace(here, interpreter=interpreter)


def _recalled(python: str) -> Interpreter | None:
    from trainwiz.machine import Interpreter
    from trainwiz.probe import interpreter
    from trainwiz.store import cache, records

    values = cache.recall("interpreters", interpreter.cache_key(python))
    if values is None:
        return None
    try:
        return records.build(Interpreter, values)
    except records.Malformed:
        return None


def _looked_at(python: str) -> Interpreter:
    from trainwiz.probe import interpreter
    from trainwiz.store import cache, records

    found = _pending.pop(python).result(interpreter.SECONDS)
    key = interpreter.cache_key(python)
    # A failure may be mended without a trace in site-packages (a driver, a library path): look again next time.
    if key and found.error is None and found.cuda_error is None:
        cache.remember("interpreters", key, records.plain(found))
    return found


def _toolchain() -> Toolchain:
    from trainwiz.machine import Toolchain
    from trainwiz.probe import toolchain
    from trainwiz.store import cache, records

    key = toolchain.cache_key()
    try:
        return records.build(Toolchain, cache.recall("toolchains", key))
    except records.Malformed:
        found = toolchain.toolchain()
        cache.remember("toolchains", key, records.plain(found))
        return found
