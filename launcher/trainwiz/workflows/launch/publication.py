"""Uploading the trained model to the hub after a training, where the plan names a repository."""

from __future__ import annotations

from trainwiz.errors import Ended, TrainwizError
from trainwiz.language import t
from trainwiz.plan import Plan
from trainwiz.process import early_signals
from trainwiz.shell_words import quoted
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.weights import hub
from trainwiz.workflows.weights.gathered import MERGED, MODEL

_ABOUT = ("model.", "data.", "schedule.n_steps", "schedule.n_epochs", "schedule.train_strategy")
"""Differences that make a run another training than the one whose model the plan publishes."""


def publish(python: str, plan: Plan, run: Run) -> None:
    """Upload the merged model, or what there is. A failure is said: the training has ended well all the same."""
    repository = plan.model.push_to_hub
    if repository and (other := _otherwise(run)):
        key, planned, used = other
        console.talk(
            t(
                "not uploaded to {repository}: this run used {used} for {key}, but the plan has {planned}; to "
                "upload its model anyway: trainwiz export {run} --push {repository}",
                repository=repository,
                used=used,
                key=key,
                planned=planned,
                run=quoted(run.folder),
            ),
            style="warning",
        )
        return
    folder = next((there for name in (MERGED, MODEL) if (there := run.folder / name).is_dir()), None)
    if repository is None:
        return
    if folder is None:
        console.talk(t("nothing to upload: {folder} has no model", folder=run.folder), style="warning")
        return
    try:
        with early_signals.raised():
            hub.push(python, folder, repository, public=plan.model.push_public)
    except Ended as ended:
        hub.ended(ended, folder)
    except TrainwizError as error:
        console.failure(error)


def _otherwise(run: Run) -> tuple[str, object, object] | None:
    """A key that the run did not take from its plan, with both values: a trial must not replace a model."""
    said = run.read("command").get("instead_of_plan")
    for key, values in said.items() if isinstance(said, dict) else ():
        if key.startswith(_ABOUT) and isinstance(values, dict):
            planned, used = (("null" if values.get(side) is None else values[side]) for side in ("plan", "used"))
            return key, planned, used
    return None
