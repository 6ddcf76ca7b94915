"""The files of a rehearsal: the project's sources, a folder for its runs, and what they wrote."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz import files
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.shell_words import quoted
from trainwiz.store import checkpoints
from trainwiz.store.runs import Run

SOURCES = ("train.py", "task.py")
MOST_BYTES = 2 << 20
"""How much of a text file of training data is read."""
_VERIFYING_SECONDS = 30.0


class Workspace:
    """The folder that the runs of one rehearsal write into."""

    def __init__(self, keep: str | None) -> None:
        self.kept = keep is not None
        if keep is not None:
            self.folder = Path(keep).absolute()
            if self.folder.exists() and any(self.folder.iterdir()):
                raise UsageError(
                    say("{folder} is not empty", folder=keep), say("choose a folder that does not exist yet")
                )
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="trainwiz-rehearsal-"))

    def place(self, name: str) -> Path:
        """A folder within it, made if it is missing."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        return place

    @property
    def has_runs(self) -> bool:
        """Whether there are logs that the user can look at."""
        return any(self.folder.glob("*/rank-*.log"))

    def remove(self) -> None:
        """Remove the folder, unless it is to be kept."""
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)


def sources(folder: Path) -> dict[str, str]:
    """The text of train.py and task.py. Raises `UsageError` if one is missing or is not valid Python."""
    found = {}
    for name in SOURCES:
        try:
            found[name] = files.read_text(folder / name)
            compile(found[name], name, "exec", dont_inherit=True)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                say(
                    "{file} cannot be read: {problem}",
                    file=folder / name,
                    problem=getattr(error, "strerror", None) or error,
                ),
                say("create it with trainwiz init {folder}", folder=quoted(folder)),
            ) from None
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", 0)
            raise UsageError(say("{file}:{line}: {problem}", file=folder / name, line=line, problem=error)) from None
    return found


def first_parts(folder: Path, fields: Mapping[str, Any], into: Path) -> tuple[dict[str, str], float]:
    """Write the first lines of long text files into a folder.

    Returns their paths by field of Config, and how many times longer the whole training data is.
    """
    cut, scale = {}, 1.0
    for name in ("train_data", "eval_data"):
        file = folder / str(fields.get(name) or ".")
        if file.suffix not in (".txt", ".jsonl") or not file.is_file() or file.stat().st_size <= MOST_BYTES:
            continue
        with file.open("rb") as whole:
            start = whole.read(MOST_BYTES)
        start = start[: start.rfind(b"\n") + 1] or start
        (into / f"{name}{file.suffix}").write_bytes(start)
        cut[name] = str(into / f"{name}{file.suffix}")
        if name == "train_data":
            scale = file.stat().st_size / len(start)
    return cut, scale


def weights(output: Path) -> str:
    """A hash over the files of the final weights; empty if there are none."""
    found = sorted(f for f in (output / "model").rglob("*") if f.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    digest = hashlib.sha256()
    for file in found:
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest() if found else ""


def checkpoints_in(output: Path) -> tuple[list[str], list[str]]:
    """The names of a run's checkpoints, and of those whose files differ from their manifest."""
    found = {
        path.name: checkpoints.verify(path, seconds=_VERIFYING_SECONDS) for path in Run(output).complete().values()
    }
    return list(found), [name for name, verified in found.items() if verified is None or not verified.whole]


def notes(place: Path) -> list[dict[str, Any]]:
    """What each rank of a run noted, by rank."""
    noted = sorted(place.glob("rank-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    return [files.read_json(file) for file in noted]
