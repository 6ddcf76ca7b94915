"""`trainwiz init`: the options."""

# ruff: noqa: ARG001, B008 (the flags are read by name from the context; typer wants its options as defaults)

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from trainwiz.language import t

_KEYS = {
    "task": "task",
    "model": "model.name",
    "data": "data.train",
    "eval_data": "data.eval",
    "device": "machine.device",
    "num_machines": "machine.num_machines",
    "num_processes": "machine.num_processes",
    "real_batch_size": "batch.real_batch_size",
    "per_device_batch_size": "batch.per_device_batch_size",
    "sequence_length": "batch.sequence_length",
    "precision": "precision.mixed_precision",
    "strategy": "strategy",
    "zero_stage": "strategy.zero_stage",
    "steps": "schedule.n_steps",
    "epochs": "schedule.n_epochs",
    "learning_rate": "optimizer.learning_rate",
    "seed": "seed",
}
"""The key of the plan that each flag sets; every other key goes by --set."""


def _flag(name: str, metavar: str, help: str) -> Any:
    # All are texts: what the plan says of a wrong value is better than what typer says.
    return typer.Option(None, name, metavar=metavar, help=help)


def init(
    ctx: typer.Context,
    folder: str = typer.Argument(".", metavar="[DIR]", help=t("Project folder; created if missing.")),
    defaults: bool = typer.Option(False, "--defaults", help=t("Use the default for every unanswered question.")),
    yes: bool = typer.Option(False, "--yes", "-y", help=t("Write without showing the review first.")),
    set_: list[str] | None = typer.Option(
        None, "--set", metavar="KEY=VALUE", help=t("Set any key of the plan; repeatable.")
    ),
    answers: str = typer.Option(
        None, "--answers", metavar="FILE", help=t("YAML file with answers, by the plan's keys.")
    ),
    resume: bool = typer.Option(False, "--resume", help=t("Continue an interrupted init with its answers.")),
    python: str = typer.Option(
        None, "--python", metavar="PATH", help=t("Python interpreter that will run the training.")
    ),
    machine: str = typer.Option(None, "--machine", metavar="FILE", help=t("Plan for the machine described in FILE.")),
    force: bool = typer.Option(False, "--force", help=t("Overwrite files of yours, after showing the diff.")),
    on_conflict: str = typer.Option(
        None,
        "--on-conflict",
        metavar="WAY",
        help=t("What to do with files of yours: keep, overwrite or beside (write .new files)."),
    ),
    task: str = _flag(
        "--task", "TASK", t("causal_lm, sft, text_classification, text_regression, image_classification or custom.")
    ),
    model: str = _flag("--model", "NAME", t("tiny, gpt2-124m, llama-1b, resnet18, a folder, or a hub id.")),
    data: str = _flag("--data", "DATA", t("embedded, a .txt, .jsonl or .npz file, a folder, or a hub id.")),
    eval_data: str = _flag("--eval-data", "DATA", t("Evaluation data, in the same forms as --data; null for none.")),
    device: str = _flag("--device", "DEVICE", t("cuda or cpu.")),
    num_machines: str = _flag("--num-machines", "N", t("Number of machines that train together.")),
    num_processes: str = _flag("--num-processes", "N", t("Total number of ranks on all machines.")),
    real_batch_size: str = _flag("--real-batch-size", "N", t("Samples per optimizer update.")),
    per_device_batch_size: str = _flag(
        "--per-device-batch-size", "N", t("Samples per rank in one forward and backward pass.")
    ),
    sequence_length: str = _flag("--sequence-length", "N", t("Tokens per sample.")),
    precision: str = _flag("--precision", "FORMAT", t("no, bf16, fp16 or fp8.")),
    strategy: str = _flag("--strategy", "NAME", t("single, ddp, zero0 to zero3, zero2+offload, zero3+offload, fsdp.")),
    zero_stage: str = _flag("--zero-stage", "N", t("ZeRO stage, 0 to 3; implies DeepSpeed.")),
    steps: str = _flag("--steps", "N", t("Training length in optimizer updates.")),
    epochs: str = _flag("--epochs", "N", t("Training length in passes over the data.")),
    learning_rate: str = _flag("--learning-rate", "RATE", t("Peak learning rate.")),
    seed: str = _flag("--seed", "N", t("Random seed for weights, data order and dropout.")),
) -> None:
    """Ask, check, and write a project."""
    from trainwiz.workflows.create import init
    from trainwiz.workflows.create.request import Request

    init.init(
        Request(
            folder=Path(os.path.expanduser(folder)),
            flags={key: ctx.params[name] for name, key in _KEYS.items() if ctx.params[name] is not None},
            assignments=set_ or (),
            file=answers,
            resume=resume,
            python=python,
            machine_file=machine,
            defaults=defaults,
            yes=yes,
            force=force,
            on_conflict=on_conflict,
        )
    )
