"""Reading a user's training script. Its text is data; none of it is ever run."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import os
import re
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
from trainwiz.shell_words import quoted

_LARGEST = 1 << 20
"""Bytes; no script is that long, and a syntax tree takes hundreds of times as many."""
_MOST_MODULES = 20
_MOST_LEARNING = 4
"""How many modules with a backward pass are read beyond these: a loop may lie deep below a project's registries."""
_MOST_BYTES = 200_000
"""What is read of one of a project's modules; larger ones are generated, or data."""
_MOST_TOGETHER = 300_000
"""The most bytes of all modules of one script; the imports of a library itself may be endless."""
_MOST_KEPT = 50 << 20
"""Bytes that modules take which are kept for the next script, together with it."""
_MARKS = ",.(=[:"
"""What stands in a text about as often as its tree has nodes: twice in three of them."""
_BYTES_OF_MARK = 750
"""Memory for the nodes of each, and for their index."""
_MOST_NAMED = 1000
"""Scripts that are looked at for one to name where a folder was given."""
_FOLLOWED = re.compile(
    r"\.backward\(|\.step\(|zero_grad|yield|DataLoader|Dataset|[Ss]ampler|distributed|accelerat|deepspeed|fabric|rank|"
    r"lightning|Trainer|torch\.optim|from_pretrained|lr_scheduler|barrier|reduce|gather|broadcast|seed|wandb|Writer|"
    r"loss|save|load|open\("
)
"""Words without which a module of a package has nothing that concerns a rule."""
_NEVER = (0, 0, 0)
"""The stat of a text that is in no file."""
_TOPS = (".git", "setup.py", "pyproject.toml", "requirements.txt")
"""What lies in a project's uppermost folder."""
_MOST_ABOVE = 2
"""How far above its package a project's uppermost folder is looked for."""
_MOST_LEVELS = 5
"""How deep a module may lie in its package."""


def read(path: str, arguments: Sequence[str] = ()) -> script.Script:
    """The script in this file, started with these arguments.

    Raises `UsageError` with what to type instead where there is none that can be read.
    """
    return script.read(path, read_text(path), arguments=arguments)


def with_modules(path: str, text: str | None = None) -> script.Script | None:
    """The script in this file, with the modules of its own project that it imports. Raises `UsageError`.

    It is valid until the next one is read. Changes of modules are seen after `refresh_modules`. `text` counts in place
    of what is in the file. None where neither it nor they have a word about training.
    """
    given, text = text, read_text(path) if text is None else text
    _MODULES.forget(_taken(text))
    # A text that is not in the file, or is too long for a module, cannot be imported by another script.
    file = str(Path(path))
    shared = given is None and _seen(file)[1] <= _MOST_BYTES
    own = _MODULES.of(file, text) if shared else Module(file, text, _NEVER)
    if not shared:
        _IMPORTS.pop((own.file, _NEVER), None)
    if own.tree is None:
        own.tree = script.parsed(path, text)  # which says what is wrong
    found: dict[str, Module] = {}
    _collect(own, found)
    if not any(module.about_training for module in (own, *found.values())):
        return None
    modules = [
        module.part(name)
        for name, module in found.items()
        if module.tree is not None and not _is_same(module.file, own.file)
    ]
    return script.Script([*modules, script.part("__main__", path, text, own.whole)])


@dataclass
class Module:
    """One module of a project, read once for all scripts that import it."""

    file: str
    """Its path."""
    text: str
    """The whole text."""
    seen: tuple[int, int, int]
    """The file's stat when it was read."""
    _parts: dict[str, script.Part] = field(default_factory=dict)

    def part(self, name: str) -> script.Part:
        """The module as scripts import it under this name."""
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
    def about_training(self) -> bool:
        """Whether it has a word about training."""
        return script.about_training([self.text])

    @cached_property
    def about_ranks(self) -> bool:
        """Whether it has a word about what rules follow into modules: loops, data, updates, ranks and files."""
        return _FOLLOWED.search(self.text) is not None

    @cached_property
    def imports(self) -> tuple[tuple[str, str], ...]:
        """The modules of its project that it imports, with their names."""
        key = self.file, self.seen
        if key not in _IMPORTS:
            _IMPORTS[key] = tuple(_imported(self.file, self.tree)) if self.tree is not None else ()
        return _IMPORTS[key]

    @property
    def taken(self) -> int:
        """About how many bytes it takes."""
        return len(self.text) + (self._of_tree if "tree" in self.__dict__ else 0)

    @cached_property
    def _of_tree(self) -> int:
        return _taken(self.text)

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

    def of(self, file: str, text: str | None = None) -> Module:
        """The module in a file, or of this text. Raises `OSError`, `UnicodeDecodeError`."""
        seen = _seen(file)
        found = self._kept.pop(file, None)
        if found is not None and (found.seen != seen or (text is not None and found.text != text)):
            found = None
        if found is None:
            if text is None:
                text = files.read_text(Path(file)) if seen[1] <= _MOST_BYTES else ""
            found = Module(file, text, seen)
        self._kept[file] = found
        return found

    def forget(self, coming: int) -> None:
        """Drop those that were not read for long, for so many bytes; no script that was read before may be in use."""
        left = _MOST_KEPT - coming - sum(module.taken for module in self._kept.values())
        while self._kept and left < 0:
            first = self._kept.pop(next(iter(self._kept)))
            left += first.taken
            first.release()


def _taken(text: str) -> int:
    """About how many bytes the tree of a text takes, with its index."""
    return _BYTES_OF_MARK * sum(map(text.count, _MARKS))


_MODULES = Modules()
_IMPORTS: dict[tuple[str, tuple[int, int, int]], tuple[tuple[str, str], ...]] = {}
"""The imports of all files, by their stat: small, and most files are read again after their trees went."""


def _collect(program: Module, found: dict[str, Module]) -> None:
    """Add the modules that a program imports from beside itself: its own first where there may be too many.

    Those that modules import come before them.
    """
    levels: list[dict[str, Module]] = [{}]
    importers, known, size = [program], {program.file}, 0
    while importers:
        for name, file in (one for importer in importers for one in _of_training_first(importer)):
            if any(name in level for level in levels) or file in known or len(known) > _MOST_MODULES + _MOST_LEARNING:
                continue
            if len(known) > _MOST_MODULES and not _learns(file):
                continue
            try:
                module = _MODULES.of(file)
            except (OSError, UnicodeDecodeError):
                continue
            if ("." not in name or module.about_ranks or module.imports) and size + len(module.text) <= _MOST_TOGETHER:
                levels[-1][name] = module
                known.add(file)
                size += len(module.text)
        importers = list(levels[-1].values())
        levels.append({})
    for level in reversed(levels):
        found.update(level)


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
    beside = Path(file).parent
    is_other: dict[str, bool] = {}
    for node in statements(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        folder = beside
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            for _ in range(node.level - 1):
                folder = folder.parent
            names = _named(node)
            if node.level and not node.module and _is_file(f"{folder}/__init__.py"):
                yield folder.name, str(folder / "__init__.py")
        absolute = isinstance(node, ast.ImportFrom) and not node.level
        bases = _bases(str(folder)) if absolute else (str(folder),)
        for name in names:
            top = name.partition(".")[0]
            for base in bases:
                module = _module_of(base, name) if _holds(base, top) else ""
                if module and module not in is_other:
                    is_other[module] = not _is_same(module, file)
                if module and is_other[module]:
                    yield name, module
                    break


def _named(node: ast.ImportFrom) -> list[str]:
    """What may be modules in `from a import b`: `a`, and `a.b` of a package `a`."""
    if not node.module:
        return [alias.name for alias in node.names]
    return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]


def _module_of(base: str, name: str) -> str:
    """The file of a module, or of a package; empty where there is none below the folder."""
    path = f"{'' if base == '.' else base.rstrip('/') + '/'}{name.replace('.', '/')}"
    if _is_file(f"{path}.py"):
        return f"{path}.py"
    return f"{path}/__init__.py" if _is_file(f"{path}/__init__.py") else ""


@functools.lru_cache(maxsize=10_000)
def _roots(folder: Path) -> tuple[Path, ...]:
    """The folders from which a script's project may be imported: above it, up to where its package lies."""
    found, above = [folder.parent], folder
    for _ in range(_MOST_LEVELS):
        if not _is_file(f"{above}/__init__.py"):
            break
        above = above.parent
        found.append(above)
    for _ in range(_MOST_ABOVE):  # a program may lie in a folder of the project that is no package
        if any(os.path.exists(f"{found[-1]}/{name}") for name in _TOPS) or found[-1] == found[-1].parent:
            break
        found.append(found[-1].parent)
    return tuple(found)


@functools.lru_cache(maxsize=10_000)
def _bases(folder: str) -> tuple[str, ...]:
    """The folder of a script, those above it, and the sources beside it: `scripts/train.py` and `src/package`."""
    above = [*map(str, _roots(Path(folder)))]
    sources = [f"{base}/src" for base in above if os.path.isdir(f"{base}/src")]
    return folder, *above, *sources


@functools.lru_cache(maxsize=50_000)
def _holds(base: str, name: str) -> bool:
    """Whether a folder has a module or a package of this name."""
    return os.path.exists(f"{base}/{name}.py") or os.path.isdir(f"{base}/{name}")


@functools.lru_cache(maxsize=50_000)
def _is_file(path: str) -> bool:
    return os.path.isfile(path)


@functools.lru_cache(maxsize=50_000)
def _seen(path: str) -> tuple[int, int, int]:
    """The stat of a file, by which a change is seen. Raises `OSError`."""
    state = os.stat(path)
    return state.st_mtime_ns, state.st_size, state.st_ino


def _is_same(one: str, other: str) -> bool:
    """Whether two paths lead to the same file, by links too."""
    with contextlib.suppress(OSError):  # a text may be in no file
        if _seen(one) != _seen(other):
            return False
    return _real(one) == _real(other)


@functools.lru_cache(maxsize=10_000)
def _real(path: str) -> str:
    return os.path.realpath(path)


def refresh_modules() -> None:
    """Forget which files and folders there are, and which of them changed."""
    _roots.cache_clear()
    _bases.cache_clear()
    _holds.cache_clear()
    _is_file.cache_clear()
    _seen.cache_clear()
    _real.cache_clear()
    _IMPORTS.clear()


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
    return UsageError(message, say("run: trainwiz lint {script}", script=quoted(likely)))


def _nearby(file: Path) -> Message | None:
    scripts = sorted(file.parent.glob("*.py"))[:5] if file.parent.is_dir() else []
    if not scripts:
        return None
    return say("choose a script in that folder: {names}", names=", ".join(s.name for s in scripts))
