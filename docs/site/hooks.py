"""What the site has besides the pages in docs/: the reference, and what only its pages can do.

The reference is what trainwiz itself prints. Each language has its own navigation and its own words around a page; a
page leads to its translation, a rule's id to its entry, and pictures follow the light or dark scheme.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TRAINWIZ_PYTHON", sys.executable)
"""An interpreter that has trainwiz; the site's own need not."""
_HEADINGS = {
    "en": (
        "Commands",
        "Keys of a plan",
        "What `trainwiz COMMAND --help` prints.",
        "What `trainwiz explain keys` prints.",
    ),
    "zh": ("命令", "计划的键", "`trainwiz COMMAND --help` 的输出。", "`trainwiz explain keys` 的输出。"),
}
_CHINESE = ".zh-CN.md"
_CHINESE_SECTION = "中文"
_HOME = "index.md"
_RULES = "rules.md"
_RULE = re.compile(r"\bTW[1-7]\d\d\b")
_RULE_TITLE = re.compile(r"^### (TW\d{3}): .*$", re.MULTILINE)
_CODE = re.compile(r"(^```.*?^```$|^(?:    |#)[^\n]*$|`[^`\n]*`|\[[^\]]*\]\([^)]*\))", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*)-light(\.\w+)\)")
_WRAPPED = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n *(?=[\u3000-\u9fff\uff00-\uffef])")
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+(?!docs/)[^)]*)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from the program."""
    for language, end in (("en", ".md"), ("zh", ".zh-CN.md")):
        commands, keys, of_commands, of_keys = _HEADINGS[language]
        parts = [f"## {name}\n\n{_block(_said(language, name, '--help'))}" for name in _commands()]
        page = f"# {commands}\n\n{of_commands}\n\n" + "\n".join(parts)
        files.append(File.generated(config, f"reference/commands{end}", content=page))
        page = f"# {keys}\n\n{of_keys}\n\n{_keys(_said(language, 'explain', 'keys'))}"
        files.append(File.generated(config, f"reference/keys{end}", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt what GitHub shows otherwise: links, pictures for a dark page, and ids of rules.

    Links to files outside docs/ lead nowhere on the site: their names stay.
    """
    source = page.file.src_uri
    depth = source.count("/")

    def kept(found: re.Match[str]) -> str:
        leaves = found[2].count("../") > depth
        return f"{found[1]}" if leaves else found[0]

    markdown = _PICTURE.sub(r"![\1](\2-light\3#only-light)![\1](\2-dark\3#only-dark)", _OUTSIDE.sub(kept, markdown))
    if source.endswith(_CHINESE):  # a browser would show the end of a line as a space
        markdown = _outside_code(lambda text: _WRAPPED.sub("", text), markdown)
    if source == _RULES:
        return _RULE_TITLE.sub(r"\g<0> {#\1}", markdown)
    return _outside_code(lambda text: _RULE.sub(rf"[\g<0>]({'../' * depth}{_RULES}#\g<0>)", text), markdown)


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """Show a page in its own language: the words around it, the navigation, and the way to its translation."""
    is_chinese = page.file.src_uri.endswith(_CHINESE)
    config["theme"]["language"] = "zh" if is_chinese else "en"
    chinese = next(item for item in nav.items if item.title == _CHINESE_SECTION)
    shown = chinese.children if is_chinese else [item for item in nav.items if item is not chinese]
    context["nav"] = _Part(nav, shown)
    config["extra"]["alternate"] = [
        {"name": name, "link": target.url, "lang": language}
        for name, language, target in zip(("English", "中文"), ("en", "zh"), _both(page, nav), strict=True)
    ]
    return context


class _Part:
    """The navigation of one language."""

    def __init__(self, nav: Any, items: list[Any]) -> None:
        self.items, self.pages = items, nav.pages
        self.homepage = next(page for page in items if page.is_page)

    def __iter__(self) -> Any:
        return iter(self.items)


def _both(page: Any, nav: Any) -> list[Any]:
    """The page in English and in Chinese; what has no translation leads to the other language's first page."""
    pages = {each.file.src_uri: each for each in nav.pages}
    stem = page.file.src_uri.removesuffix(_CHINESE).removesuffix(".md")
    home = _HOME.removesuffix(".md")
    return [pages.get(f"{stem}{end}") or pages[f"{home}{end}"] for end in (".md", _CHINESE)]


def _outside_code(change: Callable[[str], str], markdown: str) -> str:
    """The text with its prose changed: no code, link or heading."""
    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _said(language: str, *words: str) -> str:
    environ = {**os.environ, "TRAINWIZ_LANG": language, "COLUMNS": "100", "NO_COLOR": "1"}
    environ["PYTHONPATH"] = str(ROOT / "launcher")
    done = subprocess.run([PYTHON, "-m", "trainwiz", *words], capture_output=True, text=True, check=True, env=environ)
    return done.stdout


def _commands() -> list[str]:
    """In the order in which the help lists them."""
    program = "from trainwiz.cli.examples import GROUPS; print(*(n for _, names in GROUPS for n in names))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "launcher")}
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True, env=environ)
    return done.stdout.split()


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _keys(text: str) -> str:
    """Each key's line as a heading, its help below."""
    lines = []
    for line in text.splitlines():
        key, colon, rest = line.partition(": ")
        if colon and not line.startswith(" "):
            lines += ["", f"### `{key}`", "", f"`{rest}`", ""]
        else:
            lines.append(line.strip().replace("<", "&lt;").replace("*", "\\*"))
    return "\n".join(lines) + "\n"
