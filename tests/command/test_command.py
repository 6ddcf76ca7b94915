"""What is started: ranks against a real torchrun, lines for people, configurations of others."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_children import claimed
from plans import make
from test_render_engines import CORES, EIGHT_CORES, child

from trainwiz import command
from trainwiz.cluster import Place
from trainwiz.command import environment
from trainwiz.machine import Gpu, Machine

CORPUS: list[dict[str, Any]] = [
    {"distributed_type": "NO", "use_cpu": True, "num_processes": 1, "mixed_precision": "bf16"},
    {"distributed_type": "NO", "debug": True, "gpu_ids": "1", "dynamo_config": {}},
    {"distributed_type": "MULTI_GPU", "num_processes": 4, "gpu_ids": "0,1,2,3", "mixed_precision": "fp16"},
    {"distributed_type": "MULTI_GPU", "num_processes": 2, "rdzv_backend": "c10d", "same_network": True},
    {
        "distributed_type": "DEEPSPEED",
        "num_processes": 2,
        "mixed_precision": "bf16",
        "deepspeed_config": {
            "zero_stage": 3,
            "gradient_accumulation_steps": 8,
            "gradient_clipping": 0.5,
            "zero3_init_flag": True,
            "offload_optimizer_device": "cpu",
            "offload_param_device": "none",
            "zero3_save_16bit_model": False,
        },
    },
    {
        "distributed_type": "FSDP",
        "num_processes": 2,
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_sharding_strategy": "SHARD_GRAD_OP",
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_transformer_layer_cls_to_wrap": "A,B",
            "fsdp_use_orig_params": False,
        },
    },
]


# Python and its libraries set the last three by themselves; given from the start, they make no difference.
TORCHRUN = "torchrun --nnodes 2 --node_rank 0"
ACCELERATE = "accelerate launch --config_file accelerate.yaml"
BARE = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "COLUMNS": "80", "LINES": "24"}


def on_torchrun(world: int, port: int, tmp_path: Path) -> list[dict[str, str]]:
    """The environment of each rank as a real torchrun makes it."""
    script = tmp_path / "show.py"
    script.write_text(
        "import json, os, pathlib\n"
        "pathlib.Path(os.environ['RANK'] + '.json').write_text(json.dumps(dict(os.environ)))\n"
    )
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world)]
    argv += ["--master_addr", "127.0.0.1", "--master_port", str(port), str(script)]
    subprocess.run(argv, cwd=tmp_path, env=BARE, check=True, timeout=120, capture_output=True)
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world)]


def test_ranks_get_the_contract_as_torchrun_sets_it(tmp_path: Path) -> None:
    port = claimed.port()
    theirs = on_torchrun(2, port, tmp_path)
    ours = environment.ranks(world=2, address="127.0.0.1", port=port)
    for rank, environ in zip(ours, theirs, strict=True):
        added = {k: v for k, v in environ.items() if BARE.get(k) != v and not k.startswith("TORCHELASTIC_")}
        added.pop("OMP_NUM_THREADS", None)
        mine = dict(rank.environ)
        assert mine.pop("TORCHELASTIC_USE_AGENT_STORE") == "False"
        assert mine == added


def test_one_rank_alone_gets_no_process_group() -> None:
    started = command.for_plan(make(), python="py", folder="/p", port=1, arguments=["--seed", "1"])
    assert started.argv == ("py", "-u", "train.py", "--seed", "1")
    assert started.cwd == "/p"
    assert started.launcher is None
    assert [dict(rank.environ) for rank in started.ranks] == [{}]


@pytest.mark.parametrize("kind", ["deepspeed", "fsdp"])
def test_one_rank_of_an_engine_gets_one(kind: str) -> None:
    started = command.for_plan(make(strategy__kind=kind, strategy__zero_stage=2), python="py", folder="/p", port=29700)
    assert started.ranks[0].environ["WORLD_SIZE"] == "1"
    assert started.ranks[0].environ["MASTER_PORT"] == "29700"


def test_what_is_inherited_counts() -> None:
    plan = make(machine__num_processes=2, strategy__kind="deepspeed", strategy__zero_stage=1)
    inherited = {"OMP_NUM_THREADS": "3", "PYTHONPATH": "/a::/b"}
    environ = command.for_plan(plan, python="py", folder="/p", port=1, inherited=inherited).environ
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["PYTHONPATH"] == "/a:/b:/p"


@pytest.mark.parametrize(("driver", "off"), [("545.23.08", True), ("550.40.06", True), ("550.40.07", False)])
def test_rtx_40_without_peer_to_peer(driver: str, off: bool) -> None:
    gpus = tuple(Gpu(index=i, name="NVIDIA GeForce RTX 4090", memory_bytes=24 << 30) for i in range(2))
    machine = Machine(gpus=gpus, driver_version=driver)
    plan = make(machine__device="cuda", machine__num_processes=2, strategy__kind="ddp")
    environ = command.for_plan(plan, python="py", folder="/p", port=1, machine=machine).environ
    assert ("NCCL_P2P_DISABLE" in environ) == ("NCCL_IB_DISABLE" in environ) == off


@pytest.mark.parametrize(("kind", "count", "off"), [("MULTI_GPU", 2, True), ("FSDP", 1, True), ("NO", 1, False)])
def test_rtx_40_in_foreign_configurations(kind: str, count: int, off: bool) -> None:
    gpus = tuple(Gpu(index=i, name="NVIDIA GeForce RTX 4090", memory_bytes=24 << 30) for i in range(2))
    started = command.for_accelerate_config(
        {"distributed_type": kind, "num_processes": count},
        config_path="x.yaml",
        script="t.py",
        python="py",
        machine=Machine(gpus=gpus, driver_version="545.23.08"),
    )
    assert [rank.rank for rank in started.ranks] == list(range(count))
    assert ("NCCL_P2P_DISABLE" in started.environ) == off


def test_torchrun_over_machines() -> None:
    plan = make(machine__device="cuda", machine__num_processes=16, machine__num_machines=2, strategy__kind="ddp")
    place = Place(rank=1, machines=2, address="10.0.0.1", port=29501)
    started = command.for_plan(plan, python="py", folder="/p", port=place.port, place=place)
    assert started.launcher == "torchrun"
    assert " ".join(started.argv) == (
        "py -m torch.distributed.run --nnodes 2 --node_rank 1 --nproc_per_node 8 "
        "--master_addr 10.0.0.1 --master_port 29501 train.py"
    )
    assert len(started.ranks) == 1


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ["python train.py", "accelerate launch --config_file accelerate.yaml train.py"]),
        (
            {"machine__num_processes": 2, "strategy__kind": "ddp"},
            ["torchrun --standalone --nproc_per_node 2 train.py"],
        ),
        (
            {"machine__num_processes": 2, "strategy__kind": "ddp", "machine__device": "cuda"},
            [
                "accelerate launch --config_file accelerate.yaml train.py",
                "torchrun --standalone --nproc_per_node 2 train.py",
            ],
        ),
        (
            {"machine__num_processes": 2, "strategy__kind": "deepspeed", "strategy__zero_stage": 2},
            [
                "DS_ACCELERATOR=cpu accelerate launch --config_file accelerate.yaml train.py",
                "DS_ACCELERATOR=cpu torchrun --standalone --nproc_per_node 2 train.py",
            ],
        ),
        (
            {
                "machine__num_processes": 4,
                "machine__num_machines": 2,
                "strategy__kind": "ddp",
                "machine__main_process_ip": "10.0.0.1",
            },
            [f"{TORCHRUN} --nproc_per_node 2 --master_addr 10.0.0.1 --master_port 29500 train.py"],
        ),
        (
            {
                "machine__num_processes": 4,
                "machine__num_machines": 2,
                "strategy__kind": "ddp",
                "machine__device": "cuda",
            },
            [
                f"{ACCELERATE} --machine_rank 0 --main_process_ip ADDRESS_OF_MACHINE_0 train.py",
                f"{TORCHRUN} --nproc_per_node 2 --master_addr ADDRESS_OF_MACHINE_0 --master_port 29500 train.py",
            ],
        ),
        (
            {
                "machine__num_processes": 2,
                "machine__num_machines": 2,
                "strategy__kind": "fsdp",
                "machine__device": "cuda",
                "machine__main_process_ip": "10.0.0.1",
            },
            [
                "accelerate launch --config_file accelerate.yaml --machine_rank 0 train.py",
                f"{TORCHRUN} --nproc_per_node 1 --master_addr 10.0.0.1 --master_port 29500 train.py",
            ],
        ),
    ],
)
def test_lines_to_type(changes: dict[str, Any], lines: list[str]) -> None:
    assert [command.line(e) for e in command.equivalents(make(**changes))] == lines


def test_a_typed_line_is_quoted() -> None:
    line = command.line(command.equivalents(make(), arguments=["--note", "it's; rm -rf ~"])[0])
    assert shlex.split(line) == ["python", "train.py", "--note", "it's; rm -rf ~"]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("corpus")
    cases = []
    for number, config in enumerate(CORPUS):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        cases.append({"folder": str(folder), "file": f"{number}.yaml", "options": []})
    return [found | {"folder": str(folder)} for found in child("accelerate_loads.py", cases)]


def test_foreign_configurations_start_as_accelerate_would(launched: list[dict[str, Any]]) -> None:
    for config, found in zip(CORPUS, launched, strict=True):
        ours = command.for_accelerate_config(
            config, config_path="x.yaml", script="t.py", python="py", folder=found["folder"], machine=EIGHT_CORES
        )
        assert ours.launcher is None, config
        assert ours.argv == ("py", "-u", "t.py")
        theirs = found["environ"]
        if found["launcher"] == "deepspeed":
            theirs["OMP_NUM_THREADS"] = "1"  # torchrun's
        assert dict(ours.environ) == theirs
        assert len(ours.ranks) == config.get("num_processes", 1)


def test_cpu_ranks_that_accelerate_would_forget_are_started() -> None:
    config = {"distributed_type": "MULTI_CPU", "num_processes": 3, "main_process_port": 29777}
    ours = command.for_accelerate_config(config, config_path="x.yaml", script="t.py", python="py", machine=EIGHT_CORES)
    assert [rank.environ["RANK"] for rank in ours.ranks] == ["0", "1", "2"]
    assert ours.ranks[0].environ["MASTER_PORT"] == "29777"
    assert ours.environ["ACCELERATE_USE_CPU"] == "True"
    assert ours.environ["OMP_NUM_THREADS"] == str(CORES // 3)


@pytest.mark.parametrize(
    "config",
    [
        {"distributed_type": "XLA", "num_processes": 8},
        {"distributed_type": "MULTI_GPU", "num_processes": 8, "num_machines": 2},
        {"distributed_type": "MULTI_GPU"},
        {"distributed_type": "MULTI_GPU", "num_processes": 2, "gpu_ids": "0"},
        {"distributed_type": "MULTI_GPU", "num_processes": 2, "gpu_ids": 0},
        {"distributed_type": "NO", "mixed_precision": "fp8"},
        {"distributed_type": "NO", "dynamo_config": {"dynamo_backend": "INDUCTOR"}},
        {"distributed_type": "NO", "max_restarts": 3},
        {"distributed_type": "NO", "enable_cpu_affinity": True},
        {"distributed_type": "MULTI_CPU", "num_processes": 2, "mpirun_config": {"mpirun_hostfile": "h"}},
        {"distributed_type": "DEEPSPEED", "num_processes": 2, "deepspeed_config": {"num_processes": 7}},
        {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {"fsdp_sync_module_states": False}},
        {"distributed_type": "FSDP", "num_processes": 2, "parallelism_config": {"parallelism_config_tp_size": 2}},
        {"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "NO"},
        {},
    ],
)
def test_what_is_not_fully_known_goes_through_accelerate(config: dict[str, Any]) -> None:
    ours = command.for_accelerate_config(config, config_path="x.yaml", script="t.py", arguments=["-a"], python="py")
    assert ours.launcher == "accelerate"
    assert " ".join(ours.argv) == "py -m accelerate.commands.launch --config_file x.yaml t.py -a"
    assert dict(ours.environ) == {}


def test_yaml_traps_are_read_as_they_were_meant() -> None:
    config = yaml.safe_load("distributed_type: NO\nmixed_precision: no\n")
    ours = command.for_accelerate_config(config, config_path="x.yaml", script="t.py", python="py")
    assert ours.launcher is None
    assert ours.environ["ACCELERATE_MIXED_PRECISION"] == "no"
