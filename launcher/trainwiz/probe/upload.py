"""Uploading a folder to the Hugging Face hub, by the hub's client in the Python that trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainwiz import files
from trainwiz.process.capture import Running

SECONDS = 86_400.0
"""Hundreds of gigabytes over a slow line take hours."""
_PUSH = Path(__file__).parent / "inside" / "push_model.py"


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The result of an upload."""

    url: str = ""
    """Where it is now."""
    local_base: str = ""
    """The folder of this machine that an adapter names as its base model."""
    status: int | None = None
    """The status of the hub's answer, where it refused."""
    problem: str = ""
    """Why nothing was uploaded."""


def push(python: str, folder: Path, repository: str, *, public: bool) -> Pushed:
    """Upload it. Nothing is raised."""
    words = [str(files.resolved(folder)), repository, "public" if public else "private"]
    said = Running([python, str(_PUSH), *words]).result(SECONDS)
    found = said.answer if said.code == 0 else None
    return Pushed(problem=said.problem) if found is None else Pushed(**found)
