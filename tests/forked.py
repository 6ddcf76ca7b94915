"""Commands of trainwiz that begin at once: forked from a process that has imported all of trainwiz.

`run` is what `subprocess.run([sys.executable, "-m", "trainwiz", *words])` is, for a tenth of the CPU time: 0.03 s and
not 0.3. It starts an interpreter where a variable is set otherwise that is read while something is imported, and with
`pytest --cold`. Tests of how trainwiz starts, what it imports, its signals and its terminals start interpreters.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import warm
from patience import patience

import trainwiz

# docs/decisions/tests.md: Tests fork trainwiz from a process that has imported it
COMMAND = Path(__file__).parent / "engine_children" / "forked_command.py"
EARLY = (
    "FORCE_COLOR",
    "GITHUB_ACTIONS",
    "LANG",
    "LC_",
    "LD_",
    "PYDANTIC_",
    "PYTHON",
    "PY_COLORS",
    "TERMINAL_WIDTH",
    "TYPER_",
    "_TYPER_",
)
"""Beginnings of variables that Python, typer or pydantic reads before trainwiz does anything."""


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str | None = None,
    timeout: float = 240,
    text: str = "",
    memory: int | None = None,
    script: Path = COMMAND,
) -> subprocess.CompletedProcess[str]:
    """Run trainwiz, or another script that imports it, with these words and `text` as its input, without a terminal.

    `memory` limits its address space, in bytes.
    """
    folder = os.path.abspath(cwd or os.curdir)
    if warm.cold or early(env) != early(os.environ):
        return _cold(words, env, folder, timeout, text, memory, script)
    address = warm.server(sys.executable, os.environ, "trainwiz")
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(text.encode())
        given.seek(0)
        streams = (file.fileno() for file in (given, out, err))
        process = warm.begun(address, [str(script), *words], folder, env, modules(), *streams, memory=memory)
        try:
            code = process.wait(timeout * patience())
        except TimeoutError:
            raise subprocess.TimeoutExpired(["trainwiz", *words], timeout, _said(out), _said(err)) from None
        return subprocess.CompletedProcess(["trainwiz", *words], code, _said(out), _said(err))


def _said(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")


def _cold(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    timeout: float,
    text: str,
    memory: int | None,
    script: Path,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(["-m", "trainwiz"] if script == COMMAND else [str(script)]), *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        env=env,
        preexec_fn=None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        check=False,
    )


def early(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment has its effect before trainwiz does anything."""
    return {name: value for name, value in environ.items() if name.startswith(EARLY)}


@functools.cache
def modules() -> tuple[str, ...]:
    """All of trainwiz, without what runs inside of other interpreters."""
    found = pkgutil.walk_packages(trainwiz.__path__, "trainwiz.")
    return tuple(module.name for module in found if "inside" not in module.name.split("."))
