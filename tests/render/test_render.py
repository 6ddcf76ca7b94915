"""What a project holds: each file read back, odd values included, and typical projects against golden files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from plans import make, product

from trainwiz import command, plan, render, strategies
from trainwiz.plan import Plan
from trainwiz.render import accelerate, deepspeed, documents, editor, plan_file
from trainwiz.render.imports import NEIGHBORS
from trainwiz.render.values import as_documents, as_json, commented
from trainwiz.store import templates

TEMPLATES = templates.load()
GOLDEN = Path(__file__).parents[1] / "golden"
ODD = [
    "no",
    "1e-4",
    "a: b",
    "x # y",
    "'",
    '"; import os',
    "{{ 7 * 7 }}",
    "名字",
    "- a",
    "null",
    "~",
    "%TAG",
    "a" * 3000,
]

TYPICAL: dict[str, tuple[dict[str, Any], str]] = {
    "single-cpu": ({}, "en"),
    "ddp-2-cpu": (
        {"machine__num_processes": 2, "strategy__kind": "ddp", "batch__gradient_accumulation_steps": 2},
        "en",
    ),
    "zero3-offload-8-gpu": (
        {
            "model__name": "llama-1b",
            "data__train": "some/dataset",
            "machine__device": "cuda",
            "machine__num_processes": 8,
            "strategy__kind": "deepspeed",
            "strategy__zero_stage": 3,
            "strategy__offload_optimizer_device": "cpu",
            "strategy__offload_param_device": "nvme",
            "strategy__nvme_path": "/local_nvme",
            "strategy__zero3_save_16bit_model": True,
            "precision__mixed_precision": "bf16",
            "batch__real_batch_size": 256,
            "tracking__log_with": "wandb",
        },
        "en",
    ),
    "fsdp-2-machines-zh": (
        {
            "task": "custom",
            "machine__device": "cuda",
            "machine__num_machines": 2,
            "machine__num_processes": 16,
            "strategy__kind": "fsdp",
            "precision__mixed_precision": "bf16",
            "batch__real_batch_size": 512,
            "optimizer__name": "sgd",
        },
        "zh",
    ),
}
# The scripts have tests of their own, and the schema changes with every key of the plan.
NOT_GOLDEN = {
    "train.py",
    "task.py",
    "batches.py",
    "checkpoints.py",
    "flops.py",
    "head_loss.py",
    "logits.py",
    "long_rows.py",
    "manifest.py",
    "meter.py",
    "metrics.py",
    "model_folder.py",
    "rows.py",
    "trust.py",
    plan_file.SCHEMA_FILE,
}


def files(made: Plan, **options: Any) -> dict[str, str]:
    return {a.path: a.text for a in render.project(made, TEMPLATES, **options)}


@pytest.mark.parametrize("name", TYPICAL)
def test_typical_projects_are_as_reviewed(name: str, request: pytest.FixtureRequest) -> None:
    changes, language = TYPICAL[name]
    reasons = {"batch.per_device_batch_size": "fits in memory", "seed": "default"}
    rendered = {
        path: text
        for path, text in files(make(**changes), reasons=reasons, language=language).items()
        if path not in NOT_GOLDEN
    }
    folder = GOLDEN / name
    if request.config.getoption("--renew-golden"):
        for path, text in rendered.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    golden = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert rendered == golden


def test_the_files_of_a_project() -> None:
    everywhere = {
        "trainwiz.yaml",
        plan_file.SCHEMA_FILE,
        "accelerate.yaml",
        "train.py",
        "task.py",
        "README.md",
        "batches.py",
        "checkpoints.py",
        "manifest.py",
        "meter.py",
        "metrics.py",
        "definitions.py",
        "documents.py",
        "encoders.py",
        "head_loss.py",
        "logits.py",
        "long_rows.py",
        "model_folder.py",
        "packing.py",
        "rows.py",
        "sources.py",
        "splits.py",
        "json_rows.py",
        "token_cache.py",
        "trust.py",
        "requirements.txt",
        ".gitignore",
        ".vscode/launch.json",
    }
    assert set(files(make())) == everywhere
    assert set(files(make(strategy__kind="deepspeed", strategy__zero_stage=2))) == everywhere | {"ds_config.json"}


@pytest.mark.parametrize("kind", [row.kind for row in strategies.every() if row.engine == "colossalai"])
def test_a_project_for_colossalai_knows_nothing_of_accelerate(kind: str) -> None:
    made = make(engine="colossalai", strategy__kind=kind, machine__device="cuda", machine__num_processes=4)
    rendered = files(made)
    assert "accelerate.yaml" not in rendered
    for name in ("train.py", "README.md", "requirements.txt"):
        assert "accelerate" not in rendered[name].replace("colossalai.accelerator", "").replace("get_accelerator", "")
    assert "    torchrun --standalone --nproc_per_node 4 train.py\n" in rendered["README.md"]
    assert "    colossalai run --nproc_per_node 4 train.py\n" in rendered["README.md"]
    assert "\ncolossalai>=0.5.0" in rendered["requirements.txt"]
    started = command.for_plan(made, python="python", folder=".", port=29500)
    assert len(started.ranks) == 4
    assert not [name for name in started.environ if name.startswith(("ACCELERATE_", "FSDP_"))]


def test_one_rank_of_colossalai_has_a_process_group_too() -> None:
    made = make(engine="colossalai", strategy__kind="colossal_ddp")
    (rank,) = command.for_plan(made, python="python", folder=".", port=29500).ranks
    assert rank.environ["RANK"] == "0"
    assert editor.configurations(made)["configurations"][0]["module"] == "torch.distributed.run"


# The plan


def test_every_plan_reads_back() -> None:
    for number, made in enumerate(product()):
        if number % 7 == 0:
            assert plan.parse(yaml.safe_load(plan_file.text(made, {}))) == made


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_and_reasons_read_back(odd: str) -> None:
    made = make(model__name=odd, data__train=odd)
    reasons = {"model.name": f"{odd}\nseed: 7\r\n\x85\u2028\x07- x", "seed": odd}
    written = plan_file.text(made, reasons)
    assert plan.parse(yaml.safe_load(written)) == made


def test_reasons_stand_behind_their_values() -> None:
    written = plan_file.text(make(), {"seed": "default", "batch.real_batch_size": "yours"})
    assert "\nseed: 42  # default\n" in written
    assert "\n  real_batch_size: 32  # yours\n" in written


def test_only_a_string_of_several_lines_is_a_block() -> None:
    assert as_documents([{"run": "cd /work\ntrainwiz launch\n", "name": "tune"}]) == (
        "run: |\n  cd /work\n  trainwiz launch\nname: tune\n"
    )


def test_exceptions_to_rules_read_back() -> None:
    made = make(ignore={"TW401": "we mean it: really # yes"})
    assert plan.parse(yaml.safe_load(plan_file.text(made, {}))) == made


def test_the_first_line_points_at_the_schema() -> None:
    made = files(make())
    assert made["trainwiz.yaml"].startswith("# yaml-language-server: $schema=.trainwiz/plan.schema.json\n")
    schema = json.loads(made[plan_file.SCHEMA_FILE])
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Plan.model_fields)


def test_yaml_that_does_not_read_back_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="read back"):
        commented({"a": ("tuple",)}, {})


# accelerate.yaml, ds_config.json


@pytest.mark.parametrize(
    ("device", "kind"),
    [("cuda", "MULTI_GPU"), ("cpu", "MULTI_CPU"), ("npu", "MULTI_NPU"), ("xpu", "MULTI_XPU"), ("mlu", "MULTI_MLU")],
)
def test_ddp_is_called_what_accelerate_calls_it(device: str, kind: str) -> None:
    made = make(machine__device=device, machine__num_processes=2, strategy__kind="ddp")
    assert yaml.safe_load(accelerate.text(made))["distributed_type"] == kind
    assert yaml.safe_load(accelerate.text(make(machine__device=device)))["distributed_type"] == "NO"


def test_several_cpu_ranks_are_warned_of_in_the_file() -> None:
    assert "ONE process" in accelerate.text(make(machine__num_processes=2, strategy__kind="ddp"))


@pytest.mark.parametrize("kind", ["single", "ddp", "fsdp"])
def test_accelerate_is_not_told_of_fp8_for_which_it_would_take_other_layers(kind: str) -> None:
    """The script's fp8 comes from torchao; accelerate's would replace the same layers by those of another package."""
    made = make(machine__device="cuda", strategy__kind=kind, precision__mixed_precision="fp8")
    assert yaml.safe_load(accelerate.text(made))["mixed_precision"] == "bf16"


@pytest.mark.parametrize("device", ["npu", "xpu", "mlu", "mps"])
def test_unproven_devices_say_so(device: str) -> None:
    made = make(machine__device=device)
    assert f"UNPROVEN: written after accelerate's documentation, never run on {device}" in accelerate.text(made)
    assert f"**{device} is unproven**" in files(made)["README.md"]
    assert f"**{device} 未经验证**" in files(made, language="zh")["README.md"]


def test_deepspeed_leaves_nothing_open() -> None:
    for made in product():
        if made.strategy.kind == "deepspeed":
            written = as_json(deepspeed.config(made))
            values = json.loads(written)
            assert "auto" not in re.findall(r'"([^"]*)"', written)
            assert "train_batch_size" not in values
            assert not {"optimizer", "scheduler"} & set(values)
            assert not (values["bf16"]["enabled"] and values["fp16"]["enabled"])


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"optimizer__gradient_clipping": 0}, "gradient_clipping", 0.0),
        ({"strategy__zero_stage": 0}, "data_types", None),
        ({"strategy__zero_stage": 1}, "data_types", {"grad_accum_dtype": "fp32"}),
        ({"strategy__offload_optimizer_device": "cpu"}, "zero_force_ds_cpu_optimizer", True),
        ({"strategy__offload_optimizer_device": "cpu", "optimizer__name": "sgd"}, "zero_force_ds_cpu_optimizer", False),
        ({"optimizer__name": "sgd"}, "zero_allow_untested_optimizer", True),
        ({"precision__mixed_precision": "fp8"}, "bf16", {"enabled": True}),
        # A timer that nothing prints, with a wait for the device in each forward pass.
        ({}, "timers", {"throughput": {"enabled": False}}),
    ],
)
def test_deepspeed_values_that_are_easily_wrong(changes: dict[str, Any], key: str, value: object) -> None:
    made = make(**{"strategy__kind": "deepspeed", "strategy__zero_stage": 2, **changes})
    assert deepspeed.config(made).get(key) == value


# Documents


def test_readme_shows_the_equation_and_the_commands() -> None:
    for language in ("en", "zh"):
        made = make(
            machine__num_processes=4, machine__device="cuda", strategy__kind="ddp", batch__gradient_accumulation_steps=1
        )
        readme = files(made, language=language)["README.md"]
        assert "    32 = 8 × 1 × 4\n" in readme
        for equivalent in command.equivalents(made):
            assert f"    {command.line(equivalent)}\n" in readme


def test_readmes_say_the_same_in_both_languages() -> None:
    for changes, _ in TYPICAL.values():
        english, chinese = (files(make(**changes), language=language)["README.md"] for language in ("en", "zh"))
        code = [re.findall(r"^    .*$", text, re.MULTILINE) for text in (english, chinese)]
        assert code[0] == code[1]
        assert english.count("\n## ") == chinese.count("\n## ")
        named = [set(re.findall(r"`[^`]+`", text)) for text in (english, chinese)]
        assert named[0] == named[1]
        assert "\n\n\n" not in english + chinese


def test_an_unknown_language_reads_english() -> None:
    assert files(make(), language="fr") == files(make(), language="en")


def test_a_template_that_asks_for_the_unknown_fails() -> None:
    broken = {**TEMPLATES, "templates/gitignore.j2": "{{ plan.nothing }}"}
    with pytest.raises(jinja2.UndefinedError):
        documents.documents(make(), broken, language="en")


def test_an_answer_is_never_a_template() -> None:
    readme = files(make(model__name="{{ 7 * 7 }}"))["README.md"]
    assert "`{{ 7 * 7 }}`" in readme


@pytest.mark.parametrize(
    ("changes", "wanted", "unwanted"),
    [
        ({}, {"torch", "accelerate", "transformers", "tqdm", "numpy"}, {"deepspeed", "datasets", "wandb"}),
        ({"task": "custom"}, {"safetensors"}, {"transformers"}),
        ({"task": "text_classification"}, {"transformers"}, {"datasets", "pillow"}),
        ({"task": "image_classification"}, {"pillow", "scikit-learn", "safetensors"}, {"transformers"}),
        ({"task": "image_classification", "data__train": "pets", "data__eval": None}, {"pillow"}, {"scikit-learn"}),
        ({"task": "custom", "strategy__kind": "deepspeed"}, {"deepspeed", "transformers"}, set()),
        ({"data__train": "owner/set"}, {"datasets"}, set()),
        ({"data__train": "./mine.txt"}, set(), {"datasets"}),
        ({"tracking__log_with": "wandb"}, {"wandb"}, {"tensorboard"}),
        ({"tracking__log_with": "tensorboard"}, {"tensorboard"}, {"wandb"}),
        ({"precision__mixed_precision": "fp8"}, {"torchao"}, set()),
        ({"task": "text_multilabel", "model__adapter": "lora"}, {"peft"}, {"bitsandbytes", "jinja2"}),
        ({"task": "causal_lm", "model__adapter": "qlora"}, {"peft", "bitsandbytes"}, set()),
    ],
)
def test_requirements(changes: dict[str, Any], wanted: set[str], unwanted: set[str]) -> None:
    written = files(make(**changes))["requirements.txt"]
    names = {line.split(">=")[0] for line in written.splitlines() if line and not line.startswith("#")}
    assert wanted <= names
    assert not unwanted & names
    assert all(">=" in line for line in written.splitlines() if not line.startswith("#"))


def test_requirements_name_what_the_program_imports() -> None:
    distribution = dict.fromkeys(NEIGHBORS)
    for changes, _ in TYPICAL.values():
        made = files(make(**changes))
        program = made["train.py"] + made["task.py"] + made["metrics.py"]
        imported = set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE))
        required = set(re.findall(r"^([\w-]+)>=", made["requirements.txt"], re.MULTILINE))
        foreign = {distribution.get(name, name) for name in imported - STANDARD} - {None}
        assert foreign <= required, foreign - required


STANDARD = set(__import__("sys").stdlib_module_names)


# The editor


def test_debugging_starts_worlds_that_the_script_accepts() -> None:
    made = make(machine__num_processes=2, strategy__kind="ddp", batch__gradient_accumulation_steps=2)
    alone, everyone, *_ = editor.configurations(made)["configurations"]
    assert alone["program"] == "${workspaceFolder}/train.py"
    assert alone["args"] == ["--num_processes", "1", "--real_batch_size", "16"]
    assert everyone["module"] == "torch.distributed.run"
    assert everyone["args"][:3] == ["--standalone", "--nproc_per_node", "2"]
    assert "--num_processes" not in everyone["args"]
    assert everyone["subProcess"] is True


def test_debugging_one_machine_of_several_or_one_rank_of_one() -> None:
    made = make(machine__num_processes=4, machine__num_machines=2, machine__device="cuda", strategy__kind="fsdp")
    alone, local = editor.configurations(made)["configurations"]
    assert alone["module"] == "torch.distributed.run"
    assert local["args"][-4:] == ["--num_processes", "2", "--real_batch_size", "64"]
    assert len(editor.configurations(make())["configurations"]) == 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_lines_by_hand_name_the_interface_for_both_backends(language: str) -> None:
    """The ranks agree over gloo, also where they train over NCCL."""
    made = make(machine__num_processes=4, machine__num_machines=2, machine__device="cuda", strategy__kind="fsdp")
    assert "`GLOO_SOCKET_IFNAME=NAME NCCL_SOCKET_IFNAME=NAME`" in files(made, language=language)["README.md"]


def test_ranks_can_be_attached_to_on_the_ports_of_launch_debug() -> None:
    made = editor.configurations(make(machine__num_processes=4, machine__device="cuda", strategy__kind="ddp"))
    attach = made["configurations"][2:]
    assert [a["connect"] for a in attach] == [{"host": "127.0.0.1", "port": 5678 + rank} for rank in range(4)]
    assert made["compounds"][0]["configurations"] == [f"attach to rank {rank}" for rank in range(4)]
    assert "compounds" not in editor.configurations(make())
