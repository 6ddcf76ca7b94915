"""Documents, interpreted as the engine that reads them does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainwiz.config.document import Document
from trainwiz.engines.accelerate import (
    ACCELERATE_MARKS,
    CLUSTER_KEYS,
    COMMAND_LINE_ONLY,
    OLD_KEYS,
    REMOVED_KEYS,
    SAGEMAKER_KEYS,
)
from trainwiz.engines.deepspeed import DEEPSPEED_MARKS, TOP_LEVEL_KEYS, ZERO_KEYS
from trainwiz.quantities import whole

Kind = Literal["accelerate", "deepspeed", "plan", "tool_file", "unknown"]
Version = tuple[int, ...]
PARALLEL = "parallelism_config.parallelism_config_"
"""What the paths of sizes begin with."""


def version_of(text: str) -> Version:
    """`0.19.8+cpu` as (0, 19, 8), for comparing."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text.partition("+")[0])[:3])


@dataclass(frozen=True, kw_only=True)
class _Configuration:
    """A document for one engine."""

    document: Document
    """The text and its values."""
    version: Version
    """The version of the engine to judge it for."""

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path."""
        return self.document.get(path, default)

    def has(self, path: str) -> bool:
        """Whether the file has this dotted path."""
        return self.document.has(path)

    @property
    def shown_version(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))

    def section(self, path: str) -> Mapping[str, Any]:
        """The mapping at a dotted path, empty where there is none."""
        value = self.document.get(path)
        return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class Accelerate(_Configuration):
    """accelerate's YAML (or JSON)."""

    files: Mapping[str, str | None]
    """Each path named by the file, and where it was found; None where it was not."""
    hostfile: tuple[str, str] | None = None
    """The hostfile of DeepSpeed or of MPI, where one is named and found: its path from here, and its text."""
    programs: frozenset[str] | None = None
    """Programs that are on this machine, of those that start ranks on others; None: another machine is meant."""

    @property
    def kind(self) -> str:
        """`distributed_type` as accelerate takes it: an unquoted NO, which YAML reads as false, counts as NO."""
        value = self.get("distributed_type")
        return "NO" if value is False else value if isinstance(value, str) else ""

    @property
    def world(self) -> int | None:
        """`num_processes`, over all machines; None where it is not a positive number."""
        return self._count("num_processes", 1 if self.kind == "NO" else None)

    @property
    def machines(self) -> int:
        """`num_machines`."""
        return self._count("num_machines", 1) or 1

    @property
    def on_sagemaker(self) -> bool:
        """Whether it is for SageMaker."""
        return bool(self.get("compute_environment") == "AMAZON_SAGEMAKER")

    def size(self, path: str) -> int:
        """How many ranks share something, by the number at a dotted path; 1 where it is not a positive number."""
        return self._count(path, 1) or 1

    @property
    def block_decides(self) -> bool:
        """Whether DeepSpeed is told by `deepspeed_config` itself, and not by a file that it names."""
        return self.kind == "DEEPSPEED" and not self.deepspeed_file

    @property
    def deepspeed_file(self) -> str | None:
        """The DeepSpeed file that it names; None where it names none, or where nothing would read it."""
        path = self.get("deepspeed_config.deepspeed_config_file")
        named = isinstance(path, str) and path not in ("", "none")
        return path if named and self.kind == "DEEPSPEED" else None

    @property
    def launcher(self) -> str | None:
        """Which of DeepSpeed's launchers starts the ranks of several machines; None where accelerate's own does."""
        named = self.get("deepspeed_config.deepspeed_multinode_launcher") or "pdsh"
        return None if self.kind != "DEEPSPEED" or self.machines < 2 or named == "standard" else str(named)

    @property
    def hostfile_named(self) -> str | None:
        """The key of the hostfile that is read at the launch; None where none is."""
        key = {
            "DEEPSPEED": "deepspeed_config.deepspeed_hostfile",
            "MULTI_CPU": "mpirun_config.mpirun_hostfile",
            "NO": "mpirun_config.mpirun_hostfile",
        }.get(self.kind)
        return key if key and isinstance(self.get(key), str) and self.get(key) else None

    @property
    def fsdp(self) -> dict[str, tuple[str, Any]]:
        """FSDP's keys under their full names, each with its path in the file and its value; empty under other types."""
        if self.kind != "FSDP":
            return {}
        return {
            key if key.startswith("fsdp") else f"fsdp_{key}": (f"fsdp_config.{key}", value)
            for key, value in self.section("fsdp_config").items()
            if isinstance(key, str)
        }

    @property
    def fsdp_version(self) -> int:
        """1 unless the file says otherwise."""
        value = self.fsdp.get("fsdp_version", ("", 1))[1]
        return whole(str(value)) or 1

    def _count(self, path: str, default: int | None) -> int | None:
        value = self.get(path, default)
        return value if type(value) is int and value > 0 else None


@dataclass(frozen=True, kw_only=True)
class DeepSpeed(_Configuration):
    """DeepSpeed's JSON."""

    @property
    def stage(self) -> int | None:
        """The ZeRO stage, also in quotes, which DeepSpeed reads; None where it is none."""
        value = self.get("zero_optimization.stage", 0)
        return int(value) if type(value) in (int, str) and str(value) in ("0", "1", "2", "3") else None

    def enabled(self, block: str) -> bool:
        """Whether a block like bf16 is switched on, as pydantic reads it; `auto` counts as not known, so as no."""
        if block == "bf16" and not self.has("bf16"):
            block = "bfloat16"
        return str(self.get(f"{block}.enabled")).lower() in ("1", "1.0", "on", "t", "true", "y", "yes")


def kind_of(document: Document) -> Kind:
    """What a document is, by the keys in it."""
    keys = {key for key in document.values if isinstance(key, str)}
    if {"task", "engine", "strategy", "batch"} & keys and {"machine", "precision", "strategy", "batch"} & keys:
        return "plan"
    # Other programs (GPT-NeoX) put DeepSpeed's keys among more of their own.
    others = {key for key in keys - TOP_LEVEL_KEYS - ZERO_KEYS if not key.startswith(("_", "#", "//"))}
    deepspeeds = bool(keys & DEEPSPEED_MARKS) and len(others) <= len(keys & TOP_LEVEL_KEYS)
    if document.syntax == "json" and deepspeeds:
        return "deepspeed"
    # Hydra and OmegaConf fill these in before any engine reads them.
    deepspeeds = deepspeeds and "${" not in document.text
    # So do graphical trainers (kohya's) with accelerate's.
    accelerates = keys & (CLUSTER_KEYS | SAGEMAKER_KEYS | OLD_KEYS | REMOVED_KEYS | set(COMMAND_LINE_ONLY))
    if keys & ACCELERATE_MARKS and ("distributed_type" in keys or len(keys - accelerates) <= 2 * len(accelerates)):
        return "accelerate"
    return "deepspeed" if deepspeeds else "unknown"
