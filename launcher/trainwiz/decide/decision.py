"""One decision after the other: take the answer if there is one, else the default with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainwiz import strategies, tasks
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.strategies import Strategy
from trainwiz.tasks import Task

SourceKind = Literal["found", "default", "yours", "file"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a value comes from: the machine, a default, the person, or a file; and why it is this one."""

    kind: SourceKind
    reason: Message


YOURS = Source(kind="yours", reason=say("your answer"))


@dataclass(kw_only=True)
class Decision:
    """A plan in the making: values and sources by dotted key.

    `parameters` is the model's size and `samples` the training data's, None where unknown.
    """

    answers: Mapping[str, Any]
    machine: Machine | None
    origins: Mapping[str, Source]
    parameters: int | None = None
    samples: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)

    def given(self, key: str) -> bool:
        """Whether the person answered it; an answer of None leaves it to us."""
        return self.answers.get(key) is not None

    def settle(self, key: str, default: Any, reason: Message, kind: SourceKind = "default") -> Any:
        """Fix one value: the answer, or this default for this reason. Returns it."""
        if key in self.answers:
            self.values[key] = self.answers[key]
            self.sources[key] = self.origins.get(key, YOURS)
        else:
            self.values[key] = default
            self.sources[key] = Source(kind=kind, reason=reason)
        return self.values[key]

    @property
    def task(self) -> Task:
        """The task that was settled."""
        return tasks.named(self.values["task"])

    @property
    def strategy(self) -> Strategy:
        """The strategy that was settled."""
        return strategies.chosen(self.values["strategy.kind"], self.values["strategy.zero_stage"])

    @property
    def half(self) -> bool:
        """Whether forward and backward compute in 16 bits."""
        return self.values["precision.mixed_precision"] in ("fp16", "bf16")

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks compute on the CPU."""
        return bool(self.values["machine.device"] == "cpu")
