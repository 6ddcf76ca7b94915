"""One rank of a generated train.py, noting what a GPU would have to be waited for.

Run in the project's folder with train.py's arguments. The last line of stdout is JSON: a list of update, operation and
the line of the project that asked for it. With WAITS_ON=cuda in the environment, CUDA itself says what waits.
"""

import json
import os
import sys
import traceback
import warnings

sys.path[0] = os.getcwd()

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode, resolve_name  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

OPERATIONS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}
COPIES = {"torch.Tensor.tolist", "torch.Tensor.cpu", "torch.Tensor.numpy"}
ON_THE_HOST = {"reach", "collect", "__next__", "evaluate"}
"""Functions whose numbers are on the host by construction, and evaluation, which is not between two log points."""

seen, update = [], 0


def note(name):
    frames = traceback.extract_stack()
    if not ON_THE_HOST & {frame.name for frame in frames}:
        own = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames if f.filename.startswith(os.getcwd())]
        seen.append([update, name, own[-1] if own else f"{frames[-3].filename}:{frames[-3].lineno}"])


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in OPERATIONS or (name == "index" and any(i is not None and i.dtype is torch.bool for i in args[1])):
            note(name)
        return func(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if resolve_name(func) in COPIES:
            note(resolve_name(func))
        return func(*args, **(kwargs or {}))


def main():
    import train

    rate = train.learning_rate

    def begun(config, number, total):
        global update
        update = number + 1
        return rate(config, number, total)

    train.learning_rate = begun
    if os.environ.get("WAITS_ON") == "cuda":
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: note("wait") if "synchronizing" in str(message) else None
        torch.cuda.set_sync_debug_mode("warn")
        train.main()
    else:
        with Copies(), Operations():
            train.main()
    print("\n" + json.dumps(seen))


if __name__ == "__main__":
    main()
