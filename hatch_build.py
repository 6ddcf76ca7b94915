"""Compile the translation catalogue for wheels, sdists and editable installs; as a script, for this checkout."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CATALOGUE = "launcher/trainwiz/locale/zh_CN/LC_MESSAGES/trainwiz.po"


class CatalogueHook(BuildHookInterface[Any]):
    """Adds the compiled catalogue, which git ignores, to what is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (hatchling's signature)
        compiled = compile_catalogue(Path(self.root))
        build_data["artifacts"].append(f"/{compiled.relative_to(self.root).as_posix()}")


# docs/decisions/cli.md: The compiled catalogue is built
def compile_catalogue(root: Path) -> Path:
    """Write the .mo file beside the .po file and return its path. A reader never sees half of it."""
    # babel is a requirement of the build, not of reading this module.
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    source = root / CATALOGUE
    target = source.with_suffix(".mo")
    aside = target.with_suffix(f".mo.{os.getpid()}")
    with source.open("rb") as text, aside.open("wb") as binary:
        write_mo(binary, read_po(text, locale="zh_CN"))
    return aside.replace(target)


if __name__ == "__main__":
    compile_catalogue(Path(__file__).parent)
