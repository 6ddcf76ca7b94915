"""Before a run is continued: whether the plan, as it is now, can go on from its newest checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwiz.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwiz.plan import Plan
    from trainwiz.store.runs import Run

_OVERRIDING = ("--seed", "--real_batch_size", "--num_processes")


def refuse_what_cannot_go_on(plan: Plan, run: Run, arguments: Sequence[str]) -> None:
    """Raise `Refused` with the way out, where the script would refuse, or its engine fail, seconds later."""
    from trainwiz import checkpoint
    from trainwiz.store import checkpoints

    newest = run.checkpoint()
    # What the arguments decide is for the script to judge.
    if newest is None or any(word.partition("=")[0] in _OVERRIDING for word in arguments):
        return
    obstacle = checkpoint.obstacle(plan, checkpoints.manifest(newest))
    if obstacle:
        raise Refused(obstacle.what, obstacle.instead)
