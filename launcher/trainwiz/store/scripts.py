"""Reading a person's training script. Its text is taken as data; nothing of it ever runs."""

from __future__ import annotations

import ast
import functools
import io
import itertools
import os
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trainwiz import files, script
from trainwiz.errors import UsageError
from trainwiz.message import Message, say
from trainwiz.script.outline import Outline
from trainwiz.script.tree import statements

_LARGEST = 1 << 20
"""Bytes; no script is that long, and a syntax tree takes hundreds of times as many."""
_MOST_MODULES = 20
_MOST_BYTES = 200_000
"""What is read of one of a project's modules; larger ones are generated, or data."""
_MOST_TOGETHER = 300_000
"""Bytes of all modules of one script; what a library imports of itself has no end."""
_MOST_KEPT = 1_200_000
"""Bytes of modules that are kept for the next script; their trees take a hundred times as much."""
_MOST_NAMED = 1000
"""Scripts that are looked at for one to name where a folder was given."""
_MOST_LEVELS = 5
"""How deep a module may lie in its package."""


def read(path: str, arguments: Sequence[str] = ()) -> script.Script:
    """The script in this file, started with these arguments.

    Raises `UsageError` with what to type instead where there is none that can be read.
    """
    return script.read(path, read_text(path), arguments=arguments)


def with_modules(path: str, text: str | None = None) -> script.Script | None:
    """The script in this file, with the modules of its own project that it imports. Raises `UsageError`.

    It is good until the next one is read. `text` counts in place of what is in the file. None where neither it nor they
    have a word about training.
    """
    _MODULES.forget()
    given, text = text, read_text(path) if text is None else text
    # What is not in the file, or is too much for a module, is nothing that another script imports.
    shared = given is None and Path(path).stat().st_size <= _MOST_BYTES
    own = _MODULES.of(str(Path(path)), text) if shared else Module(str(Path(path)), text, (0, 0, 0))
    if own.tree is None:
        own.tree = script.parsed(path, text)  # which says what is wrong
    beside = Closure()
    beside.follow(own)
    found = beside.found
    if not any(module.about_training for module in (own, *found.values())):
        return None
    modules = [
        module.part(name) for name, module in found.items() if module.tree is not None and module.real != own.real
    ]
    return script.Script([*modules, script.part("__main__", path, text, own.whole)])


@dataclass
class Module:
    """One module of a project, read once for all scripts that import it."""

    file: str
    """Its path."""
    text: str
    """All of it."""
    seen: tuple[int, int, int]
    """What the file looked like when it was read."""
    _parts: dict[str, script.Part] = field(default_factory=dict)

    def part(self, name: str) -> script.Part:
        """It as scripts import it by this name."""
        if name not in self._parts:
            self._parts[name] = script.part(name, self.file, self.text, self.imported)
        return self._parts[name]

    @cached_property
    def tree(self) -> ast.Module | None:
        """Its syntax tree; None where it is not valid Python."""
        try:
            return script.parsed(self.file, self.text)
        except UsageError:
            return None

    @cached_property
    def real(self) -> str:
        """Its file, without links."""
        return _real(self.file)

    @cached_property
    def about_training(self) -> bool:
        """Whether it has a word about training."""
        return script.about_training([self.text])

    @cached_property
    def imports(self) -> tuple[tuple[str, str], ...]:
        """The modules of its project that it imports, with their names."""
        return tuple(dict.fromkeys(_imported(self.file, self.tree))) if self.tree is not None else ()

    @cached_property
    def imported(self) -> Outline:
        """What an import of it runs, indexed: the same as `whole` where that is all of it."""
        assert self.tree is not None
        return script.module_outline(self.tree) if script.has_main_guard(self.tree) else self.whole

    @cached_property
    def whole(self) -> Outline:
        """All of it, indexed."""
        assert self.tree is not None
        return Outline(self.tree)

    def release(self) -> None:
        """Give up its tree."""
        for outline in {self.__dict__[name] for name in ("imported", "whole") if name in self.__dict__}:
            outline.release()


class Modules:
    """The modules that were read last, as far as they fit."""

    def __init__(self) -> None:
        self._kept: dict[str, Module] = {}
        self._bytes = 0

    def of(self, file: str, text: str | None = None) -> Module:
        """The module in a file, or of this text. Raises `OSError`, `UnicodeDecodeError`."""
        state = os.stat(file)
        seen = (state.st_mtime_ns, state.st_size, state.st_ino)
        found = self._kept.pop(file, None)
        if found is not None and (found.seen != seen or (text is not None and found.text != text)):
            self._bytes -= len(found.text)
            found = None
        if found is None:
            if text is None:
                text = files.read_text(file) if state.st_size <= _MOST_BYTES else ""
            found = Module(file, text, seen)
            self._bytes += len(text)
        self._kept[file] = found
        return found

    def forget(self) -> None:
        """Let go of those that were not read for long; no script that was read before may be in use."""
        while self._bytes > _MOST_KEPT:
            first = self._kept.pop(next(iter(self._kept)))
            self._bytes -= len(first.text)
            first.release()


_MODULES = Modules()


@dataclass
class Closure:
    """The modules that a script imports from beside itself, and those that they import."""

    found: dict[str, Module] = field(default_factory=dict)
    """By their names, those that others import first."""
    _files: set[str] = field(default_factory=set)
    _characters: int = 0

    def follow(self, importer: Module) -> None:
        """Add what a module imports, as far as it fits."""
        found = self.found
        for name, file in _of_training_first(importer):
            if name in found or len(found) >= _MOST_MODULES or file in self._files:
                continue
            try:
                module = _MODULES.of(file)
            except (OSError, UnicodeDecodeError):
                continue
            if self._characters + len(module.text) > _MOST_TOGETHER:
                continue
            self._characters += len(module.text)
            self._files.add(file)
            found[name] = module  # modules that import each other; what is still being followed counts, too
            self.follow(module)
            del found[name]
            found[name] = module


def _of_training_first(importer: Module) -> Sequence[tuple[str, str]]:
    """What a module imports; of a program, those with a backward pass first where there may be too many."""
    if len(importer.imports) < _MOST_MODULES // 2 or "__main__" not in importer.text:
        return importer.imports
    return sorted(importer.imports, key=lambda one: not _learns(one[1]))


def _learns(file: str) -> bool:
    try:
        return ".backward(" in _MODULES.of(file).text
    except (OSError, UnicodeDecodeError):
        return False


def _imported(file: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The modules that a file imports and that are files of its project, with their names."""
    beside = str(Path(file).parent)
    is_other: dict[str, bool] = {}
    for node in statements(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        folder = beside
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            for _ in range(node.level - 1):
                folder = str(Path(folder).parent)
            names = [node.module] if node.module else [alias.name for alias in node.names]
        for name in names:
            absolute = isinstance(node, ast.ImportFrom) and not node.level
            for base in [folder, *(_roots(folder) if absolute else ())]:
                module = f"{base}/{name.replace('.', '/')}.py"
                if module not in is_other:
                    is_other[module] = _is_file(module) and _real(module) != _real(file)
                if is_other[module]:
                    yield name, str(Path(module))
                    break


@functools.lru_cache(maxsize=10_000)
def _roots(folder: str) -> tuple[str, ...]:
    """The folders from which a script's project may be imported: above it, up to where its package lies."""
    above = Path(folder)
    found = [str(above.parent)]
    for _ in range(_MOST_LEVELS):
        if not _is_file(f"{above}/__init__.py"):
            break
        above = above.parent
        found.append(str(above))
    return tuple(found)


@functools.lru_cache(maxsize=50_000)
def _is_file(path: str) -> bool:
    return os.path.isfile(path)


@functools.lru_cache(maxsize=10_000)
def _real(path: str) -> str:
    return os.path.realpath(path)


def look_anew() -> None:
    """Forget which files and folders there are."""
    _roots.cache_clear()
    _is_file.cache_clear()
    _real.cache_clear()


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
    scripts = sorted(folder.glob("*.py")) or sorted(itertools.islice(folder.glob("**/*.py"), _MOST_NAMED))
    likely = next((s for s in scripts if s.name == "train.py"), scripts[0] if scripts else None)
    if likely is None:
        return UsageError(message, say("choose a folder with Python files: {path} has none", path=str(folder)))
    return UsageError(message, say("run: trainwiz lint {script}", script=str(likely)))


def _nearby(file: Path) -> Message | None:
    scripts = sorted(file.parent.glob("*.py"))[:5] if file.parent.is_dir() else []
    if not scripts:
        return None
    return say("choose a script in that folder: {names}", names=", ".join(s.name for s in scripts))
