"""Run scripts one after the other in one process, and print the losses that each prints as JSON.

Arguments: the scripts.
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path


def main() -> None:
    found = {}
    for script in list(sys.argv[1:]):
        said = io.StringIO()
        sys.argv[:] = [script]
        sys.path.insert(0, str(Path(script).parent))
        with contextlib.redirect_stdout(said):
            runpy.run_path(script, run_name="__main__")
        found[script] = [float(line.split()[1]) for line in said.getvalue().splitlines() if line.startswith("loss ")]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
