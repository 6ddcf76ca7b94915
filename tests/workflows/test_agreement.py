"""The plan and the script say the same, or somebody says so: before a launch by the text, during it by the script."""

import json
from pathlib import Path
from typing import Any

import pytest
from plans import BASE
from projects import REGRESSION, make, metrics, trainwiz
from warm import launch

from trainwiz import plan as plans
from trainwiz.workflows.launch import project as launching

ALONE = {
    **REGRESSION,
    "machine.num_processes": 1,
    "strategy.kind": "single",
    "batch.per_device_batch_size": 16,
    "schedule.n_steps": 2,
    "schedule.n_warmup_steps": 0,
    "schedule.lr_scheduler_type": "constant",
    "optimizer.learning_rate": 1e-3,
    "data.eval": "",
}
PLANNED = "learning_rate: float = 0.001"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make(tmp_path / "project", ALONE)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def init(project: Path, *arguments: str, code: int = 0) -> str:
    done = trainwiz("init", str(project), "--defaults", "--yes", *arguments)
    assert done.code == code, done.err
    return done.err


def findings(project: Path) -> dict[str, list[dict[str, Any]]]:
    """By rule, without what the machine of the tests is blamed for."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(trainwiz("check", str(project), "--json").out)["findings"]:
        if one["rule"].startswith("TW52"):
            found.setdefault(one["rule"], []).append(one)
    return found


def command(project: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((project / "runs/latest/command.json").read_text())
    return record


# Before a launch, by the text


def test_a_kept_value_is_found_before_a_launch(project: Path) -> None:
    edit(project / "train.py", PLANNED, "learning_rate: float = 0.004")
    init(project, "--learning-rate", "0.002", "--on-conflict", "keep")
    assert "learning_rate: 0.002" in (project / "trainwiz.yaml").read_text()
    found = findings(project)
    assert found.keys() == {"TW523", "TW525"}
    [one] = found["TW525"]
    line = (project / "train.py").read_text()[: (project / "train.py").read_text().index("float = 0.004")].count("\n")
    assert one["message"] == (
        f"optimizer.learning_rate is 0.002 in the plan, but learning_rate is 0.004 in train.py:{line + 1}"
    )
    assert f"trainwiz update {project} --set optimizer.learning_rate=0.004" in one["fix"]
    refused = launch(project)
    assert refused.code == 1
    assert "TW525" in refused.err
    assert not (project / "runs").exists()


def test_the_remedy_ends_it(project: Path) -> None:
    edit(project / "train.py", PLANNED, "learning_rate: float = 0.004")
    assert findings(project).keys() == {"TW523", "TW525"}
    init(project, "--set", "optimizer.learning_rate=0.004")
    assert findings(project) == {}


def test_what_follows_from_the_plan_is_a_warning(tmp_path: Path) -> None:
    project = make(tmp_path / "project", {**ALONE, "task": "causal_lm"})
    edit(project / "task.py", "hidden_size: int = 128", "hidden_size: int = 256")
    [one] = findings(project)["TW526"]
    assert one["level"] == "warning"
    assert "hidden_size is 256 in task.py:" in one["message"]
    assert "the plan says 128" in one["message"]


def test_computed_values_are_left_to_the_run(project: Path) -> None:
    edit(project / "train.py", PLANNED, "learning_rate: float = 2 * 0.001")
    assert findings(project).keys() == {"TW523"}


def test_a_script_that_is_not_python_has_no_values(project: Path) -> None:
    (project / "train.py").write_text("class Config(:\n")
    assert findings(project).keys() == {"TW523"}


# Edits that are not about values stay, whatever the plan changes


def test_an_edited_script_follows_the_plan(project: Path) -> None:
    edit(project / "train.py", "    metrics = Metrics(", "    print('mine')\n    metrics = Metrics(")
    said = init(project, "--learning-rate", "0.002", "--steps", "3")
    assert "train.py: your edits were kept, and the plan's new values were set" in said
    text = (project / "train.py").read_text()
    assert "print('mine')" in text
    assert "learning_rate: float = 0.002" in text
    assert "n_steps: int = 3" in text
    assert findings(project).keys() == {"TW523"}
    # Again, from what it has become.
    init(project, "--learning-rate", "0.001")
    assert PLANNED in (project / "train.py").read_text()


def test_an_own_task_does_not_stand_in_the_way(project: Path) -> None:
    task = project / "task.py"
    edit(task, "n_samples: int = 2048", "n_samples: int = 640")
    assert findings(project).keys() == {"TW523"}
    mine = task.read_text()
    edit(project / "trainwiz.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    assert findings(project).keys() == {"TW523", "TW524"}
    init(project)
    assert task.read_text() == mine
    assert "learning_rate: float = 0.002" in (project / "train.py").read_text()
    assert findings(project).keys() == {"TW523"}


def test_an_edited_plan_and_an_edited_script(project: Path) -> None:
    (project / "train.py").write_text((project / "train.py").read_text() + "# mine\n")
    edit(project / "trainwiz.yaml", "learning_rate: 0.001", "learning_rate: 0.002")
    assert findings(project).keys() == {"TW523", "TW524"}
    edit(project / "train.py", PLANNED, "learning_rate: float = 0.002")
    assert findings(project).keys() == {"TW523"}
    edit(project / "train.py", "learning_rate: float = 0.002", "learning_rate: float = 0.003")
    assert findings(project).keys() == {"TW523", "TW525"}


def test_an_edited_value_is_asked_about(project: Path) -> None:
    edit(project / "train.py", PLANNED, "learning_rate: float = 0.004")
    said = init(project, "--learning-rate", "0.002", code=1)
    assert "-    learning_rate: float = 0.004" in said
    assert "+    learning_rate: float = 0.002" in said
    # Another value is nobody's concern.
    init(project, "--steps", "3")
    text = (project / "train.py").read_text()
    assert "learning_rate: float = 0.004" in text
    assert "n_steps: int = 3" in text


def test_force_takes_the_new_file(project: Path) -> None:
    (project / "train.py").write_text((project / "train.py").read_text() + "# mine\n")
    init(project, "--steps", "3", "--force")
    assert "# mine" not in (project / "train.py").read_text()
    assert findings(project) == {}


def test_a_script_that_was_kept_while_more_than_values_changed(project: Path) -> None:
    script = project / "train.py"
    script.write_text(script.read_text() + "# mine\n")
    sgd = ("--set", "optimizer.name=sgd")
    assert "# mine" in init(project, *sgd, code=1)
    init(project, *sgd, "--on-conflict", "keep")
    assert "torch.optim.AdamW" in script.read_text()
    [one] = findings(project)["TW526"]
    assert "train.py was kept when the plan changed" in one["message"]
    # Values still follow, and the warning stays until the file is edited.
    init(project, "--steps", "3")
    assert "n_steps: int = 3" in script.read_text()
    assert "TW526" in findings(project)
    script.write_text(script.read_text() + "# with SGD now\n")
    assert findings(project).keys() == {"TW523"}


# During a launch, by the script itself


@pytest.mark.train
def test_a_run_records_what_the_script_used(project: Path) -> None:
    edit(project / "train.py", PLANNED, "learning_rate: float = 2 * 0.001")
    done = launch(project)
    assert done.code == 0, done.err
    said = " ".join(done.err.split())
    assert "note: optimizer.learning_rate is 0.001 in the plan, but the script uses 0.002" in said
    assert f"trainwiz update {project} --set optimizer.learning_rate=0.002" in said
    assert metrics(project)[0]["lr"] == 0.002
    record = command(project)
    assert record["plan"]["optimizer"]["learning_rate"] == 0.002
    assert record["instead_of_plan"] == {"optimizer.learning_rate": {"plan": 0.001, "used": 0.002}}
    stated = json.loads((project / "runs/latest/config.json").read_text())
    assert stated["learning_rate"] == 0.002
    assert stated["n_samples"] == 2048
    # Asked for with an argument, it is recorded and needs no note; a resumed run records its own.
    done = launch(project, "--resume", "--", "--learning_rate", "0.01", "--n_steps=4")
    assert done.code == 0, done.err
    assert "the script uses" not in done.err
    assert metrics(project)[-1]["lr"] == 0.01
    record = command(project)
    assert record["plan"]["optimizer"]["learning_rate"] == 0.01
    assert record["plan"]["schedule"]["n_steps"] == 4
    assert record["instead_of_plan"].keys() == {"optimizer.learning_rate", "schedule.n_steps"}


@pytest.mark.train
def test_secrets_in_the_settings_are_hidden(project: Path) -> None:
    edit(project / "task.py", "    n_blocks: int = 2\n", '    n_blocks: int = 2\n    hub_token: str = "none"\n')
    done = launch(project, "--", "--hub_token", "abcdefgh")
    assert done.code == 0, done.err
    assert "abcdefgh" not in "".join(p.read_text() for p in (project / "runs/latest").glob("*.json"))
    assert json.loads((project / "runs/latest/config.json").read_text())["hub_token"] == "***"


EPOCHS = {"schedule.n_epochs": 3, "schedule.n_steps": None}


@pytest.mark.parametrize(
    ("schedule", "typed", "added"),
    [
        (EPOCHS, ["--n_steps", "2"], ["--n_epochs", "0"]),
        (EPOCHS, ["--n_epochs=1", "--seed", "3"], []),
        (EPOCHS, ["--n_steps", "2", "--n_epochs", "0"], []),
        (EPOCHS, ["--n_steps", "0"], []),
        (EPOCHS, ["--seed", "3"], []),
        ({}, ["--n_epochs=1", "--seed", "3"], ["--n_steps", "0"]),
        ({}, ["--n_epochs=0"], []),
        ({}, ["--n_steps", "2"], []),
        ({}, [], []),
    ],
)
def test_a_typed_length_replaces_one_that_counts_otherwise(
    schedule: dict[str, object], typed: list[str], added: list[str]
) -> None:
    """`launch -- --n_steps 2` also shortens a plan that counts epochs."""
    plan = plans.with_changes(BASE, schedule)
    assert list(launching._with_one_length(typed, plan)) == [*typed, *added]
