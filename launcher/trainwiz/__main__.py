"""The way in: choose the language, run the command, turn whatever happens into an exit code."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run trainwiz with these arguments (default: the process's own) and exit with its code."""
    arguments = sys.argv[1:] if argv is None else argv
    from trainwiz import language

    language.choose(arguments)
    from trainwiz.cli import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
