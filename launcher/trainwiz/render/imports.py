"""The imports at the head of a rendered program, as isort has them: a block for each origin, a line for each module.

In a template each optional import is a block of its own, with its marks around it.
"""

from __future__ import annotations

import ast
import sys
from itertools import groupby, pairwise

NEIGHBORS = frozenset(
    {
        "adapter",
        "attention",
        "augmentation",
        "average",
        "batches",
        "buckets",
        "chat",
        "chat_template",
        "class_names",
        "column_names",
        "checkpoints",
        "checks",
        "conversations",
        "definitions",
        "documents",
        "encoders",
        "evaluation",
        "experts",
        "flops",
        "four_bits",
        "first_rank",
        "fp8",
        "frequencies",
        "frozen",
        "generation",
        "head_loss",
        "heads",
        "hooks",
        "kernels",
        "json_rows",
        "labels",
        "logits",
        "long_rows",
        "manifest",
        "meter",
        "metrics",
        "mixture",
        "model_folder",
        "multilabel",
        "network",
        "nf4",
        "new_tokens",
        "noise",
        "numa",
        "optimizers",
        "packing",
        "pairs",
        "pictures",
        "preferences",
        "python_questions",
        "recompute",
        "references",
        "resharding",
        "rows",
        "schedule",
        "scores",
        "sharding",
        "source_weights",
        "sources",
        "splits",
        "staging",
        "streams",
        "task",
        "texts",
        "token_cache",
        "tracking",
        "train",
        "transcripts",
        "trust",
    }
)
"""The modules of a project, which import each other by these names."""
_Import = ast.Import | ast.ImportFrom
_WIDTH = 120
"""Columns of a line of the generated programs."""


def joined(source: str) -> str:
    """The source without blank lines between imports of one origin, and with what comes from one module on one line."""
    lines = source.splitlines()
    dropped: set[int] = set()
    nodes = [node for node in ast.parse(source).body if isinstance(node, _Import)]
    for before, after in pairwise(nodes):
        between = range(before.end_lineno or before.lineno, after.lineno - 1)
        if _origin(before) == _origin(after) and not any(lines[i].strip() for i in between):
            dropped.update(between)
    for _, group in groupby((node for node in nodes if isinstance(node, ast.ImportFrom)), lambda node: node.module):
        first, *rest = group
        if rest:
            names = sorted((name.name for node in (first, *rest) for name in node.names), key=_by_kind)
            lines[first.lineno - 1] = _line(f"from {first.module} import", names)
            dropped.update(range(first.lineno, first.end_lineno or first.lineno))
            dropped.update(i for node in rest for i in range(node.lineno - 1, node.end_lineno or node.lineno))
    return "".join(f"{line}\n" for i, line in enumerate(lines) if i not in dropped)


def _line(start: str, names: list[str]) -> str:
    """An import, over several lines where one would be too long."""
    line = f"{start} {', '.join(names)}"
    return line if len(line) <= _WIDTH else "".join((f"{start} (\n", *(f"    {name},\n" for name in names), ")"))


def _by_kind(name: str) -> tuple[bool, bool, str]:
    """Constants, then classes, then the others."""
    return not name.isupper(), not name[0].isupper(), name


def _origin(node: _Import) -> str:
    name = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
    package = name.partition(".")[0]
    if package == "__future__":
        return package
    if package in sys.stdlib_module_names:
        return "standard"
    return "neighbor" if package in NEIGHBORS else "package"
