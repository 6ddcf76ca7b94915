"""What the host probe reads, from fake NVML libraries and fake /proc and /sys trees."""

import dataclasses
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainwiz.machine import Gpu, Toolchain
from trainwiz.probe import cgroup, gpus, toolchain
from trainwiz.probe.host import disk, host
from trainwiz.probe.limit import within

MIB, GIB = 1 << 20, 1 << 30


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801 - pynvml's own name
    pass


class FakeNvml:
    """As much of pynvml as is asked; a GPU is a dict, `broken` ones raise."""

    def __init__(self, *cards: dict[str, Any], broken: tuple[int, ...] = (), init: Exception | None = None) -> None:
        self.cards, self.broken, self.init, self.shut = cards, broken, init, False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init:
            raise self.init

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        if index in self.broken:
            raise NVMLError("GPU is lost")
        return self.cards[index]

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54.15"  # older bindings give bytes

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12040

    def nvmlDeviceGetName(self, card: dict[str, Any]) -> str:  # noqa: N802
        return str(card["name"])

    def nvmlDeviceGetMemoryInfo(self, card: dict[str, Any]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=card["total"], free=card["free"], used=0)

    def nvmlDeviceGetCudaComputeCapability(self, card: dict[str, Any]) -> tuple[int, int]:  # noqa: N802
        return card["capability"]  # type: ignore[no-any-return]

    def nvmlDeviceGetUUID(self, card: dict[str, Any]) -> str:  # noqa: N802
        return str(card["uuid"])

    def nvmlDeviceGetMigMode(self, card: dict[str, Any]) -> list[int]:  # noqa: N802
        if "mig" not in card:
            raise NVMLError("Not Supported")
        return [card["mig"], card["mig"]]

    def nvmlDeviceGetEnforcedPowerLimit(self, card: dict[str, Any]) -> int:  # noqa: N802
        if "milliwatts" not in card:
            raise NVMLError("Not Supported")
        return int(card["milliwatts"])

    def nvmlDeviceGetComputeRunningProcesses(self, card: dict[str, Any]) -> list[SimpleNamespace]:  # noqa: N802
        return card.get("compute", [])  # type: ignore[no-any-return]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: dict[str, Any]) -> list[SimpleNamespace]:  # noqa: N802
        return card.get("graphics", [])  # type: ignore[no-any-return]


def card(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "NVIDIA A100-SXM4-40GB",
        "total": 40960 * MIB,
        "free": 40536 * MIB,
        "capability": (8, 0),
        "uuid": f"GPU-{index}aaa",
        **changes,
    }


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


# GPUs


def test_everything_nvml_says_is_kept(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/4242/comm": "python\n"})
    busy = card(
        1,
        free=10 * GIB,
        mig=1,
        milliwatts=250_500,
        compute=[SimpleNamespace(pid=4242, usedGpuMemory=29 * GIB), SimpleNamespace(pid=99, usedGpuMemory=None)],
        graphics=[SimpleNamespace(pid=4242, usedGpuMemory=29 * GIB)],
    )
    nvml = FakeNvml(card(0), busy)
    found = gpus.gpus(nvml, environ={}, root=root)
    assert found.problems == ()
    assert (found.driver_version, found.cuda_driver_version) == ("550.54.15", "12.4")
    first, second = found.gpus
    assert first == Gpu(
        index=0,
        name="NVIDIA A100-SXM4-40GB",
        memory_bytes=40960 * MIB,
        used_bytes=424 * MIB,
        compute_capability=(8, 0),
        uuid="GPU-0aaa",
    )
    assert second.mig
    assert second.power_watts == 250.5
    assert [(p.pid, p.used_bytes, p.name) for p in second.processes] == [(99, None, ""), (4242, 29 * GIB, "python")]
    assert nvml.shut


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 ", [1]),
        ("0,7,1", [0]),  # CUDA stops at the first that is nobody
        ("GPU-2a", [2]),
        ("GPU-", []),  # not unique
        ("0,0", [0]),
        ("MIG-abc", [0, 1, 2]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(wanted: str | None, indices: list[int]) -> None:
    environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
    found = gpus.gpus(FakeNvml(card(0), card(1), card(2)), environ=environ)
    assert [gpu.index for gpu in found.gpus] == indices
    assert found.hidden == 3 - len(indices)


def test_no_library_is_absence_and_a_failing_one_is_a_problem() -> None:
    absent = gpus.gpus(FakeNvml(init=NVMLError_LibraryNotFound("NVML Shared Library Not Found")), environ={})
    assert [p.probe for p in absent.problems] == ["nvml"]
    failing = gpus.gpus(FakeNvml(init=NVMLError("Driver/library version mismatch")), environ={})
    assert [(p.probe, p.detail) for p in failing.problems] == [("gpus", "Driver/library version mismatch")]


def test_without_the_drivers_library_pynvml_is_not_even_imported() -> None:
    program = """
import ctypes, sys
def missing(name, *rest): raise OSError(f"{name}: cannot open shared object file")
ctypes.CDLL = missing
from trainwiz.probe import gpus
(problem,) = gpus.gpus().problems
print(problem.probe, problem.detail, "pynvml" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "nvml libnvidia-ml.so.1: cannot open shared object file False\n"


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    found = gpus.gpus(FakeNvml(card(0), card(1), broken=(0,)), environ={})
    assert [gpu.index for gpu in found.gpus] == [1]
    assert found.problems[0].detail == "GPU 0: GPU is lost"


def test_a_hung_driver_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    class Hung(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            threading.Event().wait(180)

    monkeypatch.setattr(gpus, "SECONDS", 0.1)
    assert "no answer within 0.1 s" in gpus.gpus(Hung(), environ={}).problems[0].detail


def test_within_passes_results_and_errors_on() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


# cgroups


@pytest.mark.parametrize(
    ("files", "quota", "memory"),
    [
        ({}, None, None),
        # version 2, the limit two levels up
        (
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "sys/fs/cgroup/slurm/job_7/cpu.max": "350000 100000\n",
                "sys/fs/cgroup/slurm/job_7/memory.max": str(8 * GIB),
                "sys/fs/cgroup/slurm/job_7/memory.current": str(3 * GIB),
                "sys/fs/cgroup/slurm/job_7/memory.stat": f"anon 1\ninactive_file {GIB}\n",
                "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
                "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
            },
            3.5,
            (8 * GIB, 6 * GIB),
        ),
        # version 2 in a container: the path is the host's, only the root is mounted
        (
            {
                "proc/self/cgroup": "0::/docker/abc\n",
                "sys/fs/cgroup/cpu.max": "200000 100000",
                "sys/fs/cgroup/memory.max": str(4 * GIB),
                "sys/fs/cgroup/memory.current": "0",
            },
            2.0,
            (4 * GIB, 4 * GIB),
        ),
        # version 1, controllers mounted together
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(3 * GIB),
                "sys/fs/cgroup/memory/docker/abc/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
            },
            1.5,
            (2 * GIB, 0),
        ),
        # version 1 without limits, and files that say nothing sensible
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/\ngarbage\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "?",
            },
            None,
            None,
        ),
    ],
)
def test_cgroup_limits(
    tmp_path: Path, files: dict[str, str], quota: float | None, memory: tuple[int, int] | None
) -> None:
    root = write(tmp_path, files)
    assert cgroup.cpu_quota(root) == quota
    assert cgroup.memory_limit(root) == memory


# compilers


def program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    (folder / name).chmod(0o755)


NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.4, V12.4.131"


def test_compilers_are_found_where_torch_would_look(tmp_path: Path) -> None:
    tools, cuda = tmp_path / "bin", tmp_path / "cuda-12.4"
    program(tools, "c++", "13.2.0")
    program(tools, "ninja", "1.11")
    program(cuda / "bin", "nvcc", NVCC)
    path = f"{tools}:/usr/bin:/bin"
    found = toolchain.toolchain({"PATH": path, "CUDA_HOME": str(cuda)}, root=tmp_path)
    assert found == Toolchain(
        cxx=str(tools / "c++"),
        cxx_version="13.2.0",
        nvcc=str(cuda / "bin/nvcc"),
        nvcc_version="12.4",
        ninja=str(tools / "ninja"),
    )
    program(tools, "clang-17", "17.0.6")
    environ = {"PATH": path, "CXX": "clang-17"}
    before = toolchain.cache_key(environ, root=tmp_path)
    assert toolchain.toolchain(environ, root=tmp_path).cxx_version == "17.0.6"
    os.utime(tools / "clang-17", ns=(1, 1))
    assert toolchain.cache_key(environ, root=tmp_path) != before, "an upgraded compiler is asked again"


def test_no_compilers_at_all(tmp_path: Path) -> None:
    assert toolchain.toolchain({"PATH": str(tmp_path)}, root=tmp_path) == Toolchain()


def test_a_compiler_that_fails_has_no_version(tmp_path: Path) -> None:
    program(tmp_path, "c++", "what?")
    found = toolchain.toolchain({"PATH": f"{tmp_path}:/bin"}, root=tmp_path)
    assert (found.cxx, found.cxx_version) == (str(tmp_path / "c++"), None)


# all of it

CPUINFO = "\n\n".join(f"processor : {i}\nmodel name : Fast CPU\nphysical id : 0\ncore id : {i // 2}" for i in range(4))
MEMINFO = "MemTotal:       1024000 kB\nMemFree: 1 kB\nMemAvailable:   512000 kB\n"


def test_a_whole_host_from_a_fake_tree(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": CPUINFO,
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 100000",
            "sys/fs/cgroup/memory.max": str(256 * MIB),
            "sys/fs/cgroup/memory.current": str(56 * MIB),
            "dev/shm/.keep": "",
        },
    )
    machine = host(str(tmp_path / "not" / "yet"), nvml=FakeNvml(card(0)), root=root, toolchain=Toolchain)
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA A100-SXM4-40GB"]
    assert (machine.cpu.model, machine.cpu.physical_cores, machine.cpu.usable_cores) == ("Fast CPU", 2, 1)
    assert machine.memory.limited_by_cgroup
    assert (machine.memory.total_bytes, machine.memory.available_bytes) == (256 * MIB, 200 * MIB)
    assert machine.disk
    assert machine.disk.path == str(tmp_path)
    assert machine.shm
    assert machine.interpreter is None
    assert machine.problems == ()


def test_each_failing_probe_is_a_problem_and_no_more(tmp_path: Path) -> None:
    def broken() -> Toolchain:
        raise OSError("no toolchain for you")

    root = write(tmp_path, {"proc/meminfo": "MemTotal: much\n", "proc/cpuinfo": CPUINFO})
    machine = host(str(tmp_path), nvml=FakeNvml(init=NVMLError("bad")), root=root, toolchain=broken)
    assert {p.probe for p in machine.problems} == {"gpus", "memory", "toolchain"}
    assert machine.cpu.model == "Fast CPU"


def test_this_host_is_seen() -> None:
    machine = host(".")
    assert machine.memory.total_bytes > 100 * MIB
    assert machine.memory.available_bytes <= machine.memory.total_bytes
    assert 1 <= machine.cpu.usable_cores <= (os.cpu_count() or 1)
    assert any(interface.loopback for interface in machine.interfaces)
    assert host(".", interfaces=False).interfaces == ()
    assert machine.disk
    assert machine.disk.free_bytes > 0
    assert dataclasses.is_dataclass(machine)


def test_disk_of_a_folder_that_cannot_be_entered(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)
    try:
        assert disk(str(closed)).total_bytes > 0
    finally:
        closed.chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        (
            {
                "proc/self/cgroup": "0::/job\n",
                "sys/fs/cgroup/job/memory.events": "low 0\nmax 9\noom 4\noom_kill 3\n",
                "sys/fs/cgroup/memory.events": "oom_kill 99\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cgroup.procs": ""}, None),
        ({}, None),
    ],
)
def test_kills_for_memory_are_counted_in_the_innermost_cgroup(
    tmp_path: Path, files: dict[str, str], kills: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup.oom_kills(tmp_path) == kills
