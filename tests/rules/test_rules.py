"""Every rule against its cases in tests/rules/*.yaml.

A case is `fails`, `passes` or `almost` (nearly fails), with facts that differ from a base without findings: `plan` by
dotted key, `machine` by dotted path (list items by number), `project` and `estimate` by field, `fixture` another
machine, `keep_gpus` how many of its GPUs. `says` stands in the message, `fix` in the remedy, `where` is the finding's
key. Where a remedy changes the plan, the changed plan must satisfy the rule, unless the case is `unfixed`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml_cases
from plans import BASE

from trainwiz import models, rules
from trainwiz import plan as plans
from trainwiz.estimate import Estimate
from trainwiz.finding import Finding, Level, Violation
from trainwiz.machine import Interpreter, Machine
from trainwiz.message import Message
from trainwiz.project import Project
from trainwiz.rules.registry import Facts, Rule, check
from trainwiz.store import records

HERE = Path(__file__).parents[1]
# Those on scripts have their cases in tests/lint, those on configurations in tests/configurations.
ELSEWHERE = {rule.id for rule in (*rules.of_scripts(), *rules.of_configurations())}
RULES = {rule.id: rule for rule in rules.load() if rule.id not in ELSEWHERE}
OUTCOMES = ("fails", "passes", "almost")

BASES: dict[str, dict[str, Any]] = {
    "gpu": {
        "fixture": "8xh100",
        "plan": {
            "machine.device": "cuda",
            "machine.num_processes": 8,
            "strategy.kind": "ddp",
            "precision.mixed_precision": "bf16",
            "batch.real_batch_size": 64,
            "batch.per_device_batch_size": 8,
            "batch.gradient_accumulation_steps": 1,
        },
    },
    "cpu": {
        "fixture": "cpu",
        "plan": {
            "machine.device": "cpu",
            "machine.num_processes": 2,
            "strategy.kind": "ddp",
            "batch.real_batch_size": 32,
            "batch.per_device_batch_size": 8,
            "batch.gradient_accumulation_steps": 2,
        },
    },
}
PROJECT = {
    "folder": "/home/me/project",
    "train": {"name": "embedded", "kind": "embedded", "samples": 1779, "samples_at_most": 1779},
    "eval": {"name": "embedded", "kind": "embedded", "samples": 43, "samples_at_most": 43},
    "model": {"name": "tiny", "kind": "preset", "parameters": 10**9},
}
ESTIMATES = {
    "gpu": {
        "parameters": 10**9,
        "device_bytes_per_rank": 20 * 10**9,
        "activation_bytes_per_rank": 0,
        "beside_bytes_per_rank": 20 * 10**9,
        "peak_bytes_per_rank": 20 * 10**9,
        "whole_bytes_per_rank": 0,
        "load_bytes_per_machine": 0,
        "host_bytes_per_machine": 0,
        "staged_bytes_per_machine": 0,
        "process_bytes_per_machine": 0,
        "checkpoint_bytes": 12 * 10**9,
    },
    "cpu": {
        "parameters": 10**6,
        "device_bytes_per_rank": 20 * 10**6,
        "activation_bytes_per_rank": 0,
        "beside_bytes_per_rank": 20 * 10**6,
        "peak_bytes_per_rank": 20 * 10**6,
        "whole_bytes_per_rank": 0,
        "load_bytes_per_machine": 0,
        "host_bytes_per_machine": 0,
        "staged_bytes_per_machine": 0,
        "process_bytes_per_machine": 0,
        "checkpoint_bytes": 12 * 10**6,
    },
}


def sized(value: Any) -> Any:
    """`80 GiB` as bytes, anywhere in a value."""
    if isinstance(value, dict):
        return {key: sized(item) for key, item in value.items()}
    if isinstance(value, str) and (match := re.fullmatch(r"([\d.]+) ([GM])iB", value)):
        return int(float(match[1]) * 2 ** {"G": 30, "M": 20}[match[2]])
    return value


def put(record: dict[str, Any], path: str, value: Any) -> None:
    """Set a value deep in plain data. Mappings are merged, so that a case names only the packages that differ."""
    *parents, last = path.split(".")
    for part in parents:
        record = record[int(part)] if isinstance(record, list) else record[part]  # type: ignore[assignment]
    old = record.get(last)
    record[last] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) and value else value


def facts(case: dict[str, Any]) -> Facts:
    case = copy.deepcopy(sized(case))
    base = BASES[case.get("base", "gpu")]
    machine = json.loads((HERE / "machines" / f"{case.get('fixture', base['fixture'])}.json").read_text())
    machine["gpus"] = machine["gpus"][: case.get("keep_gpus", 99)]
    for path, value in case.get("machine", {}).items():
        put(machine, path, value)
    layers = case.get("project", {}).get("model", {}).pop("transformer", None)
    unknown = case.keys() - {"base", "fixture", "keep_gpus", "plan", "machine", "project", "estimate"}
    assert not unknown, f"a case has no {unknown}"
    project = records.build(Project, {**PROJECT, **case.get("project", {})})
    if layers:  # those of a well-known model
        assert project.model
        project = replace(project, model=replace(project.model, transformer=models.known(layers)))
    return Facts(
        plan=plans.with_changes(BASE, {**base["plan"], **case.get("plan", {})}),
        machine=records.build(Machine, machine),
        project=project,
        estimate=records.build(Estimate, {**ESTIMATES[case.get("base", "gpu")], **case.get("estimate", {})}),
    )


def read_cases() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((HERE / "rules").glob("*.yaml")):
        for id, cases in yaml_cases.read(file).items():
            assert id not in found, f"{id} appears twice"
            found[id] = cases
    return found


CASES = read_cases()


def outcome(case: dict[str, Any]) -> str:
    return next(name for name in OUTCOMES if name in case)


def each_case() -> Iterator[Any]:
    for id, cases in CASES.items():
        for i, case in enumerate(cases):
            yield pytest.param(RULES[id], case, id=f"{id}-{outcome(case)}-{i}")


@pytest.mark.parametrize(("rule", "case"), list(each_case()))
def test_case(rule: Rule, case: dict[str, Any]) -> None:
    known = facts(case[outcome(case)])
    found = list(rule(known))
    if outcome(case) != "fails":
        assert not found, f"{found[0].message}"
        return
    assert found
    assert case["says"] in str(found[0].message)
    assert case.get("fix", "") in str(found[0].fix.message if found[0].fix else "")
    assert found[0].where == case.get("where", rule.field)
    assert_readable(found[0])
    changes = found[0].fix.changes if found[0].fix else {}
    if changes and not case.get("unfixed"):
        assert known.plan
        fixed = plans.with_changes(known.plan, changes)
        again = list(rule(Facts(plan=fixed, machine=known.machine, project=known.project, estimate=known.estimate)))
        assert not again, f"after its own fix: {again[0].message}"


def assert_readable(finding: Finding) -> None:
    for message in (finding.message, finding.fix.message if finding.fix else Message("")):
        assert "{" not in str(message)
        assert "None" not in str(message)


@pytest.mark.parametrize("id", sorted(RULES))
def test_every_rule_has_each_kind_of_case(id: str) -> None:
    kinds = [outcome(case) for case in CASES.get(id, [])]
    assert set(kinds) == set(OUTCOMES)


def test_the_issues_rules_are_there_and_nothing_else_has_cases() -> None:
    assert len(RULES) >= 35
    assert CASES.keys() == RULES.keys()


@pytest.mark.parametrize("base", BASES)
def test_the_bases_have_no_findings(base: str) -> None:
    found = check(facts({"base": base}), rules=RULES.values())
    assert [(f.rule, str(f.message)) for f in found] == []


@pytest.mark.parametrize(
    "plan",
    [
        BASES["gpu"]["plan"],
        BASES["cpu"]["plan"],
        {
            **BASES["cpu"]["plan"],
            "strategy.kind": "deepspeed",
            "strategy.zero_stage": 2,
            "strategy.offload_optimizer_device": "cpu",
            "data.num_workers": 8,
            "tracking.log_with": "wandb",
            "precision.mixed_precision": "bf16",
        },
    ],
)
def test_unknown_facts_make_no_findings(plan: dict[str, Any]) -> None:
    """Nothing is known of interpreter, disks, GPUs' capability or data; a rule must not take that for a fault."""
    gpus = [{"index": i, "name": "a GPU", "memory_bytes": 80 * 2**30} for i in range(8)]
    unknown = {"probed": False, "gpus": gpus, "driver_version": "570", "cpu": {"usable_cores": 8}}
    nobody = records.build(Machine, {**unknown, "interpreter": {"python": "python"}})
    for machine in (nobody, records.build(Machine, unknown), None):
        for project in (Project(folder="."), None):
            known = Facts(plan=plans.with_changes(BASE, plan), machine=machine, project=project)
            assert [f.rule for f in check(known, rules=RULES.values())] == []


def test_rules_without_facts_say_nothing() -> None:
    assert check(Facts(), rules=RULES.values()) == ()
    bare = Machine(interpreter=Interpreter(python="python"))
    assert [f.rule for f in check(Facts(machine=bare), rules=RULES.values())] == []


def test_manuals_have_all_their_parts() -> None:
    for rule in RULES.values():
        parts = [line.partition(":")[0] for line in rule.manual.splitlines()]
        assert [p for p in parts if p in ("Without it", "Why", "Instead", "Source")] == [
            "Without it",
            "Why",
            "Instead",
            "Source",
        ], rule.id
        assert rule.summary.endswith("."), rule.id
        assert rule.manual.splitlines()[1] == "", rule.id


def test_fields_are_keys_of_the_plan_or_parts_of_the_surroundings() -> None:
    for rule in RULES.values():
        assert rule.field in plans.fields() or rule.field in ("python", "project"), rule.id


def test_ids_belong_to_their_subject() -> None:
    modules = {
        "1": {"environment", "packages", "colossalai", "compilation", "adapters", "optimizers"},
        "2": {"precision", "colossalai", "compilation"},
        "3": {"sharding", "offload", "memory", "colossalai", "optimizers"},
        "4": {"equation", "evaluation", "optimizers", "schedule"},
        "5": {"checkpoint", "data", "generated_files", "adapters", "attention", "uploads", "unread"},
        "6": {"cluster", "machines", "jobs"},
    }
    for rule in RULES.values():
        assert rule.check.__module__.rpartition(".")[2] in modules[rule.id[2]]


def test_a_plan_may_ignore_a_rule() -> None:
    known = facts({"plan": {"optimizer.gradient_clipping": 0, "ignore": {"TW416": "measured: norms stay small"}}})
    assert check(known, rules=RULES.values()) == ()
    assert check(facts({"plan": {"optimizer.gradient_clipping": 0}}), rules=RULES.values(), ignore=["TW4"]) == ()


def test_errors_come_first() -> None:
    found = check(facts({"plan": {"optimizer.gradient_clipping": 0, "strategy.kind": "single"}}), rules=RULES.values())
    assert [f.level for f in found] == [Level.ERROR, Level.HINT]


def test_an_id_is_taken_once_and_every_rule_has_a_manual() -> None:
    taken = rules.load()[0]

    def told() -> Iterator[Violation]:
        """A manual."""
        yield from ()

    with pytest.raises(ValueError, match=f"{taken.id} is taken by {taken.check.__name__}"):
        rules.rule(taken.id, level=Level.HINT, field="seed")(told)
    told.__doc__ = None
    with pytest.raises(ValueError, match="has no docstring"):
        rules.rule("TW099", level=Level.HINT, field="seed")(told)
    assert "TW099" not in rules.REGISTRY


def test_what_generating_again_mends_is_known_by_its_number() -> None:
    fixed = {rule.id for rule in rules.of_plans() if rule.check.__module__.endswith(".generated_files")}
    assert fixed == {rule.id for rule in rules.load() if rule.id.startswith(rules.GENERATED_FILES)}
