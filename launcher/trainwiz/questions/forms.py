"""Answers that settle several keys at once: `cuda 4`, `64/8`, `zero2+offload`, `3 epochs`.

Each form has a reader (typed text → a text per key, or what is wrong) and a shower (values → typed text).
"""

from __future__ import annotations

import re
from typing import get_args

from trainwiz import vocabulary as v
from trainwiz.message import Message, say
from trainwiz.questions.table import Values

STRATEGIES: tuple[str, ...] = (
    "single",
    "ddp",
    "zero0",
    "zero1",
    "zero2",
    "zero3",
    "zero2+offload",
    "zero3+offload",
    "fsdp",
    *v.COLOSSAL_KINDS,
)


def read_machine(typed: str, values: Values) -> dict[str, str] | Message:
    """`4`, `cpu`, `cuda 8`: a number of ranks, a device, or both."""
    device, count = "", ""
    for word in typed.split():
        if word in get_args(v.Device) and not device:
            device = word
        elif re.fullmatch(r"\d+", word) and not count:
            count = word
        else:
            return say(
                "machine.num_processes: {typed} is neither a number of ranks nor a device; type 2, or cpu 2",
                typed=repr(typed),
            )
    answer = {"machine.device": device or str(values.get("machine.device", "cpu"))}
    if count:
        answer["machine.num_processes"] = count
    return answer


def show_machine(values: Values) -> str:
    """The number of ranks; what they run on stands in the question."""
    return str(values["machine.num_processes"])


def machine_prompt(values: Values) -> Message:
    """What the ranks run on."""
    match values.get("machine.device"):
        case "cuda":
            return say("GPUs, one rank each")
        case "cpu":
            return say("CPU ranks")
    return say("Ranks on {device}", device=values.get("machine.device"))


def read_batch(typed: str, values: Values) -> dict[str, str] | Message:  # noqa: ARG001 (a reader's signature)
    """`64`: the real batch; `64/8`: with the micro-batch."""
    real, _, micro = (part.strip() for part in typed.partition("/"))
    answer = {"batch.real_batch_size": real}
    if "/" in typed:
        answer["batch.per_device_batch_size"] = micro
    return answer


def show_batch(values: Values) -> str:
    """The real batch and the micro-batch."""
    return f"{values['batch.real_batch_size']}/{values['batch.per_device_batch_size']}"


def read_strategy(typed: str, values: Values) -> dict[str, str] | Message:  # noqa: ARG001 (a reader's signature)
    """`ddp`, `zero2`, `zero3+offload`: the kind, the stage, and what is offloaded to host memory."""
    name, _, extra = typed.replace(" ", "").lower().partition("+")
    if name == "deepspeed" and not extra:
        return {"strategy.kind": name}
    if extra not in ("", "offload") or (f"{name}+{extra}" if extra else name) not in STRATEGIES:
        return say("strategy.kind: {typed} is not one of {legal}", typed=repr(typed), legal=", ".join(STRATEGIES))
    if not name.startswith("zero"):
        return {
            "strategy.kind": name,
            "strategy.zero_stage": "null",
            "strategy.offload_optimizer_device": "none",
            "strategy.offload_param_device": "none",
        }
    answer = {"strategy.kind": "deepspeed", "strategy.zero_stage": name[-1]}
    if extra:
        answer["strategy.offload_optimizer_device"] = "cpu"
        answer["strategy.offload_param_device"] = "cpu" if name == "zero3" else "none"
    return answer


def show_strategy(values: Values) -> str:
    """The strategy in one word, with `+offload` where anything is."""
    if values["strategy.kind"] != "deepspeed":
        return str(values["strategy.kind"])
    devices = (values.get("strategy.offload_optimizer_device"), values.get("strategy.offload_param_device"))
    away = set(devices) - {"none", None}
    return f"zero{values['strategy.zero_stage']}" + ("+offload" if away else "")


def read_length(typed: str, values: Values) -> dict[str, str] | Message:
    """`500`, `500 steps`, `3 epochs`; a bare number keeps the unit that stands."""
    match = re.fullmatch(r"\s*(\S+?)\s*(steps?|updates?|epochs?)?\s*", typed)
    if not match:
        return say(
            "schedule.n_steps: {typed} is not a length; type for example 500 steps, or 3 epochs", typed=repr(typed)
        )
    number, unit = match.groups()
    epochs = unit.startswith("epoch") if unit else values.get("schedule.train_strategy") == "epochs"
    if epochs:
        return {
            "schedule.train_strategy": "epochs",
            "schedule.n_epochs": number,
            "schedule.n_steps": "null",
        }
    return {"schedule.train_strategy": "steps", "schedule.n_steps": number, "schedule.n_epochs": "null"}


def show_length(values: Values) -> str:
    """The length with its unit."""
    unit = values["schedule.train_strategy"]
    return f"{values['schedule.n_epochs' if unit == 'epochs' else 'schedule.n_steps']} {unit}"
