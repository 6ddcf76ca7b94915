"""Every pair of keys of a group, from the plan's schema: each of the two has an effect, or is said to have none.

A key has an effect where the generated files that a training reads differ by more than the value of a field that no
code reads; where they compute something, the results must differ, too. A finding that names the key says the rest.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import types
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from plans import BASE
from test_rules import facts

from trainwiz import plan as plans
from trainwiz import render, rules
from trainwiz.finding import Finding, Level
from trainwiz.plan import Plan
from trainwiz.store import templates

TEMPLATES = templates.load()
RULES = rules.of_plans()
TOTAL = 100
TIMM = {"task": "image_classification", "model.name": "timm/resnet18.a1_in1k", "model.from_scratch": False}
HUB = {"model.name": "org/model", "model.from_scratch": False, "data.train": "rows.jsonl"}
GPU = {"machine.device": "cuda", "machine.num_processes": 8, "precision.mixed_precision": "bf16"}

EXAMPLES: dict[str, tuple[Any, ...]] = {
    "optimizer.rates": ("head=10",),
    "optimizer.decays": ("head=0",),
    "optimizer.learning_rate": (1e-4,),
    "model.frozen": ("embed", "*"),
    "model.lora_targets": ("q_proj",),
    "model.modules_to_save": ("lm_head",),
    "evaluation.best_metric": ("eval_loss",),
    "evaluation.generation_metrics": ("exact_match", "bleu,rouge"),
    "tracking.project": ("mine",),
    "tracking.run_name": ("first",),
    "tracking.tags": ("a,b",),
    "model.push_to_hub": ("org/out",),
    "data.chat_template": ("chatml",),
    "data.special_tokens": ("pad_token=<pad>",),
    "data.added_tokens": ("<tool>",),
    "strategy.zero_stage": (0, 1, 2, 3),
    "strategy.nvme_path": ("/nvme",),
    "schedule.n_steps": (TOTAL,),
    "schedule.n_epochs": (2,),
    "schedule.n_warmup_steps": (2, 64),
    "preference.beta": (0.3,),
    "data.packing": (True, False),
    "evaluation.best_mode": ("max",),
    "model.lora_alpha": (64,),
    "data.text_column": ("body",),
    "data.label_column": ("grade",),
    "data.cache_dir": ("/shared",),
    "machine.main_process_ip": ("10.0.0.1",),
}
"""Values of keys that the schema knows only as text, or whose legal numbers follow from others."""

GROUPS: dict[str, tuple[tuple[str, ...], tuple[dict[str, Any], ...]]] = {
    "optimizers": (
        ("optimizer.", "precision.", "strategy.offload", "strategy.sync_each_batch"),
        (
            {"strategy.kind": "single", "machine.num_processes": 1},
            {**GPU, "strategy.kind": "fsdp"},
            {**GPU, "strategy.kind": "deepspeed", "strategy.zero_stage": 2},
            {**GPU, "strategy.kind": "colossal_zero2", "engine": "colossalai"},
        ),
    ),
    "schedules": (("schedule.",), ({}, {"schedule.n_warmup_steps": 10})),
    "adapters": (
        ("model.adapter", "model.lora_", "model.frozen", "model.modules_to_save", "model.merge_adapter"),
        ({**HUB}, {**HUB, "task": "sft"}, {**HUB, "task": "text_classification"}, {"task": "custom"}, {}),
    ),
    "rows": (
        ("data.packing", "data.train_on", "model.attention", "model.neftune_", "model.kernels", "model.loss_chunk"),
        (
            {**HUB, **GPU},
            {**HUB, **GPU, "precision.mixed_precision": "fp16"},
            {**HUB, "task": "sft"},
            *({**HUB, "task": task, "data.packing": False} for task in ("text_classification", "preference")),
            {**TIMM, "data.packing": False},
            {"task": "custom", "data.packing": False},
        ),
    ),
    "evaluation": (
        ("evaluation.", "data.eval", "optimizer.ema_decay"),
        ({**HUB}, {**HUB, "task": "sft"}, TIMM, {**HUB, "task": "text_regression"}, {"task": "custom"}),
    ),
    "trackers": (("tracking.",), ({}, {"engine": "colossalai", "strategy.kind": "colossal_ddp"})),
    "uploads": (("model.push_", "model.output_dtype", "model.merge_adapter"), ({**HUB}, TIMM, {"task": "custom"})),
    "tokens": (
        ("data.chat_template", "data.special_tokens", "data.added_tokens", "data.min_tokens", "data.max_tokens"),
        ({**HUB}, {**HUB, "task": "sft"}, {**HUB, "task": "preference"}, TIMM, {}),
    ),
    "pictures": (
        ("data.image_", "data.augmentation", "data.label_column"),
        (TIMM, {"task": "image_classification"}, {**HUB}, {"task": "custom"}),
    ),
    "places": (
        (
            *("data.text_column", "data.label_column", "data.cache_dir", "data.min_tokens", "data.max_tokens"),
            *("strategy.nvme_path", "machine.main_process_ip"),
        ),
        (
            *({**HUB, "task": task} for task in ("causal_lm", "sft", "preference", "reward_model", "text_regression")),
            TIMM,
            {**GPU, "strategy.kind": "deepspeed", "strategy.zero_stage": 3, "strategy.offload_param_device": "nvme"},
            {**GPU, "machine.num_machines": 2, "machine.num_processes": 16, "strategy.kind": "ddp"},
        ),
    ),
    "preferences": (
        ("preference.",),
        (
            *({**HUB, "task": "preference", "preference.loss": loss} for loss in ("dpo", "kto", "simpo")),
            {**HUB, "task": "sft"},
        ),
    ),
}
"""Groups of keys by how their names begin, and the plans in which their pairs are tried."""

ELSEWHERE = ("model.push_to_hub", "model.push_public")
"""Read by trainwiz itself after the training; push_public only beside a repository, which a finding says."""
SAID_WITH = {"strategy.offload_param_device": "offload (optimizer"}
"""How a finding begins that names the values of two keys."""
OF_OWN_TASKS = ("data.image_size", "data.augmentation", "data.image_column", "data.label_column")
"""The task.py of a custom project may have fields of these names, which are set."""


def legal(key: str) -> tuple[Any, ...]:
    """Values of a key that differ from its usual one, from the schema."""
    if key in EXAMPLES:
        return EXAMPLES[key]
    info = plans.fields()[key]
    kind, usual = info.annotation, plans.defaults().get(key, BASE.get(key))
    if get_args(kind) and type(None) in get_args(kind):
        kind = next(part for part in get_args(kind) if part is not type(None))
        kind = getattr(kind, "__origin__", kind)
    words = get_args(info.annotation) if kind not in (int, float, str, bool) else ()
    if kind is bool:
        return (not usual,)
    if words and all(isinstance(word, str) for word in words):
        return tuple(word for word in words if word != usual)
    if kind in (int, float):
        most = 1 if key.startswith("optimizer.") else 2  # of the largest group
        given = [value for value in (0, 1, 0.25, 64) if accepted(key, value)]
        return tuple(value for value in given if value != usual and (kind is float or value == int(value)))[:most]
    return ()


@functools.cache
def accepted(key: str, value: Any) -> bool:
    try:
        return plans.with_changes(BASE, {key: value}).get(key) == value
    except Exception:
        return False


def keys(prefixes: tuple[str, ...]) -> list[str]:
    return [key for key in plans.fields() if key.startswith(prefixes) and legal(key)]


@functools.lru_cache(maxsize=4096)
def built(changes: tuple[tuple[str, Any], ...]) -> Plan:
    return plans.with_changes(BASE, dict(changes))


@functools.lru_cache(maxsize=4096)
def rendered(changes: tuple[tuple[str, Any], ...]) -> dict[str, str]:
    return {one.path: one.text for one in render.training_files(built(changes), TEMPLATES)}


@functools.lru_cache(maxsize=4096)
def findings(changes: tuple[tuple[str, Any], ...]) -> tuple[Finding, ...]:
    plan = dict(changes)
    device = plan.get("machine.device", "cpu")
    base = {"base": "gpu" if device == "cuda" else "cpu", "plan": plan}
    known = facts(base)
    return rules.check(known, rules=RULES)


@functools.lru_cache(maxsize=4096)
def split(text: str) -> tuple[str, dict[str, str]]:
    """A program without the values of its config dataclasses, and these values by field."""
    tree, values = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in ("Config", "TaskConfig"):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
                    values[line.target.id] = ast.unparse(line.value)
                    line.value = ast.Constant(None)
    return ast.dump(tree), values


@functools.lru_cache(maxsize=4096)
def read_fields(text: str) -> frozenset[str]:
    """The attributes that a program reads. By program: two plans differ in one or two of their files."""
    return frozenset(node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))


def acts(key: str, with_it: tuple[tuple[str, Any], ...], without: tuple[tuple[str, Any], ...]) -> bool:
    """Whether a key changes what the training reads."""
    mine, others = rendered(with_it), rendered(without)
    if mine.keys() != others.keys():
        return True
    fields = set()
    for name, text in mine.items():
        if text == others[name]:
            continue
        if not name.endswith(".py"):
            return True
        (code, values), (other_code, other_values) = split(text), split(others[name])
        if code != other_code or values.keys() != other_values.keys():
            return True
        fields |= {field for field in values if values[field] != other_values[field]}
    if not any(fields & read_fields(text) for name, text in mine.items() if name.endswith(".py")):
        return False
    return rates(with_it) != rates(without) if key.startswith("schedule.") else True


@functools.lru_cache(maxsize=4096)
def rates(changes: tuple[tuple[str, Any], ...]) -> tuple[float, ...]:
    """The rate of every update, by the generated program itself."""
    files = rendered(changes)
    name = "schedule.py" if "schedule.py" in files else "train.py"
    tree = ast.parse(files[name])
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in ("learning_rate", "share_of_peak", "down")
    ]
    space: dict[str, Any] = {"math": math, "Config": object}
    exec(compile(tree, name, "exec", dont_inherit=True, flags=annotations()), space)
    values = {field: literal(text) for field, text in split(files["train.py"])[1].items()}
    total = values["n_steps"] or 30 * values["n_epochs"]
    config = types.SimpleNamespace(**values)
    return tuple(space["learning_rate"](config, update, total) for update in range(total))


literal = functools.cache(ast.literal_eval)


def annotations() -> int:
    import __future__

    return __future__.annotations.compiler_flag


def said(key: str, changes: tuple[tuple[str, Any], ...]) -> bool:
    """Whether a finding is about the key: at it, or with its name in its words."""
    short = key.rpartition(".")[2]
    return any(
        one.where == key
        or key in str(one.message)
        or SAID_WITH.get(key, key) in str(one.message)
        or ("_" in short and short in str(one.message))
        for one in findings(changes)
    )


def pairs(group: str) -> Iterator[tuple[dict[str, Any], str, Any, str, Any]]:
    prefixes, bases = GROUPS[group]
    for base in bases:
        for one, other in itertools.combinations(keys(prefixes), 2):
            for value, second in itertools.product(legal(one), legal(other)):
                yield base, one, value, other, second


def silent(group: str) -> Iterator[str]:
    """The pairs in which a key does nothing, and nobody says so."""
    usual = plans.defaults()
    for base, one, value, other, second in pairs(group):
        whole = {**base, one: value, other: second}
        try:
            built(frozen(whole))
            files = rendered(frozen(whole))
        except Exception as error:
            if not any(f.level.name == "ERROR" for f in findings(frozen(whole))):
                yield f"{base} {one}={value} {other}={second}: {type(error).__name__} {error}"
            continue
        assert files
        for key in (one, other):
            if key in ELSEWHERE or (base.get("task") == "custom" and key in OF_OWN_TASKS):
                continue
            rest = {k: v for k, v in whole.items() if k != key}
            rest[key] = base.get(key, usual.get(key, BASE.get(key)))
            if rest[key] == whole[key] or acts(key, frozen(whole), frozen(rest)) or said(key, frozen(whole)):
                continue
            if refused(whole, base):
                continue
            yield f"{base} {one}={value} {other}={second}: {key} does nothing"


def refused(whole: dict[str, Any], base: dict[str, Any]) -> bool:
    """Whether the pair is an error that the plan alone is not."""
    known = {one.rule for one in findings(frozen(base))}
    return any(one.level is Level.ERROR and one.rule not in known for one in findings(frozen(whole)))


def frozen(changes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(changes.items()))


@pytest.mark.parametrize("group", GROUPS)
def test_no_key_is_without_effect_in_silence(group: str) -> None:
    assert sum(1 for _ in pairs(group)) >= 3
    assert list(silent(group)) == []
