"""Stands in for torchrun, without torch: starts ranks, ends all when one fails, and reports as torchrun does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(words: list[str]) -> int:
    """Run the script's ranks on this machine."""
    script = words.index("train.py")
    option = dict(zip(words[:script:2], words[1:script:2], strict=True))
    here, machine = int(option["--nproc_per_node"]), int(option["--node_rank"])
    ranks = {}
    for local in range(here):
        folder = Path(option["--log-dir"]) / "none" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        rank = str(machine * here + local)
        with (folder / "stdout.log").open("wb") as output:
            argv = [sys.executable, *words[script:]]
            environ = {**os.environ, "RANK": rank, "LOCAL_RANK": str(local)}
            ranks[rank] = subprocess.Popen(argv, env=environ, stdout=output, stderr=output)
    while not (failed := next((rank for rank, process in ranks.items() if process.poll()), None)):
        if all(process.poll() == 0 for process in ranks.values()):
            return 0
        time.sleep(0.05)
    code = ranks[failed].wait()
    for process in ranks.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in ranks.values():
        process.wait()
    print(f"Root Cause (first observed failure):\n[0]:\n  rank      : {failed} (local_rank: 0)")
    print(f"  exitcode  : {code} (pid: {ranks[failed].pid})")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
