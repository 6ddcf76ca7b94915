"""How much longer things take here and now than on a machine that has nothing else to do."""

import os
from pathlib import Path


def patience() -> float:
    """The processes that want each core, now or in the last minute, at least 1: by it a limit in seconds is longer."""
    minute, _, _, now, _ = Path("/proc/loadavg").read_text().split()
    return max(1.0, max(float(minute), int(now.partition("/")[0])) / (os.cpu_count() or 1))
