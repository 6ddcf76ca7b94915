"""The generated program: every subset of features is a whole, clean program; values go in as literals."""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from plans import BASE

from trainwiz import optimizers, strategies, tasks, vocabulary
from trainwiz import plan as plans
from trainwiz.plan import Plan
from trainwiz.render import imports, script
from trainwiz.render.artifact import Artifact
from trainwiz.store import templates

COLOSSAL_KINDS = [row.kind for row in strategies.every() if row.engine == "colossalai"]
TEMPLATES = templates.load()
SOURCES = {name: text for name, text in TEMPLATES.items() if name.startswith("train_templates/")}

ROWS: list[dict[str, object]] = [
    {"strategy.kind": row.kind, "strategy.zero_stage": row.zero_stage}
    for row in strategies.every()
    if row.engine == "accelerate"
]
STRATEGIES: list[dict[str, object]] = [
    *ROWS,
    {"strategy.kind": "deepspeed", "strategy.zero_stage": 3, "strategy.zero3_save_16bit_model": True},
    {
        "strategy.kind": "deepspeed",
        "strategy.zero_stage": 3,
        "strategy.offload_param_device": "nvme",
        "strategy.nvme_path": "/scratch",
    },
]
NAMED_RUNS: list[dict[str, object]] = [
    {"tracking.log_with": tracker, "tracking.tags": "a,b"} for tracker in vocabulary.TRACKERS["accelerate"]
]
OPTIMIZERS: list[dict[str, object]] = [
    {"optimizer.name": row.name, **further} for row in optimizers.every() for further in ({}, {"optimizer.beta1": 0.5})
]
COLOSSAL: list[dict[str, object]] = [{"engine": "colossalai", "strategy.kind": kind} for kind in COLOSSAL_KINDS]
NAMED: list[dict[str, object]] = [
    {"task": task.name, **start}
    for task in tasks.every()
    if task.from_hub
    for start in ({"model.name": "org/model"}, {"model.name": "org/model", "model.from_scratch": False})
]
MIXED: dict[str, object] = {"data.train": "a.jsonl, b.jsonl", "data.source_weights": "1, 2"}
ADAPTED: dict[str, object] = {"model.name": "org/model", "model.from_scratch": False, "model.adapter": "lora"}
TASKS: list[dict[str, object]] = [
    *({"task": task.name} for task in tasks.every()),
    *NAMED,
    {"task": "image_classification", "model.name": "resnet18", "data.train": "pictures", **MIXED},
    *({"task": "image_classification", "data.augmentation": how} for how in ("none", "flip", "color")),
    {
        "task": "image_multilabel",
        "model.name": "timm/a",
        "model.from_scratch": False,
        "data.augmentation": "crop",
        **MIXED,
    },
    *({"task": task, **MIXED} for task in ("image_regression", "text_multilabel", "text_regression", "reward_model")),
    {"task": "image_regression", "model.name": "timm/a"},
    {"model.name": "gpt2-124m", "data.train": "corpus.txt"},
    {"model.name": "gpt2-124m", "model.from_scratch": False},
    {"task": "sft", "model.name": "org/model", "model.from_scratch": False, "model.adapter": "lora"},
    {
        "task": "sft",
        **ADAPTED,
        "data.train_on": "all",
        "data.chat_template": "chatml",
        "model.attention": "eager",
        "data.columns": "prompt=question, completion=answer",
        "data.special_tokens": "eos_token=<|im_end|>",
    },
    *({**named, "data.added_tokens": "<tool>"} for named in NAMED),
    {"task": "text_classification", **ADAPTED, "data.special_tokens": "[E]", **MIXED},
    {
        **ADAPTED,
        "data.special_tokens": "[E]",
        "strategy.kind": "deepspeed",
        "strategy.zero_stage": 3,
    },
    {**ADAPTED, "model.adapter": "qlora", **MIXED},
    {"evaluation.generation_metrics": "exact_match, bleu, rouge"},
    {"task": "sft", **ADAPTED, "evaluation.generation_metrics": "rouge"},
    {"task": "text_classification", **ADAPTED, "model.merge_adapter": True, "model.attention": "sdpa"},
    {"model.name": "org/model", "machine.device": "cuda", "model.kernels": "liger"},
    {"machine.device": "cuda", "precision.mixed_precision": "fp8"},
    {
        "task": "reward_model",
        **ADAPTED,
        "model.adapter": "qlora",
        "data.chat_template": "chatml",
        "data.columns": "chosen=better, rejected=worse",
    },
    *({"task": "preference", "preference.loss": loss, **MIXED} for loss in ("ipo", "kto")),
    *({"task": "preference", "preference.loss": loss} for loss in ("orpo", "simpo")),
    {
        "task": "sft",
        "model.name": "org/model",
        "model.from_scratch": False,
        "model.adapter": "qlora",
        "model.merge_adapter": True,
    },
]
REST: list[dict[str, object]] = [
    {},
    {
        "data.eval": None,
        "optimizer.name": "sgd",
        "precision.mixed_precision": "bf16",
        "precision.weights": "bfloat16",
        "model.activation_checkpointing": "offload",
        "machine.device": "cuda",
    },
    {
        "tracking.log_with": "tensorboard",
        "machine.device": "cuda",
        "precision.mixed_precision": "bf16",
        "checkpoint.background": True,
        "evaluation.best_metric": "eval_loss",
        "model.compile": True,
        "model.activation_checkpointing": "selective",
    },
    {
        "tracking.log_with": "wandb",
        "tracking.project": "mine",
        "precision.mixed_precision": "fp16",
        "data.packing": False,
        "model.activation_checkpointing": "full",
        "schedule.lr_scheduler_type": "wsd",
        "model.frozen": "embed",
        "model.neftune_alpha": 5.0,
        "optimizer.rates": "head=10",
        "optimizer.ema_decay": 0.9,
        "evaluation.evaluation_steps": 5,
        "evaluation.best_metric": "eval_loss",
        "evaluation.gather_outputs": True,
    },
]


JUDGED: dict[str, object] = {"task": "preference", "preference.loss": "kto"}


def variants() -> list[Plan]:
    # The tasks are the same under every engine. What follows one another has most files in common: they are known.
    combined = itertools.chain(
        itertools.product(REST, TASKS, STRATEGIES),
        itertools.product(REST, [{}, *NAMED[1::2], JUDGED], COLOSSAL),
        itertools.product(OPTIMIZERS, [{}, *COLOSSAL]),
        [(named,) for named in NAMED_RUNS],
    )
    return [
        plans.with_changes(BASE, {key: value for part in parts[::-1] for key, value in part.items()})
        for parts in combined
    ]


def region_names(source: str) -> set[str]:
    return set(re.findall(r"^\s*# feature: (\w+)$", source, re.MULTILINE))


@pytest.fixture(scope="module")
def rendered() -> list[tuple[Plan, tuple[Artifact, ...]]]:
    """Every variant with its programs."""
    return [(plan, tuple(script.scripts(plan, TEMPLATES))) for plan in variants()]


@pytest.fixture(scope="module")
def programs(rendered: list[tuple[Plan, tuple[Artifact, ...]]]) -> set[str]:
    """The different ones."""
    return {artifact.text for _, artifacts in rendered for artifact in artifacts}


def test_every_variant_is_clean_and_every_region_is_in_some_and_missing_from_some(
    rendered: list[tuple[Plan, tuple[Artifact, ...]]], programs: set[str], tmp_path: Path
) -> None:
    """ruff (unused names and imports among its rules) and its formatter accept every program as it is."""
    regions = set().union(*(region_names(text) for text in SOURCES.values()))
    seen: dict[str, set[bool]] = {name: set() for name in regions}
    left = set(programs)
    for number, (plan, artifacts) in enumerate(rendered):
        wanted = script.features(plan)
        for name in regions:
            seen[name].add(name in wanted)
        folder = tmp_path / str(number)
        folder.mkdir()
        for artifact in artifacts:
            assert artifact.text.count("\n") <= {"task.py": 285}.get(artifact.path, 400)
            if artifact.text not in left:
                continue
            left.remove(artifact.text)
            (folder / artifact.path).write_text(artifact.text)
            assert "feature:" not in artifact.text
            assert "trainwiz" not in artifact.text
    assert all(both == {True, False} for both in seen.values()), seen
    assert len(programs) >= 60
    ruff = [sys.executable, "-m", "ruff"]
    rules = "lint.select=['E', 'F', 'I', 'W', 'B', 'UP', 'SIM', 'C4', 'PIE', 'RET']"
    own = f"lint.isort.known-first-party={sorted(imports.NEIGHBORS)}"
    check = [*ruff, "check", "--isolated", "--line-length", "120", "--config", rules, "--config", own, str(tmp_path)]
    for command in (check, [*ruff, "format", "--isolated", "--line-length", "120", "--check", str(tmp_path)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:]


def test_a_generated_program_defines_nothing_twice(programs: set[str]) -> None:
    for text in programs:
        names = re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)
        assert len(names) == len(set(names)), names
    assert sum("def main" in text for text in programs) > 60


TWINS = {
    ("loops/accelerate.py", "loops/colossalai.py"): {"boolean", "learning_rate", "read_config"},
    ("tasks/sft.py", "tasks/preference.py"): {"build_model", "save_model", "sample"},
    ("tasks/causal_lm.py", "tasks/sft.py"): {
        "build_model",
        "loss_sum",
        "evaluation_sums",
        "evaluation_metrics",
        "load_train_data",
        "load_eval_data",
    },
}
"""What a project's owner is to find in train.py or task.py itself, and what two templates therefore say alike."""
OWN = (
    'if "RANK" not in',
    'parser.error(f"Colossal-AI',
    "eos_token_id=",
    "# feature: bytes",
    "# end: bytes",
    "return rows.with_",
)
"""Lines that only one of both has."""


def definitions(name: str) -> dict[tuple[str, ...], list[str]]:
    """The lines of each definition, by its name and the regions around it."""
    lines, open_regions, around = SOURCES[f"train_templates/{name}"].splitlines(), [], []
    for line in lines:
        if mark := script._REGION.match(line):
            open_regions = [*open_regions, mark[2]] if mark[1] == "feature" else open_regions[:-1]
        around.append(open_regions)
    return {
        (node.name, *around[node.lineno - 1]): [
            line for line in lines[node.lineno - 1 : node.end_lineno] if not line.strip().startswith(OWN)
        ]
        for node in ast.parse("\n".join(lines)).body
        if isinstance(node, ast.FunctionDef)
    }


def test_what_is_compiled_has_no_kernels_of_liger() -> None:
    liger = {"model.name": "org/model", "machine.device": "cuda", "model.kernels": "liger"}
    for compiled in (False, True):
        plan = plans.with_changes(BASE, {**liger, "model.compile": compiled})
        assert ("liger" in script.features(plan)) != compiled


# docs/decisions/loop.md: Shared code has its own files; settings, schedule and model stay in train.py and task.py
@pytest.mark.parametrize("pair", TWINS)
def test_what_two_templates_say_alike_they_say_in_the_same_words(pair: tuple[str, str]) -> None:
    one, other = map(definitions, pair)
    both = {key for key in one.keys() & other.keys() if key[0] in TWINS[pair]}
    assert {key[0] for key in both} == TWINS[pair]
    for key in both:
        assert one[key] == other[key]


def test_both_loops_have_their_settings_alike() -> None:
    fields = [
        {
            node.target.id: ast.unparse(node)
            for owner in ast.parse(SOURCES[f"train_templates/{name}"]).body
            if isinstance(owner, ast.ClassDef) and owner.name == "Config"
            for node in owner.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
        for name in ("loops/accelerate.py", "loops/colossalai.py")
    ]
    both = fields[0].keys() & fields[1].keys()
    assert len(both) >= 20
    assert {name: fields[0][name] for name in both} == {name: fields[1][name] for name in both}


def test_the_plan_names_only_regions_that_exist_and_all_of_them(
    rendered: list[tuple[Plan, tuple[Artifact, ...]]],
) -> None:
    regions = set().union(*(region_names(text) for text in SOURCES.values()))
    asked = set().union(*(script.features(plan) for plan, _ in rendered))
    # A precision, an optimizer or a tracker is the name of its region, where it has one.
    assert asked >= regions


def test_every_config_field_is_set_from_the_plan_or_named_here(
    rendered: list[tuple[Plan, tuple[Artifact, ...]]],
) -> None:
    own = {
        "output_dir",
        "resume",
        "trust",
        "n_samples",
        "n_eval_samples",
        "n_features",
        "hidden_size",
        "n_blocks",
        "noise",
    }
    fields = {
        node.target.id
        for text in SOURCES.values()
        for owner in ast.parse(text).body
        if isinstance(owner, ast.ClassDef) and owner.name in ("Config", "TaskConfig")
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert len(fields) > 30
    known = {name for plan, _ in rendered for name in script.settings(plan)}
    assert fields - known == own - {"hidden_size"}


def config_of(text: str, name: str) -> object:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            assert node.value is not None
            return ast.literal_eval(node.value)
    raise AssertionError(name)


@pytest.mark.parametrize(
    "text", ['"; import os; "', "'", '"', "a\\", "\\n", "{x}", "# feature: eval", "数据/文本.txt", '"""', "a'b\"c"]
)
def test_a_text_stays_a_text(text: str) -> None:
    plan = plans.with_changes(BASE, {"data.train": text})
    _, task, *_ = script.scripts(plan, TEMPLATES)
    assert config_of(task.text, "train_data") == text
    compile(task.text, "task.py", "exec")


def test_numbers_and_names_reach_the_config() -> None:
    plan = plans.with_changes(
        BASE,
        {"optimizer.learning_rate": 1e-5, "schedule.n_epochs": 3, "schedule.train_strategy": "epochs", "seed": 7},
    )
    train, *_ = script.scripts(plan, TEMPLATES)
    assert config_of(train.text, "learning_rate") == 1e-5
    assert (config_of(train.text, "n_epochs"), config_of(train.text, "n_steps")) == (3, 0)
    assert config_of(train.text, "seed") == 7


@pytest.mark.parametrize("source", ["# feature: a\n", "# end: a\n", "# feature: a\n# feature: b\n# end: a\n# end: b\n"])
def test_a_region_that_is_not_closed_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match=r"closed|close"):
        script.drop_regions(source, {"a", "b"})


def test_nested_regions_need_both_names() -> None:
    source = "1\n# feature: a\n2\n# feature: b\n3\n# end: b\n# end: a\n"
    assert script.drop_regions(source, {"a", "b"}) == "1\n2\n3\n"
    assert script.drop_regions(source, {"a"}) == "1\n2\n"
    assert script.drop_regions(source, {"b"}) == "1\n"


def test_only_literals_can_be_set() -> None:
    with pytest.raises(ValueError, match="cannot stand"):
        script.set_literals("class Config:\n    a: int = 1\n", "Config", {"a": [1]})
    with pytest.raises(ValueError, match="no class"):
        script.set_literals("a = 1\n", "Config", {"a": 1})


def test_a_program_for_gpus_asks_for_expandable_segments_before_it_imports_torch(
    rendered: list[tuple[Plan, tuple[Artifact, ...]]],
) -> None:
    """PyTorch reads the variable when it is imported; fragments cost gigabytes of a GPU otherwise."""
    seen = set()
    for plan, artifacts in rendered:
        if plan.engine != "accelerate":
            continue
        text = next(artifact.text for artifact in artifacts if artifact.path == "train.py")
        asked, imported = text.find('os.environ.setdefault("PYTORCH_ALLOC_CONF"'), text.index("\nimport torch\n")
        assert (0 < asked < imported) == (plan.machine.device == "cuda")
        seen.add(plan.machine.device)
    assert {"cpu", "cuda"} <= seen
