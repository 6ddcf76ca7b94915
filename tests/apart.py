"""A run of the tests has an environment of its own: nothing of the person's or of another run is read or written.

`prepare` is called where pytest imports conftest.py, before anything of trainwiz or torch is imported; the workers of
pytest-xdist are children of that process, and each takes a home and a folder for temporary files of its own.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

RUN = "APART_RUN"
"""The variable by which workers know the folder of their run."""
PREFIX = "tw-"
"""Of the folders of runs, in the folder for temporary files."""
DAY = 24 * 3600
"""Seconds."""
KEPT = {"TRAINWIZ_RENEW"}
"""What tests themselves take from whoever starts them."""
FORGOTTEN = {
    "CC",
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "CROSS_RANK",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "FORCE_COLOR",
    "GITHUB_ACTIONS",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LANGUAGE",
    "LINES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MAX_JOBS",
    "NODE_RANK",
    "NO_COLOR",
    "PAGER",
    "PYTHONBREAKPOINT",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONINSPECT",
    "PYTHONNOUSERSITE",
    "PYTHONOPTIMIZE",
    "PYTHONSTARTUP",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS",
    "PY_COLORS",
    "RANK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "STY",
    "TEMP",
    "TMP",
    "TMUX",
    "TMUX_PANE",
    "WORLD_SIZE",
}
_TARGETS = Path(__file__).parents[1] / "launcher" / "trainwiz" / "cluster"
CLUSTERS = [name for file in _TARGETS.glob("*.py") for name in re.findall(r'^PREFIX = "(\w+)"', file.read_text(), re.M)]
"""Of a scheduler that the tests run under; read as text, since nothing of trainwiz is imported yet."""
FORGOTTEN_FAMILIES = (
    "ACCELERATE_",
    "COLORTERM",
    "DATASETS_",
    "DEEPSPEED_",
    "DS_",
    "FSDP_",
    "GIT_AUTHOR_",
    "GIT_COMMITTER_",
    "GIT_DIR",
    "GIT_INDEX",
    "GIT_WORK_TREE",
    "GLOO_",
    "HF_",
    "HUGGINGFACE_",
    "KMP_",
    "KUBERNETES_",
    "LC_",
    "MASTER_",
    "MKL_",
    "MPI_",
    "NCCL_",
    "NVIDIA_",
    "OMPI_",
    "OMP_",
    "OPENBLAS_",
    "PBS_",
    "PMIX_",
    "PMI_",
    "PYDEVD_",
    "PYTORCH_",
    "ROLE_",
    "SAFETENSORS_",
    "TENSORBOARD_",
    "TORCHELASTIC_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRAINWIZ_",
    "TRANSFORMERS_",
    "TRITON_",
    "WANDB_",
    "XDG_",
    *CLUSTERS,
)
"""Beginnings of variables that would change what is tested; all folders they name lie below HOME without them."""


def prepare() -> Path:
    """The folder of this process, after its environment and signals were made its own."""
    first = RUN not in os.environ
    sys.dont_write_bytecode = False  # to rewrite the assertions of all tests takes seven seconds, in each worker
    if first:
        # A short path: sockets lie below it, and their addresses have room for 107 bytes.
        _sweep()
        run = Path(tempfile.mkdtemp(prefix=PREFIX))
        os.environ[RUN] = str(run)
        _forget()
        _hear_signals()
        os.umask(0o022)
    run = Path(os.environ[RUN])
    own = run / os.environ.get("PYTEST_XDIST_WORKER", "main")
    for name in ("home", "tmp"):
        (own / name).mkdir(parents=True, exist_ok=True)
    os.environ.update(
        HOME=str(own / "home"),
        TMPDIR=str(own / "tmp"),
        TMUX_TMPDIR=str(own / "tmp"),
        LANG="C.UTF-8",
        TERM="xterm",
        HF_HUB_OFFLINE="1",  # nothing is asked of the hub
        OMP_NUM_THREADS="1",  # threads of one process would only wait for cores that the others have
    )
    tempfile.tempdir = None  # looked up again
    return own


def _sweep() -> None:
    """Delete what runs left that failed, or were killed, more than a day ago."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if left.stat().st_mtime < time.time() - DAY:
            shutil.rmtree(left, ignore_errors=True)


def _forget() -> None:
    for name in set(os.environ) - KEPT:
        if (name in FORGOTTEN or name.startswith(FORGOTTEN_FAMILIES)) and name != RUN:
            del os.environ[name]


def _hear_signals() -> None:
    """What a shell ignores for a command in the background, or nohup, is what every child would ignore.

    A handler, unlike SIG_IGN, is not inherited by programs: a run under nohup goes on when its terminal is gone.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL if signum != signal.SIGHUP else lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave(failed: bool) -> None:
    """Delete the folder of the run, unless a test failed: then somebody will want to look at what it left."""
    if not failed:
        atexit.register(shutil.rmtree, os.environ[RUN], ignore_errors=True)
