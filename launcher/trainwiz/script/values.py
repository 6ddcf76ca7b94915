"""Numbers and words of a script as they are written: followed through names, parameters, dictionaries, argparse's
defaults and the fields of its classes. Nothing is run; what is not the same on every way there is not known."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.script.names import Assignment, Names, parameters
from trainwiz.script.tree import Function, Tree, constant, dotted, method, walk

_DEPTH = 12
"""Steps from a name to where its value is written."""
_LARGEST = 10**15
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_FLAGS = {"store_true": False, "store_false": True}
BY_DATACLASSES = ("parse_args_into_dataclasses", "parse_args_and_config")
"""How parsers of transformers and TRL read a command line: their options are the fields of dataclasses."""
_NAMESPACES = ("args", "opt", "opts", "options", "flags", "hparams", "cmd_args")


@dataclass(frozen=True)
class Value:
    """A value and where it is written."""

    value: Any
    """The value."""
    node: ast.AST
    """The expression that is it."""
    option: str = ""
    """The option of the command line that it is only the default of."""


class Values:
    """What expressions of one script come to."""

    def __init__(self, tree: Tree, names: Names, arguments: Sequence[str] = ()) -> None:
        """`arguments` are what the script is started with. Raises `UsageError` where it has no such options."""
        self.tree, self.names = tree, names
        self._classes = {node.name: node for node in tree.of(ast.ClassDef)}
        self._options: dict[str, list[ast.Call]] = {}
        for call in tree.calls:
            if method(call) == "add_argument" and (name := _option(call)):
                self._options.setdefault(name[1], []).append(call)
        self._typed = dict(self._read(arguments))
        # `config["lr"] = …` anywhere: what the dictionary was made with no longer counts.
        self._stored = {_key(node) for node in tree.of(ast.Subscript) if isinstance(node.ctx, ast.Store)}

    def _read(self, arguments: Sequence[str]) -> Iterator[tuple[str, Value]]:
        """What a command line says, by the attribute that it comes to."""
        if not self._options and self.tree.calls_of(*BY_DATACLASSES):
            return
        by_word = {w: (name, calls[-1]) for name, calls in self._options.items() for w in _words(calls[-1])}
        places = [name for name, calls in self._options.items() if not _words(calls[-1])[0].startswith("-")]
        waiting, appended = list(arguments), dict[str, list[Any]]()
        while waiting:
            word, equals, value = waiting.pop(0).partition("=")
            if word in by_word:
                name, call = by_word[word]
            elif places and not word.startswith("-"):
                name, word, value, equals = places.pop(0), "", f"{word}{equals}{value}", "="
                call = self._options[name][-1]
            else:
                raise UsageError(
                    say("the script has no option {word}", word=word),
                    say("its options: {options}", options=", ".join(sorted(by_word)) or "-"),
                )
            flag = _FLAGS.get(str(constant(_keyword(call, "action"))))
            if flag is not None:
                yield name, Value(not flag, call)
                continue
            action = _keyword(call, "action")
            if action is not None and constant(action) not in ("store", "append"):
                raise UsageError(say("{option}: only flags and options with a value can be passed", option=word))
            if not equals and not waiting:
                raise UsageError(say("no value for {option}", option=word))
            texts = [value if equals else waiting.pop(0)]
            while waiting and len(texts) < _most(call) and waiting[0].partition("=")[0] not in by_word:
                texts.append(waiting.pop(0))
            items = [_given(text, call, word) for text in texts]
            several = constant(_keyword(call, "nargs")) not in (None, "?")
            if constant(action) == "append":
                items, several = [*appended.get(name, []), *items], True
                appended[name] = items
            yield name, Value(items if several else items[0], call)

    def of(self, node: ast.expr | None) -> Value | None:
        """The value of an expression; None where it is not known."""
        return self._of(node, _DEPTH) if node is not None else None

    def _of(self, node: ast.expr, depth: int) -> Value | None:
        if depth == 0:
            return None
        if isinstance(node, ast.Constant):
            return Value(node.value, node) if isinstance(node.value, int | float | str | None) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._of(node.operand, depth - 1)
            return Value(-inner.value, node, inner.option) if inner and _is_number(inner.value) else None
        if isinstance(node, ast.BinOp):
            return self._computed(node, depth - 1)
        if isinstance(node, ast.Call) and dotted(node.func) in _CASTS and len(node.args) == 1 and not node.keywords:
            return _cast(self._of(node.args[0], depth - 1), dotted(node.func))
        if isinstance(node, ast.Attribute) and (option := self._default(node, depth)):
            return option
        origins = self._origins(node, depth - 1)
        if not origins or node in origins:
            return None
        found = [self._of(origin, depth - 1) for origin in origins]
        first = found[0]
        return first if first and all(other and _same(other.value, first.value) for other in found) else None

    def _computed(self, node: ast.BinOp, depth: int) -> Value | None:
        left, right = self._of(node.left, depth), self._of(node.right, depth)
        if not (left and right and _is_number(left.value) and _is_number(right.value)):
            return None
        try:
            if isinstance(node.op, ast.Pow) and abs(left.value) <= 10 and abs(right.value) <= 15:
                result = left.value**right.value
            else:
                result = _ARITHMETIC[type(node.op)](left.value, right.value)
        except (KeyError, ArithmeticError):
            return None
        fits = isinstance(result, int | float) and abs(result) <= _LARGEST
        return Value(result, node, left.option or right.option) if fits else None

    def _origins(self, node: ast.expr, depth: int) -> list[ast.expr]:
        """The expressions behind a name, an attribute, an item or a choice; empty where they are not known."""
        if depth <= 0:
            return []
        if isinstance(node, ast.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, depth)
        if isinstance(node, ast.Subscript):
            return self._of_item(node.value, _key(node), None, depth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and method(node) == "get" and node.args:
            default = node.args[1] if len(node.args) == 2 else None
            return self._of_item(node.func.value, constant(node.args[0]), default, depth)
        return []

    def _of_name(self, node: ast.Name) -> list[ast.expr]:
        scope = self.tree.scope(node)
        assigned = self._reaching(self.names.assigned(node.id, node), node)
        if assigned:
            return [a.value for a in assigned] if all(a.alone for a in assigned) else []
        while scope is not self.tree.module and node.id not in parameters(scope):
            scope = self.tree.scope(scope)
        return self._passed(scope, node.id) if isinstance(scope, Function) else []

    def _reaching(self, assigned: Sequence[Assignment], node: ast.AST) -> list[Assignment]:
        """Those that may hold at a node: back to the last one that surely ran."""
        scope = self.tree.scope(node)
        above = [a for a in assigned if not self.tree.is_before(node, a.node) and node not in walk(a.node)]
        if not above or any(a.scope is not scope for a in assigned) or self.tree.loops(node):
            return list(assigned)
        found: list[Assignment] = []
        for assignment in reversed(above):
            found.insert(0, assignment)
            if all(
                isinstance(around, ast.With)
                for around in self.tree.inside(assignment.node)
                if around is not scope and not isinstance(around, ast.Module)
            ):
                break
        return found

    def passed(self, name: ast.Name) -> ast.Name | None:
        """The name in its only caller that a parameter stands for; None where that is another expression."""
        scope: ast.AST = self.tree.scope(name)
        while scope is not self.tree.module and name.id not in parameters(scope):
            scope = self.tree.scope(scope)
        found = self._passed(scope, name.id) if isinstance(scope, Function) else []
        return found[0] if len(found) == 1 and isinstance(found[0], ast.Name) else None

    # docs/decisions/files.md: `import --script` reads a value only if every path gives the same one
    def _passed(self, function: Function, name: str) -> list[ast.expr]:
        """What callers give a parameter, and its default for those that give nothing."""
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if names[:1] in (["self"], ["cls"]) or not isinstance(self.tree.parent(function), ast.Module):
            return []
        if function.decorator_list or self.names.function(function.name) is not function:
            return []
        calls = [call for call in self.tree.calls_of(function.name) if isinstance(call.func, ast.Name)]
        used = [n for n in self.tree.of(ast.Name) if n.id == function.name]
        if len(used) != len(calls):
            return []  # handed on as a value: somebody else calls it
        default = _default_of(function, name)
        found = []
        for call in calls:
            spread = any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)
            given = next((k.value for k in call.keywords if k.arg == name), None)
            if given is None and name in names and names.index(name) < len(call.args):
                given = call.args[names.index(name)]
            if spread or (given or default) is None:
                return []
            found.append(given or default)
        return [f for f in (found or [default]) if f is not None]

    def _of_attribute(self, node: ast.Attribute, depth: int) -> list[ast.expr]:
        assigned = self.names.assigned(dotted(node), node) if dotted(node) else []
        if assigned:
            return [a.value for a in assigned] if all(a.alone for a in assigned) else []
        if isinstance(node.value, ast.Name) and node.value.id in self._classes:
            return self._field(self._classes[node.value.id], None, node.attr)
        found: list[ast.expr] = []
        for origin in self._all_origins(node.value, depth):
            made = self._classes.get(dotted(origin.func)) if isinstance(origin, ast.Call) else None
            field = self._field(made, origin, node.attr) if made and isinstance(origin, ast.Call) else []
            if not field:
                return []
            found += field
        return found

    def _field(self, kind: ast.ClassDef, made: ast.Call | None, name: str) -> list[ast.expr]:
        """A field of a class of the script: as it was made with, else its default."""
        if made is not None:
            if made.args or any(k.arg is None for k in made.keywords):
                return []
            for keyword in made.keywords:
                if keyword.arg == name:
                    return [keyword.value]
        for statement in kind.body:
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]  # type: ignore[assignment]
            if isinstance(target, ast.Name) and target.id == name:
                return _field_default(statement.value)  # type: ignore[attr-defined]
        return []

    def _of_item(self, base: ast.expr, key: Any, default: ast.expr | None, depth: int) -> list[ast.expr]:
        if not isinstance(key, str) or key in self._stored:
            return []
        found: list[ast.expr] = []
        for origin in self._all_origins(base, depth):
            items = _items(origin)
            value = items.get(key, default) if items is not None else None
            if value is None:
                return []
            found.append(value)
        return found

    def _all_origins(self, node: ast.expr, depth: int) -> list[ast.expr]:
        """The dictionaries or calls behind an expression, through any number of names."""
        if not isinstance(node, ast.Name | ast.Attribute) or depth <= 0:
            return [node]
        return [last for origin in self._origins(node, depth - 1) for last in self._all_origins(origin, depth - 1)]

    def default_of(self, name: str) -> Value | None:
        """The default of an option of the command line, whatever becomes of it later; None as well as a value."""
        options = self._options.get(name, [])
        if name in self._typed:
            return self._typed[name]
        return self._option_default(options[0], _DEPTH) if len(options) == 1 else None

    def required(self, node: ast.expr) -> str:
        """The option without a default that an expression stands for; empty: none."""
        found = self._options.get(node.attr, []) if isinstance(node, ast.Attribute) else []
        has_default = any(_keyword(call, "default") or _keyword(call, "action") for call in found)
        return _words(found[0])[0] if len(found) == 1 and not has_default else ""

    def _default(self, node: ast.Attribute, depth: int) -> Value | None:
        """The default of an option of the command line: `args.lr`."""
        options = self._options.get(node.attr, [])
        if len(options) != 1 or self.names.assigned(dotted(node), node) or not self._is_namespace(node.value, depth):
            return None
        return self._typed.get(node.attr) or self._option_default(options[0], depth)

    def _option_default(self, call: ast.Call, depth: int) -> Value | None:
        given = {k.arg: k.value for k in call.keywords}
        name = (_option(call) or ("", ""))[0]
        action = given.get("action")
        flag = _FLAGS.get(str(constant(action)))
        required = constant(given.get("required")) is True
        if required or "default" not in given:
            return None if required or not name.startswith("-") else Value(flag, call, name)
        value = self._of(given["default"], depth - 1)
        if value and isinstance(value.value, str) and "type" in given:
            value = _cast(value, dotted(given["type"]))
        return replace(value, option=name) if value else None

    def _is_namespace(self, node: ast.expr, depth: int) -> bool:
        """Whether an object holds what the command line said: by what made it, else by its name."""
        last = dotted(node).rpartition(".")[2]
        calls = [o for o in self._all_origins(node, depth) if isinstance(o, ast.Call)]
        if calls:
            return all("parse" in dotted(c.func).lower() or "args" in dotted(c.func).lower() for c in calls)
        parsed = [a for a in self.names.assigned(last, node) if isinstance(a.value, ast.Call)]
        if parsed:  # args, unknown = parser.parse_known_args()
            return all("parse" in getattr(a.value.func, "attr", "") for a in parsed if isinstance(a.value, ast.Call))
        return last.lower() in _NAMESPACES


def _most(call: ast.Call) -> float:
    """How many words an option takes."""
    nargs = constant(_keyword(call, "nargs"))
    return math.inf if nargs in ("+", "*") else nargs if isinstance(nargs, int) else 1


def _given(text: str, call: ast.Call, word: str) -> Any:
    """The value of a word. Raises `UsageError` for one that is not of the option's type."""
    cast = _cast(Value(text, call), dotted(_keyword(call, "type") or call))
    if cast is None:
        raise UsageError(say("{option}: {value} is not valid", option=word, value=text))
    return cast.value


def _words(call: ast.Call) -> list[str]:
    """What stands for an option on the command line."""
    return [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _option(call: ast.Call) -> tuple[str, str] | None:
    """The word on the command line, and the attribute that its value comes to."""
    words, dest = _words(call), _keyword(call, "dest")
    word = next((w for w in words if w.startswith("--")), words[0] if words else None)
    if word is None:
        return None
    return word, str(constant(dest) or word.lstrip("-").replace("-", "_"))


def _default_of(function: Function, name: str) -> ast.expr | None:
    positional = [*function.args.posonlyargs, *function.args.args]
    pairs = zip(reversed(positional), reversed(function.args.defaults), strict=False)
    keyword = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return next((value for argument, value in (*pairs, *keyword) if argument.arg == name), None)


def _field_default(value: ast.expr | None) -> list[ast.expr]:
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2].lower() == "field":
        given = next((k.value for k in value.keywords if k.arg == "default"), value.args[0] if value.args else None)
        return [given] if given is not None else []
    return [value] if value is not None else []


def _items(node: ast.expr) -> dict[Any, ast.expr] | None:
    """The items of a dictionary that is written out; None where it is none, or takes some from elsewhere."""
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}
    if isinstance(node, ast.Call) and dotted(node.func) == "dict" and not node.args:
        return {k.arg: k.value for k in node.keywords} if all(k.arg for k in node.keywords) else None
    return None


def _key(node: ast.Subscript) -> Any:
    return constant(node.slice)


def _cast(value: Value | None, kind: str) -> Value | None:
    if value is None or kind not in _CASTS:
        return value
    try:
        return replace(value, value=_CASTS[kind](value.value))
    except (TypeError, ValueError, OverflowError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
