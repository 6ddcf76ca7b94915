"""`trainwiz import`: real files become projects that the engines read as before, and nothing is dropped silently."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import plans as sample
import pytest
import test_check_files
import warm
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwiz import config, vocabulary
from trainwiz import plan as plans
from trainwiz.adoption import Adoption, Left, adopt
from trainwiz.adoption.ledger import leaves
from trainwiz.cli import run
from trainwiz.decide import decide
from trainwiz.plan import Plan
from trainwiz.render import accelerate as rendered_accelerate
from trainwiz.render import deepspeed as rendered_deepspeed
from trainwiz.render.values import as_json
from trainwiz.store import plans as store
from trainwiz.workflows.create import import_files

HERE = Path(__file__).parents[1]
CORPUS = HERE.parent.parent / "shared" / "corpus"
GOLDEN = HERE / "golden" / "imports.json"
VERSIONS = ("accelerate=1.15.0", "deepspeed=0.19.8")
CHILD = HERE / "engine_children" / "effective.py"
NEEDS_CORPUS = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no configurations at {CORPUS}: NOT CHECKED")

# In the corpus their DeepSpeed file has another name.
_EXAMPLES = "accelerate/accelerate--examples-"
_JSON = "deepspeed/accelerate--examples-"
_ULYSSES = "alst_ulysses_sequence_parallelism-sp-alst"
ALONE = {
    f"{_EXAMPLES}config_yaml_templates-deepspeed.yaml": f"{_JSON}deepspeed_config_templates-zero_stage1_config.json",
    f"{_EXAMPLES}{_ULYSSES}.accelerate-config.yml": f"{_JSON}{_ULYSSES}.ds-config.json",
}


@dataclasses.dataclass(frozen=True)
class Imported:
    """What the core makes of files, without the command line."""

    accelerate: config.Accelerate | None
    deepspeed: config.DeepSpeed | None
    adoption: Adoption
    plan: Plan
    left: tuple[Left, ...]


def imported(*paths: str, **firm: Any) -> Imported:
    files = import_files.together(paths, default=False, versions=VERSIONS)
    accelerate, deepspeed = files.accelerate, files.deepspeed
    adoption = adopt(accelerate, deepspeed)
    answers = {**{key: one.value for key, one in adoption.carried.items()}, **firm}
    plan = decide(answers, None).plan
    plan = decide({**answers, "deepspeed": adoption.settings(plan)}, None).plan
    return Imported(accelerate, deepspeed, adoption, plan, adoption.remainder(plan))


def corpus() -> list[tuple[str, ...]]:
    found = sorted(str(p.relative_to(CORPUS)) for p in CORPUS.glob("*/*.*")) if CORPUS.is_dir() else []
    return [(path, ALONE[path]) if path in ALONE else (path,) for path in found]


@pytest.fixture
def in_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CORPUS)


@NEEDS_CORPUS
@pytest.mark.usefixtures("in_corpus")
def test_the_corpus() -> None:
    """Each line of the golden file was read and is true. Renewed by TRAINWIZ_RENEW=1, and read again as a diff."""
    record = {}
    for paths in corpus():
        made = imported(*paths)
        record[" ".join(paths)] = {
            "carried": {key: one.value for key, one in made.adoption.carried.items()},
            "settings": made.plan.deepspeed,
            "left": [
                f"{x.kind} {x.place.file.rpartition('/')[2]}:{x.place.line} {x.path} {x.value}: {x.why}"
                for x in made.left
            ],
        }
    if os.environ.get("TRAINWIZ_RENEW"):
        GOLDEN.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    assert record == json.loads(GOLDEN.read_text())
    assert len(record) > 50


@NEEDS_CORPUS
@pytest.mark.usefixtures("in_corpus")
@pytest.mark.parametrize("paths", corpus(), ids=lambda paths: Path(paths[0]).stem)
def test_every_value_is_accounted_for(paths: tuple[str, ...]) -> None:
    """Carried, set, left, or the same in what the project gets: nothing else can become of a value."""
    made = imported(*paths)
    assert not list(unaccounted(made))


def unaccounted(made: Imported) -> Iterator[str]:
    named = {(x.place.file, x.path) for x in made.left}
    named |= {(one.place.file, one.path) for one in made.adoption.carried.values() if not one.why}
    ours = {"deepspeed": rendered_deepspeed.config(made.plan) if made.plan.strategy.kind == "deepspeed" else {}}
    ours["accelerate"] = json.loads(json.dumps(rendered_settings(made.plan)))
    for kind, file in (("accelerate", made.accelerate), ("deepspeed", made.deepspeed)):
        for path, value in leaves(file.document) if file else ():
            if (file.document.path, path) not in named and not harmless(kind, path, value, ours[kind]):
                yield f"{file.document.path} {path} {value}"


def rendered_settings(plan: Plan) -> Mapping[str, Any]:
    from trainwiz.command import settings as accelerate

    return accelerate.for_accelerate(plan)


# What the engines' own reading of both sides is compared for, in test_equivalent.
JUDGED_BY_THE_ENGINES = ("fsdp_config", "dynamo_config", "zero_optimization", "fp16", "bf16", "data_types", "aio")


def harmless(kind: str, path: str, value: Any, ours: Mapping[str, Any]) -> bool:
    there: Any = ours
    for part in path.split("."):
        there = there.get(part) if isinstance(there, Mapping) else None
    if there == value or path.split(".")[0] in JUDGED_BY_THE_ENGINES:
        return True
    if kind == "deepspeed":
        # The optimizer and the schedule are train.py's; what is carried from them was found above.
        return value == rendered_default(path) or path.startswith(("optimizer.params.", "scheduler.params."))
    return value in (None, False, "no", "NO", "", [], {}, 1, "LOCAL_MACHINE", "main", "static", "all", "standard") or (
        path in ("same_network", "deepspeed_config.deepspeed_config_file", "mixed_precision")
    )


def rendered_default(path: str) -> Any:
    from trainwiz.engines.deepspeed import DEFAULTS

    return DEFAULTS.get(path, "nothing")


# ---- as the engines read them


def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = warm.child(CHILD, text=json.dumps(cases), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.err[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.out.splitlines()[-1])
    return answers


def before_and_after(made: Imported, folder: Path) -> list[dict[str, Any]]:
    """The files as they were, and those of the project."""
    batch, precision = made.plan.batch, made.plan.precision.mixed_precision
    common = {
        "precision": precision,
        "micro": batch.per_device_batch_size,
        "accumulation": batch.gradient_accumulation_steps,
    }
    before: dict[str, Any] = dict(common)
    if made.accelerate:
        before["accelerate"] = str(Path(made.accelerate.document.path).resolve())
        before["block"] = made.deepspeed is None and made.accelerate.kind == "DEEPSPEED"
    if made.deepspeed:
        values = json.loads(made.deepspeed.document.text)
        values.pop("train_batch_size", None)  # for one rank it is another
        before["deepspeed"] = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {}, **values}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accelerate.yaml").write_text(rendered_accelerate.text(made.plan))
    after: dict[str, Any] = {**common, "accelerate": str(folder / "accelerate.yaml")}
    if made.plan.strategy.kind == "deepspeed":
        after["deepspeed"] = rendered_deepspeed.config(made.plan)
    return [before, after]


def flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), values


def different(one: Any, other: Any) -> set[str]:
    left, right = dict(flat(one)), dict(flat(other))
    return {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}


# DeepSpeed's own names, and the setting each comes from.
SOURCES = {
    "zero_config": "zero_optimization",
    "float16_config": "fp16",
    "bfloat16_config": "bf16",
    "aio_config": "aio",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "tensor_parallel_config": "tensor_parallel",
    "compile_config": "compile",
    "sequence_parallel_size": "sequence_parallel_size",
    "zero_optimization_stage": "zero_optimization.stage",
    "checkpoint_config": "checkpoint",
}
VARIABLES = {"FSDP_TRANSFORMER_CLS_TO_WRAP": "fsdp_transformer_layer_cls_to_wrap"}


def test_what_deepspeed_takes_by_itself() -> None:
    """The defaults that the import rests on are DeepSpeed's."""
    from trainwiz.engines.deepspeed import DEFAULTS

    blocks = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    (answer,) = ask(
        [
            {
                "deepspeed": {"zero_optimization": blocks, "train_micro_batch_size_per_gpu": 1},
                "micro": 1,
                "accumulation": 1,
            }
        ]
    )
    held = dict(flat(answer["deepspeed"]))
    names = {
        "zero_optimization": "zero_config",
        "fp16": "float16_config",
        "aio": "aio_config",
        "timers": "timers_config",
    }
    for path, value in DEFAULTS.items():
        block, _, rest = path.partition(".")
        name = (
            f"{names[block]}.{rest.removeprefix('stage3_').removeprefix('throughput.')}"
            if block in names
            else path.rpartition(".")[2]
        )
        assert held.get(name) == value, path
    assert held["zero_config.overlap_comm"] is True


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    folder, here = tmp_path_factory.mktemp("rendered"), Path.cwd()
    os.chdir(CORPUS)
    try:
        cases = [
            case for i, paths in enumerate(corpus()) for case in before_and_after(imported(*paths), folder / str(i))
        ]
    finally:
        os.chdir(here)
    answers = ask(cases)
    return {paths: answers[2 * i : 2 * i + 2] for i, paths in enumerate(corpus())}


@NEEDS_CORPUS
@pytest.mark.usefixtures("in_corpus")
@pytest.mark.parametrize("paths", corpus(), ids=lambda paths: Path(paths[0]).stem)
def test_equivalent(paths: tuple[str, ...], engines: dict[tuple[str, ...], list[dict[str, Any]]]) -> None:
    """Whatever the engines read otherwise from the project's files is named as left."""
    before, after = engines[paths]
    made = imported(*paths)
    named = {x.path for x in made.left}
    words = " ".join([*named, *(x.value for x in made.left)])
    if made.deepspeed or (before["launch"] or {}).get("launcher") == "deepspeed":
        compare_deepspeed(before["deepspeed"], after["deepspeed"], named, made.plan.precision.mixed_precision)
    if before["launch"] and "error" not in before["launch"]:
        compare_launch(before["launch"], after["launch"], named, words, made)


def compare_deepspeed(before: dict[str, Any], after: dict[str, Any], named: set[str], precision: str) -> None:
    assert "error" not in after, after
    if "error" in before:
        return  # no engine takes the file; what the project has instead cannot be compared
    for path in different(before, after):
        top, _, rest = path.partition(".")
        source = SOURCES.get(top, top) + (f".{rest}" if rest else "")
        names = {source, source.replace("zero_optimization.", "zero_optimization.stage3_")}
        if source.startswith("data_types") and precision == "no":
            continue  # gradients are in fp32 anyway
        if source == "timers_config.enabled":
            continue  # a line that accelerate switches off: what it waits for is left out
        if source == "fp16.auto_cast":
            continue  # inputs in another type than the weights: with it they are cast, without it they fail
        known = any(name == n or name.startswith(f"{n}.") or n.startswith(f"{name}.") for name in names for n in named)
        assert known, f"{path} differs and is not named"


def compare_launch(before: dict[str, Any], after: dict[str, Any], named: set[str], words: str, made: Imported) -> None:
    fields = {name.rpartition(".")[2] for name in named}
    for name in different(before["environ"], after["environ"]):
        if name.startswith(("ACCELERATE_DEEPSPEED_", "ACCELERATE_CONFIG_DS", "PYTHONPATH", "OMP_", "KMP_")):
            continue  # the JSON says it there; threads are this machine's
        if name.startswith("FSDP_"):
            assert VARIABLES.get(name, name.lower()) in fields | UNREAD_BY_2, f"{name} differs and is not named"
        elif name.startswith(("ACCELERATE_GRADIENT_", "ACCELERATE_MIXED", "ACCELERATE_USE_CPU", "MASTER_")):
            continue  # keys of the plan
        elif name == "CUDA_VISIBLE_DEVICES":
            assert "gpu_ids" in named
        elif name == "ACCELERATE_DEBUG_MODE":
            assert "debug" in named
        elif name.startswith("ACCELERATE_DYNAMO"):
            assert "dynamo_" in words or made.accelerate.kind == "DEEPSPEED"  # type: ignore[union-attr]
        elif name.startswith(("PARALLELISM_CONFIG", "ACCELERATE_USE_PARALLELISM")):
            assert "parallelism_config" in words
        elif name.startswith(("ACCELERATE_FP8", "FP8")):
            assert "fp8_config" in words
        elif name.startswith(("ACCELERATE_USE_", "MEGATRON")):
            assert "distributed_type" in named or "deepspeed_config" in words
        else:
            raise AssertionError(f"{name} differs: {before['environ'].get(name)}, {after['environ'].get(name)}")


# FSDP 2 reads none of these; the launcher sets them all the same.
UNREAD_BY_2 = {
    "fsdp_sharding_strategy",
    "fsdp_forward_prefetch",
    "fsdp_backward_prefetch",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_min_num_params",
}


# ---- there and back


@functools.cache
def every_plan() -> tuple[Plan, ...]:
    world = "machine.num_processes"
    return tuple(plans.with_changes(p, {"batch.real_batch_size": 32 * p.get(world)}) for p in sample.product())


def back(plan: Plan, folder: Path, **firm: Any) -> Imported:
    """The plan of the files that a plan is rendered to."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "accelerate.yaml").write_text(rendered_accelerate.text(plan))
    if plan.strategy.kind == "deepspeed":
        (folder / "ds_config.json").write_text(as_json(rendered_deepspeed.config(plan)))
    return imported(str(folder / "accelerate.yaml"), **firm)


IN_EVERY_FILE = ("machine.num_machines", "machine.num_processes", "machine.main_process_port")
IN_DEEPSPEEDS = (
    "strategy.zero_stage",
    "strategy.offload_optimizer_device",
    "strategy.offload_param_device",
    "batch.real_batch_size",
    "batch.per_device_batch_size",
    "batch.gradient_accumulation_steps",
    "optimizer.gradient_clipping",
    "deepspeed",
)


def assert_back(plan: Plan, folder: Path) -> None:
    """Equal in every key that the files carry; and rendered again, the same files."""
    if plan.strategy.kind == "ddp" and plan.machine.device == "mps":
        return  # accelerate has no word for several of these
    # What no file of these engines says: which device DeepSpeed finds, whose optimizer it is given.
    firm = {"machine.device": plan.machine.device, "optimizer.name": plan.optimizer.name, "task": plan.task}
    made = back(plan, folder, **firm)
    again, kind = made.plan, plan.strategy.kind
    keys = [*IN_EVERY_FILE, *(IN_DEEPSPEEDS if kind == "deepspeed" else ())]
    for key in keys:
        assert again.get(key) == plan.get(key), key
    assert again.strategy.kind == kind
    if plan.machine.num_machines > 1:
        assert again.machine.main_process_ip == plan.machine.main_process_ip
    # fp8.py is what makes a training in bf16 one in fp8.
    precision = {"fp8": "bf16"}.get(plan.precision.mixed_precision, plan.precision.mixed_precision)
    assert again.precision.mixed_precision == precision
    if kind == "deepspeed":
        if "nvme" in (plan.strategy.offload_optimizer_device, plan.strategy.offload_param_device):
            assert again.strategy.nvme_path == plan.strategy.nvme_path
        if plan.strategy.zero_stage == 3:
            assert again.strategy.zero3_init == plan.strategy.zero3_init
            assert again.strategy.zero3_save_16bit_model == plan.strategy.zero3_save_16bit_model
        assert rendered_deepspeed.config(again) == rendered_deepspeed.config(
            plan
            if precision == plan.precision.mixed_precision
            else plans.with_changes(plan, {"precision.mixed_precision": precision})
        )
    assert rendered_accelerate.text(again) == rendered_accelerate.text(plan)
    # Nothing of ours is foreign to us: the number of a machine is given at its launch, a NO of several means one.
    known = {"machine_rank", "num_processes", "zero_allow_untested_optimizer", "steps_per_print"}
    assert {x.path for x in made.left if x.key != "machine.device"} <= known | vocabulary.DECIDED_SETTINGS.keys()


def test_everything_that_is_rendered_comes_back(tmp_path: Path) -> None:
    for plan in every_plan()[::7]:
        assert_back(plan, tmp_path / "p")


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "zero_optimization.reduce_bucket_size": st.integers(1, 10**9),
        "zero_optimization.contiguous_gradients": st.booleans(),
        "zero_optimization.zero_hpz_partition_size": st.integers(2, 8),
        "activation_checkpointing.cpu_checkpointing": st.booleans(),
        "communication_data_type": st.sampled_from(["fp16", "fp32"]),
        "flops_profiler.enabled": st.booleans(),
    },
)


@settings(max_examples=80, deadline=None)
@given(
    data=st.data(),
    micro=st.integers(1, 64),
    accumulation=st.integers(1, 64),
    clipping=st.sampled_from([0.0, 0.5, 1.0, 3.25]),
    port=st.integers(1, 65535),
    free=SETTINGS,
)
def test_there_and_back(
    data: st.DataObject,
    micro: int,
    accumulation: int,
    clipping: float,
    port: int,
    free: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plan = data.draw(st.sampled_from(every_plan()))
    changes = {
        "batch.per_device_batch_size": micro,
        "batch.gradient_accumulation_steps": accumulation,
        "batch.real_batch_size": micro * accumulation * plan.machine.num_processes,
        "optimizer.gradient_clipping": clipping,
        "machine.main_process_port": port,
        "optimizer.name": data.draw(st.sampled_from(["adamw", "sgd"])),
    }
    plan = plans.with_changes(plan, changes)
    if plan.strategy.kind == "deepspeed" and plan.strategy.zero_stage:
        base = rendered_deepspeed.config(plan)["zero_optimization"]
        free = {
            k: v
            for k, v in free.items()
            if base.get(k.removeprefix("zero_optimization."), v) != v or "." not in k or not k.startswith("zero_")
        }
        plan = plans.with_changes(plan, {"deepspeed": free})
    assert_back(plan, tmp_path_factory.getbasetemp() / "back")


# ---- the command


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED  # ours
deepspeed_config:
  deepspeed_config_file: ds.json
  zero3_init_flag: true
num_processes: 8
gpu_ids: 0,1,2,3,4,5,6,7
rdzv_backend: c10d
"""
DS = """\
{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "gradient_clipping": 0.5,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": 2e8,
    "stage3_prefetch_bucket_size": "auto",
    "overlap_com": true
  },
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.999]}},
  "pipeline": {"stages": 2}
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    (tmp_path / "ds.json").write_text(DS)
    return tmp_path


H100S = ("--machine", str(HERE / "machines" / "8xh100.json"))


def test_a_pair_becomes_a_project(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "acc.yaml", "--into", "mine", *H100S]) == 0
    shown = capsys.readouterr()
    assert str(Path("mine/trainwiz.yaml")) in shown.out.splitlines()
    gpus = "0,1,2,3,4,5,6,7"
    assert f"  acc.yaml:7 gpu_ids: {gpus}\n      run: CUDA_VISIBLE_DEVICES={gpus} trainwiz launch\n" in shown.err
    assert "  acc.yaml:8 rdzv_backend: c10d\n      accelerate does not read it in this configuration\n" in shown.err
    assert '  ds.json:9 zero_optimization.stage3_prefetch_bucket_size: "auto"\n' in shown.err
    assert "  ds.json:10 zero_optimization.overlap_com: true\n      DeepSpeed has no such setting; did you" in shown.err
    assert "  ds.json:13 pipeline.stages: 2\n      the generated loop does not support it\n" in shown.err
    plan = store.read(folder / "mine" / "trainwiz.yaml")
    assert (plan.strategy.label, plan.strategy.zero3_init, plan.machine.num_processes) == ("zero3", True, 8)
    assert plan.batch.real_batch_size == 64
    assert (plan.optimizer.learning_rate, plan.optimizer.gradient_clipping) == (3e-5, 0.5)
    assert (plan.optimizer.beta1, plan.optimizer.beta2, plan.optimizer.epsilon) == (None, 0.999, None)
    text = (folder / "mine" / "trainwiz.yaml").read_text()
    assert "zero_stage: 3  # file: ds.json:7 zero_optimization.stage\n" in text
    assert "zero_optimization.reduce_bucket_size: 200000000  # file: ds.json:8\n" in text
    assert json.loads((folder / "mine" / "ds_config.json").read_text())["zero_optimization"]["reduce_bucket_size"] == (
        200_000_000
    )
    assert run(["check", "mine", *H100S]) == 0
    assert run(["import", "acc.yaml", "--into", "mine", *H100S]) == 0, "again: nothing changes"
    assert "mine is already up to date" in capsys.readouterr().err


def test_what_an_optimizer_does_by_itself_is_said_whole(folder: Path) -> None:
    (folder / "ds.json").write_text('{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}}')
    assert run(["import", "ds.json", "--into", "made", "--yes"]) == 0
    lines = (folder / "made" / "trainwiz.yaml").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("  beta2: 0.999 "))
    assert line.endswith("the optimizer's default is [0.9, 0.999]"), "the plan's own default is another"


def test_a_zero_that_accelerate_drops(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What trains is imported, and not what was meant; infinity is how an accelerate file says none."""
    for written, counts in (("0.0", 1.0), (".inf", 0.0), ("0.5", 0.5)):
        (folder / "acc.yaml").write_text(
            "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
            f"deepspeed_config: {{zero_stage: 2, gradient_clipping: {written}}}\n"
        )
        assert run(["import", "acc.yaml", "--dry-run", "--json", "--set", "batch.per_device_batch_size=1", *H100S]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["carried"]["optimizer.gradient_clipping"]["value"] == counts


def test_a_script_among_the_files_is_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("import torch\n")
    answers = []
    for words in (["--script", "train.py", "acc.yaml"], ["acc.yaml", "train.py"]):
        assert run(["import", *words, "--dry-run", "--json", *H100S]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[0]["plan"]["task"] == "custom"
    assert run(["import", "acc.yaml", "train.py", "--script", "other.py"]) == 2
    assert "only one script becomes a project, not 2: other.py, train.py" in capsys.readouterr().err


def test_in_json_and_without_writing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "ds.json", "acc.yaml", "--into", "mine", "--dry-run", "--json", *H100S]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["strategy"]["zero_stage"] == 3
    assert answer["carried"]["optimizer.gradient_clipping"] == {
        "value": 0.5,
        "file": "ds.json",
        "line": 4,
        "path": "gradient_clipping",
    }
    (pipeline,) = [one for one in answer["left"] if one["path"] == "pipeline.stages"]
    assert (pipeline["kind"], pipeline["file"], pipeline["line"]) == ("lost", "ds.json", 13)
    assert answer["written"] == []
    assert not (folder / "mine").exists()
    assert run(["import", "acc.yaml", "--into", "mine", "--dry-run", *H100S]) == 0
    assert plans.parse(__import__("yaml").safe_load(capsys.readouterr().out)).strategy.zero_stage == 3
    assert not (folder / "mine").exists()


def test_the_file_beside_counts_and_not_the_one_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "theirs").mkdir()
    (folder / "theirs" / "acc.yaml").write_text(ACCELERATE)
    (folder / "theirs" / "ds.json").write_text(DS.replace('"stage": 3', '"stage": 1'))
    assert run(["import", "theirs/acc.yaml", "--into", "mine", *H100S]) == 0
    assert "theirs/acc.yaml, theirs/ds.json: imported plan keys: 16, " in capsys.readouterr().err
    assert store.read(folder / "mine" / "trainwiz.yaml").strategy.zero_stage == 1


def test_files_of_theirs_are_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("print('mine')\n")
    assert run(["import", "acc.yaml", *H100S]) == 1
    assert "train.py was not generated by trainwiz" in capsys.readouterr().err
    assert (folder / "train.py").read_text() == "print('mine')\n"
    assert not (folder / "trainwiz.yaml").exists()
    assert run(["import", "acc.yaml", "--on-conflict", "beside", *H100S]) == 0
    assert (folder / "train.py").read_text() == "print('mine')\n"
    assert (folder / "train.py.new").exists()


@pytest.mark.usefixtures("folder")
def test_what_is_set_is_stronger(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--set", "batch.real_batch_size=128", "--set", "strategy.kind=fsdp", "--set", "seed=7")
    assert run(["import", "acc.yaml", "--into", "mine", "--dry-run", "--json", *H100S, *given]) == 0
    answer = json.loads(capsys.readouterr().out)
    plan = plans.parse(answer["plan"])
    assert (plan.strategy.label, plan.seed, plan.batch.real_batch_size) == ("fsdp", 7, 128)
    assert plan.deepspeed == {}
    kept = {one["path"] for one in answer["left"]}
    assert {"zero_optimization.stage", "zero_optimization.reduce_bucket_size"} <= kept


def test_values_that_contradict_each_other_fall_and_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ds.json").write_text(DS.replace("{\n", '{\n  "train_batch_size": 100,\n', 1))
    assert run(["import", "acc.yaml", "--into", "mine", *H100S]) == 0
    assert "  ds.json:2 train_batch_size: 100\n" in capsys.readouterr().err
    assert store.read(folder / "mine" / "trainwiz.yaml").batch.real_batch_size == 64


def test_what_no_plan_can_say_has_to_be_decided(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tpu.yaml").write_text("distributed_type: XLA\nnum_processes: 8\ntpu_name: t\n")
    assert run(["import", "tpu.yaml", "--into", "mine", *H100S]) == 1
    shown = capsys.readouterr().err
    assert "tpu.yaml:1 distributed_type: XLA" in shown
    assert "--set strategy.kind=" in shown
    assert not (folder / "mine").exists()
    assert run(["import", "tpu.yaml", "--into", "mine", "--set", "strategy.kind=ddp", *H100S]) == 0
    assert "tpu.yaml:3 tpu_name: t" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no file given"),
        (("none.yaml",), "none.yaml cannot be read"),
        (("acc.yaml", "other.yaml"), "acc.yaml and other.yaml are files of the same kind"),
        (("acc.yaml", "other.json"), "acc.yaml refers to ds.json, not to other.json"),
        (("lost.yaml",), "lost.yaml refers to gone.json, which does not exist"),
        (("multi.yaml", "ds.json"), "multi.yaml has distributed_type MULTI_GPU, which does not use ds.json"),
        (("broken.yaml",), "broken.yaml:2:"),
        (("plan.yaml",), "plan.yaml is already a plan"),
        (("package.json",), "package.json has a kind that trainwiz does not know"),
        (("--default",), "accelerate's default config file"),
        (("acc.yaml", "--force", "--on-conflict", "keep"), "--force cannot be combined with --on-conflict keep"),
    ],
)
def test_what_cannot_be_imported(
    arguments: tuple[str, ...],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    (folder / "other.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    (folder / "multi.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    (folder / "other.json").write_text(DS)
    (folder / "lost.yaml").write_text(ACCELERATE.replace("ds.json", "gone.json"))
    (folder / "broken.yaml").write_text("distributed_type: FSDP\n\tnum_processes: 2\n")
    (folder / "plan.yaml").write_text("task: custom\nbatch: {real_batch_size: 8}\n")
    (folder / "package.json").write_text('{"name": "x"}')
    assert run(["import", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "trainwiz.yaml").exists()


def test_the_default_file(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    (folder / "hf" / "accelerate").mkdir(parents=True)
    (folder / "hf" / "accelerate" / "default_config.yaml").write_text("distributed_type: 'NO'\nuse_cpu: true\n")
    assert run(["import", "--default", "--into", "mine"]) == 0
    assert store.read(folder / "mine" / "trainwiz.yaml").strategy.kind == "single"
    assert "default_config.yaml" in (folder / "mine" / "trainwiz.yaml").read_text()
    capsys.readouterr()


def test_it_is_fast_and_imports_no_engine(folder: Path) -> None:
    program = (
        "import sys; from trainwiz.cli import run; code = run(['import', 'acc.yaml', '--into', 'm', '--dry-run', "
        f"'--machine', {H100S[1]!r}]); "
        "sys.exit(9 if {'torch', 'accelerate', 'deepspeed', 'transformers'} & set(sys.modules) else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


MORE_YAML = [
    "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 9, gradient_clipping: none}\n",
    "distributed_type: DEEPSPEED\nnum_processes: 3\nnum_machines: 2\ndeepspeed_config: {zero_stage: '3'}\n",
    "distributed_type: FSDP\nnum_processes: 0\nfsdp_config: {fsdp_version: 2, transformer_layer_cls_to_wrap: [a]}\n",
    "distributed_type: MULTI_GPU\nnum_processes: 2000000\nnum_machines: 99999\nmain_process_port: 99999999\n",
    'distributed_type: MULTI_GPU\nmain_process_ip: "a\\nb"\nnum_machines: 2\nnum_processes: 4\n',
    "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\nec2_instance_type: x\n",
]
MORE_JSON = [
    '{"zero_optimization": {"stage": 3, "reduce_bucket_size": "5e8", "offload_optimizer": "cpu"}}',
    '{"zero_optimization": {"cpu_offload": true, "stage": 2}, "gradient_clipping": -1, "train_batch_size": 8}',
    '{"train_batch_size": 1e30, "zero_optimization": {"reduce_bucket_size": 1e400, "a.b": {"c": 1}}, "aio": [1]}',
    '{"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": {"stage": 3}}, "train_batch_size": 8}',
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("x.yaml", [*test_check_files.STRANGE_YAML, *MORE_YAML]),
        ("x.json", [*test_check_files.STRANGE_JSON, *MORE_JSON]),
    ],
)
def test_strange_values_are_no_crash(name: str, texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for text in texts:
        Path(name).write_text(text)
        assert run(["import", name, "--into", "p", "--dry-run", *H100S]) in (0, 1, 2), text
        assert "Traceback" not in capsys.readouterr().err
