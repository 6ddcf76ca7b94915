"""The plan in about ten lines: what is trained, on what, where, how, for how long, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainwiz import columns, quantities, tasks
from trainwiz.language import t, text
from trainwiz.message import say
from trainwiz.questions import forms
from trainwiz.vocabulary import spelled

if TYPE_CHECKING:
    from trainwiz.decide import Decided

_FIRST_TEXT = 36
"""Characters of the first text that are shown, so that its label has room."""
_BAR = 10
"""Characters of the bar that shows how full a GPU is."""


def lines(decided: Decided) -> Mapping[str, str]:
    """One line for each question that matters most, by the key that it changes."""
    named = {key: found for key, found in _named(decided).items() if found}
    width = max(columns.width(name) for name, _ in named.values())
    return {key: f"{columns.pad(name, width)}  {words}" for key, (name, words) in named.items()}


def _named(decided: Decided) -> Mapping[str, tuple[str, str] | None]:
    plan = decided.plan
    task = tasks.of(plan)
    return {
        "task": (t("Task"), plan.task),
        "model.name": None if task.own_code else (t("Model"), _model(decided)),
        "model.adapter": (t("Trained"), _trained(decided)) if task.adapters else None,
        "data.train": None if task.own_code else (t("Data"), _data(decided)),
        "data.text_column": (t("First text"), first) if (first := _first_text(decided)) else None,
        "batch.sequence_length": (t("Text lengths"), _lengths(decided)) if decided.outlook.lengths else None,
        "data.eval": (t("Evaluation"), _evaluation(decided)),
        "machine.num_processes": (t("Machine"), _machine(decided)),
        "precision.mixed_precision": (t("Precision"), _precision(decided)),
        "strategy.kind": (t("Strategy"), _strategy(decided)),
        "batch.real_batch_size": (t("Batch"), _batch(decided)),
        "schedule.n_steps": (t("Length"), _length(decided)),
        "optimizer.learning_rate": (t("Learning rate"), _rate(decided)),
        "checkpoint.checkpointing_steps": (t("Checkpoints"), _checkpoints(decided)),
    }


def _model(decided: Decided) -> str:
    model, parameters = decided.plan.model, decided.outlook.parameters
    words = [model.name]
    if parameters:
        words.append(t("{n} parameters", n=counted(parameters)))
    words.append(t("random weights") if model.from_scratch else t("trained weights"))
    return t(", ").join(words)


def _trained(decided: Decided) -> str:
    model = decided.plan.model
    if model.adapter == "none":
        return t("all weights")
    if model.adapter == "lora":
        return t("LoRA of rank {rank}", rank=model.lora_rank)
    return t("QLoRA of rank {rank} on 4-bit weights", rank=model.lora_rank)


def _data(decided: Decided) -> str:
    samples = decided.outlook.samples
    name = spelled(decided.plan.data.train)
    words = t("{name}: about {n} samples", name=name, n=counted(samples)) if samples else name
    if decided.plan.data.columns:
        words = t("{data}, read as {columns}", data=words, columns=decided.plan.data.columns)
    turns = decided.outlook.turns
    if not turns:
        return words
    roles = " → ".join(f"{turn.role}{'*' if turn.learned else ''}" for turn in turns)
    told = next((turn for turn in turns if turn.learned), turns[0]).text
    return t("{data}; the first: {roles} (* is learned), {text}", data=words, roles=roles, text=told)


def _first_text(decided: Decided) -> str:
    """The beginning of the first text as the model will see it, and its labels; empty where it is not known."""
    data, task, first = decided.plan.data, tasks.of(decided.plan), dict(decided.outlook.columns)
    if decided.outlook.turns or not task.text_column or data.text_column not in first:
        return ""
    whole = first[data.text_column]
    shown = f"{data.text_column}: {columns.shortened(whole, _FIRST_TEXT)}"
    labels = [first[name.strip()] for name in data.label_column.split(",") if name.strip() in first]
    return f"{shown} → {data.label_column}: {', '.join(labels)}" if task.labeled and labels else shown


def _lengths(decided: Decided) -> str:
    seen, room = decided.outlook.lengths, decided.plan.batch.sequence_length
    assert seen
    told = {"median": seen.median, "most": seen.most, "longest": seen.longest, "room": room}
    if not seen.longer:
        return t("≈ {median} tokens (median), 95 % ≤ {most}, max {longest}; all fit into {room}", **told)
    share = f"{max(0.01, seen.longer / seen.rows):.0%}"
    return t("≈ {median} tokens (median), 95 % ≤ {most}, max {longest}; {share} exceed {room}", share=share, **told)


def _evaluation(decided: Decided) -> str:
    plan = decided.plan
    if plan.data.eval is None:
        return t("none") if not tasks.of(plan).own_code else t("by task.py")
    every = plan.evaluation.evaluation_steps
    if every:
        return t("{name}, every {n} updates", name=plan.data.eval, n=every)
    return t("{name}, after each epoch", name=plan.data.eval)


def _machine(decided: Decided) -> str:
    machine, source = decided.plan.machine, decided.sources["machine.num_processes"]
    ranks = {
        "cuda": say("{n} GPUs", n=machine.ranks_per_machine),
        "cpu": say("{n} CPU ranks", n=machine.ranks_per_machine),
    }
    each = ranks.get(machine.device, say("{n} ranks on {device}", n=machine.ranks_per_machine, device=machine.device))
    if machine.num_machines > 1:
        each = say("{n} machines, each with {each}", n=machine.num_machines, each=each)
    if (kind := decided.plan.cluster.kind) != "none":
        each = say("{each}, started by {kind}", each=each, kind=kind)
    shown = text(each)
    return t("{value} ({reason})", value=shown, reason=text(source.reason)) if source.kind == "found" else shown


def _precision(decided: Decided) -> str:
    kind, source = decided.plan.precision.mixed_precision, decided.sources["precision.mixed_precision"]
    return t("{value} ({reason})", value="fp32" if kind == "no" else kind, reason=text(source.reason))


def _strategy(decided: Decided) -> str:
    seen = decided.outlook
    words = forms.show_strategy(_values(decided))
    if not seen.peak_bytes or not seen.memory_bytes:
        return words
    share = seen.peak_bytes / seen.memory_bytes
    filled = min(_BAR, round(share * _BAR))
    amount = t(
        "{need} of {memory} per GPU",
        need=quantities.size(seen.peak_bytes),
        memory=quantities.size(seen.memory_bytes),
    )
    bar = "#" * filled + "." * (_BAR - filled)
    shown = {"strategy": words, "amount": amount, "bar": bar}
    if not seen.host_bytes:
        return t("{strategy}: {amount} [{bar}]", **shown)
    size = quantities.size(seen.host_bytes)
    return t("{strategy}: {amount} [{bar}], {size} of host memory per machine", size=size, **shown)


def _batch(decided: Decided) -> str:
    batch, world = decided.plan.batch, decided.plan.machine.num_processes
    equation = (
        f"{batch.real_batch_size} = {batch.per_device_batch_size} × {batch.gradient_accumulation_steps} × {world}"
    )
    if not tasks.of(decided.plan).from_hub:
        return equation
    return t("{equation}, of {length} tokens each", equation=equation, length=batch.sequence_length)


def _length(decided: Decided) -> str:
    schedule, seen = decided.plan.schedule, decided.outlook
    words = []
    if schedule.train_strategy == "epochs":
        words.append(t("{n} epochs", n=schedule.n_epochs))
    if seen.updates:
        words.append(t("{n} updates", n=counted(seen.updates)))
    if seen.tokens:
        words.append(t("at most {n} tokens", n=counted(seen.tokens)))
    if seen.seconds:
        words.append(t("about {time}", time=duration(seen.seconds)))
    if seen.cost:
        words.append(t("cost {cost}", cost=f"{seen.cost:,.2f}"))
    return t(", ").join(words)


def _rate(decided: Decided) -> str:
    optimizer, schedule = decided.plan.optimizer, decided.plan.schedule
    warmup = schedule.n_warmup_steps or f"{schedule.warmup_ratio:.0%}"
    return t(
        "{rate} with {optimizer}, {schedule}, warm-up {warmup}",
        rate=optimizer.learning_rate,
        optimizer=optimizer.name,
        schedule=schedule.lr_scheduler_type,
        warmup=warmup if schedule.n_warmup_steps or schedule.warmup_ratio else 0,
    )


def _checkpoints(decided: Decided) -> str:
    checkpoint, size = decided.plan.checkpoint, decided.outlook.checkpoint_bytes
    every, kept = checkpoint.checkpointing_steps, checkpoint.checkpoints_total_limit
    words = [
        t("every {n} updates", n=every) if every else t("only at the end"),
        t("the newest {n} are kept", n=kept) if kept else t("all are kept"),
        t("{size} each", size=quantities.size(size)) if size else "",
    ]
    return t(", ").join(filter(None, words))


def _values(decided: Decided) -> Mapping[str, object]:
    from trainwiz.plan import flat

    return flat(decided.plan)


def counted(number: int) -> str:
    """A large number in three digits: 494M, 1.2B, 80k; a small one as it is."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 10 * unit or (number >= unit and unit > 1e3):
            return f"{number / unit:.3g}{letter}"
    return str(number)


def duration(seconds: float) -> str:
    """A forecast of a time: 40 s, 12 min, 3.5 h, 4 days."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else t("{n} days", n=f"{seconds / 86400:.0f}")
