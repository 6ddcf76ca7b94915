"""DDP with torchrun: a sampler that knows the epoch, no_sync, rank 0 writes, resume by the update's number."""

import contextlib
import os
import re
from pathlib import Path

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

ACCUMULATION = 4


def newest(folder):
    found = [p for p in Path(folder).glob("checkpoint-*.pt") if re.fullmatch(r"checkpoint-\d+", p.stem)]
    return max(found, key=lambda p: int(p.stem.split("-")[1]), default=None)


def save(model, optimizer, update, folder):
    if dist.get_rank() != 0:
        return
    path = Path(folder) / f"checkpoint-{update}.pt"
    torch.save(
        {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "update": update}, f"{path}.tmp"
    )
    os.replace(f"{path}.tmp", path)


def main(model, data, folder):
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.manual_seed(42)
    model = DistributedDataParallel(model.to(device), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    sampler = DistributedSampler(data, shuffle=True, seed=42)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    writer = SummaryWriter() if rank == 0 else None
    if rank == 0:
        wandb.init(project="right")
    update = 0
    if (path := newest(folder)) is not None:
        state = torch.load(path, map_location=device, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        update = state["update"]
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for i, batch in enumerate(tqdm(loader, disable=rank != 0)):
            last = (i + 1) % ACCUMULATION == 0 or i + 1 == len(loader)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch.to(device)).mean() / ACCUMULATION
                loss.backward()
            if last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                update += 1
                if update % 10 == 0:
                    mean = loss.detach().clone()
                    dist.all_reduce(mean)
                    if rank == 0:
                        writer.add_scalar("loss", mean.item() / world_size, update)
                        wandb.log({"loss": mean.item() / world_size})
        save(model, optimizer, update, folder)
        dist.barrier()
    dist.destroy_process_group()


def load_once(rank, make):
    if rank != 0:
        dist.barrier()
    data = make()
    if rank == 0:
        dist.barrier()
    return data
