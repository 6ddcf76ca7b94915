"""Many runs of one generated train.py over CPU ranks, forked from a process that has imported torch once.

Arguments: the project's folder and a file with a JSON list of runs. Each run says its `ranks`, `output` folder and
`arguments`, may name another `project`, and may ask for `sent` (the bytes that DDP sends in each update). The exit
codes and notes of all ranks go to stdout as JSON; what the ranks say goes to `rank-N.log` in the output folder.
"""

import json
import os
import runpy
import sys
import traceback
from collections import Counter
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import accelerate  # noqa: F401
import claimed
import deepspeed  # noqa: F401  # accelerate imports it in the end, which would take each rank 0.6 s
import torch
import torch._dynamo  # and the optimizer this, 1.1 s
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def main():
    folder, runs = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    ended = []
    for run in runs:
        sys.path[0] = run.get("project", folder)
        os.chdir(sys.path[0])
        output = Path(run["output"])
        output.mkdir(parents=True, exist_ok=True)
        port = claimed.port()
        children = [fork(run, rank, port) for rank in range(run["ranks"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        notes = [json.loads(file.read_text()) for file in sorted(output.glob("noted-*.json"))]
        ended.append({"codes": codes, "notes": notes})
    print(json.dumps(ended))


def fork(run, rank, port):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        log = os.open(f"{run['output']}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = rank_of(run, rank, port)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rank_of(run, rank, port):
    contract = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run["ranks"], "LOCAL_WORLD_SIZE": run["ranks"]}
    os.environ |= {name: str(value) for name, value in contract.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    named = {"output_dir": run["output"], "num_processes": run["ranks"], **run["arguments"]}
    sys.argv = ["train.py", *(word for name, value in named.items() for word in (f"--{name}", str(value)))]
    noted = watch_sending() if run.get("sent") else {}
    try:
        runpy.run_path("train.py", run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    Path(run["output"], f"noted-{rank}.json").write_text(json.dumps(noted))
    return 0


def watch_sending():
    """Bytes by update, and those of one gradient; an update is what lies between two steps of the optimizer."""
    noted = {"sent": Counter(), "updates": 0}
    ddp, adamw = torch.nn.parallel.DistributedDataParallel, torch.optim.AdamW
    made, step = ddp.__init__, adamw.step

    def counted(_, bucket):
        noted["sent"][noted["updates"]] += bucket.buffer().numel() * bucket.buffer().element_size()
        return allreduce_hook(None, bucket)

    def make(self, *given, **named):
        made(self, *given, **named)
        noted["gradient"] = sum(p.numel() * p.element_size() for p in self.parameters())
        self.register_comm_hook(None, counted)

    def count(self, *given, **named):
        noted["updates"] += 1
        return step(self, *given, **named)

    ddp.__init__, adamw.step = make, count
    return noted


if __name__ == "__main__":
    main()
