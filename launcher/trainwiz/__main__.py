"""The way in: choose the language, run the command, turn whatever happens into an exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from typing import NoReturn


def main(argv: list[str] | None = None) -> int:
    """Run trainwiz with these arguments (default: the process's own) and exit with its code."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:
        _open_what_is_closed()
        # What imports make is kept, and looking through it for garbage again and again costs some 20 ms.
        gc.set_threshold(100_000)
    from trainwiz import language

    language.choose(arguments)
    from trainwiz.cli import run

    code = run(arguments)
    if argv is None:
        _leave(code)
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Give a process without stdin, stdout or stderr (`>&-`, some daemons) the null device for it.

    Else the next file that is opened takes the number, and what is said goes into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _leave(code: int) -> NoReturn:
    # Taking thousands of imported objects apart costs some 60 ms, and the system frees them anyway.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
