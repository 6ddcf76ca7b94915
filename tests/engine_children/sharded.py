"""What a rank of a generated FSDP2 program holds while the model is loaded, and how often it reduces gradients.

Runs in a project's folder, as one rank: `sharded.py FOLDER`. Writes `rank-N.json` there.
"""

import ctypes
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import sharding
import task
import torch
import torch.distributed
import train
from torch.distributed.tensor import DTensor

M_MMAP_THRESHOLD = -3  # malloc.h


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def watched(found: dict[str, Any], name: str) -> Iterator[None]:
    """Note by how much the memory grew at most."""
    before, done = own_bytes(), threading.Event()
    most = before

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, own_bytes())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        most = max(most, own_bytes())
        done.set()
        thread.join()
        found[name] = most - before


def digest(model: torch.nn.Module) -> str:
    """Of the names, types and bytes of all weights, frozen ones too."""
    made = hashlib.sha256()
    for name, part in sorted(model.named_parameters(remove_duplicate=False)):
        part = part.detach()
        whole = part.full_tensor() if isinstance(part, DTensor) else part
        made.update(f"{name} {whole.dtype}".encode())
        made.update(whole.view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def loading(config: Any, accelerator: Any) -> dict[str, Any]:
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # what was freed is in no heap any more
    found: dict[str, Any] = {"waits": []}
    new_group = torch.distributed.new_group

    def noted(*, backend: str, timeout: Any) -> Any:
        found["waits"].append([backend, timeout.total_seconds()])
        return new_group(backend=backend, timeout=timeout)

    torch.distributed.new_group = noted
    torch.manual_seed(config.seed)
    with watched(found, "build"):
        model = sharding.build(accelerator, lambda: task.build_model(config))
    torch.distributed.new_group = new_group
    optimizer = train.build_optimizer(config, model, accelerator.device)
    with watched(found, "prepare"):
        model, optimizer = sharding.prepare(accelerator, model, optimizer)
    found["parameters"] = sum(p.numel() for p in model.parameters())
    shards = [p.to_local() for p in model.parameters()]
    found["kept"] = sum(shard.numel() for shard in shards)
    found["held"] = sum(shard.untyped_storage().nbytes() for shard in shards)
    found["digest"] = digest(model)
    if accelerator.is_main_process and sharding.places:
        torch.manual_seed(config.seed)
        found["published"] = digest(task.build_model(config))
    if accelerator.is_main_process and (packed := sys.modules.get("four_bits")):
        torch.manual_seed(config.seed)
        alone = task.build_model(config)
        packed.as_numbers(alone, getattr(torch, config.frozen_dtype))
        found["rounded"] = digest(alone)
    found["trained"] = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    return found


def reductions(config: Any, accelerator: Any) -> dict[str, Any]:
    """Train, and count reduce-scatters and the types of what they reduce and of the loss."""
    found: dict[str, Any] = {"count": 0, "reduced": set(), "losses": set()}
    # Its name in torch 2.13, and before.
    name = next(n for n in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(torch.distributed, n))
    reduce, loss_sum = getattr(torch.distributed, name), task.loss_sum

    def counted(*arguments: Any, **options: Any) -> Any:
        found["count"] += 1
        tensors = (one for one in (*arguments, *options.values()) if isinstance(one, torch.Tensor))
        found["reduced"] |= {str(one.dtype) for one in tensors}
        return reduce(*arguments, **options)

    def seen(*arguments: Any) -> torch.Tensor:
        loss = loss_sum(*arguments)
        found["losses"].add(str(loss.dtype))
        return loss

    setattr(torch.distributed, name, counted)
    task.loss_sum = seen
    train.train(config, accelerator)
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}


def main() -> None:
    folder, what, *arguments = sys.argv[1:]
    config = train.read_config(arguments)
    accelerator = train.build_accelerator(config)
    found = {"loading": loading, "reductions": reductions}[what](config, accelerator)
    (Path(folder) / f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
