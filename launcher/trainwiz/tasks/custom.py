"""The user's own Dataset and Module, beginning from a small regression."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.task import Task

TASK = Task(
    name="custom",
    summary=say("your own Dataset and Module, starting from a small regression"),
    samples="own",
    sharded_layer="Block",
    weight_decay=(0.0, say("off for a small regression task")),
    regions={"sample": False, "own_samples": True, "keyed_samples": True, "plain_samples": False},
    gathered_metrics={"eval_loss": "min", "eval_pearson": "max"},
)
