"""Which samples an update uses: one global order, split over ranks and micro-batches.

Nothing here depends on the engine. The samples of an update are a function of seed and update alone. They do not
depend on the number of ranks, the split of the batch, or interruptions.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator

# feature: real_batch_mean
from collections.abc import Iterable

# end: real_batch_mean
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

import task

if TYPE_CHECKING:
    from train import Config


def check_batch(config: Config, refuse: Callable[[str], object]) -> None:
    """Print the batch equation. Refuse wrong batch sizes, an unplanned number of ranks, and a wrong length."""
    product = config.per_device_batch_size * config.gradient_accumulation_steps * config.num_processes
    equation = (
        f"real_batch_size {config.real_batch_size} = per_device_batch_size {config.per_device_batch_size}"
        f" * gradient_accumulation_steps {config.gradient_accumulation_steps} * num_processes {config.num_processes}"
    )
    if product != config.real_batch_size or min(config.per_device_batch_size, config.gradient_accumulation_steps) < 1:
        refuse(f"{equation} does not hold: the product is {product}")
    if min(config.n_steps, config.n_epochs) != 0 or max(config.n_steps, config.n_epochs) < 1:
        refuse(f"n_steps {config.n_steps}, n_epochs {config.n_epochs}: one of them says how long, and the other is 0")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != config.num_processes:
        refuse(
            f"planned for {config.num_processes} ranks, started with {world}; "
            f"start {config.num_processes}, or pass --num_processes {world} and a batch equation that holds"
        )
    if os.environ.get("RANK", "0") == "0":
        print(equation, flush=True)


class RealBatches(Sampler[list[Any]]):
    """Yield the indices of this rank's micro-batches, for updates `start` … `end` - 1 in order.

    The global order is a permutation by (seed, epoch), cut into real batches of shape (accumulation, world, micro).
    The last real batch of an epoch is padded with -1, which counts zero.
    """

    def __init__(self, config: Config, length: int, rank: int, start: int, end: int) -> None:
        self.shape = (config.gradient_accumulation_steps, config.num_processes, config.per_device_batch_size)
        self.seed, self.length, self.rank, self.start, self.end = config.seed, length, rank, start, end
        self.updates_per_epoch = -(-length // config.real_batch_size)

    def __len__(self) -> int:
        return (self.end - self.start) * self.shape[0]

    def __iter__(self) -> Iterator[list[Any]]:
        size, shuffled_epoch = math.prod(self.shape), -1
        for update in range(self.start, self.end):
            epoch, position = divmod(update, self.updates_per_epoch)
            if epoch != shuffled_epoch:
                generator = torch.Generator().manual_seed(keyed_seed(self.seed, epoch))
                order, shuffled_epoch = torch.randperm(self.length, generator=generator), epoch
            real_batch = order[position * size : (position + 1) * size]
            # feature: grouped
            # Samples of similar size share a micro-batch. Which samples an update uses stays random.
            real_batch = real_batch[self.sizes[real_batch].argsort(descending=True, stable=True)]
            # end: grouped
            real_batch = nn.functional.pad(real_batch, (0, size - len(real_batch)), value=-1)
            for micro_batch in real_batch.view(self.shape)[:, self.rank]:
                # feature: plain_samples
                yield micro_batch.tolist()
                # end: plain_samples
                # feature: keyed_samples
                yield [(index, keyed_seed(self.seed, epoch, index)) for index in micro_batch.tolist()]
                # end: keyed_samples


# feature: plain_samples
class Padded(Dataset[tuple[Any, bool]]):
    """The task's data. An index of -1 gives a sample that counts zero."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __getitem__(self, index: int) -> tuple[Any, bool]:
        return self.data[max(index, 0)], index >= 0


# end: plain_samples
# feature: augmented_samples
class Padded(Dataset[tuple[Any, bool]]):
    """The task's data. An index of -1 gives a sample that counts zero.

    Each sample is augmented with its own generator, seeded by (seed, epoch, index), so the result is the same on every
    rank, in every data worker and after every resume.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __getitem__(self, keyed: tuple[int, int]) -> tuple[Any, bool]:
        index, seed = keyed
        return self.data.augment(self.data[max(index, 0)], torch.Generator().manual_seed(seed)), index >= 0


# end: augmented_samples
# feature: own_samples
class Padded(Dataset[tuple[Any, bool]]):
    """The task's data. An index of -1 gives a sample that counts zero.

    If the data has `augment(sample, generator)`, each sample goes through it with its own generator, seeded by (seed,
    epoch, index), so the result is the same on every rank, in every data worker and after every resume.
    """

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __getitem__(self, keyed: tuple[int, int]) -> tuple[Any, bool]:
        index, seed = keyed
        sample = self.data[max(index, 0)]
        if hasattr(self.data, "augment"):
            sample = self.data.augment(sample, torch.Generator().manual_seed(seed))
        return sample, index >= 0


# end: own_samples
def assemble(pairs: list[tuple[Any, bool]]) -> tuple[task.Batch, int]:
    """Collate samples into a micro-batch and its count."""
    samples, counted = zip(*pairs, strict=True)
    # feature: own_samples
    made = task.collate(list(samples), list(counted))
    if not isinstance(made, tuple) or len(made) != 2 or not math.isfinite(count := float(made[1])) or count < 0:
        raise ValueError("collate in task.py must return a micro-batch and the count of what its loss sums over")
    if count and not any(counted):
        raise ValueError(
            f"collate in task.py counts {count:g} for samples that only pad the last batch: look at counted"
        )
    return made
    # end: own_samples
    # feature: plain_samples
    return task.collate(list(samples), list(counted))
    # end: plain_samples
    # feature: augmented_samples
    return task.collate(list(samples), list(counted))
    # end: augmented_samples


def load_batches(config: Config, data: Dataset[Any], batches: RealBatches) -> DataLoader[tuple[task.Batch, int]]:
    """Return a loader of this rank's micro-batches with their counts."""
    # feature: grouped
    batches.sizes = data.sizes
    # end: grouped
    return DataLoader(
        Padded(data),
        batch_sampler=batches,
        collate_fn=assemble,
        num_workers=config.num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(config.seed),  # so that loading does not draw from the global generator
    )


# feature: real_batch_mean
MicroBatches = Iterable[tuple[task.Batch, int]]
Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Returns the sum over all ranks."""


@torch.no_grad()
def mean_over(model: nn.Module, micro_batches: MicroBatches, device: torch.device, reduce: Reduce) -> torch.Tensor:
    """Return the mean over the samples of all micro-batches and ranks, which the loss of each micro-batch needs."""
    sums: Any = 0
    for batch, _ in micro_batches:
        there = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        sums = sums + task.real_batch_sums(model, there)
    total, count = reduce(sums)
    return total / count


def with_mean(
    model: nn.Module, micro_batches: list[tuple[task.Batch, int]], device: torch.device, reduce: Reduce
) -> list[tuple[task.Batch, int]]:
    """Return the micro-batches of an update with the mean over its real batch."""
    mean = mean_over(model, micro_batches, device, reduce)
    return [({**batch, "mean": mean}, count) for batch, count in micro_batches]


# end: real_batch_mean
def keyed_seed(*keys: int) -> int:
    """Return a 63-bit seed that depends only on the keys."""
    return int.from_bytes(hashlib.blake2b(repr(keys).encode(), digest_size=8).digest(), "big") >> 1


# feature: eval
class Stopped(Exception):
    """A stop was requested during an evaluation."""


# end: eval
class Agreement:
    """Lets all ranks agree before each update on the count of the real batch and on whether to stop.

    It exchanges host numbers over gloo, so it never waits for the device. SIGTERM, SIGUSR1 or Ctrl-C requests a stop.
    """

    def __init__(self) -> None:
        self.stopping, self.asked_at = False, 0.0
        self.group = self.host_group() if dist.is_initialized() else None
        self.rank = dist.get_rank() if self.group else 0
        signal.signal(signal.SIGTERM, self.ask_to_stop)
        signal.signal(signal.SIGINT, self.ask_to_stop)
        signal.signal(signal.SIGUSR1, self.ask_to_stop)  # sent by job schedulers as an early warning

    @staticmethod
    def host_group() -> dist.ProcessGroup | None:
        """Return a gloo group of all ranks: on a CPU the engine's own, because a second one costs 1 ms per update."""
        return dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def ask_to_stop(self, number: int, _frame: object) -> None:
        """Stop after this update and save a checkpoint. On a second request, exit at once."""
        # Under torchrun, one Ctrl-C arrives twice: from the terminal and from torchrun.
        if self.stopping and time.monotonic() - self.asked_at > 1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.stopping, self.asked_at = True, time.monotonic()

    def reach(self, count: float) -> tuple[float, bool]:
        """Return the sum of `count` over all ranks, and whether any of them should stop."""
        numbers = torch.tensor([count, self.stopping], dtype=torch.float64)  # a task may count weights
        if self.group is not None:
            dist.all_reduce(numbers, group=self.group)
        return float(numbers[0]), bool(numbers[1])

    # feature: eval
    def unless_stopped(self, batches: DataLoader[Any]) -> Iterator[Any]:
        """Yield these micro-batches, the same number on each rank. Once any rank should stop, all raise `Stopped`."""
        for batch in batches:
            if self.reach(0)[1]:
                raise Stopped
            yield batch

    # end: eval
    def same(self, number: int, what: str) -> None:
        """Exit if a number is not the same on all ranks."""
        every = [int(found) for [found] in self.collect([number])]
        if len({*every}) > 1:
            raise SystemExit(f"{what} on each rank: {', '.join(map(str, every))}; all ranks must have the same")

    def collect(self, numbers: list[float]) -> list[list[float]]:
        """Return these numbers from every rank."""
        own = torch.tensor(numbers, dtype=torch.float64)
        every = [own] * (dist.get_world_size() if self.group is not None else 1)
        if self.group is not None:
            every = [torch.empty_like(own) for _ in every]
            dist.all_gather(every, own, group=self.group)
        return [rank.tolist() for rank in every]
