"""Record what the oldest versions that generated projects allow have of what these import.

    pip download --no-deps --dest OLD torch==2.6.0 accelerate==1.10.0 transformers==4.51.3 peft==0.14.0   # and unpack
    python tests/oldest.py OLD

`tests/train_templates/oldest.json` then names each import of train_templates/ with the keywords that it takes; null
where it takes any, or where a class has them from another one. Nothing is imported: the sources are read.
"""

from __future__ import annotations

import ast
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "train_templates" / "oldest.json"
PACKAGES = ("torch", "accelerate", "transformers", "peft")


def programs() -> dict[str, ast.Module]:
    """The templates that run with these versions; Colossal-AI has its own."""
    files = sorted((ROOT / "train_templates").rglob("*.py"))
    return {file.name: ast.parse(file.read_text()) for file in files if file.name != "colossalai.py"}


def imported(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Module, name and the name here, of all that a program imports from these packages, at its top or inside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            yield from ((node.module or "", one.name, one.asname or one.name) for one in node.names)


def named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a program takes from `transformers` and `peft` themselves, by a dot."""
    for node in ast.walk(tree):
        owner = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id in ("transformers", "peft") and not node.attr.startswith("__"):
            yield owner.id, node.attr


def source_of(folder: Path, module: str) -> Path | None:
    """The file of a module."""
    path = folder.joinpath(*module.split("."))
    return next((one for one in (path / "__init__.py", path.with_suffix(".py")) if one.exists()), None)


@functools.cache
def parsed(file: Path) -> tuple[str, ast.Module]:
    """A file's text and its tree."""
    text = file.read_text(errors="replace")
    return text, ast.parse(text)


def keywords(folder: Path, module: str, name: str, depth: int = 8) -> list[str] | None:
    """What a name takes by keyword. Raises `KeyError` where there is no such name."""
    file = source_of(folder, module)
    if file is None or depth == 0:
        raise KeyError(name)
    if source_of(folder, f"{module}.{name}"):
        return None
    text, tree = parsed(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _parameters(node)
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            own = next(one.name for one in node.names if (one.asname or one.name) == name)
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            return keywords(folder, (above + (node.module or "")).strip("."), own, depth - 1)
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return None
    if f'"{name}"' in text:  # of a lazy package
        return None
    raise KeyError(name)


def _parameters(node: ast.FunctionDef | ast.ClassDef) -> list[str] | None:
    if isinstance(node, ast.ClassDef):
        made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
        if made is None:
            fields = [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            return (
                sorted(fields) if fields and all(ast.unparse(base) == "KwargsHandler" for base in node.bases) else None
            )
        node = made
    taken = node.args
    if taken.kwarg:
        return None
    return sorted({one.arg for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)} - {"self"})


def main(folder: Path) -> None:
    """Write the record."""
    found: dict[str, dict[str, list[str] | None]] = {}
    for tree in programs().values():
        for module, name in (*((a, b) for a, b, _ in imported(tree)), *named(tree)):
            try:
                found.setdefault(module, {})[name] = keywords(folder, module, name)
            except KeyError:
                print(f"there is no {name} in {module}", file=sys.stderr)
    RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
