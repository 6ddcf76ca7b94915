"""What the hub says about a model that is not in the local cache: its config.json, and the number of its weights."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwiz.probe.limit import within

SECONDS = 3.0
"""How long a person waits for the hub, in all."""


@dataclass(kw_only=True)
class HubModel:
    """What was read in time."""

    config: Mapping[str, Any] | None = None
    """Its config.json."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The numbers in its safetensors files, by type."""


@functools.cache
def look(name: str, *, seconds: float = SECONDS) -> HubModel:
    """Ask the hub, with the token that is logged in. What it does not answer in time, or at all, stays empty.

    Each model is asked for once: a hub that does not answer must not delay each question after the first.
    """
    found = HubModel()
    # Any failure: no such model, a gated one, no network, no huggingface_hub or another version of it.
    with contextlib.suppress(Exception):
        within(seconds, lambda: _ask(name, found, seconds))
    return HubModel(config=found.config, counts=found.counts)


def _ask(name: str, found: HubModel, seconds: float) -> None:
    import huggingface_hub as hub
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    # Its progress bars and warnings would appear between two questions.
    disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    # Not into the cache: a model with one file there counts as downloaded.
    with tempfile.TemporaryDirectory() as folder:
        path = hub.hf_hub_download(name, "config.json", local_dir=folder, etag_timeout=seconds)
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    found.config = config if isinstance(config, dict) else None
    found.counts = {str(kind): count for kind, count in hub.get_safetensors_metadata(name).parameter_count.items()}
