"""The models that configuration files are for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainwiz.config import Document
from trainwiz.errors import UsageError
from trainwiz.message import say
from trainwiz.probe import model as probing
from trainwiz.probe.cache import HubCache
from trainwiz.project import Architecture
from trainwiz.script import Script
from trainwiz.store import configurations
from trainwiz.workflows.check.targets import PLAN_FILE

_SPLITTING = ("parallelism_config", "tensor_parallel", "megatron_lm", "sequence_parallel_size")
"""Where a model is split by its heads, its layers or its sequences."""


def of_documents(
    documents: Mapping[str, Document], script: Script | None, named: str | None
) -> dict[str, Architecture]:
    """The model of each file that splits one: as it is named, else the script's only one, else that of a plan beside.

    Raises `UsageError` for a named one that is not here.
    """
    splitting = [p for p, document in documents.items() if any(word in document.text for word in _SPLITTING)]
    if not (splitting or named):
        return {}
    cache, found = HubCache(), {}
    if named and probing.architecture(named, Path(), cache) is None:
        raise UsageError(
            say("no config.json found here for model {name}", name=named),
            say("pass a trainwiz preset, a folder with a config.json, or the hub id of a downloaded model"),
        )
    for path in splitting:
        for name, root in _names(path, named, script):
            if architecture := probing.architecture(name, Path(root), cache):
                found[path] = architecture
                break
    return found


def _names(path: str, named: str | None, script: Script | None) -> Iterable[tuple[str, str]]:
    """Names of the model that may be meant, the surest first, and the folder that each counts from."""
    if named:
        yield named, "."
    elif script is not None:
        if len(script.loaded.names) == 1:
            yield script.loaded.names[0], "."
            yield script.loaded.names[0], os.path.dirname(script.file)
    else:
        beside = os.path.join(os.path.dirname(path), PLAN_FILE)
        name = configurations.read(beside).get("model.name") if os.path.isfile(beside) else None
        if isinstance(name, str):
            yield name, os.path.dirname(path)
