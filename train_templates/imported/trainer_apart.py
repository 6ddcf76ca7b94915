"""TRL's own trainer, made for what it prepares: the model, the samples, the batches and their losses.

It trains nothing: train.py makes the updates. So it is made as if this rank were alone and had no GPU, and what it
changes for all (accelerate's state, variables of the environment, random numbers) is put back.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from transformers import TrainingArguments

STATES: tuple[Any, ...] = (PartialState, AcceleratorState, GradientState)
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
OTHERWISE: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "fp16": False,
    "tf32": None,
    "torch_compile": False,
    "deepspeed": None,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "do_eval": False,
    "report_to": "none",
    "push_to_hub": False,
    "output_dir": tempfile.gettempdir(),
    "disable_tqdm": True,
}
"""Arguments that are about the updates, which train.py makes as the plan says, or about GPUs and records."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Leave accelerate's state, the environment and the random numbers as they were."""
    kept = [dict(state._shared_state) for state in STATES]
    environment, numbers = dict(os.environ), (random.getstate(), np.random.get_state(), torch.get_rng_state())
    for name in environment:
        if name in OF_RANKS or name.startswith(("ACCELERATE_", "FSDP_")):
            del os.environ[name]
    for state in STATES:
        state._shared_state.clear()
    PartialState(cpu=True)  # also for arguments that were made before
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        for state, values in zip(STATES, kept, strict=True):
            state._shared_state.clear()
            state._shared_state.update(values)
        random.setstate(numbers[0])
        np.random.set_state(numbers[1])
        torch.set_rng_state(numbers[2])


checked = TrainingArguments.__post_init__


def of_no_training(arguments: TrainingArguments) -> None:
    """Check the script's arguments without those that are about updates and GPUs."""
    for name, value in OTHERWISE.items():
        if hasattr(arguments, name):
            setattr(arguments, name, value)
    with alone():
        checked(arguments)


TrainingArguments.__post_init__ = of_no_training  # type: ignore[method-assign]


class Engine:
    """What a trainer's loss asks accelerate for, on one rank."""

    num_processes, parallelism_config, is_main_process = 1, None, True
    device = torch.device("cpu")

    def gather_for_metrics(self, found: Any) -> Any:
        """Return what is here: train.py writes the records."""
        return found

    gather = gather_for_metrics

    def unwrap_model(self, model: nn.Module, **_: Any) -> Any:
        """Return the model inside DDP."""
        return getattr(model, "module", model)


def apart(trainer: Any) -> Any:
    """Return the trainer without an engine of its own."""
    trainer.accelerator = Engine()
    return trainer


def data(trainer: Any) -> Any:
    """Return the samples that the trainer has made, with the columns that its batches take."""
    return trainer._remove_unused_columns(trainer.train_dataset, description="training")


def loss(trainer: Any, model: nn.Module, batch: Any) -> Tensor:
    """Return the trainer's own loss of a micro-batch, a mean."""
    engine, reference = trainer.accelerator, getattr(trainer, "ref_model", None)
    engine.device = next(part.device for part in batch.values() if isinstance(part, Tensor))
    if reference is not None:
        reference.to(engine.device)
    found = trainer.compute_loss(model, dict(batch))
    for numbers in getattr(trainer, "_metrics", {}).values():
        numbers.clear()  # they would grow
    return found


def save_words(trainer: Any, folder: Any) -> None:
    """Save the tokenizer that the samples were made with."""
    if trainer.processing_class is not None:
        trainer.processing_class.save_pretrained(folder)
