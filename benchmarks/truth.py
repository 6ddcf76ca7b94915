"""How often the advice is right: `python benchmarks/truth.py` counts it over all labeled cases of the tests.

Each case says what must be found in it, or that nothing is wrong. Recall is the share of what is wrong that was found;
precision is the share of what was found that is wrong. The table goes to stdout and into docs/truth.md.

What was once reached is a floor, in tests/truth/floors.json: a run raises it, and a test fails below it. Nothing but an
edit of that file lowers a number.

The cases in tests/truth/ are whole scripts with one planted bug each, and the same script fixed. Those of the rules
and the logs are the tests' own: they were written with the rules, so they say what is promised, not how it fares on
scripts that nobody here has seen.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("", "rules", "render", "diagnose")]

import test_configurations  # noqa: E402
import test_diagnose  # noqa: E402
import test_lint  # noqa: E402
import test_rules  # noqa: E402
import yaml_cases  # noqa: E402

from trainwiz import rules, script  # noqa: E402
from trainwiz.diagnose import of_log  # noqa: E402
from trainwiz.finding import Finding, Level  # noqa: E402
from trainwiz.rules.registry import Facts  # noqa: E402

PLANTED = ROOT / "tests" / "truth" / "lint"
PAGE = ROOT / "docs" / "truth.md"
FLOORS = ROOT / "tests" / "truth" / "floors.json"
BEGIN, END = "<!-- written by benchmarks/truth.py -->", "<!-- end -->"


@dataclass(kw_only=True)
class Score:
    """Counts over the cases of one command."""

    cases: int = 0
    wrong: int = 0
    """Cases with something to be found."""
    found: int = 0
    """Those in which it was found."""
    false: int = 0
    """Findings of something that is not wrong."""

    def add(self, *, wrong: bool, found: bool, false: int) -> None:
        self.cases += 1
        self.wrong += wrong
        self.found += wrong and found
        self.false += false

    @property
    def recall(self) -> float:
        return self.found / self.wrong

    @property
    def precision(self) -> float:
        return self.found / (self.found + self.false)

    def numbers(self) -> dict[str, float]:
        """What a release may not lower."""
        return {"cases": self.cases, "recall": round(self.recall, 4), "precision": round(self.precision, 4)}


@dataclass(frozen=True)
class Planted:
    """A script with one bug, and the same without it."""

    style: str
    bug: str
    finds: tuple[str, ...]
    """The rule that must find it, and those that may say more of it."""
    broken: str
    fixed: str


def planted() -> Iterator[Planted]:
    for file in sorted(PLANTED.glob("*.yaml")):
        for case in yaml_cases.read(file):
            broken, fixed = _side(case["script"], "#+", "#-"), _side(case["script"], "#-", "#+")
            yield Planted(file.stem, case["bug"], tuple(case["finds"].split()), broken, fixed)


def _side(text: str, dropped: str, kept: str) -> str:
    """One of the two scripts: without the lines that end in one mark, and with those that end in the other."""
    lines = [line.rstrip() for line in text.splitlines() if not line.rstrip().endswith(dropped)]
    return "".join(line.removesuffix(kept).rstrip() + "\n" for line in lines)


def findings(text: str) -> list[Finding]:
    """What lint says of a script, without hints."""
    facts = Facts(script=script.read("train.py", text))
    return [f for rule in rules.of_scripts() for f in rule(facts) if f.level is not Level.HINT]


def of_planted() -> Score:
    score = Score()
    for case in planted():
        ids = [finding.rule for finding in findings(case.broken)]
        score.add(wrong=True, found=case.finds[0] in ids, false=sum(id not in case.finds for id in ids))
        score.add(wrong=False, found=False, false=len(findings(case.fixed)))
    return score


def of_lint() -> Score:
    score = Score()
    for id, cases in test_lint.CASES.items():
        for case in cases:
            found = bool(test_lint.found_by(test_lint.RULES[id], test_lint.text_of(case)))
            wrong = test_lint.outcome(case) == "fails"
            score.add(wrong=wrong, found=found, false=int(found and not wrong))
    return score


def of_plans() -> Score:
    score = Score()
    for id, cases in test_rules.CASES.items():
        for case in cases:
            outcome = test_rules.outcome(case)
            found = bool(list(test_rules.RULES[id](test_rules.facts(case[outcome]))))
            score.add(wrong=outcome == "fails", found=found, false=int(found and outcome != "fails"))
    return score


def of_files(judged_by: str) -> Score:
    """The cases of the rules in one folder of trainwiz."""
    score = Score()
    cases = [case for case in test_configurations.CASES if test_configurations.RULES[case[0]].folder == judged_by]
    with tempfile.TemporaryDirectory() as folder:
        for i, (id, outcome, _, case) in enumerate(cases):
            files, _ = test_configurations.files_of(case, outcome, Path(folder) / str(i))
            found = bool(files.findings([id], []))
            score.add(wrong=outcome == "fails", found=found, false=int(found and outcome != "fails"))
    return score


def of_logs() -> Score:
    score = Score()
    for name, text in test_diagnose.LOGS.items():
        found = of_log(text, log=f"{name}.log")
        wrong = name in test_diagnose.FAILED
        said = found.name if found is not None and found.known else None
        right = said == name.partition("--")[0]
        score.add(wrong=wrong, found=right, false=int(said is not None and not (wrong and right)))
    return score


def of_explained() -> Score:
    """Logs without a known cause, of which the exception's words say what is wrong."""
    score = Score()
    for case in test_diagnose.EXPLAINED.values():
        found = of_log(case["log"], log="x")
        said = found is not None and case["says"] in str(found.cause)
        score.add(wrong=True, found=said, false=int(found is not None and found.known))
    return score


COMMANDS = {
    "`lint`: scripts with one planted bug, and fixed": of_planted,
    "`lint`: cases of its rules": of_lint,
    "`check`: plans and machines": of_plans,
    "`check`: files of accelerate and DeepSpeed": functools.partial(of_files, "files"),
    "`check`: files of training tools and jobs": functools.partial(of_files, "tools"),
    "`diagnose`: logs": of_logs,
    "`diagnose`: logs without a known cause, explained": of_explained,
}


def counted() -> dict[str, Score]:
    return {name: count() for name, count in COMMANDS.items()}


def floors() -> dict[str, dict[str, float]]:
    """The numbers that each row of the table once reached."""
    return json.loads(FLOORS.read_text()) if FLOORS.exists() else {}


def raised(before: Mapping[str, Mapping[str, float]], scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """The floors after a count: each number as high as it ever was."""
    return {
        name: {key: max(value, before.get(name, {}).get(key, 0)) for key, value in score.numbers().items()}
        for name, score in scores.items()
    }


def table(scores: Mapping[str, Score]) -> str:
    lines = [
        "| command and cases | cases | something wrong | found | false | recall | precision |",
        "|---|" + "---:|" * 6,
    ]
    for name, s in scores.items():
        lines.append(f"| {name} | {s.cases} | {s.wrong} | {s.found} | {s.false} | {s.recall:.1%} | {s.precision:.1%} |")
    return "\n".join(lines)


def main() -> None:
    """Count, print, write; and raise the floors."""
    scores = counted()
    shown = table(scores)
    print(shown)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{shown}\n\n{END}{rest.partition(END)[2]}")
    FLOORS.write_text(json.dumps(raised(floors(), scores), indent=2) + "\n")


if __name__ == "__main__":
    main()
