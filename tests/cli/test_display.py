"""Chinese on the terminal: whole sections, lines that fit, a live line that never wraps."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wcwidth

from trainwiz import language, rules
from trainwiz.cli import run
from trainwiz.message import Message
from trainwiz.ui.live import Progress, Screen, terminal_size
from trainwiz.wizard.interview import wrapped


@pytest.fixture(autouse=True)
def _chinese() -> Iterator[None]:
    language.choose(["--lang", "zh"], {})
    yield
    language.choose([], {})


def _waiting(outside: int) -> Iterator[bytes]:
    """What was written to the terminal; it may come in several pieces."""
    while select.select([outside], [], [], 0.2)[0]:
        yield os.read(outside, 1 << 16)


@contextlib.contextmanager
def terminal(patch: pytest.MonkeyPatch, width: int = 30) -> Iterator[Callable[[], str]]:
    """Standard output is a terminal of so many columns; gives what reads the text that it shows."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with os.fdopen(inside, "w") as stream, patch.context() as here:
        here.setattr(sys, "stdout", stream)
        here.setattr(sys, "__stdout__", stream)
        here.delenv("COLUMNS", raising=False)
        here.setenv("TERM", "xterm")
        here.setenv("NO_COLOR", "1")
        yield lambda: b"".join(_waiting(outside)).decode().replace("\r\n", "\n")
    os.close(outside)


@pytest.mark.parametrize("rule", [r.id for r in rules.load()])
def test_the_manual_keeps_its_four_sections_in_chinese(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--lang", "zh", "explain", rule]) == 0
    heads = [part.partition("：")[0] for part in capsys.readouterr().out.split("\n\n")[2:]]
    assert heads == ["不这样做", "原因", "正确做法", "来源"]


def test_the_list_of_rules_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        assert run(["--lang", "zh", "explain", "TW32"]) == 0
        lines = shown().splitlines()
    assert len(lines) > 4
    assert all(wcwidth.wcswidth(line) <= 30 for line in lines)
    assert all(line.startswith(("TW32", " " * 16)) for line in lines)


def test_help_of_a_key_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        assert run(["--lang", "zh", "explain", "data.num_workers"]) == 0
        _, *help = shown().splitlines()
    assert len(help) > 3
    assert all(line.startswith("    ") and wcwidth.wcswidth(line) <= 30 for line in help)


def test_the_live_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = [{"update": 12345, "loss": 1.2345, "tokens_per_second": 123456.7}]
    with terminal(monkeypatch) as shown:
        Screen(Progress(lambda: metrics, 999999)).tick()
        line = shown()
    assert "次更新" in line
    assert 25 < wcwidth.wcswidth(line) < 30


def test_a_progress_bar_is_narrower_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch):
        environ = terminal_size()
    program = "from tqdm import tqdm; bar = tqdm(total=9); bar.set_postfix(loss='5.4321'); bar.update(5); bar.close()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        env={**os.environ, **environ},
    )
    drawn = [line.rstrip() for line in done.stderr.replace("\r", "\n").split("\n") if line.strip()]
    assert len(drawn) > 1
    assert all(0 < wcwidth.wcswidth(line) < 30 for line in drawn), drawn


def test_a_projects_bar_is_redrawn_by_the_clock_and_not_by_the_update(tmp_path: Path) -> None:
    parts = Path(__file__).parents[2] / "train_templates" / "parts"
    program = (
        f"import sys, types; sys.path.insert(0, {str(parts)!r}); from metrics import Metrics\n"
        f"metrics = Metrics(types.SimpleNamespace(output_dir={str(tmp_path)!r}), True, 0, 2000)\n"
        "metrics.track = lambda record, step: None\n"
        "for i in range(2000): metrics.write({'update': i + 1, 'loss': 1.5, 'lr': 1e-3}); metrics.bar.update()\n"
        "metrics.bar.close()"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=120)
    seconds = time.monotonic() - began
    assert b"2000/2000" in done.stderr
    assert b"loss=1.5" in done.stderr
    assert done.stderr.count(b"\r") <= seconds + 4


def test_the_wizards_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    manual = Message(next(r.manual for r in rules.load() if r.id == "TW402"))
    lines = wrapped(manual, "  ✗ ").splitlines()
    assert all(wcwidth.wcswidth(line) <= 40 for line in lines)
    assert sum(wcwidth.wcswidth(line) > 34 for line in lines) > len(lines) // 2


def test_errors_fit_the_terminal_though_results_go_to_a_file(tmp_path: Path) -> None:
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    environ = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | {"TRAINWIZ_LANG": "zh", "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-m", "trainwiz", "init", "p"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=inside,
        cwd=tmp_path,
        env=environ,
        timeout=180,
        check=False,
    )
    lines = re.sub(r"\x1b\[[\d;]*m", "", b"".join(_waiting(outside)).decode()).splitlines()
    os.close(inside)
    os.close(outside)
    assert done.returncode == 2
    assert len(lines) > 8
    assert all(wcwidth.wcswidth(line) <= 50 for line in lines), lines


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])
def test_an_encoding_without_chinese_is_no_error(encoding: str) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "TRAINWIZ_LANG": "zh"}
    done = subprocess.run(
        [sys.executable, "-m", "trainwiz", "explain", "TW401"], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TW401")
    assert "?" in done.stdout
