"""`trainwiz cache`: list tokenized data, and delete what is no longer used."""

from __future__ import annotations

import time
from pathlib import Path

from trainwiz.errors import TrainwizError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.project import TokenFolder
from trainwiz.quantities import size
from trainwiz.store import plans, tokens
from trainwiz.ui import cache as table
from trainwiz.ui import console

_DAY_SECONDS = 86_400


def show(folder: str, *, clean: bool, days: float, as_json: bool) -> None:
    """List the folders of a cache; `clean` deletes those that were not used for some days, and unfinished ones."""
    place = _place(Path(folder))
    found, now = tokens.every(place), time.time()
    removed = [each for each in found if clean and _is_old(each, now - days * _DAY_SECONDS)]
    for each in removed:
        try:
            tokens.remove(each)
        except OSError as error:
            raise TrainwizError(
                say("cannot delete {folder}: {problem}", folder=each.path, problem=error.strerror or error)
            ) from None
    kept = [each for each in found if each not in removed]
    if as_json:
        console.data_json([table.to_dict(each, removed=each in removed) for each in found])
        return
    console.talk(console.styled(str(place), "dim"))
    if kept:
        table.show(kept, now)
    elif not removed:
        console.talk(t("no tokenized data here"))
    if removed:
        freed = sum(each.size_bytes for each in removed)
        console.talk(t("deleted: {n}, which frees {size}", n=len(removed), size=size(freed)), style="good")


def _place(folder: Path) -> Path:
    """The folder itself where it holds tokenized data; else the cache of the project."""
    if any(folder.glob("tokens-*")):
        return folder
    plan_file = plans.find(folder)
    return plan_file.parent / plans.read(plan_file).data.cache_dir


def _is_old(each: TokenFolder, before: float) -> bool:
    return not each.busy and (each.used <= before or not each.complete)
