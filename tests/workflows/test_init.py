"""`trainwiz init` without a person: layers of answers, bad input, files of one's own, twice in a row."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwiz import language
from trainwiz import plan as plans
from trainwiz.cli import run
from trainwiz.plan.model import Cluster
from trainwiz.plan.problems import OTHER_WORDS
from trainwiz.store import answers as store

CPU = str(Path(__file__).parents[1] / "machines" / "cpu.json")
H100 = str(Path(__file__).parents[1] / "machines" / "8xh100.json")
KEYS = [key for key in plans.fields() if key not in ("version", "ignore")]
TEXTS = {
    "model.name",
    "data.train",
    "data.eval",
    "data.text_column",
    "data.label_column",
    "data.cache_dir",
    "machine.main_process_ip",
    "strategy.nvme_path",
    "model.lora_targets",
    "model.frozen",
    "model.modules_to_save",
    "data.source_weights",
    "data.special_tokens",
    "data.added_tokens",
    "evaluation.generation_metrics",
    "tracking.project",
    "tracking.run_name",
    "tracking.tags",
    "data.image_column",
    *(f"cluster.{name}" for name, field in Cluster.model_fields.items() if isinstance(field.default, str | None)),
}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TRAINWIZ_LANG", "en")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "my project"


def init(project: Path, *arguments: str, machine: str = CPU) -> int:
    return run(["init", str(project), "--machine", machine, "--defaults", "--yes", *arguments])


def plan_of(project: Path) -> dict[str, Any]:
    return plans.flat(plans.parse(yaml.load((project / "trainwiz.yaml").read_text(), yaml.CSafeLoader)))


def contents(project: Path) -> dict[str, str]:
    return {str(p.relative_to(project)): p.read_text() for p in sorted(project.rglob("*")) if p.is_file()}


def test_defaults_write_a_project_and_say_what_comes_next(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project) == 0
    out, err = capsys.readouterr()
    assert (project / "train.py").is_file()
    assert sorted(out.splitlines()) == sorted(
        str(project / name)
        for name in contents(project)
        if name not in (".trainwiz/manifest.json", store.PROJECT_FILE) and not name.startswith(".trainwiz/base/")
    )
    assert f"trainwiz launch {shlex.quote(str(project))}" in err
    assert "# default: a tenth of 100 updates" in (project / "trainwiz.yaml").read_text()


def test_data_outside_of_a_project_for_another_machine_is_named(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("some words\n" * 200)
    assert init(project, "--data", str(tmp_path / "mine.txt"), machine="8xH100") == 0
    assert f"copy {tmp_path / 'mine.txt'} there, too" in " ".join(capsys.readouterr().err.split())
    project.joinpath("own.txt").write_text("some words\n" * 200)
    assert init(project, "--data", str(project / "own.txt"), machine="8xH100") == 0
    assert "there, too" not in capsys.readouterr().err


def test_the_echoed_command_makes_the_same_project(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(project, "--seed", "7", "--strategy", "zero2+offload", "--set", "data.eval=null", machine=H100) == 0
    err = capsys.readouterr().err
    line = next(line for line in err.splitlines() if "--defaults --yes" in line)
    argv = shlex.split(line)
    assert argv[:2] == ["trainwiz", "init"]
    other = tmp_path / "other"
    assert run(["init", str(other), *argv[3:]]) == 0
    ours, theirs = contents(project), contents(other)
    assert ours.keys() == theirs.keys()
    assert all(ours[name] == theirs[name] for name in ours if not name.startswith("README"))


def test_twice_in_a_row_changes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--steps", "50", machine=H100) == 0
    before = {p: p.stat().st_mtime_ns for p in project.rglob("*.py")}
    kept = contents(project)
    capsys.readouterr()
    assert init(project, machine=H100) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "Nothing changed" in err
    assert contents(project) == kept
    assert before == {p: p.stat().st_mtime_ns for p in project.rglob("*.py")}
    assert plan_of(project)["schedule.n_steps"] == 50


def test_earlier_answers_stay_under_new_ones(project: Path) -> None:
    assert init(project, "--steps", "50", "--set", "seed=7", machine=H100) == 0
    assert init(project, "--epochs", "2", machine=H100) == 0
    plan = plan_of(project)
    assert (plan["seed"], plan["schedule.n_epochs"], plan["schedule.n_steps"]) == (7, 2, None)


def test_an_earlier_answer_that_no_longer_fits_falls(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--real-batch-size", "64", machine=H100) == 0
    assert init(project, "--num-processes", "3", machine=H100) == 0
    assert "the earlier value 64 is no longer valid" in capsys.readouterr().err
    assert plan_of(project)["batch.real_batch_size"] % 3 == 0


# ---- the layers


def test_flags_beat_set_beats_file_beats_defaults(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("seed: 1\noptimizer: {learning_rate: 0.5, weight_decay: 0.25}\nschedule.n_steps: 40\n")
    layers = ("--answers", str(file), "--set", "seed=2", "--set", "optimizer.weight_decay=0.125", "--seed", "3")
    assert init(project, *layers) == 0
    plan = plan_of(project)
    assert plan["seed"] == 3
    assert plan["optimizer.weight_decay"] == 0.125
    assert plan["optimizer.learning_rate"] == 0.5
    assert plan["schedule.n_steps"] == 40
    text = (project / "trainwiz.yaml").read_text()
    assert "seed: 3  # yours: your answer" in text
    assert "a.yaml" in next(line for line in text.splitlines() if "learning_rate" in line)


def test_a_flag_for_the_length_replaces_the_length_in_a_file(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("schedule: {train_strategy: epochs, n_epochs: 3}\n")
    assert init(project, "--answers", str(file), "--steps", "30") == 0
    plan = plan_of(project)
    assert (plan["schedule.train_strategy"], plan["schedule.n_steps"], plan["schedule.n_epochs"]) == ("steps", 30, None)


@pytest.mark.parametrize(
    ("flags", "label"),
    [
        (("--strategy", "zero3"), ("deepspeed", 3, "none", "none")),
        (("--strategy", "zero3+offload"), ("deepspeed", 3, "cpu", "cpu")),
        (("--strategy", "deepspeed"), ("deepspeed", 2, "none", "none")),
        (("--zero-stage", "1"), ("deepspeed", 1, "none", "none")),
        (("--strategy", "fsdp"), ("fsdp", None, "none", "none")),
    ],
)
def test_strategy_flags(project: Path, flags: tuple[str, ...], label: tuple[Any, ...]) -> None:
    assert init(project, *flags, machine=H100) == 0
    plan = plan_of(project)
    keys = ("kind", "zero_stage", "offload_optimizer_device", "offload_param_device")
    assert tuple(plan[f"strategy.{key}"] for key in keys) == label


def test_flags_that_contradict_each_other(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--strategy", "zero3", "--zero-stage", "2") == 2
    assert "--strategy gives 3, but --zero-stage gives 2" in capsys.readouterr().err
    assert init(project, "--force", "--on-conflict", "keep") == 2
    assert init(project, "--on-conflict", "maybe") == 2
    assert not project.exists()


def test_a_strategy_flag_leaves_what_it_does_not_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offload = ("--set", "strategy.offload_param_device=cpu")
    assert init(project, "--strategy", "zero3", *offload, machine=H100) == 0
    assert plan_of(project)["strategy.offload_param_device"] == "cpu"
    assert init(project, "--strategy", "zero1", machine=H100) == 0
    assert plan_of(project)["strategy.offload_param_device"] == "none"
    assert init(project, "--strategy", "zero1", *offload, machine=H100) == 0
    assert "strategy.offload_param_device cpu is ignored" in capsys.readouterr().err


def test_paths_count_from_where_they_are_typed(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.txt").write_text("some text " * 20000)
    monkeypatch.chdir(tmp_path)
    assert init(project, "--data", "my.txt") == 0
    assert plan_of(project)["data.train"] == str(tmp_path / "my.txt")
    project.joinpath("own.txt").write_text("some text " * 20000)
    assert init(project, "--data", "own.txt") == 0
    assert plan_of(project)["data.train"] == "own.txt"


# ---- bad input

EVIL = ['"; import os', "a\nb", "x\x00y", "\x1b[31m", "' or '1'='1", "{a: 1}", "[1, 2]", "nan", "1e999", "-1", "9" * 30]


@pytest.mark.parametrize("key", KEYS)
def test_bad_values_by_set(tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, value in enumerate(EVIL):
        project = tmp_path / f"by set {number}"
        code = init(project, "--set", f"{key}={value}")
        err = capsys.readouterr().err
        assert "Traceback" not in err, value
        assert "bug" not in err, value
        if code == 0:
            # A text may hold anything printable, and some of these are legal numbers elsewhere.
            assert key in TEXTS or plan_of(project)[key] == float(value), value
            assert plan_of(project)[key] is not None, value
        else:
            assert code in (1, 2), value
            assert key in err, value
            assert not project.exists(), value


WRONG: list[Any] = [{"a": 1}, [1], "x\ny", "", 10**40, -7, 2.5, True, None]


@pytest.mark.parametrize("key", KEYS)
def test_bad_values_in_a_file(tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, value in enumerate(WRONG):
        project, file = tmp_path / f"by file {number}", tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(plans.nested({key: value})))
        code = init(project, "--answers", str(file))
        err = capsys.readouterr().err
        assert "Traceback" not in err, value
        assert "bug" not in err, value
        assert code in (0, 1, 2), value
        if code:
            assert key in err, value
            assert not project.exists(), value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: [1", "not valid YAML"),
        ("a:\n\t- b", "a tab"),
        ("- 1\n- 2\n", "a list"),
        ("sed: 1\n", "sed: unknown key; did you mean seed?"),
        ("batch: {real_batchsize: 8}\n", "did you mean batch.real_batch_size?"),
        ("lr: 1.0e-4\n", "did you mean optimizer.learning_rate?"),
        ("batch: {micro-batch-size: 4}\n", "did you mean batch.per_device_batch_size?"),
        ("batch: 5\n", "batch: must be a section of keys, not 5"),
        ("batch: 5\nbatch.real_batch_size: 8\n", "batch: must be a section"),
        ("seed: 1\nseed: 2\n", "seed appears twice"),
        ("1: 2\n", "1"),
        ("seed: !!python/object/apply:os.system ['true']\n", "python/object"),
        ("", "the file is empty"),
        ("seed: &a [*a]\n", ""),
    ],
)
def test_broken_files(project: Path, tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answers.yaml"
    file.write_text(text)
    assert init(project, "--answers", str(file)) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "answers.yaml" in err
    assert not project.exists()


def test_words_of_other_tools_lead_to_keys_that_exist() -> None:
    assert OTHER_WORDS.keys() <= set(KEYS)
    words = [word for words in OTHER_WORDS.values() for word in words]
    assert len(words) == len(set(words)) > 30
    assert not set(words) & {key.rpartition(".")[2] for key in KEYS}


def test_a_missing_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--answers", "/nowhere/a.yaml") == 2
    assert "/nowhere/a.yaml" in capsys.readouterr().err


def test_every_wrong_value_is_reported_at_once(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.yaml"
    file.write_text("optimizer: {learning_rate: fast}\n")
    assert init(project, "--answers", str(file), "--set", "sed=1", "--set", "seed", "--steps", "many") == 2
    err = capsys.readouterr().err
    for words in ("optimizer.learning_rate", "sed: unknown key", "write KEY=VALUE", "schedule.n_steps: 'many'"):
        assert words in err


def test_the_batch_conflict_on_the_command_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = ("--num-processes", "4", "--real-batch-size", "100", "--per-device-batch-size", "8")
    assert init(project, *batch, machine=H100) == 2
    assert "100 is not divisible by 8 × 4 = 32; nearest: 96 (accumulation 3)" in capsys.readouterr().err
    assert not project.exists()


def test_findings_of_level_error_stop_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--num-processes", "16", machine=H100) == 1
    err = capsys.readouterr().err
    assert "error" in err
    assert "nothing was written" in err
    assert not project.exists()


# ---- without a terminal


def test_what_check_would_refuse_is_not_written(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"model_type": "gpt2"}')
    own = ("--set", "task=causal_lm", "--set", f"model.name={tmp_path / 'bare'}", "--set", "model.from_scratch=true")
    assert init(project, *own) == 1
    assert "contains no tokenizer" in capsys.readouterr().err
    assert not project.exists()


def test_everything_that_is_missing_in_one_message(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(project), "--set", "task=causal_lm"]) == 2
    err = capsys.readouterr().err
    for key in (
        "--yes",
        "model.name",
        "data.train",
        "machine.num_processes",
        "batch.real_batch_size",
        "strategy.kind",
        "schedule.n_steps",
    ):
        assert key in err
    assert "task:" not in err
    assert "--defaults --yes" in err
    assert not project.exists()


def test_defaults_still_want_a_yes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(project), "--defaults"]) == 2
    assert "--yes" in capsys.readouterr().err


def test_all_answered_needs_no_defaults(project: Path) -> None:
    given = (
        "task=custom",
        "machine.num_processes=2",
        "batch.real_batch_size=32",
        "precision.mixed_precision=no",
        "strategy.kind=ddp",
        "schedule.n_steps=10",
    )
    sets = [x for pair in given for x in ("--set", pair)]
    assert run(["init", str(project), "--machine", CPU, "--yes", *sets]) == 0


def test_nothing_to_resume(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--resume") == 2
    assert "no saved answers" in capsys.readouterr().err


def test_resume_without_a_folder_takes_the_last_one_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    older, newer = tmp_path / "older", tmp_path / "newer"
    for folder, machine in ((older, CPU), (newer, H100)):
        options: dict[str, str | bool] = {"machine": machine, "yes": True}
        saved = store.Saved(answers={"seed": 9}, folder=str(folder), options=options, given=("seed", "gone.key"))
        assert store.write(store.session_file(folder), saved)
    os.utime(store.session_file(older), (1, 1))
    assert run(["init", "--resume", "--defaults"]) == 0
    assert "newer" in capsys.readouterr().err
    assert (plan_of(newer)["seed"], plan_of(newer)["machine.num_processes"]) == (9, 8)
    assert run(["init", "--resume", "--defaults", "--machine", H100]) == 0, "an option of this call comes first"
    assert plan_of(older)["machine.num_processes"] == 8
    assert run(["init", "--resume", "--defaults"]) == 2, "nothing is left"


def test_a_missing_package_is_for_launch(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The machine that is planned for may lack what requirements.txt names; the plan is written all the same."""
    there = json.loads(Path(H100).read_text())
    there["interpreter"] = {
        "python": "/opt/python",
        "packages": {"deepspeed": None, "torch": "2.13.0"},
        "cuda_build": "12.8",
    }
    machine = tmp_path / "there.json"
    machine.write_text(json.dumps(there))
    assert init(project, "--strategy", "zero2", machine=str(machine)) == 0
    assert "TW112 warning" in capsys.readouterr().err
    assert "deepspeed" in (project / "requirements.txt").read_text()
    assert run(["check", str(project), "--machine", str(machine)]) == 1
    assert "TW112 error" in capsys.readouterr().out


def test_resume_without_a_terminal_takes_the_kept_answers(project: Path) -> None:
    kept = store.session_file(project)
    assert store.write(kept, store.Saved(answers={"seed": 9, "gone.key": 1, "optimizer.name": 5}, step="data.train"))
    assert init(project, "--resume") == 0
    assert plan_of(project)["seed"] == 9
    assert not kept.exists()


# ---- folders and files of one's own


def test_folders_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for folder in (file, file / "below", link, "a\nb", "x" * 300, "/proc/self/new"):
        assert init(Path(folder)) in (1, 2), folder
        err = capsys.readouterr().err
        assert "error:" in err
        assert "bug" not in err
    assert file.read_text() == "mine"


def test_edited_files_are_refused_with_a_diff(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project) == 0
    script = project / "train.py"
    script.write_text(script.read_text().replace("n_steps: int = 100", "n_steps: int = 90  # mine"))
    before = contents(project)
    assert init(project, "--steps", "60") == 1
    err = capsys.readouterr().err
    assert "-    n_steps: int = 90  # mine" in err
    assert "--on-conflict beside" in err
    assert contents(project) == before


@pytest.mark.parametrize("way", ["keep", "beside", "overwrite"])
def test_ways_out_of_a_conflict(project: Path, way: str) -> None:
    project.mkdir()
    (project / "train.py").write_text("mine\n")
    assert init(project, "--on-conflict", way) == 0
    present = (project / "train.py").read_text()
    assert (present == "mine\n") == (way != "overwrite")
    assert (project / "train.py.new").exists() == (way == "beside")


def test_force_overwrites_and_shows_what_was_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project.mkdir()
    (project / "train.py").write_text("mine\n")
    assert init(project, "--force") == 0
    assert "-mine" in capsys.readouterr().err
    assert (project / "train.py").read_text() != "mine\n"


def test_a_plan_edited_by_hand_counts(project: Path) -> None:
    assert init(project) == 0
    plan = project / "trainwiz.yaml"
    plan.write_text(plan.read_text().replace("seed: 42", "seed: 77"))
    assert init(project, "--force") == 0
    assert plan_of(project)["seed"] == 77
    assert "edited in trainwiz.yaml" in plan.read_text()


def test_an_edited_plan_that_says_the_same_is_no_conflict(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project) == 0
    plan = project / "trainwiz.yaml"
    mine = plan.read_text().replace("seed: 42", "seed: 77") + "# a remark of mine\n"
    plan.write_text(mine)
    capsys.readouterr()
    assert init(project) == 0
    assert plan.read_text() == mine
    assert "seed: int = 77" in (project / "train.py").read_text()
    shown = capsys.readouterr()
    assert "trainwiz.yaml: kept" not in shown.err
    assert "remark" not in shown.err
    assert str(plan) not in shown.out
    # It is still the person's file: what it says is asked about as soon as it differs.
    assert init(project, "--seed", "5") == 1
    assert "-# a remark of mine" in capsys.readouterr().err
    assert init(project, "--force") == 0
    assert "remark" not in plan.read_text()


def test_an_edited_plan_is_meant_as_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project) == 0
    plan = project / "trainwiz.yaml"
    mine = plan.read_text().replace("n_steps: 100", "n_steps: 40")
    assert plan_of(project)["checkpoint.checkpointing_steps"] == 25
    plan.write_text(mine)
    capsys.readouterr()
    # A quarter of 40 updates would be the default, but the file says 25.
    assert init(project) == 0
    assert plan.read_text() == mine
    assert "checkpointing_steps: int = 25" in (project / "train.py").read_text()
    echoed = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("  trainwiz init"))
    assert "--set schedule.n_steps=40" in echoed
    assert "--set checkpoint.checkpointing_steps=25" in echoed
    assert run(["check", str(project), "--machine", CPU]) == 0


def test_an_edited_value_moves_only_what_cannot_stay(project: Path) -> None:
    assert init(project) == 0
    plan, before = project / "trainwiz.yaml", plan_of(project)
    accumulation = before["batch.gradient_accumulation_steps"]
    plan.write_text(plan.read_text().replace("real_batch_size: 32", "real_batch_size: 64"))
    assert init(project, "--force") == 0
    assert plan_of(project) == {
        **before,
        "batch.real_batch_size": 64,
        "batch.gradient_accumulation_steps": 2 * accumulation,
    }


TWO_LINES = "task: causal_lm\nmodel: {name: tiny}\n"


def test_the_same_lines_make_the_same_plan_by_hand_and_as_answers(project: Path, tmp_path: Path) -> None:
    by_hand, file = tmp_path / "by hand", tmp_path / "answers.yaml"
    by_hand.mkdir()
    for written in (by_hand / "trainwiz.yaml", file):
        written.write_text(TWO_LINES)
    assert init(by_hand) == 0
    assert init(project, "--answers", str(file)) == 0
    assert plan_of(by_hand) == plan_of(project)
    plan = plan_of(by_hand)
    assert (plan["optimizer.learning_rate"], plan["schedule.n_warmup_steps"]) == (1e-3, 10)
    assert plan["checkpoint.checkpointing_steps"] == 25


def test_a_plan_that_leaves_keys_to_init_is_refused_until_it_says_them(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.mkdir()
    (project / "trainwiz.yaml").write_text(TWO_LINES)
    remedy = f"trainwiz init {shlex.quote(str(project))}"
    for command, code in (("check", 1), ("launch", 2)):
        assert run([command, str(project)]) == code
        shown = " ".join("".join(capsys.readouterr()).split())
        assert remedy in shown
        for key in decided_by_init():
            assert key in shown
    assert init(project) == 0
    assert run(["check", str(project), "--machine", CPU]) == 0


def decided_by_init() -> list[str]:
    return [key for key, info in plans.fields().items() if info.is_required()]


def test_a_generated_plan_says_every_key(project: Path) -> None:
    assert init(project) == 0
    document = yaml.safe_load((project / "trainwiz.yaml").read_text())
    assert len(decided_by_init()) > 20
    unsaid = {key for key in plans.fields() if key.startswith("cluster.")}  # no scheduler starts this project
    assert set(plans.dotted(document)) == plans.fields().keys() - {"deepspeed"} - unsaid


def test_a_generated_plan_of_an_earlier_version_lacks_only_defaults(project: Path) -> None:
    assert init(project) == 0
    document = yaml.safe_load((project / "trainwiz.yaml").read_text())
    del document["supervision"], document["model"]["merge_adapter"], document["checkpoint"]["on_failed_save"]
    assert plans.parse(document) == plans.parse(yaml.safe_load((project / "trainwiz.yaml").read_text()))


def test_a_plan_written_by_hand_becomes_a_project(project: Path) -> None:
    project.mkdir()
    mine = "seed: 5  # my lucky one\nbatch:\n  real_batch_size: 64  # as in the paper\n"
    (project / "trainwiz.yaml").write_text(mine)
    assert init(project) == 0
    assert "seed: int = 5" in (project / "train.py").read_text()
    text = (project / "trainwiz.yaml").read_text()
    assert set(mine.splitlines()) <= set(text.splitlines())
    assert "n_warmup_steps: 10  # default: a tenth of 100 updates" in text
    # What was added is the person's now, too.
    assert init(project) == 0
    assert (project / "trainwiz.yaml").read_text() == text


def test_a_key_that_is_deleted_from_the_plan_is_decided_anew(project: Path) -> None:
    assert init(project, "--set", "optimizer.learning_rate=0.5", "--seed", "7") == 0
    plan = project / "trainwiz.yaml"
    plan.write_text("".join(line for line in plan.read_text().splitlines(True) if "learning_rate" not in line))
    assert init(project) == 0
    assert (plan_of(project)["optimizer.learning_rate"], plan_of(project)["seed"]) == (1e-3, 7)


def test_rules_to_be_broken_are_in_the_echoed_command(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.yaml"
    file.write_text("ignore: {TW416: it's meant, TW3: 'a, b'}\noptimizer: {gradient_clipping: 0}\n")
    assert init(project, "--answers", str(file)) == 0
    err = capsys.readouterr().err
    line = next(line for line in err.splitlines() if line.startswith("  trainwiz init"))
    words = shlex.split(line)
    other = tmp_path / "other"
    words[words.index(str(project))] = str(other)
    assert run(words[1:]) == 0
    assert plan_of(other) == plan_of(project)
    assert plan_of(other)["ignore"] == {"TW416": "it's meant", "TW3": "a, b"}


def test_a_rule_to_be_broken_must_be_one(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(project, "--set", "ignore.XY1=why", "--set", "ignore.TW1=") == 2
    err = capsys.readouterr().err
    assert "ignore: 'XY1' is neither a rule id (TW401) nor a prefix of one (TW4)" in err
    assert "ignore.TW1: must not be empty" in err
    assert not project.exists()


def test_a_broken_plan_in_the_folder_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project.mkdir()
    (project / "trainwiz.yaml").write_text("sed: 1\n")
    assert init(project) == 2
    assert "did you mean seed?" in capsys.readouterr().err


def test_the_record_of_answers_holds_the_plan(project: Path) -> None:
    assert init(project, "--seed", "7") == 0
    record = json.loads((project / store.PROJECT_FILE).read_text())
    assert record["answers"] == {"seed": 7}
    assert record["plan"]["schedule.n_steps"] == 100


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readme_shows_what_is_printed(
    readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / readme).read_text()
    shown = text.split("    $ trainwiz init other")[1].split("\n\n")[0]
    command, *lines = shown.splitlines()
    language.choose(["--lang", "zh" if "zh" in readme else "en"], {})
    try:
        assert run(["init", "other", *command.split(), "--machine", CPU]) == 2
    finally:
        language.choose([], {})
    assert "".join("".join(lines).split()) == "".join(capsys.readouterr().err.split())
