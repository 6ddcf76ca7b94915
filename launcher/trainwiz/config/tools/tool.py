"""What a training tool's file is: how it is recognized, and which of its keys say what every tool says."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz.config.document import Document
from trainwiz.config.kinds import DeepSpeed
from trainwiz.config.tools.data_set import NamedData
from trainwiz.config.tools.job import Job

_STAGE_IN_NAME = re.compile(r"(?:zero|(?<![a-z0-9])z|stage)[-_]?([0-3])(?![0-9])", re.IGNORECASE)
"""The ZeRO stage in names like `ds_z3_config.json` and `zero2_torch_compile.json`."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program that reads a training's settings from a file of its own."""

    name: str
    """Its name as its makers write it."""
    version: str
    """The version whose source the facts are from."""
    recognized: Callable[[Document], bool]
    """Whether a document is a file of it."""
    marks: str
    """The keys by which a file is recognized, in words for a person."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Its key for each thing that several tools say: the names are those of transformers' Trainer where it has one."""
    keys: Collection[str] = ()
    """Every key at the top that it reads; empty where this is not known."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Its defaults for the things of `words` that a file leaves out, as far as a plan has keys for them."""
    adapters: tuple[object, ...] = ("lora", "qlora")
    """The words of its key for adapters that mean LoRA."""
    usual_adapter: str = ""
    """The word that it takes where a file has no key for adapters; empty where it then trains all weights."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Older names of keys of `words`, which it still reads, by the newer ones."""
    alike: Mapping[str, Collection[Any]] = field(default_factory=dict)
    """Its keys, with the values for which a project does the same without being told; empty: all values."""
    interpolates: bool = False
    """Whether `${key}` in a value stands for another value of the file."""
    usual_task: str = "sft"
    """The task of trainwiz that a file means if it does not say one."""
    leaves_defaults: bool = False
    """Whether its defaults are those of transformers' Trainer."""
    stops_at_unknown_keys: bool = False
    """Whether it refuses a key that it does not know; else it ignores the key."""
    stops_at_duplicates: bool = False
    """Whether it refuses a key that is given twice; else the last one counts."""
    quantized: Callable[[Document], str | None] = lambda _: None
    """The key that makes it load the model in 8 or 4 bits; None where none does."""
    adapted: Callable[[Document], bool] = lambda _: True
    """Whether it trains an adapter, and not the model's own weights."""
    separated: Callable[[Document], str | None] = lambda _: None
    """The key that packs samples into rows in which they attend to each other; None where they do not."""
    job: Callable[[Document], Job | None] = lambda _: None
    """The machines and the launcher that a file asks for; None where it starts nothing."""
    evaluation_data: Callable[[Document], bool] = lambda _: True
    """Whether there is something to evaluate on."""
    of_plan: Callable[[Document], Iterable[tuple[str, str, Any]]] = lambda _: ()
    """What it says in a way of its own: its key, the plan's key for it, and the plan's value."""
    data: Callable[[ToolFile], Iterable[NamedData]] = lambda _: ()
    """The data that a file names."""
    catalogue: Callable[[Document], str | None] = lambda _: None
    """The path of another file, which says what the names of datasets stand for; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class ToolFile:
    """A file of a training tool."""

    document: Document
    """The text and its values."""
    tool: Tool
    """The tool that reads it."""
    deepspeed: DeepSpeed | None = None
    """The DeepSpeed file that it names, where it was found."""
    catalogue: Document | None = None
    """The file that says what its names of datasets stand for, where it was found."""

    @property
    def name(self) -> str:
        """The tool's name and version, as findings say them."""
        return f"{self.tool.name} {self.tool.version}"

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path."""
        return self.document.get(path, default)

    def has(self, path: str) -> bool:
        """Whether the file has this dotted path."""
        return self.document.has(path)

    def key(self, word: str) -> str:
        """The tool's key for a thing, in the spelling that the file has; empty where it has none."""
        key = self.tool.words.get(word, "")
        older = self.tool.older.get(key, "")
        return older if older and self.has(older) and not self.has(key) else key

    def value(self, word: str) -> Any:
        """What the file says for a thing; None where it says nothing."""
        return self.get(self.key(word)) if self.key(word) else None

    def on(self, word: str) -> bool:
        """Whether a thing is switched on."""
        return switched_on(self.value(word))

    def number(self, word: str) -> float | None:
        """What the file says for a thing, as a number; None where it is none."""
        return as_number(self.value(word))

    def count(self, word: str) -> int | None:
        """What the file says for a thing, as a positive whole number; None where it is none."""
        number = self.number(word)
        return int(number) if number is not None and number > 0 and number == int(number) else None

    @property
    def zero_stage(self) -> int | None:
        """The ZeRO stage, by the DeepSpeed file or else by its name; None where neither says one."""
        if self.deepspeed is not None:
            return self.deepspeed.stage
        named = self.deepspeed_file
        found = _STAGE_IN_NAME.search(named) if named else None
        return int(found[1]) if found else None

    @property
    def deepspeed_file(self) -> str | None:
        """What the file says of DeepSpeed: a path, or a word that the tool knows; None where it says nothing."""
        value = self.value("deepspeed")
        return value if isinstance(value, str) and value else None


def switched_on(value: Any) -> bool:
    """Whether a value means yes."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "yes", "on", "1"))


def as_number(value: Any) -> float | None:
    """A value as a number, also in quotes or as 1e-4, which YAML 1.1 reads as a string; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None
