"""Files of other programs become answers of a plan; whatever does not fit is named, with its place.

`adopt` reads what the files say. Once these answers have become a plan, `settings` returns what DeepSpeed must be told
besides the plan's keys to run as it did, and `remainder` everything that the project does differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwiz.adoption import accelerate as accelerates
from trainwiz.adoption import data_sources, free, fsdp, settings
from trainwiz.adoption import deepspeed as deepspeeds
from trainwiz.adoption import script as scripts
from trainwiz.adoption import tool_file as tool_files
from trainwiz.adoption.ledger import Carried, Kind, Ledger, Left, Page
from trainwiz.config import Accelerate, DeepSpeed, ToolFile
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.script import Script

__all__ = ["Adoption", "Carried", "Kind", "Left", "adopt"]


class Adoption:
    """What the files say, and which of it has been dealt with."""

    def __init__(
        self,
        accelerate: Accelerate | None,
        deepspeed: DeepSpeed | None,
        script: Script | None,
        tool_file: ToolFile | None = None,
    ) -> None:
        self._accelerate, self._script, self._tool_file = accelerate, script, tool_file
        self._ledger = Ledger()
        self._settings = settings.of(accelerate, deepspeed)
        if accelerate is not None:
            accelerates.read(Page(self._ledger, accelerate), accelerate)
        if tool_file is not None:
            tool_files.read(Page(self._ledger, tool_file), tool_file)
        if self._settings is not None:
            deepspeeds.read(self._settings.page(self._ledger), self._settings, accelerate)
        if script is not None:
            scripts.read(self._ledger, script, accelerate, self._settings)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were read."""
        found = (self._accelerate, self._tool_file, self._settings.file if self._settings else None)
        read = dict.fromkeys(one.document.path for one in found if one is not None)
        return (*read, *([self._script.file] if self._script else []))

    @property
    def carried(self) -> Mapping[str, Carried]:
        """The plan's keys that the files decide."""
        return self._ledger.carried

    def settings(self, plan: Plan) -> dict[str, Any]:
        """What the plan's section `deepspeed` must contain for DeepSpeed to run as the file says."""
        return free.free_settings(self._settings, plan) if self._settings else {}

    def place_of_setting(self, path: str) -> str | None:
        """`ds.json:7` for one of `settings`; None for one that the file leaves to DeepSpeed."""
        return self._settings.shown(path) if self._settings else None

    # docs/decisions/files.md: An import accounts for every value in a file, by subtraction
    def remainder(self, plan: Plan) -> tuple[Left, ...]:
        """Everything in the files that the project does differently or not at all, by file and line."""
        ledger = self._ledger.copy()
        for key, one in self._ledger.carried.items():
            same = plan.get(key) == one.value or (
                key in data_sources.SOURCES and data_sources.is_same(one.value, plan.get(key))
            )
            if not one.why and not same:
                ledger.add("lost", one.path, str(one.value), one.place, say("a different value was set"), key=key)
        if self._settings is not None:
            deepspeeds.compare(self._settings.page(ledger), self._settings, self._accelerate, plan)
        if self._accelerate is not None:
            page = Page(ledger, self._accelerate)
            fsdp.compare(page, self._accelerate, plan)
            accelerates.finish(page, self._accelerate, plan)
        if self._tool_file is not None:
            tool_files.finish(Page(ledger, self._tool_file), self._tool_file)
        return tuple(sorted(ledger.left, key=lambda left: (left.place.file, left.place.line, left.place.column)))


def adopt(
    accelerate: Accelerate | None,
    deepspeed: DeepSpeed | None,
    script: Script | None = None,
    tool_file: ToolFile | None = None,
) -> Adoption:
    """Read an accelerate file or a training tool's, a DeepSpeed file, or a pair; and the script that they are for."""
    return Adoption(accelerate, deepspeed, script, tool_file)
