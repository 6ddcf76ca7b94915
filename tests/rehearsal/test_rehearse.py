"""`trainwiz rehearse`: the report card on real projects, and that it names what is wrong with a planted one."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plans
import pytest
import warm
from projects import REGRESSION, STANDIN, make, trainwiz

from trainwiz.rehearsal import comparison, schedule, setup
from trainwiz.rehearsal.check import Check
from trainwiz.rehearsal.result import RunResult
from trainwiz.render import training_files
from trainwiz.store import templates
from trainwiz.workflows.rehearse import rehearsal

BUGS = {
    "summed_loss": (
        '(errors.square() * batch["weights"]).sum()',
        '(errors.square() * batch["weights"]).mean()',
        "loss_sum averages",
    ),
    "padding": ('errors.square() * batch["weights"]', "errors.square()", "padding samples affect the training"),
    "samples": (
        "return self.inputs[index], ",
        "return self.inputs[index] + 0.01 * torch.randn(16), ",
        "is different each time",
    ),
    "randomness": (
        "errors = model(inputs).float()",
        "errors = __import__('random').random() * model(inputs).float()",
        "random or numpy",
    ),
    "gradients": ("self.head = ", "self.unused = nn.Linear(2, 2)\n        self.head = ", "unused.weight"),
    "no_waiting": ("    errors = ", "    assert inputs.sum().item() < 1e9\n    errors = ", "item at task.py:"),
}
"""By the check that names it: what of the custom task is replaced, by what, and words of the finding."""


@pytest.mark.parametrize(
    ("tokenizer", "file", "follows"),
    [
        ("org/model", "tokenizer.json", True),
        ("org/model", "config.json", False),
        ("org/other", "tokenizer.json", False),
    ],
)
def test_a_small_model_of_ones_own_brings_its_tokenizer(
    tokenizer: str, file: str, follows: bool, tmp_path: Path
) -> None:
    """The remedy where the hub is out of reach: the plan's own tokenizer is there, too."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / file).touch()
    fields = {"model_name": "org/model", "tokenizer_name": tokenizer}
    environment: Any = SimpleNamespace(folder=tmp_path)
    small: Any = SimpleNamespace(by_hand={"model_name": "small"})
    values, problem = rehearsal.small_model(environment, small, fields)
    assert (values, problem) == ({"tokenizer_name": "small"} if follows else {}, None)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("rehearse") / "project", {**REGRESSION, "schedule.n_steps": 40})


def card(folder: Path, *arguments: str, code: int = 0, cold: bool = False) -> dict[str, dict[str, Any]]:
    words, env = ("rehearse", str(folder), "--json", *arguments), {"TMPDIR": str(folder.parent)}
    if cold:
        done = trainwiz(*words, env=env, timeout=600)
    else:
        done = warm.trainwiz(folder / "train.py", *words, *warm.option(), env=env, timeout=600)
    assert done.code == code, done.err
    told = json.loads(done.out)
    assert told["passed"] is (code == 0)
    return {check["name"]: check for check in told["checks"]}


def planted(project: Path, before: str, after: str, into: Path) -> Path:
    """The project with one line of its task changed, as a user might."""
    into.mkdir()
    for file in project.iterdir():
        if file.is_file():
            (into / file.name).write_bytes(file.read_bytes())
    text = (into / "task.py").read_text()
    assert text.count(before) == 1
    (into / "task.py").write_text(text.replace(before, after))
    return into


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_in_the_task_is_named(name: str, project: Path, tmp_path: Path) -> None:
    before, after, words = BUGS[name]
    folder = planted(project, before, after, tmp_path / "planted")
    checks = card(folder, "--task", code=0 if name == "no_waiting" else 1)
    wrong = {n: c for n, c in checks.items() if c["verdict"] != "passed"}
    assert name in wrong
    assert words in wrong[name]["found"]
    assert wrong[name]["fix"]


def test_a_task_that_stops_is_shown_with_its_line(project: Path, tmp_path: Path) -> None:
    folder = planted(project, "return Net(config)", "return Net(config.hidden)", tmp_path / "planted")
    line = (folder / "task.py").read_text().split("return Net(config.hidden)")[0].count("\n") + 1
    found = card(folder, "--task", code=1, cold=True)["task"]["found"]
    assert found.startswith(f"build_model failed at task.py:{line}: AttributeError")


def test_a_conflict_that_is_left_is_named(project: Path, tmp_path: Path) -> None:
    both = "\n<<<<<<< yours\nreturn Net(config)\n=======\nreturn Net(config.hidden)\n>>>>>>> trainwiz"
    folder = planted(project, "return Net(config)", both, tmp_path / "planted")
    done = trainwiz("rehearse", str(folder), "--task")
    assert done.code == 2
    assert re.search(r"task\.py:\d+ still contains both sides of a conflict", done.err), done.err


@pytest.mark.train
def test_a_good_project_passes(project: Path) -> None:
    checks = card(project)
    assert {check["verdict"] for check in checks.values()} == {"passed"}
    assert set(checks) == {
        "samples",
        "randomness",
        "summed_loss",
        "padding",
        "gradients",
        "no_waiting",
        "schedule",
        "training",
        "once_per_epoch",
        "communication",
        "checkpoints",
        "resume",
        "split",
        "evaluation",
    }
    assert checks["resume"]["numbers"]["resumed_from"] == 4
    assert checks["resume"]["numbers"]["whole"] == checks["resume"]["numbers"]["resumed"] != ""
    assert max(checks["split"]["numbers"]["relative"].values()) <= 1e-5
    sizes = checks["communication"]["numbers"]
    assert set(sizes["sent_bytes"].values()) == {sizes["gradient_bytes"]}
    assert checks["schedule"]["numbers"]["total"] == 40


@pytest.mark.train
def test_what_only_the_runs_can_show_is_shown(project: Path, tmp_path: Path) -> None:
    """State that no checkpoint holds: each look at task.py by itself is fine, resuming is not."""
    before, after = (
        "        return self.head(self.blocks(",
        (
            "        self.calls = getattr(self, 'calls', 0) + self.training * torch.is_grad_enabled()\n"
            "        inputs = inputs * (1 + 1e-3 * (self.calls > 11))\n"
            "        return self.head(self.blocks("
        ),
    )
    checks = card(planted(project, before, after, tmp_path / "planted"), code=1)
    failed = {name for name, check in checks.items() if check["verdict"] == "failed"}
    assert {"resume", "split"} <= failed <= {"resume", "split", "evaluation"}
    assert "after resuming" in checks["resume"]["found"]


@pytest.mark.train
def test_a_plan_for_gpus_is_rehearsed_here(tmp_path: Path) -> None:
    """FSDP on 8 GPUs in bf16: its own script, over two CPU ranks in fp32."""
    folder = tmp_path / "project"
    machine = str(STANDIN.parent / "machines" / "8xh100.json")
    values = {
        "task": "custom",
        "strategy.kind": "fsdp",
        "machine.num_processes": 8,
        "precision.mixed_precision": "bf16",
    }
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    made = trainwiz("init", str(folder), "--defaults", "--yes", "--machine", machine, *settings)
    assert made.code == 0, made.err
    checks = card(folder, "--updates", "4")
    assert {check["verdict"] for check in checks.values()} == {"passed"}
    assert checks["resume"]["numbers"]["whole"]


def test_a_setting_that_the_script_does_not_have(project: Path) -> None:
    done = trainwiz("rehearse", str(project), "--", "--hidden", "8")
    assert done.code == 2
    assert "hidden: no such field in Config or TaskConfig" in done.err
    assert trainwiz("rehearse", str(project), "--", "hidden_size").code == 2
    assert "is set by the rehearsal itself" in trainwiz("rehearse", str(project), "--", "--n_steps", "8").err
    wrong = trainwiz("rehearse", str(project), "--", "--hidden_size=many").err
    assert "hidden_size: many does not have the same type as 128" in wrong


# What follows judges without running anything.


PLAN = plans.make(strategy__kind="ddp", machine__num_processes=2)


def sources() -> dict[str, str]:
    return {a.path: a.text for a in training_files(PLAN, templates.load()) if a.path.endswith(".py")}


def test_fields_are_read_from_the_files_and_made_small() -> None:
    fields = setup.declared_fields(sources())
    small = setup.small_copy(PLAN, fields, by_hand={})
    assert fields["hidden_size"] == 128
    assert small.values["hidden_size"] == 64
    assert small.values["num_attention_heads"] == small.values["num_key_value_heads"] == 4
    assert set(small.values) <= set(fields)
    assert small.main.real == small.other.real
    assert small.main.world != small.other.world
    assert small.samples % small.real_batch
    arguments = setup.small_copy(PLAN, fields, by_hand={"hidden_size": "32"}).arguments(small.runs()[0], "out")
    assert arguments[-2:] == ["--hidden_size", "32"]
    assert arguments.count("--hidden_size") == 1


def trace(**changes: object) -> dict[str, Any]:
    """A good cosine over 10 updates, 2 of them warm-up, as the child process tells it."""
    rates = [0.5, 1.0, *(0.5 * (1 + math.cos(math.pi * u / 8)) for u in range(8))]
    told = {"total": 10, "warmup": 2, "kind": "cosine", "learning_rate": 1.0, "after": 0.0}
    return {**told, "rates": [[u, r] for u, r in enumerate(rates, start=1)], **changes}


def raised(rates: list[list[float]], update: int, rate: float) -> list[list[float]]:
    return [[u, rate if u == update else r] for u, r in rates]


def test_a_good_schedule_passes() -> None:
    assert schedule.check(trace(), estimated=False).verdict == "passed"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmup": 10}, "but the training has only"),
        ({"learning_rate": 2.0}, "the highest learning rate is 1, but the plan has 2"),
        ({"rates": raised(trace()["rates"], 10, -0.2)}, "at update 10, the learning rate is -0.2, below"),
        ({"rates": raised(trace()["rates"], 7, 0.9)}, "should rise until update 2 and fall afterwards"),
        ({"rates": raised(trace()["rates"], 1, 1.0)}, "should rise until update 2"),
        ({"after": 0.2}, "below its final value"),
    ],
)
def test_a_wrong_schedule_is_named(changes: dict[str, Any], words: str) -> None:
    check = schedule.check(trace(**changes), estimated=False)
    assert (check.verdict, words in str(check.found)) == ("failed", True), str(check.found)


def runs(**changes: dict[str, Any]) -> dict[str, Check]:
    """Checks of good runs, changed by name of the run."""
    small = setup.small_copy(PLAN, setup.declared_fields(sources()), by_hand={})
    planned = {run.name: run for run in small.runs()}
    records = [{"update": u, "loss": 3.0 / u} for u in range(1, 7)]
    order = [[i, i + 1] for i in range(0, 20, 2)] + [[20, -1], [-1, -1]]
    notes = [
        {
            "indices": [order[rank::2] * 2],
            "sent": [[2 * u, 100] for u in range(1, 7)],
            "gradient_bytes": 100,
            "micro_batches": 12,
        }
        for rank in (0, 1)
    ]
    good: dict[str, Any] = {
        "exit_code": 0,
        "seconds": 1.0,
        "records": records,
        "weights": "abc",
        "notes": notes,
        "checkpoints": ["checkpoint-00000004", "checkpoint-00000006"],
    }
    own = {"killed": {"exit_code": 137}, "resumed": {"notes": [{"micro_batches": 4}]}}
    results = {n: RunResult(run=run, **{**good, **own.get(n, {}), **changes.get(n, {})}) for n, run in planned.items()}
    return {check.name: check for check in comparison.checks(small, results)}


def test_good_runs_pass() -> None:
    checks = runs()
    assert {check.verdict for check in checks.values()} == {"passed"}
    assert len(checks) == 6


@pytest.mark.parametrize(
    ("run", "changes", "name"),
    [
        ("whole", {"records": [{"update": 1, "loss": math.nan}]}, "training"),
        ("whole", {"exit_code": 3}, "run_whole"),
        ("killed", {"exit_code": 0}, "run_killed"),
        ("whole", {"damaged": ["checkpoint-00000004"]}, "checkpoints"),
        ("whole", {"checkpoints": ["checkpoint-00000004"]}, "checkpoints"),
        ("whole", {"weights": ""}, "checkpoints"),
        ("resumed", {"weights": "abd"}, "resume"),
        ("resumed", {"notes": [{"micro_batches": 12}]}, "resume"),
        ("resumed", {"records": [{"update": 6, "loss": 0.51}]}, "resume"),
        ("split", {"records": [{"update": u, "loss": 3.0 / u + (u == 4) * 1e-4} for u in range(1, 7)]}, "split"),
    ],
)
def test_runs_that_differ_are_named(run: str, changes: dict[str, Any], name: str) -> None:
    failed = [check.name for check in runs(**{run: changes}).values() if check.verdict == "failed"]
    assert name in failed


def test_a_sample_that_is_taken_twice_and_bytes_that_are_sent_twice_are_seen() -> None:
    twice = {"indices": [[[0, 1]] * 12], "sent": [[u, 100] for u in range(1, 13)], "gradient_bytes": 100}
    checks = runs(whole={"notes": [twice, {"indices": [[[2, 3]] * 12]}]})
    assert checks["once_per_epoch"].verdict == checks["communication"].verdict == "failed"


@pytest.mark.parametrize("words", [20, 120])
def test_conversations_are_rehearsed_at_a_length_that_keeps_answers(words: int, tmp_path: Path) -> None:
    """64 tokens may hold a system prompt and no answer: nothing would be left to train or evaluate on."""
    rows = [
        {"messages": [{"role": "user", "content": "why " * words + str(n)}, {"role": "assistant", "content": str(n)}]}
        for n in range(60)
    ]
    data = tmp_path / "own.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    own = {"task": "sft", "data.train": str(data), "data.eval": "10%", "batch.sequence_length": 600}
    found = card(make(tmp_path / "project", own), "--task")
    assert found["samples"]["verdict"] == "passed"
