"""`trainwiz lint` from its arguments to what it prints and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwiz.cli import run

WRONG = """\
from accelerate import Accelerator

accelerator = Accelerator()
model, loader = accelerator.prepare(model, loader)
for batch in loader:
    loss = model(batch)
    accelerator.backward(loss)
if accelerator.is_main_process:
    accelerator.save_state("out")
"""


def write(folder: Path, text: str | bytes, name: str = "train.py") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def linted(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = run(["lint", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)["findings"]


def test_the_line_is_shown_with_carets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, WRONG)
    assert run(["lint", path]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:6] == [
        f"{path}:9:5: error TW702",
        "  accelerator.save_state runs only on some ranks: under the condition accelerator.is_main_process",
        '  9 |     accelerator.save_state("out")',
        "    |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "  → call accelerator.save_state on every rank; each rank writes its own part",
        "",
    ]
    assert shown[6:] == ["errors: 1, warnings: 0, hints: 0", "details of a rule: trainwiz explain TW702"]


def test_json_says_file_line_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, WRONG)
    code, found = linted(capsys, path)
    assert code == 1
    assert [(f["rule"], f["file"], f["line"], f["column"], f["width"]) for f in found] == [("TW702", path, 9, 5, 29)]


def test_columns_count_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 'import torch\n名 = "检查点"; \tx = torch.load("a\x1b[31m")\n')
    assert run(["lint", path]) == 0
    line, carets = capsys.readouterr().out.splitlines()[2:4]
    assert line == '  2 | 名 = "检查点";     x = torch.load("a�[31m")'
    assert carets == "    | " + " " * len('xx = "xxxxxx";     x = ') + "^" * len('torch.load("a�[31m")')


def test_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", write(tmp_path, "")]) == 0
    assert capsys.readouterr().out == "no findings\n"


def test_several_scripts_in_one_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path, WRONG), write(tmp_path, WRONG, "other.py")
    code, found = linted(capsys, one, other, one)
    assert (code, [f["file"] for f in found]) == (1, [one, other])


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("", ["TW702"]),
        ("  # trainwiz: ignore[TW702]", []),
        ("  # trainwiz: ignore[TW701, TW702]: rank 0 loads it alone", []),
        ("  # trainwiz: ignore", []),
        ("  # trainwiz: ignore[TW701]", ["TW702"]),
        ("  # noqa", ["TW702"]),
    ],
)
def test_a_comment_leaves_a_rule_out(
    comment: str, left: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = WRONG.replace('save_state("out")', f'save_state("out"){comment}')
    assert [f["rule"] for f in linted(capsys, write(tmp_path, text))[1]] == left


def test_a_comment_inside_of_a_string_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = WRONG.replace('"out"', '"# trainwiz: ignore"')
    assert [f["rule"] for f in linted(capsys, write(tmp_path, text))[1]] == ["TW702"]


def test_select_and_ignore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, WRONG)
    assert linted(capsys, path, "--select", "TW70")[1]
    assert linted(capsys, path, "--select", "TW72") == (0, [])
    assert linted(capsys, path, "--ignore", "TW702") == (0, [])
    assert run(["lint", path, "--ignore", "TW799"]) == 2


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train.py", b"if True\n    pass\n", "train.py:1: not valid Python: expected ':'"),
        ("train.py", b"x = 1\n\ny = '\xff\xfe'\n", "train.py:3: byte 0xff is not valid utf-8"),
        ("train.py", b"# -*- coding: klingon -*-\n", "unknown encoding: klingon"),
        ("train.py", b"x = 1\x00\n", "not valid Python"),
        ("train.py", b"x = " + b"(" * 400 + b")" * 400, "train.py"),
        ("train.ipynb", b"{}", "jupyter nbconvert --to script"),
    ],
)
def test_what_cannot_be_read(
    name: str, content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lint", write(tmp_path, content, name)]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_missing_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(tmp_path)]) == 2
    assert "is a folder; lint expects a script" in capsys.readouterr().err
    write(tmp_path, WRONG)
    assert run(["lint", str(tmp_path)]) == 2
    assert f"trainwiz lint {tmp_path / 'train.py'}" in capsys.readouterr().err
    assert run(["lint", str(tmp_path / "trian.py")]) == 2
    shown = capsys.readouterr().err
    assert "trian.py does not exist" in shown
    assert "choose a script in that folder: train.py" in shown
    assert run(["lint"]) == 2
    assert "trainwiz lint train.py" in capsys.readouterr().err


def test_declared_encodings_and_byte_order_marks_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latin = "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1")
    assert linted(capsys, write(tmp_path, latin)) == (0, [])
    windows = b"\xef\xbb\xbf" + WRONG.replace("\n", "\r\n").encode()
    assert [f["line"] for f in linted(capsys, write(tmp_path, windows))[1]] == [9]


def test_the_script_never_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "ran"
    assert run(["lint", write(tmp_path, f"open({str(trace)!r}, 'w')\nraise SystemExit(7)\n")]) == 0
    assert not trace.exists()
    capsys.readouterr()


def test_lines_fit_the_terminal(tmp_path: Path) -> None:
    long = 'x = torch.load(  "' + "a" * 300 + '")\n'
    path = write(tmp_path, "import torch\n" + long + "y" * 200 + ' = torch.load("b")\n')
    outside, inside = pty.openpty()
    env = {**os.environ, "COLUMNS": "60", "TRAINWIZ_LANG": "en", "NO_COLOR": "1"}
    child = subprocess.Popen([sys.executable, "-m", "trainwiz", "lint", path], stdout=inside, env=env)
    os.close(inside)
    shown = b""
    while True:
        try:
            piece = os.read(outside, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(outside)
    assert child.wait(timeout=180) == 0
    lines = [line for line in shown.decode().splitlines() if "|" in line]
    assert len(lines) == 4
    assert all(len(line) <= 60 for line in lines)
    assert lines[2].endswith('= torch.load("b")') is False
    assert "^" in lines[3]


def test_it_starts_fast_and_without_heavy_imports(tmp_path: Path) -> None:
    path = write(tmp_path, WRONG * 20)
    program = (
        "import sys; from trainwiz.cli import run; code = run(['lint', sys.argv[1], '--json'])\n"
        "heavy = {'torch', 'accelerate', 'pydantic', 'rich', 'questionary', 'yaml'} & sys.modules.keys()\n"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    took = []
    for _ in range(3):
        began = sum(os.times()[2:4])
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
        took.append(sum(os.times()[2:4]) - began)
        assert done.returncode == 1, done.stderr
        assert done.stderr.strip() == "[]"
    assert min(took) < 1.0  # of a core; usually 0.2 s
