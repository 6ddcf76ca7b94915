"""One rank of a rehearsal: the project's own train.py with the first part of its data, watched.

Arguments: a JSON file, then those of train.py. The file holds `samples` (how many samples of the data are used),
`notes` (the folder for what was seen), `gloo` (let accelerate shard over CPU ranks), `without_dropout`, `kill_at`
(the micro-batch at which the process kills itself; 0: none), and `same_noise` (each sample gets the same random numbers
from its loss). The working directory is the project's folder.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import importlib
import itertools
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

sys.path[0] = os.getcwd()  # not the folder of this file, whose modules may hide the user's

import torch  # noqa: E402

INSIDE = Path(__file__).resolve().parent
RANK = int(os.environ.get("RANK", "0"))


# docs/decisions/wizard.md: A rehearsal runs the project's own train.py, observed from outside
def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    sys.argv[:] = ["train.py", *sys.argv[2:]]
    seen: dict[str, Any] = {"micro_batches": 0, "indices": [], "sent": [], "dropout": 0}
    if asked["gloo"]:
        let_the_cpu_shard()
    keep_off_trackers_and_nvme()
    watch_dropout(seen, off=asked["without_dropout"])
    watch_communication(seen)
    watch_task(seen, asked)
    watch_order(seen)
    try:
        runpy.run_path("train.py", run_name="__main__")
    finally:
        (Path(asked["notes"]) / f"rank-{RANK}.json").write_text(json.dumps(seen))


def let_the_cpu_shard() -> None:
    """Make accelerate shard over CPU ranks, which it refuses; gloo can do all that is needed."""
    state: Any = importlib.import_module("accelerate.state")
    answer = ("gloo", state.DistributedType.MULTI_GPU)
    state.PartialState._prepare_backend = lambda *_, **__: answer


def keep_off_trackers_and_nvme() -> None:
    """Report to no tracker, and offload to host memory what would be offloaded to NVMe."""
    os.environ["WANDB_MODE"] = "disabled"
    accelerate: Any = importlib.import_module("accelerate")
    accelerate.Accelerator.init_trackers = lambda *_, **__: None
    made = accelerate.utils.DeepSpeedPlugin.__post_init__

    def make(self: Any) -> None:
        settings = self.hf_ds_config if isinstance(self.hf_ds_config, dict) else {}
        for name in ("offload_optimizer", "offload_param"):
            target = settings.get("zero_optimization", {}).get(name) or {}
            if target.get("device") == "nvme":
                settings["zero_optimization"][name] = {"device": "cpu"}
        made(self)

    accelerate.utils.DeepSpeedPlugin.__post_init__ = make


def watch_dropout(seen: dict[str, Any], *, off: bool) -> None:
    """Count the calls with dropout, and switch dropout off if asked."""
    functions: Any = torch.nn.functional
    drop, attend = functions.dropout, functions.scaled_dot_product_attention

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        seen["dropout"] += bool(training and p)
        return drop(input, p, training and not off, inplace)

    # torch's own layers give all by position.
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **more: Any
    ) -> Any:
        seen["dropout"] += bool(dropout_p)
        return attend(query, key, value, attn_mask, 0.0 if off else dropout_p, *rest, **more)

    functions.dropout, functions.scaled_dot_product_attention = dropout, attention


def watch_communication(seen: dict[str, Any]) -> None:
    """Note the bytes that DDP sends, with the number of micro-batches taken until then."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    ddp: Any = torch.nn.parallel.DistributedDataParallel
    made = ddp.__init__

    def counted(group, bucket):  # type: ignore[no-untyped-def]  # torch wants its own types here, or none
        seen["sent"].append([seen["micro_batches"], bucket.buffer().numel() * bucket.buffer().element_size()])
        return allreduce_hook(group, bucket)

    def make(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        seen["gradient_bytes"] = sum(p.numel() * p.element_size() for p in self.parameters() if p.requires_grad)
        self.register_comm_hook(None, counted)

    ddp.__init__ = make


def watch_task(seen: dict[str, Any], asked: dict[str, Any]) -> None:
    """Give the loop the first part of the data, count its micro-batches, and die at the one that was named."""
    task: Any = importlib.import_module("task")
    loss_sum = task.loss_sum

    first: list[tuple[str, ...]] = []  # the turn of the first of several optimizers, or none

    def counted(model: Any, batch: Any, *turn: str) -> Any:
        if torch.is_grad_enabled() and turn == (first or [turn])[0]:
            first[:] = [turn]
            seen["micro_batches"] += 1
            if seen["micro_batches"] == asked["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
        return loss_sum(model, batch, *turn)

    task.loss_sum = counted
    if asked["same_noise"]:
        task.loss_sum = with_same_noise(counted)
        if hasattr(task, "evaluation_sums"):
            task.evaluation_sums = with_same_noise(task.evaluation_sums)
    for name in ("load_train_data", "load_eval_data"):
        if hasattr(task, name):
            setattr(task, name, first_part_of(getattr(task, name), asked["samples"]))


def with_same_noise(loss: Any) -> Any:
    """The loss with the same random numbers for each sample of each micro-batch."""
    same_for_all = runpy.run_path(str(INSIDE / "rehearsed_noise.py"))["SameForAll"]

    def computed(model: Any, batch: Any, *turn: str) -> Any:
        torch.default_generator.manual_seed(7)
        with same_for_all():
            return loss(model, batch, *turn)

    return computed


def first_part_of(load: Any, samples: int) -> Any:
    """The loading function, which returns only the first samples."""

    def load_first_part(*given: Any, **named: Any) -> Any:
        data = load(*given, **named)
        if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__getitem__"):
            return FirstOfStream(data, samples) if hasattr(data, "__len__") else data
        return FirstPart(data, samples)

    return load_first_part


class FirstOfStream(torch.utils.data.IterableDataset[Any]):
    """The first samples of each epoch of a stream."""

    def __init__(self, data: Any, samples: int) -> None:
        self.data, self.samples = data, min(samples, len(data))
        for name in ("set_epoch", "augment"):
            if hasattr(data, name):
                setattr(self, name, getattr(data, name))

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Any:
        return itertools.islice(self.data, self.samples)


class FirstPart(torch.utils.data.Dataset[Any]):
    """The first samples of a dataset. Its attributes with one entry per sample are cut to the same length."""

    def __init__(self, data: Any, samples: int) -> None:
        self.data, self.samples = data, min(samples, len(data))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __getattr__(self, name: str) -> Any:
        if name in ("data", "samples"):  # not set yet, while being unpickled
            raise AttributeError(name)
        value = getattr(self.data, name)
        sliced = isinstance(value, torch.Tensor | list | tuple) and len(value) == len(self.data)
        return value[: self.samples] if sliced else value


def watch_order(seen: dict[str, Any]) -> None:
    """Note the indices of each micro-batch that the loop's samplers return, those of the training first."""
    try:
        batches: Any = importlib.import_module("batches")
        give = batches.RealBatches.__iter__
    except (ImportError, AttributeError):
        return  # a loop that the user wrote

    def give_and_note(self: Any) -> Any:
        given: list[list[int]] = []
        seen["indices"].append(given)
        for micro_batch in give(self):
            given.append([entry[0] if isinstance(entry, tuple) else entry for entry in micro_batch])
            yield micro_batch

    batches.RealBatches.__iter__ = give_and_note


if __name__ == "__main__":
    main()
