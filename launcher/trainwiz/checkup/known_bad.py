"""Pairs of versions that can be installed together but do not work together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainwiz.finding import Level
from trainwiz.machine import Interpreter
from trainwiz.message import Message, say
from trainwiz.rules.versions import parts

_RANGE = re.compile(r"(?P<name>[\w-]+)(?P<bound><|>=)(?P<version>[\d.]+)")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two packages that do not work together."""

    ranges: tuple[str, str]
    """Each with its versions: `deepspeed<0.16`, `torch>=2.6`."""
    message: Message
    """What fails."""
    requirement: str
    """What to install instead, as pip takes it."""
    level: Level
    """How serious the failure is."""
    source: str
    """Where the failure is documented."""

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two packages."""
        first, second = (_parsed(each)["name"] for each in self.ranges)
        return first, second

    def meets(self, interpreter: Interpreter) -> bool:
        """Whether both are installed in versions within these ranges."""
        return all(_is_within(interpreter, _parsed(each)) for each in self.ranges)


KNOWN_BAD = (
    Pair(
        ranges=("deepspeed<0.14.1", "torch>=2.4"),
        message=say(
            "`import deepspeed` fails: ImportError: cannot import name 'log' from "
            "'torch.distributed.elastic.agent.server.api'"
        ),
        requirement="deepspeed>=0.16",
        level=Level.ERROR,
        source="https://github.com/deepspeedai/DeepSpeed/issues/5337",
    ),
    Pair(
        ranges=("deepspeed<0.16", "torch>=2.6"),
        message=say(
            "ZeRO checkpoints cannot be loaded again: torch.load rejects them (weights_only now defaults to True)"
        ),
        requirement="deepspeed>=0.16",
        level=Level.WARNING,
        # 0.16.0's torch_checkpoint_engine.py passes weights_only=False, 0.15.4's does not.
        source="https://github.com/pytorch/pytorch/pull/137602",
    ),
    Pair(
        ranges=("torch<2.6", "transformers>=4.52"),
        message=say("with torch older than 2.6, transformers rejects weights in .bin files and only loads safetensors"),
        requirement="torch>=2.6",
        level=Level.WARNING,
        source="https://nvd.nist.gov/vuln/detail/CVE-2025-32434; https://github.com/hiyouga/LlamaFactory/issues/8379",
    ),
    Pair(
        ranges=("colossalai>=0.5", "transformers>=4.52"),
        message=say("Colossal-AI's model policies patch methods of transformers 4.51.3, the version it requires"),
        requirement="transformers==4.51.3",
        level=Level.WARNING,
        source="https://github.com/hpcaitech/ColossalAI/blob/v0.5.0/requirements/requirements.txt",
    ),
    Pair(
        ranges=("numpy>=2", "torch<2.3"),
        message=say("this torch was compiled for NumPy 1 and fails on NumPy 2 arrays"),
        requirement="numpy<2",
        level=Level.ERROR,
        source="https://github.com/numpy/numpy/issues/26191",
    ),
)
"""Each is documented in its source."""


def known_bad(interpreter: Interpreter) -> Iterator[Pair]:
    """The pairs that are installed here."""
    return (pair for pair in KNOWN_BAD if pair.meets(interpreter))


def _parsed(versions: str) -> re.Match[str]:
    match = _RANGE.fullmatch(versions)
    assert match, versions
    return match


def _is_within(interpreter: Interpreter, versions: re.Match[str]) -> bool:
    installed = interpreter.version(versions["name"])
    if installed is None:
        return False
    return (parts(installed) < parts(versions["version"])) == (versions["bound"] == "<")
