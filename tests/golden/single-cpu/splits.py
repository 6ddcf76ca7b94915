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


def of_part(folder: Path, files: Sequence[Path], split: str) -> list[Path]:
    """Return the files of a folder that are for training or for evaluation.

    These are all of them, unless each is named by its part, and some are for training and others are not.
    """
    words = {}
    for file in files:
        inside = file.relative_to(folder)
        names = (*inside.parent.parts, inside.name.partition(".")[0])
        words[file] = next(filter(None, map(word_of, names)), "")
    training = [file for file in files if words[file] in PARTS["train"]]
    if not training or len(training) == len(files) or "" in words.values():
        return list(files)
    best = next(word for word in PARTS["validation"] if word in words.values())
    return training if split == "train" else [file for file in files if words[file] == best]


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
