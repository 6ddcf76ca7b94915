"""The files of a project as a run used them."""

import stat
from pathlib import Path

import pytest

from trainwiz.store import code_files


def laid(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        file = folder / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_code_and_settings_are_kept_once_by_content(tmp_path: Path) -> None:
    laid(tmp_path, train_py="a", net__layers_py="b", trainwiz_yaml="c", other__trainwiz_yaml="d", other__x_py="d")
    laid(tmp_path, runs__x_py="e", output__x_py="f", __hidden="g")
    laid(tmp_path / "__pycache__", x_py="h")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "x.py").write_text("i")
    laid(tmp_path / "env", x_py="j").joinpath("pyvenv.cfg").write_text("")
    first = code_files.keep(tmp_path, frozenset())
    assert list(first.digests) == ["net/layers.py", "train.py", "trainwiz.yaml"]
    assert first.whole
    assert first == code_files.look(tmp_path) == code_files.keep(tmp_path, frozenset())
    kept = tmp_path / code_files.KEPT
    assert len(list(kept.iterdir())) == 3
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    (tmp_path / "train.py").write_text("changed")
    assert code_files.kept(tmp_path, first.digests["train.py"]) == b"a"
    assert code_files.present(tmp_path, "train.py", first.digests["train.py"]) is None


def test_a_secret_is_not_kept_and_damage_is_seen(tmp_path: Path) -> None:
    laid(tmp_path, train_py="key = 'hf_abcdefghijklmnop'", task_py="x = 'known secret'", batches_py="fine")
    found = code_files.keep(tmp_path, frozenset({"known secret"}))
    kept = {path: code_files.kept(tmp_path, digest) for path, digest in found.digests.items()}
    assert kept == {"train.py": None, "task.py": None, "batches.py": b"fine"}
    (tmp_path / code_files.KEPT / found.digests["batches.py"]).write_text("damaged")
    assert code_files.kept(tmp_path, found.digests["batches.py"]) is None


def test_a_folder_full_of_data_ends_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_files, "_MOST_ENTRIES", 20)
    laid(tmp_path, train_py="a")
    for i in range(30):
        laid(tmp_path, **{f"data__{i}_py": "x"})
    found = code_files.look(tmp_path)
    assert not found.whole
    assert "train.py" in found.digests


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 300, "..", ""])
def test_a_digest_that_names_no_file_was_not_kept(name: str, tmp_path: Path) -> None:
    assert code_files.kept(tmp_path, name) is code_files.present(tmp_path, name, name) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.py")
    laid(tmp_path, train_py="a")
    assert list(code_files.look(tmp_path).digests) == ["train.py"]
