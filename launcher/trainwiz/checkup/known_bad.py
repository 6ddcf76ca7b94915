"""Pairs of versions that can be installed together but do not work together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwiz.finding import Level
from trainwiz.machine import Interpreter
from trainwiz.message import Message, say
from trainwiz.rules.versions import parts


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two packages with the ranges of versions that do not work together; None: no bound."""

    first: str
    second: str
    first_below: str | None = None
    first_at_least: str | None = None
    second_below: str | None = None
    second_at_least: str | None = None
    message: Message
    """What fails."""
    requirement: str
    """What to install instead, as pip takes it."""
    level: Level
    source: str
    """Where the failure is documented."""

    def meets(self, interpreter: Interpreter) -> bool:
        """Whether both are installed in versions within these ranges."""
        return _within(interpreter.version(self.first), self.first_at_least, self.first_below) and _within(
            interpreter.version(self.second), self.second_at_least, self.second_below
        )


KNOWN_BAD = (
    Pair(
        first="deepspeed",
        first_below="0.14.1",
        second="torch",
        second_at_least="2.4",
        message=say(
            "`import deepspeed` fails: ImportError: cannot import name 'log' from "
            "'torch.distributed.elastic.agent.server.api'"
        ),
        requirement="deepspeed>=0.16",
        level=Level.ERROR,
        source="https://github.com/deepspeedai/DeepSpeed/issues/5337",
    ),
    Pair(
        first="deepspeed",
        first_below="0.16",
        second="torch",
        second_at_least="2.6",
        message=say(
            "ZeRO checkpoints cannot be loaded again: torch.load rejects them (weights_only now defaults to True)"
        ),
        requirement="deepspeed>=0.16",
        level=Level.WARNING,
        # 0.16.0's torch_checkpoint_engine.py passes weights_only=False, 0.15.4's does not.
        source="https://github.com/pytorch/pytorch/pull/137602",
    ),
    Pair(
        first="torch",
        first_below="2.6",
        second="transformers",
        second_at_least="4.52",
        message=say("with torch older than 2.6, transformers rejects weights in .bin files and only loads safetensors"),
        requirement="torch>=2.6",
        level=Level.WARNING,
        source="https://nvd.nist.gov/vuln/detail/CVE-2025-32434; https://github.com/hiyouga/LlamaFactory/issues/8379",
    ),
    Pair(
        first="colossalai",
        first_at_least="0.5",
        second="transformers",
        second_at_least="4.52",
        message=say("Colossal-AI's model policies patch methods of transformers 4.51.3, the version it requires"),
        requirement="transformers==4.51.3",
        level=Level.WARNING,
        source="https://github.com/hpcaitech/ColossalAI/blob/v0.5.0/requirements/requirements.txt",
    ),
    Pair(
        first="numpy",
        first_at_least="2",
        second="torch",
        second_below="2.3",
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


def _within(version: str | None, at_least: str | None, below: str | None) -> bool:
    if version is None:
        return False
    return (at_least is None or parts(version) >= parts(at_least)) and (below is None or parts(version) < parts(below))
