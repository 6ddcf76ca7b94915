"""Each value of a plan: the answer if there is one, else the default with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainwiz import strategies, tasks
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.models import Transformer
from trainwiz.project import DataFacts, ModelFacts
from trainwiz.strategies import Strategy
from trainwiz.tasks import Task

SourceKind = Literal["found", "default", "yours", "file"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a value comes from, and why it has this value."""

    kind: SourceKind
    """The machine, a default, the person, or a file."""
    reason: Message
    """Why, as the comment in trainwiz.yaml says it."""


YOURS = Source(kind="yours", reason=say("your answer"))


@dataclass(kw_only=True)
class Decision:
    """A plan in the making."""

    answers: Mapping[str, Any]
    """Legal values by dotted key."""
    machine: Machine | None
    """Where the person will train; None where it was not looked at."""
    origins: Mapping[str, Source]
    """Sources of answers that the user did not give."""
    defaults: Mapping[str, Any]
    """The plan's own defaults, for keys that have the same one everywhere."""
    model: ModelFacts | None = None
    """The model, where it was looked at."""
    parameters: int | None = None
    """The model's size; None where it is unknown."""
    transformer: Transformer | None = None
    """The model's layers; None where its size is unknown, and for other networks."""
    data: DataFacts | None = None
    """The training data, where it was looked at."""
    values: dict[str, Any] = field(default_factory=dict)
    """The values that are settled so far, by dotted key."""
    sources: dict[str, Source] = field(default_factory=dict)
    """Where each of them comes from."""
    adapter_said: Callable[[str, str, str], Message] | None = None
    """The reason for the default adapter, of its size, that of all weights and their strategy; None where it states
    none of these.

    It is given before the length of a sample is decided, and once more with the numbers of the whole plan.
    """

    @property
    def samples(self) -> int | None:
        """The number of training samples; None where it is not known exactly."""
        return self.data.samples if self.data else None

    @property
    def first(self) -> Mapping[str, Any]:
        """The columns of the data's first row; empty where they are unknown."""
        return self.data.first if self.data else {}

    def given(self, key: str) -> bool:
        """Whether the user answered it; the answer None leaves it to the default."""
        return self.answers.get(key) is not None

    def settle(self, key: str, default: Any, reason: Message, kind: SourceKind = "default") -> Any:
        """Set one value to the answer, or to this default for this reason. Returns it."""
        if key in self.answers:
            self.values[key] = self.answers[key]
            self.sources[key] = self.origins.get(key, YOURS)
        else:
            self.values[key] = default
            self.sources[key] = Source(kind=kind, reason=reason)
        return self.values[key]

    def settle_default(self, key: str, reason: Message) -> Any:
        """The same for a key that has a default in the plan itself."""
        return self.settle(key, self.defaults[key], reason)

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
