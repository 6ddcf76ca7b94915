"""What a rehearsal reads and leaves: the project's sources, a folder for its runs, and what they wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.store import checkpoints

SOURCES = ("train.py", "task.py")
MOST_BYTES = 2 << 20
"""Of a text file that is trained on: so much is read in a rehearsal."""
_VERIFYING_SECONDS = 30.0


class Stage:
    """The folder that the runs of one rehearsal write into."""

    def __init__(self, keep: str | None) -> None:
        self.kept = keep is not None
        if keep is not None:
            self.folder = Path(keep).absolute()
            if self.folder.exists() and any(self.folder.iterdir()):
                raise UsageError(say("{folder} is not empty", folder=keep), say("name a folder that is not there yet"))
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="trainwiz-rehearsal-"))

    def place(self, name: str) -> Path:
        """A folder of its own within."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        return place

    @property
    def has_runs(self) -> bool:
        """Whether there are logs to look at."""
        return any(self.folder.glob("*/rank-*.log"))

    def remove(self) -> None:
        """Nothing is left, unless it was asked for."""
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)


def sources(folder: Path) -> dict[str, str]:
    """train.py and task.py. Raises `UsageError` where one is missing or is no Python."""
    found = {}
    for name in SOURCES:
        try:
            found[name] = (folder / name).read_text(encoding="utf-8")
            compile(found[name], name, "exec", dont_inherit=True)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                say("{file} cannot be read: {problem}", file=folder / name, problem=error),
                say("trainwiz init {folder} writes it", folder=folder),
            ) from None
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", 0)
            raise UsageError(say("{file}:{line}: {problem}", file=folder / name, line=line, problem=error)) from None
    return found


def first_parts(folder: Path, fields: Mapping[str, Any], into: Path) -> tuple[dict[str, str], float]:
    """Files with the first lines of long texts that are trained on, by field; how many times longer those are."""
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
    """One hash over the files of the final weights; empty where there are none."""
    files = sorted(f for f in (output / "model").rglob("*") if f.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest() if files else ""


def saved(output: Path) -> tuple[list[str], list[str]]:
    """The names of a run's checkpoints, and of those that are not as their manifest says."""
    found = sorted(p for p in (output / "checkpoints").glob("checkpoint-*") if p.is_dir() and p.name[-8:].isdigit())
    torn = []
    for path in found:
        verified = checkpoints.verify(path, seconds=_VERIFYING_SECONDS)
        if verified is None or not verified.whole:
            torn.append(path.name)
    return [path.name for path in found], torn


def notes(place: Path) -> list[dict[str, Any]]:
    """What the ranks of a run noted, by rank."""
    files = sorted(place.glob("rank-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
