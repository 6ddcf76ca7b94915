"""The entry point: choose the language, run the command, exit with its code."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # `python -m trainwiz` puts the working folder there: a project's own json.py would be run.
    del sys.path[0]

import atexit
import contextlib
import gc
import io
import os
from typing import NoReturn


def main(argv: list[str] | None = None) -> int:
    """Run trainwiz with these arguments (default: the process's own) and exit with its code."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:
        _open_missing_streams()
        _print_what_can_be_printed()
        # What imports create is kept; looking for garbage in it again and again takes some 20 ms.
        # docs/decisions/cli.md: What made the start faster
        gc.set_threshold(100_000)
    from trainwiz import language
    from trainwiz.process import termination

    if argv is None:
        termination.install()
    language.choose(arguments)
    from trainwiz.cli import run

    code = run(arguments)
    if argv is None:
        _leave(code)
    sys.exit(code)


def _open_missing_streams() -> None:
    """Open the null device for a missing stdin, stdout or stderr (`>&-`, some daemons).

    Otherwise the next file that is opened gets its number, and what is printed goes into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _print_what_can_be_printed() -> None:
    """A terminal or locale with another encoding than UTF-8 shows `?` for what it cannot encode, not an error."""
    for stream in (sys.stdout, sys.stderr):
        # In the locale C or POSIX, stdout has surrogateescape, which fails at the first character as well.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def _leave(code: int) -> NoReturn:
    # Freeing thousands of imported objects takes some 60 ms, and the system does it anyway.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
