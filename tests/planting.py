"""Checkpoints that run a command when they are unpickled, with manifests that fit them."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

KINDS = {
    "whole": "optimizer.pt",
    "fsdp": ".metadata",
    "zero0": "state/mp_rank_00_model_states.pt",
    "zero1": "state/mp_rank_00_model_states.pt",
    "zero2": "state/mp_rank_00_model_states.pt",
    "zero3": "state/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "colossal_zero": "rank-0.pt",
    "gemini": "rank-0.pt",
    "colossal_fsdp": "rank-0.pt",
}
"""A file that is unpickled, by the layout of a checkpoint."""


class Command:
    """Unpickling it runs a command that makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def plant(checkpoint: Path, name: str, canary: Path, *, zipped: bool = True) -> None:
    """Put the command into a file of a checkpoint, beside what is there, and renew the manifest."""
    file = checkpoint / name
    if name.endswith(".pt"):
        state = torch.load(file, map_location="cpu", weights_only=False) if file.exists() else {}
        torch.save({"first": Command(canary), **state}, file, _use_new_zipfile_serialization=zipped)
    else:
        file.write_bytes(pickle.dumps((Command(canary), file.read_bytes() if file.exists() else b"")))
    renew(checkpoint, name)


def renew(checkpoint: Path, name: str) -> None:
    """Make the manifest say what a file holds now, as anybody can who has no key."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    content = (checkpoint / name).read_bytes()
    manifest["bytes"][name] = len(content)
    manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
    reseal(checkpoint, **manifest)


def reseal(checkpoint: Path, **said: object) -> None:
    """Change what the manifest says, and seal it anew."""
    manifest = {**json.loads((checkpoint / "manifest.json").read_text()), **said}
    del manifest["self"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "self": digest}))


if __name__ == "__main__":  # the classes of engines that the tests' own process does not import
    plant(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
