"""Files that a stranger or a fault left in a project: forged records, pipes and devices, numbers that are none."""

import copy
import itertools
import json
import os
import pty
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import forked
import pytest
from plans import completed

from trainwiz import language
from trainwiz.cli import run as trainwiz
from trainwiz.diagnose import log_text, of_log
from trainwiz.probe import labels

SCRIPT = """
import json, os, sys
output = sys.argv[sys.argv.index("--output_dir") + 1]
if os.environ.get("RANK", "0") == "0":
    with open(os.path.join(output, "metrics.jsonl"), "a") as file:
        for update in range(1, 9):
            print(json.dumps({"update": update, "loss": 8 / update, "lr": 1e-3, "tokens_per_second": 99.0}), file=file)
        print(json.dumps({"update": 8, "eval_loss": 0.5}), file=file)
    raise RuntimeError("planted")
"""
PLAN = """\
machine: {num_processes: 2}
strategy: {kind: ddp}
batch: {real_batch_size: 8, per_device_batch_size: 4, gradient_accumulation_steps: 1}
"""
FORGED: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    float("inf"),
    float("nan"),
    "x\x1b[31m\x9b2J",
    [],
    [[1]],
    {},
    {"a": {}},
)
SEVERAL = (("report",), ("watch", "runs"), ("diagnose",))
"""The commands that each of three values at a place is shown to."""


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    language.choose([], {})
    yield
    language.choose([], {})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a real failed run; its script imports no torch."""
    folder = tmp_path_factory.mktemp("hostile") / "project"
    folder.mkdir()
    (folder / "trainwiz.yaml").write_text(completed(PLAN))
    (folder / "train.py").write_text(SCRIPT)
    launched = forked.run(["launch", str(folder)], timeout=300, env={**os.environ, "TRAINWIZ_LANG": "en"})
    assert "planted" in launched.stderr, launched.stderr
    return folder


@pytest.fixture
def project(ran: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ran, tmp_path / "project", symlinks=True))


def newest(project: Path) -> Path:
    return Path(os.path.realpath(project / "runs" / "latest"))


def paths_of(value: Any, here: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Each place in nested JSON."""
    if here:
        yield here
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, child in items:
        yield from paths_of(child, (*here, key))


def forged(values: Any, path: tuple[str | int, ...], value: Any) -> Any:
    changed = copy.deepcopy(values)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


COMMANDS = ("runs", "watch", "diagnose", "report")


def shown(project: Path, report: Path, commands: Sequence[str] = COMMANDS) -> dict[str, int]:
    """The exit code of each command that reads a run; 3 is a bug of trainwiz."""
    words = {"report": ["--output", str(report)]}
    return {command: trainwiz([command, str(project), *words.get(command, [])]) for command in commands}


@pytest.mark.parametrize("record", ["command", "outcome"])
def test_forged_records_are_shown_or_left_out(
    record: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = newest(project) / f"{record}.json"
    values = json.loads(file.read_text())
    places = list(paths_of(values))
    assert len(places) > 20
    bugs = []
    values_of = itertools.cycle(enumerate(FORGED))
    met: dict[str, set[int]] = {command: set() for command in COMMANDS}
    # Eleven values and three each: every command meets every place, and over the places every value.
    for path, commands in itertools.product(places, SEVERAL):
        which, value = next(values_of)
        file.write_text(json.dumps(forged(values, path, value)))
        codes = shown(project, tmp_path / "report.html", commands)
        for command in commands:
            met[command].add(which)
        out, err = capsys.readouterr()
        bugs += [f"{name}: {path} = {value!r:.30}" for name, code in codes.items() if code not in (0, 1, 2)]
        bugs += [f"escape: {path}" for text in (out, err) if "\x1b[31m" in text or "\x9b" in text]
    assert not bugs, "\n".join(bugs)
    assert all(len(values) == len(FORGED) for values in met.values())


def test_a_log_commands_no_terminal(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = newest(project) / "logs" / "rank-0.log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\r\x1b]52;c;QUJD\x07\xc2\x9b2J\xe2\x80\xae\n")
    assert trainwiz(["logs", str(project)]) == 0
    assert capfd.readouterr().out.encode() == log.read_bytes()  # a pipe gets each byte
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert trainwiz(["logs", str(project)]) == 0
        shown = os.read(master, 4096).decode()
    os.close(master)
    assert shown == "\x1b[31mred\x1b[0m\r�]52;c;QUJD��2J�\r\n"


def test_a_run_that_lasted_longer_than_calendars_is_reported(project: Path, tmp_path: Path) -> None:
    file = newest(project) / "outcome.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "seconds": 1e308}))
    assert set(shown(project, tmp_path / "report.html").values()) <= {0, 1}


KEYS = ("update", "loss", "lr", "tokens_per_second", "eval_loss", "mfu", "data_wait_share", "gpu_memory_peak_bytes")


def test_forged_metrics_are_shown_or_left_out(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = newest(project) / "metrics.jsonl"
    whole = file.read_text().splitlines()
    bugs = []
    for key, value in itertools.product(KEYS, FORGED):
        line = json.dumps({**json.loads(whole[-1]), **json.loads(whole[0]), key: value})
        file.write_text("\n".join([*whole, line, line.replace("Infinity", "1e999"), "[" * 60_000, "\0\x9b", ""]))
        codes = shown(project, tmp_path / "report.html")
        out, err = capsys.readouterr()
        bugs += [f"{name}: {key} = {value!r:.30}" for name, code in codes.items() if code not in (0, 1, 2)]
        bugs += [f"escape: {key}" for text in (out, err) if "\x1b[31m" in text or "\x9b" in text]
    assert not bugs, "\n".join(bugs)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


READ = {
    "runs/latest/metrics.jsonl": ("runs", "watch", "report"),
    "runs/latest/command.json": ("runs", "watch", "report", "diagnose"),
    "runs/latest/outcome.json": ("runs", "watch", "report", "diagnose"),
    "runs/latest/plan.yaml": ("report", "diff"),
    "runs/latest/logs/rank-0.log": ("logs", "diagnose"),
    "runs/latest/logs/rank-1.log": ("diagnose", "report"),
    "trainwiz.yaml": ("check", "launch", "init"),
    ".trainwiz/manifest.json": ("check", "init"),
    ".trainwiz/answers.json": ("init",),
    "train.py": ("lint", "check", "rehearse"),
    "accelerate.yaml": ("check",),
}
"""Files of a project, and the commands that read them."""


def test_a_pipe_in_a_model_s_folder_ends_chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "model.safetensors").write_bytes(len(names).to_bytes(8, "little") + names + bytes(4))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}')
    os.mkfifo(tmp_path / "tokenizer.json")
    assert trainwiz(["chat", str(tmp_path)]) == 1
    assert "tokenizer.json is not a regular file" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="Linux makes up these files")
def test_files_that_the_kernel_makes_up_are_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    """They say that they are regular and empty, and have no end."""
    for command in ("diagnose", "lint", "import"):
        assert trainwiz([command, "/proc/self/pagemap"]) == 2
        assert "/proc/self/pagemap cannot be read: not a regular file" in capsys.readouterr().err


def test_a_path_that_no_file_system_takes_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "lint", "diagnose", "report", "checkpoints"):
        assert trainwiz([command, "x" * 5000]) == 2, command
        error = capsys.readouterr().err
        assert "File name too long" in error
        assert len(error) < 1000


@pytest.mark.parametrize("label", ["[" + "-" * 60_000 + "1]", "[" + "1+" * 30_000 + "1j]", "[" + "()" * 30_000 + "]"])
def test_a_label_that_no_parser_takes_is_no_list(label: str) -> None:
    assert labels.no_tags([label], whole=False)


@pytest.mark.parametrize("make", [pipe, device])
def test_what_is_no_regular_file_is_not_waited_for(make: Callable[[Path], None], project: Path, tmp_path: Path) -> None:
    lines = []
    for name, commands in READ.items():
        for command in commands:
            folder = shutil.copytree(project, tmp_path / command / name, symlinks=True)
            (folder / name).unlink(missing_ok=True)
            (folder / name).parent.mkdir(exist_ok=True)
            make(folder / name)
            script = [str(folder / "train.py")]
            words = {
                "lint": script,
                "init": [str(folder), "--defaults", "--yes"],
                "diff": ["latest", "latest"],
                "report": [str(folder), "--output", str(tmp_path / "report.html")],
            }
            lines.append((name, command, [command, *words.get(command, [str(folder)])], folder))
    wrong = []
    for name, command, words, folder in lines:
        done = forked.run(words, cwd=folder, env={**os.environ, "TRAINWIZ_LANG": "en"}, timeout=120, memory=4 << 30)
        if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
            wrong.append(f"{command} with {name}: {done.returncode} {done.stderr[-300:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("make", [pipe, device])
@pytest.mark.parametrize("command", ["check", "launch", "submit"])
def test_what_is_no_regular_file_is_named_so(
    make: Callable[[Path], None], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "odd.yaml")
    language.choose(["--lang", "en"], {})
    assert trainwiz([command, str(tmp_path / "odd.yaml")]) == 2
    assert f"{tmp_path / 'odd.yaml'} is not a regular file" in capsys.readouterr().err


def test_links_that_form_a_circle_are_no_bug(project: Path, tmp_path: Path) -> None:
    for link in (newest(project) / "checkpoints", newest(project) / "logs" / "rank-7.log", tmp_path / "checkpoint-8"):
        shutil.rmtree(link, ignore_errors=True)
        link.symlink_to(link.name)
    circle = str(tmp_path / "checkpoint-8")
    lines = [*(["checkpoints", given] for given in (circle, str(project))), ["export", circle], ["chat", circle]]
    lines += [[name, str(project)] for name in ("runs", "stop", "watch")] + [["runs", "--prune", str(project)]]
    assert {words[0] for words in lines if trainwiz(words) not in (0, 1, 2)} == set()


BOMBS: dict[str, bytes] = {
    "a codec of bytes": b"# -*- coding: bz2 -*-\nx = 1\n",
    "a null": b"import torch\nx = '\0'\n",
    "many calls of one function": b"def save():\n    pass\nif accelerator.is_main_process:\n" + b"    save()\n" * 1500,
    "a deep operation": b"import torch\nx = " + b"-" * 50_000 + b"1\n",
    "a power": b"import torch\nx = Accelerator(gradient_accumulation_steps=9**9**9**9)\ny = 'x' * 10**12\n",
    "larger than any script": b"import torch\n" * 100_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_script_that_is_a_bomb_is_judged_or_refused(
    bomb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(BOMBS[bomb])
    began = time.process_time()
    assert trainwiz(["lint", str(script)]) in (0, 1, 2), capsys.readouterr().err
    assert time.process_time() - began < 3


@pytest.mark.parametrize("piece", ["0", "[rank0]: ", "\r", '  File "', "|1/2 [x]", "9" * 5000 + "\n"])
def test_a_line_without_end_is_diagnosed_in_time(piece: str) -> None:
    began = time.process_time()
    of_log(log_text.read("Traceback (most recent call last):\n" + piece * (100_000 // len(piece))), log="x.log")
    assert time.process_time() - began < 3
