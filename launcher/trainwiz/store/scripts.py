"""Reading a person's training script. Its text is taken as data; nothing of it ever runs."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

from trainwiz import files, script
from trainwiz.errors import UsageError
from trainwiz.message import Message, say

_LARGEST = 8 << 20
"""Bytes; no script is that long."""


def read(path: str) -> script.Script:
    """The script in this file. Raises `UsageError` with what to type instead where there is none that can be read."""
    file = Path(path)
    if file.is_dir():
        raise _folder(file)
    if file.suffix == ".ipynb":
        raise UsageError(
            say("{path} is a notebook; lint only reads Python files", path=path),
            say("run: jupyter nbconvert --to script {path}, then lint the .py file", path=path),
        )
    try:
        raw = files.read_bytes(file, _LARGEST)
    except FileNotFoundError:
        raise UsageError(say("{path} does not exist", path=path), _nearby(file)) from None
    except OSError as error:
        raise UsageError(
            say("{path} cannot be read: {reason}", path=path, reason=error.strerror or str(error))
        ) from None
    return script.read(path, _decoded(path, raw))


def _decoded(path: str, raw: bytes) -> str:
    """The text, by the encoding that the file declares as Python files do, else UTF-8."""
    encoding = "utf-8"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(
            say(
                "{path}:{line}: byte {byte} is not valid {encoding}",
                path=path,
                line=line,
                byte=f"0x{raw[error.start]:02x}",
                encoding=encoding,
            ),
            say("save the file as UTF-8, or declare its encoding on the first line: # -*- coding: latin-1 -*-"),
        ) from None
    except SyntaxError as error:  # the declared encoding does not exist, or the first lines are not in it
        raise UsageError(say("{path}: {reason}", path=path, reason=error.msg), say("save the file as UTF-8")) from None


def _folder(folder: Path) -> UsageError:
    message = say("{path} is a folder; lint expects a script", path=str(folder))
    scripts = sorted(folder.glob("*.py"))
    likely = next((s for s in scripts if s.name == "train.py"), scripts[0] if scripts else None)
    return UsageError(message, say("run: trainwiz lint {script}", script=str(likely)) if likely else None)


def _nearby(file: Path) -> Message | None:
    scripts = sorted(file.parent.glob("*.py"))[:5] if file.parent.is_dir() else []
    if not scripts:
        return None
    return say("choose a script in that folder: {names}", names=", ".join(s.name for s in scripts))
