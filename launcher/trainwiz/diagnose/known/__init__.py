"""The table of known causes, by subject, in the order of trust: the particular before the general."""

from __future__ import annotations

from trainwiz.diagnose.known import (
    arithmetic,
    builds,
    collectives,
    colossalai,
    data,
    deepspeed,
    devices,
    files,
    generated,
    launchers,
    memory,
    packages,
)
from trainwiz.diagnose.signature import Signature

SIGNATURES: tuple[Signature, ...] = (
    *memory.SIGNATURES,
    *devices.SIGNATURES,
    *deepspeed.SIGNATURES,
    *colossalai.SIGNATURES,
    *builds.SIGNATURES,
    *packages.SIGNATURES,
    *arithmetic.SIGNATURES,
    *data.SIGNATURES,
    *files.SIGNATURES,
    *generated.SIGNATURES,
    *launchers.SIGNATURES,
    *collectives.SIGNATURES,
)
"""Collectives come last: a lost connection is what the other ranks say of a first failure."""
