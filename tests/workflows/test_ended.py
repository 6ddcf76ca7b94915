"""Signals in the midst of commands that write: nothing half-written stays, nothing runs on, the exit code is true."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience
from test_checkpoints_command import TASK, write
from test_training import wait_for

PYTHON = """#!/bin/sh
case "$1" in
*gather_weights.py)
    mkdir -p "$4"
    echo weights > "$4/model.safetensors"
    [ -e {folder}/uploads ] && echo '{{"tensors": 1, "known": 1, "size_bytes": 8, "different": []}}' && exit
esac
echo $$ > {folder}/pid
exec sleep 120
"""
"""A Python that takes its time to gather weights or, with a file `uploads`, to upload them."""


def started(folder: Path, *words: str, ignored: tuple[int, ...] = ()) -> "subprocess.Popen[str]":
    """An export that is at the slow part."""
    (folder / "task.py").write_text(TASK)
    write(folder / "output", 3)
    python = folder / "python"
    python.write_text(PYTHON.format(folder=folder))
    python.chmod(0o755)
    command = [sys.executable, "-m", "trainwiz", "export", str(folder), "--python", str(python), *words]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TRAINWIZ_LANG": "en"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_IGN) for each in ignored],
    )
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text().endswith("\n"))
    return process


TALKER = """#!/bin/sh
echo $$ > {folder}/pid
echo '{{"ready": {{"parameters": 1, "dtype": "float32", "device": "cpu", "chat": true}}}}'
read question
echo '{{"piece": "begun"}}'
[ -e {folder}/listens ] && read stop && echo '{{"end": {{"tokens": 1, "seconds": 1, "reason": "stopped"}}}}' && read on
exec sleep 120
"""
"""A Python with a model that answers without end, and with a file `listens` stops when it is told to."""


@contextlib.contextmanager
def talking(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A talk in the midst of an answer."""
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    python = folder / "python"
    python.write_text(TALKER.format(folder=folder))
    python.chmod(0o755)
    command = [sys.executable, "-m", "trainwiz", words[0], str(folder), "--python", str(python), *words[1:]]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env={**os.environ, "TRAINWIZ_LANG": "en"}, text=True, **pipes) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("one?\ntwo?\n")
        process.stdin.flush()
        assert process.stdout.read(5) == "begun"
        yield process


def is_gone(folder: Path) -> bool:
    return not Path("/proc", (folder / "pid").read_text().strip()).exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_written(signum: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path) as process:
        assert list((tmp_path / "exported").glob(".checkpoint-*/model/model.safetensors"))
        process.send_signal(signum)
        _, err = process.communicate(timeout=20 * patience())
    assert (process.returncode, f"ended by {signum.name}" in err) == (128 + signum, True), err
    assert not list((tmp_path / "exported").iterdir())
    wait_for(lambda: is_gone(tmp_path))


@pytest.mark.parametrize(
    ("signum", "words"),
    [
        (signal.SIGTERM, ("chat",)),
        (signal.SIGHUP, ("sample", "one?", "--times", "99")),
        (signal.SIGINT, ("chat",)),
    ],
)
def test_a_signal_ends_a_talk_and_its_model(signum: signal.Signals, words: tuple[str, ...], tmp_path: Path) -> None:
    """The first Ctrl-C asks a model to stop, the second one does not wait for it."""
    with talking(tmp_path, *words) as process:
        process.send_signal(signum)
        if signum == signal.SIGINT:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.send_signal(signum)
        _, err = process.communicate(timeout=20 * patience())
    says = "" if signum == signal.SIGINT else f"ended by {signum.name}"
    assert (process.returncode, says in err) == (128 + signum, True), err
    assert is_gone(tmp_path)


@pytest.mark.parametrize("words", [("chat",), ("sample", "one?", "--times", "99")])
def test_with_nobody_there_a_stopped_answer_is_the_last(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "listens").touch()
    with talking(tmp_path, *words) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20 * patience())
    assert (process.returncode, "[stopped]" in err, is_gone(tmp_path)) == (130, True, True), err


def test_a_lost_terminal_ends_an_upload_and_keeps_the_model(tmp_path: Path) -> None:
    (tmp_path / "uploads").touch()
    with started(tmp_path, "--push", "me/mine") as process:
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=20 * patience())
    model = tmp_path / "exported" / "checkpoint-00000003"
    assert process.returncode == 128 + signal.SIGHUP
    assert f"SIGHUP: the upload was stopped; the model is in {model}" in err
    assert [path.name for path in model.iterdir()] == ["model.safetensors"]
    wait_for(lambda: is_gone(tmp_path))


def test_with_nohup_it_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, ignored=(signal.SIGHUP,)) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        assert process.wait(20 * patience()) == 128 + signal.SIGTERM
