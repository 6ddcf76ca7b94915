"""List DeepSpeed's ops, which of them can be built here, and which are built. Builds nothing."""

from __future__ import annotations

import glob
import json
import os
import sys


def main() -> None:
    sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    extensions = sys.argv[1]
    ops = []
    for name, builder in sorted(ALL_OPS.items()):
        try:
            compatible = bool(builder.is_compatible(verbose=False))
        except Exception:  # a builder that cannot be asked cannot build either
            compatible = False
        found = [glob.glob(os.path.join(extensions, where, name + "*", name + "*.so")) for where in ("", "*")]
        ops.append({"name": name, "compatible": compatible, "built": bool(installed_ops.get(name) or any(found))})
    sys.stdout.write("\n" + json.dumps({"ops": ops}) + "\n")


if __name__ == "__main__":
    main()
