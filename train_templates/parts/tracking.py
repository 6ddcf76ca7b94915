"""The name and the tags of a run, as its tracker expects them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train import Config


def tracker_settings(config: Config) -> dict[str, Any]:
    """Return what the tracker is started with, besides the project."""
    tags = [tag.strip() for tag in config.tags.split(",") if tag.strip()]
    # feature: wandb
    named = {"name": config.run_name, "tags": tags}
    # end: wandb
    # feature: mlflow
    named = {"run_name": config.run_name, "tags": dict.fromkeys(tags, "true")}  # its tags are pairs
    # end: mlflow
    # feature: swanlab
    named = {"experiment_name": config.run_name, "tags": tags}
    # end: swanlab
    # feature: trackio
    named = {"name": config.run_name, "config": {"tags": ", ".join(tags)} if tags else {}}  # it has no tags
    # end: trackio
    # feature: tensorboard
    named = {"filename_suffix": "".join(f".{word}" for word in (config.run_name, *tags) if word)}
    # end: tensorboard
    return {name: value for name, value in named.items() if value}
