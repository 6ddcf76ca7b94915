"""The models that a script loads, by the names that stand in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwiz.script.tree import dotted

if TYPE_CHECKING:
    from trainwiz.script import Script


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What `from_pretrained` is asked for: the models' names, and the attention where it is always the same one."""

    names: tuple[str, ...]
    attention: str | None = None


def loaded(script: Script) -> Loaded:
    """Of the calls on classes for models; tokenizers, processors and adapters do not count."""
    names: dict[str, None] = {}
    attention: set[object] = set()
    for call in script.calls:
        owner = dotted(call.node.func).rpartition(".")[0].rpartition(".")[2]
        if not isinstance(call.node.func, ast.Attribute) or call.node.func.attr != "from_pretrained":
            continue
        if not ("Model" in owner or "ForCausalLM" in owner or owner.endswith(("ForSequenceClassification", "Config"))):
            continue
        given = call.keyword("pretrained_model_name_or_path") or next(iter(call.node.args), None)
        name = script.values.of(given)
        if name and isinstance(name.value, str):
            names[name.value] = None
        word = script.values.of(call.keyword("attn_implementation"))
        if not owner.endswith("Config"):
            attention.add(word.value if word else None)
    only = next(iter(attention)) if len(attention) == 1 else None
    return Loaded(names=tuple(names), attention=only if isinstance(only, str) else None)
