"""Load DeepSpeed's ops, given by name, which compiles those that are not compiled yet.

Says what it does in JSON, a line each, between the lines of ninja and the compiler: `{"op": NAME}` as it begins, and
`{"loaded": NAME, "file": PATH}`; the file is null where DeepSpeed says that the op does not fit this machine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main() -> None:
    # torch removes its lock on the way out of an exception, and not at the end of a process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    for name in sys.argv[1:]:
        _tell(op=name)
        builder = ALL_OPS.get(name)
        fits = builder is not None and builder.is_compatible(verbose=True)
        _tell(loaded=name, file=builder.load(verbose=True).__file__ if fits else None)


def _tell(**values: Any) -> None:
    sys.stdout.write("\n" + json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
