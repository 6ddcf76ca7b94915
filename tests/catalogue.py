"""Collect every sentence that a person reads into the translation catalogue, for `make catalogue`.

Sentences are the literal first arguments of `say(…)` and `t(…)`, those of `MARKED_KEYWORDS`, the manual entries of
rules, and what generated code says of data, its values numbered: `not a JSON object: {1}`. Translations that are there
already stay; those whose sentence is gone are dropped.
"""

import ast
import io
import itertools
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "launcher" / "trainwiz"
PO = PACKAGE / "locale" / "zh_CN" / "LC_MESSAGES" / "trainwiz.po"
MO = PO.with_suffix(".mo")
MARKS = {"say", "t", "Message", "remedy", "violation"}
PARTS = ROOT / "train_templates" / "parts"
READERS = ("conversations", "preferences", "labels", "sources", "texts", "multilabel", "transcripts")
"""The parts of generated code whose refusals people read in their language; see `language.retold`."""
MARKED_KEYWORDS = {"Signature": ("cause", "remedy"), "Question": ("help",)}


def sentences() -> dict[str, list[str]]:
    """Every sentence with the files it is in."""
    found: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for sentence in _marked(file):
            found.setdefault(sentence, []).append(str(file.relative_to(PACKAGE)))
    for file in (PARTS / f"{name}.py" for name in READERS):
        for sentence in refusals(file):
            found.setdefault(sentence, []).append(str(file.relative_to(ROOT)))
    from trainwiz import rules

    for rule in rules.load():
        found.setdefault(rule.manual, []).append(f"rules: {rule.id}")
    return found


def _marked(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            said = [keyword.value for keyword in node.keywords if keyword.arg in MARKED_KEYWORDS.get(name, ())]
            for word in [*said, *(node.args[:1] if name in MARKS else ())]:
                if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value:
                    yield word.value


def refusals(file: Path) -> Iterator[str]:
    """What a file of generated code raises, its values numbered from 1."""
    for node in ast.walk(ast.parse(file.read_text())):
        refusal = node.exc if isinstance(node, ast.Raise) else None
        if not isinstance(refusal, ast.Call) or ast.unparse(refusal.func) not in ("ValueError", "SystemExit"):
            continue
        for said in refusal.args[:1]:
            parts = said.values if isinstance(said, ast.JoinedStr) else [said]
            numbers = itertools.count(1)
            texts = [part.value if isinstance(part, ast.Constant) else f"{{{next(numbers)}}}" for part in parts]
            if isinstance(said, ast.JoinedStr | ast.Constant):
                yield "".join(map(str, texts))


def load() -> Catalog:
    """The catalogue as it is in the repository."""
    with PO.open("rb") as file:
        return read_po(file, locale="zh_CN")


def renewed(old: Catalog) -> Catalog:
    """A catalogue of today's sentences with the translations that `old` has for them."""
    new = Catalog(locale="zh_CN", project="trainwiz", fuzzy=False)
    new.header_comment = "# The Chinese of trainwiz. Technical terms stay in English beside the Chinese."
    # A renewal changes nothing but sentences.
    new.creation_date = new.revision_date = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for sentence, places in sorted(sentences().items(), key=lambda item: (item[1][0], item[0])):
        before = old.get(sentence)
        new.add(sentence, before.string if before else "", auto_comments=sorted(set(places)))
    return new


def as_po(catalogue: Catalog) -> bytes:
    """The text of a .po file."""
    buffer = io.BytesIO()
    write_po(buffer, catalogue, width=110, omit_header=False, no_location=True)
    return buffer.getvalue()


def main() -> None:
    """Renew the catalogue; say what is not translated yet."""
    old = load() if PO.exists() else Catalog(locale="zh_CN")
    catalogue = renewed(old)
    PO.parent.mkdir(parents=True, exist_ok=True)
    PO.write_bytes(as_po(catalogue))
    missing = [message.id for message in catalogue if message.id and not message.string]
    print(f"{len(catalogue)} sentences, {len(missing)} without a translation")


if __name__ == "__main__":
    main()
