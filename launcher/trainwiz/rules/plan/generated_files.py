"""Generated files: there, as they were generated, and as the plan would generate them now."""

from __future__ import annotations

from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.project import Project
from trainwiz.rules.registry import rule

_PARTS = ("batches.py", "checkpoints.py", "metrics.py", "recompute.py", "sharding.py")
_OF_TASKS = ("model_folder.py", "rows.py", "conversations.py", "chat.py", "adapter.py", "texts.py")
_PROGRAM = ("train.py", "task.py", *_PARTS, *_OF_TASKS)
NEEDED = (*_PROGRAM, "ds_config.json")
EDITABLE = (*_PROGRAM, "README.md", ".gitignore")


@rule("TW521", level=Level.ERROR, field="project")
def needed_files_are_there(project: Project) -> Violations:
    """All files that a launch needs must exist.

    Without it: the launch stops with `can't open file 'train.py'`, or accelerate's `Expected a string path to an
    existing deepspeed config`.
    Why: a generated file was deleted or moved.
    Instead: generate the project again; your edits to other files are kept.
    Source: seen with accelerate 1.15; .trainwiz/manifest.json of the project
    """
    for path in project.missing_files:
        if path in NEEDED:
            fix = remedy("regenerate it: trainwiz init {folder}", folder=project.folder)
            yield violation("{path} was generated but no longer exists", fix, path=path, where=path)


@rule("TW522", level=Level.WARNING, field="project")
def configuration_is_as_generated(project: Project) -> Violations:
    """Generated configuration files should not be edited.

    Without it: trainwiz.yaml and the file disagree. `accelerate launch` and train.py use the file; checks,
    estimates and the next generation use the plan.
    Why: these files are generated from the plan, and a change in them does not reach the plan.
    Instead: make the change in trainwiz.yaml and generate again; or keep the edit, and answer "keep" when asked.
    Source: .trainwiz/manifest.json of the project (sha256 of each file)
    """
    for path in project.changed_files:
        if path not in EDITABLE:
            yield violation(
                "{path} was changed after it was generated; the change is not in the plan",
                remedy("change trainwiz.yaml instead, then run: trainwiz init {folder}", folder=project.folder),
                path=path,
                where=path,
            )


@rule("TW523", level=Level.HINT, field="project")
def script_is_as_generated(project: Project) -> Violations:
    """Lists the generated scripts that you have changed.

    Without it: nothing is wrong: task.py is meant to be edited. But what the rules say about the script, and what
    trainwiz guarantees about gradients and resuming, only applies to the script as generated.
    Why: trainwiz checks the plan, not your Python code.
    Instead: nothing to do. When you generate again, trainwiz shows you the difference, and you choose.
    Source: .trainwiz/manifest.json of the project (sha256 of each file)
    """
    for path in project.changed_files:
        if path in EDITABLE and path.endswith(".py"):
            yield violation("{path} was changed after it was generated", path=path, where=path)


@rule("TW524", level=Level.ERROR, field="project")
def files_follow_the_plan(project: Project) -> Violations:
    """Generated files must match the plan.

    Without it: the launch uses the world size of the new plan with the script of the old plan: train.py rejects a
    different number of ranks, but silently trains with the old learning rate, batch or data.
    Why: trainwiz.yaml was edited after the files were generated from it.
    Instead: generate again.
    Source: seen with the generated scripts; .trainwiz/manifest.json of the project
    """
    if project.stale_files:
        yield violation(
            "the plan changed after these files were generated: {files}",
            remedy("regenerate them: trainwiz init {folder}", folder=project.folder),
            files=", ".join(project.stale_files),
            where=project.stale_files[0],
        )
