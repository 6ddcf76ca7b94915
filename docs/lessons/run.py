"""Run the pages' Python blocks, and write what they print into the text block behind each.

A translation (NAME.zh-CN.md) shows the blocks of its page.

python docs/lessons/run.py            renew the pages
python docs/lessons/run.py --check    exit with 1 if a page shows something else than its code prints
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings
from pathlib import Path

FOLDER = Path(__file__).parent
_CHINESE = ".zh-CN.md"
_BLOCK = re.compile(r"(```python\n(?P<code>.*?)```\n\n```text\n)(?P<shown>.*?)(```\n)", re.DOTALL)


def pages() -> list[Path]:
    """The lessons, without their translations."""
    return sorted(page for page in FOLDER.glob("*.md") if not page.name.endswith(_CHINESE))


def translated(text: str, translation: Path) -> str:
    """The translation's text with the blocks of its page. Raises `ValueError` where their numbers differ."""
    shown = [found[0] for found in _BLOCK.finditer(text)]
    written = translation.read_text()
    if len(_BLOCK.findall(written)) != len(shown):
        raise ValueError(f"{translation.name} needs {len(shown)} blocks of code with output")
    return _BLOCK.sub(lambda _: shown.pop(0), written)


def renewed(page: Path) -> str:
    """The page's text with what its code prints now."""

    def run(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(found["code"], str(page), "exec"), {"__name__": page.stem})
        return f"{found[1]}{printed.getvalue()}{found[4]}"

    return _BLOCK.sub(run, page.read_text())


def main() -> int:
    """Renew the pages, or say which ones are not current."""
    stale = []
    for page in pages():
        text = renewed(page)
        translation = page.with_name(f"{page.stem}{_CHINESE}")
        for file, current in ((page, text), (translation, translated(text, translation))):
            if current != file.read_text():
                stale.append(file.name)
                if "--check" not in sys.argv:
                    file.write_text(current)
    sys.stdout.write(f"changed: {' '.join(stale)}\n" if stale else "all lessons are current\n")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
