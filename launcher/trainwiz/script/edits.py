"""Changes of a script's lines that need no question: a line after a statement, a condition around it, another text."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from trainwiz.finding import Edit
from trainwiz.script.names import parameters
from trainwiz.script.tree import dotted, written

if TYPE_CHECKING:
    from trainwiz.script import Script


def after(script: Script, node: ast.AST, line: str) -> tuple[Edit, ...]:
    """A line after the statement of a node; nothing where other statements share its line."""
    statement = _alone(script, node)
    if statement is None:
        return ()
    place, end = script.place(statement), _end(script, statement)
    return (Edit(file=place.file, first=end + 1, last=end, lines=(_indent(script, statement) + line,)),)


def at_start(script: Script, loop: ast.For | ast.AsyncFor, *lines: str) -> tuple[Edit, ...]:
    """Lines at the start of a loop's body."""
    first = _alone(script, loop.body[0])
    if first is None or first.lineno == loop.lineno:
        return ()
    place = script.place(first)
    return (
        Edit(
            file=place.file,
            first=place.line,
            last=place.line - 1,
            lines=tuple(_indent(script, first) + one for one in lines),
        ),
    )


def under(script: Script, node: ast.AST, condition: str) -> tuple[Edit, ...]:
    """A condition around the statement of a node; nothing for statements that hold text over several lines."""
    statement = _alone(script, node)
    if statement is None or not isinstance(statement, ast.Expr | ast.With):
        return ()
    if any(isinstance(n, ast.Constant) and n.end_lineno != n.lineno for n in ast.walk(statement)):
        return ()
    indent, end = _indent(script, statement), statement.end_lineno or statement.lineno
    kept = script.part(statement).lines[statement.lineno - 1 : end]
    lines = (f"{indent}if {condition}:", *(f"    {line}" if line.strip() else line for line in kept))
    place = script.place(statement)
    return (Edit(file=place.file, first=place.line, last=_end(script, statement), lines=lines),)


def instead(script: Script, node: ast.expr, text: str) -> tuple[Edit, ...]:
    """Another text in place of an expression on one line."""
    if node.end_lineno != node.lineno or node.end_col_offset is None:
        return ()
    raw = script.part(node).lines[node.lineno - 1].encode()
    line = (raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]).decode()
    place = script.place(node)
    return (Edit(file=place.file, first=place.line, last=place.line, lines=(line,)),)


def main_rank(script: Script, node: ast.AST) -> str:
    """The condition of the main process, in words that are known at a node; empty where none is."""
    for assignments in script.names.assignments.values() if script.makers("Accelerator") else ():
        for assignment in assignments:
            known = script.engines.kind(assignment.value) == "Accelerator" if assignment.alone else False
            seen = assignment.scope in (script.tree.module, script.tree.scope(node)) or "." in assignment.name
            if known and seen and isinstance(assignment.value, ast.Call):
                return f"{assignment.name}.is_main_process"
    scope = script.tree.scope(node)
    arguments = getattr(scope, "args", None)
    if arguments is not None and "accelerator" in {a.arg for a in arguments.args} and script.engines.accelerate:
        return "accelerator.is_main_process"
    return _asked(script, node) or _by_group(script, node)


def _asked(script: Script, node: ast.AST) -> str:
    """The condition by which the same file chooses one rank elsewhere, where its names are known at a node, too."""
    outline = script.tree.outline(node)
    tests = [(one, one.test) for one in script.tree.of(ast.If) if script.tree.outline(one) == outline]
    known = {a.asname or a.name.partition(".")[0] for one in script.tree.outlines[outline].imports for a in one.names}
    # The one of the same function comes first: it is meant for the same.
    for _, test in sorted(tests, key=lambda pair: script.tree.scope(pair[0]) is not script.tree.scope(node)):
        names = [n.id for n in ast.walk(test) if isinstance(n, ast.Name)]
        seen = all(name in known or _is_known(script, name, node) for name in names)
        if names and seen and _is_main(script, test):
            return written(test)
    return ""


def _is_main(script: Script, test: ast.expr) -> bool:
    """Whether a condition says that this is rank 0, and nothing else."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        zero = isinstance(test.ops[0], ast.Eq) and written(test.comparators[0]) == "0"
        return (zero or written(test.comparators[0]) == "[-1, 0]") and script.ranks.differs(test, True)
    return isinstance(test, ast.Call | ast.Attribute) and script.ranks.is_main(test)


def _is_known(script: Script, name: str, node: ast.AST) -> bool:
    """Whether a name has a value at a node: of its function, or of the same module."""
    if name in parameters(script.tree.scope(node)):
        return True
    outline = script.tree.outline(node)
    made = [one.node for one in script.names.assigned(name, node) if script.tree.outline(one.node) == outline]
    return any(script.tree.is_before(one, node) for one in made)


def _by_group(script: Script, node: ast.AST) -> str:
    """The rank as torch.distributed has it, where the same function asks for it, too."""
    scope = script.tree.scope(node)
    ranks = [c.node for c in script.called("torch.distributed.get_rank") if script.tree.scope(c.node) is scope]
    before = [one for one in ranks if script.tree.is_before(one, node) and not script.tree.guards(one)]
    return f"{dotted(before[0].func)}() == 0" if before else ""


def _alone(script: Script, node: ast.AST) -> ast.stmt | None:
    """The statement of a node, if nothing else is on its lines."""
    statement = script.tree.statement(node)
    if statement is None:
        return None
    lines = script.part(statement).lines
    before = lines[statement.lineno - 1].encode()[: statement.col_offset]
    end = lines[(statement.end_lineno or 1) - 1].encode()[statement.end_col_offset or 0 :].strip()
    return statement if not before.strip() and (not end or end.startswith(b"#")) else None


def _indent(script: Script, statement: ast.stmt) -> str:
    return script.part(statement).lines[statement.lineno - 1][: statement.col_offset]


def _end(script: Script, statement: ast.stmt) -> int:
    """The last line of a statement, in its file."""
    return script.place(statement).line + (statement.end_lineno or statement.lineno) - statement.lineno
