"""How fast a training is, in what its task counts."""

from __future__ import annotations

from trainwiz import tasks
from trainwiz.language import t


def counted(task: str | None) -> str:
    """What a task counts: `tokens`, `pictures` or `samples`; of an unknown task, `tokens`."""
    return tasks.named(task).counted if task in {each.name for each in tasks.every()} and task else "tokens"


def rate(speed: float, task: str | None) -> str:
    """So many of them per second."""
    return {
        "tokens": t("{speed:,.0f} tokens/s", speed=speed),
        "pictures": t("{speed:,.0f} pictures/s", speed=speed),
        "samples": t("{speed:,.0f} samples/s", speed=speed),
    }[counted(task)]


def per_second(task: str | None) -> str:
    """The name of the number."""
    return {
        "tokens": t("tokens per second"),
        "pictures": t("pictures per second"),
        "samples": t("samples per second"),
    }[counted(task)]


def chart_title(task: str | None) -> str:
    """The title of its curve."""
    return {
        "tokens": t("Speed, tokens per second"),
        "pictures": t("Speed, pictures per second"),
        "samples": t("Speed, samples per second"),
    }[counted(task)]
