"""Plans for tests: every strategy on every device, as far as it is rendered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

from trainwiz import plan as plans
from trainwiz import vocabulary as v
from trainwiz.plan import Plan

STRATEGIES: list[dict[str, Any]] = [
    {"strategy.kind": "single"},
    {"strategy.kind": "ddp"},
    *(
        {
            "strategy.kind": "deepspeed",
            "strategy.zero_stage": stage,
            "strategy.offload_optimizer_device": optimizer,
            "strategy.offload_param_device": parameters,
            "strategy.nvme_path": "/nvme" if "nvme" in (optimizer, parameters) else None,
            "strategy.zero3_init": stage == 3 and parameters == "none",
            "strategy.zero3_save_16bit_model": stage == 3,
        }
        for stage, optimizer, parameters in itertools.product(
            range(4), get_args(v.OffloadDevice), get_args(v.OffloadDevice)
        )
    ),
    {"strategy.kind": "fsdp"},
    {"strategy.kind": "fsdp", "task": "custom"},
]


def make(**changes: Any) -> Plan:
    """A plan with changes by dotted key, the dots written as `__`."""
    return plans.with_changes(Plan(), {key.replace("__", "."): value for key, value in changes.items()})


def product() -> Iterator[Plan]:
    """Strategies × offload × precision × device × machines."""
    for strategy, precision, device, machines in itertools.product(
        STRATEGIES, get_args(v.MixedPrecision), get_args(v.Device), (1, 2)
    ):
        world = 1 if strategy["strategy.kind"] == "single" else 2 * machines
        yield plans.with_changes(
            Plan(),
            {
                **strategy,
                "precision.mixed_precision": precision,
                "machine.device": device,
                "machine.num_machines": machines if world > 1 else 1,
                "machine.num_processes": world,
                "machine.main_process_ip": "10.0.0.1" if machines > 1 else None,
            },
        )
