"""`trainwiz check` and `trainwiz explain`, from their arguments to what they print and their exit codes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from plans import BASE, completed

from trainwiz import plan as plans
from trainwiz import rules
from trainwiz.cli import run
from trainwiz.render import project as render
from trainwiz.rules.registry import check
from trainwiz.store import artifacts, machines, templates
from trainwiz.ui import manual
from trainwiz.workflows import facts

REPOSITORY = Path(__file__).parents[2]
CPU = str(Path(__file__).parents[1] / "machines" / "cpu.json")
H100 = str(Path(__file__).parents[1] / "machines" / "8xh100.json")
CLEAN = {"batch.real_batch_size": 32, "batch.per_device_batch_size": 8, "batch.gradient_accumulation_steps": 4}


def overwrite(conflict: artifacts.Conflict) -> Literal["overwrite"]:
    del conflict
    return "overwrite"


def make(folder: Path, **changes: Any) -> Path:
    """A project as init writes it."""
    plan = plans.with_changes(BASE, {**CLEAN, **{key.replace("__", "."): value for key, value in changes.items()}})
    artifacts.write(folder, render(plan, templates.load()), overwrite)
    return folder


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", *arguments, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return code, answer


def rule_ids(answer: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in answer["findings"]]


def test_a_clean_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = checked(capsys, str(make(tmp_path)), "--machine", CPU)
    assert (code, answer) == (0, {"findings": [], "errors": 0, "warnings": 0})
    assert run(["check", str(tmp_path), "--machine", CPU]) == 0
    assert capsys.readouterr().out == "no findings\n"


def test_findings_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(
        tmp_path,
        batch__real_batch_size=100,
        batch__gradient_accumulation_steps=1,
        optimizer__gradient_clipping=0,
        checkpoint__checkpoints_total_limit=1,
    )
    code, answer = checked(capsys, str(tmp_path), "--machine", CPU)
    assert code == 1
    assert (answer["errors"], answer["warnings"]) == (1, 1)
    assert [(f["rule"], f["level"]) for f in answer["findings"]] == [
        ("TW401", "error"),
        ("TW502", "warning"),
        ("TW416", "hint"),
    ]
    first = answer["findings"][0]
    assert first["where"] == "batch.real_batch_size"
    assert first["message"].startswith("100 is not divisible by 8 × 1 = 8; nearest: 96 (accumulation 12) or 104")
    assert "batch.real_batch_size to 96" in first["fix"]
    assert first["changes"]["batch.real_batch_size"] == 96


def test_findings_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, batch__real_batch_size=100, batch__gradient_accumulation_steps=1)
    assert run(["check", str(tmp_path), "--machine", CPU]) == 1
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "TW401 error batch.real_batch_size"
    assert lines[1].strip().startswith("100 is not divisible by 8")
    assert lines[2].strip().startswith("→ set batch.real_batch_size to 96")
    assert lines[-2:] == ["errors: 1, warnings: 0, hints: 0", "details of a rule: trainwiz explain TW401"]
    assert "\x1b" not in shown.out


def test_findings_of_several_projects_say_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "one")
    wrong = make(tmp_path / "two", batch__real_batch_size=100, batch__gradient_accumulation_steps=1)
    (wrong / "train.py").write_text("# mine\n")
    plan = wrong / "trainwiz.yaml"
    line = 1 + [text.strip().startswith("real_batch_size:") for text in plan.read_text().splitlines()].index(True)
    arguments = ["check", str(tmp_path / "one"), str(wrong), "--machine", CPU]
    assert run(arguments) == 1
    shown = capsys.readouterr().out
    assert f"{plan}:{line}:3: error TW401\n" in shown
    assert f"\n  {line} |   real_batch_size: 100" in shown
    assert f"{wrong / 'train.py'}:1:1: hint TW523 train.py\n" in shown
    assert run([*arguments, "--format", "github"]) == 1
    assert f"file={plan},line={line},col=3,title=TW401::" in capsys.readouterr().out
    answer = checked(capsys, *arguments[1:])[1]
    places = {(found["rule"], found["file"], found["line"]) for found in answer["findings"]}
    assert places >= {("TW401", str(plan), line), ("TW523", str(wrong / "train.py"), 1)}
    assert checked(capsys, str(wrong), "--machine", CPU)[1]["findings"][0]["file"] == str(plan)


def test_warnings_and_hints_do_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, optimizer__gradient_clipping=0, checkpoint__checkpoints_total_limit=1)
    assert checked(capsys, str(tmp_path), "--machine", CPU)[0] == 0


def test_rules_are_left_out_by_prefix_and_by_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, batch__real_batch_size=100, checkpoint__checkpoints_total_limit=1)
    project = [str(tmp_path), "--machine", CPU]
    assert rule_ids(checked(capsys, *project)[1]) == ["TW401", "TW502"]
    assert rule_ids(checked(capsys, *project, "--ignore", "tw4")[1]) == ["TW502"]
    assert rule_ids(checked(capsys, *project, "--ignore", "TW4", "--ignore", "TW502")[1]) == []
    make(tmp_path, batch__real_batch_size=100, ignore={"TW401": "the script pads"})
    assert checked(capsys, *project) == (0, {"findings": [], "errors": 0, "warnings": 0})


@pytest.mark.parametrize("word", ["", " ", "T", "4", "TW0", "TW4011", "batch"])
def test_an_ignore_that_means_no_rule(tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(make(tmp_path)), "--machine", CPU, "--ignore", word]) == 2
    assert "unknown rule" in capsys.readouterr().err


def test_a_plan_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without generated files there is nothing to compare."""
    file = tmp_path / "mine.yaml"
    file.write_text(completed("data: {train: corpus.txt, eval: null}\n"))
    (tmp_path / "corpus.txt").write_text("words " * 5000)
    assert rule_ids(checked(capsys, str(file), "--machine", CPU)[1]) == ["TW516"]


def test_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(
        tmp_path,
        machine__device="cuda",
        machine__num_processes=8,
        strategy__kind="ddp",
        precision__mixed_precision="bf16",
        batch__real_batch_size=64,
        batch__gradient_accumulation_steps=1,
    )
    assert checked(capsys, str(tmp_path), "--machine", H100)[0] == 0
    code, answer = checked(capsys, str(tmp_path), "--machine", CPU)
    assert code == 1
    assert rule_ids(answer) == ["TW104", "TW105"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("batch: {real_batch_size: many}", "real_batch_size"),
        ("batch: {real_batch: 8}", "did you mean"),
        ("batch: [", "not valid YAML"),
        ("- a\n- b\n", "keys with values"),
    ],
)
def test_plans_that_cannot_be_read(tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trainwiz.yaml").write_text(content)
    code, answer = checked(capsys, str(tmp_path), "--machine", CPU)
    assert (code, answer["errors"]) == (1, 1)
    (finding,) = answer["findings"]
    assert says in finding["message"]
    assert finding["rule"] in ("TW651", "TW690")
    assert (finding["file"], finding["line"]) == (str(tmp_path / "trainwiz.yaml"), 1)


BROKEN = {
    "batch:\n\treal_batch_size: 8\n": ("2:1", "\n  2 |     real_batch_size: 8\n    | ^^^^\n"),
    "seed: 1\nbatch: {real_batch_sise: 8}\n": ("2:9", "    |         ^^^^^^^^^^^^^^^\n"),
    "seed: 1\nengine: torch\n": ("2:1", "\n  2 | engine: torch\n    | ^^^^^^\n"),
    "seed: 1\nseed: 2\n": ("2:1", "\n  2 | seed: 2\n    | ^^^^\n"),
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_plan_is_shown_with_a_caret(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, (at, excerpt) = tmp_path / "trainwiz.yaml", BROKEN[content]
    file.write_text(content)
    assert run(["check", str(tmp_path), "--machine", CPU]) == 1
    shown = capsys.readouterr().out
    assert f"{file}:{at}: error TW6" in shown
    assert excerpt in shown
    for arguments in (["launch", str(tmp_path)], ["init", str(tmp_path / "new"), "--answers", str(file), "--yes"]):
        assert run(arguments) == 2
        shown = capsys.readouterr().err
        assert excerpt in shown
        assert str(file) in shown


def test_a_broken_plan_beside_a_right_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "right", batch__real_batch_size=100)
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "trainwiz.yaml").write_bytes(b"name: caf\xe9\n")
    code, answer = checked(capsys, str(tmp_path / "right"), str(tmp_path / "wrong"), "--machine", CPU)
    assert (code, rule_ids(answer)) == (1, ["TW401", "TW651"])
    assert answer["findings"][1]["column"] == 10
    assert answer["findings"][0].keys() == answer["findings"][1].keys()
    assert run(["check", str(tmp_path / "wrong"), "--fix", "--yes"]) == 1


def test_nothing_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(tmp_path)]) == 2
    assert run(["check", str(tmp_path / "none")]) == 2
    assert run(["check", str(make(tmp_path)), "--machine", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_edited_and_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    for name in ("task.py", "accelerate.yaml", "README.md"):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n# mine\n")
    (tmp_path / "train.py").unlink()
    _, answer = checked(capsys, str(tmp_path), "--machine", CPU)
    assert [(f["rule"], f["where"]) for f in answer["findings"]] == [
        ("TW521", "train.py"),
        ("TW522", "accelerate.yaml"),
        ("TW523", "task.py"),
    ]


def test_a_plan_edited_after_its_files_were_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    plan, script = tmp_path / "trainwiz.yaml", tmp_path / "train.py"
    plan.write_text(plan.read_text() + "# a remark\n")
    assert checked(capsys, str(tmp_path), "--machine", CPU)[1]["findings"] == []
    plan.write_text(plan.read_text().replace("learning_rate: 0.0003", "learning_rate: 0.0005"))
    code, answer = checked(capsys, str(tmp_path), "--machine", CPU)
    assert (code, rule_ids(answer)) == (1, ["TW524"])
    assert answer["findings"][0]["where"] == "train.py"
    # The same change made in the script by hand leaves nothing to complain of but the edit itself.
    script.write_text(script.read_text().replace("learning_rate: float = 0.0003", "learning_rate: float = 0.0005"))
    assert rule_ids(checked(capsys, str(tmp_path), "--machine", CPU)[1]) == ["TW523"]


def test_a_newer_trainwiz_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Templates that render differently now are no mistake in the project."""
    texts = {
        name: text.replace('"""Train with accelerate', '"""Trained with') for name, text in templates.load().items()
    }
    artifacts.write(tmp_path, render(plans.with_changes(BASE, CLEAN), texts), overwrite)
    assert "Trained with" in (tmp_path / "train.py").read_text()
    assert checked(capsys, str(tmp_path), "--machine", CPU)[1]["findings"] == []


def test_a_port_that_is_taken_here(tmp_path: Path) -> None:
    here = facts.machine(machine_file=None, python=None, folder=str(tmp_path), wait=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        plan = plans.with_changes(
            BASE, {"machine.num_processes": 2, "strategy.kind": "ddp", "machine.main_process_port": port}
        )
        taken = facts.gather(plan, str(tmp_path), here)
        assert taken.project
        assert taken.project.port_in_use == port
        assert "TW617" in [f.rule for f in check(taken, rules=rules.load())]
        alone = facts.gather(plans.with_changes(plan, {"machine.num_processes": 1}), str(tmp_path), here)
        assert alone.project
        assert alone.project.port_in_use is None
        elsewhere = facts.gather(plan, str(tmp_path), machines.read(CPU))
        assert elsewhere.project
        assert elsewhere.project.port_in_use is None
    free = facts.gather(plan, str(tmp_path), here)
    assert free.project
    assert free.project.port_in_use is None


def test_gathers_what_the_plan_needs(tmp_path: Path) -> None:
    known = facts.gather(BASE, str(tmp_path), machines.read(CPU))
    assert known.estimate
    assert known.estimate.parameters == 869_760
    assert facts.gather(plans.with_changes(BASE, {"model.name": "org/model"}), str(tmp_path), None).estimate is None


def test_check_imports_nothing_heavy(tmp_path: Path) -> None:
    """In a process of its own, as a person starts it."""
    make(tmp_path, batch__real_batch_size=100)
    program = (
        "import sys\n"
        "from trainwiz.__main__ import main\n"
        "heavy = {'torch', 'accelerate', 'rich', 'jinja2', 'transformers', 'deepspeed', 'questionary'}\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "except SystemExit as done:\n"
        "    print(done.code, sorted({name.partition('.')[0] for name in sys.modules} & heavy))"
    )
    command = [sys.executable, "-c", program, "check", str(tmp_path), "--machine", CPU]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, env={**os.environ, "TRAINWIZ_LANG": "en"}
    )
    assert done.stdout.splitlines()[-1] == "1 []", done.stderr


def test_explains_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("TW401", "tw401"):
        assert run(["explain", word]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("TW401 (error, batch.real_batch_size)\n\nThe real batch must equal")
        for part in ("\n\nWithout it: ", "\n\nWhy: ", "\n\nInstead: ", "\n\nSource: "):
            assert part in shown
        assert max(map(len, shown.splitlines())) <= 100


def test_lists_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rules.load())
    assert run(["explain", "tw2"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in listed] == [rule.id for rule in rules.load() if rule.id.startswith("TW2")]


@pytest.mark.parametrize(("word", "near"), [("TW402x", "TW402"), ("402", "TW402"), ("TW499", "TW501"), ("foo", None)])
def test_an_unknown_rule(word: str, near: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word]) == 2
    said = capsys.readouterr().err
    assert f"unknown rule {word}" in said
    assert ("did you mean" in said) == bool(near)
    assert f"did you mean {near}?" in said or near is None


def test_explains_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "keys"]) == 0
    shown = capsys.readouterr().out
    for key, info in plans.fields().items():
        default = "decided by init" if info.is_required() else "default: .+"
        assert re.search(rf"^{re.escape(key)}: .+ \({default}\)$", shown, re.MULTILINE), key
    assert "precision.mixed_precision: no | fp16 | bf16 | fp8 (decided by init)" in shown
    assert "strategy.nvme_path: string | null (default: null)" in shown
    assert run(["explain", "batch.real_batch_size"]) == 0
    assert capsys.readouterr().out.startswith("batch.real_batch_size: integer (decided by init)")
    assert run(["explain", "batch.real_size"]) == 2
    assert "did you mean batch.real_batch_size?" in capsys.readouterr().err


def test_the_written_manual_is_fresh() -> None:
    assert (REPOSITORY / "docs" / "rules.md").read_text() == manual.markdown(rules.load()), "run `make docs`"
