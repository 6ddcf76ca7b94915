"""The command line: each command parses its options, calls one workflow and returns its exit code.

`run` is the one place where exceptions become exit codes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from trainwiz.errors import Cancelled, Ended, TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.ui import console

BUG = 3


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Only a bug leaves a traceback, and that in a file."""
    import typer

    from trainwiz.cli import usage_errors
    from trainwiz.cli.app import command

    before, built = console.results(), None
    try:
        _check_current_folder()
        built = command(arguments)
        result = built(list(arguments), prog_name="trainwiz", standalone_mode=False)
    except TrainwizError as error:
        console.failure(error)
        if _wants_json(arguments) and console.results() == before:
            console.failure_json(error, error.exit_code)
        return error.exit_code
    except typer.Exit as done:
        return done.exit_code
    except Ended as ended:
        with contextlib.suppress(OSError):  # the terminal may be gone
            console.talk(t("ended by {signal}", signal=ended.name))
        return ended.exit_code
    except (KeyboardInterrupt, typer.Abort):
        console.talk(t("interrupted"))
        return Cancelled.exit_code
    except BrokenPipeError:
        # `trainwiz … | head`: the reader has gone; python's own flush at exit must not complain either.
        sys.stdout = None
        return 0
    except Exception as error:
        if usage_errors.is_usage_error(error):
            return usage_errors.show(error, built, arguments, as_json=_wants_json(arguments))
        from trainwiz.workflows import bug_report

        bug_report.write(error)
        return BUG
    return result if isinstance(result, int) else 0


def _check_current_folder() -> None:
    """Raise `UsageError` where the folder that this was typed in is gone."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError(say("the current folder no longer exists"), say("change to one that does: cd ~")) from None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether a program reads stdout; what stands behind `--` is the training script's."""
    return "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
