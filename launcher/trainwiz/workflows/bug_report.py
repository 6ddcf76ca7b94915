"""A bug in trainwiz: write what a report needs to a file, and say where it is."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from importlib import metadata

from trainwiz.language import t
from trainwiz.record import redaction
from trainwiz.ui import console

_VERSIONS_OF = ("trainwiz", "typer", "questionary", "pydantic", "torch", "accelerate", "deepspeed")


def write(error: BaseException) -> str:
    """Write the traceback and versions to a file of its own; print what happened; return the file's path."""
    lines = [f"python {platform.python_version()} on {platform.platform()}"]
    for name in _VERSIONS_OF:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} -")
    lines += ["arguments " + " ".join(sys.argv[1:]), "", *traceback.format_exception(error)]
    # The file and the message are meant to be passed on.
    secrets = redaction.known(sys.argv, os.environ)
    with tempfile.NamedTemporaryFile("w", prefix="trainwiz-bug-", suffix=".log", delete=False) as file:
        file.write(redaction.text("\n".join(lines), secrets))
    said = redaction.text(str(error), secrets)
    console.talk(t("This is a bug in trainwiz: {kind}: {error}", kind=type(error).__name__, error=said), style="error")
    console.talk(t("Details are in {path}; please attach this file to a bug report.", path=file.name))
    return file.name
