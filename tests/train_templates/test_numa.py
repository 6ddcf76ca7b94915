"""A rank on the cores beside its GPU: what machines say in /sys, and what the threads may then do."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import BASE
from test_tasks import load

from trainwiz import plan as plans
from trainwiz.render import script

OFFLOAD = {"strategy.kind": "deepspeed", "strategy.zero_stage": 2, "strategy.offload_optimizer_device": "cpu"}
FIRST, SECOND = "0000:1b:00.0", "0001:8a:00.0"
TWO = {0: "0-3,8-11", 1: "4-7,12-15"}


@pytest.fixture
def numa(tmp_path: Path) -> Any:
    return load(tmp_path / "project", "causal_lm", "numa", **{"machine.device": "cuda", **OFFLOAD})


def machine(root: Path, nodes: Mapping[int, str], gpus: Mapping[str, object]) -> Path:
    """A /sys as such a machine has it."""
    for node, cores in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for address, node in gpus.items():
        folder = root / f"bus/pci/devices/{address}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


@pytest.mark.parametrize(
    ("nodes", "node", "allowed", "cores", "why"),
    [
        (TWO, 1, range(16), {4, 5, 6, 7, 12, 13, 14, 15}, ""),
        (TWO, 0, range(16), {0, 1, 2, 3, 8, 9, 10, 11}, ""),
        (TWO, 1, [2, 3, 4, 5], {4, 5}, ""),  # as Slurm or a container allows
        (TWO, 1, range(4), set(), "none of the cores that this rank may use (0-3) are on node 1"),
        (TWO, -1, range(16), set(), "the node of this GPU is unknown"),
        (TWO, "", range(16), set(), "the node of this GPU is unknown"),
        (TWO, 7, range(16), set(), "the node of this GPU is unknown"),
        ({0: "0-15"}, 0, range(16), set(), "all cores of this machine are on one node"),
        ({0: "0-15", 1: ""}, 0, range(16), set(), "all cores of this machine are on one node"),  # memory of a GPU
        ({}, 0, range(16), set(), "all cores of this machine are on one node"),
    ],
)
def test_the_cores_beside_a_gpu(
    numa: Any, tmp_path: Path, nodes: dict[int, str], node: object, allowed: Any, cores: set[int], why: str
) -> None:
    system = machine(tmp_path / "sys", nodes, {FIRST: 0, SECOND: node})
    assert numa.cores_beside(SECOND, set(allowed), system) == (cores, why)
    assert numa.cores_beside("", set(allowed), system)[0] == set()
    assert numa.cores_beside("0000:ff:00.0", set(allowed), system)[0] == set()


def test_a_gpu_is_known_by_its_place_on_the_bus(numa: Any) -> None:
    assert numa.pci_address(SimpleNamespace(pci_domain_id=1, pci_bus_id=0x8A, pci_device_id=0)) == SECOND
    assert numa.pci_address(SimpleNamespace(name="as PyTorch 2.5 describes it")) == ""


def test_all_threads_of_a_rank_are_bound_and_its_log_says_so(
    numa: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread that somebody else bound before stays there."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if len(cores) < 2:
        pytest.skip("needs two cores")
    chosen, other = sorted(cores)[:2]
    begun, done = threading.Barrier(3), threading.Event()
    numbers: list[int] = []

    def wait(only: set[int]) -> None:
        os.sched_setaffinity(0, only)
        numbers.append(threading.get_native_id())
        begun.wait()
        done.wait()

    for only in (cores, {other}):
        threading.Thread(target=wait, args=(only,), daemon=True).start()
        while len(numbers) < (1 if only == cores else 2):
            pass
    begun.wait()
    asked: list[tuple[str, set[int]]] = []

    def beside(address: str, allowed: set[int]) -> tuple[set[int], str]:
        asked.append((address, allowed))
        return {chosen}, ""

    place = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)  # the only one that is visible, or any
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: place if number == 3 else None)
    monkeypatch.setattr(numa, "cores_beside", beside)
    try:
        numa.bind()
        assert asked == [(FIRST, cores)]
        assert os.sched_getaffinity(0) == os.sched_getaffinity(numbers[0]) == {chosen}
        assert os.sched_getaffinity(numbers[1]) == {other}
        assert torch.get_num_threads() == 1
        assert capsys.readouterr().out == f"GPU {FIRST}: bound to cores {chosen} of its NUMA node\n"
    finally:
        done.set()
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(ProcessLookupError):  # the two end now
                os.sched_setaffinity(thread, cores)
        torch.set_num_threads(threads)
    monkeypatch.setattr(numa, "cores_beside", lambda *_: (set(), "the node of this GPU is unknown"))
    numa.bind()
    assert os.sched_getaffinity(0) == cores
    assert capsys.readouterr().out == f"GPU {FIRST}: not bound to a NUMA node: the node of this GPU is unknown\n"


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        (OFFLOAD, True),
        ({"model.activation_checkpointing": "offload"}, True),
        ({}, False),
        ({"machine.numa_binding": "always"}, True),
        ({**OFFLOAD, "machine.numa_binding": "never"}, False),
        ({**OFFLOAD, "machine.device": "cpu"}, False),
    ],
)
def test_which_plans_bind(changes: dict[str, object], bound: bool) -> None:
    plan = plans.with_changes(BASE, {"machine.device": "cuda", **changes})
    assert ("numa" in script.features(plan)) is bound
