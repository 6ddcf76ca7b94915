"""The plan of the house, held by reading every module's imports and comparisons."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from trainwiz import vocabulary

PACKAGE = Path(__file__).parents[1] / "launcher" / "trainwiz"
TEMPLATES = Path(__file__).parents[1] / "train_templates"

# docs/decisions/house.md: Floors instead of a table of permissions
CORE = (
    (
        *("message", "columns", "shell_words", "fields", "vocabulary"),
        *("machine", "surroundings", "quantities", "recipes", "engines", "models"),
    ),
    ("optimizers", "project", "finding", "batch", "hangs", "outcome"),
    ("errors",),
    ("plan", "config", "script", "recovery", "record"),
    ("strategies", "tasks", "cluster"),
    ("estimate", "command", "checkpoint", "schedulers"),
    ("decide", "questions", "render", "rules", "diagnose", "rehearsal"),
    ("adoption", "checkup"),
)
"""The rooms without input and output, floor by floor: a room imports only rooms of the floors below."""
EDGES = {
    "language": set(),
    "files": {"language"},
    "resources": set(),
    "process": {"language"},
    "network": {"language"},
    "probe": {"process", "files", "language", "resources"},
    "wizard": {"language"},
    "store": {"resources", "files", "language"},
    "ui": {"language"},
}
"""The rooms that own one effect each, with the other edges that they may import."""
# docs/decisions/house.md: One room joins edges
TOP = ("workflows", "cli", "__main__", "__init__")
SEEN_BY_CLI = {"workflows", "ui", "language", "message", "errors", "columns", "finding", "__version__"}
FOREIGN_TO_THE_CORE = {
    *("torch", "accelerate", "deepspeed", "transformers", "questionary", "prompt_toolkit", "typer", "click", "rich"),
    *("subprocess", "socket", "psutil", "pynvml", "shutil", "tempfile", "signal"),
}
MOST_DEFERRED = 150
"""Imports inside functions; each costs a reader, and is there for the start-up time (test_startup.py)."""
MOST_CLI_LINES = 2000

KINDS = {*get_args(vocabulary.StrategyKind), *get_args(vocabulary.Task), *(f"zero{stage}" for stage in range(4))}
ASKED = ("kind", "label", "task", "strategy", "layout")
WITH_HELP = ("option", "argument", "flag", "_answer", "machine_options.")
"""Functions that make a field of a request with the help of its option."""
MAY_COMPARE = {
    "config": "a file's kind is the program that reads it, not a strategy",
    "rules/files": "files of other people's have no plan: their own words are compared",
    "adoption": "the same",
    "workflows/check": "the kind of a file",
    "workflows/create/import_files.py": "the kind of a file",
    "store": "the kind of a file",
    "probe/inside": "programs for a child process import nothing of trainwiz",
    "strategies": "the rows themselves",
    "tasks": "the rows themselves",
    "plan/model.py": "the label of a strategy, which the rows are found by",
}


def files() -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


FILES = files()


def room(module: str) -> str:
    """The room that a module stands in; `__init__` for the package itself."""
    return module.split(".")[1] if "." in module else "__init__"


def imported(node: ast.AST) -> Iterator[str]:
    """Full dotted names of what an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        assert node.level == 0, "relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imports(file: Path) -> set[str]:
    """Everything that a file imports, wherever in the file it does."""
    return {name for node in ast.walk(ast.parse(file.read_text())) for name in imported(node)}


def rooms_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("trainwiz.")}


def type_only(file: Path) -> set[str]:
    """What is imported under `if TYPE_CHECKING:`."""
    blocks = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {name for block in blocks for node in ast.walk(block) for name in imported(node)}


def test_every_room_is_known() -> None:
    known = {name for floor in CORE for name in floor} | EDGES.keys() | set(TOP)
    assert {room(module) for module in FILES} <= known | {"__init__"}
    assert len(FILES) > 200


@pytest.mark.parametrize("floor", range(len(CORE)))
def test_a_core_room_imports_only_lower_floors(floor: int) -> None:
    below = {name for lower in CORE[:floor] for name in lower}
    looked = 0
    for module, file in FILES.items():
        if room(module) in CORE[floor]:
            names = imports(file)
            looked += 1
            higher = rooms_of(names) - below - {room(module), "__version__"}
            assert not higher, f"{module} imports {higher}"
            foreign = {name.split(".")[0] for name in names} & FOREIGN_TO_THE_CORE
            assert not foreign, f"{module} imports {foreign}"
    assert looked


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_imports_no_other_edge(edge: str) -> None:
    core = {name for floor in CORE for name in floor}
    modules = [module for module in FILES if room(module) == edge]
    assert modules
    for module in modules:
        others = rooms_of(imports(FILES[module])) - core - EDGES[edge] - {edge, "__version__"}
        assert not others, f"{module} imports {others}"


def test_the_command_line_calls_workflows_and_prints() -> None:
    modules = [module for module in FILES if room(module) == "cli"]
    for module in modules:
        others = rooms_of(imports(FILES[module])) - SEEN_BY_CLI - {"cli"}
        assert not others, f"{module} imports {others}"
    lines = sum(len(FILES[module].read_text().splitlines()) for module in modules)
    assert 500 < lines < MOST_CLI_LINES


def test_no_modules_import_each_other() -> None:
    """Deferred imports count; a type that a lower room defines does not."""
    floors = {name: number for number, floor in enumerate(CORE) for name in floor}
    graph: dict[str, set[str]] = {}
    for module, file in FILES.items():
        types = {name for name in type_only(file) if floors.get(name.split(".")[1], 99) < floors.get(room(module), 98)}
        graph[module] = {target for name in imports(file) - types if (target := module_of(name)) and target != module}
    assert sum(map(len, graph.values())) > 500
    refuse_circles(graph)


def test_no_templates_import_each_other() -> None:
    """Every task is `task` in its project. Loops import tasks and parts, and nothing imports a loop."""
    parts = {file.stem: file for file in TEMPLATES.glob("parts/*.py")}
    templates = parts | {f"task {file.stem}": file for file in TEMPLATES.glob("tasks/*.py")}
    tasks = templates.keys() - parts
    graph = {}
    for name, file in templates.items():
        targets = {target.split(".")[0] for target in imports(file)}
        graph[name] = targets & parts.keys() | (tasks if "task" in targets else set())
    assert sum(map(len, graph.values())) > 100
    refuse_circles(graph)


def refuse_circles(graph: dict[str, set[str]]) -> None:
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def module_of(name: str) -> str | None:
    """The module that an imported name is or comes from."""
    return name if name in FILES else name.rpartition(".")[0] if name.rpartition(".")[0] in FILES else None


def test_few_imports_are_deferred() -> None:
    found = 0
    for file in FILES.values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
                found += sum(any(name.startswith("trainwiz") for name in imported(n)) for n in inner)
    assert 0 < found < MOST_DEFERRED


def test_only_their_rooms_ask_which_strategy_or_task_it_is() -> None:
    looked = 0
    for module, file in FILES.items():
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith(tuple(MAY_COMPARE)):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            words = compared(node)
            looked += bool(words)
            assert not (words & KINDS and any(word in ast.unparse(node) for word in ASKED)), (
                f"{module}:{getattr(node, 'lineno', 0)} compares with {words & KINDS}"
            )
    assert looked > 100, "it must have looked at comparisons"


def compared(node: ast.AST) -> set[str]:
    """The literal strings that something is compared with."""
    if isinstance(node, ast.Match):
        parts: list[ast.AST] = [case.pattern for case in node.cases]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    else:
        return set()
    leaves = [leaf for part in parts for leaf in ast.walk(part)]
    return {leaf.value for leaf in leaves if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}


def test_torch_is_imported_by_no_module_of_ours() -> None:
    inside = PACKAGE / "probe" / "inside"  # programs for a child process
    for file in (file for file in FILES.values() if file.parent != inside):
        heavy = {name.split(".")[0] for name in imports(file)} & {"torch", "accelerate", "deepspeed", "transformers"}
        assert not heavy, f"{file} imports {heavy}; torch belongs in a child process"


def test_programs_for_the_child_process_need_nothing_of_ours() -> None:
    programs = [file for file in (PACKAGE / "probe" / "inside").glob("*.py") if file.name != "__init__.py"]
    assert programs
    for file in programs:
        assert not {name for name in imports(file) if name.startswith("trainwiz")}, f"{file} must run without trainwiz"
    used = {name for file in FILES.values() for name in imports(file)}
    assert not {name for name in used if name.startswith("trainwiz.probe.inside.")}, "they are run, never imported"


def fields_of(file: Path) -> Iterator[tuple[str, ast.AnnAssign, ast.stmt | None]]:
    """The public fields of the public dataclasses in a file, each with its class and the statement after it."""
    for node in ast.walk(ast.parse(file.read_text())):
        made = [d for d in getattr(node, "decorator_list", ()) if "dataclass" in ast.unparse(d).partition("(")[0]]
        if isinstance(node, ast.ClassDef) and made and not node.name.startswith("_"):
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
                    yield node.name, field, after


def says_what_it_is(field: ast.AnnAssign, after: ast.stmt | None) -> bool:
    """By a docstring below it, or, as an option of the command line, by its help."""
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return bool(after.value.value)
    return isinstance(field.value, ast.Call) and ast.unparse(field.value.func).startswith(WITH_HELP)


def test_every_field_of_a_public_dataclass_says_what_it_is() -> None:
    looked = 0
    for module, file in FILES.items():
        for name, field, after in fields_of(file):
            looked += 1
            assert says_what_it_is(field, after), f"{module}.{name}.{ast.unparse(field.target)}: what, in which unit?"
    assert looked > 1000, "it must have looked at fields"


def test_the_order_of_the_tests_names_files_of_tests() -> None:
    """A name that no file has any more is a long file that starts last."""
    from shares import LONG, RACING

    files = {file.stem for file in Path(__file__).parent.rglob("test_*.py")}
    assert not {*LONG, *(f"test_{name}" for name in RACING)} - files - {"racing"}
    assert len(LONG) == len(set(LONG))
