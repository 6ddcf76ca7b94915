"""The site: lessons show what their code prints, every page is on it, and what is typed in the tutorial exists."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the site adds to pages, without mkdocs, which only the site's own environment has."""
    files = ModuleType("mkdocs.structure.files")
    files.File = object  # type: ignore[attr-defined]
    for name, module in (
        ("mkdocs", ModuleType("mkdocs")),
        ("mkdocs.structure", ModuleType("x")),
        ("mkdocs.structure.files", files),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(DOCS / "site" / "hooks.py"))


def page(source: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=source), url=source.replace(".md", ".html"), is_page=True)


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("rules.md", "### TW401: The batch.\n", "### TW401: The batch. {#TW401}\n"),
        ("a.md", "refused (TW401)\n", "refused ([TW401](rules.md#TW401))\n"),
        ("lessons/a.md", "TW401, TW402", "[TW401](../rules.md#TW401), [TW402](../rules.md#TW402)"),
        ("a.md", "# TW401\n\n`explain TW401`\n\n    TW401\n", "# TW401\n\n`explain TW401`\n\n    TW401\n"),
        ("a.md", "```text\nTW401\n```\nTW402", "```text\nTW401\n```\n[TW402](rules.md#TW402)"),
        ("a.md", "![x](p/y-light.svg)", "![x](p/y-light.svg#only-light)![x](p/y-dark.svg#only-dark)"),
        ("a.md", "[x](../README.md), [y](b.md)", "x, [y](b.md)"),
        ("a.zh-CN.md", "检查答案，\n写出 batch\n项目", "检查答案，写出 batch\n项目"),
        ("a.zh-CN.md", "    甲\n    乙\n", "    甲\n    乙\n"),
        ("a.md", "one\ntwo", "one\ntwo"),
    ],
)
def test_the_site_adapts_what_is_written(hooks: dict[str, Any], source: str, written: str, shown: str) -> None:
    assert hooks["on_page_markdown"](written, page(source)) == shown


def test_each_language_has_its_own_navigation_and_the_way_to_the_other(hooks: dict[str, Any]) -> None:
    home, tutorial, rules = page("index.md"), page("tutorial.md"), page("rules.md")
    chinese = [page("index.zh-CN.md"), page("tutorial.zh-CN.md")]
    for each in (home, tutorial, rules, *chinese):
        each.title = each.file.src_uri
    section = SimpleNamespace(title="中文", children=chinese, is_page=False)
    nav = SimpleNamespace(items=[home, tutorial, rules, section], pages=[home, tutorial, rules, *chinese])
    for shown, language, beside, others in (
        (tutorial, "en", [home, tutorial, rules], ["tutorial.html", "tutorial.zh-CN.html"]),
        (chinese[1], "zh", chinese, ["tutorial.html", "tutorial.zh-CN.html"]),
        (rules, "en", [home, tutorial, rules], ["rules.html", "index.zh-CN.html"]),
    ):
        config: dict[str, Any] = {"theme": {}, "extra": {}}
        context = hooks["on_page_context"]({"nav": nav}, shown, config, nav)
        assert config["theme"]["language"] == language
        assert list(context["nav"]) == beside
        assert [each["link"] for each in config["extra"]["alternate"]] == others


def test_every_picture_of_the_site_has_its_dark_sibling() -> None:
    shown = [
        (file.parent / name)
        for file in DOCS.rglob("*.md")
        for name in re.findall(r"!\[[^\]]*\]\(([^)]*-light\.\w+)\)", file.read_text())
    ]
    assert shown
    for light in shown:
        assert light.exists()
        assert light.with_name(light.name.replace("-light.", "-dark.")).exists()
