"""What lies around a plan on this machine: its folder, data, model, ports and locks. Types only.

`probe.project` fills them in. None means: not looked at, or cannot be known here (a hub id, offline).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """One data set as the plan names it. `kind`: embedded, file, folder, hub or missing.

    `detail` says why it cannot be used, empty where nothing speaks against it. `samples` counts what the task would
    make of it, where that is cheap to know; `samples_at_most` bounds it where only the bytes are known. `cached`:
    whether a hub id lies in the local cache.
    """

    name: str
    kind: str
    samples: int | None = None
    samples_at_most: int | None = None
    detail: str = ""
    cached: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """The model as the plan names it. `kind`: preset, folder, hub or missing.

    `max_positions` is set only where a longer sequence fails: for models that learn their positions.
    """

    name: str
    kind: str
    parameters: int | None = None
    hidden_size: int | None = None
    num_layers: int | None = None
    vocab_size: int | None = None
    max_positions: int | None = None
    detail: str = ""
    cached: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """What a model's configuration says of all that parallelism divides. None: it does not say.

    `layer_types` are the kinds of attention that its layers have, each once.
    """

    name: str
    model_type: str = ""
    heads: int | None = None
    key_value_heads: int | None = None
    layers: int | None = None
    layer_types: tuple[str, ...] = ()

    @property
    def kv(self) -> int | None:
        """Key-value heads; as many as attention heads where nothing else is said."""
        return self.key_value_heads or self.heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A project folder and its surroundings, as they are now."""

    folder: str
    train: DataFacts | None = None
    eval: DataFacts | None = None
    model: ModelFacts | None = None
    offline: bool = False
    """The environment forbids to ask the hub (HF_HUB_OFFLINE)."""
    missing_files: tuple[str, ...] = ()
    changed_files: tuple[str, ...] = ()
    """Generated files that differ from what was generated."""
    stale_files: tuple[str, ...] = ()
    """Generated files that the plan, as it is now, would render differently."""
    port_in_use: int | None = None
    """The planned rendezvous port, if something listens on it."""
    build_locks: tuple[str, ...] = ()
    """Lock files of a DeepSpeed build that nobody is running any more."""
