"""How many parameters the weights of a model have, by the headers of their files.

A safetensors file begins with the shapes of its tensors: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwiz.files import opened, parsed_json, read_json

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_SCALES = re.compile(
    r"\.(qzeros|scales|g_idx|SCB|weight_format|weight_shape|weight_zero_point|weight_g_idx|\w*_scale(_inv|_\d)?|"
    r"absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+)$|_scales$|\.weight\.(absmax|\w*quant\w*)"
)
"""Tensors beside quantized weights, which hold no weights: of GPTQ, AWQ, bitsandbytes, compressed-tensors and mxfp4."""
_PACKED = re.compile(r"\.(qweight|weight_packed)$|_blocks$")
"""Tensors whose numbers hold several weights each."""
_BITS = {"U8": 8, "I8": 8, "I16": 16, "I32": 32, "I64": 64}
_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}

Header = Mapping[str, Any]
"""Each tensor by its name, with `dtype` and `shape`."""


def weight_bits(config: Mapping[str, Any]) -> int:
    """Bits of a packed weight, as the config.json of a quantized model says it."""
    told = config.get("quantization_config")
    if not isinstance(told, Mapping):
        return 4
    groups = told.get("config_groups")
    inner: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = inner.get("weights") if isinstance(inner, Mapping) else None
    bits = told.get("bits") or told.get("w_bit") or (weights or {}).get("num_bits")
    return bits if type(bits) is int and bits > 0 else 4


def weights_in(header: Header, bits: int) -> int:
    """The number of weights that a header describes; packed ones count by their `bits`."""
    return sum(_weights(name, told, header, bits) for name, told in header.items() if name != "__metadata__")


def _weights(name: str, told: Mapping[str, Any], header: Header, bits: int) -> int:
    if _SCALES.search(name):
        return 0
    numbers: int = math.prod(told["shape"])
    is_packed = _PACKED.search(name) or f"{name}.absmax" in header
    return numbers * _BITS[told["dtype"]] // bits if is_packed and told["dtype"] in _BITS else numbers


def parameters(files: Callable[[str], list[Path]], config: Mapping[str, Any]) -> int | None:
    """The weights in the files of a model; None where there are none, or one is damaged or missing.

    `files` gives those that match a pattern. Where an index names the shards, they count and no others: some models
    have their weights a second time, in another format.
    """
    bits = weight_bits(config)
    try:
        if index := files("model.safetensors.index.json"):
            shards = set(read_json(index[0])["weight_map"].values())
            found = [file for file in files("*.safetensors") if file.name in shards]
            if len(found) == len(shards):
                return sum(_in_file(file, bits) for file in found) or None
            return _by_size(_total_size(index[0]), config)
        found = files("model.safetensors") or files("*.safetensors")
        if found:
            return sum(_in_file(file, bits) for file in found) or None
        return _in_pickles(files, config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def header(file: Path) -> Header:
    """The header of a file. Raises `OSError`, `ValueError` and `struct.error`."""
    with opened(file) as content:
        (length,) = struct.unpack("<Q", content.read(8))
        if length > MOST_HEADER_BYTES:
            raise ValueError(f"{file}: a header of {length} bytes")
        said: Header = parsed_json(content.read(length))
        return said


def _in_file(file: Path, bits: int) -> int:
    return weights_in(header(file), bits)


def _in_pickles(files: Callable[[str], list[Path]], config: Mapping[str, Any]) -> int | None:
    """From the size of files that only torch can read."""
    if index := files("pytorch_model.bin.index.json"):
        return _by_size(_total_size(index[0]), config)
    found = files("pytorch_model.bin") or files("pytorch_model-*.bin")
    return _by_size(sum(file.stat().st_size for file in found), config)


def _total_size(index: Path) -> int:
    return int(read_json(index)["metadata"]["total_size"])


def _by_size(size: int, config: Mapping[str, Any]) -> int | None:
    if config.get("quantization_config"):
        return None
    kind = config.get("dtype") or config.get("torch_dtype") or "float32"
    return size // _BYTES[str(kind).removeprefix("torch.")] or None
