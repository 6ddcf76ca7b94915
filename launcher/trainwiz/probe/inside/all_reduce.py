"""One rank of an all-reduce: check the sum, and measure the time.

Arguments: device (cuda or cpu) and bytes per rank. The environment variables are those of torch.distributed.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time

WARM_UP, ROUNDS = 3, 10


def main() -> None:
    sys.path[:] = [p for p in sys.path if os.path.realpath(p or ".") != os.path.dirname(os.path.realpath(__file__))]
    import torch
    import torch.distributed as dist

    cuda, size = sys.argv[1] == "cuda", int(sys.argv[2])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = torch.empty(size // 4, dtype=torch.float32, device=device)
    seconds, right = [], True
    for turn in range(WARM_UP + ROUNDS):
        numbers.fill_(rank + 1)
        dist.barrier()
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        dist.all_reduce(numbers)
        if cuda:
            torch.cuda.synchronize()
        if turn >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
        right = right and bool((numbers == world * (world + 1) // 2).all())
    verdict = torch.tensor([int(right)], device=device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    if rank == 0:
        found = {"seconds": statistics.median(seconds), "correct": bool(verdict.item())}
        sys.stdout.write("\n" + json.dumps(found) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
