"""The model's log-probabilities of each answer before the training: the reference of a preference loss.

It is computed once, by the model that is about to be trained (a new adapter changes nothing yet), so that there is no
second model in memory. The file is stored with the tokens and named after everything that decides the numbers: a start
that finds it computes nothing, and one that finds a part of it continues from there.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

import task
from batches import Agreement

if TYPE_CHECKING:
    from train import Config

FIRST_LINE_SECONDS, LINE_SECONDS = 2.0, 20.0
WEIGHTS = (".safetensors", ".bin", ".json")  # suffixes of the files that decide a model, or list those that do


def add_references(config: Config, agreement: Agreement, model: nn.Module, data: Any, device: torch.device) -> None:
    """Fill in `data.references`. If a stop is requested, some stay missing, and what is known is kept."""
    path = data.tokens.folder / f"references-{key_of(config, data)}.npy"
    known = data.references
    if agreement.rank == 0 and path.is_file():
        known.copy_(torch.from_numpy(np.load(path)))
    if agreement.group is not None:
        dist.broadcast(known, 0, group=agreement.group)
    missing = known.isnan().any(1).nonzero().flatten()
    # feature: weighted
    missing = missing[data.equal_to[missing] == missing]
    # end: weighted
    if len(missing) == 0:
        return
    was_training = model.training
    model.eval()  # without dropout
    found = torch.zeros(len(known), 3)  # the last column says where something was found
    began, due = time.monotonic(), time.monotonic() + FIRST_LINE_SECONDS
    # Answers of similar length share a micro-batch. Ranks make the same number of forward passes: they may need each
    # other's shards of the model.
    order = missing[data.sizes[missing].argsort(descending=True, stable=True)]
    chunks = order.split(config.per_device_batch_size * config.num_processes)
    for done, chunk in enumerate(chunks, start=1):
        mine = chunk[agreement.rank :: config.num_processes]
        values = log_probs(model, data, (mine if len(mine) else chunk[:1]).tolist(), device)
        found[mine] = nn.functional.pad(values[: len(mine)], (0, 1), value=1.0)
        is_due = agreement.rank == 0 and time.monotonic() > due
        due_anywhere, stop = agreement.reach(int(is_due))
        if due_anywhere or stop or done == len(chunks):
            share(agreement, found, known)
            # feature: weighted
            known.copy_(known[data.equal_to])
            # end: weighted
            if agreement.rank == 0:
                replace(path, known.numpy())
        if is_due:
            left = (time.monotonic() - began) * (len(chunks) / done - 1)
            counted = f"{len(known) - int(known.isnan().any(1).sum()):,} of {len(known):,}"
            print(f"reference log-probabilities: {counted}, about {left:,.0f} s left", flush=True)
            due = time.monotonic() + LINE_SECONDS
        if stop:
            break
    model.train(was_training)


@torch.no_grad()
def log_probs(model: nn.Module, data: Any, indices: list[int], device: torch.device) -> Tensor:
    """Return two log-probabilities of each of some samples. Shape: (samples, 2)."""
    batch, _ = task.collate([data[index] for index in indices], [True] * len(indices))
    return task.answer_log_probs(model, {name: part.to(device) for name, part in batch.items()}).float().cpu()


def share(agreement: Agreement, found: Tensor, known: Tensor) -> None:
    """Add what all ranks found since the last time to what is known."""
    if agreement.group is not None:
        dist.all_reduce(found, group=agreement.group)
    new = found[:, 2] > 0
    known[new] = found[new, :2]
    found.zero_()


def replace(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Write a file atomically."""
    aside = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}")
    with aside.open("wb") as file:
        np.save(file, values)
    aside.replace(path)


def key_of(config: Config, data: Any) -> str:
    """Return a hash of what decides the references: samples, model, precision, and the code that makes both."""
    code = [inspect.getsource(part) for part in (task.build_model, task.answer_log_probs, log_probs)]
    samples = hashlib.blake2b(repr((data.chosen, getattr(data, "mates", None))).encode()).hexdigest()
    keys = [samples, config.sequence_length, config.mixed_precision, torch.__version__, transformers.__version__]
    keys.append(getattr(config, "weights", "float32"))
    # feature: weighted
    keys.append(repr(getattr(data.tokens, "key", None)))  # the folder is that of one source
    # end: weighted
    # feature: fp8
    keys.append("fp8")  # beside it, mixed_precision says bf16
    # end: fp8
    # feature: new_tokens
    keys += [config.special_tokens, config.added_tokens]
    # end: new_tokens
    return hashlib.blake2b(repr([*code, *keys, model_key(config)]).encode(), digest_size=12).hexdigest()


# feature: loaded_weights
def model_key(config: Config) -> list[Any]:
    """Return what decides the model's weights: the files of a folder as they are, or a revision of the hub."""
    folder, dtype = Path(config.model_name), getattr(config, "frozen_dtype", "float32")
    if not folder.is_dir():
        return [config.model_name, transformers.AutoConfig.from_pretrained(config.model_name)._commit_hash, dtype]
    files = sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [str(folder.resolve()), stats, dtype]


# end: loaded_weights
# feature: random_weights
def model_key(config: Config) -> list[Any]:
    """Return what decides the model's random weights: the seed, and all settings of the task."""
    return sorted((name, str(getattr(config, name))) for name in ("seed", *vars(task.TaskConfig())))


# end: random_weights
