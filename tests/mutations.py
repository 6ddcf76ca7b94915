"""How many random mutations of the core rooms their tests kill: `python tests/mutations.py [--count 200] [--seed 1]`.

Each mutation changes one place of one module in a copy of the package. First the tests of the rooms run once on a copy
whose drawn statements say which test reaches them. A mutant then meets only these tests, file by file, the fastest
file first. It is killed where one of them fails that passes without the mutation. It survives where all of them pass.
Where some could not be asked (they take longer than a mutant is given, or fail without the mutation, as on a busy
machine), nothing is known about it, and it is counted apart. What is not killed is printed with its line. Tests that
train, or wait until DeepSpeed's operators are compiled, are left out.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from patience import patience
from test_house import CORE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "launcher" / "trainwiz"
TESTS = {
    "cluster": ["cluster/test_several_machines.py"],
    "command": ["command", "render/test_render.py", "render/test_render_engines.py"],
    "checkpoint": ["workflows/test_checkpoints_command.py"],
    "config": [
        "rules/test_configurations.py",
        "rules/test_numbers.py",
        "workflows/test_check_files.py",
        "workflows/test_remedy.py",
    ],
    "engines": ["rules/test_configurations.py", "command", "adoption"],
    "errors": ["store", "workflows/test_check.py"],
    "finding": ["rules/test_rules.py", "workflows/test_check.py"],
    "machine": ["store/test_machines.py", "checkup"],
    "message": ["test_catalogue.py", "cli"],
    "outcome": ["process/test_supervision.py", "diagnose/test_diagnose.py", "test_outcome.py"],
    "diagnose": ["diagnose", "workflows/test_remedy.py"],
    "plan": ["plan", "workflows/test_init.py", "store/test_store.py"],
    "project": ["probe/test_project.py", "rules/test_rules.py"],
    "rehearsal": ["rehearsal"],
    "record": ["record", "workflows/test_provenance.py", "workflows/test_watch.py"],
    "rules": [
        *(
            f"rules/test_{name}.py"
            for name in ("rules", "configurations", "lint", "numbers", "missing", "architecture")
        ),
        "benchmarks/test_truth.py",
        *("workflows/test_check.py", "workflows/test_check_files.py", "workflows/test_remedy.py"),
    ],
    "script": [
        "script",
        "benchmarks/test_truth.py",
        "rules/test_lint.py",
        "rules/test_numbers.py",
        "rules/test_architecture.py",
        "adoption",
    ],
    "render": ["render", "adoption"],
    "questions": ["questions", "wizard"],
    "strategies": [
        "strategies",
        "estimate",
        "decide",
        "render/test_script.py",
        "render/test_render.py",
        "rules/test_rules.py",
    ],
    "tasks": ["estimate", "decide", "render/test_script.py", "probe/test_project.py", "rules/test_rules.py"],
    "vocabulary": ["questions", "plan"],
}
"""The tests of the rooms that no folder and no file of tests is named after."""
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
REACHED = """
import os
said, file = set(), os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def at(place):
    line = f"{{place}} {{os.environ.get('PYTEST_CURRENT_TEST')}}\\n"
    if line not in said:
        said.add(line)
        os.write(file, line.encode())
"""
"""A module beside the package whose statements say what they reach; children of a test know it by its variable."""
SECONDS = 3600
"""What a run of tests may take before it counts as failed."""
TEST_SECONDS = 120
"""What one test may take, more on a busy machine."""
MOST_SECONDS = 60.0
"""Of tests that a mutant meets, as they took in the first run; of what slower ones would kill nothing is known."""
SLOW_SECONDS = 1.0
"""A test that takes longer starts processes, and may fail by chance: it must pass again without the mutation."""


@dataclass(frozen=True)
class Place:
    """Something that can be mutated."""

    module: Path
    number: int
    """Counted over the places of its module."""
    change: str
    line: int
    column: int
    statement: int
    """The line of the statement that it belongs to; for parameters and decorators, that of the function."""
    text: str

    def __str__(self) -> str:
        return f"{self.module.relative_to(ROOT)}:{self.line}:{self.column} {self.change}: {self.text}"

    @property
    def name(self) -> str:
        """How its statement says that it was reached."""
        return f"{self.module.relative_to(PACKAGE)}:{self.statement}"

    @property
    def room(self) -> str:
        return room_of(self.module)


@dataclass(frozen=True)
class Tests:
    """The tests of a place's room that reach it."""

    seconds: dict[str, float]
    """Of those that pass without a mutation."""
    failed: set[str]
    """Those that do not pass without one either, so that they can kill nothing."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    word: str
    """killed, survived or unknown."""
    detail: str


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def change_of(node: ast.AST) -> str | None:
    """What `mutate` would do with this node; None if nothing."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPPOSITE:
        return "comparison"
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPPOSITE:
        return "operator"
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        return "constant"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not"
    # The opposite of a comparison or a `not` is the same mutant.
    if isinstance(node, ast.If | ast.IfExp) and change_of(node.test) not in ("comparison", "not"):
        return "condition"
    return None


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node that can make a difference."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue  # nobody evaluates them
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # of `zip`: the lengths are equal wherever it stands, so it never makes a difference
            if isinstance(child, ast.AST):
                yield child


def mutants(node: ast.AST, statement: int = 0) -> Iterator[tuple[ast.AST, str, int]]:
    """Each place inside a function that can be mutated, with the name of the change and the line of its statement."""
    if statement and (change := change_of(node)):
        yield node, change, statement
    for child in parts(node):
        begins = isinstance(child, ast.FunctionDef) or (statement and isinstance(child, ast.stmt))
        yield from mutants(child, child.lineno if begins else statement)  # type: ignore[attr-defined]


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


def places_of(module: Path) -> list[Place]:
    """What can be mutated in a module."""
    found = mutants(ast.parse(module.read_text()))
    return [
        Place(module, i, change, node.lineno, node.col_offset + 1, statement, ast.unparse(node).partition("\n")[0])  # type: ignore[attr-defined]
        for i, (node, change, statement) in enumerate(found)
    ]


def telling(tree: ast.Module, names: dict[int, str]) -> str:
    """The module, whose statements at these lines say their name when they are reached."""
    for block in [value for node in ast.walk(tree) for _, value in ast.iter_fields(node) if isinstance(value, list)]:
        for statement in [part for part in block if isinstance(part, ast.stmt) and part.lineno in names]:
            says = ast.parse(f"__import__('reached').at({names[statement.lineno]!r})").body[0]
            if isinstance(statement, ast.FunctionDef):
                statement.body.insert(1 if ast.get_docstring(statement) else 0, says)
            elif isinstance(statement, ast.stmt):
                block.insert(block.index(statement), says)
    return ast.unparse(ast.fix_missing_locations(tree))


def tests_of(room: str) -> list[str]:
    """The tests of a room, as pytest takes them."""
    named = [Path("tests") / name for name in TESTS.get(room, [room, f"test_{room}.py"])]
    return [str(path) for path in named if (ROOT / path).exists()]


@dataclass(eq=False)
class Result:
    """What a run of tests showed; a plugin of pytest while it runs."""

    chosen: Sequence[str] = ()
    """The only tests to run, in this order; all, if none are named."""
    seconds: Counter[str] = field(default_factory=Counter)
    passed: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    beside: set[str] = field(default_factory=set)
    """Files whose tests run beside each other, so that any of them may have reached what one did."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.beside = {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker("waits")}
        items[:] = [item for item in items if "operators" not in getattr(item, "fixturenames", ())]
        if self.chosen:
            found = {item.nodeid: item for item in items}
            items[:] = [found[test] for test in self.chosen if test in found]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def run(launcher: Path, arguments: Sequence[str], chosen: Sequence[str] = ()) -> Result:
    """Let pytest run in a child that has pytest already, and takes trainwiz from this folder."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        receiving, sending = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=_run, args=(sending, launcher, folder, arguments, Result(chosen))
        )
        child.start()
        sending.close()
        try:
            return receiving.recv() if receiving.poll(SECONDS) else Result(failed=["timeout"])
        except EOFError:
            return Result(failed=["a crash"])
        finally:
            child.kill()
            child.join()


def _run(
    sending: multiprocessing.connection.Connection,
    launcher: Path,
    folder: str,
    arguments: Sequence[str],
    result: Result,
) -> None:
    os.environ.update(PYTHONPATH=str(launcher), TMPDIR=folder)
    tempfile.tempdir = None  # the folder that this process knows is the one of before
    sys.path.insert(0, str(launcher))
    for name in list(sys.modules):
        if name.partition(".")[0] in ("trainwiz", "test_house"):
            del sys.modules[name]
    os.chdir(ROOT)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    options = [
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-m",
        "not train",
        "--timeout",
        f"{TEST_SECONDS * patience():.0f}",
    ]
    code = pytest.main([*options, *arguments], plugins=[result])
    if not result.failed and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        result.failed.append(f"pytest's exit code {code}")
    sending.send(result)


def copied(folder: Path) -> Path:
    """A copy of the package and its templates: where to import it from."""
    for part in ("launcher", "templates", "train_templates"):
        shutil.copytree(ROOT / part, folder / part)
    return folder / "launcher"


def in_copy(launcher: Path, module: Path) -> Path:
    return launcher / "trainwiz" / module.relative_to(PACKAGE)


def reaching(drawn: Sequence[Place], folder: Path) -> dict[Place, Tests]:
    """For each place the tests of its room that reach it."""
    launcher, log = copied(folder), folder / "reached.txt"
    (launcher / "reached.py").write_text(REACHED.format(path=str(log)))
    for module in {place.module for place in drawn}:
        names = {place.statement: place.name for place in drawn if place.module == module}
        in_copy(launcher, module).write_text(telling(ast.parse(module.read_text()), names))
    whole = run(launcher, sorted({test for place in drawn for test in tests_of(place.room)}))
    print(f"{len(whole.passed)} tests passed, {len(whole.failed)} failed: {' '.join(whole.failed)}", flush=True)
    assert whole.passed, "the tests of these rooms do not run"
    said: dict[str, set[str]] = defaultdict(set)
    for line in log.read_text().splitlines():
        name, _, test = line.partition(" ")
        said[name].add(test)
    failed = set(whole.failed)
    reached = {
        place: [
            test
            for test in _of(said[place.name], whole.passed | failed, whole.beside)
            if file_of(test).startswith(tuple(tests_of(place.room)))
        ]
        for place in drawn
    }
    return {
        place: Tests({test: whole.seconds[test] for test in tests if test not in failed}, failed & set(tests))
        for place, tests in reached.items()
    }


def file_of(test: str) -> str:
    return test.partition("::")[0]


def _of(said: set[str], tests: set[str], beside: set[str]) -> list[str]:
    """Of these tests those that said so themselves, or share what did: what was made for their file, or for all."""
    files = {file_of(each) for each in said if not each.endswith(" (call)") or file_of(each) in beside}
    return [test for test in tests if f"{test} (call)" in said or file_of(test) in files or "None" in said]


def verdict(place: Place, tests: Tests, folder: Path) -> Verdict:
    """Whether a test fails where this place is mutated that passes where it is not."""
    launcher = copied(folder)
    tree = ast.parse(place.module.read_text())
    mutate([node for node, *_ in mutants(tree)][place.number])
    mutated = ast.unparse(ast.fix_missing_locations(tree))
    left_out = set(tests.failed)
    files = by_file(tests.seconds)
    for file, chosen in files.items():
        while chosen:
            in_copy(launcher, place.module).write_text(mutated)
            failed = run(launcher, ["-x", file], chosen).failed
            if not failed:
                break
            suspect = failed[0] if failed[0] in chosen else chosen[0]
            if tests.seconds[suspect] < SLOW_SECONDS:
                return Verdict("killed", f"by {failed[0]}")
            shutil.copy2(place.module, in_copy(launcher, place.module))
            if not run(launcher, [file], [suspect]).failed:
                return Verdict("killed", f"by {failed[0]}")
            chosen.remove(suspect)
            left_out.add(suspect)
    met = sum(map(len, files.values()))
    left_out |= tests.seconds.keys() - {test for chosen in files.values() for test in chosen}
    return Verdict("unknown" if left_out else "survived", f"passes {met} tests, not asked: {len(left_out)}")


def by_file(seconds: dict[str, float]) -> dict[str, list[str]]:
    """The tests of each file, the fastest file and in it the fastest tests first, as far as they are not too many."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(seconds, key=lambda test: seconds[test]):
        files[file_of(test)].append(test)
    left, found = MOST_SECONDS, {}
    for file, tests in sorted(files.items(), key=lambda item: sum(seconds[test] for test in item[1])):
        spent = itertools.accumulate(seconds[test] for test in tests)
        found[file] = [test for test, so_far in zip(tests, spent, strict=True) if so_far <= left]
        left -= sum(seconds[test] for test in found[file])
    return found


def main() -> None:
    """Draw, run, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", help="only this one")
    options = parser.parse_args()
    subprocess.run([sys.executable, ROOT / "hatch_build.py"], check=True)
    rooms = {name for floor in CORE for name in floor if options.room in (None, name)}
    places = [
        place for module in sorted(PACKAGE.rglob("*.py")) if room_of(module) in rooms for place in places_of(module)
    ]
    drawn = random.Random(options.seed).sample(places, min(options.count, len(places)))
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        tests = reaching(drawn, Path(folder))
    for count, place in enumerate(drawn, start=1):
        with tempfile.TemporaryDirectory(prefix="m") as folder:
            found = verdict(place, tests[place], Path(folder))
        verdicts[place.room][found.word] += 1
        print(f"{count}: {place}\n    {found.word}: {found.detail}", flush=True)
    for room, words in sorted(verdicts.items()):
        print(f"{room}: {words['killed']} of {words.total()} killed, {words['unknown']} unknown")
    total = sum(verdicts.values(), Counter())
    known = total["killed"] + total["survived"]
    print(f"seed {options.seed}: {total['killed']} of {known} killed ({total['killed'] / max(1, known):.0%})")
    print(f"{total['unknown']} of {total.total()} unknown; with them at least {total['killed'] / total.total():.0%}")


if __name__ == "__main__":
    main()
