"""Calls in a script, by the name of what they call."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cached_property

from trainwiz.script.tree import method


class Call:
    """A call with the full name of what is called: `torch.load`, or `Accelerator.gather` for methods of known kinds."""

    def __init__(self, node: ast.Call, named: Callable[[ast.Call], str]) -> None:
        """`node` is the call in the syntax tree, `named` finds its full name once it is asked for."""
        self.node = node
        self._named = named

    @cached_property
    def name(self) -> str:
        """The full name; `.name` for a method of an object of unknown kind."""
        return self._named(self.node)

    def keyword(self, name: str) -> ast.expr | None:
        """The value of a keyword argument."""
        return next((k.value for k in self.node.keywords if k.arg == name), None)

    def argument(self, name: str, position: int) -> ast.expr | None:
        """The value of an argument that is given by its name or by its position."""
        return self.keyword(name) or next(iter(self.node.args[position : position + 1]), None)

    @property
    def arguments(self) -> list[ast.expr]:
        """The values of all arguments."""
        return [*self.node.args, *(k.value for k in self.node.keywords)]

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @cached_property
    def method(self) -> str:
        """`step` of `optimizer.step()`, whatever the optimizer is; empty for a function."""
        return method(self.node)

    @property
    def spreads(self) -> list[ast.expr]:
        """What keyword arguments come from: `kwargs` of `f(**kwargs)`."""
        return [k.value for k in self.node.keywords if k.arg is None]

    def has_spread(self) -> bool:
        """Whether arguments come from elsewhere: `f(*args, **kwargs)`."""
        return any(k.arg is None for k in self.node.keywords) or any(isinstance(a, ast.Starred) for a in self.node.args)
