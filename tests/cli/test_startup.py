"""What may be imported before the help, the first question and the first rank: startup is a feature.

Each command runs in a process of its own that writes down its modules at that very moment. How long it all takes is
for `make benchmark` to measure.
"""

import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from trainwiz.process.stacks import Stacks

TRAINING = {"torch", "accelerate", "deepspeed", "transformers", "datasets", "numpy"}
"""Seconds each; trainwiz's own process never needs them."""
# docs/decisions/cli.md: What a start costs, and what was left as it is
LATER = {"pydantic", "rich", "jinja2", "yaml", "psutil", "multiprocessing"}
"""Tens of milliseconds each; a person waits for every one that comes before it is needed."""
ASKING = {"questionary", "prompt_toolkit"}
ALL = {"trainwiz.cli.launch", "trainwiz.cli.doctor"}
"""Two commands that stand for all of them."""

WATCHED = """
import io, os, sys

def written(path=os.environ["MODULES"]):
    with open(path, "w") as file:
        file.write("\\n".join(sorted(sys.modules)))

class Screen(io.RawIOBase):
    seen = b""
    def writable(self): return True
    def isatty(self): return True
    def fileno(self): return 2
    def write(self, data):
        if b"Ctrl-C" not in Screen.seen:
            Screen.seen += bytes(data)
            if b"Ctrl-C" in Screen.seen:
                written()
        return os.write(2, data)

def before_a_rank(event, arguments):
    if event == "subprocess.Popen" and "train.py" in map(str, arguments[1]):
        written()
        os._exit(0)

moment, command = sys.argv[1], sys.argv[2:]
if moment == "question":
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(Screen()), encoding="utf-8", write_through=True)
if moment == "rank":
    sys.addaudithook(before_a_rank)

from trainwiz.__main__ import main
try:
    main(command)
finally:
    if moment == "end":
        written()
"""


class Watch:
    """A command that writes down its modules at one moment: at its end, at its first question, or before a rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "modules.txt"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINWIZ_", "COVERAGE"))}
        private = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "STATE")}
        self.environ = {**kept, **private, "MODULES": str(self.file), "TRAINWIZ_LANG": "en", "TERM": "xterm-256color"}

    def argv(self, moment: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", WATCHED, moment, *arguments]

    def run(self, moment: str, *arguments: str) -> set[str]:
        command = self.argv(moment, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, env=self.environ, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        return self.modules()

    def modules(self) -> set[str]:
        """The top-level packages that were there at the moment, and all of trainwiz's modules."""
        names = self.file.read_text().splitlines()
        assert len(names) > 50, "it must have looked at something"
        return {name.partition(".")[0] for name in names} | {name for name in names if name.startswith("trainwiz.")}


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("init", "--help"), ("launch", "--help")])
def test_the_help_needs_little_more_than_typer(watch: Watch, arguments: tuple[str, ...]) -> None:
    modules = watch.run("end", *arguments)
    assert {"typer", "trainwiz.cli.app"} <= modules
    assert sorted(modules & (TRAINING | LATER | ASKING | {"pynvml"})) == []
    assert ALL & modules == (
        {"trainwiz.cli.launch"} if "launch" in arguments else set() if "init" in arguments else ALL
    )
    # What a command does is imported once it does it.
    assert not {name for name in modules if name.startswith(("trainwiz.plan", "trainwiz.rules.", "trainwiz.probe"))}


def test_the_first_table_of_plan_needs_no_training_packages(watch: Watch) -> None:
    modules = watch.run("end", "plan", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpus", "8xH100")
    assert {"trainwiz.workflows.planning.plan", "pydantic"} <= modules
    assert sorted(modules & (TRAINING | ASKING | {"rich", "jinja2", "huggingface_hub", "pynvml"})) == []


def test_the_first_question_waits_for_nothing_that_it_does_not_need(watch: Watch) -> None:
    command = watch.argv("question", "init", str(watch.folder / "new"))
    child: pexpect.spawn[str] = pexpect.spawn(
        command[0],
        command[1:],
        env={**watch.environ, "PROMPT_TOOLKIT_NO_CPR": "1"},
        encoding="utf-8",
        timeout=180,
        dimensions=(40, 120),
    )
    try:
        child.expect("Task")
        child.expect("Ctrl-C")
        child.sendcontrol("c")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    modules = watch.modules()
    assert {"typer", "questionary", "trainwiz.wizard.terminal"} <= modules
    assert sorted(modules & (TRAINING | LATER)) == []


def test_no_rank_waits_for_the_training_packages_twice(watch: Watch) -> None:
    project = str(watch.folder / "project")
    flags = ("--task", "custom", "--device", "cpu", "--num-processes", "2", "--strategy", "ddp")
    made = watch.run("end", "init", project, "--defaults", "--yes", *flags)
    assert "trainwiz.render" in made
    assert sorted(made & (TRAINING | ASKING)) == []
    modules = watch.run("rank", "launch", project)
    assert {"typer", "pydantic", "trainwiz.rules.plan.environment", "trainwiz.process.ranks"} <= modules
    assert sorted(modules & (TRAINING | ASKING | LATER - {"pydantic", "yaml"})) == []
    assert not {name for name in modules if name.startswith(("trainwiz.rules.files", "trainwiz.script"))}


def test_a_launch_without_a_failure_imports_nothing_that_explains_one(watch: Watch) -> None:
    project = watch.folder / "project"
    watch.run("end", "init", str(project), "--defaults", "--yes", "--task", "custom", "--device", "cpu")
    (project / "train.py").write_text("")
    modules = watch.run("end", "launch", str(project))
    assert {"trainwiz.workflows.launch.conclusion", "trainwiz.ui.outcome"} <= modules
    late = ("trainwiz.diagnose", "trainwiz.checkup", "trainwiz.ui.diagnosis", "trainwiz.workflows.diagnose")
    assert sorted(name for name in modules if name.startswith(late)) == []


def test_a_rank_starts_with_little_more_than_python_itself(tmp_path: Path) -> None:
    def modules(environ: dict[str, str]) -> set[str]:
        command = [sys.executable, "-c", "import sys; print(*sys.modules)"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINWIZ_", "COVERAGE", "PYTHON"))}
        return set(subprocess.check_output(command, text=True, env={**kept, **environ}).split())

    added = modules(Stacks(tmp_path).environ({}, 0)) - modules({})
    assert "faulthandler" in added, "it must have been prepared"
    assert sorted(added & {"typing", "re", "contextlib", "functools", "collections", "dataclasses"}) == []


def test_the_help_takes_a_fraction_of_what_accelerate_takes() -> None:
    def cpu_seconds(*command: str) -> float:
        null = subprocess.DEVNULL
        process = subprocess.Popen([sys.executable, "-m", *command], stdin=null, stdout=null, stderr=null)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_utime + usage.ru_stime

    ours, theirs = cpu_seconds("trainwiz", "--help"), cpu_seconds("accelerate.commands.accelerate_cli", "--help")
    assert theirs > 0.5, "it must have imported what it imports"
    # The promise is a tenth; it is usually a thirtieth.
    assert ours < theirs / 10, f"{ours:.2f} s of CPU time against {theirs:.2f} s"
