"""The command line: typer commands, each a short one that wires rooms together.

`run` is the one place where exceptions become exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trainwiz.errors import Cancelled, TrainwizError
from trainwiz.language import t
from trainwiz.ui import console

BUG = 3


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Nothing but a bug leaves a traceback, and that in a file."""
    import typer
    from typer.main import get_command

    from trainwiz.cli.app import application, widen
    from trainwiz.cli.light import lighten
    from trainwiz.cli.usage import dress

    try:
        result = dress(lighten(widen(get_command(application(arguments)))))(
            list(arguments), prog_name="trainwiz", standalone_mode=False
        )
    except TrainwizError as error:
        console.failure(error)
        return error.exit_code
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        console.talk(t("interrupted"))
        return Cancelled.exit_code
    except BrokenPipeError:
        # `trainwiz … | head`: the reader has gone; python's own flush at exit must not complain either.
        sys.stdout = None
        return 0
    except Exception as error:
        if _is_usage(error):
            return _refuse(error)
        from trainwiz.cli.bug import report

        report(error)
        return BUG
    return result if isinstance(result, int) else 0


def _refuse(error: Any) -> int:
    from trainwiz.cli.usage import explained

    if any(kind.__name__ == "NoArgsIsHelpError" for kind in type(error).__mro__):
        error.show(file=sys.stderr)
    else:
        console.failure(explained(error))
    return int(error.exit_code)


def _is_usage(error: Exception) -> bool:
    # typer carried its own copy of click from 0.27 on; which of the two raised is not ours to know.
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)
