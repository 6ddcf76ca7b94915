"""A training script as people write it: ragged samples, accumulation in one of the two ways that accelerate offers.

Sample i holds the numbers 1 … i + 1, each to be called odd or even. An update's loss is the mean over all numbers of
its real batch, whichever micro-batches and ranks they are in.
"""

import argparse
import contextlib
import gc
import itertools
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--style", choices=["no_sync", "accumulate"], required=True)
parser.add_argument("--sync_with_dataloader", type=json.loads, default=True)
parser.add_argument("--samples", type=int, default=12)
parser.add_argument("--batch", type=int, default=1, help="samples of a micro-batch")
parser.add_argument("--steps", type=int, default=4, help="micro-batches per rank and update")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--output", type=Path, required=True)
args = parser.parse_args()

if args.style == "accumulate":
    plugin = GradientAccumulationPlugin(num_steps=args.steps, sync_with_dataloader=args.sync_with_dataloader)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin)
else:
    accelerator = Accelerator()

torch.manual_seed(0)
model = torch.nn.Linear(1, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
samples = [torch.arange(1.0, i + 2) for i in range(args.samples)]
loader = DataLoader(samples, batch_size=args.batch, collate_fn=torch.cat)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def loss_of(numbers):
    logits = model(numbers[:, None])
    return torch.nn.functional.cross_entropy(logits, (numbers % 2).long(), reduction="sum")


def counted(window):
    """How many numbers all ranks together have in these micro-batches."""
    count = torch.tensor([sum(len(numbers) for numbers in window)], device=accelerator.device)
    return accelerator.gather(count).sum()


def by_no_sync():
    """The window is fetched first, so that its numbers can be counted; ranks meet in its last backward only."""
    for _ in range(args.epochs):
        batches = iter(loader)
        while window := list(itertools.islice(batches, args.steps)):
            count = counted(window)
            for number, numbers in enumerate(window, start=1):
                last = number == len(window)
                with contextlib.nullcontext() if last else accelerator.no_sync(model):
                    accelerator.backward(loss_of(numbers) * accelerator.num_processes / count)
            optimizer.step()
            optimizer.zero_grad()


def by_accumulate():
    """`accumulate` says when an update is due. What a window holds is counted in a first pass over the data."""
    passes = [list(loader) for _ in range(args.epochs)]
    rows = passes if args.sync_with_dataloader else [list(itertools.chain(*passes))]
    windows = [row[i : i + args.steps] for row in rows for i in range(0, len(row), args.steps)]
    counts = [counted(window) for window in windows for _ in window]
    for epoch, first in enumerate(itertools.accumulate((len(p) for p in passes[:-1]), initial=0)):
        assert len(passes[epoch]) == len(loader)
        for number, numbers in enumerate(loader, start=first):
            with accelerator.accumulate(model):
                scale = args.steps * accelerator.num_processes / counts[number]
                accelerator.backward(loss_of(numbers) * scale)
                optimizer.step()
                optimizer.zero_grad()


by_no_sync() if args.style == "no_sync" else by_accumulate()
if accelerator.is_main_process:
    weights = accelerator.unwrap_model(model).weight.detach().flatten().tolist()
    args.output.write_text(json.dumps({"weights": weights, "ranks": accelerator.num_processes}))
# In this order, or gloo may abort while the program ends.
accelerator.wait_for_everyone()
model, optimizer = accelerator.free_memory(model, optimizer)
gc.collect()
accelerator.end_training()
