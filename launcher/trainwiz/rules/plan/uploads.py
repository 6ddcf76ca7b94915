"""Uploading the trained model to the Hugging Face hub."""

from __future__ import annotations

from trainwiz import strategies
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule


@rule("TW549", level=Level.ERROR, field="model.push_to_hub")
def an_upload_has_a_token_and_a_model(plan: Plan, project: Project) -> Violations:
    """An upload to the hub needs a token, access to the hub, and a whole model.

    Without it: the training runs to its end, and then nothing is uploaded: `401 Client Error`, `OfflineModeIsEnabled`,
    or no folder.
    Why: the hub's client reads the token from HF_TOKEN, HF_TOKEN_PATH or the file that `hf auth login` writes, and
    uploads nothing under HF_HUB_OFFLINE. ZeRO 3 writes a whole model only with strategy.zero3_save_16bit_model.
    Instead: log in before the training starts, or leave model.push_to_hub empty and use trainwiz export --push later.
    Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    if plan.model.push_to_hub is None:
        return
    if project.offline:
        yield violation(
            "model.push_to_hub is {repository}, but HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids access to the hub",
            remedy(
                "unset it, or leave {key} empty and upload later: trainwiz export --push {repository}",
                {"model.push_to_hub": None},
                key="model.push_to_hub",
                repository=plan.model.push_to_hub,
            ),
            repository=plan.model.push_to_hub,
        )
    elif project.hub_token is False:
        yield violation(
            "model.push_to_hub is {repository}, but there is no token for the hub",
            remedy(
                "run `hf auth login` with a token that has write access, or leave {key} empty",
                {"model.push_to_hub": None},
                key="model.push_to_hub",
            ),
            repository=plan.model.push_to_hub,
        )
    if not strategies.of(plan).saves_final_weights(plan):
        yield violation(
            "model.push_to_hub is {repository}, but {strategy} writes no whole model at the end",
            setting("strategy.zero3_save_16bit_model", True),
            repository=plan.model.push_to_hub,
            strategy=plan.strategy.label,
        )
