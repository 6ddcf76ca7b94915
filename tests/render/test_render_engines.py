"""Every rendered file, loaded by the engines' own code in child processes.

The files of the whole product of strategies, offload, precision, device and machines are loaded, each distinct text
once. The launch environment is compared here too, since it comes from the same functions of accelerate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import warm
from plans import make, product

from trainwiz import command, render, strategies
from trainwiz.cluster import Place
from trainwiz.command import environment
from trainwiz.command.settings import for_accelerate
from trainwiz.machine import Cpu, Machine
from trainwiz.plan import Plan
from trainwiz.render import accelerate, deepspeed, script
from trainwiz.render.values import as_json
from trainwiz.store import templates

CHILDREN = Path(__file__).parents[1] / "engine_children"
CORES = 8
EIGHT_CORES = Machine(cpu=Cpu(physical_cores=CORES, usable_cores=CORES))
ROWS = [row for row in strategies.every() if row.engine == "accelerate"]


def child(script: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = warm.child(CHILDREN / script, text=json.dumps(cases), env={"TEST_CORES": str(CORES)})
    assert done.code == 0, done.err[-3000:]
    found: list[dict[str, Any]] = json.loads(done.out)
    assert len(found) == len(cases)
    return found


@pytest.fixture(scope="module")
def yamls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Plan, dict[str, Any]]]:
    """Each distinct launch with what accelerate's launcher makes of its accelerate.yaml."""
    plans: dict[tuple[str, ...], Plan] = {}
    for plan in product():
        key = (accelerate.text(plan), plan.machine.device, plan.strategy.label, plan.strategy.offload_optimizer_device)
        plans.setdefault(key, plan)
    cases = []
    for number, ((text, *_), plan) in enumerate(plans.items()):
        folder = tmp_path_factory.mktemp(f"plan{number}")
        (folder / "accelerate.yaml").write_text(text)
        options = ["--machine_rank", "1"] if plan.machine.num_machines > 1 else []
        cases.append({"folder": str(folder), "file": "accelerate.yaml", "options": options})
    found = child("accelerate_loads.py", cases)
    return [(p, f | {"folder": c["folder"]}) for p, f, c in zip(plans.values(), found, cases, strict=True)]


def test_the_product_is_a_product() -> None:
    plans = list(product())
    others = [row for row in ROWS if not row.uses_deepspeed]
    assert len(plans) == (len(others) + 4 * 9 + 1) * 4 * 6 * 2


def test_accelerate_launch_takes_every_yaml(yamls: list[tuple[Plan, dict[str, Any]]]) -> None:
    assert len(yamls) > 60
    errors = [f"{for_accelerate(plan)}: {found['error']}" for plan, found in yamls if "error" in found]
    assert not errors, "\n".join(errors)


def test_launcher_and_world_are_the_planned_ones(yamls: list[tuple[Plan, dict[str, Any]]]) -> None:
    for plan, found in yamls:
        assert found["launcher"] == environment.launcher(for_accelerate(plan))
        if found["launcher"] != "simple":
            local = plan.machine.num_processes // plan.machine.num_machines
            assert found["torchrun"]["nproc_per_node"] == str(local)
        if plan.machine.num_machines > 1 and found["launcher"] != "simple":
            rendezvous = {"nnodes": "2", "node_rank": "1", "rdzv_endpoint": "10.0.0.1:29500", "rdzv_backend": "static"}
            assert found["torchrun"].items() >= rendezvous.items()


def test_environment_is_what_accelerate_launch_would_set(yamls: list[tuple[Plan, dict[str, Any]]]) -> None:
    compared = set()
    for plan, found in yamls:
        place = Place(rank=1, machines=2, address="10.0.0.1", port=29500) if plan.machine.num_machines > 1 else None
        ours = command.for_plan(
            plan, python="python", folder=found["folder"], port=29500, place=place, machine=EIGHT_CORES
        )
        assert dict(ours.environ) == expected(plan, found), for_accelerate(plan)
        compared.add((plan.strategy.label, plan.machine.device))
    assert len(compared) == len(ROWS) * 6


def expected(plan: Plan, found: dict[str, Any]) -> dict[str, str]:
    """accelerate's environment, with the differences that trainwiz means to have."""
    environ = dict(found["environ"])
    local = plan.machine.ranks_per_machine
    # The contract of torch.distributed belongs to each rank, not to all.
    environ.pop("MASTER_ADDR", None)
    environ.pop("MASTER_PORT", None)
    if found["launcher"] == "deepspeed":
        environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's, since accelerate sets none here
    on_cpu = plan.machine.device == "cpu"
    if on_cpu and strategies.of(plan).distributed_type("cpu", local) == "MULTI_CPU":
        del environ["KMP_AFFINITY"]  # would pin all ranks to the same cores
    if on_cpu or plan.strategy.offload_optimizer_device != "none":
        environ["OMP_NUM_THREADS"] = str(CORES // local)
    if on_cpu and plan.engine == "accelerate":
        environ["DS_ACCELERATOR"] = "cpu"  # accelerate imports DeepSpeed under other strategies, too
    return environ


def test_offload_computes_with_more_than_one_thread(tmp_path: Path) -> None:
    plan = make(
        machine__device="cuda",
        machine__num_processes=2,
        strategy__kind="deepspeed",
        strategy__zero_stage=2,
        strategy__offload_optimizer_device="cpu",
    )
    ours = command.for_plan(plan, python="python", folder=str(tmp_path), port=1, machine=EIGHT_CORES)
    assert ours.environ["OMP_NUM_THREADS"] == "4"


def test_several_machines_without_a_rank_stop_at_once(tmp_path: Path) -> None:
    plan = make(
        machine__device="cuda",
        machine__num_processes=4,
        machine__num_machines=2,
        machine__main_process_ip="10.0.0.1",
        strategy__kind="ddp",
    )
    (tmp_path / "accelerate.yaml").write_text(accelerate.text(plan))
    cases = [
        {"folder": str(tmp_path), "file": "accelerate.yaml", "options": options}
        for options in ([], ["--machine_rank", "0"])
    ]
    without, with_rank = child("accelerate_loads.py", cases)
    assert "NoneType" in without["error"]
    assert with_rank["torchrun"]["node_rank"] == "0"


def test_deepspeed_takes_every_json_as_it_was_meant(tmp_path: Path) -> None:
    meant: dict[str, dict[str, Any]] = {}
    for plan in product():
        if plan.strategy.kind == "deepspeed":
            for name in ("adamw", "sgd"):
                varied = plan.model_copy(update={"optimizer": plan.optimizer.model_copy(update={"name": name})})
                meant.setdefault(as_json(deepspeed.config(varied)), deepspeed.config(varied))
    assert len(meant) > 200
    cases = []
    for number, text in enumerate(meant):
        (tmp_path / f"{number}.json").write_text(text)
        cases.append({"file": str(tmp_path / f"{number}.json"), "fields": "deepspeed_config_file,zero3_init_flag"})
    for values, found in zip(meant.values(), child("deepspeed_loads.py", cases), strict=True):
        assert "error" not in found, (found["error"], values)
        check_loaded(values, found)


def check_loaded(values: dict[str, Any], found: dict[str, Any]) -> None:
    for key, value in values["zero_optimization"].items():
        loaded = found["zero"][key]
        assert loaded == value or loaded.items() >= value.items(), key
    assert found["batch"] == [values["train_micro_batch_size_per_gpu"], values["gradient_accumulation_steps"]]
    assert found["clipping"] == found["plugin_clipping"] == values["gradient_clipping"]
    assert found["plugin_stage"] == values["zero_optimization"]["stage"]
    assert found["plugin"] == {k: v for k, v in values.items() if k != "steps_per_print"}


@pytest.mark.parametrize(
    ("precision", "bf16", "fp16"), [("fp8", True, False), ("bf16", True, False), ("fp16", False, True)]
)
def test_deepspeed_computes_what_fp8_leaves_in_bf16(precision: str, bf16: bool, fp16: bool, tmp_path: Path) -> None:
    """By the settings that train.py gives to DeepSpeed's plugin; with bf16 off, they would mean fp32."""
    plan = make(strategy__kind="deepspeed", strategy__zero_stage=2, precision__mixed_precision=precision)
    for artifact in render.training_files(plan, templates.load()):
        (tmp_path / artifact.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / artifact.path).write_text(artifact.text)
    program = (
        "import json, train\n"
        "def caught(**options):\n"
        "    settings = options['deepspeed_plugin'].deepspeed_config\n"
        "    raise SystemExit(json.dumps([settings[name]['enabled'] for name in ('bf16', 'fp16')]))\n"
        "train.Accelerator = caught\n"
        "train.build_accelerator(train.Config())\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = warm.child(tmp_path / "program.py")
    assert json.loads(done.err.splitlines()[-1]) == [bf16, fp16]


def test_frozen_weights_are_loaded_in_the_format_that_is_computed_in() -> None:
    found = {
        precision: script.settings(make(strategy__kind="ddp", precision__mixed_precision=precision))["frozen_dtype"]
        for precision in ("no", "bf16", "fp16")
    }
    assert found == {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}
    for engine in ({"strategy__kind": "fsdp"}, {"strategy__kind": "deepspeed", "strategy__zero_stage": 3}):
        sharded = make(**engine, precision__mixed_precision="fp16")
        assert script.settings(sharded)["frozen_dtype"] == "float16"
