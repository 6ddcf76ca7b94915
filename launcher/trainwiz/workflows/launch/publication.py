"""Uploading the trained model to the hub after a training, where the plan names a repository."""

from __future__ import annotations

from trainwiz.errors import TrainwizError
from trainwiz.language import t
from trainwiz.outcome import signal_name
from trainwiz.plan import Plan
from trainwiz.process import early
from trainwiz.store.runs import Run
from trainwiz.ui import console
from trainwiz.workflows.weights import hub
from trainwiz.workflows.weights.gathered import MERGED, MODEL


def publish(python: str, plan: Plan, run: Run) -> None:
    """Upload the merged model, or what there is. A failure is said: the training has ended well all the same."""
    repository = plan.model.push_to_hub
    folder = next((there for name in (MERGED, MODEL) if (there := run.folder / name).is_dir()), None)
    if repository is None:
        return
    if folder is None:
        console.talk(t("nothing to upload: {folder} has no model", folder=run.folder), style="warning")
        return
    try:
        with early.heard():
            hub.push(python, folder, repository, public=plan.model.push_public)
    except early.Stopped as stopped:
        name = signal_name(stopped.signum)
        console.talk(
            t("{signal}: the upload was ended; the model is in {folder}", signal=name, folder=folder), style="warning"
        )
    except TrainwizError as error:
        console.failure(error)
