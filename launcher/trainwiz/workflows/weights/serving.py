"""The lines that serve an exported model with other programs."""

from __future__ import annotations

import shlex
from pathlib import Path

from trainwiz.language import t
from trainwiz.message import Message, say
from trainwiz.shell_words import quoted
from trainwiz.store import models
from trainwiz.ui import console

_USUAL_RANK = 16
"""The largest rank of adapters that vLLM serves without being told (`--max-lora-rank`)."""


def show(folder: Path, merged: Path) -> None:
    """Print how to talk to the model and how to serve it, if it is one that writes text."""
    whole = merged if merged.is_dir() else folder
    if not models.writes_text(whole):
        return
    console.talk(t("talk to it:   {command}", command=f"trainwiz chat {quoted(folder)}"))
    if why := beyond_lora(whole):
        console.talk(
            t(
                "vLLM and llama.cpp do not load this adapter: {why}; with model.merge_adapter true, export also writes "
                "a merged model, which they load",
                why=why,
            )
        )
    elif serve := command(folder, merged):
        console.talk(t("serve it:     {command}", command=serve))


def command(folder: Path, merged: Path) -> str | None:
    """The line that serves the model; None for one that writes no text, and for an adapter that vLLM refuses."""
    whole = merged if merged.is_dir() else folder
    return vllm(whole) if models.writes_text(whole) and not beyond_lora(whole) else None


def beyond_lora(folder: Path) -> Message | None:
    """What an adapter has beside the two matrices of LoRA, which vLLM and llama.cpp's converter refuse; else None."""
    settings = models.adapter(folder)
    if settings.get("use_dora"):
        return say("it has lengths of rows: DoRA")
    if whole := settings.get("modules_to_save"):
        return say("it has whole modules: {names}", names=", ".join(map(str, whole)))
    return None


def vllm(folder: Path) -> str:
    """vLLM's command for a folder with a model, or an adapter and the base that it names."""
    adapter = models.adapter(folder)
    if not adapter:
        return f"vllm serve {quoted(folder)}"
    base, rank = str(adapter.get("base_model_name_or_path")), adapter.get("r")
    words = ["vllm", "serve", base, "--enable-lora", "--lora-modules", f"{folder.name}={folder}"]
    if isinstance(rank, int) and rank > _USUAL_RANK:
        words += ["--max-lora-rank", str(rank)]
    return shlex.join(words)
