"""Upload an exported model to the Hugging Face hub: only when asked, and private unless asked otherwise."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

from trainwiz.errors import Ended, TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.probe import upload
from trainwiz.shell_words import quoted
from trainwiz.ui import console

_PART = r"\w(?:[\w.-]{0,94}\w)?"
_NAME = re.compile(f"{_PART}/{_PART}", re.ASCII)


def check_name(repository: str) -> None:
    """Raise `UsageError` for what is not the name of a repository, before anything is done."""
    if not _NAME.fullmatch(repository):
        raise UsageError(
            say("--push must have the form ORG/NAME, not {name}", name=repository),
            say("your user name also works as ORG: --push YOUR-NAME/my-model"),
        )


def push(python: str, folder: Path, repository: str, *, public: bool) -> str:
    """Upload the folder with the login of the hub's own client; its address there. Raises `TrainwizError`."""
    console.talk(
        t("uploading {folder} to {name} (public)", folder=folder, name=repository)
        if public
        else t("uploading {folder} to {name} (private, if new)", folder=folder, name=repository)
    )
    found = upload.push(python, folder, repository, public=public)
    if found.problem:
        raise TrainwizError(
            say("{name} was not uploaded: {problem}", name=repository, problem=found.problem),
            _remedy(found.status, folder, repository),
        )
    console.talk(t("uploaded: {url}", url=found.url), style="good")
    if found.local_base:
        console.talk(
            t(
                "note: the adapter refers to its base model by a folder on this machine, {folder}; for others, "
                "base_model_name_or_path in adapter_config.json must be a hub id",
                folder=found.local_base,
            ),
            style="warning",
        )
    return found.url


def ended(by: Ended, folder: Path) -> None:
    """Say what became of an upload that a signal has ended."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        console.talk(
            t("{signal}: the upload was stopped; the model is in {folder}", signal=by.name, folder=folder),
            style="warning",
        )


def _remedy(status: int | None, folder: Path, repository: str) -> Message:
    again = f"hf upload {shlex.quote(repository)} {quoted(folder)}"
    if status in (401, 403):
        return say("log in with a token that has write access (hf auth login), then: {command}", command=again)
    return say("the model is on disk; upload it later: {command}", command=again)
