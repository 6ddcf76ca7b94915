"""Pictures with labels: where they are read from, their size, and how training pictures are augmented.

A source is one of these; several are separated by commas:

- a folder with one folder of pictures per class, at any depth, or with `train/` and `val/` that hold such folders, also
  as `seg_train` and `seg_test` (splits.py)
- a table (.csv, .tsv, .jsonl, .json, .parquet), whose rows name a file, from the table's folder on, and a label; or a
  folder with such a table, named metadata.csv, metadata.jsonl or metadata.parquet
- datasets of the package datasets with the pictures in them: such a .parquet or .arrow file, a folder of them, one
  that `Dataset.save_to_disk` wrote, or a dataset of the hub; the pictures stay in memory as they are compressed
- an .npz file with the arrays `images` and `labels`
- embedded: scikit-learn's handwritten digits

Pictures are rotated as their EXIF data says, and converted to 8-bit RGB; of 16 bits, the upper 8 are used.
"""

from __future__ import annotations

import contextlib
import functools
import io

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

import splits

# feature: cropped
from augmentation import LARGER, cropped

# end: cropped
# feature: shifted
from augmentation import shifted

# end: shifted
# feature: colored
from augmentation import colored

# end: colored
# feature: names
from labels import as_classes

# end: names
# feature: scored
from labels import as_numbers

# end: scored
from labels import label_of

# feature: weighted
from source_weights import places

# end: weighted
# feature: eval
from sources import hash_of, held_out, is_part

# end: eval
from sources import STORED, Row, Sources, kind, listed, value_of
from splits import is_shown

Batch = dict[str, Tensor]
Sample = tuple[Tensor, Any]  # a picture (3, height, width) as uint8, and its label
Labeled = tuple[Sequence[Any], list[Any]]  # pictures, as files or arrays, and the label of each
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff")
NOT_READ = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dcm", ".dng", ".cr2", ".nef", ".arw")
"""Names of pictures that Pillow does not read by itself."""
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Tables in a folder of pictures, as datasets on the hub name them."""


@dataclass(frozen=True)
class Stored:
    """A picture inside a table."""

    content: bytes
    place: str

    def __str__(self) -> str:
        return self.place


class Pictures(Dataset[Sample]):
    """Pictures with their labels, in memory as arrays, or read from files one at a time."""

    def __init__(
        self,
        config: Any,
        pictures: Sequence[Any],
        labels: Sequence[Any],
        classes: Sequence[str] | None = None,
        *,
        training: bool,
    ) -> None:
        self.size, self.pictures, self.labels, self.training = config.image_size, pictures, labels, training
        self.classes = classes  # their names by number, which a resume compares

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        picture = self.pictures[index]
        pixels = picture if isinstance(picture, np.ndarray) else self.read(picture)
        if pixels.ndim == 2:  # grey
            pixels = np.repeat(pixels[:, :, None], 3, axis=2)
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), self.labels[index]

    def read(self, file: Path | Stored) -> np.ndarray[Any, Any]:
        """Return the pixels of a file, resized to a square."""
        edge = self.size
        # feature: cropped
        edge = round(self.size * LARGER) if self.training else self.size
        # end: cropped
        try:
            with Image.open(io.BytesIO(file.content) if isinstance(file, Stored) else file) as picture:
                upright = ImageOps.exif_transpose(in_bytes(picture, file)).convert("RGB")
            return np.asarray(upright.resize((edge, edge), Image.Resampling.BILINEAR))
        except Exception as error:  # a damaged one makes Pillow raise errors of many kinds
            raise OSError(f"{file}: not a whole picture: {error}") from None

    # feature: augmented_samples
    def augment(self, sample: Sample, generator: torch.Generator) -> Sample:
        """Return a training picture as the model sees it this time.

        All randomness comes from the generator, which the loop seeds by seed, epoch and index.
        """
        if not self.training:
            return sample
        picture, label = sample
        # feature: shifted
        picture = shifted(picture, generator)
        # end: shifted
        # feature: cropped
        size = picture.shape[1] if isinstance(self.pictures[0], np.ndarray) else self.size
        picture = cropped(picture, size, generator)
        # end: cropped
        # feature: mirrored
        if torch.rand((), generator=generator) < 0.5:
            picture = picture.flip(2)
        # end: mirrored
        # feature: colored
        picture = colored(picture, generator)
        # end: colored
        return picture, label

    # end: augmented_samples


def in_bytes(picture: Image.Image, file: Path | Stored) -> Image.Image:
    """Return the picture with 8 bits per channel. Exit if its pixels have no known range.

    Pillow's own conversion of wider greys makes all above 255 white.
    """
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG"):
        grey = Image.fromarray((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8))
        grey.info = picture.info
        return grey
    if picture.mode in ("I", "F"):
        raise SystemExit(f"{file}: pixels of 32 bits, whose range is not known; convert it to 8 or 16 bits")
    return picture


def reading(config: Any) -> tuple[str, str, int]:
    """Return what decides how a table is read: the columns of files and labels, and how many rows."""
    return config.image_column, config.label_column, config.max_rows


def read(sources: str, split: str, image_column: str, label_column: str, max_rows: int) -> Labeled:
    """Return the pictures of all sources, with the labels as stored there."""
    names = listed(sources)
    if len(names) == 1:
        return read_one(names[0], split, image_column, label_column, max_rows)
    found = [read_one(name, split, image_column, label_column, max_rows) for name in names]
    return [each for pictures, _ in found for each in pictures], [label for _, labels in found for label in labels]


@functools.cache
def read_one(source: str, split: str, image_column: str, label_column: str, max_rows: int) -> Labeled:
    """Return the pictures of a source, with the labels as stored there."""
    if source == "embedded":
        return embedded_digits(split)
    path = Path(source)
    if path.suffix == ".npz":
        pictures, labels = arrays(source)
        return pictures[: max_rows or None], labels[: max_rows or None]
    if table := table_of(path, split):
        return rows_of(table, source, split, image_column, label_column, max_rows)
    if not path.is_dir() or splits.is_saved(path):
        return rows_of(path, source, split, image_column, label_column, max_rows)
    files, labels = in_folders(part(source, split))
    if not files and any(kind(file) in STORED and is_shown(file.name) for file in path.rglob("*")):
        return rows_of(path, source, split, image_column, label_column, max_rows)
    if not files:
        raise SystemExit(f"{source}: no images found; put them in one folder per class")
    refuse_damaged(files)
    return files[: max_rows or None], labels[: max_rows or None]


def in_folders(source: Path) -> tuple[list[Path], list[str]]:
    """Return the pictures in the folders of a folder, at any depth, with the names of these folders as labels.

    Exit if pictures would be left out.
    """
    found, left_out = [], [file for file in source.iterdir() if is_picture(file)]
    for folder in sorted(entry for entry in source.iterdir() if entry.is_dir() and is_shown(entry.name)):
        inside = sorted(below(folder, source))
        found += [(file, folder.name) for file in inside if is_picture(file)]
        left_out += [file for file in inside if file.suffix.lower() in NOT_READ and is_shown(file.name)]
    if left_out:
        raise SystemExit(
            f"{source}: pictures that would be left out: {len(left_out)}, the first: {left_out[0]}; put each into the "
            "folder of its class, as .png or .jpg"
        )
    return [file for file, _ in found], [label for _, label in found]


def below(folder: Path, source: Path) -> Iterator[Path]:
    """Yield the files of a folder at any depth, without hidden folders; links in a circle are followed once."""
    seen = {os.path.realpath(source)}
    for at, folders, names in os.walk(folder, followlinks=True):
        if os.path.realpath(at) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(at))
        folders[:] = [name for name in folders if is_shown(name)]
        yield from (Path(at, name) for name in names)


def arrays(source: str) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Return the images and labels of an .npz file."""
    pictures, labels = (np.load(source)[name] for name in ("images", "labels"))
    if pictures.dtype != np.uint8:
        raise SystemExit(f"{source}: images are {pictures.dtype}, not bytes (uint8)")
    if pictures.ndim != 3 and pictures.shape[3:] != (3,):
        raise SystemExit(f"{source}: images are {pictures.shape}, not (pictures, height, width, 3), or without the 3")
    if labels.shape[:1] != pictures.shape[:1] or labels.ndim > 2:
        raise SystemExit(f"{source}: images are {pictures.shape} and labels {labels.shape}; each image needs one")
    return pictures, labels.tolist()


def table_of(path: Path, split: str) -> Path | None:
    """Return the table that names pictures: the source, or one inside a folder; None if there is none."""
    if path.is_file():
        return path
    return next((file for name in METADATA if (file := part(str(path), split) / name).is_file()), None)


def rows_of(table: Path, source: str, split: str, image_column: str, label_column: str, max_rows: int) -> Labeled:
    """Return the pictures that a table holds or names, with their labels. Several label columns make a list each."""
    files, labels = [], []
    for row in Sources(str(table), split, max_rows):
        files.append(picture_of(row, image_column, table.parent))
        labels.append(label_of(row, label_column))
    if not files:
        raise SystemExit(f"{source}: no images found; put them in one folder per class")
    refuse_damaged(files)
    if kind(table) in (".csv", ".tsv"):
        # feature: names
        labels = as_classes(labels)
        # end: names
        # feature: scored
        labels = as_numbers(labels)
        # end: scored
    return files, labels


def picture_of(row: Row, column: str, folder: Path) -> Path | Stored:
    """Return the picture of a row: a file, from the folder of the table on, or what the column holds."""
    value = value_of(row, column)
    inside = value if isinstance(value, dict) else {"path": value}
    if isinstance(inside.get("bytes"), bytes):
        return Stored(inside["bytes"], row[0])
    name = inside.get("path")
    if not isinstance(name, str) or not name or not (folder / name).is_file():
        raise SystemExit(f'{row[0]}: no such file or folder: column "{column}" is {name!r:.80}')
    return folder / name


ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND\xaeB`\x82"}
"""How files of JPEG and PNG begin, and what is in their last bytes; some programs write more behind it."""
TAIL_BYTES = 1024


def refuse_damaged(pictures: Sequence[Path | Stored]) -> None:
    """Exit if a file is empty, cut off or not a picture, judging by its first and last bytes. One rank reads them."""
    if os.environ.get("RANK", "0") != "0":
        return
    with ThreadPoolExecutor(max_workers=16) as pool:
        damaged = [file for file, whole in zip(pictures, pool.map(is_whole, pictures), strict=True) if not whole]
    if damaged:
        raise SystemExit(
            f"{damaged[0]}: not a whole picture; of {len(pictures)}, {len(damaged)} are empty, cut off or something "
            "else: replace or delete them"
        )


def is_whole(picture: Path | Stored) -> bool:
    """Return whether a picture ends as its format does, or can be read although it does not."""
    with io.BytesIO(picture.content) if isinstance(picture, Stored) else picture.open("rb", 0) as content:
        start, size = content.read(2), content.seek(0, os.SEEK_END)
        content.seek(-min(size, TAIL_BYTES), os.SEEK_END)
        if start in ENDS and ENDS[start] in content.read():
            return True
        with contextlib.suppress(Exception), Image.open(content) as read:
            if start in ENDS:
                read.load()
            return True
        return False


def embedded_digits(split: str) -> Labeled:
    """Return scikit-learn's 1797 handwritten digits of 8 × 8 pixels. Every fifth is for evaluation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    kept = (np.arange(len(digits.target)) % 5 == 4) == (split == "validation")
    return (digits.images[kept] * 15.9).astype(np.uint8), digits.target[kept].tolist()  # values are 0 … 16


def part(source: str, split: str) -> Path:
    """Return the folder with one folder per class: the source, or its part for training or evaluation."""
    folder = Path(source)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    inside = [entry for entry in entries if entry.is_dir() and is_shown(entry.name)]
    words = {entry.name: splits.word_of(entry.name) for entry in inside}
    others = [name for name, word in words.items() if not word and any(map(is_picture, below(folder / name, folder)))]
    training = [name for name, word in words.items() if word in splits.PARTS["train"]]
    held_out = {word: name for name, word in words.items() if word and name not in training}
    if not training or (not held_out and (others or len(training) > 1)):
        return folder
    if others or len(training) > 1 or len(training) + len(held_out) < len(list(filter(None, words.values()))):
        raise SystemExit(
            f"{source}: which of its folders are for training and which for evaluation is not clear: "
            f"{', '.join(words)}; name the one to train on, such as {folder / training[0]}"
        )
    found = training if split == "train" else [held_out[word] for word in splits.PARTS[split] if word in held_out]
    if not found:
        raise SystemExit(f"{source}: it contains {', '.join(words)}, but no images to evaluate on, such as in val")
    return folder / found[0]


def is_picture(file: Path) -> bool:
    """Return whether the name is that of an image."""
    return file.suffix.lower() in SUFFIXES and is_shown(file.name)


# feature: eval
def part_of(pictures: Sequence[Any], share: str, *, evaluation: bool) -> list[int]:
    """Return which pictures are kept for evaluation (`5%`, `200`), or the rest, by their files' names or pixels."""
    chosen = held_out(np.array([hash_of(content_of(each)) for each in pictures], dtype=np.uint64), share)
    return np.flatnonzero(chosen == evaluation).tolist()


# end: eval
# feature: identified
def content_of(picture: Any) -> bytes:
    """Return what tells a picture from others: its file's name, or its bytes."""
    if isinstance(picture, Path):
        return str(picture).encode()
    return picture.content if isinstance(picture, Stored) else picture.tobytes()


# end: identified
# feature: weighted
def weighted(config: Any, pictures: Sequence[Any], kept: Sequence[int]) -> list[int]:
    """Return these training pictures, those of each source as often as its weight asks for."""
    names = listed(config.train_data)
    origins = [name for name in names for _ in read_one(name, "train", *reading(config))[1]]
    chosen = places(config, [origins[i] for i in kept], [], [content_of(pictures[i]) for i in kept])
    return [kept[i] for i in chosen]


# end: weighted
Labels = Callable[[str, list[Any], str], Sequence[Any]]
"""Makes what is learned from a source's name, its labels as stored, and the split. Exits if they are wrong."""


def load(config: Any, split: str, labels_of: Labels, classes: Sequence[str] | None = None) -> Pictures:
    """Return the training or the evaluation data."""
    source, training, part = config.train_data, split == "train", split
    # feature: eval
    held = is_part(config.eval_data)
    source, part = (source, "train") if held or training else (config.eval_data, split)
    # end: eval
    pictures, labels = read(source, part, *reading(config))
    kept: Sequence[int] = range(len(labels))
    # feature: eval
    kept = part_of(pictures, config.eval_data, evaluation=not training) if held else kept
    # end: eval
    # feature: weighted
    kept = weighted(config, pictures, kept) if training else kept
    # end: weighted
    shown = labels_of(source, [labels[i] for i in kept], split)
    return Pictures(config, [pictures[i] for i in kept], shown, classes, training=training)


# feature: final_weights
def show(data: Dataset[Sample], model: torch.nn.Module, folder: Path, count: int, word: Callable[[Any], str]) -> str:
    """Save some pictures beside the model, named by their labels and by the model's predictions."""
    data.training = False  # type: ignore[attr-defined]
    shown = folder.parent / "pictures"
    shown.mkdir(exist_ok=True)
    for i in range(min(count, len(data))):  # type: ignore[arg-type]
        picture, label = data[i]
        name = f"{i:02}-{word(label)}-seen-as-{word(model(picture[None])[0])}"
        short = name.replace("/", "_").encode()[:200].decode(errors="ignore")  # file systems take 255 bytes
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(shown / f"{short}.png")
    return f"pictures with what the model sees in them: {shown}"


# end: final_weights
