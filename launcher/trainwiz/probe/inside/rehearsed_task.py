"""Check a project's task.py and schedule by running them on the CPU in one process, with a small model.

Argument: JSON with `values` (fields of Config to set), `planned` (those that decide the real schedule) and `scale` (how
many times longer the real data is than what is read here). What was found goes to stdout as one line of JSON. The
working directory is the project's folder.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import math
import os
import random
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = os.getcwd()  # not the folder of this file, whose modules may hide the user's

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode, resolve_name  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

NOISE = runpy.run_path(str(Path(__file__).with_name("rehearsed_noise.py")))
MOST_RATES = 2000
LOOKED_AT = 4
"""Samples; two of them count, two are padding."""
WAITING = {
    "_local_scalar_dense": "item",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique2": "unique",
    "equal": "equal",
}
"""Operations for whose result the host must wait, with the names that users write."""
COPYING = {"torch.Tensor.tolist": "tolist", "torch.Tensor.cpu": "cpu", "torch.Tensor.numpy": "numpy"}


def main() -> None:
    asked = json.loads(sys.argv[1])
    stdout, sys.stdout = sys.stdout, sys.stderr
    found: dict[str, Any] = {}
    try:
        look(asked, found)
    except BaseException as error:  # a task may also end the program
        if isinstance(error, KeyboardInterrupt):
            raise
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if in_project(frame.filename)]
        where = f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
        found["error"] = {"what": f"{type(error).__name__}: {error}".strip(), "where": where}
        traceback.print_exc()
    stdout.write("\n" + json.dumps(found) + "\n")


def look(asked: dict[str, Any], found: dict[str, Any]) -> None:
    """Fill `found` until something fails; `stage` says where."""
    found["stage"] = "import"
    train, task = importlib.import_module("train"), importlib.import_module("task")
    config = train.Config(**asked["values"])
    found["stage"] = "load_train_data"
    seed_all(config.seed)
    data = indexed(task.load_train_data(config), config)
    found["length"] = len(data)
    found["schedule"] = schedule(train, asked, len(data))
    found["stage"] = "samples"
    found["unfixed_samples"] = unfixed_samples(data)
    found["keyed_samples"] = hasattr(data, "augment") and not same(sample_of(data, 0), sample_of(data, 0, seed=1))
    found["stage"] = "collate"
    samples = [sample_of(data, index) for index in range(min(LOOKED_AT, len(data)))]
    found["unfixed_collate"] = not twice(lambda: task.collate(samples, [True] * len(samples)))
    found["stage"] = "build_model"
    model = built(task, config)
    found["parameters"] = sum(p.numel() for p in model.parameters())
    found["unfixed_weights"] = not twice(lambda: list(built(task, config).state_dict().values()), keyed=config.seed)
    found["stage"] = "loss_sum"
    if hasattr(data, "references"):
        fill_in_references(task, model.eval(), data, samples)
    found["loss"] = losses(task, model.train(), samples, summed_over_turns(task, config, model))
    found["stage"] = "done"


def indexed(data: Any, config: Any) -> Any:
    """The data as the loop takes it; of a stream, the first samples have an index, each read anew."""
    if not Path("streams.py").exists():
        return data
    data = importlib.import_module("streams").indexed(data, config)
    return FirstOfStream(data) if hasattr(data, "epoch") else data


class FirstOfStream:
    """A stream whose samples are read from its beginning, whichever is asked for."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        if hasattr(stream.data, "augment"):
            self.augment = stream.data.augment

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, index: int) -> Any:
        return next(itertools.islice(self.stream.epoch(0), index, None))


def summed_over_turns(task: Any, config: Any, model: Any) -> Callable[[Any, Any], Any]:
    """`loss_sum`, or the sum of those of several optimizers that take turns."""
    built = task.build_optimizers(config, model) if hasattr(task, "build_optimizers") else None
    if not isinstance(built, dict) or len(built) < 2:
        return task.loss_sum  # type: ignore[no-any-return]
    return lambda model, batch: sum(task.loss_sum(model, batch, name) for name in built)


def seed_all(seed: int, torch_seed: int | None = None) -> None:
    """Seed every global generator of random numbers; torch's with a seed of its own, if given."""
    random.seed(seed)
    torch.manual_seed(seed if torch_seed is None else torch_seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def twice(make: Callable[[], Any], keyed: int | None = None) -> bool:
    """Whether the result is independent of the global generators; torch's has the same seed if `keyed`."""
    made = []
    for seed in (1, 2):
        seed_all(seed, keyed)
        made.append(make())
    return same(*made)


def same(one: Any, other: Any) -> bool:
    """Equality through tuples, lists, dicts, arrays and tensors."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return same(vars(one), vars(other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    equal = one == other
    return bool(equal.all() if hasattr(equal, "all") else equal)


def sample_of(data: Any, index: int, seed: int = 0) -> Any:
    """A sample as the loop gets it: augmented with a generator of its own, if the task does that."""
    own = torch.Generator().manual_seed(index + 1000 * seed)
    return data.augment(data[index], own) if hasattr(data, "augment") else data[index]


def unfixed_samples(data: Any) -> list[int]:
    """Indices whose sample differs when it is read again."""
    return [i for i in range(min(LOOKED_AT, len(data))) if not twice(functools.partial(sample_of, data, i))]


def built(task: Any, config: Any) -> Any:
    """The model with its initial weights, as the loop seeds them."""
    torch.manual_seed(config.seed)
    return task.build_model(config)


def fill_in_references(task: Any, model: Any, data: Any, samples: list[Any]) -> None:
    """Give the samples the log-probabilities that the loop computes before the training."""
    batch, many = task.collate(samples, [True] * len(samples))
    with torch.no_grad():
        data.references[:many] = task.answer_log_probs(model, batch)  # of which each sample has a view


def losses(task: Any, model: Any, samples: list[Any], loss_sum: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Check whether `loss_sum` sums what `collate` counts, waits for the device, and reaches every parameter."""

    def loss(chosen: list[Any], counted: list[bool]) -> tuple[float, int]:
        batch, count = task.collate(chosen, counted)
        seed_all(7)
        with NOISE["SameForAll"]() if found["random"] else contextlib.nullcontext():
            return float(loss_sum(model, batch).detach()), int(count)

    def all_together() -> Any:
        return loss_sum(model, task.collate(samples, [True] * many)[0]).detach()

    many = len(samples)
    found: dict[str, Any] = {"unkeyed": not twice(all_together, keyed=7)}
    dropped = without_dropout()
    found["random"] = not found["unkeyed"] and not twice(all_together)
    found["draws"] = drawn(all_together) if found["random"] else []
    found["stray_dropout"] = in_evaluation(model, all_together, dropped)
    whole, count = loss(samples, [True] * many)
    parts = [loss([sample], [True]) for sample in samples]
    found |= {"whole": whole, "count": count, "parts": [p for p, _ in parts], "counts": [n for _, n in parts]}
    found["finite"] = all(math.isfinite(number) for number in (whole, *found["parts"]))
    half = [True] * (many - many // 2) + [False] * (many // 2)
    found["half"] = loss(samples, half)
    found["half_meant"] = loss(samples[: many - many // 2], [True] * (many - many // 2))
    found["nothing"] = [repr(number) for number in loss(samples, [False] * many)]
    found["batch_norms"] = sorted({type(m).__name__ for m in model.modules() if "BatchNorm" in type(m).__name__})
    model.zero_grad(set_to_none=True)
    batch = task.collate(samples, [True] * many)[0]
    with Waits() as waits:
        total = loss_sum(model, batch)
    total.backward()
    found["waits"] = waits.seen
    found["without_gradient"] = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    found["dropout_calls"] = len(dropped)
    return found


def drawn(loss: Callable[[], Any]) -> list[list[str]]:
    """The operations of a loss that draw random numbers, each with its line."""
    with NOISE["Draws"](in_project) as draws:
        loss()
    return [list(one) for one in dict.fromkeys(map(tuple, draws.seen))]


def in_evaluation(model: Any, loss: Callable[[], Any], dropped: list[list[str]]) -> list[list[str]]:
    """The calls with dropout that also act while the model is evaluated."""
    before = len(dropped)
    model.eval()
    # What a loss cannot do in evaluation is not the fault of its randomness.
    with contextlib.suppress(Exception), torch.no_grad():
        loss()
    model.train()
    return [list(one) for one in dict.fromkeys(map(tuple, dropped[before:]))]


def without_dropout() -> list[list[str]]:
    """Switch dropout off, so that batches of different shape can be compared; the calls, each with its line."""
    functions: Any = torch.nn.functional
    asked: list[list[str]] = []
    drop, attend = functions.dropout, functions.scaled_dot_product_attention

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if training and p:
            asked.append(["dropout", NOISE["innermost"](in_project)])
        return drop(input, p, False, inplace)

    # torch's own layers give all by position.
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **more: Any
    ) -> Any:
        if dropout_p:
            asked.append(["scaled_dot_product_attention", NOISE["innermost"](in_project)])
        return attend(query, key, value, attn_mask, 0.0, *rest, **more)

    functions.dropout, functions.scaled_dot_product_attention = dropout, attention
    return asked


class Waits(TorchDispatchMode):
    """Notes each operation that would wait for a GPU, with the user's line."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []
        self.copies = Copies(self.note)

    def note(self, name: str) -> None:
        """Remember an operation with the innermost line of the project that called it."""
        stack = [frame for frame in traceback.extract_stack() if in_project(frame.filename)]
        self.seen.append([name, f"{os.path.basename(stack[-1].filename)}:{stack[-1].lineno}" if stack else ""])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.note(WAITING[name])
        elif name == "index" and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            self.note("index by a mask")
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        self.copies.__enter__()
        return super().__enter__()

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        self.copies.__exit__(*ended)


class Copies(TorchFunctionMode):
    """`tolist`, `cpu` and `numpy`, which are not dispatched for a tensor on the CPU."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = resolve_name(func) or ""
        if name in COPYING:
            self.note(COPYING[name])
        return func(*args, **(kwargs or {}))


def in_project(file: str) -> bool:
    """Whether a source file belongs to the project."""
    folder = os.getcwd()
    return file.startswith(folder + os.sep) and "site-packages" not in file[len(folder) :]


def schedule(train: Any, asked: dict[str, Any], length: int) -> dict[str, Any] | None:
    """The learning rate of the whole planned run, from the generated function; `rates` by update, from 1."""
    if not hasattr(train, "learning_rate"):
        return None
    config = train.Config(**{**asked["values"], **asked["planned"]})
    per_epoch = -(-round(length * asked["scale"]) // config.real_batch_size)
    total = config.n_steps or config.n_epochs * per_epoch
    warmup = config.n_warmup_steps or math.ceil(getattr(config, "warmup_ratio", 0) * total)
    chosen = {*range(0, total, 1 + total // MOST_RATES), *range(max(0, warmup - 2), min(total, warmup + 2)), total - 1}
    return {
        "total": total,
        "updates_per_epoch": per_epoch,
        "warmup": warmup,
        "kind": config.lr_scheduler_type,
        "learning_rate": config.learning_rate,
        "rates": [[update + 1, train.learning_rate(config, update, total)] for update in sorted(chosen)],
        "after": train.learning_rate(config, total, total),
    }


if __name__ == "__main__":
    main()
