"""DeepSpeed's settings by their path in its own file, whether they are written there or in accelerate's block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwiz.adoption.ledger import Ledger, Page, leaves, place_of
from trainwiz.config import Accelerate, DeepSpeed
from trainwiz.engines.accelerate import SETTINGS_OF_BLOCK
from trainwiz.engines.deepspeed import DEFAULTS, OTHER_NAMES
from trainwiz.quantities import whole

BLOCK = "deepspeed_config."


@dataclass(frozen=True, kw_only=True)
class Settings:
    """DeepSpeed's settings."""

    file: Accelerate | DeepSpeed
    """The file that they are written in."""
    values: Mapping[str, Any]
    """The values by their path in DeepSpeed's own file."""
    paths: Mapping[str, str]
    """For each of these paths, the one under which it is really written."""
    block: bool
    """Whether they are in accelerate's block."""

    def path(self, name: str) -> str:
        """The path under which a setting is written, or would be."""
        if name in self.paths:
            return self.paths[name]
        return "deepspeed_config" if self.block else name

    def page(self, ledger: Ledger) -> Page:
        """The entries of these settings in a ledger, by their path in DeepSpeed's own file."""
        return Page(ledger, self.file, self.path)

    def shown(self, name: str) -> str | None:
        """`ds.json:7`; None where the file does not say it."""
        if name not in self.paths:
            return None
        place = place_of(self.file.document, self.paths[name])
        return f"{place.file.rpartition('/')[2]}:{place.line}"

    @property
    def stage(self) -> int:
        """The ZeRO stage; the default is 2 from accelerate, otherwise 0."""
        value = self.values.get("zero_optimization.stage", 2 if self.block else 0)
        return int(value) if str(value) in ("0", "1", "2", "3") else 2

    def effective(self, name: str) -> Any:
        """A setting as DeepSpeed takes it; the word `auto` where it is that."""
        if name == "zero_optimization.overlap_comm":
            value = self.values.get(name)
            return self.stage == 3 if value is None else value
        return self.values.get(name, DEFAULTS.get(name))


def of(accelerate: Accelerate | None, deepspeed: DeepSpeed | None) -> Settings | None:
    """The settings of DeepSpeed's file, else of accelerate's block; None where DeepSpeed is not used."""
    if deepspeed is not None:
        names = {path: _name(path) for path, _ in leaves(deepspeed.document)}
        values = {names[path]: value for path, value in leaves(deepspeed.document)}
        return Settings(file=deepspeed, values=_numbers(values), paths={n: p for p, n in names.items()}, block=False)
    if accelerate is None or accelerate.kind != "DEEPSPEED":
        return None
    held = {
        name: accelerate.get(f"{BLOCK}{key}") for key, name in SETTINGS_OF_BLOCK.items() if accelerate.has(BLOCK + key)
    }
    held = {name: value for name, value in held.items() if value is not None}
    paths = {name: f"{BLOCK}{key}" for key, name in SETTINGS_OF_BLOCK.items() if name in held}
    return Settings(file=accelerate, values=_numbers(held), paths=paths, block=True)


def _name(path: str) -> str:
    block, _, name = path.partition(".")
    return f"{block}.{OTHER_NAMES.get(name, name)}" if block == "zero_optimization" else path


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's `2e8` is a float, and means a whole number of elements; a quoted number is read as one."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> Any:
    if isinstance(value, str) and (number := whole(value)) is not None:
        return number
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1000 else value
