"""64 light ranks on 8 machines: the benchmark of many machines, with a stand-in for torchrun that needs no torch."""

import sys
from pathlib import Path

import projects
from patience import patience

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import machines

LIGHT = Path(__file__).parents[1] / "light_torchrun"
SECONDS = 100
"""Of each step on a busy machine; 5 to 19 s were measured with the real torchrun (docs/scale.md)."""


def test_eight_machines_start_fail_begin_again_and_stop_in_time() -> None:
    environ = projects.environment({"PYTHONPATH": projects.python_path(LIGHT)})
    steps = machines.launched(8, environ)
    assert all(seconds < SECONDS * patience() for seconds in steps), steps
