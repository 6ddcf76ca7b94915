"""Pieces of a script that can be computed elsewhere: an expression, and the statements and imports that it rests on.

Names of the module are left to the script itself, which is imported as `own`; names of a function are followed to the
statements that give or change their value. What an engine does (placing on a device, unwrapping) is left out. A piece
that needs anything else is a `Gap`, with the place that stands in the way. Nothing is run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainwiz.message import Message, say
from trainwiz.script.names import parameters
from trainwiz.script.rewriting import Edit, rewritten, unparsed
from trainwiz.script.tree import Function, dotted, is_main_guard, method, walk
from trainwiz.script.values import BY_DATACLASSES

if TYPE_CHECKING:
    from trainwiz.script import Script

OWN = "own"
"""The name under which the script is imported."""
DEVICE = "device"
"""The name of the device of the model, where a block and what is around it are written."""
NOTED = "of_module"
"""The function that reads an attribute of the built module, as it was when it was built."""
_BRANCHING = (ast.If, ast.For, ast.While, ast.With, ast.Try)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FIRST = ("main_process_first", "local_main_process_first", "accumulate", "autocast")
"""Methods of the Accelerator that open a with-block and change nothing of what is computed in it."""
_OF_STATE = ("distributed_type", "mixed_precision")
"""Attributes of the Accelerator that are alike on all ranks; the project's own one answers with the same words."""
_ASKING = frozenset(
    {
        *("debug", "info", "named_parameters", "parameters", "print", "print_trainable_parameters", "save"),
        *("save_pretrained", "state_dict", "train", "warning"),
    }
)
"""Methods that change no value that a training rests on."""


# docs/decisions/files.md: An import takes a script's own code only as far as it is closed
class Gap(Exception):
    """Why something cannot be taken out of its script, and where."""

    def __init__(self, node: ast.AST, why: Message) -> None:
        super().__init__(str(why))
        self.node, self.why = node, why


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A piece of a script with what it rests on."""

    expression: str
    """Its text, as it is to be written elsewhere."""
    inner: tuple[str, ...] = ()
    """Statements of the innermost block, in order."""
    outer: tuple[str, ...] = ()
    """Statements around that block, in order."""
    from_outside: tuple[str, ...] = ()
    """The names that `inner` and the expression take from `outer`."""
    imports: tuple[str, ...] = ()
    """Import statements."""
    options: tuple[ast.expr, ...] = ()
    """Where an option of the command line stands, whose default is written in its place."""
    noted: tuple[str, ...] = ()
    """Attributes of the built module that it reads by `NOTED`."""


@dataclass
class Slicer:
    """Takes one piece out of a script."""

    script: Script
    """The script that it is taken from."""
    bound: Collection[str] = ()
    """Names that have their value where the piece is written."""
    barred: Collection[str] = ()
    """Names that belong to the engine: other models that it prepares."""
    block: Sequence[ast.stmt] = ()
    """The innermost block: its statements are `inner`, all others `outer`. Empty: there is only one."""
    batch: Collection[str] = ()
    """Those of them that the micro-batch is unpacked into, which the block may change."""
    own_model: str = ""
    """How a method names the model that the loop gives by its plain name: `self.model`."""
    left_out: Collection[ast.stmt] = ()
    """Statements that the project's loop makes needless."""
    replaced: Mapping[int, str] = field(default_factory=dict)
    """Texts in the place of nodes, by their identity; what these need is not taken."""
    notes: bool = False
    """Whether attributes of `self` are read from the module that the task has built."""
    changing: Collection[str] = ()
    """Those that are set by more than what builds it."""
    _noted: dict[str, None] = field(default_factory=dict)
    _edits: list[Edit] = field(default_factory=list)
    _imports: dict[str, None] = field(default_factory=dict)
    _options: list[ast.expr] = field(default_factory=list)
    _taken: dict[ast.stmt, int] = field(default_factory=dict)
    _callers: int = 0
    _outside: dict[str, None] = field(default_factory=dict)
    _seen: set[tuple[str, tuple[int, int]]] = field(default_factory=set)
    _given_inside: set[str] = field(default_factory=set)
    _asked: list[ast.expr] = field(default_factory=list)

    def of(self, expression: ast.expr) -> Slice:
        """The piece. Raises `Gap`."""
        self.also(expression)
        inside = {id(node) for statement in self.block for node in walk(statement)}
        statements = sorted(self._taken, key=lambda one: (-self._taken[one], _start(one)))  # callers run first
        texts = [(id(statement) in inside, self._text(statement)) for statement in statements]
        return Slice(
            expression=_alone(rewritten(self.script.lines, expression, self._edits)),
            inner=tuple(text for is_inner, text in texts if is_inner),
            outer=tuple(text for is_inner, text in texts if not is_inner),
            from_outside=tuple(self._outside),
            imports=tuple(self._imports),
            options=tuple(self._options),
            noted=tuple(self._noted),
        )

    def also(self, expression: ast.expr) -> None:
        """Take what another expression rests on, too, before the piece. Raises `Gap`."""
        self._asked.append(expression)
        try:
            self._visit(expression, expression, frozenset(self.bound))
        except RecursionError:  # hundreds of names, each of which is made from the one before
            raise Gap(expression, say("nested too deeply")) from None

    def written(self, expression: ast.expr) -> str:
        """The text of such an expression."""
        return _alone(rewritten(self.script.lines, expression, self._edits))

    def _text(self, statement: ast.stmt) -> str:
        return rewritten(self.script.lines, statement, self._edits)

    def _visit(self, node: ast.AST, at: ast.AST, known: frozenset[str]) -> None:
        """Take up everything that a node needs; `known` are the names that have a value around it."""
        if isinstance(node, ast.expr) and id(node) in self.replaced:
            self._edits.append(Edit.of(node, self.replaced[id(node)]))
            return
        if self.notes and isinstance(node, ast.Call) and _calls_held(node):
            for part in (node.func.value, *node.args, *(one.value for one in node.keywords)):  # type: ignore[attr-defined]
                self._visit(part, at, known)
            return
        if isinstance(node, ast.Call) and (self._without_engine(node, at, known) or self._started(node, at, known)):
            return
        if isinstance(node, ast.Attribute) and dotted(node) == "sys.argv" and self._typed:
            self._edits.append(Edit.of(node, repr(["train.py", *self._typed])))
            return
        if self.block and isinstance(node, ast.Attribute) and self._is_device(node):
            self._edits.append(Edit.of(node, DEVICE))
            return
        if isinstance(node, ast.Attribute) and node.attr in _OF_STATE and self._is_accelerator(node.value):
            self._edits.append(Edit.of(node.value, "AcceleratorState()"))
            self._imports["from accelerate.state import AcceleratorState"] = None
            return
        if isinstance(node, ast.Attribute) and self.own_model and dotted(node) == self.own_model:
            self._edits.append(Edit.of(node, node.attr))
            return
        if self.notes and isinstance(node, ast.Attribute) and self._note(node, at, known):
            return
        is_item = self.notes and isinstance(node, ast.Subscript) and _root(node) == "self"
        if (
            isinstance(node, ast.Attribute | ast.Subscript | ast.Name)
            and not is_item
            and self._as_written(node, known, at)
        ):
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in known:
                self._name(node, at)
            elif node.id in self.batch and self._is_inner(at):
                self._changed_batch(node, at)
            return
        if isinstance(node, (*_NESTED, *_COMPREHENSIONS)):
            known = known | _bound_in(node)
        before = len(self._edits)
        for child in ast.iter_child_nodes(node):
            self._visit(child, at, known)
        if isinstance(node, ast.JoinedStr) and len(self._edits) > before:
            # Before Python 3.12, the parts of an f-string have no places of their own.
            edits, self._edits = self._edits[before:], self._edits[:before]
            try:
                self._edits.append(Edit.of(node, unparsed(node, edits)))
            except ValueError:
                raise Gap(node, say("an f-string would have to be rewritten")) from None

    def _without_engine(self, call: ast.Call, at: ast.AST, known: frozenset[str]) -> bool:
        """Leave placing, `accelerator.unwrap_model(x)` and `DataParallel(x)` to the engine: only `x` remains.

        Around a block, what lies on a device stays there: the engine knows nothing of it.
        """
        kept: ast.expr | None = None
        if isinstance(call.func, ast.Attribute) and _places(call):
            if self.block and not self._is_inner(call):
                self._edits.append(Edit.of(call, call.func.value, f".to({DEVICE})"))
            else:
                self._edits.append(Edit.of(call, call.func.value))
            kept = call.func.value
        elif (method(call) == "unwrap_model" and len(call.args) == 1) or replicates(call):
            kept = call.args[0]
            self._edits.append(Edit.of(call, kept))
        if kept is None:
            return False
        self._visit(kept, at, known)
        return True

    @property
    def _typed(self) -> Sequence[str]:
        """The command line, where dataclasses say what it means."""
        return self.script.arguments if self.script.tree.calls_of(*BY_DATACLASSES) else ()

    def _started(self, call: ast.Call, at: ast.AST, known: frozenset[str]) -> bool:
        """Parse the command line that the script is started with, and not that of train.py. Raises `Gap`."""
        if method(call) not in BY_DATACLASSES or call.args or any(one.arg == "args" for one in call.keywords):
            return False
        if not self._typed:
            why = say("the script reads its command line: pass it after --, for example: -- --learning_rate 1e-5")
            raise Gap(call, why)
        rest = "".join(f", {ast.unparse(one)}" for one in call.keywords)
        self._edits.append(Edit.of(call, call.func, f"(args={[*self._typed]!r}{rest})"))
        self._visit(call.func, at, known)
        return True

    def _passed(self, name: ast.Name, given: ast.Name, at: ast.AST) -> None:
        """Take what a parameter is given by its only caller, under the caller's name."""
        if self._is_options(given):
            raise Gap(name, say("the value of {name} is not written in the script", name=name.id))
        self._callers += 1
        if given.id != name.id:
            self._edits.append(Edit.of(name, given.id))
        if self._is_parameter(given) and not self._body_of(given):
            self._as_written(given, frozenset(), given)
        else:
            self._name(given, given)
        if (self._is_inner(at) or at in self._asked) and self._body_of(given):
            self._outside[given.id] = None
        self._callers -= 1
        self._changed_parameter(name, at)

    def _changed_parameter(self, name: ast.Name, at: ast.AST) -> None:
        """Take what the function does to its parameter before a node: `training_args.model_init_kwargs = …`."""
        scope = self.script.tree.scope(name)
        if not isinstance(scope, Function) or (name.id, _start(at)) in self._seen:
            return
        self._seen.add((name.id, _start(at)))
        for statement in self._before(scope.body, at):
            if statement not in self._taken and _changes(statement, name.id):
                self._taken[statement] = self._callers
                self._statement(statement)

    def _as_written(self, node: ast.expr, known: frozenset[str], at: ast.AST) -> bool:
        """Put the literal in the place of an argument, an option or an item of a configuration."""
        root = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name) or not isinstance(node.ctx, ast.Load) or root.id in known:  # type: ignore[attr-defined]
            return False
        if not (self._is_parameter(root) or self._is_options(root)):
            return False
        value = self.script.values.of(node)
        if value is None and isinstance(node, ast.Attribute) and self.script.values.of(node.value) is not None:
            return False  # a method of what an option holds: `args.file.split(".")`
        if value is None:
            is_free = self._is_parameter(root) and not self.script.engines.kind(root)
            if is_free and (given := self.script.values.passed(root)):
                self._passed(root, given, at)
                return True
            owner = dotted(node) or root.id
            if option := self.script.values.required(node):
                raise Gap(
                    node, say("{option} is required: pass it after --, for example: -- {option} VALUE", option=option)
                )
            raise Gap(node, say("the value of {name} is not written in the script", name=owner))
        self._edits.append(Edit.of(node, repr(value.value)))
        if value.option:
            self._options.append(node)
        return True

    def _note(self, node: ast.Attribute, at: ast.AST, known: frozenset[str]) -> bool:
        """Read an attribute of the module. Raises `Gap` where the training may change it."""
        if not _of_self(node) or "self" in known:
            return False
        path = dotted(node).removeprefix("self.")
        if path.partition(".")[0] in self.changing:
            raise Gap(at, say("it is not known what {name} is", name=f"self.{path}"))
        self._noted[path] = None
        self._edits.append(Edit.of(node, f"{NOTED}({path!r})"))
        return True

    def _is_device(self, node: ast.Attribute) -> bool:
        return node.attr == "device" and self._is_accelerator(node.value)

    def _is_accelerator(self, node: ast.expr) -> bool:
        return self.script.engines.kind(node) == "Accelerator"

    def _is_parameter(self, name: ast.Name) -> bool:
        if self.script.names.assigned(name.id, name):
            return False
        scope: ast.AST = self.script.tree.scope(name)
        while scope is not self.script.tree.module:
            if name.id in parameters(scope):
                return True
            scope = self.script.tree.scope(scope)
        return False

    def _is_options(self, name: ast.Name) -> bool:
        made = self.script.names.assigned(name.id, name)
        if any(isinstance(one.value, ast.Call) and method(one.value) in BY_DATACLASSES for one in made):
            return False
        return bool(made) and all(
            isinstance(one.value, ast.Call) and dotted(one.value.func).rpartition(".")[2].startswith("parse_")
            for one in made
        )

    def _name(self, name: ast.Name, at: ast.AST) -> None:
        script = self.script
        if script.engines.kind(name) in ("Accelerator", "Booster", "DeepSpeedEngine"):
            raise Gap(name, say("{name} is the engine, which the project sets up itself", name=name.id))
        if name.id in self.bound:
            raise Gap(name, say("it is created from {name}, before the loop", name=name.id))
        if name.id in self.barred:
            raise Gap(name, say("{name} is another model or loader that the engine prepares", name=name.id))
        body = self._body_of(name)
        if body is not None:
            self._local(name, body, at)
        elif name.id in script.names.imports or self._import_of(name.id):
            self._import(name)
        elif self._of_module(name.id):
            if script.runs_when_imported and not self._is_definition(name):
                self._local(name, script.tree.module.body, at)
                return
            self._edits.append(Edit.of(name, f"{OWN}.{name.id}"))
            self._imports[f"import {OWN}"] = None
        elif not hasattr(builtins, name.id):
            raise Gap(name, say("it is not known what {name} is", name=name.id))

    def _is_definition(self, name: ast.Name) -> bool:
        """Whether a script that trains on import defines a name, which can be had without the training."""
        return name.id in self.script.definitions.own

    def _body_of(self, name: ast.Name) -> Sequence[ast.stmt] | None:
        """The statements of the function around a name, or of the main block, that give it a value."""
        bodies = []
        scope: ast.AST = self.script.tree.scope(name)
        while scope is not self.script.tree.module:
            bodies += [scope.body] if isinstance(scope, Function) else []
            scope = self.script.tree.scope(scope)
        guards = (above for above in self.script.tree.above(name) if is_main_guard(above))
        bodies += [guard.body for guard in guards if isinstance(guard, ast.If)]
        return next((body for body in bodies if any(name.id in _given(one) for one in _flat(body))), None)

    def _of_module(self, name: str) -> bool:
        outside = (one for one in self.script.tree.module.body if not is_main_guard(one))
        return any(name in _given(statement) for statement in _flat(outside))

    def _local(self, name: ast.Name, body: Sequence[ast.stmt], at: ast.AST) -> None:
        if (name.id, _start(at)) in self._seen:
            return
        self._seen.add((name.id, _start(at)))
        before = (statement for statement in self._before(body, at) if statement not in self.left_out)
        found = [s for s in before if name.id in _given(s) or _changes(s, name.id)]
        found = found[max((i for i, one in enumerate(found) if _begins(one, name.id)), default=0) :]
        prepared = [s for s in found if self._is_prepare(s)]
        needless = [s for s in found if only_places(s) and (self._is_inner(s) or not self.block)]
        needless += [s for s in found if _only_replicates(s)]
        for statement in (s for s in found if s not in (*prepared, *needless)):
            if isinstance(statement, ast.While | ast.Try | ast.With):
                raise Gap(statement, say("{name} is created in a block that cannot be extracted", name=name.id))
            if self.block and not self._is_inner(statement):
                self._refuse_changes(name.id)
                if self._is_inner(at) or at in self._asked:
                    self._outside[name.id] = None
            if statement not in self._taken:
                self._taken[statement] = self._callers
                self._statement(statement)
        given = any(name.id in _given(statement) for statement in found if statement not in prepared)
        if not given and name.id not in self._given_inside:
            raise Gap(name, say("{name} gets its value later, or from the engine", name=name.id))

    def _changed_batch(self, name: ast.Name, at: ast.AST) -> None:
        """Take what the block makes of a part of the micro-batch before a node: `images = images.flatten(1)`."""
        for statement in self._before(self.block, at):
            if statement in self._taken or statement in self.left_out or only_places(statement):
                continue
            if name.id not in _given(statement) and not _changes(statement, name.id):
                continue
            if isinstance(statement, ast.While | ast.Try | ast.With):
                raise Gap(statement, say("{name} is created in a block that cannot be extracted", name=name.id))
            self._taken[statement] = self._callers
            self._statement(statement)

    def _refuse_changes(self, name: str) -> None:
        """Raise `Gap` where the loop changes what was made before it: a task keeps nothing from batch to batch."""
        loops = self.script.tree.loops(self.block[0])
        for statement in (node for node in walk(loops[-1]) if isinstance(node, ast.stmt)) if loops else ():
            simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
            if simple and (name in _given(statement) or _changes(statement, name)):
                raise Gap(statement, say("{name} changes from one micro-batch to the next", name=name))

    def _statement(self, statement: ast.stmt) -> None:
        before = self._given_inside
        compound = isinstance(statement, ast.If | ast.For)
        self._given_inside = before | _given(statement) if compound else set()
        bound = frozenset(self.bound) if self._is_inner(statement) or not self.block else frozenset()
        self._visit(statement, statement, bound | _bound_in(statement))
        self._given_inside = before

    def _before(self, body: Sequence[ast.stmt], at: ast.AST) -> Iterator[ast.stmt]:
        """The statements of a body that run before a node, in order; of a loop, those of the innermost block."""
        module = self.script.tree.module
        if body is module.body and self.script.tree.scope(at) is not module:
            yield from self._before_calls(body)
            return
        for statement in _flat(body, enter=self.block):
            # On one line, `a; b`, the first has ended where the second begins.
            end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
            if isinstance(statement, _BRANCHING) and _start(statement) <= _start(at) < end:
                parts = [statement.body, getattr(statement, "orelse", []), getattr(statement, "finalbody", [])]
                begun = [part for part in parts if part and _start(part[0]) <= _start(at)]
                for part in begun[-1:] if isinstance(statement, ast.If) else begun:
                    yield from self._before(part, at)
            elif statement.lineno < _start(at)[0] or end <= _start(at):
                yield statement

    def _before_calls(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements of the module before the first that may call its functions to train."""
        own = {one.name for one in body if isinstance(one, ast.FunctionDef)}
        for statement in _flat(body):
            calls = (node for node in walk(statement) if isinstance(node, ast.Call))
            trains = isinstance(statement, ast.Expr) and any(dotted(call.func) in own for call in calls)
            if trains or isinstance(statement, ast.For | ast.While | ast.Try) or is_main_guard(statement):
                return
            yield statement

    def _is_inner(self, node: ast.AST) -> bool:
        return any(node is one for statement in self.block for one in walk(statement))

    def _is_prepare(self, statement: ast.stmt) -> bool:
        made = (a for group in self.script.names.assignments.values() for a in group if a.node is statement)
        return any(self.script.engines.prepares(one) for one in made)

    def _import_of(self, name: str) -> ast.Import | ast.ImportFrom | None:
        for outline in self.script.tree.outlines:
            for node in outline.imports:
                if any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names):
                    return node
        return None

    def _import(self, name: ast.Name) -> None:
        node = self._import_of(name.id)
        if node is None:
            return
        if isinstance(node, ast.ImportFrom) and node.level:
            raise Gap(node, say("{name} comes from a relative import", name=name.id))
        alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name.id)
        alone = ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], 0)
        self._imports[ast.unparse(alone)] = None


def _start(node: ast.AST) -> tuple[int, int]:
    """The line and the column where a node begins."""
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _alone(text: str) -> str:
    """An expression that can stand without the parentheses that were around its lines."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return f"({text})"
    return text


def _flat(body: Iterable[ast.stmt], enter: Sequence[ast.stmt] = ()) -> Iterator[ast.stmt]:
    """Statements in order, with those of with-blocks of the engine, and of the loops that lead to `enter`."""
    wanted = {id(statement) for statement in enter}
    for statement in body:
        opens = isinstance(statement, ast.With) and all(_opened_by_engine(item) for item in statement.items)
        inside = (node for node in walk(statement) if node is not statement)  # a loop of the block is taken as one
        leads = isinstance(statement, ast.For | ast.While | ast.With) and any(id(node) in wanted for node in inside)
        if isinstance(statement, ast.For | ast.While | ast.With) and (opens or leads):
            yield from _flat(statement.body, enter)
        else:
            yield statement


def flat(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Statements in order, with those in with-blocks of the engine."""
    return list(_flat(body))


def _opened_by_engine(item: ast.withitem) -> bool:
    return isinstance(item.context_expr, ast.Call) and method(item.context_expr) in _FIRST


def _given(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a value, those of its nested functions and comprehensions left out."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    made = (one for one in walk(statement) if isinstance(one, _COMPREHENSIONS))
    own = {id(node) for one in made for part in one.generators for node in walk(part.target)}
    stored = (one for one in walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    return {node.id for node in stored if id(node) not in own}


def _begins(statement: ast.stmt, name: str) -> bool:
    """Whether a name gets a new value here in any case, so that earlier ones no longer count."""
    if not isinstance(statement, ast.Assign) or name not in _given(statement):
        return False
    return not any(_is(node, name) for node in walk(statement.value))


def _changes(statement: ast.stmt, name: str) -> bool:
    """Whether a statement changes what a name holds: sets a part of it, calls a method, or gives it to a function."""
    if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
        over = isinstance(statement, ast.For) and any(_is(node, name) for node in walk(statement.iter))
        return over or any(_changes(one, name) for one in (*statement.body, *getattr(statement, "orelse", ())))
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return any(not isinstance(target, ast.Name) and _root(target) == name for target in targets)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    if method(call) in _ASKING or dotted(call.func) == "print":
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return _root(call.func) == name or any(_is(one, name) for one in given)


def _of_self(node: ast.Attribute) -> bool:
    """Whether an attribute is one of `self`, or of what it holds."""
    return dotted(node).startswith("self.")


def _calls_held(call: ast.Call) -> bool:
    """Whether a call is of a method of what `self` holds: `self.hparams.sizes.get(…)`."""
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Attribute) and _of_self(call.func)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _bound_in(node: ast.AST) -> frozenset[str]:
    """The names that functions, lambdas and comprehensions in a node bind for themselves."""
    found: set[str] = set()
    for one in walk(node):
        if isinstance(one, _NESTED):
            found |= parameters(one)
            if isinstance(one, Function):
                found |= {n.id for n in walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        elif isinstance(one, _COMPREHENSIONS):
            targets = (n for part in one.generators for n in walk(part.target))
            found |= {n.id for n in targets if isinstance(n, ast.Name)}
    return frozenset(found)


def _places(call: ast.Call) -> bool:
    """Whether a call only moves something to a device."""
    if any(keyword.arg != "non_blocking" for keyword in call.keywords):
        return False
    if method(call) == "cuda":
        return not call.args
    if method(call) != "to" or len(call.args) != 1:
        return False
    where = call.args[0]
    return dotted(where).rpartition(".")[2] in ("device", "gpu", "gpu_id", "local_rank", "rank") or (
        isinstance(where, ast.Constant) and str(where.value).startswith("cuda")
    )


def replicates(call: ast.Call) -> bool:
    """Whether a call makes a `DataParallel`: one process for all GPUs, where a project has a rank for each."""
    return dotted(call.func).rpartition(".")[2] == "DataParallel" and bool(call.args)


def _only_replicates(statement: ast.stmt) -> bool:
    """Whether a statement only wraps a name in a `DataParallel`, on some condition or on none."""
    if isinstance(statement, ast.If):
        return not statement.orelse and all(map(_only_replicates, statement.body))
    value = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(value, ast.Call) or not replicates(value):
        return False
    return isinstance(statement, ast.Assign) and [ast.unparse(value.args[0])] == [*map(ast.unparse, statement.targets)]


def only_places(statement: ast.stmt) -> bool:
    """Whether a statement only moves something to a device, on some condition or on none."""
    if isinstance(statement, ast.If):
        return all(map(only_places, (*statement.body, *statement.orelse)))
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if isinstance(statement, ast.Expr):
        return isinstance(value, ast.Call) and _places(value)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = [*zip(target.elts, value.elts, strict=False)] if len(target.elts) == len(value.elts) else pairs
    return all(isinstance(given, ast.Call) and _places_again(to, given) for to, given in pairs)


def _places_again(target: ast.expr, call: ast.Call) -> bool:
    """Whether a call moves something that then has the same name."""
    return (
        _places(call) and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == ast.unparse(target)
    )
