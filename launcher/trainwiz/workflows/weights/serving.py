"""The lines that serve an exported model with other programs."""

from __future__ import annotations

import shlex
from pathlib import Path

from trainwiz.language import t
from trainwiz.store import models
from trainwiz.ui import console

_USUAL_RANK = 16
"""The largest rank of adapters that vLLM serves without being told (`--max-lora-rank`)."""


def show(folder: Path, merged: Path) -> None:
    """Print how to talk to the model and how to serve it, if it is one that writes text."""
    serve = command(folder, merged)
    if serve is None:
        return
    console.talk(t("talk to it:   {command}", command=f"trainwiz chat {shlex.quote(str(folder))}"))
    console.talk(t("serve it:     {command}", command=serve))


def command(folder: Path, merged: Path) -> str | None:
    """The line that serves the model; None for one that writes no text."""
    whole = merged if merged.is_dir() else folder
    return vllm(whole) if models.writes_text(whole) else None


def vllm(folder: Path) -> str:
    """vLLM's command for a folder with a model, or an adapter and the base that it names."""
    adapter = models.adapter(folder)
    if not adapter:
        return f"vllm serve {shlex.quote(str(folder))}"
    base, rank = str(adapter.get("base_model_name_or_path")), adapter.get("r")
    words = ["vllm", "serve", base, "--enable-lora", "--lora-modules", f"{folder.name}={folder}"]
    if isinstance(rank, int) and rank > _USUAL_RANK:
        words += ["--max-lora-rank", str(rank)]
    return shlex.join(words)
