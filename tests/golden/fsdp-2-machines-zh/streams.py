"""Data without an index: an iterable that gives the samples one after another. It is split like data with an index.

Real batches are cut from the stream in its own order. Every rank reads all of it and keeps its own micro-batches, so
the stream must be the same on every rank: it must not be split by rank, nor depend on the global random generators. A
run resumes at the right sample by reading past those before it.

An iterable with a length is read to its end in each epoch; before each, its `set_epoch(epoch)` is called if it has one,
which is the place to shuffle anew. One without a length is read once, and n_steps limits the training.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import batches
import task

if TYPE_CHECKING:
    from train import Config

ENDLESS = sys.maxsize
"""Stands for the length of a stream that has none."""


class Stream(Dataset[Any]):
    """An iterable with its length."""

    def __init__(self, data: Any) -> None:
        self.data = data
        try:
            self.length = len(data)
        except TypeError:
            self.length = ENDLESS

    def __len__(self) -> int:
        return self.length

    def epoch(self, number: int) -> Iterator[Any]:
        """Return the samples of an epoch, from the first one."""
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(number)
        return iter(self.data)


def indexed(data: Any, config: Config, *, ends: bool = False) -> Dataset[Any]:
    """Return data with an index as it is, and a stream with its length. `ends`: it must have one."""
    name = f"{'load_eval_data' if ends else 'load_train_data'} in task.py returns a {type(data).__name__}"
    if isinstance(data, DataLoader):
        raise SystemExit(f"{name}: return its dataset; the project makes the batches")
    if isinstance(data, Mapping):
        raise SystemExit(f"{name} ({', '.join(map(str, [*data][:4]))}): return one of its parts")
    if isinstance(data, str | bytes) or hasattr(data, "iloc"):
        raise SystemExit(f"{name}: return samples, each with an index from 0 on, such as a list")
    if not isinstance(data, IterableDataset) and hasattr(data, "__getitem__"):
        if not hasattr(data, "__len__"):
            raise SystemExit(f"{name} without a length: give it __len__, or make it an IterableDataset")
        return data
    if not isinstance(data, Iterable):
        raise SystemExit(f"{name}, which is no data: it needs __len__ and __getitem__, or __iter__")
    stream = Stream(data)
    if stream.length == ENDLESS and (ends or config.n_steps == 0):
        why = "an evaluation reads it to its end" if ends else "n_epochs counts in it; n_steps needs none"
        raise SystemExit(f"{type(data).__name__} is a stream without a length: give it __len__, because {why}")
    return stream


class OwnMicroBatches(IterableDataset[tuple[task.Batch, int]]):
    """This rank's micro-batches of a stream, for the updates of `order`."""

    def __init__(self, stream: Stream, order: batches.RealBatches) -> None:
        self.stream, self.order = stream, order

    def __iter__(self) -> Iterator[tuple[task.Batch, int]]:
        accumulation, world, size = self.order.shape
        update = self.order.start
        while update < self.order.end:
            epoch, position = divmod(update, self.order.updates_per_epoch)
            reader = Reader(self.stream, epoch, self.order.seed)
            if position:
                past = position * accumulation * world * size
                if self.order.rank == 0:
                    print(f"skipping the first {past} samples of the stream, which were already used", flush=True)
                reader.skip(past)
            for _ in range(min(self.order.end - update, self.order.updates_per_epoch - position)):
                for number in range(accumulation * world):
                    if number % world == self.order.rank:
                        yield batches.assemble(reader.read(size))
                    else:
                        reader.skip(size)
                update += 1
            if update < self.order.end:
                reader.check_end()


class Reader:
    """Reads one epoch of a stream, and checks its length."""

    def __init__(self, stream: Stream, epoch: int, seed: int) -> None:
        self.stream, self.epoch, self.seed, self.done = stream, epoch, seed, 0
        self.samples = stream.epoch(epoch)
        self.last: Any = None  # pads the last real batch

    def skip(self, n: int) -> None:
        """Read past `n` samples, or to the end of the epoch."""
        n = min(n, self.stream.length - self.done)
        for sample in itertools.islice(self.samples, n):
            self.last, self.done, n = sample, self.done + 1, n - 1
        if n:
            self.complain()

    def read(self, n: int) -> list[tuple[Any, bool]]:
        """Return `n` samples, and for each whether it counts; those after the end of the epoch do not."""
        found: list[tuple[Any, bool]] = []
        while len(found) < n:
            place, counts = self.done, self.done < self.stream.length
            if counts:
                self.skip(1)
            found.append((self.augmented(place), counts))
        return found

    def augmented(self, place: int) -> Any:
        """Return the sample just read, with its own generator, as data with an index is."""
        augment = getattr(self.stream.data, "augment", None)
        if augment is None:
            return self.last
        return augment(self.last, torch.Generator().manual_seed(batches.keyed_seed(self.seed, self.epoch, place)))

    def complain(self) -> None:
        """Refuse a stream that is shorter than it says, or than the training."""
        if self.stream.length == ENDLESS:
            raise RuntimeError(f"the stream ended after {self.done} samples; n_steps needs more: repeat it")
        raise RuntimeError(f"the stream ended after {self.done} samples, but its length is {self.stream.length}")

    def check_end(self) -> None:
        """Refuse a stream that is longer than it says."""
        if next(self.samples, self) is not self:
            raise RuntimeError(f"the stream has more than the {self.done} samples that its length says")


def load_batches(config: Config, data: Dataset[Any], order: batches.RealBatches) -> DataLoader[Any]:
    """Return a loader of this rank's micro-batches with their counts."""
    if not isinstance(data, Stream):
        return batches.load_batches(config, data, order)
    return DataLoader(
        OwnMicroBatches(data, order),
        batch_size=None,
        num_workers=min(1, config.num_workers),  # each worker would read all of the stream
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(config.seed),
    )
