"""Reading a person's training script. Its text is taken as data; nothing of it ever runs."""

from __future__ import annotations

import ast
import contextlib
import io
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainwiz import files, script
from trainwiz.errors import UsageError
from trainwiz.message import Message, say
from trainwiz.script.tree import statements

_LARGEST = 1 << 20
"""Bytes; no script is that long, and a syntax tree takes hundreds of times as many."""
_MOST_MODULES = 20
_MOST_BYTES = 200_000
"""What is read of one of a project's modules; larger ones are generated, or data."""
_MOST_TOGETHER = 300_000
"""Bytes of all modules of one script; what a library imports of itself has no end."""
_MOST_LEVELS = 5
"""How deep a module may lie in its package."""


def read(path: str, arguments: Sequence[str] = ()) -> script.Script:
    """The script in this file, started with these arguments.

    Raises `UsageError` with what to type instead where there is none that can be read.
    """
    return script.read(path, read_text(path), arguments=arguments)


def with_modules(path: str, text: str | None = None) -> script.Script | None:
    """The script in this file, with the modules of its own project that it imports. Raises `UsageError`.

    None where neither it nor they have a word about training. `text` counts in place of what is in the file.
    """
    text = read_text(path) if text is None else text
    found: dict[str, tuple[Path, str]] = {}
    trees = {text: script.parsed(path, text)}
    _collect(Path(path), trees[text], found, trees)
    if not script.about_training([text, *(source for _, source in found.values())]):
        return None
    own = Path(path).resolve()
    return script.read(
        path,
        text,
        [(name, str(file), source) for name, (file, source) in found.items() if file.resolve() != own],
        trees,
    )


def _collect(file: Path, tree: ast.Module, found: dict[str, tuple[Path, str]], trees: dict[str, ast.Module]) -> None:
    """Add the modules that a file imports from beside itself, those that they import first."""
    for name, module in _imported(file, tree):
        if name in found or len(found) >= _MOST_MODULES or any(module == other for other, _ in found.values()):
            continue
        try:
            source = files.read_text(module) if module.stat().st_size <= _MOST_BYTES else ""
        except (OSError, UnicodeDecodeError):
            continue
        if sum(len(text) for _, text in found.values()) + len(source) > _MOST_TOGETHER:
            continue
        found[name] = (module, source)  # modules that import each other; what is still being followed counts, too
        with contextlib.suppress(UsageError):  # no valid Python: nothing is known of what it imports
            trees[source] = script.parsed(str(module), source)
            _collect(module, trees[source], found, trees)
        del found[name]
        found[name] = (module, source)


def _imported(file: Path, tree: ast.Module) -> Iterator[tuple[str, Path]]:
    """The modules that a file imports and that are files of its project, with their names."""
    own = file.resolve()
    for node in statements(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        folder = file.parent
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            for _ in range(node.level - 1):
                folder = folder.parent
            names = [node.module] if node.module else [alias.name for alias in node.names]
        for name in names:
            for base in [folder, *(_roots(folder) if isinstance(node, ast.ImportFrom) and not node.level else [])]:
                module = base.joinpath(*name.split(".")).with_suffix(".py")
                if module.is_file() and module.resolve() != own:
                    yield name, module
                    break


def _roots(folder: Path) -> Iterator[Path]:
    """The folders from which a script's project may be imported: above it, up to where its package lies."""
    yield folder.parent
    for _ in range(_MOST_LEVELS):
        if not (folder / "__init__.py").is_file():
            return
        folder = folder.parent
        yield folder


def read_text(path: str) -> str:
    """What is in the script. Raises `UsageError`."""
    file = Path(path)
    if file.is_dir():
        raise _folder(file)
    if file.suffix == ".ipynb":
        raise UsageError(
            say("{path} is a notebook; lint only reads Python files", path=path),
            say("run: jupyter nbconvert --to script {path}, then lint the .py file", path=path),
        )
    try:
        raw = files.read_bytes(file, _LARGEST)
    except FileNotFoundError:
        raise UsageError(say("{path} does not exist", path=path), _nearby(file)) from None
    except OSError as error:
        raise UsageError(
            say("{path} cannot be read: {reason}", path=path, reason=error.strerror or str(error))
        ) from None
    return _decoded(path, raw)


def _decoded(path: str, raw: bytes) -> str:
    """The text, by the encoding that the file declares as Python files do, else UTF-8."""
    encoding = "utf-8"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(
            say(
                "{path}:{line}: byte {byte} is not valid {encoding}",
                path=path,
                line=line,
                byte=f"0x{raw[error.start]:02x}",
                encoding=encoding,
            ),
            say("save the file as UTF-8, or declare its encoding on the first line: # -*- coding: latin-1 -*-"),
        ) from None
    except LookupError as error:  # a codec that is none of texts
        raise UsageError(say("{path}: {reason}", path=path, reason=str(error)), say("save the file as UTF-8")) from None
    except SyntaxError as error:  # the declared encoding does not exist, or the first lines are not in it
        raise UsageError(say("{path}: {reason}", path=path, reason=error.msg), say("save the file as UTF-8")) from None


def _folder(folder: Path) -> UsageError:
    message = say("{path} is a folder; lint expects a script", path=str(folder))
    scripts = sorted(folder.glob("*.py"))
    likely = next((s for s in scripts if s.name == "train.py"), scripts[0] if scripts else None)
    return UsageError(message, say("run: trainwiz lint {script}", script=str(likely)) if likely else None)


def _nearby(file: Path) -> Message | None:
    scripts = sorted(file.parent.glob("*.py"))[:5] if file.parent.is_dir() else []
    if not scripts:
        return None
    return say("choose a script in that folder: {names}", names=", ".join(s.name for s in scripts))
