"""A training script as its text says it: engines, loops, guards, calls. It is parsed, never imported or run."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

from trainwiz.errors import UsageError
from trainwiz.finding import Place
from trainwiz.message import say
from trainwiz.script.calls import Call
from trainwiz.script.definitions import Definitions, definitions
from trainwiz.script.engines import BY_HAND, Engines, may_make
from trainwiz.script.liveness import Liveness
from trainwiz.script.models import Loaded, loaded
from trainwiz.script.names import Names
from trainwiz.script.origins import Origins
from trainwiz.script.outline import Outline
from trainwiz.script.ranks import STEMS, Ranks
from trainwiz.script.training import Training
from trainwiz.script.tree import Tree, constant, dotted, is_main_guard, method, order, unreachable, walk, written
from trainwiz.script.values import Values

Found = TypeVar("Found")

__all__ = ["Call", "Script", "about_training", "parsed", "read"]

_WORKING = (
    "backward",
    "fit",
    "from_pretrained",
    "init_process_group",
    "initialize",
    "parse_args",
    "parse_known_args",
    "prepare",
    "train",
)
_TRAINING = re.compile(
    r"torch|accelerat|transformers|deepspeed|colossal|lightning|trl|backward|optimi|zero_grad|trainer|Trainer"
)
_ENDLESS = re.compile(r"0[xXoObB][0-9a-fA-F_]{3000}")
_MOST_BITS = 12_000
_IGNORE = re.compile(r"#\s*trainwiz:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One module of a script's project, or the script itself."""

    name: str
    """Its name as it is imported."""
    file: str
    """Its path, as people read it."""
    text: str
    """What is in it."""
    outline: Outline
    """Its syntax tree, indexed."""
    _said: dict[re.Pattern[str], bool] = field(default_factory=dict, repr=False, compare=False)

    def says(self, pattern: re.Pattern[str]) -> bool:
        """Whether something like this is in its text; searched once for all scripts that import it."""
        if pattern not in self._said:
            # Without regard to case, a search takes ten times as long.
            folded = pattern.flags & re.IGNORECASE
            found = _exact(pattern).search(self._lower) if folded else pattern.search(self.text)
            self._said[pattern] = found is not None
        return self._said[pattern]

    @cached_property
    def _lower(self) -> str:
        return self.text.lower()

    @property
    def module(self) -> ast.Module:
        """Its syntax tree."""
        return self.outline.module

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()

    @cached_property
    def tells_ranks_apart(self) -> bool:
        """Whether it contains a word without which it does the same on all ranks."""
        return any(stem in self._lower for stem in STEMS)

    @cached_property
    def ignored(self) -> Mapping[int, tuple[str, ...]]:
        """The rules that its comments leave out, by line."""
        return _ignored(self.text)


class Script:
    """One script, with the modules of its project that it imports; rules read it."""

    def __init__(self, parts: Sequence[Part], arguments: Sequence[str] = ()) -> None:
        """The last of the parts is the script itself; the lines of each come after those of the parts before it.

        `arguments` is the command line that it is meant to be started with, as far as it is known.
        """
        self.arguments = arguments
        self.file = parts[-1].file
        self.parts = parts
        self.tree = Tree([part.outline for part in parts], _joined(parts) if len(parts) > 1 else None)
        self.names = Names(self.tree, [part.name for part in parts[:-1]])
        self.live = Liveness(self.tree, self.names)
        self.origins = Origins(self.tree, self.names)
        self.engines = Engines(self.tree, self.names, self.live, self.origins)
        self.ranks = Ranks(self.tree, self.names, self.origins, any(part.tells_ranks_apart for part in parts))
        self.training = Training(self.tree, self.names, self.engines, self.origins)
        self._full_name = partial(_full_name, self.engines, self.names)
        self._calls: dict[ast.Call, Call] = {}
        self._called: dict[tuple[str, ...], list[Call]] = {}
        self._kept: dict[Callable[[Script], Any], Any] = {}

    def once(self, find: Callable[[Script], Found]) -> Found:
        """What a function finds in it; asked a second time, what it found the first time."""
        if find not in self._kept:
            self._kept[find] = find(self)
        kept: Found = self._kept[find]
        return kept

    @cached_property
    def calls(self) -> list[Call]:
        """All its calls, in order; rules ask `calls_of` and `called` instead, which look at few."""
        return self._wrapped(self.tree.calls)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of all parts."""
        return [line for part in self.parts for line in part.lines]

    def says(self, pattern: re.Pattern[str]) -> bool:
        """Whether something like this is in the text of any part."""
        return any(part.says(pattern) for part in self.parts)

    @cached_property
    def values(self) -> Values:
        """The values of its expressions."""
        return Values(self.tree, self.names, self.arguments)

    @cached_property
    def is_program(self) -> bool:
        """Whether it says itself what it does as a program, below `if __name__ == "__main__":`."""
        return has_main_guard(self.parts[-1].module)

    @cached_property
    def runs_when_imported(self) -> ast.stmt | None:
        """The first statement of the module that does more than define: trains, reads arguments, loads a model."""
        own = {node.name for node in self.tree.module.body if isinstance(node, ast.FunctionDef)}
        for statement in self.tree.module.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or is_main_guard(statement):
                continue
            if isinstance(statement, (ast.For, ast.While, ast.With)):
                return statement
            for node in walk(statement):
                working = isinstance(node, ast.Call) and (dotted(node.func) in own or method(node) in _WORKING)
                if working or (isinstance(node, ast.Call) and self.engines.kind(node) == "Accelerator"):
                    return statement
        return None

    @cached_property
    def definitions(self) -> Definitions:
        """What the module defines, where it does more than that."""
        return definitions(self.tree)

    @cached_property
    def loaded(self) -> Loaded:
        """The models that it loads."""
        return loaded(self.calls, self.values)

    @cached_property
    def padded_to(self) -> list[tuple[int, int]]:
        """The lengths to which all samples are padded, each with its line."""
        found = []
        for call in self.calls:
            way, length = (self.values.of(call.keyword(name)) for name in ("padding", "max_length"))
            if way and way.value == "max_length" and length and type(length.value) is int and length.value > 0:
                found.append((length.value, call.node.lineno))
        return found

    @cached_property
    def accumulation(self) -> ast.expr | None:
        """What the Accelerator is told to accumulate, unless that is one micro-batch."""
        for call in self.called("accelerate.Accelerator"):
            for name in ("gradient_accumulation_steps", "gradient_accumulation_plugin"):
                value = call.keyword(name)
                if isinstance(value, ast.Call):  # GradientAccumulationPlugin(num_steps=…)
                    value = next((k.value for k in value.keywords if k.arg == "num_steps"), value)
                if value is not None and constant(value) != 1:
                    return value
        return None

    @cached_property
    def wrappers(self) -> list[Call]:
        """The calls that wrap a model in plain torch."""
        return self.called(*BY_HAND)

    def has_attribute(self, *names: str) -> bool:
        """Whether it uses an attribute or a method of one of these names."""
        return any(not outline.attributes.keys().isdisjoint(names) for outline in self.tree.outlines)

    @property
    def clears_gradients(self) -> bool:
        """Whether anything clears gradients, by a method of any name like zero_grad or by `p.grad = None`."""
        # A method that clears them, but that nothing calls, clears nothing.
        called = any("zero_grad" in name for name in self.tree.called)
        own = {f for f in self.tree.functions if "zero_grad" in f.name} if not called or self._only_own_clear else set()
        nodes = [n for n in self.tree.each(_clearing) if not own or own.isdisjoint(self.tree.above(n))]
        return any("zero_grad" in n.attr or self._clears(n) for n in nodes)

    @property
    def _only_own_clear(self) -> bool:
        """Whether all calls that clear gradients stand in functions that do so for others."""
        calls = self.calls_like("zero_grad")
        return all(any("zero_grad" in getattr(a, "name", "") for a in self.tree.above(c.node)) for c in calls)

    def _clears(self, node: ast.Attribute) -> bool:
        """Whether this is `p.grad = None`, not of some parameters only, or `p.grad.zero_`."""
        if node.attr == "zero_":
            return ".grad" in written(node.value) or "grad" in dotted(node.value).rpartition(".")[2]
        if node.attr != "grad" or not isinstance(node.ctx, ast.Store):
            return False
        parent = self.tree.parent(node)
        if isinstance(parent, ast.Assign) and ".grad" in written(parent.value):
            return False  # `p.grad = p.grad.float()`
        return all("grad" in written(guard.test) for guard in self.tree.guards(node))

    def called(self, *names: str) -> list[Call]:
        """The calls of these functions, by their full names."""
        if names not in self._called:
            self._called[names] = [call for call in self.calls_of(*_lasts(names)) if call.name in names]
        return self._called[names]

    def calls_of(self, *lasts: str) -> list[Call]:
        """The calls of what has one of these last names: `step` is that of `optimizer.step()`."""
        return self._wrapped(self.names.calls_of(*lasts))

    def methods(self, *names: str) -> list[Call]:
        """The calls of methods of these names, whatever their objects are."""
        return self._wrapped(node for node in self.tree.calls_of(*names) if isinstance(node.func, ast.Attribute))

    def calls_with(self, keyword: str) -> list[Call]:
        """The calls that are given this keyword argument."""
        keywords = (node for outline in self.tree.outlines for node in outline.keywords.get(keyword, ()))
        parents = map(self.tree.parent, keywords)
        return self._wrapped(node for node in parents if isinstance(node, ast.Call))

    def calls_by(self, is_meant: Callable[[str], bool]) -> list[Call]:
        """The calls of what has such a dotted name."""
        groups = [outline.callees for outline in self.tree.outlines]
        return self._chosen({name for calls_of in groups for name in calls_of if name and is_meant(name)}, groups)

    def calls_named(self, names: Set[str]) -> list[Call]:
        """The calls of what is written with one of these dotted names."""
        return self._chosen(names, (outline.callees for outline in self.tree.outlines))

    def calls_given(self, names: Set[str]) -> list[Call]:
        """The calls that are given something of one of these dotted names."""
        return self._chosen(names, (outline.given for outline in self.tree.outlines))

    def _chosen(self, names: Set[str], groups: Iterable[Mapping[str, list[ast.Call]]]) -> list[Call]:
        found: list[Call] = []
        for calls_of in groups if names else ():
            calls = {call for name in calls_of.keys() & names for call in calls_of[name]}
            found += self._wrapped(sorted(calls, key=order))
        return found

    def calls_like(self, pattern: str) -> list[Call]:
        """The calls of what has a last name like this regular expression."""
        return self._wrapped(self.names.calls_like(pattern))

    def makers(self, kind: str) -> list[Call]:
        """The calls that make objects of one of the kinds of `Engines`."""
        return self._makers.get(kind, [])

    @cached_property
    def _makers(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = {}
        for outline in self.tree.outlines:
            of_kinds: dict[str, list[ast.Call]] = {}
            called, making = outline.callees_by_first, outline.once(_making)
            imported = called.keys() & self.names.imports.keys()
            # What is not imported has the name that it is written with.
            known = [self._that_may_make(outline, first) for first in imported]
            known += [making[first] for first in making.keys() - imported]
            for name in itertools.chain(*known):
                if kind := self.engines.made_by(name):
                    of_kinds.setdefault(kind, []).extend(outline.callees[name])
            for kind, calls in of_kinds.items():
                found.setdefault(kind, []).extend(self._wrapped(sorted(calls, key=order)))
        return found

    def _that_may_make(self, outline: Outline, first: str) -> list[str]:
        """What is called by names with this imported first part, and may make something; found once per module."""
        whole = self.names.imports[first]
        if self.names.is_own(whole):
            return outline.callees_by_first[first]
        found = outline.making
        if (first, whole) not in found:
            found[first, whole] = [n for n in outline.callees_by_first[first] if may_make(whole + n[len(first) :])]
        return found[first, whole]

    def _wrapped(self, nodes: Iterable[ast.Call]) -> list[Call]:
        found, known = [], self._calls
        for node in nodes:
            call = known.get(node)
            if call is None:
                call = known[node] = Call(node, self._full_name)
            found.append(call)
        return found

    def is_reached(self, place: Place) -> bool:
        """Whether the script may reach a place: its own, or of what it names in its modules; none behind a raise."""
        whole = next((one for one in self.parts if one.file == place.file), None)
        if whole is not None and any(first <= place.line <= last for first, last in whole.outline.once(unreachable)):
            return False
        if place.file == self.file:
            return True
        part = next((i for i, part in enumerate(self.parts[:-1]) if part.file == place.file), None)
        body = self.parts[part].module.body if part is not None else ()
        around = (s for s in body if s.lineno <= place.line <= (s.end_lineno or s.lineno))
        return all(statement in self.live for statement in around)

    def part(self, node: ast.AST) -> Part:
        """The part that holds a node."""
        return self.parts[self.tree.outline(node)]

    def ignores(self, rule: str, place: Place) -> bool:
        """Whether a comment on this line leaves a rule out."""
        part = next((part for part in self.parts if part.file == place.file), None)
        ids = part.ignored.get(place.line) if part is not None else None
        return ids is not None and rule.startswith(ids)

    def place(self, node: ast.AST) -> Place:
        """The place of a node: its first line, up to where the node ends on it."""
        part = self.part(node)
        line: int = getattr(node, "lineno", 1)
        column: int = getattr(node, "col_offset", 0)
        end = getattr(node, "end_col_offset", None) if getattr(node, "end_lineno", line) == line else None
        source = part.lines[line - 1] if line <= len(part.lines) else ""
        raw = source.encode()
        before = raw[:column].decode(errors="replace")
        marked = raw[column:end].decode(errors="replace").rstrip()
        return Place(file=part.file, line=line, column=len(before) + 1, width=max(1, len(marked)), source=source)


@functools.cache
def _exact(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """The same pattern for texts in lower case, except after a backslash, where it has another meaning."""
    lowered = re.sub(r"\\.|[A-Z]+", lambda m: m[0] if m[0][0] == "\\" else m[0].lower(), pattern.pattern)
    return re.compile(lowered, pattern.flags & ~re.IGNORECASE)


def _clearing(outline: Outline) -> list[ast.Attribute]:
    """The attributes that may clear gradients."""
    names = [n for n in outline.attributes if n in ("zero_", "grad") or "zero_grad" in n]
    return [node for name in names for node in outline.attributes[name]]


def _making(outline: Outline) -> dict[str, list[str]]:
    """The dotted names that make something whatever is imported, by the part before the first dot."""
    found = {first: [*filter(may_make, names)] for first, names in outline.callees_by_first.items()}
    return {first: names for first, names in found.items() if names}


@functools.lru_cache(maxsize=1000)
def _lasts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The last parts of names, each once."""
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))


def _full_name(engines: Engines, names: Names, call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        kind = engines.kind(call.func.value)
        if kind:
            return f"{kind}.{call.func.attr}"
        if isinstance(call.func.value, ast.Attribute) and call.func.value.attr == "dist":  # `args.dist.barrier()`
            return f"torch.distributed.{call.func.attr}"
        return names.resolved(call.func) or f".{call.func.attr}"
    return names.resolved(call.func)


# docs/decisions/files.md: Lint passes over a script without a word about training
def about_training(texts: Iterable[str]) -> bool:
    """Whether any of these texts has a word without which no rule finds anything."""
    return any(_TRAINING.search(text) for text in texts)


def parsed(file: str, text: str) -> ast.Module:
    """The text as a syntax tree. Raises `UsageError` where it is not valid Python."""
    with _told(file):
        return _parsed(file, text)


def _endless_number(text: str, tree: ast.Module) -> int | None:
    """The line of a whole number that Python reads, but refuses to write again, since that takes too long."""
    if not _ENDLESS.search(text):
        return None
    found = ((node.lineno, node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return next((line for line, value in found if isinstance(value, int) and value.bit_length() > _MOST_BITS), None)


def read(
    file: str,
    text: str,
    modules: Sequence[Part] = (),
    arguments: Sequence[str] = (),
) -> Script:
    """The script of this text, with modules that it imports, and its arguments.

    Raises `UsageError` where the script is not valid Python.
    """
    return Script([*modules, part("__main__", file, text, Outline(parsed(file, text)))], arguments)


def part(name: str, file: str, text: str, outline: Outline) -> Part:
    """A module, or the script itself."""
    return Part(name=name, file=file, text=text.removeprefix("\ufeff"), outline=outline)


def has_main_guard(module: ast.Module) -> bool:
    """Whether an import of a module leaves something out."""
    return any(map(is_main_guard, module.body))


def module_outline(module: ast.Module) -> Outline:
    """The index of what an import of a module runs."""
    return Outline(module, [statement for statement in module.body if is_main_guard(statement)])


@contextlib.contextmanager
def _told(file: str) -> Iterator[None]:
    """Report why Python cannot read a text. Raises `UsageError`."""
    try:
        yield
    except SyntaxError as error:
        raise UsageError(
            say("{file}:{line}: not valid Python: {reason}", file=file, line=error.lineno or 1, reason=error.msg),
            say("find the place: python -m py_compile {file}", file=file),
            place=Place(
                file=file, line=error.lineno or 1, column=max(1, error.offset or 1), source=(error.text or "").rstrip()
            ),
        ) from None
    except ValueError as error:
        raise UsageError(say("{file}: not valid Python: {reason}", file=file, reason=str(error))) from None
    except (RecursionError, MemoryError):
        raise UsageError(say("{file}: nested too deeply to read", file=file)) from None


def _parsed(file: str, text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in a user's strings are not reported
        tree = ast.parse(text.removeprefix("\ufeff"), filename=file)
    if (line := _endless_number(text, tree)) is not None:
        raise UsageError(say("{file}:{line}: a number of thousands of digits is not read", file=file, line=line))
    return tree


# docs/decisions/files.md: Lint reads a script and its modules as one text
def _joined(parts: Sequence[Part]) -> ast.Module:
    """One module of them all, as if they were written below each other."""
    run = [s for part in parts[:-1] for s in part.module.body if not is_main_guard(s)]  # what an import does not run
    return ast.Module([*run, *parts[-1].module.body], [])


def _ignored(text: str) -> Mapping[int, tuple[str, ...]]:
    """What `# trainwiz: ignore[TW703]` says, by line: beginnings of rule ids; without brackets all."""
    found: dict[int, tuple[str, ...]] = {}
    if "trainwiz:" not in text:
        return found
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
            ids = tuple(i.strip().upper() for i in (match[1] or "TW").split(",") if i.strip())
            found[token.start[0]] = ids
    return found
