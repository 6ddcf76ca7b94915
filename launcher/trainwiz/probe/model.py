"""The model of a plan: preset, local folder or hub id, with its size if that is cheap to determine."""

from __future__ import annotations

import difflib
import json
import math
import struct
from pathlib import Path
from typing import Any

from trainwiz.language import t
from trainwiz.probe.cache import HubCache, is_hub_id
from trainwiz.probe.data import located, missing
from trainwiz.project import Architecture, ModelFacts
from trainwiz.tasks import Task, shapes
from trainwiz.tasks.networks import NetworkShape
from trainwiz.tasks.task import Shape

LEARNED_POSITIONS = ("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bert", "distilbert", "electra")
"""Model types with a table of positions; a longer sequence is an index out of range."""
TOKENIZER_FILES = (
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""A folder with a tokenizer has some of these. ByT5's, whose tokens are bytes, has only a configuration."""
MOST_HEADER_BYTES = 100_000_000
"""The format's own limit: https://github.com/huggingface/safetensors#format"""


def facts(name: str, root: Path, cache: HubCache, *, from_scratch: bool, task: Task) -> ModelFacts:
    """The facts about the model; `root` is the project's folder."""
    presets = task.presets
    if name in presets:
        return _preset(name, presets[name], from_scratch)
    near = difflib.get_close_matches(name, presets, n=1)
    meant = t("no such model; did you mean {near}?", near=near[0]) if near else ""
    if not task.from_hub:
        return _missing(name, meant or t("no such image model"))
    folder = located(root, name)
    try:
        if folder.is_dir():
            return _folder(name, folder, from_scratch)
    except OSError as error:  # no permission, or a name that is too long
        return _missing(name, error.strerror or str(error))
    if is_hub_id(name, root):
        return ModelFacts(name=name, kind="hub", cached=cache.holds("models", name))
    if not meant and (Path(name) / "config.json").is_file():
        return _missing(name, missing(name, folder, root))
    return _missing(name, meant or t("not a preset, a folder or a hub id (organisation/name)"))


def architecture(name: str, root: Path, cache: HubCache) -> Architecture | None:
    """The sizes of a preset, or from the config.json of a local folder or a downloaded model; None if there is none.

    Nothing is downloaded.
    """
    shape = {**shapes.ENCODERS, **shapes.DECODERS}.get(name)
    if shape is not None:
        return Architecture(
            name=name,
            model_type=shape.model_type,
            heads=shape.num_attention_heads,
            key_value_heads=shape.num_key_value_heads,
            layers=shape.num_hidden_layers,
        )
    file = located(root, name) / "config.json"
    try:
        found = file if file.is_file() else cache.file("models", name, "config.json")
        config = json.loads(found.read_text(encoding="utf-8")) if found else None
    except (OSError, ValueError):
        return None
    return _architecture(name, config) if isinstance(config, dict) else None


def _architecture(name: str, config: dict[str, Any]) -> Architecture:
    # A model for pictures and texts has a language model for the sequences.
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    kind = str(text.get("model_type") or config.get("model_type") or "")
    types = text.get("layer_types")
    kinds = [str(one) for one in types] if isinstance(types, list) else []
    # Qwen's configurations have a window that is off by default.
    windowed = text.get("use_sliding_window", not kind.startswith("qwen")) is True
    if not kinds and windowed and isinstance(text.get("sliding_window"), int):
        kinds = ["sliding_attention"]
    return Architecture(
        name=name,
        model_type=kind,
        heads=_number(text, "num_attention_heads", "n_head", "n_heads", "num_heads"),
        key_value_heads=_number(text, "num_key_value_heads", "num_kv_heads", "n_head_kv"),
        layers=_number(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        layer_types=tuple(dict.fromkeys(kinds)),
    )


def _missing(name: str, detail: str) -> ModelFacts:
    return ModelFacts(name=name, kind="missing", detail=detail)


def _preset(name: str, shape: Shape, from_scratch: bool) -> ModelFacts:
    if not from_scratch and (isinstance(shape, NetworkShape) or not shape.hub_id):
        return _missing(name, t("has no published weights; set model.from_scratch to true to train it"))
    longest = None
    if not isinstance(shape, NetworkShape) and shape.model_type in LEARNED_POSITIONS:
        longest = shape.max_position_embeddings
    return ModelFacts(name=name, kind="preset", parameters=shape.parameters, max_positions=longest)


def _folder(name: str, folder: Path, from_scratch: bool) -> ModelFacts:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return _missing(name, t("the folder has no config.json"))
    except ValueError as error:
        return _missing(name, t("config.json is not valid JSON: {problem}", problem=error))
    if not isinstance(config, dict):
        return _missing(name, t("config.json is not a JSON object"))
    weights = sorted(folder.glob("*.safetensors"))
    if not from_scratch and not weights and not any(folder.glob("*.bin")):
        return _missing(name, t("the folder has no weights (*.safetensors or *.bin)"))
    learned = config.get("model_type") in LEARNED_POSITIONS
    return ModelFacts(
        name=name,
        kind="folder",
        parameters=_parameters(weights),
        has_tokenizer=any((folder / file).is_file() for file in TOKENIZER_FILES) or any(folder.glob("*.tiktoken")),
        max_positions=_number(config, "max_position_embeddings", "n_positions") if learned else None,
    )


def _number(config: dict[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _parameters(weights: list[Path]) -> int | None:
    """The parameters of all files, from their headers; None without weights or with a damaged file."""
    try:
        return sum(_in_file(file) for file in weights) or None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _in_file(file: Path) -> int:
    with file.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        if length > MOST_HEADER_BYTES:
            raise ValueError(f"{file}: a header of {length} bytes")
        header = json.loads(content.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
