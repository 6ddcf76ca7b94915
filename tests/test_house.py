"""The plan of the house, held by reading every module's imports."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "launcher" / "trainwiz"

CORE = {
    "errors": {"message", "finding"},
    "message": set(),
    "columns": set(),
    "vocabulary": set(),
    "machine": set(),
    "project": set(),
    "plan": {"errors", "message", "vocabulary"},
    "batch": {"message"},
    "questions": {"machine", "plan", "message", "vocabulary", "project"},
    "decide": {"machine", "plan", "batch", "questions", "estimate", "message", "errors", "vocabulary", "project"},
    "estimate": {"machine", "plan", "project", "vocabulary"},
    "finding": {"message"},
    "engines": set(),
    "config": {"engines", "finding", "message"},
    "adoption": {"config", "engines", "finding", "plan", "command", "render", "script", "vocabulary", "message"},
    "script": {"engines", "finding", "message", "errors"},
    "rules": {
        "machine",
        "plan",
        "project",
        "batch",
        "estimate",
        "finding",
        "message",
        "vocabulary",
        "errors",
        "script",
        "config",
        "engines",
    },
    # accelerate.yaml is the settings of a launch written down, and the README shows the commands.
    "checkup": {"machine", "finding", "rules", "message"},
    "render": {"machine", "plan", "errors", "message", "vocabulary", "estimate", "command"},
    "command": {"engines", "machine", "plan", "message", "errors", "vocabulary"},
    "diagnose": {"machine", "plan", "project", "batch", "estimate", "finding", "message", "outcome"},
    "checkpoint": {"message", "plan"},
    "outcome": set(),
    "record": {"message", "outcome"},
    "recovery": {"message", "outcome"},
    "hangs": {"message"},
    "rehearsal": {"message", "plan"},
}
EDGES = {
    "language": {"message"},
    "resources": set(),
    "process": {"language", "message", "errors", "command", "machine"},
    "network": {"language"},
    "probe": {"process", "language"},
    "wizard": {"language"},
    "store": {"resources", "language"},
    "ui": {"language"},
}
STILL_IN_CIRCLES = ("trainwiz.cli", "trainwiz.process", "trainwiz.workflows.launch", "trainwiz.workflows.rehearse")
FREE = {"workflows", "cli", "__main__", "__init__"}
FOREIGN_TO_THE_CORE = {
    "torch", "accelerate", "deepspeed", "transformers", "questionary", "prompt_toolkit", "typer", "click", "rich",
    "subprocess", "socket", "psutil", "pynvml", "shutil", "tempfile", "signal",
}  # fmt: skip


def rooms() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found.setdefault(parts[0], []).append(file)
    return found


def imports(file: Path) -> set[str]:
    """Full dotted names of everything a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_room_is_known() -> None:
    assert set(rooms()) <= CORE.keys() | EDGES.keys() | FREE
    assert len(rooms()) > 8


@pytest.mark.parametrize("room", sorted(CORE))
def test_core_room_imports_only_what_it_may(room: str) -> None:
    for file in rooms().get(room, []):
        names = imports(file)
        ours = {n.split(".")[1] for n in names if n.startswith("trainwiz.")} - {room}
        assert ours <= CORE[room], f"{file} imports {ours - CORE[room]}"
        foreign = {n.split(".")[0] for n in names} & FOREIGN_TO_THE_CORE
        assert not foreign, f"{file} imports {foreign}"


@pytest.mark.parametrize("room", sorted(EDGES))
def test_edge_imports_no_other_edge(room: str) -> None:
    for file in rooms().get(room, []):
        ours = {n.split(".")[1] for n in imports(file) if n.startswith("trainwiz.")} - {room}
        assert ours <= EDGES[room] | CORE.keys() | {"__version__"}, f"{file} imports {ours}"


def module_names() -> dict[str, Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Deferred imports and those for types included."""
    known = module_names()
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        imported = {n if n in known else n.rpartition(".")[0] for n in imports(file)}
        graph[name] = (imported & known.keys()) - {name}
    assert sum(map(len, graph.values())) > 500
    # What no chain of imports leads back from is taken away until only circles and what leads into them is left.
    for _ in range(2):
        while free := {name for name, others in graph.items() if not others & graph.keys()}:
            graph = {name: others for name, others in graph.items() if name not in free}
        turned: dict[str, set[str]] = {name: set() for name in graph}
        for name, others in graph.items():
            for other in others & graph.keys():
                turned[other].add(name)
        graph = turned
    assert not {name for name in graph if not name.startswith(STILL_IN_CIRCLES)}


def test_torch_is_imported_by_no_module_of_ours() -> None:
    inside = PACKAGE / "probe" / "inside"  # programs for a child process
    for files in rooms().values():
        for file in (f for f in files if f.parent != inside):
            heavy = {n.split(".")[0] for n in imports(file)} & {"torch", "accelerate", "deepspeed", "transformers"}
            assert not heavy, f"{file} imports {heavy}; torch belongs in a child process"


def test_programs_for_the_child_process_need_nothing_of_ours() -> None:
    programs = [file for file in (PACKAGE / "probe" / "inside").glob("*.py") if file.name != "__init__.py"]
    assert programs
    for file in programs:
        assert not {n for n in imports(file) if n.startswith("trainwiz")}, f"{file} must run without trainwiz"
    used = {n for files in rooms().values() for file in files for n in imports(file)}
    assert not {n for n in used if n.startswith("trainwiz.probe.inside.")}, "they are run, never imported"
