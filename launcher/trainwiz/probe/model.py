"""The model of a plan: preset, local folder or hub id, with its size if that is cheap to determine."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.engines.transformers import mixes, predicts_nothing
from trainwiz.language import t
from trainwiz.probe import hub_model, size, weight_files
from trainwiz.probe.cache import HubCache, is_hub_id
from trainwiz.probe.data import located, missing
from trainwiz.probe.hub_model import HubModel
from trainwiz.probe.size import Size
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
_ADAPTER, _BASE = "adapter_config.json", "base_model_name_or_path"
"""The file of an adapter, and its key for the model that it was trained beside."""


@dataclass(frozen=True, kw_only=True)
class Looking:
    """Where a model is looked for."""

    root: Path
    """The project's folder, from which paths count."""
    cache: HubCache
    """The cache of downloaded models."""
    offline: bool = False
    """Whether the hub may not be asked."""
    told: int | None = None
    """The number of parameters that the plan states."""
    ask: Callable[[str], HubModel] = field(default=hub_model.look)
    """Asks the hub about a model that is not in the cache."""


def facts(name: str, looking: Looking, *, from_scratch: bool, task: Task) -> ModelFacts:
    """The facts about the model.

    Its size is that of its files, whatever the plan says; only for a model that is not here, and whose size the plan
    does not state, the hub is asked.
    """
    presets, root = task.presets, looking.root
    if name in presets:
        return _preset(name, presets[name], from_scratch)
    near = difflib.get_close_matches(name, presets, n=1)
    meant = t("no such model; did you mean {near}?", near=near[0]) if near else ""
    folder = located(root, name)
    try:
        if folder.is_dir():
            return _folder(name, folder, looking, from_scratch)
    except OSError as error:  # no permission, or a name that is too long
        return _missing(name, error.strerror or str(error))
    if task.backbones and "/" not in name:
        return _missing(name, meant or t("no such image model; networks of timm are named timm/NAME"))
    if is_hub_id(name, root):
        return _on_hub(name, looking)
    if name.startswith("~"):
        return _missing(name, t("~ is not expanded in a plan; write the full path"))
    if not meant and (Path(name) / "config.json").is_file():
        return _missing(name, missing(name, folder, root))
    return _missing(name, meant or t("not a preset, a folder or a hub id (organization/name)"))


def _on_hub(name: str, looking: Looking) -> ModelFacts:
    config = _json(looking.cache.file("models", name, "config.json"))
    found = size.of_files(lambda pattern: looking.cache.files("models", name, pattern), config) if config else Size()
    if not found.parameters and (base := _json(looking.cache.file("models", name, _ADAPTER)).get(_BASE)):
        found = _of_base(str(base), looking)
    return ModelFacts(
        name=name,
        kind="hub",
        **_quantized(name, looking),
        **_of_family(config if config or found.parameters else _asked(name, looking)),
        max_positions=_learned(config),
        cached=looking.cache.holds("models", name),
        **_fields(found if found.parameters else _elsewhere(name, looking)),
    )


def _asked(name: str, looking: Looking) -> Mapping[str, Any]:
    """The config.json that the hub has of a model; an empty one where it may not be asked."""
    return {} if looking.told or looking.offline else looking.ask(name).config or {}


def _of_family(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"mixes": mixes(config), "predicts_nothing": predicts_nothing(config)}


def _elsewhere(name: str, looking: Looking, *, on_hub: bool = True) -> Size:
    """The size of a model whose files do not say it."""
    by_name = size.of_name(name)
    if looking.told and looking.told == by_name.parameters:
        return by_name  # with its layers, where the table has them
    if looking.told:
        return replace(size.of_number(looking.told, "plan"), usual_parameters=by_name.parameters)
    if on_hub and not looking.offline and (found := size.of_hub(looking.ask(name))).parameters:
        return found
    return by_name


def _of_base(name: str, looking: Looking) -> Size:
    """The size of the model that an adapter was trained beside."""
    folder = located(looking.root, name)
    if config := _json(folder / "config.json"):
        found = size.of_files(lambda pattern: sorted(folder.glob(pattern)), config)
        return found if found.parameters else _elsewhere(name, looking)
    return Size(**_fields(_on_hub(name, looking))) if is_hub_id(name, looking.root) else _elsewhere(name, looking)


def _fields(found: Size | ModelFacts) -> dict[str, Any]:
    return {each.name: getattr(found, each.name) for each in fields(Size)}


def _json(file: Path | None) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    try:
        found = files.read_json(file) if file else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
        config = files.read_json(found) if found else None
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
    if isinstance(shape, NetworkShape):
        if not from_scratch:
            return _missing(name, _no_weights())
        return ModelFacts(name=name, kind="preset", parameters=shape.parameters, size_source="shape")
    if not from_scratch and not shape.hub_id:
        return _missing(name, _no_weights())
    return ModelFacts(
        name=name,
        kind="preset",
        parameters=shape.parameters,
        size_source="shape",
        transformer=shape.transformer,
        max_positions=shape.max_position_embeddings if shape.model_type in LEARNED_POSITIONS else None,
    )


def _no_weights() -> str:
    return t("has no published weights; set model.from_scratch to true to train it")


def _folder(name: str, folder: Path, looking: Looking, from_scratch: bool) -> ModelFacts:
    has_tokenizer = any((folder / file).is_file() for file in TOKENIZER_FILES) or any(folder.glob("*.tiktoken"))
    base = _json(folder / _ADAPTER).get(_BASE)
    if base and not (folder / "config.json").exists():
        # transformers loads the model that the adapter names, and the adapter.
        found = _of_base(str(base), looking)
        quantized = _quantized(str(base), looking)
        return ModelFacts(name=name, kind="folder", has_tokenizer=has_tokenizer, **quantized, **_fields(found))
    try:
        config = files.read_json(folder / "config.json")
    except OSError:
        return _missing(name, t("the folder has no config.json"))
    except ValueError as error:
        return _missing(name, t("config.json is not valid JSON: {problem}", problem=error))
    if not isinstance(config, dict):
        return _missing(name, t("config.json is not a JSON object"))
    if not from_scratch and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        return _missing(name, t("the folder has no weights (*.safetensors or *.bin)"))
    if not from_scratch and (problem := weight_files.problem(folder)):
        return replace(_missing(name, problem), remedy=weight_files.REMEDY)
    found = size.of_files(lambda pattern: sorted(folder.glob(pattern)), config)
    return ModelFacts(
        name=name,
        kind="folder",
        has_tokenizer=has_tokenizer,
        **_quantized(name, looking),
        **_of_family(config),
        max_positions=_learned(config),
        **_fields(found if found.parameters else _elsewhere(folder.name, looking, on_hub=False)),
    )


def _quantized(name: str, looking: Looking, beside: tuple[str, ...] = ()) -> dict[str, Any]:
    """The method of a model whose weights are quantized, as fields of `ModelFacts`; empty for others.

    For a model that is not here, the hub is asked, as for its size; for an adapter, its base counts. `beside` are the
    adapters that led here.
    """
    folder, on_hub = located(looking.root, name), is_hub_id(name, looking.root)

    def file(called: str) -> dict[str, Any]:
        return _json(folder / called) or (_json(looking.cache.file("models", name, called)) if on_hub else {})

    config = file("config.json")
    if not config and (base := file(_ADAPTER).get(_BASE)) and base not in (name, *beside):
        return _quantized(str(base), looking, (*beside, name))
    if not config and on_hub:
        config = dict(_asked(name, looking))
    text = config.get("text_config")  # transformers looks there, too
    told = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, Mapping) else None)
    if not isinstance(told, Mapping):
        return {}
    four_bits = told.get("load_in_4bit") and told.get("bnb_4bit_quant_type") == "nf4"
    nested = bool(four_bits and told.get("bnb_4bit_use_double_quant"))
    return {"quantized": str(told.get("quant_method") or "bitsandbytes"), "nested_nf4": nested}


def _learned(config: Mapping[str, Any]) -> int | None:
    """The positions of a model that learns them."""
    learned = config.get("model_type") in LEARNED_POSITIONS
    return _number(config, "max_position_embeddings", "n_positions") if learned else None


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)
