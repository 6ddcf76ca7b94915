"""Generated files: there, as they were generated, and as the plan would generate them now."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.project import Project
from trainwiz.rules.registry import rule

_PROGRAM = ("train.py", "task.py", "batches.py", "checkpoints.py", "metrics.py", "rows.py", "adapter.py")
NEEDED = (*_PROGRAM, "ds_config.json")
EDITABLE = (*_PROGRAM, "README.md", ".gitignore")


@rule("TW521", level=Level.ERROR, field="project")
def needed_files_are_there(project: Project) -> Iterator[Violation]:
    """The files that a launch needs are there.

    Without it: `can't open file 'train.py'`, or accelerate's `Expected a string path to an existing deepspeed config`.
    Why: a generated file was deleted or moved.
    Instead: generate the project again; your own edits to other files are kept.
    Source: seen with accelerate 1.15; .trainwiz/manifest.json of the project
    """
    for path in project.missing_files:
        if path in NEEDED:
            yield violation(
                "{path} was generated and is gone",
                remedy("write it again: trainwiz init {folder}", folder=project.folder),
                path=path,
                where=path,
            )


@rule("TW522", level=Level.WARNING, field="project")
def configuration_is_as_generated(project: Project) -> Iterator[Violation]:
    """Generated configuration files are as they were generated.

    Without it: trainwiz.yaml says one thing and the file another. `accelerate launch` and train.py follow the file;
    checks, estimates and the next generation follow the plan.
    Why: accelerate.yaml, ds_config.json and the others are made from the plan; a change there is not in the plan.
    Instead: make the change in trainwiz.yaml and generate again; or keep the edit, and answer "keep" when asked.
    Source: .trainwiz/manifest.json of the project (sha256 of each file)
    """
    for path in project.changed_files:
        if path not in EDITABLE:
            yield violation(
                "{path} was changed since it was generated; the plan does not know of it",
                remedy("change trainwiz.yaml instead, then: trainwiz init {folder}", folder=project.folder),
                path=path,
                where=path,
            )


@rule("TW523", level=Level.HINT, field="project")
def script_is_as_generated(project: Project) -> Iterator[Violation]:
    """Which generated scripts you have changed.

    Without it: nothing is wrong: task.py is meant to be edited. But what the rules say of the script, and what trainwiz
    promises of its gradient and its resume, holds for the script as it was generated.
    Why: trainwiz checks the plan, not your Python.
    Instead: nothing. When you generate again, you see the difference and choose.
    Source: .trainwiz/manifest.json of the project (sha256 of each file)
    """
    for path in project.changed_files:
        if path in EDITABLE and path.endswith(".py"):
            yield violation("{path} was changed since it was generated", path=path, where=path)


@rule("TW524", level=Level.ERROR, field="project")
def files_follow_the_plan(project: Project) -> Iterator[Violation]:
    """Generated files say what the plan says.

    Without it: the launch starts the world of the new plan with the script of the old one: train.py refuses another
    number of ranks, but trains with the old learning rate, batch or data without a word.
    Why: trainwiz.yaml was edited after the files were generated from it.
    Instead: generate again.
    Source: seen with the generated scripts; .trainwiz/manifest.json of the project
    """
    if project.stale_files:
        yield violation(
            "the plan was changed since these files were generated: {files}",
            remedy("generate them again: trainwiz init {folder}", folder=project.folder),
            files=", ".join(project.stale_files),
            where=project.stale_files[0],
        )
