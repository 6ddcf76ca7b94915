"""The weights in a model's folder, whole and not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainwiz.probe.weight_files import problem

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"


def shards(folder: Path) -> list[Path]:
    """Two files with weights, and their index."""
    files = [folder / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for file in files:
        save_file({file.stem: torch.arange(100.0)}, file)
    index = {"metadata": {}, "weight_map": {file.stem: file.name for file in files}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


def test_whole_weights(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "consolidated.safetensors").write_text(POINTER)  # in another format, which nothing loads
    assert problem(tmp_path) == ""
    save_file({}, tmp_path / "model.safetensors")
    assert problem(tmp_path) == ""


def test_a_shard_is_missing(tmp_path: Path) -> None:
    shards(tmp_path)[1].unlink()
    assert problem(tmp_path) == "its weights are incomplete: model-00002-of-00002.safetensors is missing"


@pytest.mark.parametrize("kept", [1, 8, 40, -1])
def test_a_file_is_cut_off(kept: int, tmp_path: Path) -> None:
    file = shards(tmp_path)[0]
    file.write_bytes(file.read_bytes()[:kept])
    said, held = problem(tmp_path), file.stat().st_size
    told = "1 byte" if held == 1 else f"{held} bytes"
    assert said.startswith(f"its weights are truncated: {file.name} has {told}, but its header says")


def test_git_lfs_did_not_download(tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model-00001-of-00001.bin"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(POINTER)
        index = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        assert problem(folder) == f"its weights were not downloaded: {name} is a pointer of Git LFS"


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {"a": 3}}', '{"weight_map": 5}'])
def test_an_index_that_cannot_be_read_says_nothing(index: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert problem(tmp_path) == ""
