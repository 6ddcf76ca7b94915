"""Help and usage errors: in the reader's language, in lines that fit, with what to type next."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wcwidth

from trainwiz import language
from trainwiz.cli import examples, launch, run
from trainwiz.cli.app import application, command
from trainwiz.errors import UsageError
from trainwiz.outcome import HANG_CODE, STOPPED_CODE
from trainwiz.workflows import explain

COMMANDS = [command.name for command in application().registered_commands]


@pytest.fixture(autouse=True)
def _english_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    yield
    language.choose([], {})


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    language.choose(arguments)
    importlib.reload(launch)  # a process speaks one language, and this speaks it from its import on
    assert run(arguments) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_the_terminal(
    command: str | None, width: int, lang: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = lines(capsys, "--lang", lang, *([command] if command else []), "--help")
    assert len(shown) > 5
    for line in shown:
        assert wcwidth.wcswidth(line) <= width or len(line.split()) == 1, line
        assert "..." not in line.replace("[ARGS]...", "")
        assert "[[" not in line
        assert "<str>" not in line


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("trainwiz rec", "recipes"), ("trainwiz init --rec", "--recipe"), ("trainwiz init --resu", "--resume")],
)
def test_tab_completes_commands_and_options(typed: str, offered: str) -> None:
    environ = {"_TRAINWIZ_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    argv = [sys.executable, "-m", "trainwiz"]
    shown = subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [offered]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("init --task text_r", ["text_regression"]),
        ("init --strategy zero3", ["zero3", "zero3+offload"]),
        ("plan --model gpt2", ["gpt2-124m"]),
        ("init --recipe tiny-c", ["tiny-chat-cpu", "tiny-cpu"]),
        ("update p --set optimizer.beta", ["optimizer.beta1=", "optimizer.beta2="]),
        ("explain TW40", [f"TW40{n}" for n in range(1, 4)]),
        ("explain machine.num", ["machine.num_machines", "machine.num_processes", "machine.numa_binding"]),
        ("check --ignore TW40", [f"TW40{n}" for n in range(1, 4)]),
        ("diff l", ["latest"]),
        ("launch --resume 2026", ["2026-11-20_10-00-00-1"]),
        ("report 2026", ["2026-11-20_10-00-00-1"]),
        ("runs --since 1", []),
        ("init own", []),
    ],
)
def test_tab_completes_values(
    typed: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "2026-11-20_10-00-00-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    words = f"trainwiz {typed}"
    monkeypatch.setattr(sys, "argv", ["trainwiz"])
    for name, value in {
        "_TRAINWIZ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        run([])
    assert sorted(capsys.readouterr().out.split()) == offered


def test_help_speaks_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ompletion for" not in "".join(lines(capsys, "--lang", "zh", "--help"))
    shown = "\n".join(lines(capsys, "--lang", "zh", "launch", "--help"))
    for english in ("Usage:", "Options:", "Arguments:", "Show this", "default:"):
        assert english not in shown
    assert "用法：trainwiz launch" in shown


def test_the_list_of_commands_is_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = " ".join(" ".join(lines(capsys, "--help")).split())
    assert "Ask about the task, model, machine and batch, check the answers, and write a project." in shown


def test_nothing_typed_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Begin:" in capsys.readouterr().err


def test_each_command_is_in_one_group_and_has_an_example_that_can_be_typed() -> None:
    grouped = [name for _, names in examples.GROUPS for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    assert set(examples.OF_COMMAND) == set(COMMANDS)
    built = command([])
    for line in (*examples.FIRST, *(line for lines in examples.OF_COMMAND.values() for line in lines)):
        program, name, *arguments = shlex.split(line.partition(" > ")[0])
        assert program == "trainwiz"
        # An option or an argument that the command does not know raises.
        built.commands[name].make_context(name, arguments)
    for name, lines in examples.OF_COMMAND.items():
        assert any(line.startswith(f"trainwiz {name}") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        (["chek"], "unknown command chek; did you mean check?", "run: trainwiz --help"),
        (["zzz"], "unknown command zzz", "run: trainwiz --help"),
        (["init", "--stepz", "3"], "unknown option --stepz; did you mean --steps?", "run: trainwiz init --help"),
        (["check", "--qqqq"], "unknown option --qqqq", "run: trainwiz check --help"),
        (["launch", "--yes"], "unknown option --yes", "run: trainwiz launch --help"),
        (["export", "--to", "x"], "unknown option --to", "run: trainwiz export --help"),
        (
            ["check", "--unsafe_fixes"],
            "unknown option --unsafe_fixes; did you mean --unsafe-fixes?",
            "run: trainwiz check --help",
        ),
        (
            ["launch", "p", "--n_steps", "3"],
            "unknown option --n_steps",
            "arguments of the training script go after --, for example: trainwiz launch DIR -- --n_steps …",
        ),
        (
            ["launch", "p", "--dry_run"],
            "unknown option --dry_run; did you mean --dry-run?",
            "run: trainwiz launch --help",
        ),
        (["doctor", "a", "b", "c"], "unexpected arguments: b c", "run: trainwiz doctor --help"),
        (
            ["submit", "p", "--", "--token", "abcdef"],
            "unexpected arguments: --token ***",
            "run: trainwiz submit --help",
        ),
        (["init", "--steps"], "--steps needs a value", "--steps N: Training length in optimizer updates."),
        (["--lang"], "--lang needs a value", "--lang LANG: Language: en or zh"),
        (["diff"], "missing argument RUN", "run: trainwiz diff --help"),
        (
            ["init", "x", "--recipe"],
            "--recipe needs a value",
            "--recipe NAME: Start from a recipe's model, method and GPUs;",
        ),
        (["check", "--format"], "--format needs a value", "--format FORMAT: text, json, sarif or github."),
        (["diff", "--lang"], "--lang needs a value", "--lang LANG: Language: en or zh"),
        (["init", "--yes=3"], "--yes takes no value", ""),
        (["launch", "--grace", "soon"], "--grace: not a number", "run: trainwiz launch --help"),
        (["launch", "--grace", "-3"], "--grace: must be at least 0", "run: trainwiz launch --help"),
        (["launch", "--machine-rank", "x"], "--machine-rank: not an integer", "run: trainwiz launch --help"),
    ],
)
def test_usage_errors_say_what_is_wrong(
    arguments: list[str], problem: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert f"error: {problem}\n" in err
    assert f"→ {remedy}" in err


def test_usage_errors_speak_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    language.choose(["--lang", "zh"], {})
    assert run(["chek"]) == 2
    assert "未知的命令 chek；是不是想写 check？" in capsys.readouterr().err


def test_what_is_not_known_is_said_as_it_is() -> None:
    from trainwiz.cli.usage_errors import translated

    class Strange(Exception):
        ctx: Any = None

        def format_message(self) -> str:
            return "something else"

    assert str(translated(Strange()).message) == "something else"


def test_the_language_may_stand_behind_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--lang", "zh", "seed"]) == 0
    assert run(["explain", "seed", "--lang=en"]) == 0
    capsys.readouterr()
    assert run(["explain", "seed", "--lang"]) == 2
    assert "--lang needs a value" in capsys.readouterr().err
    assert run(["explain", "--help"]) == 0
    assert "--lang" not in capsys.readouterr().out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_shell_of_a_completion_can_be_named(
    lang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was taken from the process that started this, and a word behind the option was not looked at."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with language.spoken(lang):
        assert run(["--install-completion", "zsh", "--lang", lang]) == 0
        said = capsys.readouterr()
    assert (tmp_path / ".zfunc" / "_trainwiz").read_text().startswith("#compdef trainwiz")
    assert not said.out
    assert ("终端" in said.err) == (lang == "zh")
    assert run(["--show-completion", "fish"]) == 0
    assert "complete --command trainwiz" in capsys.readouterr().out
    for words in (["tcsh"], ["bash", "zsh"]):
        assert run(["--install-completion", *words]) == 2
        assert f"does not know the shell {' '.join(words)}" in capsys.readouterr().err


def test_the_guide_for_agents_names_what_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent-guide"]) == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 120
    built = command([])
    typed = [shlex.split(line) for line in re.findall(r"^    (trainwiz .*?)(?:   .*)?$", shown, re.MULTILINE)]
    assert len(typed) > 18
    for program, name, *arguments in typed:
        assert program == "trainwiz"
        if ">" in arguments:
            del arguments[arguments.index(">") :]
        elsewhere = {"doctor", "recipes", "plan", "explain", "lint", "diff"}
        assert name in elsewhere or "DIR" in arguments, "it is typed where the project's folder lies"
        built.commands[name].make_context(name, arguments)
    for code in (UsageError.exit_code, STOPPED_CODE, HANG_CODE):
        assert re.search(rf"^    {code} ", shown, re.MULTILINE)
    assert {name for _, name, *_ in typed} <= set(COMMANDS)


@pytest.mark.parametrize("name", ["watch", "logs", "stop", "report", "share", "replay", "chat", "sample", "doctor"])
def test_a_file_is_not_said_to_be_missing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert run([name, str(tmp_path / "notes.txt"), *(["hello"] if name == "sample" else [])]) == 2
    assert "notes.txt is a file" in capsys.readouterr().err


def test_a_folder_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for name in ("runs", "check", "init"):
        assert run([name]) == 2
        assert "the current folder no longer exists" in capsys.readouterr().err


def test_ctrl_c_is_told_and_has_its_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever typer makes of it: 0.29 ended every command without a word."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain, "explain", interrupted)
    assert run(["explain", "TW101"]) == 130
    assert capsys.readouterr() == ("", "\ninterrupted\n")
