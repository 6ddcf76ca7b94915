"""DeepSpeed's operators that tests use, compiled once per checkout: half a minute each.

Compiled, they lie in `.cache/operators/` below a name that says for what they were compiled, and come to be there all
at once. Whoever compiles holds a lock that ends with its process; others wait for that process and not for a file. Each
worker loads a copy: torch locks an operator's folder with a file while loading it, and a rank that a test kills then
would leave that file to everybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "operators"
BUILDERS = ("ShareMemCommBuilder", "CPUAdamBuilder")
COMPILER = Path(__file__).parent / "engine_children" / "compiler"
BUILT_BELOW = Path(".cache") / "torch_extensions"
"""Where torch builds, seen from HOME."""


def place() -> Path:
    """Where the operators for this environment and processor are, or will be: torch compiles for the native one."""
    flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))]
    marks = [sys.prefix, platform.machine(), *flags[:1], *BUILDERS]
    versions = [platform.python_version(), *(metadata.version(name) for name in ("torch", "deepspeed"))]
    return CACHE / "-".join([*versions, hashlib.sha256("\n".join(marks).encode()).hexdigest()[:8]])


def begun() -> subprocess.Popen[bytes] | None:
    """The process that compiles them, or waits until another has; none where they are there."""
    if place().is_dir():
        return None
    return subprocess.Popen(
        ["nice", sys.executable, __file__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def given_up(compiling: subprocess.Popen[bytes]) -> None:
    """End it, with its compilers, where nobody waits for it any more."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(compiling.pid, signal.SIGKILL)
    compiling.wait()


def copied(home: Path) -> bool:
    """Give this home what is compiled; whether there was something to give."""
    if place().is_dir() and not (home / BUILT_BELOW).exists():
        (home / BUILT_BELOW).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(place(), home / BUILT_BELOW)  # with the times of the files, by which ninja leaves them alone
    return place().is_dir()


def compiled(home: str) -> None:
    """Compile all of them below this home."""
    # A core is left to whoever waits meanwhile.
    os.environ.update(HOME=home, DS_ACCELERATOR="cpu", MAX_JOBS="1", PATH=f"{COMPILER}:{os.environ['PATH']}")
    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    from deepspeed.accelerator import get_accelerator

    for name in BUILDERS:
        get_accelerator().create_op_builder(name).load(verbose=False)


def main() -> None:
    """Compile what is not there yet."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the compilers do not inherit it
        if place().is_dir():
            return
        for left in CACHE.glob("new-*"):
            shutil.rmtree(left)
        home = tempfile.mkdtemp(prefix="new-", dir=CACHE)
        compiled(home)
        (Path(home) / BUILT_BELOW).rename(place())
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
