"""Parts of a dataset by the names of its files and folders: `train-00000-of-00003.parquet`, `val/`, `seg_test`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

PARTS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing"),
}
"""Words for the part that is trained on, and for those that are not, in order of preference."""
ABOUT = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json")
"""Files that describe a dataset and hold none of its data."""


def word_of(name: str) -> str:
    """Return the word for a part that a name begins or ends with; empty: it has none."""
    words = [word.removesuffix("set") for word in re.split("[^a-z]+", name.lower()) if word]
    return next((word for word in (*words[:1], *words[-1:]) if word in PARTS["train"] + PARTS["validation"]), "")


def is_shown(name: str | Path) -> bool:
    """Return whether a person put it there, and not a file manager, an editor or an archiver."""
    return not any(part.startswith(".") or part == "__MACOSX" for part in Path(name).parts)


def is_bare(name: str) -> bool:
    """Return whether a name is a word for a part and numbers: `train-00000-of-00003`."""
    words = [word for word in re.split("[^a-z]+", name.lower()) if word not in ("", "of")]
    return len(words) == 1 and bool(word_of(name))


def names_of(folder: Path, file: Path) -> tuple[str, ...]:
    """Return the names of a file, without its suffixes, and of the folders that it is in."""
    inside = file.relative_to(folder)
    return (*inside.parent.parts, inside.name.partition(".")[0])


def of_part(folder: Path, files: Sequence[Path], split: str) -> list[Path]:
    """Return the files of a folder that are for training or for evaluation.

    These are all of them, unless some are named as evaluation data and others as training data. Those without such a
    name are then left out: they often hold all rows once more, or describe them. Documents have names of their own,
    such as `test-results.txt`: beside them, only bare words such as `test` count. If no file is named as training data,
    those without a name are.
    """
    words = {file: next(filter(None, map(word_of, names_of(folder, file))), "") for file in files}
    training = [file for file in files if words[file] in PARTS["train"]]
    others = [file for file in files if not words[file]]
    held_out = [file for file in files if words[file] in PARTS["validation"]]
    bare = all(any(map(is_bare, names_of(folder, file))) for file in training + held_out)
    sure = bare or not others or (training and not any(".txt" in file.suffixes for file in files))
    if not held_out or not (training or others) or not sure:
        return list(files)
    best = next(word for word in PARTS["validation"] if word in words.values())
    return (training or others) if split == "train" else [file for file in files if words[file] == best]


def refuse_repeated(found: dict[str, list[Path]]) -> None:
    """Exit if two sources hold the same file, whose rows would count twice."""
    of: dict[str, str] = {}
    for name, files in found.items():
        for path in map(os.path.abspath, files):
            if path in of:
                raise SystemExit(f"{path}: named twice among the sources, by {of[path]} and by {name}; name it once")
            of[path] = name


def is_saved(path: Path) -> bool:
    """Return whether a folder is a dataset that `save_to_disk` wrote."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
