"""Whether a project's script uses the plan's values: by its text before a launch, by its own statement during one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from trainwiz import fields
from trainwiz.plan import Plan
from trainwiz.project import Disagreement
from trainwiz.render import SETTINGS
from trainwiz.render.artifact import Artifact
from trainwiz.render.settings import key_of, settings
from trainwiz.vocabulary import spelled


def in_texts(plan: Plan, artifacts: Sequence[Artifact], present: Mapping[str, str]) -> tuple[Disagreement, ...]:
    """The fields whose declared default is not the plan's value; computed defaults are left out.

    `artifacts` are the files that the plan makes, `present` the texts of the same files as they are.
    """
    wanted: dict[str, Any] = {}
    declared: dict[str, tuple[str, fields.Field]] = {}
    for artifact in sorted(artifacts, key=lambda artifact: artifact.path):  # task.py before train.py, as they derive
        wanted.update(_planned(plan, artifact))
        found = fields.declared(present.get(artifact.path, ""))
        declared.update({name: (artifact.path, field) for name, field in found.items()})
    return tuple(
        _disagreement(plan, name, wanted[name], field.value, file=file, line=field.line)
        for name, (file, field) in declared.items()
        if field.is_literal and name in wanted and not fields.same(wanted[name], field.value)
    )


def in_statement(
    plan: Plan, artifacts: Sequence[Artifact], stated: Mapping[str, Any], *, without: Collection[str] = ()
) -> tuple[Disagreement, ...]:
    """The fields with another value than the plan's in what a running script states, except for `without`.

    A field that the script no longer has is named as well.
    """
    return tuple(_in_statement(plan, artifacts, stated, without))


def _in_statement(
    plan: Plan, artifacts: Sequence[Artifact], stated: Mapping[str, Any], without: Collection[str]
) -> Iterator[Disagreement]:
    for artifact in artifacts:
        for name, value in _planned(plan, artifact).items():
            if name not in without and (name not in stated or not fields.same(stated[name], value)):
                yield _disagreement(plan, name, value, stated.get(name), file=artifact.path)


def _planned(plan: Plan, artifact: Artifact) -> dict[str, Any]:
    """The fields that the plan gives a value; all others are the script's own."""
    found = fields.literals(artifact.text) if artifact.path in SETTINGS else {}
    given = settings(plan)
    return {name: value for name, value in found.items() if name in given}


def _disagreement(
    plan: Plan, field: str, planned: object, scripted: object, *, file: str, line: int = 0
) -> Disagreement:
    return Disagreement(
        key=key_of(plan, field) or "",
        field=field,
        planned=spelled(planned),
        scripted=spelled(scripted),
        file=file,
        line=line,
    )
