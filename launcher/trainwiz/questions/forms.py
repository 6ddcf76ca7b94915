"""Answers that settle several keys at once: `cuda 4`, `64/8`, `zero2+offload`, `3 epochs`.

Each form has a reader (typed text → a text per key, or what is wrong) and a shower (values → typed text).
"""

from __future__ import annotations

import re
from typing import get_args

from trainwiz import strategies
from trainwiz import vocabulary as v
from trainwiz.message import Message, say
from trainwiz.questions.table import Values

_OFFLOAD = "+offload"


def strategies_offered() -> list[tuple[str, Message]]:
    """Every strategy as it is typed, with its line in the list: from fast to lean, then those to compare with."""
    offered = [(row.speed, row.label, row.summary) for row in strategies.every() if not row.one_rank]
    offered += [
        (row.offload_speed, row.label + _OFFLOAD, row.offload_summary)
        for row in strategies.every()
        if row.offload_summary is not None
    ]
    alone = [(row.label, row.summary) for row in strategies.every() if row.one_rank]
    ranked = sorted(offered, key=lambda each: each[0] or len(offered))
    return [*alone, *((name, label) for _, name, label in ranked)]


def read_machine(typed: str, values: Values) -> dict[str, str] | Message:
    """`4`, `cpu`, `cuda 8`: a number of ranks, a device, or both; `cuda 2x8`: so many on each of several machines."""
    device, count = "", ""
    for word in typed.split():
        if word in get_args(v.Device) and not device:
            device = word
        elif re.fullmatch(r"\d+|\d{1,9}[x×]\d{1,9}", word) and not count:
            count = word
        elif _is_job(values):
            return say(
                "machine.num_processes: {typed} is neither a number of ranks nor known GPUs; for example, type "
                "2x8xH100, cuda 2x8 or cpu 2x4",
                typed=repr(typed),
            )
        else:
            return say(
                "machine.num_processes: {typed} is neither a number of ranks nor a device; for example, type 2 or "
                "cpu 2",
                typed=repr(typed),
            )
    answer = {"machine.device": device or str(values.get("machine.device", "cpu"))}
    machines, times, ranks = count.replace("×", "x").rpartition("x")
    if times:
        return answer | {"machine.num_machines": machines, "machine.num_processes": str(int(machines) * int(ranks))}
    if count:
        answer["machine.num_processes"] = count
    return answer


def show_machine(values: Values) -> str:
    """The number of ranks; what they run on stands in the question, unless that is a scheduler's."""
    ranks, machines = int(values["machine.num_processes"]), int(values.get("machine.num_machines") or 1)
    if not _is_job(values) or ranks % machines:
        return str(ranks)
    return f"{values['machine.device']} {machines}x{ranks // machines}"


def machine_prompt(values: Values) -> Message:
    """What the ranks run on."""
    if _is_job(values):
        return say("Machines and GPUs of the job, for example 2x8xH100")
    match values.get("machine.device"):
        case "cuda":
            return say("GPUs, one rank each")
        case "cpu":
            return say("CPU ranks")
    return say("Ranks on {device}", device=values.get("machine.device"))


def _is_job(values: Values) -> bool:
    return str(values.get("cluster.kind") or "none") != "none"


def read_model(typed: str, values: Values) -> dict[str, str] | Message:  # noqa: ARG001 (a reader's signature)
    """`org/model`; `org/model 13B`: with the number of its parameters, which is needed where nothing else says it."""
    name, _, size = typed.strip().rpartition(" ")
    if name and re.fullmatch(r"\d+(\.\d+)?[BbMm]", size):
        return {"model.name": name.strip(), "model.parameters": size}
    return {"model.name": typed.strip()}


def show_model(values: Values) -> str:
    """The name; the size stands in the review."""
    return str(values["model.name"])


def read_parameters(typed: str, values: Values) -> dict[str, str] | Message:  # noqa: ARG001 (a reader's signature)
    """`7B`, `350M`, `6738415616`; a small number means billions."""
    billions = re.fullmatch(r"\s*(\d{1,4}(\.\d+)?)\s*", typed)
    return {"model.parameters": f"{billions[1]}B" if billions else typed}


def show_parameters(values: Values) -> str:
    """The number; empty where it is not known."""
    found = values.get("model.parameters")
    return "" if found is None else str(found)


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
    typed_name = typed.replace(" ", "").lower()
    name, _, extra = typed_name.partition("+")
    if not extra and any(row.kind == name and row.zero_stage is not None for row in strategies.every()):
        return {"strategy.kind": name}
    legal = [offered for offered, _ in strategies_offered()]
    if typed_name not in legal:
        return say(
            "strategy.kind: {typed} is not a valid strategy; choose one of {legal}",
            typed=repr(typed),
            legal=", ".join(legal),
        )
    row = strategies.labeled(name)
    answer = {
        "strategy.kind": row.kind,
        "strategy.zero_stage": "null" if row.zero_stage is None else str(row.zero_stage),
    }
    if row.zero_stage is None or extra:
        answer["strategy.offload_optimizer_device"] = "cpu" if extra else "none"
        answer["strategy.offload_param_device"] = "cpu" if extra and row.partitions_weights else "none"
    return answer


def show_strategy(values: Values) -> str:
    """The strategy in one word, with `+offload` where anything is."""
    row = strategies.chosen(values["strategy.kind"], values["strategy.zero_stage"])
    devices = (values.get("strategy.offload_optimizer_device"), values.get("strategy.offload_param_device"))
    away = set(devices) - {"none", None}
    return row.label + (_OFFLOAD if away and row.zero_stage is not None else "")


def read_length(typed: str, values: Values) -> dict[str, str] | Message:
    """`500`, `500 steps`, `3 epochs`; a bare number keeps the unit that stands."""
    match = re.fullmatch(r"\s*(\S+?)\s*(steps?|updates?|epochs?)?\s*", typed)
    if not match:
        return say(
            "schedule.n_steps: {typed} is not a valid length; for example, type 500 steps or 3 epochs",
            typed=repr(typed),
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
