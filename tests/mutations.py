"""How many random mutations of the core rooms their tests kill: `python tests/mutations.py [--count 200] [--seed 1]`.

Each mutation changes one place of one module in a copy of the package, and runs the tests of the module's room until
the first one fails. What survives is printed with its line.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from test_house import CORE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "launcher" / "trainwiz"
TESTS = {
    "cluster": ["cluster/test_several_machines.py"],
    "checkpoint": ["workflows/test_checkpoints_command.py"],
    "config": ["rules/test_configurations.py", "workflows/test_check_files.py", "workflows/test_remedy.py"],
    "engines": ["rules/test_configurations.py", "command", "adoption"],
    "errors": ["store", "workflows/test_check.py"],
    "finding": ["rules/test_rules.py", "workflows/test_check.py"],
    "machine": ["store/test_machines.py", "checkup"],
    "message": ["test_catalogue.py", "cli"],
    "outcome": ["process/test_supervision.py", "diagnose/test_diagnose.py"],
    "plan": ["plan", "workflows/test_init.py", "store/test_store.py"],
    "project": ["probe/test_project.py", "rules/test_rules.py"],
    "rehearsal": ["rehearsal"],
    "script": ["rules/test_lint.py", "adoption/test_import_script.py"],
    "strategies": ["estimate", "decide", "render/test_script.py", "render/test_render.py", "rules/test_rules.py"],
    "tasks": ["estimate", "decide", "render/test_script.py", "probe/test_project.py", "rules/test_rules.py"],
    "vocabulary": ["questions", "plan"],
}
"""The tests of the rooms that no folder and no file of tests is named after."""
SECONDS = 900
_OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutants(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Each place that can be mutated, with the name of the change."""
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in inside:
        for node in ast.walk(function):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPPOSITE:
                yield node, "comparison"
            elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPPOSITE:
                yield node, "operator"
            elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
                yield node, "constant"
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                yield node, "not"
            elif isinstance(node, ast.If | ast.IfExp):
                yield node, "condition"


def mutate(node: ast.AST) -> None:
    """Change the node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = _OPPOSITE[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = _OPPOSITE[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        node.operand = ast.Call(func=ast.Name("bool", ast.Load()), args=[node.operand], keywords=[])
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)


def tests_of(room: str) -> list[str]:
    """The tests of a room, as pytest takes them."""
    named = [ROOT / "tests" / name for name in TESTS.get(room, [room, f"test_{room}.py"])]
    return [str(path) for path in named if path.exists()]


def survives(module: Path, number: int, copy: Path) -> str | None:
    """What was changed, if no test of the room noticed; None if one did."""
    tree = ast.parse(module.read_text())
    node, change = list(mutants(tree))[number]
    before = ast.unparse(node)
    mutate(node)
    target = copy / "trainwiz" / module.relative_to(PACKAGE)
    target.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-m",
        "not train",
        "--timeout",
        "120",
        *tests_of(module.relative_to(PACKAGE).with_suffix("").parts[0]),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        shutil.copy(module, target)
    assert done.returncode in (0, 1, 2, 3, 4), done.stdout.decode()
    return (
        f"{module.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {change}: {before}" if done.returncode == 0 else None
    )


def main() -> None:
    """Draw, run, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", help="only this one")
    options = parser.parse_args()
    rooms = {name for floor in CORE for name in floor if options.room in (None, name)}
    modules = [
        file for file in sorted(PACKAGE.rglob("*.py")) if file.relative_to(PACKAGE).with_suffix("").parts[0] in rooms
    ]
    places = [(file, i) for file in modules for i, _ in enumerate(mutants(ast.parse(file.read_text())))]
    drawn = random.Random(options.seed).sample(places, min(options.count, len(places)))
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        for part in ("launcher", "templates", "train_templates"):
            shutil.copytree(ROOT / part, Path(folder) / part)
        copy = Path(folder) / "launcher"
        for count, (module, number) in enumerate(drawn, start=1):
            found = survives(module, number, copy)
            survived += found is not None
            print(f"{count}: {found or 'killed'}", flush=True)
    print(f"seed {options.seed}: {len(drawn) - survived} of {len(drawn)} killed ({1 - survived / len(drawn):.0%})")


if __name__ == "__main__":
    main()
