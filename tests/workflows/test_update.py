"""`trainwiz update`: the files follow the plan, and a person's edits stay."""

import ast
import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwiz import language
from trainwiz import plan as plans
from trainwiz.cli import run

MACHINES = Path(__file__).parents[1] / "machines"
CPU, H100 = (str(MACHINES / f"{name}.json") for name in ("cpu", "8xh100"))
BAR = "        metrics.bar.update()\n"
MINE = BAR + '        print("done", done)\n'


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TRAINWIZ_LANG", "en")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return made(tmp_path / "my project")


def made(folder: Path, *arguments: str, machine: str = CPU) -> Path:
    assert run(["init", str(folder), "--machine", machine, "--defaults", "--yes", *arguments]) == 0
    return folder


def update(project: Path, *arguments: str) -> int:
    return run(["update", str(project), "--machine", CPU, *arguments])


def plan_of(project: Path) -> dict[str, Any]:
    return plans.flat(plans.parse(yaml.safe_load((project / "trainwiz.yaml").read_text())))


def contents(project: Path) -> dict[str, str]:
    return {str(p.relative_to(project)): p.read_text() for p in sorted(project.rglob("*")) if p.is_file()}


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, text.count(old)
    file.write_text(text.replace(old, new))


def line_of(project: Path, key: str) -> str:
    [line] = [line for line in (project / "trainwiz.yaml").read_text().splitlines() if line.startswith(f"  {key}:")]
    return line


def findings(project: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The rules on generated files that find something."""
    capsys.readouterr()
    run(["check", str(project), "--machine", CPU, "--json"])
    return {one["rule"] for one in json.loads(capsys.readouterr().out)["findings"] if one["rule"].startswith("TW52")}


def test_an_edited_plan_reaches_all_files_with_its_reasons(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(project / "trainwiz.yaml", "real_batch_size: 32", "real_batch_size: 96")
    replace(project / "trainwiz.yaml", "weight_decay: 0.1  #", "weight_decay: 0.1  # from the paper:")
    accumulation = plan_of(project)["batch.gradient_accumulation_steps"]
    assert findings(project, capsys) == {"TW524"}
    assert update(project) == 0
    assert f"batch.gradient_accumulation_steps: {accumulation} → {3 * accumulation}" in capsys.readouterr().err
    assert "real_batch_size: int = 96" in (project / "train.py").read_text()
    assert "# file: edited in trainwiz.yaml" in line_of(project, "real_batch_size")
    assert "96 = " in line_of(project, "per_device_batch_size"), "a reason that no longer holds is renewed"
    assert "# from the paper:" in line_of(project, "weight_decay"), "a comment of one's own stays"
    assert not findings(project, capsys)
    before = contents(project)
    assert update(project) == 0
    assert "Nothing changed" in capsys.readouterr().err
    assert contents(project) == before


def test_edits_are_merged_with_another_strategy(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(project / "train.py", BAR, MINE)
    replace(project / "README.md", "This folder is a complete", "This folder of mine is a complete")
    assert update(project, "--set", "strategy.kind=deepspeed", "--set", "strategy.zero_stage=2") == 0
    script = (project / "train.py").read_text()
    assert MINE in script
    assert "DeepSpeedPlugin" in script
    ast.parse(script)
    readme = (project / "README.md").read_text()
    assert "trained with zero2" in readme
    assert "This folder of mine" in readme
    assert (project / "ds_config.json").is_file()
    assert "file:" not in line_of(project, "zero_stage"), "it was given"
    assert findings(project, capsys) == {"TW523"}, "edited, and nothing else"
    assert update(project, "--set", "strategy.kind=ddp") == 0
    assert MINE in (project / "train.py").read_text()
    assert not (project / "ds_config.json").exists()
    assert "removed; the plan no longer needs it" in capsys.readouterr().err


@pytest.mark.parametrize("is_saved", [True, False])
def test_the_files_keep_their_language(project: Path, is_saved: bool) -> None:
    """Also of a project whose trainwiz did not save it."""

    def forget(folder: Path) -> None:
        file = folder / ".trainwiz" / "answers.json"
        saved = json.loads(file.read_text())
        file.write_text(json.dumps(saved if is_saved else {k: v for k, v in saved.items() if k != "language"}))

    forget(project)
    with language.spoken("zh"):
        assert update(project, "--set", "batch.real_batch_size=64") == 0
    assert (project / "README.md").read_text().startswith("# A language model")
    assert all(text.isascii() or not re.search("[一-鿿]", text) for text in contents(project).values())
    assert "64 = " in line_of(project, "per_device_batch_size"), "its reason is new"
    with language.spoken("zh"):
        other = made(project.parent / "另一个")
    forget(other)
    assert update(other, "--set", "batch.real_batch_size=64") == 0
    assert "语言模型" in (other / "README.md").read_text()
    assert "默认" in line_of(other, "per_device_batch_size")


def test_where_both_changed_a_line_both_stay_between_markers(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(project / "train.py", BAR, MINE)
    replace(project / "train.py", "    seed: int = 42\n", "    seed: int = 43\n")
    assert update(project, "--set", "seed=44") == 1
    conflict = "<<<<<<< yours\n    seed: int = 43\n||||||| generated before\n    seed: int = 42\n=======\n"
    conflict += "    seed: int = 44\n>>>>>>> generated now\n"
    assert conflict in (project / "train.py").read_text()
    assert "resolve the conflicts" in capsys.readouterr().err
    assert "TW528" in findings(project, capsys)
    assert run(["launch", str(project)]) == 1
    assert "trainwiz explain TW528\n" in (said := capsys.readouterr().err)
    assert "--ignore" not in said, "no Python reads such a script"
    before = contents(project)
    assert update(project, "--set", "seed=45") == 1
    assert "conflicts of an earlier merge are unresolved: train.py:" in capsys.readouterr().err
    assert contents(project) == before
    replace(project / "train.py", conflict, "    seed: int = 44\n")
    assert findings(project, capsys) == {"TW523"}
    assert update(project, "--set", "seed=45") == 0
    assert "    seed: int = 45\n" in (project / "train.py").read_text()
    assert MINE in (project / "train.py").read_text()


@pytest.mark.parametrize("way", ["beside", "keep", "overwrite"])
def test_other_ways_out_of_a_conflict(way: str, project: Path) -> None:
    replace(project / "train.py", "    seed: int = 42\n", "    seed: int = 43\n")
    assert update(project, "--set", "seed=44", "--on-conflict", way) == (1 if way == "beside" else 0)
    assert ("seed: int = 43" in (project / "train.py").read_text()) == (way != "overwrite")
    assert (project / "train.py.new").exists() == (way == "beside")
    # What was kept was not brought up to date: the next merge starts from the same base.
    assert update(project, "--set", "seed=45") == (0 if way == "overwrite" else 1)


def test_a_file_that_was_kept_can_be_merged_later(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An update without changes in between must not take the kept file for one that has them."""
    replace(project / "train.py", BAR, MINE)
    replace(project / "train.py", "    seed: int = 42\n", "    seed: int = 43\n")
    zero2 = ("--set", "seed=44", "--set", "strategy.kind=deepspeed", "--set", "strategy.zero_stage=2")
    assert update(project, *zero2, "--on-conflict", "beside") == 1
    assert "TW526" in findings(project, capsys)
    for _ in range(2):
        assert update(project) == 0
        assert "train.py lacks changes of an earlier update" in " ".join(capsys.readouterr().err.split())
    (project / "train.py.new").unlink()
    assert update(project, "--on-conflict", "beside") == 1, "as TW526 advises"
    assert "DeepSpeedPlugin" in (project / "train.py.new").read_text()
    assert "DeepSpeedPlugin" not in (project / "train.py").read_text()
    assert update(project, "--on-conflict", "markers") == 1
    merged = (project / "train.py").read_text()
    assert MINE in merged
    assert "DeepSpeedPlugin" in merged
    resolved = re.sub("(?ms)^<<<<<<< .*?^=======\n(.*?)^>>>>>>> [^\n]*\n", r"\1", merged)
    (project / "train.py").write_text(resolved)
    assert findings(project, capsys) == {"TW523"}
    capsys.readouterr()
    assert update(project) == 0
    assert "lacks" not in capsys.readouterr().err


def test_a_foreign_file_that_was_kept_gets_the_new_one_beside(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.py").write_text("my own\n")
    project = made(tmp_path / "own", "--on-conflict", "keep")
    assert update(project, "--on-conflict", "beside") == 1
    assert (project / "train.py").read_text() == "my own\n"
    assert "def train" in (project / "train.py.new").read_text()


def test_values_that_followed_an_edited_one_stay_and_are_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = line_of(project, "n_warmup_steps")
    replace(project / "trainwiz.yaml", "n_steps: 100 ", "n_steps: 1000 ")
    assert update(project, "--json") == 0
    stays = json.loads(capsys.readouterr().out)["stays"]
    value, default = stays["schedule.n_warmup_steps"]
    assert before.split("#")[0].split() == ["n_warmup_steps:", str(value)]
    assert default != value
    assert line_of(project, "n_warmup_steps").endswith("# file: stayed as it was when other values were edited")
    replace(project / "trainwiz.yaml", line_of(project, "n_warmup_steps") + "\n", "")
    assert update(project) == 0
    assert plan_of(project)["schedule.n_warmup_steps"] == default


def test_an_older_trainwiz_made_the_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it generated stands in `.trainwiz/base`; there, and in the file, a line of today is missing."""
    for file in (project / "train.py", project / ".trainwiz/base/train.py"):
        replace(file, "import gc\n", "")
    manifest = json.loads((project / ".trainwiz/manifest.json").read_text())
    manifest["files"]["train.py"] = hashlib.sha256((project / "train.py").read_bytes()).hexdigest()
    (project / ".trainwiz/manifest.json").write_text(json.dumps(manifest))
    replace(project / "train.py", BAR, MINE)
    assert update(project) == 0
    assert "import gc\n" in (project / "train.py").read_text()
    assert MINE in (project / "train.py").read_text()
    assert "merged with your edits (+1 -0)" in capsys.readouterr().err


def test_a_plan_that_nobody_edited_is_replaced_after_an_upgrade(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another trainwiz gave other reasons, and did not know a key; an update, and then an init for another machine."""
    for file in (project / "trainwiz.yaml", project / ".trainwiz/base/trainwiz.yaml"):
        lines = [line for line in file.read_text().splitlines(keepends=True) if "neftune_alpha" not in line]
        file.write_text("".join(lines).replace("default: the usual case", "default: what most people want"))
    manifest = json.loads((project / ".trainwiz/manifest.json").read_text())
    manifest["files"]["trainwiz.yaml"] = hashlib.sha256((project / "trainwiz.yaml").read_bytes()).hexdigest()
    (project / ".trainwiz/manifest.json").write_text(json.dumps(manifest))
    assert update(project) == 0
    assert "neftune_alpha" in (project / "trainwiz.yaml").read_text()
    made(project, machine=H100)
    assert "was edited" not in capsys.readouterr().err
    assert plan_of(project)["machine.num_processes"] == 8
    replace(project / "trainwiz.yaml", "weight_decay: 0.1  #", "weight_decay: 0.1  # from the paper:")
    assert update(project, "--set", "seed=7") == 0
    capsys.readouterr()
    assert run(["init", str(project), "--machine", H100, "--defaults", "--yes", "--set", "seed=8"]) == 1
    assert "trainwiz.yaml was edited" in capsys.readouterr().err


def test_what_cannot_be_merged_is_written_beside(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(project / "train.py", BAR, MINE)
    monkeypatch.setenv("PATH", os.devnull)
    assert update(project, "--set", "strategy.kind=deepspeed", "--set", "strategy.zero_stage=2") == 1
    assert "git is needed to merge" in capsys.readouterr().err
    assert MINE in (project / "train.py").read_text()
    assert "DeepSpeedPlugin" in (project / "train.py.new").read_text()


def test_a_dry_run_shows_all_and_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(project)
    assert update(project, "--set", "seed=7", "--dry-run") == 0
    assert "+    seed: int = 7" in capsys.readouterr().err
    assert contents(project) == before
    assert update(project, "--set", "seed=7", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["values"] == {"seed": [42, 7]}
    assert "train.py" in told["written"]


def test_the_plan_of_another_machine_stays(tmp_path: Path) -> None:
    project = made(tmp_path / "project", "--strategy", "zero3", machine=H100)
    before = contents(project)
    assert run(["update", str(project)]) == 0, "whatever this machine has"
    answers = ".trainwiz/answers.json"
    assert {**contents(project), answers: ""} == {**before, answers: ""}
    replace(project / "trainwiz.yaml", "learning_rate: ", "learning_rate: 0.0123  # was ")
    assert run(["update", str(project)]) == 0
    changed = {key for key, value in plan_of(project).items() if value != plans.flat(plan(before))[key]}
    assert changed == {"optimizer.learning_rate"}


def plan(texts: dict[str, str]) -> plans.Plan:
    return plans.parse(yaml.safe_load(texts["trainwiz.yaml"]))


def test_a_key_that_is_left_out_is_decided(project: Path) -> None:
    text = (project / "trainwiz.yaml").read_text()
    kept = [line for line in text.splitlines(keepends=True) if "n_warmup_steps" not in line and "seed:" not in line]
    (project / "trainwiz.yaml").write_text("".join(kept))
    assert update(project) == 0
    assert "n_warmup_steps" in (project / "trainwiz.yaml").read_text(), "required"
    assert plan_of(project)["seed"] == 42
    assert "seed:" not in (project / "trainwiz.yaml").read_text(), "leaving it out means the same"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("real_batch_size: 32", "real_batch_size: -4", "batch.real_batch_size"),
        ("real_batch_size: 32", "real_batch_size: 33", "33"),
        ("seed: 42", "seed: [42", "not valid YAML"),
        ("seed: 42", "sede: 42", "sede"),
    ],
)
def test_a_wrong_plan_changes_nothing(
    old: str, new: str, said: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(project / "trainwiz.yaml", old, new)
    before = contents(project)
    assert update(project) != 0
    assert said in capsys.readouterr().err
    assert contents(project) == before


def test_only_projects_are_updated(tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert update(tmp_path / "none") == 2
    assert "does not exist" in capsys.readouterr().err
    assert update(tmp_path) == 2
    assert "not a project" in capsys.readouterr().err
    (project / "other.yaml").write_bytes((project / "trainwiz.yaml").read_bytes())
    assert update(project / "other.yaml") == 2  # its folder has another plan
    assert "other.yaml is no project; its plan must be named trainwiz.yaml" in capsys.readouterr().err
    assert update(project / "trainwiz.yaml") == 0
    assert update(project, "--on-conflict", "ask") == 2
    assert "markers, beside, keep, overwrite" in capsys.readouterr().err


def test_nothing_is_called_written_that_is_not(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    before = contents(project)
    monkeypatch.setattr(os, "fsync", full)
    assert update(project, "--set", "optimizer.learning_rate=0.003") == 1
    told = capsys.readouterr().err
    assert "nothing was written" in told
    assert ": written (" not in told
    assert contents(project) == before
