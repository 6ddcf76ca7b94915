"""Machines in files: the fixtures themselves, doctor's own output, and everything that can be wrong in one."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainwiz.errors import UsageError
from trainwiz.machine import Cpu, Gpu, GpuProcess, Interpreter, Machine, Problem
from trainwiz.store import machines
from trainwiz.store.records import Malformed, build, plain

FIXTURES = Path(__file__).parents[1] / "machines"
NAMES = ("8xh100", "4xa100-40g", "2xrtx4090", "1xt4", "8xv100", "cpu")


def written(tmp_path: Path, values: Any) -> Path:
    file = tmp_path / "machine.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return file


def message(tmp_path: Path, values: Any) -> str:
    with pytest.raises(UsageError) as caught:
        machines.read(written(tmp_path, values))
    assert "doctor --json" in str(caught.value.remedy)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_each_fixture_is_whole_and_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    machine = machines.read(FIXTURES / f"{name}.json")
    assert machines.read(written(tmp_path, machines.to_dict(machine))) == machine
    assert json.loads((FIXTURES / f"{name}.json").read_text()) == machines.to_dict(machine), "no key left to a default"
    assert machine.interpreter
    assert machine.interpreter.version("torch").startswith("2.13.0")  # type: ignore[union-attr]
    assert machine.interpreter.torch_gpus == len(machine.gpus)
    assert len({gpu.uuid for gpu in machine.gpus}) == len(machine.gpus)
    assert not machine.probed


def test_there_are_no_other_fixtures() -> None:
    assert {file.stem for file in FIXTURES.glob("*.json")} == set(NAMES)


def test_the_fixtures_differ_where_it_matters() -> None:
    def gpu(name: str) -> tuple[int, tuple[int, int] | None, int]:
        machine = machines.read(FIXTURES / f"{name}.json")
        return len(machine.gpus), machine.gpus[0].compute_capability, machine.gpus[0].memory_bytes >> 30

    assert {name: gpu(name) for name in NAMES if name != "cpu"} == {
        "8xh100": (8, (9, 0), 79),
        "4xa100-40g": (4, (8, 0), 40),
        "2xrtx4090": (2, (8, 9), 23),
        "1xt4": (1, (7, 5), 15),
        "8xv100": (8, (7, 0), 32),
    }
    assert not machines.read(FIXTURES / "cpu.json").gpus


def test_what_doctor_prints_is_taken(tmp_path: Path) -> None:
    machine = Machine(hostname="box", cpu=Cpu(physical_cores=4), problems=(Problem(probe="nvml", detail="none"),))
    values = {"machine": machines.to_dict(machine), "lines": [], "errors": 0}
    read = machines.read(written(tmp_path, values))
    assert (read.hostname, read.cpu.physical_cores, read.probed) == ("box", 4, False)


def test_absent_keys_keep_their_defaults(tmp_path: Path) -> None:
    assert machines.read(written(tmp_path, {"hostname": "h"})) == Machine(hostname="h", probed=False)


def test_unknown_keys_are_named_with_the_nearest(tmp_path: Path) -> None:
    text = message(tmp_path, {"gpu": [], "cpu": {"cores": 3}, "memory": {"total_byte": 1}})
    assert "gpu: unknown key; did you mean gpus?" in text
    assert "cpu.cores: unknown key" in text
    assert "memory.total_byte: unknown key; did you mean total_bytes?" in text
    assert "invalid values: 3" in text


def test_wrong_types_are_named_all_at_once(tmp_path: Path) -> None:
    gpu = {"index": "0", "name": "X", "memory_bytes": True, "compute_capability": [8]}
    text = message(tmp_path, {"gpus": [gpu, {}], "hostname": None, "cpu": 4, "interpreter": {"packages": {"torch": 2}}})
    for expected in (
        "gpus[0].index: '0' is not an integer",
        "gpus[0].memory_bytes: True is not an integer",
        "gpus[0].compute_capability: [8] is not a list",
        "gpus[1].name: missing",
        "gpus[1].memory_bytes: missing",
        "hostname: None is not a string",
        "cpu: 4 is not an object with keys",
        "interpreter.packages.torch: 2 is not a string",
        "interpreter.python: missing",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "line 1: not valid JSON"),
        ('{\n "gpus": [}', "line 2: not valid JSON"),
        ("[]", "is not an object with keys"),
        ("null", "is not an object with keys"),
        ('"a"', "is not an object with keys"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_no_machines(tmp_path: Path, content: str, expected: str) -> None:
    assert expected in message(tmp_path, content)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        machines.read(tmp_path / "none.json")
    with pytest.raises(UsageError, match="Is a directory"):
        machines.read(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        machines.read(tmp_path / "binary")


def test_records_keep_every_type() -> None:
    users = (GpuProcess(pid=1, used_bytes=None),)
    machine = Machine(
        gpus=(Gpu(index=0, name="G", memory_bytes=1, compute_capability=(9, 0), processes=users),),
        interpreter=Interpreter(python="/p", packages={"torch": "2", "x": None}, bf16=True, arch_list=("sm_90",)),
    )
    assert build(Machine, json.loads(json.dumps(plain(machine)))) == machine


def test_records_refuse_what_is_no_dataclass() -> None:
    with pytest.raises(Malformed, match="/: 3 is not an object"):
        build(Machine, 3)
