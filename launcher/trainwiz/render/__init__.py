"""Plan → artifacts: every file of a generated project, as text. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainwiz.command.settings import ACCELERATE_FILE, DEEPSPEED_FILE
from trainwiz.render.artifact import Artifact

if TYPE_CHECKING:
    from trainwiz.plan import Plan

__all__ = [
    "ACCELERATE_FILE",
    "DEEPSPEED_FILE",
    "PLAN_FILE",
    "SETTINGS",
    "Artifact",
    "job_files",
    "project",
    "training_files",
]

PLAN_FILE = "trainwiz.yaml"
_JOB_HEAD = "Made from trainwiz.yaml; `trainwiz submit` checks and submits it."
SETTINGS = ("task.py", "train.py")
"""The scripts whose config dataclasses hold the plan's values; the second one's derives from the first one's."""


def project(
    plan: Plan,
    templates: Mapping[str, str],
    *,
    reasons: Mapping[str, str] = MappingProxyType({}),
    language: str = "en",
) -> tuple[Artifact, ...]:
    """All files of a project, the plan first.

    `templates` maps `templates/…` and `train_templates/…` to their text, as `store.templates.load` gives them.
    `reasons` (dotted key → one sentence in the reader's language) become comments beside the values.
    """
    # Imported here: a command that only needs the names above must not wait for jinja2 and yaml.
    from trainwiz.render import documents, editor, plan_file, values

    return (
        Artifact(PLAN_FILE, plan_file.text(plan, reasons)),
        Artifact(plan_file.SCHEMA_FILE, plan_file.schema()),
        *training_files(plan, templates),
        *documents.documents(plan, templates, language=language),
        *job_files(plan),
        Artifact(".vscode/launch.json", values.as_json(editor.configurations(plan))),
    )


def job_files(plan: Plan) -> tuple[Artifact, ...]:
    """What the plan's scheduler reads; nothing where people start its machines."""
    from trainwiz import schedulers
    from trainwiz.render import values

    scheduler = schedulers.of(plan)
    files = scheduler.files(plan) if scheduler else {}
    return tuple(
        Artifact(name, content if isinstance(content, str) else values.as_documents(content, _JOB_HEAD))
        for name, content in files.items()
    )


def training_files(plan: Plan, templates: Mapping[str, str]) -> tuple[Artifact, ...]:
    """Those files of a project that a training reads: the engine's configuration and the scripts."""
    from trainwiz import strategies
    from trainwiz.render import accelerate, deepspeed, script, values

    files = [Artifact(ACCELERATE_FILE, accelerate.text(plan))] if plan.engine == "accelerate" else []
    if strategies.of(plan).uses_deepspeed:
        files.append(Artifact(DEEPSPEED_FILE, values.as_json(deepspeed.config(plan))))
    return (*files, *script.scripts(plan, templates))
