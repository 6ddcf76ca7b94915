"""Generated files: there, as they were generated, and as the plan would generate them now."""

from __future__ import annotations

from trainwiz import strategies, tasks
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.shell_words import quoted

_ALSO_EDITABLE = ("README.md", ".gitignore")


def _is_program(path: str) -> bool:
    return path.endswith(".py")


@rule("TW521", level=Level.ERROR, field="project")
def needed_files_are_there(project: Project) -> Violations:
    """All files that a launch needs must exist.

    Without it: the launch stops with `can't open file 'train.py'`, or accelerate's `Expected a string path to an
    existing deepspeed config`.
    Why: a generated file was deleted or moved.
    Instead: generate the project again (trainwiz update); your edits to other files are kept.
    Source: seen with accelerate 1.15; .trainwiz/manifest.json of the project
    """
    for path in project.missing_files:
        if _is_program(path) or path == "ds_config.json":
            fix = remedy("regenerate it: trainwiz update {folder}", folder=quoted(project.folder))
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
        if not _is_program(path) and path not in _ALSO_EDITABLE:
            yield violation(
                "{path} was changed after it was generated; the change is not in the plan",
                remedy(
                    "change trainwiz.yaml instead, then run: trainwiz update {folder}", folder=quoted(project.folder)
                ),
                path=path,
                where=path,
            )


@rule("TW523", level=Level.HINT, field="project")
def script_is_as_generated(project: Project) -> Violations:
    """Lists the generated scripts that you have changed.

    Without it: nothing is wrong: task.py is meant to be edited. But what the rules say about the script, and what
    trainwiz guarantees about gradients and resuming, only applies to the script as generated.
    Why: trainwiz checks the plan, not your Python code.
    Instead: nothing to do. `trainwiz update` merges your changes with those of the plan.
    Source: .trainwiz/manifest.json of the project (sha256 of each file)
    """
    for path in project.changed_files:
        if _is_program(path):
            yield violation("{path} was changed after it was generated", path=path, where=path)


@rule("TW524", level=Level.ERROR, field="project")
def files_follow_the_plan(project: Project) -> Violations:
    """Generated files must match the plan.

    Without it: the launch uses the world size of the new plan with the script of the old plan: train.py rejects a
    different number of ranks, but silently trains with the old learning rate, batch or data.
    Why: trainwiz.yaml was edited after the files were generated from it.
    Instead: run trainwiz update.
    Source: seen with the generated scripts; .trainwiz/manifest.json of the project
    """
    if project.stale_files:
        yield violation(
            "the plan changed after these files were generated: {files}",
            remedy("regenerate them: trainwiz update {folder}", folder=quoted(project.folder)),
            files=", ".join(project.stale_files),
            where=project.stale_files[0],
        )


@rule("TW525", level=Level.ERROR, field="project")
def scripts_use_the_values_of_the_plan(project: Project) -> Violations:
    """The values in train.py and task.py must match the plan.

    Without it: the script trains with its own value, while checks, estimates and the recorded plan use another
    one.
    Why: the value was edited in the script, or an edited script was kept when the plan's value changed.
    Instead: change the value in the plan, and the script follows; or restore the plan's value in the script. For a
    single run, pass it as an argument: `trainwiz launch -- --learning_rate 0.001`, which is recorded.
    Source: seen with the generated scripts; their `Config` is read, not run
    """
    for one in project.disagreements:
        if one.key:
            fix = remedy(
                "use the script's value: trainwiz update {folder} --set {key}={scripted}; or change {file}",
                folder=quoted(project.folder),
                key=one.key,
                scripted=one.scripted,
                file=f"{one.file}:{one.line}",
            )
            yield violation(
                "{key} is {planned} in the plan, but {field} is {scripted} in {file}",
                fix,
                key=one.key,
                planned=one.planned,
                field=one.field,
                scripted=one.scripted,
                file=f"{one.file}:{one.line}",
                where=one.file,
            )


@rule("TW526", level=Level.WARNING, field="project")
def scripts_are_what_the_plan_means(project: Project) -> Violations:
    """Edited scripts may no longer match the plan.

    Without it: nothing fails, but what the rules and estimates say about the plan may not apply to the script. A script
    that was kept when the plan's optimizer changed trains with the old one.
    Why: the script was kept with `--on-conflict keep` or `beside` while the plan changed more than values in it; or a
    value that follows from the plan's model, strategy or precision was edited.
    Instead: copy the changes from the file that `--on-conflict beside` writes; the warning disappears when the kept
    file is edited. If everything is intended, say so in the plan: `ignore: {TW526: reason}`.
    Source: .trainwiz/manifest.json of the project; the `Config` of its scripts
    """
    for path in project.kept_files:
        if _is_program(path):
            yield violation(
                "{path} was kept when the plan changed, so it does not contain the change",
                remedy(
                    "write the new file next to it: trainwiz update {folder} --on-conflict beside",
                    folder=quoted(project.folder),
                ),
                path=path,
                where=path,
            )
    for one in project.disagreements:
        if not one.key:
            yield violation(
                "{field} is {scripted} in {file}; the plan says {planned}",
                remedy("change it back to {planned}, unless this is intended", planned=one.planned),
                field=one.field,
                scripted=one.scripted,
                file=f"{one.file}:{one.line}",
                planned=one.planned,
                where=one.file,
            )


@rule("TW527", level=Level.ERROR, field="project")
def functions_are_written(project: Project) -> Violations:
    """All functions that train.py calls must be written.

    Without it: every rank starts, imports torch, and stops with `NotImplementedError: write build_model in task.py`.
    Why: the project was imported from a script, and this part of it could not be converted.
    Instead: write the function; the comment in it points to the line of the script.
    Source: the task.py that `trainwiz import --script` writes
    """
    for path, name, line in project.unwritten:
        yield violation(
            "{name} in {file} is not written yet",
            remedy("write it at {file}: the comment there points to the place in your script", file=f"{path}:{line}"),
            name=name,
            file=f"{path}:{line}",
            where=path,
        )


@rule("TW529", level=Level.ERROR, field="strategy.kind")
def hooks_go_with_the_strategy(plan: Plan, project: Project) -> Violations:
    """The strategy must support each optional function in task.py.

    Without it: every rank starts, builds the model, and stops with `task.py has build_optimizers, which this project
    cannot use`.
    Why: DeepSpeed takes over the optimizer and keeps the weights, so the task's own optimizer or average would not be
    the one that is trained. Colossal-AI's ZeRO and Gemini cast the whole model to 16 bits, averages included, where
    small changes round to nothing.
    Instead: use a strategy that leaves both to the loop (single, ddp, fsdp, colossal_ddp, colossal_fsdp; colossal_zero1
    and colossal_zero2 without mixed precision), or remove the function.
    Source: hooks.py of the project, which lists what it refuses
    """
    refused = strategies.of(plan).refused_hooks(plan) if tasks.of(plan).own_code else {}
    rows = (row for row in strategies.every() if row.engine == plan.engine and not row.one_rank)
    other = next(row.kind for row in rows if not row.refused_hooks(plan))
    for path, name, line in project.own_functions:
        if name in refused:
            yield violation(
                "{name} in {file} does not work with {strategy}: {why}",
                remedy("set strategy.kind to {kind}, or remove {name}", kind=other, name=name),
                name=name,
                file=f"{path}:{line}",
                strategy=strategies.of(plan).label,
                why=refused[name],
                where=path,
            )


@rule("TW528", level=Level.ERROR, field="project")
def conflicts_are_resolved(project: Project) -> Violations:
    """Merge conflicts must be resolved.

    Without it: every rank starts, imports torch, and stops with `SyntaxError: invalid syntax` at `<<<<<<<`; a
    configuration file with markers cannot be read.
    Why: `trainwiz update`, or git, merged two changes of the same lines and left both between markers.
    Instead: keep the correct lines, and delete the others and the markers.
    Source: https://git-scm.com/docs/git-merge-file
    """
    for path, line in project.conflict_markers:
        yield violation(
            "{file} still contains both sides of a conflict",
            remedy("keep the correct lines, and delete the markers"),
            file=f"{path}:{line}",
            where=path,
        )
