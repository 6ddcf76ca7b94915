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


def test_a_script_that_cannot_be_read_hides_no_finding_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, wrong = write(tmp_path, b'print "x"\n', "broken.py"), write(tmp_path, WRONG)
    assert run(["lint", broken, wrong, "--json"]) == 2
    shown = capsys.readouterr()
    assert {finding["file"] for finding in json.loads(shown.out)["findings"]} == {wrong}
    assert "broken.py:1: not valid Python" in shown.err


def test_missing_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "is a folder; lint expects a script" in shown
    assert "has none" in shown
    (tmp_path / "code" / "deep").mkdir(parents=True)
    write(tmp_path / "code" / "deep", WRONG, "other.py")
    assert run(["lint", str(tmp_path)]) == 2
    assert f"trainwiz lint {tmp_path / 'code' / 'deep' / 'other.py'}" in capsys.readouterr().err
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


# --- modules of the project

LOOP = """\
import torch

def fit(accelerator, model, optimizer, loader):
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), "model.pt")
"""
MAIN = """\
from accelerate import Accelerator
from training.loop import fit
import data

accelerator = Accelerator()
loader = data.make()
model, optimizer = accelerator.prepare(build(), adam())
fit(accelerator, model, optimizer, loader)
"""
DATA = """\
from torch.utils.data import DataLoader

def make():
    return DataLoader(words(), batch_size=8, shuffle=True)
"""


def project(folder: Path) -> str:
    (folder / "training").mkdir()
    write(folder / "training", LOOP, "loop.py")
    write(folder, DATA, "data.py")
    return write(folder, MAIN)


def test_calls_are_followed_into_the_projects_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = linted(capsys, project(tmp_path))
    loop = str(tmp_path / "training" / "loop.py")
    assert code == 1
    assert [(f["rule"], f["file"], f["line"]) for f in found] == [("TW738", loop, 4), ("TW765", loop, 8)]


def test_a_module_alone_does_not_know_its_caller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(tmp_path)
    assert linted(capsys, str(tmp_path / "training" / "loop.py")) == (0, [])


LAYERS = """\
import torch

class Layer(torch.nn.Linear):
    pass

def _test_layer():
    torch.manual_seed(10)
    Layer(4, 4)(torch.randn(2, 4)).sum().backward()

if __name__ == "__main__":
    _test_layer()
"""
NOISY = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from layers import Layer

dist.init_process_group("nccl")
model = DistributedDataParallel(Layer(4, 4).cuda())
for batch in loader:
    loss = model(batch + torch.randn_like(batch)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_seed_of_a_module_s_own_test_is_not_that_of_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, LAYERS, "layers.py")
    for seeded in ("", "torch.manual_seed(0)\n"):
        text = NOISY.replace("dist.init", f"{seeded}dist.init")
        _, found = linted(capsys, write(tmp_path, text))
        assert ("TW792" in [f["rule"] for f in found]) is bool(seeded)


def test_a_module_that_is_named_too_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = linted(capsys, project(tmp_path), str(tmp_path / "training" / "loop.py"))
    assert [f["rule"] for f in found] == ["TW738", "TW765"]


def test_modules_may_be_broken_missing_or_import_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "import train, torch\nfrom . import broken\nfrom .other import x\n", "other.py")
    write(tmp_path, "def (:\n", "broken.py")
    write(tmp_path, b"\xff\xfe = 1", "binary.py")
    path = write(tmp_path, "import other, broken, missing, binary\n" + WRONG)
    code, found = linted(capsys, path)
    assert (code, [(f["rule"], f["line"]) for f in found]) == (1, [("TW702", 10)])


def test_a_comment_in_a_module_counts_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project(tmp_path)
    ignoring = LOOP.replace('"model.pt")', '"model.pt")  # trainwiz: ignore[TW765]')
    write(tmp_path / "training", ignoring, "loop.py")
    assert [f["rule"] for f in linted(capsys, path)[1]] == ["TW738"]


# --- --fix

BROKEN = """\
import torch
from accelerate import Accelerator

acc = Accelerator()
model, optimizer, loader = acc.prepare(*parts())
for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()  # update
with open("log.txt", "w") as log:

    log.write("done")
"""
FIXED = """\
import torch
from accelerate import Accelerator

acc = Accelerator()
model, optimizer, loader = acc.prepare(*parts())
for batch in loader:
    loss = model(batch)
    acc.backward(loss)
    optimizer.step()  # update
    optimizer.zero_grad()
if acc.is_main_process:
    with open("log.txt", "w") as log:

        log.write("done")
"""
EPOCHS = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

model = DDP(build(dist.get_rank()))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(3):
    for batch in loader:
        scaler.scale(model(batch).mean()).backward()
        scaler.step(optimizer)
        optimizer.zero_grad()
    torch.save(
        model.module.state_dict(), "model.pt"
    )
"""
SAVED = """\
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        scaler.scale(model(batch).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        torch.save(
            model.module.state_dict(), "model.pt"
        )
"""


@pytest.mark.parametrize(("broken", "fixed"), [(BROKEN, FIXED), (EPOCHS, SAVED)], ids=["accelerate", "ddp"])
def test_fix_mends_what_needs_no_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str, fixed: str
) -> None:
    path = write(tmp_path, broken)
    assert run(["lint", path, "--fix", "--yes"]) == 0
    assert Path(path).read_text().endswith(fixed)
    said = capsys.readouterr()
    assert "no findings" in said.out
    assert f"{path}: written" in said.err


def test_lines_end_as_they_did(tmp_path: Path) -> None:
    path = write(tmp_path, BROKEN.replace("\n", "\r\n").encode())
    assert run(["lint", path, "--fix", "--yes"]) == 0
    assert Path(path).read_bytes() == FIXED.replace("\n", "\r\n").encode()


def test_fix_without_yes_shows_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BROKEN)
    assert run(["lint", path, "--fix"]) == 1
    assert Path(path).read_text() == BROKEN
    assert "+    acc.backward(loss)" in capsys.readouterr().err


UNSURE = {
    "no name of the rank": (
        "model = DDP(build())\nfor batch in loader:\n    model(batch).backward()\n    torch.save(1, 'a')\n"
    ),
    "two statements on a line": (
        "dist.get_rank()\nmodel = DDP(build())\nfor batch in loader:\n    model(batch).backward()\n"
        "    x = 1; torch.save(1, 'a')\n"
    ),
    "text over several lines": (
        "dist.get_rank()\nmodel = DDP(build())\nfor batch in loader:\n    model(batch).backward()\n"
        "    torch.save('''\na''', 'a')\n"
    ),
    "a value that is used": (
        "dist.get_rank()\nmodel = DDP(build())\nfor batch in loader:\n    model(batch).backward()\n"
        "    file = open('a', 'w')\n"
    ),
}


@pytest.mark.parametrize("name", UNSURE)
def test_fix_leaves_what_it_cannot_be_sure_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    head = (
        "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    )
    path = write(tmp_path, head + UNSURE[name])
    run(["lint", path, "--fix", "--yes"])
    said = capsys.readouterr()
    assert Path(path).read_text() == head + UNSURE[name]
    assert "TW765" in said.out
    assert "nothing can be fixed" in said.err
