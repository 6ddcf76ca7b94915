"""Warnings and errors in the ranks' logs, each once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_COMPLAINT = re.compile(r"\b(?:\w*warn(?:ing)?|\w*error|exception|overflow|nan)\b", re.IGNORECASE)
_NO_COMPLAINT = re.compile(r"\b(?:0|no) (?:errors?|warnings?)\b", re.IGNORECASE)
_HARMLESS = re.compile(
    r"Setting accelerator to CPU|Setting OMP_NUM_THREADS|async_io requires|libaio|untested triton version"
    r"|sparse_attn requires|`torch_dtype` is deprecated|Redirects are currently not supported"
    r"|site-packages/\S+: (?:Future|(?:Pending)?Deprecation)Warning|^\s*_?(?:warnings?\.)?warn(?:_once)?\("
)
"""Lines of libraries that look like warnings but do not matter for the training."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_CHANGING = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """A warning or an error."""

    text: str
    """Its newest line, without control characters."""
    ranks: tuple[int, ...]
    """The ranks that wrote it."""
    times: int = 1
    """How often it occurs in all logs."""


def complaints(tails: Mapping[int, str], most: int) -> list[Complaint]:
    """The `most` newest, the newest last; lines that differ only in numbers (times, addresses, updates) are one."""
    found: dict[str, Complaint] = {}
    for rank, tail in sorted(tails.items()):
        for line in tail.replace("\r", "\n").split("\n"):
            if not _COMPLAINT.search(line) or _NO_COMPLAINT.search(line) or _HARMLESS.search(line):
                continue
            text = _CONTROL.sub("", line).strip()
            kind = _CHANGING.sub("#", text)
            before = found.pop(kind, None)
            ranks = tuple(sorted({*(before.ranks if before else ()), rank}))
            found[kind] = Complaint(text=text, ranks=ranks, times=(before.times if before else 0) + 1)
    return list(found.values())[-most:] if most > 0 else []
