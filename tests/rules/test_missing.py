"""What a training says when something is not there: the manual of the rules on packages, data and models, asked of the
generated scripts themselves."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from plans import BASE
from projects import REGRESSION, environment, make, metrics
from warm import launch, python

from trainwiz import plan as plans
from trainwiz.process import merge
from trainwiz.render import training_files
from trainwiz.store import templates

WITHOUT = """
import importlib.machinery, runpy, sys
gone, real = {gone!r}, importlib.machinery.PathFinder.find_spec
for name in [name for name in sys.modules if name.partition(".")[0] in gone]:
    del sys.modules[name]
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda _, name, *rest: None if name.partition(".")[0] in gone else real(name, *rest)
)
sys.argv = ["train.py", *{arguments!r}]
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
"""
"""A program that runs train.py as if packages were not installed."""
IMAGES = {"task": "image_classification"}
ZERO = {"strategy.kind": "deepspeed", "strategy.zero_stage": 2}
ADAPTER = {"task": "sft", "model.from_scratch": False, "data.eval": None}
CASES: dict[str, tuple[str, dict[str, Any], set[str], list[str]]] = {
    "TW102": ("ModuleNotFoundError: No module named 'torch'", {}, {"torch"}, []),
    "TW111": ("ModuleNotFoundError: No module named 'accelerate'", {}, {"accelerate"}, []),
    "TW112": ("ImportError: DeepSpeed is not installed", ZERO, {"deepspeed"}, []),
    "TW113": ("ModuleNotFoundError: No module named 'transformers'", {}, {"transformers"}, []),
    "TW109": ("ModuleNotFoundError: No module named 'peft'", {**ADAPTER, "model.adapter": "lora"}, {"peft"}, []),
    "TW114": ("ModuleNotFoundError: No module named 'datasets'", {}, {"datasets"}, ["--train_data", "some/where"]),
    "TW117": ("ModuleNotFoundError: No module named 'sklearn'", IMAGES, {"sklearn"}, []),
    "TW125": (
        "ModuleNotFoundError: No module named 'bitsandbytes'",
        {"task": "custom", "optimizer.name": "adamw_8bit"},
        {"bitsandbytes"},
        [],
    ),
    "TW456": (
        "ModuleNotFoundError: No module named 'sacrebleu'",
        {"evaluation.generation_metrics": "bleu"},
        {"sacrebleu"},
        [],
    ),
    "TW511": ("./none.txt: no such file or folder", {}, set(), ["--train_data", "./none.txt"]),
    "TW512": ("broken.jsonl:2: not a JSON object", {}, set(), ["--train_data", "broken.jsonl"]),
    "TW514": (
        "couldn't find them in the cached files",
        {"model.name": "org/model", "model.from_scratch": False},
        set(),
        [],
    ),
    "TW515": ("empty.txt: no text to train on", {}, set(), ["--train_data", "empty.txt"]),
    "TW519": ("bare: no tokenizer, or an empty one", {"model.name": "bare", "model.from_scratch": False}, set(), []),
    "TW513": ("OSError: ", {"model.name": "./none", "model.from_scratch": False}, set(), []),
}
"""By rule: what the last lines say, the plan, the packages that are not there, the arguments."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {id: tmp_path_factory.mktemp(id) for id in CASES}
    for id, folder in folders.items():
        write(id, folder)  # in one thread: Python 3.11 counts the depth of syntax trees for all of them together
    forking = python()
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(lambda id: last_line(id, folders[id], forking), CASES), strict=True))


def write(id: str, folder: Path) -> None:
    plan = plans.with_changes(BASE, {**CASES[id][1], "schedule.n_steps": 1})
    for artifact in training_files(plan, templates.load()):
        (folder / artifact.path).write_text(artifact.text)
    (folder / "empty.txt").touch()
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "broken.jsonl").write_text('{"text": "a"}\n[1]\n')


def last_line(id: str, folder: Path, forking: str) -> str:
    _, _, gone, arguments = CASES[id]
    (folder / "without.py").write_text(WITHOUT.format(gone=gone, arguments=arguments))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_", "DS_"))}
    done = subprocess.run(
        [sys.executable if "torch" in gone else forking, "without.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 1, f"{id}: {done.returncode} {done.stderr[-500:]}"
    return "\n".join([line for line in done.stderr.splitlines() if line.strip() and not line.startswith(" ")][-2:])


@pytest.mark.parametrize("id", CASES)
def test_what_is_said(id: str, said: dict[str, str]) -> None:
    assert CASES[id][0] in said[id]


def test_tw411_nothing_is_trained_without_an_end(tmp_path: Path) -> None:
    for artifact in training_files(
        plans.with_changes(BASE, {"task": "custom", "schedule.n_steps": None}), templates.load()
    ):
        (tmp_path / artifact.path).write_text(artifact.text)
    done = subprocess.run(
        [python(), "train.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "n_steps 0, n_epochs 0: one of them says how long, and the other is 0" in done.stderr


def test_tw528_no_script_with_both_sides_of_a_conflict_runs(tmp_path: Path) -> None:
    base, ours, theirs = (f"seed = {number}\n" for number in (42, 43, 44))
    merged = merge.three_way(base, ours, theirs, {"ours": "yours", "base": "before", "theirs": "now"})
    assert merged is not None
    assert merged[1] == 1
    (tmp_path / "train.py").write_text(merged[0])
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "<<<<<<< yours" in done.stderr
    assert "SyntaxError" in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"task": "custom"}, id="tw531"),
        pytest.param({"task": "image_classification", "model.name": "timm/a"}, id="tw531 images"),
        pytest.param({"task": "sft", "model.from_scratch": True}, id="tw532"),
    ],
)
def test_an_adapter_that_nobody_makes(values: dict[str, Any]) -> None:
    """All weights are trained: the scripts are those of a plan without an adapter."""
    without, with_one = (scripts({**values, "model.adapter": adapter}) for adapter in ("none", "lora"))
    assert with_one == without
    tuned = {"task": "sft", "model.from_scratch": False}
    assert scripts({**tuned, "model.adapter": "lora"}) != scripts(tuned)


EVALUATED: dict[str, Any] = {"evaluation.best_metric": "eval_loss", "evaluation.evaluation_steps": 5}


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        pytest.param({"data.eval": None}, EVALUATED, id="tw421"),
        pytest.param({}, {"evaluation.gather_outputs": True}, id="tw422"),
        pytest.param({}, {"evaluation.patience": 3}, id="tw423"),
        pytest.param({"task": "sft", "data.train_on": "all"}, {"evaluation.generation_metrics": "bleu"}, id="tw455"),
        pytest.param(ZERO, {"optimizer.ema_decay": 0.9}, id="tw340"),
        pytest.param(ZERO, {"model.frozen": "embed"}, id="tw539"),
        pytest.param(ZERO, {"precision.weights": "bfloat16"}, id="tw208"),
        pytest.param({"task": "text_classification"}, {"model.neftune_alpha": 5.0}, id="tw541"),
        pytest.param({"task": "preference", "data.packing": False}, {"data.packing": True}, id="tw542"),
        pytest.param({"task": "image_classification"}, {"model.attention": "sdpa"}, id="tw543"),
        pytest.param({"machine.device": "cuda", "model.compile": True}, {"model.kernels": "liger"}, id="tw224"),
        pytest.param({"task": "preference"}, {"data.train_on": "all"}, id="tw545"),
        pytest.param({}, {"data.chat_template": "chatml"}, id="tw546"),
        pytest.param({}, {"data.special_tokens": "<a>"}, id="tw554"),
        pytest.param({"task": "custom"}, {"data.source_weights": "1, 2"}, id="tw547"),
        pytest.param({}, {"data.columns": "prompt=q,completion=a"}, id="tw550"),
        pytest.param(
            {"engine": "colossalai", "strategy.kind": "colossal_ddp"}, {"tracking.log_with": "mlflow"}, id="tw126"
        ),
    ],
)
def test_an_option_that_nothing_acts_on(base: dict[str, Any], changes: dict[str, Any]) -> None:
    """The scripts are those of a plan without it."""
    assert scripts({**base, **changes}) == scripts(base)
    assert scripts(EVALUATED) != scripts({})


def test_tw544_flash_attention_is_asked_for_by_name() -> None:
    import transformers

    if transformers.utils.is_flash_attn_2_available():
        pytest.skip("flash-attn is installed")
    shape = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    with pytest.raises((ImportError, ValueError), match="FlashAttention2 has been toggled on, but it cannot be used"):
        transformers.AutoModelForCausalLM.from_config(shape, attn_implementation="flash_attention_2")


def test_tw320_parts_are_not_updated_as_the_whole_is() -> None:
    """A flat part of a matrix is refused by Muon, and Adafactor updates it as a vector."""
    torch.manual_seed(0)
    gradient, rate = torch.randn(6, 4), {"lr": 0.1}
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        torch.optim.Muon([torch.nn.Parameter(torch.ones(24))], **rate)
    whole, flat = (torch.nn.Parameter(torch.ones(shape)) for shape in ((6, 4), (24,)))
    for parameter in (whole, flat):
        parameter.grad = gradient.reshape(parameter.shape)
        torch.optim.Adafactor([parameter], **rate).step()
    assert not torch.allclose(whole.detach().flatten(), flat.detach())


def scripts(values: dict[str, Any]) -> dict[str, str]:
    made = training_files(plans.with_changes(BASE, values), templates.load())
    return {artifact.path: artifact.text for artifact in made if artifact.path.endswith(".py")}


@pytest.mark.train
def test_tw527_what_is_not_written_stops_the_ranks(tmp_path: Path) -> None:
    alone = {"machine.num_processes": 1, "strategy.kind": "single", "batch.per_device_batch_size": 16}
    folder = make(tmp_path / "project", {**REGRESSION, **alone, "data.eval": ""})
    task = folder / "task.py"
    mark = 'raise NotImplementedError("write build_model in task.py")'
    task.write_text(task.read_text().replace("return Net(config)", mark))
    stopped = launch(folder, "--ignore", "TW527")
    assert stopped.code != 0
    assert "NotImplementedError: write build_model in task.py" in stopped.out + stopped.err


@pytest.mark.train
def test_tw529_a_hook_that_the_engine_cannot_call_stops_the_ranks(tmp_path: Path) -> None:
    sharded = {"strategy.kind": "deepspeed", "strategy.zero_stage": 1, "data.eval": ""}
    folder = make(tmp_path / "project", {**REGRESSION, **sharded})
    task = folder / "task.py"
    task.write_text(task.read_text() + "\n\ndef after_update(config, model, update):\n    pass\n")
    stopped = launch(folder, "--ignore", "TW529")
    assert stopped.code != 0
    assert "task.py has after_update, which this project cannot use: DeepSpeed keeps" in stopped.out + stopped.err


@pytest.mark.train
def test_tw540_the_example_is_trained_instead(tmp_path: Path) -> None:
    alone = {"machine.num_processes": 1, "strategy.kind": "single", "batch.per_device_batch_size": 16}
    named = {"data.train": "no-such-file.txt", "ignore": {"TW540": "to see what becomes of it"}}
    short = {"schedule.n_steps": 2, "schedule.n_warmup_steps": 0, "data.eval": ""}
    folder = make(tmp_path / "project", {**REGRESSION, **alone, **short, **named})
    done = launch(folder)
    assert done.code == 0, done.err
    assert len(metrics(folder)) == 2


@pytest.mark.train
def test_tw525_an_edited_value_is_what_is_trained(tmp_path: Path) -> None:
    alone = {"machine.num_processes": 1, "strategy.kind": "single", "batch.per_device_batch_size": 16}
    short = {"schedule.n_steps": 2, "schedule.n_warmup_steps": 0, "schedule.lr_scheduler_type": "constant"}
    folder = make(tmp_path / "project", {**REGRESSION, **alone, **short, "data.eval": ""})
    script = folder / "train.py"
    script.write_text(script.read_text().replace("learning_rate: float = 0.003", "learning_rate: float = 0.004"))
    done = launch(folder, "--ignore", "TW525")
    assert done.code == 0, done.err
    assert metrics(folder)[0]["lr"] == 0.004
    assert "the script uses 0.004" in done.err
    record = json.loads((folder / "runs/latest/command.json").read_text())
    assert record["plan"]["optimizer"]["learning_rate"] == 0.004


@pytest.mark.train
def test_tw524_an_edited_plan_is_not_what_is_trained(tmp_path: Path) -> None:
    """Only the number of ranks is compared."""
    alone = {"machine.num_processes": 1, "strategy.kind": "single", "batch.per_device_batch_size": 16}
    short = {"schedule.n_steps": 2, "schedule.n_warmup_steps": 0, "schedule.lr_scheduler_type": "constant"}
    folder = make(tmp_path / "project", {**REGRESSION, **alone, **short, "data.eval": ""})
    plan = yaml.safe_load((folder / "trainwiz.yaml").read_text())
    rate = plan["optimizer"]["learning_rate"]
    plan["ignore"] = {"TW524": "to see what becomes of it"}
    plan["optimizer"]["learning_rate"] = rate / 2
    (folder / "trainwiz.yaml").write_text(yaml.safe_dump(plan))
    done = launch(folder)
    assert done.code == 0, done.err
    assert metrics(folder)[0]["lr"] == rate
    plan["machine"]["num_processes"], plan["batch"]["per_device_batch_size"] = 2, 8
    plan["strategy"]["kind"] = "ddp"
    (folder / "trainwiz.yaml").write_text(yaml.safe_dump(plan))
    refused = launch(folder)
    assert refused.code != 0
    assert "planned for 1 ranks, started with 2" in refused.out + refused.err


def test_tw103_another_library_than_torchs(tmp_path: Path) -> None:
    """Ranks end with it, and what should start them does."""
    (tmp_path / "libstdc++.so.6").touch()
    for program in (
        ["-c", "import torch"],
        ["-m", "torch.distributed.run", "train.py"],
        ["-m", "accelerate.commands.launch", "train.py"],
    ):
        done = subprocess.run(
            [sys.executable, *program],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == f"ImportError: {tmp_path}/libstdc++.so.6: file too short"


def test_tw101_accelerate_is_not_for_python_3_9(tmp_path: Path) -> None:
    """pip itself, with the metadata of the accelerate that is installed here, in an index of its own."""
    theirs = importlib.metadata.distribution("accelerate")
    name = f"accelerate-{theirs.version}"
    place = tmp_path / "accelerate"
    place.mkdir()
    with zipfile.ZipFile(place / f"{name}-py3-none-any.whl", "w") as wheel:
        for file in ("METADATA", "WHEEL", "RECORD"):
            wheel.writestr(f"{name}.dist-info/{file}", (theirs.read_text(file) or "") if file != "RECORD" else "")
    needs = theirs.metadata["Requires-Python"].replace(">", "&gt;")
    (place / "index.html").write_text(f'<a href="{name}-py3-none-any.whl" data-requires-python="{needs}">{name}</a>')
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--dry-run",
        "--no-deps",
        "--only-binary=:all:",
        "--index-url",
        tmp_path.as_uri(),
        "--target",
        str(tmp_path / "x"),
        "accelerate",
    ]
    for version, words in (("3.9", f"{theirs.version} Requires-Python >=3.10"), ("3.10", f"Would install {name}")):
        done = subprocess.run(
            [*pip, "--python-version", version], capture_output=True, text=True, timeout=180, check=False
        )
        assert words in done.stdout + done.stderr


def test_tw101_zip_is_told_to_be_strict() -> None:
    """Python 3.10 was the first whose zip can be."""
    batches = next(a.text for a in training_files(BASE, templates.load()) if a.path == "batches.py")
    assert "zip(*pairs, strict=True)" in batches
