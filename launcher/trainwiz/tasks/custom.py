"""The user's own Dataset and Module, beginning from a small regression."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.task import Task

TASK = Task(
    name="custom",
    summary=say("your own Dataset and Module, from a small example"),
    samples="own",
    parts=("hooks.py", "checks.py", "streams.py"),
    sharded_layer="Block",
    weight_decay=(0.0, say("off for a small regression task")),
    regions={"sample": False, "own_samples": True, "keyed_samples": True, "plain_samples": False},
)
