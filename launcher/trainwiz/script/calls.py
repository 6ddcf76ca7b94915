"""Calls in a script, by the name of what they call."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A call with the full name of what is called: `torch.load`, or `Accelerator.gather` for methods of known kinds."""

    node: ast.Call
    """The call in the syntax tree."""
    name: str
    """The full name; `.name` for a method of an object of unknown kind."""

    def keyword(self, name: str) -> ast.expr | None:
        """The value of a keyword argument."""
        return next((k.value for k in self.node.keywords if k.arg == name), None)

    def has_spread(self) -> bool:
        """Whether arguments come from elsewhere: `f(*args, **kwargs)`."""
        return any(k.arg is None for k in self.node.keywords) or any(isinstance(a, ast.Starred) for a in self.node.args)
