"""The site: lessons show what their code prints, every page is on it, and what is typed in the tutorial exists."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwiz.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUN = DOCS / "lessons" / "run.py"
SITE = DOCS / "site" / "mkdocs.yml"
GENERATED = "reference/"
PAGE = "# x\n\n```python\nprint(6 * 7)\n```\n\n```text\n{shown}```\n"


def test_the_lessons_show_what_their_code_prints() -> None:
    pages = sorted((DOCS / "lessons").glob("*.md"))
    assert len(pages) >= 18
    chinese = {page.name for page in pages if page.name.endswith(".zh-CN.md")}
    assert {f"{page.stem}.zh-CN.md" for page in pages if page.name not in chinese} == chinese
    for page in pages:
        assert re.search(r"```text\n\S", page.read_text()), f"{page.name} shows nothing"
    assert "w = 2.04000" in (DOCS / "lessons" / "accumulation.md").read_text()
    done = subprocess.run(
        [sys.executable, str(RUN), "--check"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_output_is_noticed(tmp_path: Path) -> None:
    renewed = runpy.run_path(str(RUN))["renewed"]
    page = tmp_path / "page.md"
    for shown in ("", "41\n", "42\n"):
        page.write_text(PAGE.format(shown=shown))
        assert renewed(page) == PAGE.format(shown="42\n")


def test_a_translation_shows_the_blocks_of_its_page(tmp_path: Path) -> None:
    translated = runpy.run_path(str(RUN))["translated"]
    page = tmp_path / "page.zh-CN.md"
    page.write_text(PAGE.format(shown="41\n").replace("# x", "# 某").replace("6 * 7", "6 * 6"))
    assert translated(PAGE.format(shown="42\n"), page) == PAGE.format(shown="42\n").replace("# x", "# 某")
    page.write_text("# 某\n")
    with pytest.raises(ValueError, match="needs 1 blocks"):
        translated(PAGE.format(shown="42\n"), page)


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_on_the_site() -> None:
    """The site itself is built by `make docs-site`, which also ends at broken links."""
    listed = pages_of(yaml.safe_load(SITE.read_text())["nav"])
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed)) > 40
    assert {page for page in listed if not page.startswith(GENERATED)} == written


def test_the_commands_in_the_pages_exist() -> None:
    pages = [*DOCS.glob("index*.md"), *DOCS.glob("tutorial*.md"), *(DOCS / "lessons").glob("*.md")]
    typed = {word for page in pages for word in re.findall(r"(?:^    |`)trainwiz ([a-z-]+)", page.read_text(), re.M)}
    assert len(typed) >= 12
    assert typed <= COMMANDS.keys()
