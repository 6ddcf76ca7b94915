"""Samplers and loaders of a project's own that are told the rank, but give all ranks the same samples."""

from __future__ import annotations

import ast
import re

from trainwiz.finding import Violations, remedy, violation
from trainwiz.script import Script
from trainwiz.script.outline import Outline
from trainwiz.script.tree import Function, dotted, operates, walk

_RANK = re.compile(r"rank|shard_id|process_index", re.IGNORECASE)
_RANKS = re.compile(r"num_(replicas|processes|shards|ranks)|world|n_?ranks|dp_size", re.IGNORECASE)
_COUNTS = re.compile(r"(per|num|of|each)_\w*rank|rank(s$|_size)", re.IGNORECASE)
"""Names of numbers of samples or ranks."""


def own_shares(script: Script) -> Violations:
    """Classes that keep the rank, and then take the same samples on every rank, or overlapping ones."""
    for node in script.tree.each(_rankless):
        if script.training.backwards:
            yield violation(
                "{name} knows its rank, but gives every rank the same samples",
                remedy("begin at the rank, and take every num_replicas-th: indices[rank::num_replicas]"),
                name=node.name,
                place=script.place(_iterating(node) or node),
            )
    for change in script.tree.each(_overlapping):
        yield violation(
            "{name} begins at the rank, but advances by the batch of one rank: the next batch is what another has read",
            remedy("advance by the batches of all ranks: multiply by the number of ranks"),
            name=dotted(change.target),
            place=script.place(change),
        )


def _iterating(kind: ast.ClassDef) -> Function | None:
    return next((f for f in kind.body if isinstance(f, Function) and f.name == "__iter__"), None)


def _rankless(outline: Outline) -> list[ast.ClassDef]:
    """Samplers that store the rank, and never ask for it in what they draw."""
    return [kind for kind in outline.of(ast.ClassDef) if _is_sampler(kind) and _forgets_rank(kind)]


def _is_sampler(kind: ast.ClassDef) -> bool:
    return any(dotted(base).rpartition(".")[2] in ("Sampler", "DistributedSampler") for base in kind.bases)


def _forgets_rank(kind: ast.ClassDef) -> bool:
    made = next((f for f in kind.body if isinstance(f, Function) and f.name == "__init__"), None)
    draws = _iterating(kind)
    if made is None or draws is None:
        return False
    stored = {n.attr for n in walk(made) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    ranks = {name for name in stored if _RANK.search(name) and not _RANKS.search(name)}
    others = [n for f in kind.body if f is not made for n in walk(f)]
    words = {getattr(n, "attr", "") or getattr(n, "id", "") for n in others}
    uses = any(_RANK.search(word) for word in words if word and not _COUNTS.search(word))
    begins = any(isinstance(n, ast.Attribute) and n.attr in _begun(made) for n in others)
    return bool(ranks) and "super" not in words and not uses and not begins


def _begun(made: Function) -> set[str]:
    """The attributes that the rank is a part of."""
    found = set()
    for node in walk(made):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            words = {getattr(n, "attr", "") or getattr(n, "id", "") for n in walk(node.value)}
            plain = isinstance(node.value, ast.Name | ast.Attribute)
            if not plain and any(
                _RANK.search(w) and not _COUNTS.search(w) and not _RANKS.search(w) for w in words if w
            ):
                found.add(node.targets[0].attr)
    return found


def _overlapping(outline: Outline) -> list[ast.AugAssign]:
    """Positions that a class begins at its rank, and advances without the number of ranks."""
    found = []
    for change in outline.of(ast.AugAssign):
        name = dotted(change.target)
        if name.startswith("self.") and isinstance(change.op, ast.Add) and operates(change.value, ast.Mult):
            values = [b.value for b in outline.bindings.get(name, ()) if operates(b.value, ast.Mult)]
            begun = any(_says(value, _RANK, _RANKS) for value in values)
            if begun and not _is_whole(change.value, outline):
                found.append(change)
    return found


def _is_whole(step: ast.expr, outline: Outline) -> bool:
    """Whether the number of ranks is in a step, or in what its names were assigned."""
    names = {dotted(n) for n in walk(step) if isinstance(n, ast.Name | ast.Attribute)} - {""}
    made = [b.value for name in names for b in outline.bindings.get(name, ())]
    return any(_says(value, _RANKS) for value in (step, *made))


def _says(value: ast.AST, words: re.Pattern[str], but: re.Pattern[str] | None = None) -> bool:
    names = (getattr(n, "attr", "") or getattr(n, "id", "") for n in walk(value))
    return any(words.search(name) and not (but and but.search(name)) for name in names if name)
