"""Files of checkpoints and models that strangers made up, as in tests/test_fuzz.py: archives, indices, headers."""

import contextlib
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from test_fuzz import BOUNDED, VALUES, _in_bounds, changed, dumped, quickly

from trainwiz import resources
from trainwiz.probe import untrusted_model, weight_files
from trainwiz.probe.inside import gather_weights

__all__ = ["_in_bounds"]  # holds time and memory of every test here, too
trust: Any = gather_weights.loaded(resources.train_templates() / "parts" / "trust.py")


def archive() -> bytes:
    """What training programs write."""
    file = io.BytesIO()
    torch.save({"state": {0: {"step": 1.0, "m": torch.zeros(999)}}, "tied": [torch.ones(3)] * 2}, file)
    return file.getvalue()


ARCHIVE = archive()
NUMBERS = st.sampled_from([0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 1 << 30]) | st.integers(0, 0xFFFFFFFF)
PLACES = st.integers(0, len(ARCHIVE)) | st.integers(len(ARCHIVE) - 600, len(ARCHIVE))
"""The directory is at the end."""


@BOUNDED
@given(
    numbers=st.lists(st.tuples(PLACES, st.sampled_from([2, 4, 8]), NUMBERS), max_size=4),
    cut=st.none() | st.integers(0, len(ARCHIVE)),
    behind=st.binary(max_size=40),
)
def test_archives(
    numbers: list[tuple[int, int, int]],
    cut: int | None,
    behind: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    content = bytearray(ARCHIVE)
    for place, width, number in numbers:
        content[place : place + width] = number.to_bytes(8, "little")[:width]
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "rank-0.pt").write_bytes(bytes(content[:cut]) + behind)

    def read() -> None:
        with contextlib.suppress(Exception), trust.known_classes_only(folder):
            torch.load(folder / "rank-0.pt", map_location="cpu", weights_only=False)

    quickly(read)


@BOUNDED
@given(start=st.binary(max_size=30), value=VALUES, protocol=st.integers(0, 5), again=st.integers(0, 99))
def test_indices(
    start: bytes, value: object, protocol: int, again: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    whole_index = pickle.dumps([value] * again, protocol)
    for content in (whole_index, whole_index[: len(start)] + start, b"\x80\x04" + start + whole_index):
        (folder / ".metadata").write_bytes(content)

        def read() -> None:
            with contextlib.suppress(Exception), trust.known_classes_only(folder):
                pass

        quickly(read)


TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "architectures": ["LlamaForCausalLM"]}


@BOUNDED
@given(
    header=changed({"a": TENSOR, "b": {**TENSOR, "data_offsets": [24, 48]}, "__metadata__": {"format": "pt"}}),
    config=changed(CONFIG),
    length=st.none() | st.sampled_from([0, 1 << 26, 1 << 40, (1 << 64) - 1]),
    pipe=st.sampled_from(["", "tokenizer.json", "special_tokens_map.json"]),
)
@example(header={"a": {**TENSOR, "data_offsets": []}}, config=CONFIG, length=None, pipe="")
def test_folders_of_strangers(
    header: dict[str, Any],
    config: dict[str, Any],
    length: int | None,
    pipe: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("model")
    names = dumped(header).encode(errors="replace")
    size = len(names) if length is None else length
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + names + bytes(48))
    (folder / "config.json").write_text(json.dumps(config), errors="replace")
    if pipe:
        os.mkfifo(folder / pipe)
    quickly(lambda: untrusted_model.problem(folder))
    quickly(lambda: weight_files.problem(folder))
    if pipe:
        assert untrusted_model.problem(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")
    assert untrusted_model.problem(folder)


def test_what_save_pretrained_writes_is_not_odd(tmp_path: Path) -> None:
    names = json.dumps({"a": TENSOR, "b": {**TENSOR, "data_offsets": [24, 48]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(names).to_bytes(8, "little") + names + bytes(48))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert untrusted_model.problem(tmp_path) == ""
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1, "max_window_layers": 28}')
    assert untrusted_model.problem(tmp_path) == "", "a small Qwen2 as transformers saves it"
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "text_config": {"num_hidden_layers": 10**9}}))
    assert "num_hidden_layers is 1000000000 in config.json" in untrusted_model.problem(tmp_path)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"attn_implementation": "them/kernel"}, "attn_implementation"),
        ({"_attn_implementation": "paged|them/kernel@main:f"}, "_attn_implementation"),
        ({"text_config": {"attn_implementation": {"": "them/kernel"}}}, "text_config.attn_implementation"),
        ({"experts_implementation": "them/kernel"}, "experts_implementation"),
    ],
)
def test_a_configuration_that_names_code_on_the_hub_is_odd(config: dict[str, Any], where: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    assert f"{where} in config.json names code on the hub: " in untrusted_model.problem(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"attn_implementation": "flash_attention_2"}))
    assert untrusted_model.problem(tmp_path) == ""
