"""Whether a run goes on: by its process here, by the file that its launcher touches elsewhere."""

import os
import time
from pathlib import Path

from patience import patience

from trainwiz.store import liveness
from trainwiz.store.liveness import HeartbeatFile


def test_a_run_of_another_machine_is_known_by_its_beat(tmp_path: Path) -> None:
    beat, elsewhere = tmp_path / ".running", {"pid": 1, "hostname": "no-such-host"}
    assert liveness.is_running(elsewhere, beat) is None, "of a version that touched nothing"
    heartbeat = HeartbeatFile(beat)
    until = time.monotonic() + 10 * patience()
    while not beat.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert liveness.is_running(elsewhere, beat) is True
    old = time.time() - liveness.STALE_SECONDS - 1
    os.utime(beat, (old, old))
    assert liveness.is_running(elsewhere, beat) is False
    heartbeat.close()
    assert not beat.exists()
