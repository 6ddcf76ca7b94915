"""Run in the project, by the Python that trains: read all data and write its tokens, as the training would.

Argument: the file that gets the traceback of an error, or the sentence that task.py ended with.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> None:
    """Load the data of the task in the working directory, and say how many samples it makes."""
    sys.path.insert(0, os.getcwd())
    import task  # type: ignore[import-not-found]

    config = task.TaskConfig()
    report("train", task.load_train_data(config))
    if hasattr(task, "load_eval_data"):
        report("eval", task.load_eval_data(config))


def report(name: str, data: Any) -> None:
    """Print how many samples there are."""
    sys.stdout.write(f"{name}: {len(data):,} samples\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        Path(sys.argv[1]).write_text(error.code)
        sys.exit(1)
    except Exception:
        Path(sys.argv[1]).write_text(traceback.format_exc())
        sys.exit(1)
