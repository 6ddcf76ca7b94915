"""What a new version of a generated file means for one that a person edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz import fields
from trainwiz.render.artifact import Artifact
from trainwiz.store.manifest import Manifest, sha256


# docs/decisions/files.md: An edited script follows the plan where only values change
def followed(present: str | None, artifact: Artifact, remembered: Manifest) -> str | None:
    """The text of an edited file as it follows the plan; None where that is not certain."""
    if present is None:
        return None
    if remembered.files.get(artifact.path) == sha256(artifact.text.encode()):
        return present
    before = values_before(artifact, remembered)
    return None if before is None else with_new_values(present, artifact, before)


def values_before(artifact: Artifact, remembered: Manifest) -> dict[str, Any] | None:
    """The earlier values of those that changed, if nothing else changed in what is generated; else None."""
    old, new = remembered.values.get(artifact.path), values_of(artifact)
    if old is None or old.keys() != new.keys():
        return None
    before = {name: old[name] for name in new if not fields.same(old[name], new[name])}
    was = fields.with_literals(artifact.text, before)
    return before if sha256(was.encode()) == remembered.files.get(artifact.path) else None


def with_new_values(present: str, artifact: Artifact, before: Mapping[str, Any]) -> str | None:
    """An edited file with the values that changed; None where an edit touches one of them."""
    mine, new = fields.literals(present), values_of(artifact)
    if any(name not in mine or not _either(mine[name], before[name], new[name]) for name in before):
        return None
    text = fields.with_literals(present, {name: new[name] for name in before if not fields.same(mine[name], new[name])})
    # A default that goes over several lines is not set.
    return text if fields.literals(text) == {**mine, **{name: new[name] for name in before}} else None


def _either(value: object, one: object, other: object) -> bool:
    return fields.same(value, one) or fields.same(value, other)


def values_of(artifact: Artifact) -> dict[str, Any]:
    """The defaults of its `Config`, by name."""
    return fields.literals(artifact.as_generated) if artifact.path.endswith(".py") else {}
