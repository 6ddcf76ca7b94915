"""`.vscode/launch.json`: the script under a debugger, and the ranks of `trainwiz launch --debug` to attach to."""

from __future__ import annotations

from typing import Any

from trainwiz import strategies
from trainwiz.command.debugger import HOST, port_of
from trainwiz.plan import Plan

_MOST_RANKS = 16


def configurations(plan: Plan) -> dict[str, Any]:
    """The values of the file (VS Code's debugpy: https://code.visualstudio.com/docs/python/debugging).

    torchrun's ranks are child processes, which debugpy follows with `subProcess`. The entries to attach with have the
    ports that `trainwiz launch --debug` gives the ranks.
    """
    local, world = plan.machine.ranks_per_machine, plan.machine.num_processes
    if world == 1:
        listed = [_configuration(plan, "train.py", 1, world)]
    else:
        listed = [
            _configuration(plan, "train.py: rank 0 alone", 1, world),
            _configuration(plan, f"train.py: all {local} ranks", local, world),
        ]
    if plan.machine.num_machines > 1:
        return {"version": "0.2.0", "configurations": listed}
    ranks = [_attaching(rank) for rank in range(min(world, _MOST_RANKS))]
    values: dict[str, Any] = {"version": "0.2.0", "configurations": [*listed, *ranks]}
    if len(ranks) > 1:
        # For `--debug all`: VS Code attaches to each, and shows them side by side.
        values["compounds"] = [{"name": "attach to all ranks", "configurations": [rank["name"] for rank in ranks]}]
    return values


def _attaching(rank: int) -> dict[str, Any]:
    return {
        "name": f"attach to rank {rank}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": HOST, "port": port_of(rank)},
        "justMyCode": False,
    }


def _configuration(plan: Plan, name: str, ranks: int, world: int) -> dict[str, Any]:
    script = "${workspaceFolder}/train.py"
    real = plan.batch.per_device_batch_size * plan.batch.gradient_accumulation_steps * ranks
    # The script refuses another world than the planned one, unless it is told of it.
    overrides = [] if ranks == world else ["--num_processes", str(ranks), "--real_batch_size", str(real)]
    started: dict[str, Any] = {"program": script, "args": overrides}
    if ranks > 1 or strategies.of(plan).needs_process_group:
        torchrun = ["--standalone", "--nproc_per_node", str(ranks)]
        started = {"module": "torch.distributed.run", "args": [*torchrun, script, *overrides]}
    return {
        "name": name,
        "type": "debugpy",
        "request": "launch",
        **started,
        "cwd": "${workspaceFolder}",
        "console": "integratedTerminal",
        "justMyCode": False,
        "subProcess": True,
        "env": {"PYTHONFAULTHANDLER": "1"} | strategies.of(plan).environment(plan.machine.device),
    }
