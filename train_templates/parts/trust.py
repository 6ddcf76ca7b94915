"""Reading checkpoints that anybody may have written: no code in them runs, and unsigned ones are reported.

A pickle may name any function and have it called with any arguments. Inside `known_classes_only`, `torch.load` creates
tensors, plain values and the classes listed here, even if an engine asks it for more, and nothing that takes far more
memory than its file has bytes. The manifests of checkpoints are signed with a key that only this user can read.
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

# end: recut
import struct

# feature: recut
import subprocess

# end: recut
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

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


SMALL = 4 << 20
"""Bytes of a pickle, or of the names in an archive, that are read beside any number of tensors."""
PICKLED = 16
"""Beyond that, at most one byte in this many is pickled: one byte of a pickle can become sixty in memory."""
ALIASES = 4
"""How often the tensors of a file may have its bytes: some are saved under several names."""


class UnknownClass(Exception):
    """A file holds a class or a function that no checkpoint needs; `args[0]` names it."""


class Unsound(Exception):
    """No training writes such a file: it asks for far more memory than it has bytes. `args[0]` says how."""


@contextmanager
def known_classes_only(folder: Path, trust: bool = False) -> Iterator[None]:
    """Unpickle known classes only, and what fits its file, whatever the code inside asks for. `trust` changes nothing.

    Raises `UnknownClass` and `Unsound`. What has no limits of its own is checked at once: the index of distributed
    checkpoints in `folder`, which torch unpickles as it is, and the headers of safetensors files.
    """
    if trust:
        yield
        return
    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NOT)}
    os.environ[_FORCE] = "1"
    load, unsound = torch.load, list[Unsound]()

    def load_bounded(file: Any, *arguments: Any, **options: Any) -> Any:
        try:
            size = _refuse_bomb(file)
            loaded = load(file, *arguments, **options)
            _refuse_expanded(file, size, loaded)
        except Unsound as error:
            unsound.append(error)  # engines put what they catch into exceptions of their own
            raise
        return loaded

    vars(torch)["load"] = load_bounded
    try:
        for index in folder.rglob(f"*{INDEX}"):
            _refuse_unknown(index, folder)
        for weights in folder.rglob("*.safetensors"):
            _refuse_header(weights)
        with torch.serialization.safe_globals(_classes()):
            yield
    except BaseException as error:  # CheckpointException is not an Exception
        if unsound:
            raise unsound[0] from None
        if found := _UNKNOWN.search(str(error)):
            raise UnknownClass(found[1]) from None
        raise
    finally:
        vars(torch)["load"] = load
        del os.environ[_FORCE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _refuse_unknown(index: Path, folder: Path) -> None:
    """Read the index of a distributed checkpoint: no larger than its tensors explain, and of files beside it only."""
    size = index.stat().st_size
    if size > SMALL + sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // PICKLED:
        raise Unsound(f"{index.name}: {size:,} bytes of names and places")
    with index.open("rb") as file:
        places = getattr(_IndexReader(file).load(), "storage_data", None)
    for place in places.values() if isinstance(places, dict) else ():
        named = getattr(place, "relative_path", "")
        if not isinstance(named, str) or named in (".", "..") or os.path.basename(named) != named:
            raise Unsound(f"{index.name}: names {str(named)[:100]!r}, which is not beside it")


def _refuse_header(weights: Path) -> None:
    """Refuse a safetensors file that begins with far more names than it has tensors for: millions take minutes."""
    with weights.open("rb") as file:
        length, size = int.from_bytes(file.read(8), "little"), weights.stat().st_size
    if length > SMALL + size // PICKLED:
        raise Unsound(f"{weights.name}: {length:,} of {size:,} bytes are names")


class _IndexReader(pickle._Unpickler):  # C's makes room for any number that a file names
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in KNOWN_IN_INDEX or (module == "torch" and isinstance(vars(torch).get(name), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"unpickles {full} which is not known")

    def _refuse(self) -> None:
        raise Unsound(f"{INDEX}: not a pickle that torch writes")

    # Numbered places, for which torch's own reader would make room (Python has written none since 3.4), and a length
    # for which Python's makes room before it has read as much.
    dispatch: ClassVar = pickle._Unpickler.dispatch | dict.fromkeys(
        (pickle.PUT[0], pickle.LONG_BINPUT[0], pickle.BYTEARRAY8[0]), _refuse
    )


def _refuse_bomb(file: Any) -> int:
    """Look at the names in torch's archive, a zip file, before it is read. Return its size.

    Training programs compress nothing, so that an archive holds no more than it has bytes.
    """
    if not hasattr(file, "read"):
        with Path(file).open("rb") as opened:
            return _refuse_bomb(opened)
    before = file.tell()
    try:
        file.seek(0, os.SEEK_END)  # what it returns is the place in the whole file, for a part of one
        size: int = file.tell()
        records = list(_records(file, size, _name_of(file)))
    except (struct.error, OSError, OverflowError) as error:
        raise Unsound(f"{_name_of(file)}: {error}") from None
    finally:
        file.seek(before)
    pickled = sum(length for name, length in records if name.endswith(b"/data.pkl"))
    if (asked := sum(length for _, length in records)) > size:
        raise Unsound(f"{_name_of(file)}: {asked:,} bytes in an archive of {size:,}")
    if pickled > SMALL + size // PICKLED:
        raise Unsound(f"{_name_of(file)}: {pickled:,} of {size:,} bytes are pickled")
    return size


def _records(file: BinaryIO, size: int, label: str) -> Iterator[tuple[bytes, int]]:
    """The names and lengths of the records in an archive, by the directory that torch's own reader takes.

    Python's zipfile looks for it elsewhere, so that a file could show it another one.
    https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
    """
    tail = _read_at(file, max(0, size - 42), 42)
    if len(tail) < 42 or tail[-22:-18] != b"PK\5\6":
        raise Unsound(f"{label}: not an archive of torch")
    length, start = struct.unpack("<LL", tail[-10:-2])
    if tail[:4] == b"PK\6\7":  # of archives that can be larger than 4 GiB, which torch's are
        length, start = struct.unpack("<QQ", _read_at(file, struct.unpack("<Q", tail[8:16])[0] + 40, 16))
    if length > SMALL + size // PICKLED:
        raise Unsound(f"{label}: {length:,} of {size:,} bytes are names")
    names, at = _read_at(file, start, length), 0
    while at < len(names):
        method, packed, unpacked, *lengths = struct.unpack_from("<10xH8xLLHHH", names, at)
        name_end = at + 46 + lengths[0]
        if method:
            raise Unsound(f"{label}: compressed")
        if 0xFFFFFFFF in (packed, unpacked):  # the true length is the first that follows the name
            packed = struct.unpack_from("<Q", names, name_end + 4)[0]
        yield names[at + 46 : name_end], max(packed, unpacked if unpacked != 0xFFFFFFFF else 0)
        at += 46 + sum(lengths)


def _refuse_expanded(file: Any, size: int, loaded: object) -> None:
    """Refuse tensors that are many times as large as what they are made of: one number can have any shape."""
    asked, seen, rest = 0, set[object](), [loaded]
    while rest:
        value = rest.pop()
        if isinstance(value, torch.Tensor):
            place = value.data_ptr() if value.layout is torch.strided and not value.is_meta else id(value)
            key: object = (place, value.shape, value.stride() if value.layout is torch.strided else (), value.dtype)
            asked += 0 if key in seen else value.numel() * value.element_size()
        elif isinstance(value, (dict, list, tuple, set)):
            key = id(value)
            rest.extend(() if key in seen else (*value.keys(), *value.values()) if isinstance(value, dict) else value)
        else:
            continue
        seen.add(key)
    if asked > ALIASES * size + SMALL:
        raise Unsound(f"{_name_of(file)}: {asked:,} bytes of tensors in a file of {size:,}")


def _read_at(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def _name_of(file: Any) -> str:
    return Path(str(getattr(file, "name", "a part") if hasattr(file, "read") else file)).name


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
    """Return the names of pipes, devices, links to folders and the like, which an engine would follow or wait on."""
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
