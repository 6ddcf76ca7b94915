"""The packages that the plan's engine, task and tracker need in the training interpreter."""

from __future__ import annotations

from trainwiz import strategies, tasks, vocabulary
from trainwiz.engines import accelerate, deepspeed, torch
from trainwiz.finding import Level, Violations, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install, lacks, parts

OLDEST = {
    "torch": torch.OLDEST,
    "accelerate": accelerate.OLDEST,
    "deepspeed": deepspeed.OLDEST,
    "transformers": "4.51",
    "pillow": "10.0",
    "timm": "1.0.16",
    "scikit-learn": "1.3",
}
"""The oldest versions that generated projects were tried with; also the lower bounds in pyproject.toml."""


@rule("TW111", level=Level.ERROR, field="engine")
def accelerate_is_installed(plan: Plan, machine: Machine) -> Violations:
    """accelerate must be installed in the training interpreter.

    Without it: every rank fails with `ModuleNotFoundError: No module named 'accelerate'`.
    Why: the generated train.py uses accelerate; trainwiz itself can be installed in another environment.
    Instead: install accelerate in the training interpreter.
    Source: https://huggingface.co/docs/accelerate/basic_tutorials/install
    """
    if plan.engine == "accelerate" and (python := lacks(machine, "accelerate")):
        yield violation(
            "accelerate is not installed in {python}", install(python, _wanted("accelerate")), python=python
        )


@rule("TW112", level=Level.ERROR, field="strategy.kind")
def deepspeed_is_installed(plan: Plan, machine: Machine) -> Violations:
    """A DeepSpeed plan needs the deepspeed package.

    Without it: `ImportError: DeepSpeed is not installed` after the ranks have imported torch.
    Why: accelerate does not depend on DeepSpeed, and does not install it.
    Instead: install DeepSpeed, or choose fsdp (on GPUs) or ddp.
    Source: https://huggingface.co/docs/accelerate/usage_guides/deepspeed
    """
    if strategies.of(plan).uses_deepspeed and (python := lacks(machine, "deepspeed")):
        fix = install(python, _wanted("deepspeed"))
        yield violation("strategy.kind is deepspeed, but deepspeed is not installed in {python}", fix, python=python)


@rule("TW113", level=Level.ERROR, field="task")
def transformers_is_installed(plan: Plan, machine: Machine) -> Violations:
    """Text tasks need transformers.

    Without it: `ModuleNotFoundError: No module named 'transformers'` when task.py is imported.
    Why: models and tokenizers come from transformers. Only these tasks need it, and trainwiz does not depend on it.
    Instead: run `pip install -r requirements.txt` in the project, or the command that the finding shows.
    Source: the generated requirements.txt
    """
    if "transformers" in tasks.of(plan).packages and (python := lacks(machine, "transformers")):
        fix = install(python, _wanted("transformers"))
        yield violation("the task {task} needs transformers, but it is not installed in {python}", fix, python=python)


@rule("TW114", level=Level.ERROR, field="data.train")
def datasets_is_installed(plan: Plan, machine: Machine, project: Project) -> Violations:
    """Data from the Hugging Face Hub, and files in binary formats, need the datasets package.

    Without it: `ModuleNotFoundError: No module named 'datasets'` (or 'pyarrow') on all ranks, when the data is loaded.
    Why: it reads hub datasets, .parquet and .arrow files, folders from `save_to_disk`, and, with pyarrow, .zst
    files. All other files are read without it, and no other package installs it.
    Instead: install datasets, or use .jsonl, .json, .csv, .tsv or .txt files, which may be compressed with gzip.
    Source: https://huggingface.co/docs/datasets/installation
    """
    named = [data.name for data in (project.train, project.eval) if data and "datasets" in data.packages]
    if tasks.of(plan).names_models and named and (python := lacks(machine, "datasets")):
        yield violation(
            "{data} is read with datasets, but it is not installed in {python}",
            install(python, "datasets>=3.0"),
            data=named[0],
            python=python,
        )


@rule("TW115", level=Level.WARNING, field="tracking.log_with")
def tracker_is_installed(plan: Plan, machine: Machine) -> Violations:
    """The tracker set in tracking.log_with must be installed.

    Without it: accelerate drops the tracker with one warning among many and trains on; nothing is tracked.
    Why: accelerate keeps only the trackers whose package can be imported.
    Instead: install the package, or set tracking.log_with to none; metrics.jsonl is always written.
    Source: `filter_trackers` in accelerate/tracking.py (1.15).
    """
    tracker = plan.tracking.log_with
    if tracker != "none" and (python := lacks(machine, tracker)):
        yield violation(
            "tracking.log_with is {log_with}, but it is not installed in {python}; nothing would be tracked",
            install(python, tracker),
            python=python,
        )


@rule("TW126", level=Level.ERROR, field="tracking.log_with")
def engine_has_the_tracker(plan: Plan) -> Violations:
    """Each engine's loop supports only some trackers.

    Without it: nothing is tracked; the scripts are the same as without a tracker.
    Why: accelerate provides mlflow, swanlab and trackio. The Colossal-AI loop does not use accelerate, and writes to
    tensorboard and wandb itself.
    Instead: use tensorboard or wandb; metrics.jsonl is always written.
    Source: the generated train.py
    """
    tracker, legal = plan.tracking.log_with, vocabulary.TRACKERS[plan.engine]
    if tracker not in ("none", *legal):
        yield violation(
            "tracking.log_with is {log_with}, but the {engine} loop supports only {legal}",
            setting("tracking.log_with", legal[0]),
            legal=", ".join(legal),
            engine=plan.engine,
        )


@rule("TW116", level=Level.WARNING, field="python")
def versions_were_tried(plan: Plan, machine: Machine) -> Violations:
    """Packages should not be older than the versions that generated projects were tested with.

    Without it: any behavior may differ: accelerate before 1.10 raises in `no_sync` under ZeRO 2 and 3, and
    DeepSpeed before 0.16 lacks keys that ds_config.json contains.
    Why: these packages change their behavior between minor versions, mostly without an error.
    Instead: upgrade, or try a short run first (schedule.n_steps 10) and check its numbers.
    Source: huggingface/accelerate issue 3481; deepspeedai/DeepSpeed issue 6793
    """
    used = {"torch", "accelerate"} if plan.engine == "accelerate" else {"torch"}
    used |= {"deepspeed"} if strategies.of(plan).uses_deepspeed else set()
    used |= {*tasks.of(plan).packages, *tasks.of(plan).embedded_packages}
    for name, oldest in OLDEST.items():
        interpreter = machine.interpreter
        version = interpreter.version(name) if interpreter else None
        if interpreter and version and name in used and parts(version) < parts(oldest):
            yield violation(
                "{package} {version} is older than {oldest}, the oldest tested version",
                install(interpreter.python, _wanted(name)),
                package=name,
                version=version,
                oldest=oldest,
            )


@rule("TW117", level=Level.ERROR, field="task")
def packages_for_pictures_are_installed(plan: Plan, machine: Machine) -> Violations:
    """Image tasks need pillow; timm networks need timm, embedded images need scikit-learn.

    Without it: every rank fails with `ModuleNotFoundError: No module named 'PIL'` (or `'timm'`, `'sklearn'`).
    Why: pillow reads images, timm provides networks, and scikit-learn the embedded handwritten digits. Only these
    tasks need them.
    Instead: run `pip install -r requirements.txt` in the project, or the command that the finding shows.
    Source: the generated requirements.txt
    """
    task = tasks.of(plan)
    if task.from_hub:
        return
    needed = [*task.packages, *(task.named_packages if task.shape(plan.model.name) is None else ())]
    if vocabulary.EMBEDDED in (plan.data.train, plan.data.eval):
        needed += task.embedded_packages
    missing = [name for name in needed if lacks(machine, name)]
    if missing and machine.interpreter:
        python = machine.interpreter.python
        yield violation(
            "the task {task} needs {packages}; not installed in {python}",
            install(python, *(_wanted(name) for name in missing)),
            task=plan.task,
            packages=", ".join(missing),
            python=python,
        )


def _wanted(package: str) -> str:
    return f"{package}>={OLDEST[package]}"
