"""Scripts whose loop goes over no data: each update computes with the same tensors, or with a batch that it draws."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from trainwiz.script.tree import dotted

if TYPE_CHECKING:
    from trainwiz.script import Script


def loop(script: Script) -> ast.For | None:
    """The only loop around the backward pass, where it counts updates and no loader is made."""
    backward = next(iter(script.training.backwards), None)
    if backward is None or script.called("DataLoader", "torch.utils.data.DataLoader"):
        return None
    around = script.tree.loops_around(backward.call)
    only = around[0] if len(around) == 1 else None
    return only if isinstance(only, ast.For) and counts(only.iter) else None


def counts(source: ast.expr) -> bool:
    """Whether a loop over this counts: `range(100)`, `tqdm(range(100))`."""
    while isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] == "tqdm" and source.args:
        source = source.args[0]
    return isinstance(source, ast.Call) and dotted(source.func).rpartition(".")[2] in ("range", "trange")
