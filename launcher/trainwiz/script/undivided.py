"""A loss before a script divides it by the number of micro-batches, which the project's loop does itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwiz.script.tree import method, walk

if TYPE_CHECKING:
    from trainwiz.script import Script

_NAMED = re.compile(r"accum|grad_?acc|acc_steps")


@dataclass(frozen=True)
class Undivided:
    """Finds it."""

    sizes: frozenset[str]
    """How the script writes the number of micro-batches of an update."""

    @classmethod
    def of(cls, script: Script) -> Undivided:
        """By the windows after which the script makes its updates."""
        return cls(frozenset(ast.unparse(window.size) for window in script.training.windows))

    def loss(self, loss: ast.expr, block: Sequence[ast.stmt]) -> ast.expr:
        """The loss itself; where it has another name than what is divided (`scaled = loss / steps`), that one."""
        found = self._quotient(loss)
        while isinstance(found, ast.Name):
            given = [one for one in block if isinstance(one, ast.Assign) and _names(one) == [found.id]]
            value = given[-1].value if given else None
            rest = self._quotient(value) if value is not None else None
            if value is None or rest is value or rest is None or self.divides(given[-1]):
                break
            found = rest
        return found

    def needless(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a block that only divide, or compute gradients."""
        return [one for one in block if self.divides(one) or any(method(node) == "backward" for node in walk(one))]

    def divides(self, statement: ast.stmt) -> bool:
        """Whether a statement only divides by the number of micro-batches: `loss = loss / steps`, on any condition."""
        if isinstance(statement, ast.If):
            return not statement.orelse and all(map(self.divides, statement.body))
        if isinstance(statement, ast.AugAssign):
            return isinstance(statement.op, ast.Div) and self._is_size(statement.value)
        if not isinstance(statement, ast.Assign):
            return False
        rest = self._quotient(statement.value)
        return rest is not statement.value and [ast.unparse(rest)] == _names(statement)

    def _quotient(self, loss: ast.expr) -> ast.expr:
        while isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Div) and self._is_size(loss.right):
            loss = loss.left
        return loss

    def _is_size(self, node: ast.expr) -> bool:
        text = ast.unparse(node)
        return text in self.sizes or _NAMED.search(text) is not None


def _names(statement: ast.Assign) -> list[str]:
    return [ast.unparse(one) for one in statement.targets]
