"""The documentation: decisions are dated, short and in the index; lines fit; what is linked or named exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
INDEX = DOCS / "decisions.md"
GENERATED = DOCS / "rules.md"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page != GENERATED]
LINKED = [*PAGES, GENERATED, *sorted(ROOT.glob("*.md"))]
COLUMNS = 120
LINES = 10
"""Of a decision, blank ones not counted."""
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`((?:tests|benchmarks|docs|templates|train_templates)/[\w./-]+)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def entries(page: Path) -> list[tuple[str, list[str]]]:
    """The title and the lines of each decision."""
    _, *parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return [(part.split("\n", 1)[0], [line for line in part.splitlines()[1:] if line.strip()]) for part in parts]


def written(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of prose: no table, no code or transcript, and nothing that a benchmark put there."""
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.startswith("<!--"):
            inside = "end" not in line
        elif not inside and not line.startswith(("|", "    ")):
            yield number, line


def test_there_is_something_to_look_at() -> None:
    assert len(DECISIONS) >= 8
    assert sum(len(entries(page)) for page in DECISIONS) >= 80
    assert {"README.md", "README.zh-CN.md", "CHANGELOG.md"} <= {name(page) for page in LINKED}
    assert sum(len(list(written(page))) for page in PAGES) > 800
    assert sum(len(_LINK.findall(page.read_text())) for page in LINKED) > 30
    assert sum(len(_FILE.findall(page.read_text())) for page in PAGES) > 10


@pytest.mark.parametrize("page", DECISIONS, ids=name)
def test_decisions_are_dated_and_short(page: Path) -> None:
    assert entries(page), "no decision"
    for title, lines in entries(page):
        assert re.match(r"20\d\d-[01]\d-[0-3]\d: \S", title), title
        assert 1 <= len(lines) <= LINES, f"{title}: {len(lines)} lines"


def test_no_two_decisions_have_one_title() -> None:
    titles = [title.split(": ", 1)[-1] for page in DECISIONS for title, _ in entries(page)]
    assert len(titles) == len(set(titles))


def test_every_file_of_decisions_is_in_the_index_once() -> None:
    listed = _LINK.findall(INDEX.read_text())
    assert sorted(listed) == [f"decisions/{page.name}" for page in DECISIONS]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_fit(page: Path) -> None:
    wide = [f"{number}: {len(line)} columns" for number, line in written(page) if len(line) > COLUMNS]
    assert not wide


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.split("#")[0] for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert not [link for link in links if link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page: Path) -> None:
    """So that a file that is moved takes its mentions along."""
    assert not [path for path in _FILE.findall(page.read_text()) if not (ROOT / path.rstrip(".")).exists()]
