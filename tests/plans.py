"""Plans for tests: a base to change, and every strategy on every device, as far as it is rendered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

from trainwiz import config, strategies
from trainwiz import plan as plans
from trainwiz import vocabulary as v
from trainwiz.plan import Plan
from trainwiz.store import plans as store

BASE: Plan = plans.parse(
    plans.nested(
        {
            "engine": "accelerate",
            "model.from_scratch": True,
            "model.activation_checkpointing": "none",
            "model.lora_alpha": 32,
            "data.eval": v.EMBEDDED,
            "data.num_workers": 0,
            "data.packing": True,
            "machine.device": "cpu",
            "machine.num_processes": 1,
            "strategy.kind": "single",
            "strategy.zero_stage": None,
            "strategy.offload_optimizer_device": "none",
            "strategy.offload_param_device": "none",
            "strategy.zero3_init": False,
            "strategy.zero3_save_16bit_model": False,
            "precision.mixed_precision": "no",
            "batch.real_batch_size": 32,
            "batch.per_device_batch_size": 8,
            "batch.gradient_accumulation_steps": 4,
            "batch.sequence_length": 256,
            "schedule.train_strategy": "steps",
            "schedule.n_epochs": None,
            "schedule.n_steps": 100,
            "schedule.n_warmup_steps": 0,
            "optimizer.learning_rate": 3e-4,
            "optimizer.weight_decay": 0.1,
            "checkpoint.checkpointing_steps": 100,
            "tracking.logging_steps": 10,
        }
    )
)
"""One rank on a CPU; the plan's own defaults for the rest."""

STRATEGIES: list[dict[str, Any]] = [
    *(
        {"strategy.kind": row.kind}
        for row in strategies.every()
        if row.engine == "accelerate" and not row.uses_deepspeed
    ),
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
    {"strategy.kind": "fsdp", "task": "custom"},
]


def make(**changes: Any) -> Plan:
    """A plan with changes by dotted key, the dots written as `__`."""
    return plans.with_changes(BASE, {key.replace("__", "."): value for key, value in changes.items()})


def completed(text: str) -> str:
    """The text of a plan's file, with the base's values for the keys that it leaves out."""
    document = config.read("trainwiz.yaml", text)
    whole = store.completed(document, plans.with_changes(BASE, store.values_of(document)), {})
    assert whole is not None
    return whole


def product() -> Iterator[Plan]:
    """Strategies × offload × precision × device × machines."""
    for strategy, precision, device, machines in itertools.product(
        STRATEGIES, get_args(v.MixedPrecision), get_args(v.Device), (1, 2)
    ):
        row = strategies.chosen(strategy["strategy.kind"], strategy.get("strategy.zero_stage"))
        world = 1 if row.one_rank else 2 * machines
        yield plans.with_changes(
            BASE,
            {
                **strategy,
                "precision.mixed_precision": precision,
                "machine.device": device,
                "machine.num_machines": machines if world > 1 else 1,
                "machine.num_processes": world,
                "machine.main_process_ip": "10.0.0.1" if machines > 1 else None,
            },
        )
