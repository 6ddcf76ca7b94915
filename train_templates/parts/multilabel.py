"""Any number of labels for each sample: how they are stored, the loss, and its metrics.

A sample's labels are a list of classes (in a text: `cat|dog`), or a row of 0 and 1 with a place for each class.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# feature: summed
import torch

# end: summed
from torch import Tensor, nn

from class_names import Named
from labels import in_order

FLAGS = {"0", "1", "0.0", "1.0", "False", "True"}
ON, OFF = {"1", "1.0", "true"}, {"0", "0.0", "false"}
"""Flags in a column of their own, in lower case."""


@dataclass(frozen=True)
class Classes:
    """The classes of the training data, and how it stores a sample's labels."""

    source: str
    names: list[str]
    by_flags: bool  # as a row of 0 and 1, and not as a list of classes


def classes_of(source: str, labels: Sequence[Any], label_column: str) -> Classes:
    """Return the classes by number: the columns of flags, their numbers, or the sorted labels."""
    labels = [written(source, label) for label in labels]
    members = [word for label in labels for word in (label if isinstance(label, list) else [label])]
    if members and "," not in label_column and all(isinstance(word, Named) for word in members):
        return Classes(source, in_order(members), False)
    if are_flags(labels, label_column):
        columns = [name.strip() for name in label_column.split(",")]
        count = len(labels[0])
        return Classes(source, columns if len(columns) == count else [str(number) for number in range(count)], True)
    names = {word for label in labels for word in words_of(source, label)}
    if not names:
        raise SystemExit(f"{source}: these labels cannot be learned: all {len(labels)} are empty")
    return Classes(
        source, sorted(names, key=lambda name: (int(name) if re.fullmatch(r"\d+", name) else -1, name)), False
    )


def written(source: str, label: Any) -> Any:
    """Return the list that is written as text, such as in a cell of a .csv file. Exit if it is not a list."""
    if not isinstance(label, str):
        return label
    if re.fullmatch(r"\[?\s*[01]([\s,;|]+[01])+\s*\]?", label):  # as numpy writes flags, too
        return [int(flag) for flag in re.findall("[01]", label)]
    if not (label.startswith("[") and label.endswith("]")) or re.search(r"[|;]", label):
        return label
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        if not re.search(r"['\"]\s+['\"]", label):  # numpy writes no commas, and Python would join these texts
            return ast.literal_eval(label)
    raise SystemExit(f"{source}: these labels cannot be lists of classes: {label!r:.80}; write a list, or cat|dog")


def are_flags(labels: list[Any], label_column: str) -> bool:
    """Return whether the labels are rows of 0 and 1, one for each class, and not lists of classes."""
    if not all(isinstance(label, list) for label in labels):
        return False
    if "," in label_column:
        return True
    if not all(set(map(repr, label)) <= FLAGS for label in labels):
        return False
    same = any(len(set(label)) < len(label) or any(flag is True for flag in label) for label in labels)
    return same and len({len(label) for label in labels}) == 1


def words_of(source: str, label: Any) -> list[str]:
    """Return the labels of a sample: the members of a list, or what stands between | or ; or , in a text."""
    if isinstance(label, str):
        separator = next((mark for mark in "|;," if mark in label), "|")
        return [word.strip() for word in label.split(separator) if word.strip()]
    if isinstance(label, list) and all(isinstance(word, str | int) for word in label):
        return [str(word) for word in label]
    if isinstance(label, int):
        return [str(label)]
    raise SystemExit(f"{source}: these labels cannot be lists of classes: {label!r:.80}; write a list, or cat|dog")


def flags_of(classes: Classes, source: str, labels: Sequence[Any], split: str) -> list[list[int]]:
    """Return a row of 0 and 1 for each sample, one for each class."""
    labels, names = [written(source, label) for label in labels], classes.names
    if classes.by_flags:
        for row in labels:
            if not isinstance(row, list) or len(row) != len(names) or not {flag_of(x) for x in row} <= ON | OFF:
                raise SystemExit(f"{source}: these labels cannot be flags of {len(names)} classes: {row!r:.80}")
        found = [[int(flag_of(flag) in ON) for flag in row] for row in labels]
    else:
        words = [{*words_of(source, label)} for label in labels]
        if strange := sorted({word for row in words for word in row} - {*names}):
            raise SystemExit(f"{source}: no such class in {classes.source}: {', '.join(strange[:5])}")
        found = [[int(name in row) for name in names] for row in words]
    if split == "train" and all(row == found[0] for row in found):
        raise SystemExit(f"{source}: these labels cannot be learned: all {len(found)} are alike")
    return found


def flag_of(flag: Any) -> str:
    """Return a flag as it is spelled in `ON` and `OFF`."""
    return str(int(flag) if isinstance(flag, Named) else flag).lower()


def losses_of(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the binary cross-entropy of each sample, a mean over the classes; 0 where it does not count."""
    each = nn.functional.binary_cross_entropy_with_logits(logits.float(), batch["labels"], reduction="none")
    return each.mean(1) * batch["counted"]


# feature: summed
def evaluation_sums(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return sums over a batch: samples, loss, faultless ones, and per class the actual, predicted and correct."""
    counted = batch["counted"]
    actual, guessed = batch["labels"] * counted[:, None], (logits > 0) * counted[:, None]
    exact = (((logits > 0) == (batch["labels"] > 0)).all(1) * counted).sum()
    numbers = torch.cat([actual.sum(0), guessed.sum(0), (actual * guessed).sum(0)])
    return torch.cat([torch.stack([counted.sum(), losses_of(logits, batch).sum(), exact]), numbers])


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the loss, how often all labels are correct, and macro and micro F1, from the sums."""
    count, loss, exact, *numbers = sums
    n = len(numbers) // 3
    actual, guessed, right = numbers[:n], numbers[n : 2 * n], numbers[2 * n :]
    f1 = [2 * r / (a + g) for a, g, r in zip(actual, guessed, right, strict=True) if a + g]
    both = sum(actual) + sum(guessed)
    return {
        "eval_loss": loss / count,
        "eval_accuracy": exact / count,
        "eval_f1": sum(f1) / len(f1) if f1 else 0.0,
        "eval_f1_micro": 2 * sum(right) / both if both else 0.0,
    }


# end: summed
# feature: final_weights
def shown(names: Sequence[str], values: Any) -> str:
    """Return the classes whose values are positive, as words."""
    return "+".join(name for name, value in zip(names, values, strict=True) if value > 0) or "none"


# end: final_weights
