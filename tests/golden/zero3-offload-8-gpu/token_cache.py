"""Documents as token ids in files, written once: by all cores, in the order of the data, and shared by all ranks.

A folder `tokens-…` is named after what decides its tokens, and nothing else: the content of the data's files, the
tokenizer, and the functions that read and encode. Sequence length, packing and the part kept for evaluation are decided
later, by rows.py. What was tokenized before an interruption is kept, and the next start continues from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sources
from definitions import source_of
from encoders import DOCUMENT, Encoder, Interrupted, Notes, cores, encoded_batches, merge, pack
from sources import Row, Sources

FORMAT = 1  # of the format below; another number makes all folders new
SOME = 1 << 16  # documents that are processed together
COMMIT_SECONDS, FIRST_LINE_SECONDS, LINE_SECONDS = 2.0, 2.0, 20.0


@functools.cache
def tell(line: str) -> None:
    """Print a line about the data once, on the first rank: training and evaluation may be parts of the same data."""
    if os.environ.get("RANK", "0") == "0":
        print(line, flush=True)


def retold(notes: list[str], before: list[str], now: list[str]) -> list[str]:
    """Return notes that were stored, with the present names of the data and its files.

    Other projects share the notes as they share the tokens, and may call the same data differently.
    """
    # The longest name first: a dataset of the hub may be named as the beginning of another one.
    pairs = sorted(zip(before, now, strict=False), key=lambda pair: len(pair[0]), reverse=True)
    found = []
    for note in notes:
        old, new = next((pair for pair in pairs if note.startswith(f"{pair[0]}:")), ("", ""))
        found.append(new + note[len(old) :])
    return found


@dataclass(kw_only=True)
class Recipe:
    """How documents become tokens. Tokens that are given but not learned are complemented."""

    name: str
    """The data, as the settings name it."""
    rows: Sources | Iterable[Row]
    """Its rows; those that need no file for embedded data."""
    decided_by: list[Any]
    """What decides the tokens besides the rows: the tokenizer, columns, versions."""
    code: list[Callable[..., Any]]
    """The functions and classes that make and encode the rows."""
    encoder: Callable[[], Encoder]
    """Makes the encoder, once it is needed."""

    @property
    def names(self) -> list[str]:
        """What notes on the data begin with: its name, or one of its files."""
        files = self.rows.found.values() if isinstance(self.rows, Sources) else []
        return [self.name, *(str(file) for some in files for file in some)]

    def key(self, data: list[Any]) -> str:
        """Return a hash of data and of all else that decides the tokens."""
        keys = [FORMAT, data, self.decided_by, source_of(*self.code, Sources, pack)]
        return hashlib.blake2b(json.dumps(keys).encode(), digest_size=12).hexdigest()


@dataclass
class Progress:
    """How much of the data is in the files of an unfinished folder."""

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    notes: Notes = field(default_factory=dict)


class Tokens:
    """The tokens of all documents, mapped from the files of a folder."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder = folder
        self.about = json.loads((folder / "about.json").read_text())
        self.about["data"] = name or self.about["data"]  # another project may have written them, under its own name
        self.ids = np.memmap(folder / "tokens", dtype=self.about["dtype"], mode="r")

    @property
    def names(self) -> list[str]:
        """What notes on these tokens begin with."""
        return [self.about["data"]]

    def documents(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield what is known about the documents, some at a time: mapped as a whole, it would count as memory."""
        with (self.folder / "documents").open("rb") as file:
            while len(some := np.fromfile(file, dtype=DOCUMENT, count=SOME)):
                yield some


def tokens_of(cache: str, recipe: Recipe) -> Tokens:
    """Return the tokens, which the first rank of each machine writes if they are not there."""
    files = isinstance(recipe.rows, Sources)
    data = recipe.rows.stamps() if files else [recipe.name]  # type: ignore[union-attr]
    # Files that did not change since need not be read again to know what the folder is called.
    known = Path(cache) / "known" / recipe.key(data)
    with stoppable():
        if os.environ.get("LOCAL_RANK", "0") == "0":
            folder = named_by(known)
            if folder is None:
                content = recipe.rows.contents() if files else [recipe.name]  # type: ignore[union-attr]
                folder = Path(cache) / f"tokens-{recipe.key(content)}"
                write_once(folder, recipe)
                replace(known, folder.name)
        while (folder := named_by(known)) is None:  # a collective might time out before the files are written
            time.sleep(0.05)
    with contextlib.suppress(OSError):
        os.utime(folder)  # marks it as used: what nobody uses can be deleted
    tokens = Tokens(folder, recipe.name)
    # Told at each start, not only where the tokens are written: what is not learned stays so.
    for kind, (count, place) in tokens.about["notes"].items():
        (place,) = retold([place], tokens.about.get("names", []), recipe.names)
        tell(f"  {kind} ({count}, the first: {place})")
    return tokens


def tell_repeated(trained: Tokens, evaluated: Tokens) -> None:
    """Say how many documents for evaluation are trained on, too. The number is stored, for the next start."""
    if os.environ.get("RANK", "0") != "0":
        return
    parts = repr([part.folder.name for part in getattr(trained, "parts", [trained])]).encode()
    path = evaluated.folder / f"repeated-{hashlib.blake2b(parts, digest_size=12).hexdigest()}.json"
    try:
        count, total = json.loads(path.read_text())
    except (OSError, ValueError):
        count, total = repeated(trained, evaluated)
        with contextlib.suppress(OSError):  # another training may delete what it does not use
            replace(path, json.dumps([count, total]))
    if count:
        name, others = evaluated.about["data"], trained.about["data"]
        tell(f"{name}: {count:,} of {total:,} documents for evaluation are also in the training data: {others}")


def repeated(trained: Tokens, evaluated: Tokens) -> tuple[int, int]:
    """Return how many documents for evaluation are also among those that are trained on, and how many there are."""
    hashes = np.concatenate([some["hash"][some["size"] > 0] for some in evaluated.documents()])
    known, counts = np.unique(hashes, return_counts=True)
    seen = np.zeros(len(known), dtype=bool)
    for some in trained.documents():
        place = np.minimum(np.searchsorted(known, some["hash"]), len(known) - 1)
        seen[place[(known[place] == some["hash"]) & (some["size"] > 0)]] = True
    return int(counts[seen].sum()), len(hashes)


def named_by(known: Path) -> Path | None:
    """Return the folder that a file of `known/` names, if it is complete."""
    try:
        folder = known.parent.parent / known.read_text()
    except FileNotFoundError:
        return None
    return folder if folder.is_dir() else None


def write_once(folder: Path, recipe: Recipe) -> None:
    """Write the folder, or wait until another process that writes it is done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock_file = folder.parent / "known" / f"{folder.name}.lock"  # it stays, since another process may wait for it
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        partial = folder.with_name(f"{folder.name}.partial")
        try:
            while not locked(lock):
                if folder.is_dir():
                    return
                time.sleep(0.2)
        except OSError:  # a file system without locks
            partial = folder.with_name(f"{folder.name}.{socket.gethostname()}-{os.getpid()}.partial")
        if not folder.is_dir():
            try:
                write(partial, recipe)
            except SystemExit as error:
                if not isinstance(error, Interrupted):  # data that cannot be read has another name once it is repaired
                    shutil.rmtree(partial, ignore_errors=True)
                raise
            with contextlib.suppress(OSError):  # without locks, another one may have been faster
                partial.rename(folder)


def locked(lock: Any) -> bool:
    """Return whether this process holds the lock now. Raises `OSError` where there are none."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write(partial: Path, recipe: Recipe) -> None:
    """Append the documents that a folder does not have yet, and report progress."""
    partial.mkdir(exist_ok=True)
    done = read_progress(partial)
    paths = partial / "tokens", partial / "documents"
    report = Report(recipe, done)
    report.begin()
    encoder = recipe.encoder()
    itemsize = np.dtype(encoder.dtype).itemsize
    for path, length in zip(paths, (done.tokens * itemsize, done.documents * DOCUMENT.itemsize), strict=True):
        path.touch()
        os.truncate(path, length)  # what was written after the latest commit
    if done.rows:
        print(f"{recipe.name}: continuing after {done.rows} rows that are already tokenized", flush=True)
    with paths[0].open("ab") as tokens, paths[1].open("ab") as documents:
        committed = time.monotonic()
        for encoded in encoded_batches(recipe.rows, encoder, done.rows):
            tokens.write(encoded.tokens)
            documents.write(encoded.documents)
            done.rows += encoded.rows
            done.documents += len(encoded.documents) // DOCUMENT.itemsize
            done.tokens += len(encoded.tokens) // itemsize
            merge(done.notes, encoded.notes)
            report.line()
            if time.monotonic() - committed > COMMIT_SECONDS:
                commit(partial, done, tokens, documents)
                committed = time.monotonic()
        commit(partial, done, tokens, documents)
    if not done.documents:
        raise SystemExit(f"{recipe.name}: no text to train on")
    about = {"data": recipe.name, "names": recipe.names, "dtype": encoder.dtype, **vars(done)}
    replace(partial / "about.json", json.dumps(about, indent=1))
    report.end()


def read_progress(partial: Path) -> Progress:
    """Return how far a folder is."""
    try:
        return Progress(**json.loads((partial / "progress.json").read_text()))
    except (OSError, ValueError, TypeError):
        return Progress()


def commit(partial: Path, done: Progress, *files: Any) -> None:
    """Keep what is written so far, whatever happens next."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    replace(partial / "progress.json", json.dumps(vars(done)))


def replace(path: Path, text: str) -> None:
    """Write a small file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}")
    aside.write_text(text)
    aside.replace(path)


class Report:
    """Progress lines: the first after two seconds."""

    def __init__(self, recipe: Recipe, done: Progress) -> None:
        self.recipe, self.done, self.began, self.next = recipe, done, time.monotonic(), FIRST_LINE_SECONDS
        # Bytes that were read before the first document: after an interruption, what is tokenized already.
        self.skipped: int | None = None if done.rows else 0

    def begin(self) -> None:
        """Print what has to be done, if it takes long."""
        if isinstance(self.recipe.rows, Sources) and self.recipe.rows.large:
            size = f"{self.recipe.rows.total_bytes / 1e6:,.0f} MB, " if self.recipe.rows.total_bytes else ""
            print(f"tokenizing {self.recipe.name}: {size}{cores()} processes", flush=True)

    def line(self) -> None:
        """Print a line if one is due."""
        rows, seconds = self.recipe.rows, time.monotonic() - self.began
        if self.skipped is None:
            self.skipped = rows.read_bytes if isinstance(rows, Sources) else 0
        if seconds < self.next:
            return
        self.next = seconds + LINE_SECONDS
        if not isinstance(rows, Sources) or not rows.total_bytes:
            print(f"tokenizing {self.recipe.name}: {self.done.tokens:,} tokens", flush=True)
            return
        left = seconds * (rows.total_bytes - rows.read_bytes) / max(1, rows.read_bytes - self.skipped)
        print(
            f"tokenizing {self.recipe.name}: {rows.read_bytes / rows.total_bytes:.0%} of "
            f"{rows.total_bytes / 1e6:,.0f} MB, {self.done.tokens:,} tokens, about {left:,.0f} s left",
            flush=True,
        )

    def end(self) -> None:
        """Print that everything is tokenized, if there was a line before."""
        seconds = time.monotonic() - self.began
        if seconds >= FIRST_LINE_SECONDS:
            print(f"tokenized {self.recipe.name}: {self.done.tokens:,} tokens in {seconds:.0f} s", flush=True)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """End this process at once when it is asked to stop: nothing is trained yet, and what is tokenized is kept."""

    def stop(_number: int, _frame: object) -> None:
        print("stopped while preparing the data; the next start continues from here", flush=True)
        raise Interrupted(75)  # EX_TEMPFAIL, as a training that is stopped

    try:
        before = [(number, signal.signal(number, stop)) for number in SIGNALS]
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def versions() -> list[str]:
    """Return the versions that may change tokens."""
    import tokenizers
    import transformers

    return [transformers.__version__, tokenizers.__version__]


TOKENIZER_FILES = (
    *("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.model", "tekken.json"),
    *("chat_template*", "additional_chat_templates/*"),
)


def downloaded(name: str) -> Path:
    """Return the folder of a tokenizer of the hub."""
    import transformers
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[*TOKENIZER_FILES, "config.json"]))
    except (OSError, ValueError):
        transformers.AutoTokenizer.from_pretrained(name)  # its error says what to do
        raise


def tokenizer_key(name: str) -> list[Any]:
    """Return what decides a tokenizer: the content of its files, wherever they are."""
    folder = Path(name)
    if not folder.is_dir():
        folder = downloaded(name)
    files = sorted({file for pattern in TOKENIZER_FILES for file in folder.glob(pattern) if file.is_file()})
    config = folder / "config.json"
    kind = json.loads(config.read_text()).get("model_type") if config.is_file() else None
    return [kind, *((file.name, sources.hash_file(file)) for file in files)]
