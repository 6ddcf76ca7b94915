"""The rules on training scripts against their cases in tests/lint/*.yaml, and correct loops against all of them.

A case is a script that `fails`, `passes` or `almost` fails; `prelude` names what stands above it. `# <-` marks lines
that are found, `says` stands in the first message, `fix` in its remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_script
import yaml_cases
from plans import BASE

from trainwiz import plan as plans
from trainwiz import rules, script
from trainwiz.finding import Finding
from trainwiz.render import script as programs
from trainwiz.rules.registry import Facts, Rule

HERE = Path(__file__).parents[1] / "lint"
RULES = {rule.id: rule for rule in rules.of_scripts()}
PRELUDES = yaml_cases.read(HERE / "preludes.yaml")
OUTCOMES = ("fails", "passes", "almost")


def read_cases() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(HERE.glob("*.yaml")):
        for id, cases in (yaml_cases.read(file) if file.stem != "preludes" else {}).items():
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


def text_of(case: dict[str, Any]) -> str:
    return PRELUDES["_imports"] + PRELUDES[case.get("prelude", "accelerate")] + case[outcome(case)]


def found_by(rule: Rule, text: str) -> list[Finding]:
    return sorted(rule(Facts(script=script.read("train.py", text))), key=lambda f: f.place.line if f.place else 0)


@pytest.mark.parametrize(("rule", "case"), list(each_case()))
def test_case(rule: Rule, case: dict[str, Any]) -> None:
    text = text_of(case)
    found = found_by(rule, text)
    marked = [i for i, line in enumerate(text.splitlines(), start=1) if "# <-" in line]
    assert [f.place.line for f in found if f.place] == marked, [str(f.message) for f in found]
    assert bool(marked) == (outcome(case) == "fails")
    if found:
        assert case["says"] in str(found[0].message)
        assert found[0].fix is not None
        assert case.get("fix", "") in str(found[0].fix.message)


@pytest.mark.parametrize("id", sorted(RULES))
def test_every_rule_has_each_kind_of_case(id: str) -> None:
    assert {outcome(case) for case in CASES.get(id, [])} == set(OUTCOMES)


def test_the_issues_rules_are_there() -> None:
    assert len(RULES) >= 25
    assert CASES.keys() == RULES.keys()
    assert all(rule.needs == ("script",) and rule.field == "script" for rule in RULES.values())


def test_every_finding_has_a_place_and_readable_words() -> None:
    for case in (case for cases in CASES.values() for case in cases):
        for finding in rules.check(Facts(script=script.read("train.py", text_of(case))), rules=RULES.values()):
            assert finding.place is not None
            assert finding.fix is not None
            assert "{" not in str(finding.message) + str(finding.fix.message)


def test_no_remedy_names_an_engine_that_the_script_does_not_use() -> None:
    remedies = []
    for id, case in ((id, case) for id, cases in CASES.items() for case in cases):
        text = text_of(case)
        if "accelerat" not in text:
            remedies += [(id, str(f.fix.message)) for f in found_by(RULES[id], text) if f.fix]
    assert len(remedies) > 200
    # A Trainer has an accelerator of its own.
    assert not [each for each in remedies if re.search(r"(?<!self\.)accelerator\.", each[1])]


@pytest.mark.parametrize(
    ("prelude", "condition", "device", "silent"),
    [
        ("accelerate", "accelerator.is_main_process", "accelerator.device", "not accelerator.is_local_main_process"),
        (
            "deepspeed",
            "torch.distributed.get_rank() == 0",
            'torch.device("cuda", ',
            "torch.distributed.get_rank() != 0",
        ),
        ("ddp", "rank == 0", 'torch.device("cuda", ', "torch.distributed.get_rank() != 0"),
    ],
)
def test_remedies_are_in_the_words_of_the_engine(prelude: str, condition: str, device: str, silent: str) -> None:
    backward = {"accelerate": "accelerator.backward({})", "deepspeed": "engine.backward({})", "ddp": "{}.backward()"}
    known = '    if rank == 0:\n        print("seen")\n' if prelude == "ddp" else ""
    text = f"""
for batch in tqdm(loader):
    {backward[prelude].format("model(batch.to('cuda:0'))")}
{known}    torch.save(model.state_dict(), "model.pt")
"""
    found = rules.check(
        Facts(script=script.read("train.py", text_of({"prelude": prelude, "fails": text}))), rules=RULES.values()
    )
    remedies = {f.rule: str(f.fix.message) for f in found if f.fix}
    assert condition in remedies["TW765"]
    assert device in remedies["TW760"]
    assert silent in remedies["TW762"]


def test_manuals_have_all_their_parts() -> None:
    for rule in RULES.values():
        parts = [line.strip().partition(":")[0] for line in rule.manual.splitlines()]
        assert [p for p in parts if p in ("Without it", "Why", "Instead", "Source")] == [
            "Without it",
            "Why",
            "Instead",
            "Source",
        ], rule.id
        assert rule.summary.endswith("."), rule.id


def everything_found(text: str) -> list[str]:
    found = rules.check(Facts(script=script.read("train.py", text)), rules=RULES.values())
    return [f"{f.rule} {f.place.line if f.place else 0}: {f.message}" for f in found]


RIGHT = sorted((HERE / "right").glob("*.py"))


@pytest.mark.parametrize("file", RIGHT, ids=[file.stem for file in RIGHT])
def test_right_loops_of_every_style_are_left_alone(file: Path) -> None:
    assert everything_found(file.read_text()) == []


def test_right_loops_are_understood() -> None:
    """Silence counts only where the loop was seen."""
    kinds = {b.by for file in RIGHT for b in script.read(file.name, file.read_text()).training.backwards}
    assert kinds == {"Accelerator", "DeepSpeedEngine", "Booster", "GradScaler", "Tensor"}
    by_hand = [file.stem for file in RIGHT if script.read(file.name, file.read_text()).training.windows]
    assert by_hand == ["colossalai_booster", "ddp", "plain"]


def test_generated_programs_are_left_alone() -> None:
    settings = [{**one, **rest} for one in test_script.STRATEGIES for rest in test_script.REST] + test_script.TASKS
    wanted = [plans.with_changes(BASE, values) for values in settings]
    texts = {a.text for plan in wanted for a in programs.scripts(plan, test_script.TEMPLATES)}
    assert len(texts) > 30
    loops = 0
    for text in texts:
        assert everything_found(text) == []
        loops += bool(script.read("train.py", text).training.backwards)
    assert loops > 10
