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

OPERATIONS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount"),
    *("_unique2", "unique_consecutive", "unique_dim"),
}
COPIES = {"torch.Tensor.tolist", "torch.Tensor.cpu", "torch.Tensor.numpy"}
MADE = {"torch.tensor", "torch.as_tensor"}
"""From numbers of the host: where a device is named, they are copied there, and the host waits."""
BY_MASK = {"index", "index_put", "index_put_"}
ON_THE_HOST = {"reach", "collect", "__next__", "evaluation_metrics"}
"""Functions whose numbers are on the host by construction."""
LOOKS_ON_CPU = {"torch.nn.functional.one_hot"}
"""What looks at its numbers on a CPU only (aten/src/ATen/native/Onehot.cpp)."""
EVALUATING = {"evaluate", "measure_outputs"}

seen, update, aside = [], 0, False


def note(name):
    frames = traceback.extract_stack()
    own = [place for place, frame in enumerate(frames) if frame.filename.startswith(os.getcwd())]
    names, called = {frame.name for frame in frames}, frames[own[-1] + 1 :] if own else frames
    # torch's optimizers count their steps on the host; its Adafactor reads two norms of each parameter in a step.
    if not (ON_THE_HOST & names or aside or any("/torch/optim/" in frame.filename for frame in called)):
        asked = frames[own[-1] if own else -3]
        when = "evaluation" if EVALUATING & names else update
        seen.append([when, name, f"{os.path.basename(asked.filename)}:{asked.lineno}"])


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, options = func.overloadpacket.__name__, kwargs or {}
        by_mask = name in BY_MASK and any(i is not None and i.dtype is torch.bool for i in args[1])
        unknown = name == "repeat_interleave" and options.get("output_size") is None
        if name in OPERATIONS or by_mask or unknown:
            note(name)
        return func(*args, **options)


class Copies(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        global aside
        name, options = resolve_name(func), kwargs or {}
        if name in COPIES or (name in MADE and options.get("device") is not None):
            note(name)
        aside = name in LOOKS_ON_CPU
        try:
            return func(*args, **options)
        finally:
            aside = False


def main():
    import train

    rate = train.learning_rate

    def begun(config, number, total):
        global update
        update = number + 1
        return rate(config, number, total)

    train.learning_rate = begun
    if hasattr(train.task, "sample"):
        train.task.sample = lambda *_: ""  # after the training, a token at a time
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
