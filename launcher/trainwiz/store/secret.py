"""The secret of a launch over several machines, in a folder that they share: machine 0 writes it, others read it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from trainwiz import files
from trainwiz.store.runs import RUNS

_FILE = ".secret"
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters and digits that are not mistaken for each other when somebody types them."""
_MOST_BYTES = 256


def made() -> str:
    """A new secret that can be typed: three words of five, which is 74 bits."""
    return "-".join("".join(secrets.choice(_ALPHABET) for _ in range(5)) for _ in range(3))


@contextlib.contextmanager
def shared(project: Path, secret: str) -> Iterator[None]:
    """Share the secret meanwhile with those who can read this user's files; a read-only folder is not an error."""
    file = project / RUNS / _FILE
    is_new = not file.parent.exists()
    aside = file.with_name(f"{_FILE}.{os.getpid()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secret)
        os.replace(aside, file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if read(project) == secret:
                file.unlink()
            if is_new:
                file.parent.rmdir()


def read(project: Path) -> str:
    """The secret that machine 0 has shared in this folder; empty if it has not."""
    try:
        return files.read_text(project / RUNS / _FILE, errors="replace", most=_MOST_BYTES).strip()
    except OSError:
        return ""
