"""What a file that starts a training asks for: machines, GPUs, and the launcher with its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwiz.config import commands
from trainwiz.quantities import whole

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_OLD = re.compile(r"(?i)(?<![a-z0-9])(v100|t4|p100|p4|k80|m60|rtx[-_]?20\d0|titan[-_]?v)(?![0-9])")
"""GPUs from before 2020: https://developer.nvidia.com/cuda-gpus, compute capability below 8.0."""
_BF16 = re.compile(r"--bf16(?![ =]+(?:false|False|0))(?!\w)|mixed_precision[ =]+[\"']?bf16|--dtype[ =]+bf(?:loat)?16")
_NODES = re.compile(r"nnodes|num_machines|PET_NNODES|node_rank|machine_rank|rdzv")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training as the file that starts it says it."""

    machines: int | None = None
    """How many machines it asks for; None where this is not known."""
    gpus: int | None = None
    """How many GPUs it asks for on each of them."""
    gpu: str = ""
    """What the file says about the kind of GPU."""
    text: str = ""
    """The commands that run on each machine."""
    at: Mapping[str, str] = field(default_factory=dict)
    """The keys of the file at which `machines`, `gpu` and the `text` stand, by these names."""
    told: bool = False
    """Whether something other than the command tells the launcher of the other machines."""
    program: str = ""
    """The launcher; empty where none is started."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its options by name, with - as _."""

    def number(self, option: str) -> int | None:
        """An option as a number; None where it is none, or a variable."""
        return whole(str(self.options.get(option, "")))

    @property
    def knows_machines(self) -> bool:
        """Whether the launcher is told of the other machines."""
        return self.told or any(_NODES.search(option) for option in self.options)

    @property
    def old_gpu(self) -> str:
        """The name of a GPU without bf16, where the job asks for one."""
        found = _OLD.search(self.gpu)
        return found[1] if found else ""

    @property
    def bf16(self) -> bool:
        """Whether the command asks for bf16."""
        return bool(_BF16.search(self.text))


def launched(text: str) -> tuple[str, dict[str, str]]:
    """The first launcher in a text, and its options."""
    for command in commands.commands(text):
        names = [word.text.rpartition("/")[2] for word in command.words]
        at = next((i for i, name in enumerate(names) if name in LAUNCHERS), None)
        if at is not None and (names[at] != "accelerate" or "launch" in names):
            own = commands.Command(command.words[: _script(names, at)], {})
            return names[at], {key: value for key, (value, _) in own.arguments(at + 1).items()}
        for word in command.words:
            # Text in quotes may be a command; a backslash before a space neither makes a command nor ends a word.
            is_quoted = len(word.text) < word.span.end - word.span.start
            program, options = launched(word.text) if is_quoted and " " in word.text else ("", {})
            if program:
                return program, options
    return "", {}


def _script(names: list[str], at: int) -> int:
    """Where the launcher's own options end: at the program that it starts."""
    return next((i for i, name in enumerate(names) if i > at and name.endswith(".py")), len(names))


def count(value: Any) -> int | None:
    """A positive whole number, also in quotes; None for everything else."""
    return whole(str(value)) or None
