"""Parses typed numbers: GPUs, times, tokens, prices."""

from __future__ import annotations

import math
import re

from trainwiz.errors import UsageError
from trainwiz.estimate.datasheets import MODELS
from trainwiz.estimate.gpus import gpu_model
from trainwiz.machine import Cpu, Gpu, Machine, Memory
from trainwiz.message import Message, say

_LARGEST_MACHINE = 8
"""GPUs of one machine; more are several machines of as many."""
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "": 3600}
_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_HOST_GIB = 2000
"""Host memory of a machine that was only named: that of a DGX, so that nothing is ruled out by it."""


def machine_named(text: str, option: str = "--gpus") -> tuple[Machine, int]:
    """The machine that `8xH100` or `2x8xH100` means, and how many of it. Raises `UsageError`."""
    behind = re.fullmatch(r"(\S.*?)\s*[x×*:]\s*([1-9]\d{0,4})", text.strip(), flags=re.IGNORECASE)
    if behind and gpu_model(behind[1]):  # T4x2, H100:8
        text = f"{behind[2]}x{behind[1]}"
    times = r"(?:([1-9]\d{0,4})\s*[x×*]\s*)?"
    found = re.fullmatch(rf"{times}{times}(\S.*)", text.strip(), flags=re.IGNORECASE)
    model = gpu_model(found[3]) if found else None
    if found is None or model is None:
        raise UsageError(
            say("{option} {given} is not a known GPU", option=option, given=repr(text)),
            say(
                "use a number and one of {names}: 8xH100; or run this on that machine: trainwiz doctor --json > "
                "machine.json, and pass the file with --machine",
                names=", ".join(one.name for one in MODELS),
            ),
        )
    count = int(found[1] or 1) * int(found[2] or 1)
    machines = int(found[1]) if found[2] else -(-count // _LARGEST_MACHINE)
    full = count == machines * _LARGEST_MACHINE
    if not (full or (count <= machines * _LARGEST_MACHINE and (found[2] or machines == 1))):
        raise UsageError(
            say(
                "{option} {given}: {count} GPUs are not a whole number of 8-GPU machines",
                option=option,
                given=repr(text),
                count=count,
            ),
            say("use up to 8 GPUs, or a multiple of 8"),
        )
    gpus = tuple(
        Gpu(index=i, name=model.name, memory_bytes=int(model.memory_gib * 2**30), compute_capability=model.capability)
        for i in range(count // machines)
    )
    return (
        Machine(
            hostname=text.strip(),
            gpus=gpus,
            cpu=Cpu(physical_cores=64, usable_cores=64),
            memory=Memory(total_bytes=_HOST_GIB * 2**30, available_bytes=_HOST_GIB * 2**30),
            probed=False,
        ),
        machines,
    )


def hours(text: str) -> float:
    """`12h`, `90m`, `3d`; a number alone is hours. Raises `UsageError`."""
    number, unit = _split(text, _SECONDS, "--target", say("use a time like 12h, 90m or 3d"))
    return number * _SECONDS[unit] / 3600


def tokens(text: str) -> int:
    """`500M`, `1.5B`. Raises `UsageError`."""
    number, unit = _split(text, _MULTIPLES, "--tokens", say("use a number like 500M or 1.5B"))
    return int(number * _MULTIPLES[unit])


def money(text: str, option: str) -> float:
    """A price without its currency. Raises `UsageError`."""
    return _split(text, {"": 1}, option, say("use a positive number like 2.5"))[0]


def counts(text: str) -> list[int]:
    """`gpus=1,2,4`. Raises `UsageError`."""
    found = re.fullmatch(r"gpus=([1-9]\d{0,4}(?:,[1-9]\d{0,4})*)", text.replace(" ", ""))
    if not found:
        raise UsageError(
            say("--over {given} is not a list of GPU counts", given=repr(text)), say("use gpus=1,2,4,8,16")
        )
    return [int(number) for number in found[1].split(",")]


def _split(text: str, units: dict[str, int], option: str, remedy: Message) -> tuple[float, str]:
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([a-z]?)", text.strip().lower())
    number = float(found[1]) if found else 0
    if not found or found[2] not in units or not 0 < number < math.inf:
        raise UsageError(say("{option} {given} cannot be understood", option=option, given=repr(text)), remedy)
    return number, found[2]
