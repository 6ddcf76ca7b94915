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
CITING = ("launcher", "tests", "benchmarks", "pyproject.toml", "hatch_build.py", "Makefile")
"""Files and folders whose comments cite decisions. Templates do not: a generated project stands alone."""
_CITATION = re.compile(r"# docs/(decisions/[\w-]+\.md): (.+)")
UNCITED = {
    "The loop clears Gemini's overflow mark under fp16",
    "Copies to the device have no CUDA stream of their own",
    "Some encoders get a mask of pairs",
}
"""Decisions that explain only code in train_templates/, or why there is none."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def entries(page: Path) -> list[tuple[str, list[str]]]:
    """The title and the lines of each decision."""
    _, *parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    return [(part.split("\n", 1)[0], [line for line in part.splitlines()[1:] if line.strip()]) for part in parts]


def decisions() -> set[tuple[str, str]]:
    """The page and the title, without its date, of every decision."""
    return {
        (page.relative_to(DOCS).as_posix(), title.split(": ", 1)[-1])
        for page in DECISIONS
        for title, _ in entries(page)
    }


def citations() -> Iterator[tuple[str, str, str]]:
    """Each citation: the file it is in, the page, and the title of the decision."""
    for root in (ROOT / entry for entry in CITING):
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            for page, title in _CITATION.findall(file.read_text()) if file != Path(__file__) else ():
                yield name(file), page, title


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


def test_every_citation_names_a_decision() -> None:
    known, cited = decisions(), list(citations())
    assert len(cited) > 80
    assert not [citation for citation in cited if citation[1:] not in known]


def test_every_decision_is_cited_by_the_code_that_it_explains() -> None:
    cited = {(page, title) for _, page, title in citations()}
    assert {title for _, title in decisions() - cited} == UNCITED


def test_templates_cite_nothing() -> None:
    templates = [*(ROOT / "train_templates").rglob("*.py"), *(ROOT / "templates").rglob("*.j2")]
    assert len(templates) > 10
    assert not [name(file) for file in templates if "docs/decisions" in file.read_text()]


def test_what_is_said_of_security_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "SECURITY.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) > 15
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    assert not [row[2] for row in rows if "`tests/" not in row[4]], "each is held by a test"


def test_every_generated_file_is_described() -> None:
    """Where all that there are stand, and in a project's own README, in both languages."""
    modules = [
        *(ROOT / "train_templates" / "parts").glob("*.py"),
        *(ROOT / "train_templates" / "imported").glob("*.py"),
    ]
    assert len(modules) > 50
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    assert [m.name for m in modules if not re.search(rf"[ ]{re.escape(m.name)}[ ]", architecture)] == []
    for language in ("", ".zh-CN"):
        readme = (ROOT / "templates" / f"README{language}.md.j2").read_text()
        unnamed = [m.name for m in modules if m.parent.name == "parts" and not re.search(rf'[`"]{m.name}[`"]', readme)]
        assert unnamed == []
