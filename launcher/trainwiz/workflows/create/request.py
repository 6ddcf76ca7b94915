"""What was asked of `trainwiz init` and `trainwiz import`, and the answers that a project begins with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from trainwiz import vocabulary
from trainwiz.errors import UsageError
from trainwiz.message import Message, say
from trainwiz.workflows.option import argument, flag, option

if TYPE_CHECKING:
    from trainwiz.decide import Source

_PYTHON = say("Python interpreter that will run the training.")
_MACHINE = say("Plan for the machine described in FILE, or named by its GPUs: 8xH100.")
_FORCE = say("Overwrite your own files, after showing the diff.")
_ON_CONFLICT = say("What to do with your own files: keep, overwrite or beside (write .new files).")


_OPTIONS = ("recipe", "python", "machine", "force", "on_conflict", "defaults", "yes")


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if os.sep in path or os.path.exists(path) else path


def _answer(metavar: str, key: str, help: Message) -> Any:
    """A field whose value is the answer for a key of the plan.

    All are texts: what the plan says of a wrong value is better than what typer says.
    """
    declared = option(metavar, help, None)
    return field(default=None, metadata={**declared.metadata, "key": key})


@dataclass(frozen=True, kw_only=True)
class InitRequest:
    """The command line of `trainwiz init`. What is empty or None was not typed."""

    place: str = argument("[DIR]", say("Project folder; created if missing."), ".")
    defaults: bool = flag(say("Use the default for every unanswered question."))
    yes: bool = flag(say("Write without showing the review first."), "--yes -y")
    assignments: tuple[str, ...] = option(
        "KEY=VALUE", say("Set any key of the plan (`trainwiz explain keys` lists them); repeatable."), names="--set"
    )
    recipe: str | None = option(
        "NAME", say("Start from a recipe's model, method and GPUs; `trainwiz recipes` lists them."), None
    )
    answers: str | None = option("FILE", say("YAML file with answers, by the plan's keys."), None)
    resume: bool = flag(say("Continue an interrupted init with its answers."))
    python: str | None = option("PATH", _PYTHON, None)
    machine: str | None = option("FILE", _MACHINE, None)
    force: bool = flag(_FORCE)
    on_conflict: str | None = option("WAY", _ON_CONFLICT, None)
    task: str | None = _answer(
        "TASK",
        "task",
        say("One of: {tasks}.", tasks=", ".join(get_args(vocabulary.Task))),
    )
    model: str | None = _answer(
        "NAME", "model.name", say("tiny, gpt2-124m, llama-1b, resnet18, a folder, or a hub id.")
    )
    data: str | None = _answer(
        "DATA", "data.train", say("embedded, or files, folders, patterns and hub ids, separated by commas.")
    )
    eval_data: str | None = _answer(
        "DATA",
        "data.eval",
        say("Evaluation data, in the same forms as --data, or a part of it (5%, 200); null for none."),
    )
    device: str | None = _answer("DEVICE", "machine.device", say("cuda or cpu."))
    num_machines: str | None = _answer("N", "machine.num_machines", say("Number of machines that train together."))
    num_processes: str | None = _answer("N", "machine.num_processes", say("Total number of ranks on all machines."))
    real_batch_size: str | None = _answer("N", "batch.real_batch_size", say("Samples per optimizer update."))
    per_device_batch_size: str | None = _answer(
        "N", "batch.per_device_batch_size", say("Samples per rank in one forward and backward pass.")
    )
    sequence_length: str | None = _answer("N", "batch.sequence_length", say("Tokens per sample."))
    precision: str | None = _answer("FORMAT", "precision.mixed_precision", say("no, bf16, fp16 or fp8."))
    strategy: str | None = _answer(
        "NAME", "strategy", say("single, ddp, zero0 to zero3, zero2+offload, zero3+offload, fsdp.")
    )
    zero_stage: str | None = _answer("N", "strategy.zero_stage", say("ZeRO stage, 0 to 3; implies DeepSpeed."))
    steps: str | None = _answer("N", "schedule.n_steps", say("Training length in optimizer updates."))
    epochs: str | None = _answer("N", "schedule.n_epochs", say("Training length in passes over the data."))
    learning_rate: str | None = _answer("RATE", "optimizer.learning_rate", say("Peak learning rate."))
    seed: str | None = _answer("N", "seed", say("Random seed for weights, data order and dropout."))

    @property
    def folder(self) -> Path:
        """The project's folder; may be missing."""
        return Path(os.path.expanduser(self.place))

    @property
    def options(self) -> dict[str, str | bool]:
        """The options that were typed and are not answers, by field, with paths that count from anywhere."""
        typed = {name: getattr(self, name) for name in _OPTIONS if getattr(self, name)}
        return {name: _absolute(value) if name in ("machine", "python") else value for name, value in typed.items()}

    def resumed(self, folder: str, options: Mapping[str, str | bool]) -> InitRequest:
        """The same for the folder and with the options of an interrupted init, where this one gives no others."""
        missing = {name: options[name] for name in _OPTIONS if options.get(name) and not getattr(self, name)}
        return replace(self, place=folder, **missing)  # type: ignore[arg-type]

    @property
    def flags(self) -> dict[str, str]:
        """The answers that were typed, by key of the plan; `strategy` stands for several keys."""
        typed = {one.metadata["key"]: getattr(self, one.name) for one in fields(self) if "key" in one.metadata}
        return {key: value for key, value in typed.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The command line of `trainwiz import`. What is empty was not typed."""

    files: tuple[str, ...] = argument("FILE…", say("An accelerate YAML file, a DeepSpeed JSON file, or one of each."))
    into: str = option("DIR", say("Project folder; created if missing."), ".")
    default: bool = flag(say("Import accelerate's default config file."))
    script: str = option(
        "SCRIPT.py", say("The script that the files are for; settings that the files leave to it are read from it.")
    )
    assignments: tuple[str, ...] = option(
        "KEY=VALUE", say("Set any key of the plan; overrides the files."), names="--set"
    )
    machine: str = option("FILE", _MACHINE)
    python: str = option("PATH", _PYTHON)
    engine_version: tuple[str, ...] = option(
        "ENGINE=VERSION", say("Read files as this version does, like deepspeed=0.16.5; repeatable.")
    )
    dry_run: bool = flag(say("Show the plan; write nothing."))
    json: bool = flag(say("Print the plan, and what cannot be carried over, as JSON."))
    yes: bool = flag(say("Never ask; keep your own files unchanged."), "--yes -y")
    force: bool = flag(_FORCE)
    on_conflict: str = option("WAY", _ON_CONFLICT)
    arguments: tuple[str, ...] = ()
    """What the script is started with: options that it needs, or whose defaults are not meant."""

    @property
    def folder(self) -> Path:
        """The project's folder; may be missing."""
        return Path(os.path.expanduser(self.into))


@dataclass(frozen=True, kw_only=True)
class AdoptRequest:
    """The command line of `trainwiz adopt`. What is empty was not typed."""

    script: str = argument("SCRIPT.py", say("Your training script; it is only read, never run."))
    into: str = option("DIR", say("Project folder (default: SCRIPT-adopted next to the script)."))
    assignments: tuple[str, ...] = option(
        "KEY=VALUE", say("Set any key of the plan; overrides the script."), names="--set"
    )
    machine: str = option("FILE", _MACHINE)
    python: str = option("PATH", _PYTHON)
    dry_run: bool = flag(say("Show the plan; write nothing."))
    json: bool = flag(say("Print the plan, and what cannot be carried over, as JSON."))
    yes: bool = flag(say("Never ask; keep your own files unchanged."), "--yes -y")
    force: bool = flag(_FORCE)
    on_conflict: str = option("WAY", _ON_CONFLICT)
    arguments: tuple[str, ...] = ()
    """What the script is started with, typed after `--`: options that it needs, or whose defaults are not meant."""

    @property
    def as_import(self) -> ImportRequest:
        """The import of this script without any configuration file. Raises `UsageError`."""
        if not self.script:
            raise UsageError(say("no script given"), say("run: trainwiz adopt train.py --into my-project"))
        script = Path(os.path.expanduser(self.script))
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        into = self.into or str(script.with_name(f"{script.stem}-adopted"))
        return ImportRequest(**{**given, "script": str(script), "into": into})


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """The command line of `trainwiz update`. What is empty was not typed."""

    place: str = argument("[DIR]", say("Project folder (default: the current folder)."), ".")
    assignments: tuple[str, ...] = option(
        "KEY=VALUE", say("Set any key of the plan (`trainwiz explain keys` lists them); repeatable."), names="--set"
    )
    machine: str = option("FILE", _MACHINE)
    python: str = option("PATH", _PYTHON)
    on_conflict: str = option(
        "WAY",
        say(
            "If your edit conflicts with a change: markers (the default), beside (write .new files), keep or "
            "overwrite; also for files that an earlier update kept."
        ),
    )
    prove: bool = flag(
        say(
            "Write only what is proved not to change the training: train the project before and after the update on "
            "this machine's CPU, and compare."
        )
    )
    dry_run: bool = flag(say("Show what would change; write nothing."))
    json: bool = flag(say("Print what changed as JSON."))

    @property
    def folder(self) -> Path:
        """The project's folder."""
        return Path(os.path.expanduser(self.place))


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All that was answered before the first question, by key of the plan."""

    given: Mapping[str, Any]
    """Answers of this command line."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Answers of an earlier init; they stay while they are legal."""
    edited_plan: Mapping[str, Any] = field(default_factory=dict)
    """All values of a plan that was edited by hand, where nothing was given: they stay where they can."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where the answers come from that nobody typed on this command line."""
