"""What each fact means: the pure half of doctor, over the fixtures and changes of them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from trainwiz import rules
from trainwiz.checkup import Line, Surroundings, checkup
from trainwiz.checkup.known_bad import KNOWN_BAD
from trainwiz.finding import Finding, Fix, Level
from trainwiz.machine import Disk, Gpu, GpuProcess, Limits, Machine, Memory, Problem, Toolchain
from trainwiz.message import say
from trainwiz.rules.registry import Facts, check
from trainwiz.store import machines
from trainwiz.surroundings import Cache, Comm, Hub, Op, Port

MIB, GIB = 1 << 20, 1 << 30
NAMES = ("8xh100", "4xa100-40g", "2xrtx4090", "1xt4", "8xv100", "cpu")


def fixture(name: str) -> Machine:
    return machines.read(Path(__file__).parents[1] / "machines" / f"{name}.json")


def changed(name: str, **changes: Any) -> Machine:
    """A fixture with other values; those of the interpreter carry the prefix `py_`, packages stand in `packages`."""
    machine = fixture(name)
    assert machine.interpreter
    inner = {key[3:]: changes.pop(key) for key in list(changes) if key.startswith("py_")}
    packages = {**machine.interpreter.packages, **changes.pop("packages", {})}
    interpreter = dataclasses.replace(machine.interpreter, **{"packages": packages, **inner})
    return dataclasses.replace(machine, **{"interpreter": interpreter, **changes})


def judged(machine: Machine, around: Surroundings | None = None) -> dict[str, Line]:
    own = [rule for rule in rules.load() if set(rule.needs) <= {"machine"}]
    lines = checkup(machine, around, check(Facts(machine=machine), rules=own))
    found = {line.subject: line for line in lines}
    assert len(found) == len(lines), "no subject twice"
    return found


def worst(lines: dict[str, Line]) -> dict[str, str]:
    return {name: line.level.value for name, line in lines.items() if line.level in (Level.ERROR, Level.WARNING)}


def test_nothing_is_said_of_the_cuda_of_a_torch_that_is_not_there() -> None:
    tools = Toolchain(nvcc="/n", nvcc_version="12.8")
    for machine in (
        changed("cpu", toolchain=tools, packages={"torch": None}),
        dataclasses.replace(fixture("cpu"), toolchain=tools, interpreter=None),
    ):
        assert str(judged(machine)["nvcc"].found) == "nvcc 12.8"
    assert str(judged(changed("cpu", toolchain=Toolchain(), packages={"torch": None}))["nvcc"].found) == "none"
    assert "not needed because torch was built without CUDA" in str(
        judged(changed("cpu", toolchain=tools))["nvcc"].found
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, {"shm": "warning"} if name == "1xt4" else {}) for name in NAMES],
)
def test_the_fixtures_can_train(name: str, expected: dict[str, str]) -> None:
    lines = judged(fixture(name))
    assert worst(lines) == expected
    assert {"python", "torch", "accelerate", "gpus", "memory", "shm", "disk", "compiler", "nvcc", "collectives"} <= set(
        lines
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_says_what_to_type(name: str) -> None:
    for line in judged(fixture(name)).values():
        assert line.fix or line.level in (None, Level.HINT), line
        assert str(line.title)
        assert "{" not in str(line.found)


# what would stop a training

OLD_DRIVER = {"driver_version": "470.1", "cuda_driver_version": "11.4"}


@pytest.mark.parametrize(
    ("machine", "subject", "found", "fix"),
    [
        (
            changed("4xa100-40g", py_cuda_build=None, packages={"torch": "2.13.0+cpu"}),
            "agreement",
            "GPUs found, but torch 2.13.0+cpu was built without CUDA",
            "the cu126 build of torch",
        ),
        (
            changed("4xa100-40g", **OLD_DRIVER),
            "agreement",
            "torch was built for CUDA 12.6, but the driver supports only up to CUDA 11.4",
            "the cu118 build of torch",
        ),
        (
            changed("8xv100", py_arch_list=("sm_75", "sm_80", "compute_120")),
            "agreement",
            "no kernels for Tesla V100-SXM2-32GB (compute capability 7.0), only for sm_75 sm_80 compute_120",
            "the cu126 build of torch",
        ),
        (
            changed("8xh100", py_arch_list=("sm_80", "sm_86")),
            "agreement",
            "no kernels for NVIDIA H100 80GB HBM3 (compute capability 9.0), only for sm_80 sm_86",
            "the cu126 build of torch",
        ),
        (
            changed("8xh100", py_torch_gpus=0, py_cuda_error="driver is too old"),
            "agreement",
            "torch sees no GPU: driver is too old",
            "torch.cuda.init()",
        ),
        (changed("8xh100", py_torch_gpus=0), "agreement", "torch sees no GPU: no reason given", "init()"),
        (changed("8xh100", py_backends=("gloo",)), "collectives", "this torch has no NCCL", "pytorch.org"),
        (
            changed("cpu", packages={"torch": None}, py_error="No module named 'torch'"),
            "torch",
            "torch is not installed in /usr/bin/python3",
            "pip install",
        ),
        (changed("cpu", py_error="OSError: libcudart.so.12"), "torch", "cannot be imported", "--force-reinstall"),
        (changed("cpu", py_python_version="3.8.10"), "python", "Python 3.8.10", "--python PATH"),
        (changed("cpu", packages={"accelerate": None}), "accelerate", "not installed", "pip install"),
        (
            changed("cpu", gpus=(), problems=(Problem(probe="gpus", detail="version mismatch"),)),
            "gpus",
            "NVIDIA's library failed: version mismatch",
            "nvidia-smi",
        ),
        (
            changed("cpu", memory=Memory(total_bytes=GIB, available_bytes=900 * MIB, limited_by_cgroup=True)),
            "memory",
            "900 MiB available of 1.0 GiB (the limit of this container or job)",
            "request more memory",
        ),
        (
            changed("cpu", disk=Disk(path="/", total_bytes=GIB, free_bytes=9)),
            "disk",
            "free of 1.0 GiB at /",
            "free up space",
        ),
    ],
)
def test_errors(machine: Machine, subject: str, found: str, fix: str) -> None:
    lines = judged(machine)
    assert lines[subject].level is Level.ERROR, lines[subject]
    assert found in str(lines[subject].found)
    assert fix in str(lines[subject].fix)


@pytest.mark.parametrize(
    ("machine", "subject", "level", "found"),
    [
        (changed("8xh100", py_torch_gpus=5), "agreement", "warning", "GPUs visible to torch: 5 of 8"),
        (
            changed("2xrtx4090", driver_version="535.216.03"),
            "p2p",
            "warning",
            "several RTX 40 GPUs with driver 535.216.03",
        ),
        (changed("cpu", packages={"accelerate": "1.2.0"}), "accelerate", "warning", "1.2.0"),
        (changed("cpu", packages={"torch": "2.1.0"}), "torch", "warning", "2.1.0"),
        (changed("cpu", packages={"transformers": None}), "transformers", "hint", "only needed for text tasks"),
        (changed("cpu", hidden_gpus=2), "gpus", "warning", "hidden by CUDA_VISIBLE_DEVICES: 2"),
        (changed("cpu", toolchain=Toolchain()), "compiler", "warning", "not found; DeepSpeed cannot build"),
        (changed("cpu", toolchain=Toolchain(), packages={"deepspeed": None}), "compiler", "hint", "not found"),
        (changed("cpu", toolchain=Toolchain()), "ninja", "warning", "installed in /usr/bin, which is not on PATH"),
        (changed("cpu", toolchain=Toolchain(), packages={"ninja": None}), "ninja", "warning", "not found"),
        (changed("cpu", py_python_headers=False), "headers", "warning", "no Python.h"),
        (
            changed("8xh100", toolchain=Toolchain(nvcc="/n", nvcc_version="11.8")),
            "nvcc",
            "warning",
            "nvcc 11.8, torch built for CUDA 12.8; DeepSpeed refuses",
        ),
        (
            changed("8xh100", toolchain=Toolchain(nvcc="/n", nvcc_version="13.0"), py_cuda_build="13.1"),
            "nvcc",
            "warning",
            "refuses",
        ),
        (changed("8xh100", toolchain=Toolchain()), "nvcc", "warning", "nvcc not found"),
        (changed("8xh100", limits=Limits(memlock_bytes=8 * MIB)), "memlock", "warning", "at most 8.0 MiB"),
        (changed("1xt4", limits=Limits(memlock_bytes=8 * MIB)), "memlock", "hint", "at most 8.0 MiB"),
        (changed("cpu", limits=Limits(open_files=1024)), "open_files", "hint", "at most 1024"),
        (changed("cpu", disk=Disk(path="/", total_bytes=GIB, free_bytes=9 * GIB)), "disk", "warning", "9.0 GiB free"),
        (changed("cpu", problems=(Problem(probe="limits", detail="no psutil"),)), "probe_limits", "hint", "no psutil"),
    ],
)
def test_warnings_and_hints(machine: Machine, subject: str, level: str, found: str) -> None:
    line = next(line for line in checkup(machine) if line.subject == subject)
    assert (line.level.value if line.level else "good") == level
    assert found in str(line.found)


@pytest.mark.parametrize(
    "machine",
    [
        changed("8xh100", toolchain=Toolchain(nvcc="/n", nvcc_version="12.4")),  # a minor apart is accepted
        changed("8xh100", py_arch_list=("sm_90a",)),
        changed("8xh100", py_arch_list=("sm_80", "compute_80")),  # PTX is compiled on the spot
        changed("2xrtx4090", py_arch_list=("sm_86",)),  # same major, newer minor
        changed("8xh100", py_arch_list=()),
        changed("8xh100", cuda_driver_version="12.2"),  # minor version compatibility
        changed("cpu", shm=None, disk=None, limits=Limits()),
        changed("2xrtx4090", driver_version="550.40.07"),
        changed("1xt4", py_backends=("gloo", "nccl"), shm=None),
    ],
)
def test_what_is_fine(machine: Machine) -> None:
    assert {k: v for k, v in worst(judged(machine)).items() if k not in ("compiler", "ninja")} == {}


def test_a_full_gpu_names_who_fills_it_and_the_way_around() -> None:
    machine = fixture("4xa100-40g")
    user = GpuProcess(pid=4242, used_bytes=30 * GIB, name="python")
    full = dataclasses.replace(machine.gpus[1], used_bytes=31 * GIB, processes=(user,))
    lines = judged(dataclasses.replace(machine, gpus=(machine.gpus[0], full, *machine.gpus[2:])))
    assert str(lines["gpu1"].found) == "31.0 GiB of 40.0 GiB in use by python (pid 4242, 30.0 GiB)"
    assert str(lines["gpu1"].fix).endswith("export CUDA_VISIBLE_DEVICES=0,2,3")
    assert "gpu0" not in lines


@pytest.mark.parametrize(("share", "said"), [(0.05, False), (0.1, False), (0.11, True), (1.0, True)])
def test_a_gpu_is_called_full_from_a_tenth_on(share: float, said: bool) -> None:
    machine = fixture("4xa100-40g")
    gpu = dataclasses.replace(machine.gpus[1], memory_bytes=40 * GIB, used_bytes=int(share * 40 * GIB), processes=())
    lines = judged(dataclasses.replace(machine, gpus=(machine.gpus[0], gpu, *machine.gpus[2:])))
    assert ("gpu1" in lines) is said


def test_mixed_and_partitioned_gpus() -> None:
    machine = fixture("2xrtx4090")
    small = Gpu(index=1, name="NVIDIA GeForce RTX 3060", memory_bytes=12 * GIB, compute_capability=(8, 6), mig=True)
    lines = judged(dataclasses.replace(machine, gpus=(machine.gpus[0], small)))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(lines["gpu_kinds"].fix)
    assert str(lines["gpus"].found).startswith("1 × NVIDIA GeForce RTX 4090")
    assert "RTX 3060 (12.0 GiB, compute capability 8.6)" in str(lines["gpus"].found)
    assert "partitioned GPUs: 1" in str(lines["mig"].found)


# the interpreter


def test_an_interpreter_that_cannot_be_asked_stops_there() -> None:
    machine = fixture("cpu")
    assert machine.interpreter
    broken = dataclasses.replace(machine.interpreter, packages={}, error="No such file", python="/nope")
    lines = judged(dataclasses.replace(machine, interpreter=broken))
    assert "No such file" in str(lines["python"].found)
    assert lines["python"].level is Level.ERROR
    assert "--python PATH" in str(lines["python"].fix)
    assert not {"torch", "accelerate", "precision", "collectives"} & set(lines)


def test_a_machine_without_an_interpreter_has_its_other_lines() -> None:
    assert "memory" in judged(dataclasses.replace(fixture("8xh100"), interpreter=None))


@pytest.mark.parametrize(
    ("packages", "pair"),
    [
        ({"deepspeed": "0.14.0", "torch": "2.4.1+cu121"}, "deepspeed+torch"),
        ({"deepspeed": "0.15.4", "torch": "2.6.0"}, "deepspeed+torch"),
        ({"torch": "2.5.1", "transformers": "4.52.3"}, "torch+transformers"),
        ({"torch": "2.2.2", "numpy": "2.0.0"}, "numpy+torch"),
        ({"colossalai": "0.5.0", "transformers": "5.23.0"}, "colossalai+transformers"),
    ],
)
def test_known_bad_pairs_are_named_with_the_way_out(packages: dict[str, str], pair: str) -> None:
    lines = [line for line in checkup(changed("cpu", packages=packages)) if line.subject == pair]
    assert lines
    for name in pair.split("+"):
        assert f"{name} {packages[name]}" in str(lines[0].found)
    assert "pip install" in str(lines[0].fix)


@pytest.mark.parametrize(
    "packages",
    [
        {},
        {"deepspeed": "0.14.0", "torch": "2.3.1", "transformers": None},
        {"deepspeed": "0.16.0", "torch": "2.6.0"},
        {"torch": "2.6.0", "transformers": "4.52.3"},
        {"torch": "2.2.2", "numpy": "1.26.4", "transformers": "4.51.0"},
        {"torch": None, "numpy": "2.0.0", "deepspeed": None},
        {"colossalai": "0.5.0", "transformers": "4.51.3"},
    ],
)
def test_neighbors_of_known_bad_pairs_are_not(packages: dict[str, str | None]) -> None:
    interpreter = changed("cpu", packages=packages).interpreter
    assert interpreter
    assert not [pair for pair in KNOWN_BAD if pair.meets(interpreter)]


def test_every_known_bad_pair_has_a_source_and_bounds() -> None:
    assert KNOWN_BAD
    for pair in KNOWN_BAD:
        assert pair.source.startswith("https://")
        assert len(set(pair.names)) == 2


# rules and lines


def test_a_rule_takes_the_place_of_its_line_and_others_follow() -> None:
    def finding(rule: str) -> Finding:
        fix = Fix(message=say("do this"))
        return Finding(rule=rule, level=Level.ERROR, where="there", message=say("{r} says", r=rule), fix=fix)

    before = checkup(fixture("cpu"))
    lines = checkup(fixture("cpu"), None, [finding("TW103"), finding("TW999")])
    assert len(lines) == len(before) + 1
    torch = next(line for line in lines if line.subject == "torch")
    assert (str(torch.found), torch.rule, str(torch.fix)) == ("TW103 says", "TW103", "do this")
    assert (str(lines[-1].title), str(lines[-1].found), lines[-1].level) == ("there", "TW999 says", Level.ERROR)


def test_every_rule_that_a_line_names_exists_and_needs_only_a_machine() -> None:
    by_id = {rule.id: rule for rule in rules.load()}
    named = {rule for name in NAMES for line in checkup(fixture(name)) for rule in line.rules}
    assert named
    for rule in named:
        assert set(by_id[rule].needs) <= {"machine"}


# surroundings


def line(subject: str, **around: Any) -> Line:
    return judged(fixture("cpu"), Surroundings(**around))[subject]


def test_hub() -> None:
    good = line("hub", hub=Hub(endpoint="https://hub", reachable=True))
    assert (str(good.found), good.level) == ("https://hub is reachable", None)
    bad = line("hub", hub=Hub(endpoint="https://hub", reachable=False, detail="refused"))
    assert (str(bad.found), bad.level) == ("https://hub is not reachable: refused", Level.HINT)
    assert "HF_ENDPOINT" in str(bad.fix)
    offline = line("hub", hub=Hub(endpoint="https://hub", offline="HF_HUB_OFFLINE"))
    assert (offline.level, "HF_HUB_OFFLINE is set" in str(offline.found)) == (None, True)


def test_caches() -> None:
    assert (
        line("hf_home", caches=(Cache(variable="HF_HOME", path="/c", writable=True, free_bytes=9 * GIB),)).level is None
    )
    assert line("hf_home", caches=(Cache(variable="HF_HOME", path="/c", writable=True),)).level is None
    full = line("hf_home", caches=(Cache(variable="HF_HOME", path="/c", writable=True, free_bytes=5),))
    assert (full.level, "5 B free" in str(full.found)) == (Level.WARNING, True)
    closed = line("hf_home", caches=(Cache(variable="HF_HOME", path="/c", writable=False),))
    assert (closed.level, str(closed.found)) == (Level.WARNING, "/c is not writable")
    assert "export HF_HOME=" in str(closed.fix)


def test_ports_and_locks() -> None:
    assert line("port", ports=(Port(number=29500, free=True),)).level is None
    assert line("port", ports=(Port(number=29500, free=False),)).level is Level.HINT
    lock = line("lock", locks=("/x/cpu_adam/lock",))
    assert (lock.level, str(lock.fix)) == (Level.ERROR, "rm /x/cpu_adam/lock")


OPS = (
    Op(name="cpu_adam", compatible=True, built=True),
    Op(name="fused_adam", compatible=True),
    Op(name="async_io", compatible=False),
    Op(name="deepspeed_not_implemented", compatible=True),
)


def test_ops() -> None:
    some = line("ops", ops=OPS)
    assert str(some.found) == "built: cpu_adam; can be built: fused_adam; cannot be built: async_io"
    assert (some.level, "libaio" in str(some.fix)) == (Level.HINT, True)
    assert line("ops", ops=OPS[:2]).level is None
    without = judged(changed("cpu", toolchain=Toolchain()), Surroundings(ops=OPS))["ops"]
    assert str(without.found) == "built: cpu_adam; can be built: none; cannot be built: fused_adam, async_io"
    assert without.fix is None
    broken = line("ops", ops_error="ImportError: no")
    assert (broken.level, "ImportError: no" in str(broken.found)) == (Level.WARNING, True)


def test_comm_shows_its_arithmetic() -> None:
    comm = Comm(world=4, backend="nccl", size_bytes=256 * MIB, seconds=0.002, correct=True)
    assert comm.bus_bandwidth == pytest.approx(256 * MIB / 0.002 * 1.5)
    assert str(line("comm", comm=comm).found) == (
        "correct; ranks: 4 (nccl); 256 MiB in 2.00 ms: bus bandwidth 201.33 GB/s = 134.22 GB/s × 2 × (4 - 1) / 4"
    )
    wrong = line("comm", comm=dataclasses.replace(comm, correct=False))
    assert (wrong.level, "wrong sums" in str(wrong.found)) == (Level.ERROR, True)
    failed = line("comm", comm=Comm(world=4, backend="nccl", error="rank 2: out of memory"))
    assert (failed.level, "rank 2: out of memory" in str(failed.found)) == (Level.ERROR, True)
    assert Comm(world=2, backend="gloo").bus_bandwidth == 0
