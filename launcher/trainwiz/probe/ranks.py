"""The memory of the ranks of a running launch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainwiz.probe.gpus import gpus

_WAITING = 1000


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """The memory of one rank and its data loader workers."""

    host: int
    """Bytes of host memory; pages shared by several processes are counted once."""
    gpu: int | None = None
    """Bytes of GPU memory; None: it uses no GPU."""


def memory(launcher: int, *, with_gpus: bool = True) -> Mapping[int, RankMemory]:
    """By rank, for the processes below a launcher; processes that ended, or belong to others, are left out."""
    of_rank: dict[int, list[psutil.Process]] = {}
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(launcher).children(recursive=True)
        for process in below:
            # The workers of a rank inherit its environment.
            with contextlib.suppress(psutil.Error, ValueError):
                if (rank := process.environ().get("RANK")) is not None and not _waits(process):
                    of_rank.setdefault(int(rank), []).append(process)
    on_gpus = _on_gpus() if with_gpus and of_rank else {}
    found = {}
    for number, processes in sorted(of_rank.items()):
        pids = {process.pid for process in processes}
        gpu = sum(used for pid, used in on_gpus.items() if pid in pids) if pids & on_gpus.keys() else None
        found[number] = RankMemory(host=sum(map(_share, processes)), gpu=gpu)
    return found


def _waits(process: psutil.Process) -> bool:
    """Whether it is a standby rank (`process.standby`), which the kernel may end first as long as it waits."""
    if not any(word.endswith("inside/standby.py") for word in process.cmdline()):
        return False
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) == _WAITING
    return False


def _share(process: psutil.Process) -> int:
    """Its proportional share of pages, so that workers forked from a rank do not count its memory again."""
    with contextlib.suppress(psutil.Error, AttributeError):
        return int(process.memory_full_info().pss)
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _on_gpus() -> dict[int, int]:
    used: dict[int, int] = {}
    for gpu in gpus().gpus:
        for process in gpu.processes:
            used[process.pid] = used.get(process.pid, 0) + (process.used_bytes or 0)
    return used
