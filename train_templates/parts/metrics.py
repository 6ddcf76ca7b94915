"""The records of a training: config.json, metrics.jsonl and the progress bar, written by the main process only."""

from __future__ import annotations

import json
import math

# feature: tracker
from collections.abc import Callable

# end: tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from train import Config


class Metrics:
    """Write one JSON line for each logged update and each evaluation.

    A resumed training continues the same file. Records of updates after `start` are removed and written again.
    config.json has the settings that this training uses: the defaults of `Config` and what the command line overrides.
    """

    # feature: tracker
    track: Callable[..., object]
    """Called with each record and with its update as `step`."""
    # end: tracker

    def __init__(self, config: Config, is_main: bool, start: int, total: int) -> None:
        self.is_main, self.path = is_main, Path(config.output_dir) / "metrics.jsonl"
        # feature: each_epoch
        self.evaluated = 0  # how often the model was evaluated after update `start`
        # end: each_epoch
        self.bar = tqdm(total=total, initial=start, disable=not is_main, unit="update", mininterval=1)
        if is_main:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            settings = json.dumps(vars(config), indent=2, default=str)  # a task of your own may have any type
            self.path.with_name("config.json").write_text(settings + "\n")
            self.cut(start)

    def cut(self, start: int) -> None:
        """Remove what follows the records of update `start`, line by line: after weeks there are gigabytes of them."""
        end = 0
        with self.path.open("ab+") as file:
            file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):  # a crash has cut it off
                    break
                record = json.loads(line)
                if record["update"] > start:
                    break
                # feature: each_epoch
                if record["update"] == start and not record.keys() & {"grad_norm_pre_clip", "failed_saves"}:
                    self.evaluated += 1
                # end: each_epoch
                end += len(line)
            file.truncate(end)

    def write(self, record: dict[str, Any]) -> None:
        """Add one record. A number that is not finite (a gradient that overflowed fp16) becomes null."""
        if not self.is_main:
            return
        finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(finite) + "\n")
        self.bar.set_postfix(shown(finite), refresh=False)
        # feature: tracker
        self.track({name: value for name, value in finite.items() if value is not None}, step=record["update"])
        # end: tracker


def shown(record: dict[str, Any]) -> dict[str, str]:
    """Return what the progress bar shows of a record."""
    values = {name: f"{record[name]:.4g}" for name in ("loss", "lr") if record.get(name) is not None}
    # feature: mfu
    if record.get("mfu") is not None:
        values["mfu"] = f"{record['mfu']:.1%}"
    # end: mfu
    # feature: cuda
    if record.get("gpu_memory_peak_bytes") is not None:
        values["gpu"] = f"{record['gpu_memory_peak_bytes'] / 2**30:.1f}GiB"
    # end: cuda
    if record.get("data_wait_share", 0) >= NOTICEABLE:
        values["data"] = f"{record['data_wait_share']:.0%}"
    return values


NOTICEABLE = 0.01  # of the time: waits for data below this are not shown
