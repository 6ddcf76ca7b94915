"""Names of files in commands that people are told to type: a shell and the program read each as that file."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from trainwiz.cli import run
from trainwiz.shell_words import operand, quoted

PACKAGE = Path(__file__).parents[1] / "launcher" / "trainwiz"
COMMAND = re.compile(r"trainwiz [a-z-]+ (?:--[a-z-]+ [A-Z]+ |[A-Z]+ --[a-z-]+ )?\{(folder|path|file|script|run)\}")
"""A sentence with a command and the file or folder that it is about."""
SENTENCES = {"say", "t", "remedy", "violation", "Signature"}


@pytest.mark.parametrize(
    ("path", "typed"),
    [
        ("-x", "./-x"),
        ("--help", "./--help"),
        (Path("./-x"), "./-x"),
        ("a-x", "a-x"),
        ("./-x/y", "./-x/y"),
        ("-my runs", "'./-my runs'"),
        ("it's", "'it'\"'\"'s'"),
        ("~root", "'~root'"),
        ("", "''"),
    ],
)
def test_a_path_is_one_word_and_no_option(path: str | Path, typed: str) -> None:
    assert quoted(path) == typed
    assert shlex.split(typed) == [operand(path)]


def test_every_command_in_a_sentence_quotes_its_file() -> None:
    seen = 0
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        from_quoted = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and "quoted(" in ast.unparse(node.value)
            for name in node.targets
            for target in ast.walk(name)
            if isinstance(target, ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if not isinstance(call.func, ast.Name) or call.func.id not in SENTENCES or not call.args:
                continue
            sentence = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            for name in set(COMMAND.findall(str(sentence))):
                seen += 1
                value = given.get(name, "")
                assert value.startswith("quoted(") or value in from_quoted, f"{file}:{call.lineno}: {name}={value}"
    assert seen >= 25, "it must have looked at something"


def test_a_folder_like_an_option_is_named_so_that_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    begin = ["init", "./-my runs", "--task", "custom", "--device", "cpu", "--defaults", "--yes"]
    assert run(begin) == 0
    told = capsys.readouterr().err
    lines = [
        shlex.split(line) for line in re.findall(r"^ *(trainwiz (?:init|launch|update) .*?)(?:  .*)?$", told, re.M)
    ]
    assert [line[:3] for line in lines] == [
        ["trainwiz", name, "./-my runs"] for name in ("init", "launch", "update")
    ], told
    for _, command, folder in (line[:3] for line in lines):
        more = {"init": ["--defaults", "--yes"], "launch": ["--dry-run"], "update": []}[command]
        assert run([command, folder, *more]) == 0, capsys.readouterr().err
