"""Reading checkpoints that anybody may have written: no code in them runs, and those that are not this user's are told.

A pickle may name any function and have it called with any arguments. Inside `known_classes_only`, `torch.load` creates
tensors, plain values and the classes listed here, also where an engine asks it for more. The manifests of checkpoints
are signed with a key that only this user can read.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import os
import pickle
import re
import secrets

# feature: recut
import shutil
import subprocess

# end: recut
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

KNOWN = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
"""What DeepSpeed's files hold besides tensors. None of it does anything when it is created."""

_DISTRIBUTED = "torch.distributed.checkpoint."
KNOWN_IN_INDEX = frozenset(
    {
        *("pathlib.PosixPath", "torch.Size", "torch.serialization._get_layout"),
        *(f"{_DISTRIBUTED}filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
        *(
            f"{_DISTRIBUTED}metadata.{name}"
            for name in (
                *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
                *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
            )
        ),
    }
)
"""What the index of torch's distributed checkpoints holds besides plain values and the types of tensors."""
INDEX = ".metadata"
_UNKNOWN = re.compile(r"(?:GLOBAL|unpickles) (\S+) (?:was not an allowed|whose module|which is not known)")
_FORCE, _FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class UnknownClass(Exception):
    """A file holds a class or a function that no checkpoint needs; `args[0]` names it."""


@contextmanager
def known_classes_only(folder: Path, trust: bool = False) -> Iterator[None]:
    """Unpickle known classes only, whatever the code inside asks for. Raises `UnknownClass`; `trust` changes nothing.

    The index of distributed checkpoints in `folder` is checked at once, since torch unpickles it without any limit.
    """
    if trust:
        yield
        return
    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NOT)}
    os.environ[_FORCE] = "1"
    try:
        for index in folder.rglob(f"*{INDEX}"):
            with index.open("rb") as file:
                _IndexReader(file).load()
        with torch.serialization.safe_globals(_classes()):
            yield
    except BaseException as error:  # CheckpointException is not an Exception
        if found := _UNKNOWN.search(str(error)):
            raise UnknownClass(found[1]) from None
        raise
    finally:
        del os.environ[_FORCE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


class _IndexReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in KNOWN_IN_INDEX or (module == "torch" and isinstance(vars(torch).get(name), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"unpickles {full} which is not known")


# feature: recut
def put_together(saved: Path, whole: Path, trusted: bool) -> None:
    """Convert the ranks' shards to DeepSpeed's universal checkpoint, which any number of ranks can load."""
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    convert = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent.resolve())!r}); import pathlib, trust; "
        "from deepspeed.checkpoint.ds_to_universal import main, parse_arguments\n"
        f"with trust.known_classes_only(pathlib.Path({str(saved.resolve())!r}), {trusted}): main(parse_arguments())"
    )
    arguments = ["--inject_missing_state", "--input_folder", str(saved.resolve()), "--output_folder", saved.name]
    command = [sys.executable, "-c", convert, *arguments]
    # Run it in that folder, because it treats the path of its output as a regular expression.
    done = subprocess.run(command, cwd=whole, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{saved} could not be put together: {why[-1]}")


# end: recut
def _classes() -> list[Any]:
    """Those of the known classes whose engine this program has imported."""
    found = []
    for path in KNOWN:
        module, _, name = path.rpartition(".")
        if module.partition(".")[0] in sys.modules:
            with suppress(ImportError, AttributeError):  # an engine of another version
                found.append(getattr(importlib.import_module(module), name))
    return found


def others_in(folder: Path) -> list[str]:
    """Return the names of pipes, devices, links to folders and the like, which an engine would follow or wait for."""
    others = (path for path in folder.rglob("*") if not path.is_file() and (path.is_symlink() or not path.is_dir()))
    return [str(path.relative_to(folder)) for path in others]


def digest_of(manifest: dict[str, Any]) -> str:
    """Return the hash of a manifest's values."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def is_own(manifest: dict[str, Any]) -> bool:
    """Return whether this user's key signed the manifest."""
    rest = {name: value for name, value in manifest.items() if name != "signed"}
    return bool(manifest.get("signed")) and manifest["signed"] == signature(digest_of(rest))


def signature(digest: str) -> str:
    """Return this user's signature of a manifest's digest; empty where no key can be kept."""
    key = _signing_key()
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest() if key else ""


def _signing_key() -> bytes:
    """Return this user's key, made when it is first needed."""
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(base if os.path.isabs(base) else Path.home() / ".local" / "state") / "training-checkpoints"
        file = folder / "signing.key"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            whole = folder / f".{file.name}.{secrets.token_hex(8)}"
            descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, secrets.token_bytes(32))
                with suppress(FileExistsError):  # another training was first
                    os.link(whole, file)
            finally:
                os.close(descriptor)
                whole.unlink()
        return file.read_bytes()
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return b""
