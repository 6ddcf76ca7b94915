"""Folders of data: which of their files are read, for training or for evaluation, as the generated splits.py says."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz.files import read_json
from trainwiz.probe.first_rows import kind

PARTS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing"),
}
_ABOUT = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json")
_NO_DATA = re.compile(r"readme|licen[cs]e|changelog|citation|notice", re.IGNORECASE)
"""Beginnings of the names of files that people put beside data."""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """The files of a folder that are read."""

    files: tuple[Path, ...]
    """Of the part that was asked for."""
    parts: tuple[str, ...] = ()
    """Words for the parts that its files are named by; empty: they are one."""
    evaluation_part: str = ""
    """The part to evaluate on, by its name in `parts`; empty: none."""
    left_out: tuple[str, ...] = ()
    """Files in formats that are not read."""
    unnamed: tuple[str, ...] = ()
    """Files without a part in their names, beside training data that has one."""
    complete: bool = True
    """Whether there was time to list all files."""


# docs/decisions/tasks.md: Names say which part of the data a file is
def word_of(name: str) -> str:
    """The word for a part that a name begins or ends with; empty: it has none."""
    words = [word.removesuffix("set") for word in re.split("[^a-z]+", name.lower()) if word]
    return next((word for word in (*words[:1], *words[-1:]) if word in PARTS["train"] + PARTS["validation"]), "")


def is_shown(name: str | Path) -> bool:
    """Whether a person put it there, and not a file manager, an editor or an archiver."""
    return not any(part.startswith(".") or part == "__MACOSX" for part in Path(name).parts)


def is_saved(path: Path) -> bool:
    """Whether a folder is a dataset that `save_to_disk` of datasets wrote."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def best_for_evaluation(words: Sequence[str]) -> str:
    """The part that is evaluated on; empty: there is none."""
    return next((word for word in PARTS["validation"] if word in words), "")


def of_folder(folder: Path, suffixes: Sequence[str], split: str, *, seconds: float = float("inf")) -> Inside:
    """The files of a folder at any depth, or the folder itself where datasets wrote it as a whole."""
    if is_saved(folder):
        words = _saved_parts(folder)
        return Inside(files=(folder,), parts=words, evaluation_part=best_for_evaluation(words))
    began, found, left_out, complete = time.monotonic(), [], [], True
    for file in folder.rglob("*"):
        inside = file.relative_to(folder)
        if is_shown(inside) and file.name not in _ABOUT and file.is_file():
            if kind(file) in suffixes:
                found.append(file)
            elif not _NO_DATA.match(file.name):
                left_out.append(str(inside))
        complete = time.monotonic() - began <= seconds
        if not complete:
            break
    words_of = {file: next(filter(None, map(word_of, _names(folder, file))), "") for file in sorted(found)}
    training = [file for file, word in words_of.items() if word in PARTS["train"]]
    others = [file for file, word in words_of.items() if not word]
    if not _are_parts(folder, words_of, training, others):
        return Inside(files=tuple(words_of), left_out=tuple(sorted(left_out)), complete=complete)
    names = {word for word in words_of.values() if word}
    best = best_for_evaluation([*names])
    chosen = (training or others) if split == "train" else [file for file, word in words_of.items() if word == best]
    return Inside(
        files=tuple(chosen),
        parts=tuple(sorted(names)),
        evaluation_part=best,
        left_out=tuple(sorted(left_out)),
        unnamed=tuple(str(file.relative_to(folder)) for file in others) if training else (),
        complete=complete,
    )


def _are_parts(folder: Path, words: Mapping[Path, str], training: list[Path], others: list[Path]) -> bool:
    """Whether the names of some files say that they are for evaluation, as the generated splits.py decides."""
    if not any(word in PARTS["validation"] for word in words.values()) or not (training or others):
        return False
    if not others or all(any(map(_is_bare, _names(folder, file))) for file, word in words.items() if word):
        return True
    return bool(training) and not any(".txt" in file.suffixes for file in words)


def _is_bare(name: str) -> bool:
    """Whether a name is a word for a part and numbers: train-00000-of-00003."""
    words = [word for word in re.split("[^a-z]+", name.lower()) if word not in ("", "of")]
    return len(words) == 1 and bool(word_of(name))


def _names(folder: Path, file: Path) -> tuple[str, ...]:
    inside = file.relative_to(folder)
    return (*inside.parent.parts, inside.name.partition(".")[0])


def tables_of(folder: Path, split: str) -> tuple[Path, ...]:
    """The .arrow files of a dataset that `save_to_disk` wrote, of its part for training or evaluation."""
    parts = _saved_parts(folder)
    inside = next((folder / name for name in PARTS[split] if name in parts), folder)
    try:
        return tuple(inside / Path(file["filename"]).name for file in read_json(inside / "state.json")["_data_files"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _saved_parts(folder: Path) -> tuple[str, ...]:
    """The parts of a dataset that `save_to_disk` wrote, by the file that lists them."""
    try:
        return tuple(map(str, read_json(folder / "dataset_dict.json")["splits"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()
