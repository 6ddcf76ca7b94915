"""What a rank of a generated program holds of a model that task.py builds, before and after it is sharded.

Runs in a project's folder, as one rank: `first.py FOLDER`. Writes `rank-N.json` there.
"""

import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import task
import torch
import train
from torch.distributed.tensor import DTensor

M_MMAP_THRESHOLD = -3  # malloc.h


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def whole(part: torch.Tensor) -> torch.Tensor:
    """A parameter with the shards of all ranks."""
    if hasattr(part, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([part]):
            return part.detach().clone()
    return part.detach().full_tensor() if isinstance(part, DTensor) else part.detach()


def digests(model: Any) -> dict[str, str]:
    """Of each weight and buffer, and of what is drawn next."""
    weights = {name: whole(part) for name, part in model.named_parameters(remove_duplicate=False)}
    found = {**weights, **dict(model.named_buffers()), "drawn": torch.randn(8)}
    return {
        name.removeprefix("module."): hashlib.sha256(part.float().contiguous().numpy().tobytes()).hexdigest()
        for name, part in found.items()
    }


def main() -> None:
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # what was freed is in no heap any more
    config = train.read_config([])
    accelerator = train.build_accelerator(config)
    torch.manual_seed(config.seed)
    alone = digests(task.build_model(config))
    torch.manual_seed(config.seed)
    before = own_bytes()
    model = train.build(accelerator, lambda: task.build_model(config))
    held = own_bytes() - before
    drawn = torch.randn(8)
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    kept = {
        "shared": model.head.weight is model.embed.weight,
        "listed": bool(getattr(model, "listed", None)) and all(one is model.head.weight for one in model.listed),
        "marked": getattr(model.head.weight, "mark", None),
    }
    optimizer = train.build_optimizer(config, model, accelerator.device)
    wrapped, optimizer = train.prepare(accelerator, model, optimizer)
    sharded = digests(wrapped)
    del sharded["drawn"], alone["drawn"]
    torch.manual_seed(config.seed)
    task.build_model(config)
    found = {
        "held": held,
        "whole": size,
        "kept": kept,
        "drawn": bool((drawn == torch.randn(8)).all()),
        "apart": sorted(name for name in alone if sharded.get(name) != alone[name]),
        "names": sorted(alone),
        "ties": wrapped.get_parameter("head.weight") is wrapped.get_parameter("embed.weight")
        if not hasattr(wrapped, "module")
        else wrapped.module.head.weight is wrapped.module.embed.weight,
    }
    (Path(sys.argv[1]) / f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
