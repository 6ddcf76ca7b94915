"""Several runs in one log: appended with nohup, started again by hand or by a launcher."""

from __future__ import annotations

import itertools

import pytest
import test_diagnose

from trainwiz.diagnose import of_log

STARTS = {
    "nohup": "nohup: ignoring input\nreading the data\n",
    "torchrun": test_diagnose.LOGS["good--started-again"].split("\n")[1] + "\n",
    "deepspeed": "[2025-03-02 10:01:13,004] [INFO] [runner.py:607:main] cmd = /usr/bin/python3 -u train.py\n",
    "shell": "user@node3:~/work$ torchrun --nproc_per_node 4 train.py\n",
    "arguments": "Namespace(batch_size=8, epochs=3, output='out')\nbuilding the model\n",
    "elastic": "I0612 09:14:02.1 42 torch/distributed/elastic/agent/server/api.py:900] Restarting worker group\n",
}
STEPS = "".join(f"epoch 0 step {i} loss {4 / i:.3f}\n" for i in range(1, 30))
FAILURES = ["cuda_memory", "port_in_use", "missing_package--flash", "disk_full", "address_unknown"]


def failed(name: str) -> str:
    lines = test_diagnose.LOGS[name].split("\n")
    return "\n".join(line for line in lines if not line.startswith("# not run")).rstrip() + "\n"


def cause(text: str) -> str | None:
    found = of_log(text, log="train.log")
    return found.name if found is not None else None


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_before_a_run_that_goes_well_is_none(start: str, name: str) -> None:
    one = start + STEPS + failed(name)
    assert cause(one) == name.partition("--")[0]
    assert cause(one + start + STEPS) is None


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(FAILURES)))
def test_of_several_failures_that_of_the_last_run_counts(start: str, first: str, second: str) -> None:
    assert cause(start + STEPS + failed(first) + start + STEPS + failed(second)) == second.partition("--")[0]


def test_a_run_that_only_began_leaves_the_failure_before() -> None:
    start = STARTS["torchrun"]
    assert cause(start + STEPS + failed("disk_full") + start) == "disk_full"


def test_ranks_that_go_on_after_a_failure_are_no_other_run() -> None:
    assert cause(STEPS + failed("cuda_memory") + STEPS) == "cuda_memory"
    assert cause(
        "***** Running training *****\n" + failed("cuda_memory") + "***** Running training *****\n" + STEPS
    ) == ("cuda_memory")


def test_a_signal_ends_a_run_that_had_failed() -> None:
    end = failed("cancelled--torchrun")
    assert cause(STEPS + failed("cuda_memory") + end) == "cuda_memory"
    assert cause(STEPS + failed("cuda_memory") + STEPS + end) == "cancelled"
