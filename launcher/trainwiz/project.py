"""The surroundings of a plan on this machine: its folder, data, model, ports and locks. Types only.

`probe.project` fills them in. None: not looked at, or cannot be known here (a hub id, offline).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz.message import Message
from trainwiz.models import Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """About how much own data there is, from the first rows of its files and their sizes."""

    documents: int
    """Rows: documents, conversations, pairs of answers, labeled texts or pictures."""
    different: int
    """How many of them are distinct."""
    tokens: int
    """Of all texts together."""
    lengths: tuple[int, ...] = field(default=(), compare=False)
    """Tokens of each row that was read; empty where rows hold no texts."""
    exact: bool = field(default=False, compare=False)
    """Whether every row was read, so that the numbers of rows are not estimates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """One dataset of the plan."""

    name: str
    """As the plan names it."""
    kind: str
    """embedded, file, folder, hub, part (of the training data) or missing."""
    samples: int | None = None
    """The number of samples that the task makes of it, if that is cheap to determine."""
    samples_at_most: int | None = None
    """An upper bound of that number, from the size in bytes."""
    detail: str = ""
    """Why it cannot be used; empty: no reason is known."""
    remedy: Message | None = None
    """What makes it usable; None: nothing better is known than what the task reads."""
    cached: bool | None = None
    """Whether a hub id is in the local cache."""
    parts: tuple[str, ...] = ()
    """Folders or files inside that split it for training and evaluation, by their names or the words in these."""
    evaluation_part: str = ""
    """The one of them that is for evaluation."""
    left_out: tuple[str, ...] = ()
    """Files of a folder in formats that are not read."""
    unnamed: tuple[str, ...] = ()
    """Files of a folder that are not read, because others are named as training and as evaluation data."""
    shared: str = ""
    """Of evaluation data: a file that is training data, too; empty: none is known."""
    first: Mapping[str, Any] = field(default_factory=dict)
    """The columns of its first row, with their values; empty where they are not known."""
    packages: tuple[str, ...] = ()
    """Packages that read it."""
    picture_size: int | None = None
    """Pixels along each edge of the pictures in arrays, which are not resized; None: there are none, or not square."""
    amount: Amount | None = None
    """About how much it is; None for embedded data, and where that would take long to find out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """The model of the plan."""

    name: str
    """As the plan names it."""
    kind: str
    """preset, folder, hub or missing."""
    parameters: int | None = None
    """The number of its parameters."""
    size_source: str | None = None
    """What that number is known from: shape (a preset's), files, config, hub, table, plan or name; None: unknown."""
    usual_parameters: int | None = None
    """If the plan gives the size: the size by the table of well-known models, or by the name."""
    transformer: Transformer | None = None
    """Its layers; of a language model that also reads pictures, the language model alone."""
    assumed: bool = False
    """Its layers are those of a usual model with this many parameters, since no config.json describes them."""
    mixes: str = ""
    """Its family and kinds of layers, where documents in one row would see each other; empty: none is known."""
    predicts_nothing: bool = False
    """Its config.json is that of an encoder, or of a decoder without its encoder: it cannot learn to write."""
    has_tokenizer: bool | None = None
    """Whether a folder holds a tokenizer's files; None where nobody looked."""
    quantized: str = ""
    """The method that its weights are quantized by, as its config.json names it (gptq, fp8); empty: none is known."""
    nested_nf4: bool = False
    """They are in 4 bits as QLoRA makes them with bitsandbytes: NF4, with scales that are quantized, too."""
    max_positions: int | None = None
    """The longest sequence in tokens, for models that learn their positions; others have no such limit."""
    detail: str = ""
    """Why it cannot be used; empty: no reason is known."""
    remedy: Message | None = None
    """What makes it usable; None: another model."""
    cached: bool | None = None
    """Whether a hub id is in the local cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The sizes in a model's configuration that parallelism divides; None: not given."""

    name: str
    """As the plan or the user names the model."""
    model_type: str = ""
    """transformers' name of the architecture: llama, qwen3."""
    heads: int | None = None
    """Attention heads of a layer."""
    key_value_heads: int | None = None
    """Of a layer."""
    layers: int | None = None
    """Transformer layers."""
    layer_types: tuple[str, ...] = ()
    """The kinds of attention of its layers, each once."""

    @property
    def kv(self) -> int | None:
        """Key-value heads; by default as many as attention heads."""
        return self.key_value_heads or self.heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """A field of the script's configuration that has another value than the plan gives it."""

    key: str
    """The plan's key; empty: the field follows from several."""
    field: str
    """Its name in Config or TaskConfig."""
    planned: str
    """The plan's value."""
    scripted: str
    """The script's value."""
    file: str
    """The file that declares it."""
    line: int = 0
    """Where; 0: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A project folder and its surroundings, as they are now."""

    folder: str
    """Its path, as it was typed."""
    train: DataFacts | None = None
    """The training data; None: not looked at."""
    eval: DataFacts | None = None
    """The evaluation data; None: there is none, or it was not looked at."""
    model: ModelFacts | None = None
    """The model that the plan names; None: not looked at."""
    offline: bool = False
    """Whether the environment forbids access to the hub (HF_HUB_OFFLINE)."""
    hub_token: bool | None = None
    """Whether the hub's client finds an access token; None: not looked for."""
    missing_files: tuple[str, ...] = ()
    """Generated files that were deleted."""
    changed_files: tuple[str, ...] = ()
    """Generated files that were edited."""
    stale_files: tuple[str, ...] = ()
    """Generated files that the plan would now render differently."""
    disagreements: tuple[Disagreement, ...] = ()
    """Values in edited scripts that are not the plan's."""
    unwritten: tuple[tuple[str, str, int], ...] = ()
    """Functions of edited scripts that only say that they are to be written: file, name and line."""
    own_functions: tuple[tuple[str, str, int], ...] = ()
    """The functions of an edited task.py: file, name and line."""
    conflict_markers: tuple[tuple[str, int], ...] = ()
    """Places of changed files where a merge left both sides of a conflict: path, and line from 1."""
    kept_files: tuple[str, ...] = ()
    """Scripts that were kept while the plan changed more than values in them, and not edited since."""
    port_in_use: int | None = None
    """The planned rendezvous port, if another process listens on it."""
    reads_bytes: bool = False
    """The model reads bytes, and has no tokenizer."""
    chat_template: str = ""
    """Why the plan's chat template cannot be used; empty: no reason is known."""
    new_tokens: tuple[str, ...] = ()
    """Tokens of the plan that the model's tokenizer is known to lack."""
    build_locks: tuple[str, ...] = ()
    """Lock files left by builds of DeepSpeed's ops that no longer run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFolder:
    """One folder of tokenized data."""

    path: str
    """Where it is."""
    data: str
    """The data, as the project that tokenized it named it; empty where it is unfinished."""
    tokens: int
    """How many there are so far."""
    size_bytes: int
    """With all rows that were made of it."""
    used: float
    """When a training last read it, in seconds since 1970; for an unfinished one, when it was last written."""
    complete: bool
    """Whether all of the data is tokenized."""
    busy: bool
    """Whether a process is writing it."""


def is_part(name: str | None) -> bool:
    """Whether a setting names a part of the training data: `5%` or `200`."""
    return name is not None and re.fullmatch(r"\d+(\.\d+)?%|\d+", name.strip()) is not None


def share_of(part: str, documents: int) -> float:
    """The share of the documents that such a setting keeps for evaluation, at most 1."""
    number = float(part.strip().rstrip("%"))
    return min(1.0, number / 100 if part.strip().endswith("%") else number / max(1, documents))
