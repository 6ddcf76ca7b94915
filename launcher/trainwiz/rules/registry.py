"""The registry of rules, and how they are run over facts.

A rule is a small function. Its parameters name the facts it needs (`plan`, `machine`, `project`, `script`, …); it runs
only where all of them are known, and yields a `Violation` for each thing that is wrong. Its docstring is
the manual entry that `trainwiz explain` shows:

    @rule("TW401", level=Level.ERROR, field="batch.real_batch_size")
    def real_batch_size_divides(plan: Plan) -> Violations:
        '''The real batch is the product of micro-batch, accumulation and world.

        Without it: …  Why: …  Instead: …  Source: …
        '''

A violation in a file stands at its key. A sentence may show what it was not given: `{key}` and `{value}` are the last
name and the value of that key, `{num_machines}` is what the plan says for it, and `{kind}` what another fact of the
rule has under that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import TYPE_CHECKING

from trainwiz.finding import Finding, Level, Violation, Violations
from trainwiz.message import Message

if TYPE_CHECKING:
    from trainwiz.config import Accelerate, DeepSpeed, Document
    from trainwiz.config.tools import ToolFile
    from trainwiz.estimate import Estimate
    from trainwiz.machine import Machine
    from trainwiz.plan import Plan
    from trainwiz.project import Architecture, Project
    from trainwiz.script import Script


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known now; None for what is not. Rules pick from it by parameter name."""

    plan: Plan | None = None
    """The plan to judge."""
    machine: Machine | None = None
    """The machine that will train."""
    project: Project | None = None
    """The files around the plan: data, model, generated files."""
    estimate: Estimate | None = None
    """The memory and the disk space that the plan needs."""
    script: Script | None = None
    """The training script."""
    document: Document | None = None
    """The configuration file that is judged."""
    mistakes: Sequence[Violation] | None = None
    """What keeps the document from being a plan."""
    accelerate: Accelerate | None = None
    """The document as accelerate reads it."""
    deepspeed: DeepSpeed | None = None
    """The document as DeepSpeed reads it."""
    tool_file: ToolFile | None = None
    """The document as a training tool reads it."""
    architecture: Architecture | None = None
    """The shape of the model that a configuration file is for."""


RuleFunction = Callable[..., Violations]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A registered rule."""

    id: str
    """Its name for ever, like TW401."""
    level: Level
    """How bad a violation is."""
    field: str
    """The key that it judges."""
    needs: tuple[str, ...]
    """The facts it needs, by their names in `Facts`."""
    manual: str
    """Its manual entry."""
    check: RuleFunction
    """The function that finds violations."""

    @property
    def folder(self) -> str:
        """The folder under `rules/` that its module is in, which says what it judges."""
        return self.check.__module__.split(".")[2]

    @property
    def module(self) -> str:
        """The last name of its module, which under `tools/` says whose files it judges."""
        return self.check.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of the manual entry."""
        return self.manual.partition("\n")[0]

    def __call__(self, facts: Facts) -> Iterator[Finding]:
        """The rule's findings; none where a fact it needs is unknown."""
        given = {name: getattr(facts, name) for name in self.needs}
        if any(value is None for value in given.values()):
            return
        document = facts.document
        for violation in self.check(**given):
            where, fix = violation.where or self.field, violation.fix
            known = {**(_of_plan(facts.plan) if facts.plan else {}), **(_of_key(document, where) if document else {})}
            yield Finding(
                rule=self.id,
                level=self.level,
                where=where,
                message=_completed(violation.message, known, given),
                fix=fix and replace(fix, message=_completed(fix.message, known, given)),
                place=violation.place or (document.place(where) if document else None),
            )


REGISTRY: dict[str, Rule] = {}
_LONG = 40
"""Characters of a value that a message does not show as a whole."""


def rule(id: str, *, level: Level, field: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule under an id that stays for ever. Raises `ValueError` on a reused id or a missing manual."""

    def register(function: RuleFunction) -> RuleFunction:
        manual = inspect.getdoc(function)
        if not manual:
            raise ValueError(f"{id} has no docstring; it is the rule's manual entry")
        if id in REGISTRY:
            raise ValueError(f"{id} is taken by {REGISTRY[id].check.__name__}")
        needs = tuple(inspect.signature(function).parameters)
        REGISTRY[id] = Rule(id=id, level=level, field=field, needs=needs, manual=manual, check=function)
        return function

    return register


def _completed(message: Message, known: Mapping[str, object], facts: Mapping[str, object]) -> Message:
    """The message with the values that its sentence shows and that it was not given."""
    shown = dict.fromkeys(name for _, name, _, _ in Formatter().parse(message.template) if name)
    missing = [name for name in shown if name not in message.values]
    owners = {name: fact for name in missing if name not in known for fact in facts.values() if hasattr(fact, name)}
    found = {name: known[name] for name in missing if name in known}
    found |= {name: getattr(fact, name) for name, fact in owners.items()}
    return Message(message.template, {**found, **message.values})


def _of_key(document: Document, where: str) -> dict[str, object]:
    written = document.raw(where) if document.has(where) else ""
    return {
        "key": where.rpartition(".")[2],
        "value": written if len(written) < _LONG else f"{written[: _LONG - 4]} …",
    }


def _of_plan(plan: Plan) -> dict[str, object]:
    """The values of a plan by the last names of their keys, but those of the cluster, which are the words of others."""
    sections = [section for section in vars(plan).values() if hasattr(section, "__dict__") and section != plan.cluster]
    return {name: value for part in (plan, *sections) for name, value in vars(part).items()}


def check(facts: Facts, *, rules: Iterable[Rule], ignore: Sequence[str] = ()) -> tuple[Finding, ...]:
    """All findings over the facts, errors first, then by rule id. `ignore` holds rule ids or prefixes of them."""
    ignored = tuple(ignore) + (tuple(facts.plan.ignore) if facts.plan else ())
    found = [f for r in rules if not r.id.startswith(ignored or ("-",)) for f in r(facts)]
    order = list(Level)
    return tuple(sorted(found, key=lambda f: (order.index(f.level), f.rule)))
