"""Which tests one worker runs one after another; workers take these shares in the order of the collection.

A file is a share, whole: its tests use what its fixtures made. Files whose tests race a clock, or watch how processes
end, are one share together, so that none of them has another beside it.
"""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

# docs/decisions/tests.md: Two workers, and the tests that race the clock in one of them
RACING = """
beats capture debugging hangs ranks rollcall several_machines signals spares watch
""".split()  # noqa: SIM905


LONG = """
racing test_training test_model_families test_speed
test_trajectory test_tasks test_resume test_colossalai test_rehearse test_sft
test_preemption test_faults test_rows test_claims test_script_claims test_configurations test_recovery test_missing
test_checkpoints test_causal_lm test_exactness test_remedy test_goodput test_cost test_check_speed test_init test_launch
""".split()  # noqa: SIM905
"""Shares that take more than 20 s, the longest first: with the others last, both workers end together."""


class Shares(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker one share after another."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid)


def share(nodeid: str) -> str:
    """The name of a test's share."""
    file = PurePath(nodeid.partition("::")[0])
    return "racing" if file.stem.removeprefix("test_") in RACING else str(file)
