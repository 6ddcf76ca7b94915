"""Whether the weights in a model's folder are complete, by their names, sizes and headers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from trainwiz.files import opened, parsed_json, read_json
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.probe.headers import MOST_HEADER_BYTES

_POINTER = b"version https://git-lfs"
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
REMEDY = say("download or copy the folder again: hf download NAME --local-dir FOLDER, or git lfs pull in a clone")


def problem(folder: Path) -> str:
    """What of the weights is missing or damaged; empty if nothing is found. Nothing large is read."""
    try:
        return next(_problems(folder), "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""  # an index that cannot be read is left to the loader


def _problems(folder: Path) -> Iterator[str]:
    found = [folder / name for name in _shards(folder)] or sorted(folder.glob("*.safetensors"))
    for file in found:
        if not file.is_file():
            yield t("its weights are incomplete: {file} is missing", file=file.name)
        elif _is_pointer(file):
            yield t("its weights were not downloaded: {file} is a pointer of Git LFS", file=file.name)
        elif file.suffix == ".safetensors" and (told := _bytes(file)) and told > (size := file.stat().st_size):
            yield t(
                "its weights are truncated: {file} has {size} bytes, but its header says {told}",
                file=file.name,
                size=size,
                told=told,
            )


def _shards(folder: Path) -> list[str]:
    """The files that an index names; as transformers does, safetensors before others."""
    if any(folder.glob("model.safetensors")):
        return ["model.safetensors"]
    index = next((folder / name for name in _INDEXES if (folder / name).is_file()), None)
    return sorted(set(read_json(index)["weight_map"].values())) if index else []


def _is_pointer(file: Path) -> bool:
    with opened(file) as content:
        return content.read(len(_POINTER)) == _POINTER


def _bytes(file: Path) -> int | None:
    """The size that the header of a safetensors file implies: https://github.com/huggingface/safetensors#format."""
    with opened(file) as content:
        try:
            length: int = struct.unpack("<Q", content.read(8))[0]
        except struct.error:
            return 8
        if length > MOST_HEADER_BYTES:
            return None
        raw = content.read(length)
    if len(raw) < length:
        return 8 + length
    ends: list[int] = [told["data_offsets"][1] for name, told in parsed_json(raw).items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)
