"""Which tests one worker runs one after another; workers take these shares in the order of the collection.

A file is a share, whole: its tests use what its fixtures made. Files whose tests race a clock, or watch how processes
end, are one share together, so that none of them has another beside it. What else asks Colossal-AI is with its
trainings, whose ranks have imported it.
"""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

# docs/decisions/tests.md: Four workers, and the tests that race the clock in one of them
RACING = """
beats hangs ranks rollcall signals spares
""".split()  # noqa: SIM905


LONG = """
racing test_training test_faults test_slurm_survival test_colossalai test_tasks test_survival test_debugging
test_resume test_sft test_each_option test_pairs test_optimizers test_on_slurm test_sharding test_on_kubectl
test_model_families test_preemption test_configurations test_evaluation test_several_machines test_noise_and_frozen
test_waits test_rehearse test_speed test_claims test_missing test_activations test_script_claims test_script
test_launch test_hostile test_rows test_goodput test_own_code test_init test_update test_agreement test_prepare
test_wizard test_cost test_pods
""".split()  # noqa: SIM905
"""Shares that take more than 20 s, the longest first: with the others last, all workers end together.

Some of them mostly wait, for minutes: the racing one, those of Slurm, of lost machines, of debuggers and of several
machines. Between two of these stand some that keep a core busy.
"""

COLOSSALAI = PurePath("tests/train_templates/test_colossalai.py")


class Shares(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker one share after another."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid)


def share(nodeid: str) -> str:
    """The name of a test's share."""
    file = COLOSSALAI if "about_colossalai" in nodeid else PurePath(nodeid.partition("::")[0])
    return "racing" if file.stem.removeprefix("test_") in RACING else str(file)
