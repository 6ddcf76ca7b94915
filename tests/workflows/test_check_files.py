"""`trainwiz check` on files that trainwiz did not write: real ones, broken ones, in every shape it can answer in."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import plans
import pytest
import yaml
from patience import patience

from trainwiz import config, render
from trainwiz.cli import run
from trainwiz.plan import Plan
from trainwiz.vocabulary import PLAN_SECTIONS
from trainwiz.workflows.check import configurations, targets

HERE = Path(__file__).parents[1]
CORPUS = HERE.parent.parent / "shared" / "corpus"
GOLDEN = HERE / "golden" / "corpus.json"
VERSIONS = ("--engine-version", "accelerate=1.15.0", "--engine-version", "deepspeed=0.19.8")
TYPO = """\
# how we train
distributed_type: DEEPSPEED  # not FSDP
deepspeed_config:
  # the stage matters
  zero_stge: 3  # three
  gradient_clipping: 1.0
mixed_precision: no # yet
num_processes: 2
"""
DS = '{\n  "train_micro_batch_size_per_gpu": 4,\n  "gradient_accumulation_steps": 1,\n  "gradient_clipping": 1.0\n}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = run(["check", *arguments, *VERSIONS, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["errors"] == sum(f["level"] == "error" for f in answer["findings"])
    return code, answer["findings"]


def placed(findings: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    return [(f["rule"], f["file"], f["line"], f["column"]) for f in findings]


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus of public configurations at {CORPUS}: NOT CHECKED")
def test_the_corpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each finding on these files was read and is true. Renewed by TRAINWIZ_RENEW=1, and read again as a diff."""
    monkeypatch.chdir(CORPUS)
    code, findings = checked(capsys, ".")
    found = [{key: f[key] for key in ("file", "line", "column", "rule", "level", "where", "message")} for f in findings]
    if os.environ.get("TRAINWIZ_RENEW"):
        GOLDEN.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    assert found == json.loads(GOLDEN.read_text())
    assert code == 1
    assert len(list(CORPUS.glob("*/*.*"))) > 50
    assert {"TW653"} == {f["rule"] for f in found if "invalid_keys" in f["file"]}


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus of public configurations at {CORPUS}: NOT CHECKED")
def test_the_corpus_is_fast_and_needs_no_engine() -> None:
    program = (
        "import sys; from trainwiz.cli import run; run(['check', '.', '--json']); "
        "heavy = {'torch', 'accelerate', 'deepspeed', 'transformers', 'pydantic'} & set(sys.modules); "
        "sys.exit(9 if heavy else 0)"
    )
    seconds = []
    for _ in range(3):
        before = cpu_seconds()
        done = subprocess.run([sys.executable, "-c", program], cwd=CORPUS, capture_output=True, text=True, timeout=180)
        seconds.append(cpu_seconds() - before)
        assert done.returncode == 0, done.stderr
    # A busy machine makes everything wait; what it computes stays the same.
    assert min(seconds) < 1.0


def cpu_seconds() -> float:
    """What all children so far have computed."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_a_finding_shows_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "acc.yaml").write_text(TYPO)
    assert run(["check", "acc.yaml", *VERSIONS]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("acc.yaml:5:3: warning TW654")
    assert lines[at + 2] == "  5 |   zero_stge: 3  # three"
    assert lines[at + 3] == "    |   ^^^^^^^^^"
    assert lines[at + 4] == "  → did you mean zero_stage?"
    assert lines[-2:] == ["errors: 1, warnings: 1, hints: 0", "details of a rule: trainwiz explain TW654"]


def test_a_pair_is_judged_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    )
    (folder / "ds.json").write_text(DS.replace("{\n", '{\n  "train_batch_size": 64,\n', 1))
    expected = [("TW352", "ds.json", 1, 1), ("TW432", "ds.json", 2, 3)]
    assert placed(checked(capsys, "acc.yaml")[1]) == expected
    assert placed(checked(capsys, "acc.yaml", "ds.json")[1]) == expected
    assert placed(checked(capsys, ".")[1]) == expected
    assert placed(checked(capsys, "ds.json")[1]) == []


def test_a_script_beside_its_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ds.json").write_text(DS)
    (folder / "train.py").write_text("import accelerate\na = accelerate.Accelerator(gradient_accumulation_steps=8)\n")
    assert placed(checked(capsys, "ds.json")[1]) == []
    assert placed(checked(capsys, "ds.json", "--script", "train.py")[1]) == [("TW437", "ds.json", 3, 3)]
    assert run(["check", "ds.json", "--script", "none.py"]) == 2


def test_a_folder_finds_them_and_passes_by_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "acc.yml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nfoo: 1\n")
    (folder / "package.json").write_text('{"name": "x"}')
    (folder / "compose.yaml").write_text("services: {}\n")
    (folder / "broken.yaml").write_text("a: [\n")
    (folder / "template.yaml").write_text("{% if x %}\nb: [\n")
    (folder / "ds.json").write_text('{\n  "zero_optimization": {"stage": 2}, // two\n')
    (folder / ".git").mkdir()
    (folder / ".git" / "acc.yaml").write_text("distributed_type: nonsense\n")
    expected = [("TW653", "deep/er/acc.yml", 3, 1), ("TW651", "ds.json", 2, 38)]
    assert placed(checked(capsys, ".")[1]) == expected, "a broken one that is plainly meant is no rest"
    assert run(["check", str(folder / "deep" / "er" / "none")]) == 2
    (folder / "empty").mkdir()
    assert run(["check", "empty"]) == 2
    assert "no configuration that trainwiz knows" in capsys.readouterr().err


def test_projects_below_a_folder_are_judged_by_their_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their generated files follow from the plan, and are nobody else's: accelerate starts these in one process."""
    config = "distributed_type: MULTI_CPU\nnum_processes: 2\n"
    (folder / "mine").mkdir()
    (folder / "mine" / "accelerate.yaml").write_text(config)
    assert [found[:2] for found in placed(checked(capsys, ".")[1])] == [("TW667", "mine/accelerate.yaml")]
    (folder / "mine" / "trainwiz.yaml").write_text("task: nonsense\n")
    assert {found[1] for found in placed(checked(capsys, ".")[1])} == {"mine/trainwiz.yaml"}


def test_what_is_no_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "package.json").write_text('{"name": "x"}')
    assert run(["check", "package.json"]) == 2
    assert "package.json has a kind that trainwiz does not know; its keys are name" in capsys.readouterr().err
    assert run(["check", "--skip-others", "package.json"]) == 0
    capsys.readouterr()
    (folder / "raw.yaml").write_bytes(b"distributed_type: MULTI_GPU\nnum_processes: 2 # caf\xe9\n")
    code, findings = checked(capsys, "raw.yaml")
    assert (code, placed(findings)) == (1, [("TW651", "raw.yaml", 2, 23)])
    assert "0xe9" in findings[0]["message"]


def test_a_script_is_sent_to_lint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("")
    assert run(["check", "train.py"]) == 2
    assert "trainwiz lint train.py" in capsys.readouterr().err


def test_the_default_file(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    assert run(["check", "--default"]) == 2
    (folder / "hf" / "accelerate").mkdir(parents=True)
    file = folder / "hf" / "accelerate" / "default_config.yaml"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n")
    capsys.readouterr()
    assert placed(checked(capsys, "--default")[1]) == [("TW667", str(file), 2, 1)]


def test_the_version_of_an_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ds.json").write_text(DS.replace("{\n", '{\n  "elasticity": {"enabled": false},\n', 1))
    assert placed(checked(capsys, "ds.json")[1]) == [("TW343", "ds.json", 2, 3)]
    assert run(["check", "ds.json", "--engine-version", "deepspeed=0.16.5"]) == 0
    for word in ("deepspeed", "deepspeed=new", "torch=2.0"):
        assert run(["check", "ds.json", "--engine-version", word]) == 2


def test_the_engines_of_an_environment_count(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ds.json").write_text(DS.replace("{\n", '{\n  "elasticity": {"enabled": false},\n', 1))
    packages = folder / "env" / "lib" / "python3.11" / "site-packages" / "deepspeed-0.16.5.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.16.5\n")
    (folder / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "env" / "bin").mkdir()
    (folder / "env" / "bin" / "python").symlink_to(sys.executable)
    assert run(["check", "ds.json", "--python", "env/bin/python"]) == 0
    capsys.readouterr()
    newer = ("--engine-version", "deepspeed=0.19.8")
    assert (
        "DeepSpeed 0.19.8 no longer"
        in checked(capsys, "ds.json", "--python", "env/bin/python", *newer)[1][0]["message"]
    )
    monkeypatch.setenv("VIRTUAL_ENV", str(folder / "env"))
    assert run(["check", "ds.json"]) == 0
    capsys.readouterr()
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setattr(configurations.metadata, "distributions", lambda **_: [])
    assert run(["check", "ds.json"]) == 1
    assert "assuming deepspeed 0.19.8, the newest that the rules know" in capsys.readouterr().err


def test_another_programs_file_with_some_keys_of_deepspeed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "".join(f"{name}: 1\n" for name in ("num_layers", "hidden-size", "train-iters", "pos-emb", "rope_pct"))
    (folder / "neox.yml").write_text(
        own + "train_micro_batch_size_per_gpu: 4\ngradient_clipping: 1.0\nfp16: {fp16: true}\n"
    )
    assert run(["check", "neox.yml", "--skip-others"]) == 0
    assert "no findings" in capsys.readouterr().out


def test_rules_are_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "acc.yaml").write_text(TYPO)
    assert [f["rule"] for f in checked(capsys, "acc.yaml", "--select", "TW654")[1]] == ["TW654"]
    assert [f["rule"] for f in checked(capsys, "acc.yaml", "--ignore", "TW654")[1]] == ["TW657"]
    assert run(["check", "acc.yaml", "--select", "TW999"]) == 2


def test_mending_shows_a_diff_and_keeps_comments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "acc.yaml"
    file.write_text(TYPO)
    assert run(["check", "acc.yaml", "--fix", "--yes", *VERSIONS]) == 0
    safely = TYPO.replace("precision: no", "precision: 'no'")
    assert file.read_text() == safely, "a misspelled key that is ignored changes the training"
    assert "1 more fixes may change what is trained" in capsys.readouterr().err
    file.write_text(TYPO)
    assert run(["check", "acc.yaml", "--fix", "--unsafe-fixes"]) == 1
    shown = capsys.readouterr()
    assert "-  zero_stge: 3  # three\n+  zero_stage: 3  # three\n" in shown.err
    assert file.read_text() == TYPO, "without a terminal and without --yes nothing is written"
    assert run(["check", "acc.yaml", "--fix", "--unsafe-fixes", "--yes", *VERSIONS]) == 0
    fixed = TYPO.replace("zero_stge", "zero_stage").replace("precision: no", "precision: 'no'")
    # Spelt right, the stage brings a warning of its own, and that is fixed, too.
    assert file.read_text() == fixed.replace("clipping: 1.0\n", "clipping: 1.0\n  zero3_save_16bit_model: true\n")
    assert "no findings" in capsys.readouterr().out
    assert run(["check", "acc.yaml", "--fix", "--yes", *VERSIONS]) == 0
    assert "nothing can be fixed without knowing what you intend" in capsys.readouterr().err


LACKING = """\
base_model: a/b
datasets: [{path: c, type: alpaca}]
micro_batch_size: 1
gradient_accumulation_steps: 1
adapter: qlora  # four bits
activation_offloading: true
"""
MISNAMED = "model_name_or_path: a/b\nstage: SFT  # supervised\ntemplate: qwen\nfinetuning_type: qlora\n"


def test_what_a_training_tool_demands_is_set_only_where_unsafe_fixes_may_be(folder: Path) -> None:
    file = folder / "axolotl.yml"
    file.write_text(LACKING)
    assert run(["check", "axolotl.yml", "--fix", "--yes"]) == 1
    assert file.read_text() == LACKING, "which of the two was meant is not known"
    assert run(["check", "axolotl.yml", "--fix", "--unsafe-fixes", "--yes"]) == 0
    assert file.read_text() == LACKING + "load_in_4bit: true\ngradient_checkpointing: true\n"
    (folder / "lf.yaml").write_text(MISNAMED)
    assert run(["check", "lf.yaml", "--fix", "--unsafe-fixes", "--yes"]) == 0
    fixed = MISNAMED.replace("SFT", "sft").replace("type: qlora", "type: lora") + "quantization_bit: 4\n"
    assert (folder / "lf.yaml").read_text() == fixed
    uploads = "model_name_or_path: a/b\ndataset_name: c\nlog_completions_hub_repo: d/e  # for all\n"
    (folder / "grpo.yaml").write_text(uploads)
    assert run(["check", "grpo.yaml", "--fix", "--yes"]) == 0
    assert (folder / "grpo.yaml").read_text() == f"{uploads}log_completions: true\n"
    command = "swift sft --model a/b --train_type lora --dataset c --packing true\n"
    (folder / "train.sh").write_text(command)
    assert run(["check", "train.sh", "--fix", "--unsafe-fixes", "--yes"]) == 1
    assert (folder / "train.sh").read_text() == command, "a shell's words are not edited"


def test_fixing_json_and_what_cannot_be_fixed(folder: Path) -> None:
    text = '{\n\t"zero_optimization": {"stage": 2, "overlap_com": true},\n\t"train_batch_size": 8,\n\t"amp": {}\n}\n'
    (folder / "ds.json").write_text(text)
    assert run(["check", "ds.json", "--fix", "-y", *VERSIONS]) == 0
    assert (folder / "ds.json").read_text() == (
        '{\n\t"zero_optimization": {"stage": 2, "overlap_comm": true},\n\t"train_batch_size": 8\n}\n'
    )
    twice = "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_processes: 2\nfoo: 1\n"
    (folder / "twice.yaml").write_text(twice)
    assert run(["check", "twice.yaml", "--fix", "-y", *VERSIONS]) == 1
    assert (folder / "twice.yaml").read_text() == twice


def test_mending_asks_on_a_terminal(folder: Path) -> None:
    file = folder / "acc.yaml"
    for answer, written in (("n", False), ("y", True)):
        file.write_text(TYPO)
        child = pexpect.spawn(
            sys.executable,
            ["-m", "trainwiz", "check", "acc.yaml", "--fix", "--unsafe-fixes"],
            cwd=folder,
            env={**os.environ, "TRAINWIZ_LANG": "en"},
            timeout=180,
            encoding="utf-8",
        )
        child.expect_exact("Write these changes? [y/N]")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.wait()  # `close` would send it SIGHUP
        child.close()
        assert ("zero_stage" in file.read_text()) is written


def test_what_starts_other_machines_is_looked_for_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    (folder / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\nnum_machines: 2\nmain_process_ip: node1\n"
        "deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0, deepspeed_hostfile: hosts}\n"
    )
    assert checked(capsys, "acc.yaml") == (0, [])
    here = ("acc.yaml", "--machine", "here")
    assert [f["rule"] for f in checked(capsys, *here)[1]] == ["TW682", "TW683"]
    (folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    for program in ("ssh", "pdsh"):
        (folder / program).write_text("")
        (folder / program).chmod(0o755)
    assert checked(capsys, *here) == (0, [])


def test_sarif(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my acc.yaml").write_text(TYPO)
    assert run(["check", "my acc.yaml", "--format", "sarif", *VERSIONS]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (only,) = log["runs"]
    assert [rule["id"] for rule in only["tool"]["driver"]["rules"]] == ["TW654", "TW657"]
    first = only["results"][0]
    assert (first["ruleId"], first["level"]) == ("TW654", "warning")
    where = first["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "my%20acc.yaml"
    assert where["region"] == {"startLine": 5, "startColumn": 3, "endColumn": 12}


def test_github(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a,b.yaml").write_text(TYPO)
    assert run(["check", "a,b.yaml", "--format", "github", *VERSIONS]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "::warning file=a%2Cb.yaml,line=5,col=3,title=TW654::deepspeed_config.zero_stge: accelerate ignores zero_stge: "
        "deepspeed_config has no such key%0Adid you mean zero_stage?"
    )
    assert second.startswith("::error file=a%2Cb.yaml,line=7,col=1,title=TW657::")
    assert run(["check", "a,b.yaml", "--format", "xml"]) == 2


def test_every_renderer_has_the_same_fields(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "acc.yaml").write_text(TYPO)
    (folder / "train.py").write_text("import torch\nx = torch.load('a')\n")
    in_files = checked(capsys, "acc.yaml")[1]
    assert run(["lint", "train.py", "--json"]) == 0
    (in_script,) = json.loads(capsys.readouterr().out)["findings"]
    assert in_files[0].keys() == in_script.keys()
    assert [f["width"] for f in in_files] == [9, 15]
    assert run(["lint", "train.py", "--format", "github"]) == 0
    assert capsys.readouterr().out.startswith("::notice file=train.py,line=2,col=5,title=TW")
    assert run(["lint", "train.py", "--format", "sarif"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["runs"]
    assert only["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 2
    assert run(["lint", "train.py", "--format", "sarif", "--json"]) == 2


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("modle: {}\nbatch: {}\na: 1\n", True),
        ("modle: {}\nbatch: {}\na: 1\nb: 2\n", False),
        # Lightning's command line and litgpt, Hydra.
        ("seed_everything: 1\ntrainer: {}\ndata:\n  class_path: crops.Fields\nmodel: {}\noptimizer: {}\n", False),
        ("data:\n  - _target_: crops.Fields\nmodel: {}\noptimizer: {}\n", False),
    ],
)
def test_a_file_whose_keys_are_mostly_a_plans_is_meant_as_one(text: str, plan: bool) -> None:
    assert config.meant_as_plan(config.read("a.yaml", text)) == plan


def test_the_name_of_a_plan_is_the_one_that_is_rendered() -> None:
    assert targets.PLAN_FILE == render.PLAN_FILE


def test_the_hook_for_pre_commit(folder: Path) -> None:
    (hook,) = yaml.safe_load((HERE.parent / ".pre-commit-hooks.yaml").read_text())
    program, *arguments = hook["entry"].split()
    (folder / "other.yaml").write_text("services: {}\n---\na: 1\n")
    (folder / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    assert program == "trainwiz"
    assert run([*arguments, "other.yaml", "acc.yaml"]) == 0
    (folder / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nfoo: 1\n")
    assert run([*arguments, "other.yaml", "acc.yaml"]) == 1


STRANGE_YAML = [
    "{a: &x [*x]}",
    "? [1]\n: 2\n",
    "distributed_type: {1: 2}\n",
    "distributed_type: MULTI_GPU\n2: 3\n",
    "deepspeed_config: 3\ndistributed_type: DEEPSPEED\n",
    "distributed_type: [FSDP]\nfsdp_config: [1]\n",
    "num_processes: [2]\ngpu_ids: {}\ndistributed_type: MULTI_GPU\nmixed_precision: 3\n",
    "distributed_type: FSDP\nnum_processes: true\nfsdp_config: {fsdp_version: null, 3: 4}\n",
    "distributed_type: FSDP\nnum_machines: -2\nmachine_rank: x\nmain_process_ip: [1]\nmain_process_port: .inf\n",
    "distributed_type: MULTI_GPU\nnum_machines: .nan\nnum_processes: .inf\n",
    "<<: {distributed_type: FSDP}\nnum_processes: 2\n",
    "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: &a [*a], fsdp_auto_wrap_polcy: NO_WRAP}\n",
    "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: ²}\n",
    "distributed_type: FSDP\nfsdp_config: " + "{a: " * 900 + "1" + "}" * 900 + "\n",
]
STRANGE_JSON = [
    "{}",
    "[]",
    "null",
    '{"zero_optimization": 3}',
    '{"zero_optimization": {"stage": [2]}}',
    '{"zero_optimization": {"stage": 2, "offload_optimizer": {"ratio": NaN}}, "fp16": []}',
    '{"train_batch_size": {}, "optimizer": 3, "scheduler": {"type": 3}}',
    '{"zero_optimization": {"stage": 3, "offload_param": "cpu", "offload_optimizer": {"device": [3]}}}',
    '{"zero_optimization": true, "a.b": 1, "": {"": "auto"}}',
    '{"a":' * 3000,
    '{"zero_optimization":' * 600 + "1" + "}" * 600,
    '{"zero_optimization": {"stage": 2, "allgather_bucket_size": Infinity, "reduce_bucket_size": NaN}}',
    '{"zero_optimization": {"stage": 2},',
    '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu":',
]


@pytest.mark.parametrize(
    ("name", "text"), [*(("x.yaml", t) for t in STRANGE_YAML), *(("x.json", t) for t in STRANGE_JSON)]
)
def test_strange_values_are_no_crash(name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / name).write_text(text)
    for options in ([], ["--json"], ["--fix"], ["--fix", "--yes"]):
        assert run(["check", name, *options]) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_is_too_long_is_not_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.json").write_text('{"zero_optimization": {"stage": 2}, "x": "' + 2_000_000 * "y" + '"}')
    (only,) = checked(capsys, "x.json")[1]
    assert (only["rule"], only["message"]) == ("TW651", "the file has 1.9 MiB, too large for a configuration")


def test_a_file_named_from_the_root_of_a_repository(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "repo" / "configs").mkdir(parents=True)
    (folder / "repo" / "configs" / "ds.json").write_text(
        DS.replace("{\n", '{\n  "zero_optimization": {"stage": 2},\n', 1)
    )
    (folder / "repo" / "configs" / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: configs/ds.json\n"
    )
    assert checked(capsys, "repo/configs/acc.yaml") == (0, [])


def test_engines_of_other_times_are_judged_mildly(folder: Path) -> None:
    (folder / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nsome_later_thing: 1\n")
    (folder / "ds.json").write_text(
        DS.replace("{\n", '{\n  "zero_optimization": {"stage": 2, "some_later_thing": 1},\n', 1)
    )
    assert run(["check", ".", *VERSIONS]) == 1
    later = ("--engine-version", "accelerate=2.0", "--engine-version", "deepspeed=0.21")
    assert run(["check", ".", *later]) == 0


def test_mending_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu = ("--machine", str(HERE / "machines" / "cpu.json"))
    text = (
        "# ours\nstrategy: {kind: deepspeed, zero_stage: 2, offload_param_device: cpu}  # it must fit\n"
        "machine:\n  device: cpu  # no GPU\n  num_processes: 2\n"
        "batch:\n  real_batch_size: 100  # a round number\n  per_device_batch_size: 8\n"
    )
    (folder / "mine.yaml").write_text(text)
    # A plan that cannot be read is never passed over, whichever rules are selected.
    assert run(["check", "mine.yaml", *cpu, "--select", "TW3"]) == 1
    assert "TW690" in capsys.readouterr().out
    (folder / "mine.yaml").write_text(plans.completed(text))
    assert run(["check", "mine.yaml", *cpu, "--select", "TW3", "--select", "TW4"]) == 1
    assert run(["check", "mine.yaml", *cpu, "--select", "TW3", "--select", "TW4", "--fix", "-y"]) == 1
    assert "nothing can be fixed" in capsys.readouterr().err
    everything = ["--select", "TW3", "--select", "TW4", "--fix", "--unsafe-fixes", "-y"]
    assert run(["check", "mine.yaml", *cpu, *everything]) == 0
    shown = capsys.readouterr()
    assert "-  real_batch_size: 100  # a round number" in shown.err
    reason = "# check --fix: TW401: 100 is not divisible by"
    after = (folder / "mine.yaml").read_text()
    assert "zero_stage: 3, offload_param_device: cpu," in after
    assert f"  real_batch_size: 96  {reason}" in after
    assert f"  gradient_accumulation_steps: 6  {reason}" in after
    assert "# a round number" not in after
    assert yaml.safe_load(after)["batch"] == {
        "real_batch_size": 96,
        "per_device_batch_size": 8,
        "gradient_accumulation_steps": 6,
        "sequence_length": 256,
    }


AXOLOTL = (
    "base_model: some/model\ndatasets: [{path: some/data}]\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
    "sample_paking: true\ndeepspeed: ds/zero.json\n"
)


def test_a_training_tools_file_and_the_deepspeed_file_that_it_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ds").mkdir()
    (folder / "ds" / "zero.json").write_text(
        '{"zero_optimization": {"stage": 2},\n "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,\n'
        ' "gradient_accumulation_steps": "auto", "gradient_cliping": 1}\n'
    )
    (folder / "ax.yaml").write_text(AXOLOTL)
    expected = [("TW805", "ax.yaml", 3, 1), ("TW813", "ax.yaml", 5, 1), ("TW342", "ds/zero.json", 3, 41)]
    assert placed(checked(capsys, "ax.yaml")[1]) == expected
    assert placed(checked(capsys, ".")[1]) == expected
    run(["check", "ax.yaml", "--format", "github"])
    assert "::error file=ax.yaml,line=3,col=1,title=TW805::" in capsys.readouterr().out


# A trainer's own settings, with accelerate's among them.
MIXED = "num_processes: 1\n" + "".join(f"{key}: 1\n" for key in ("LoRA_type", "clip_skip", "epoch", "flip_aug"))


@pytest.mark.parametrize("text", ["name: x\njobs: {a: 1}\n", "model: {a: 1}\ntrainer: 1\nloader: 2\n", MIXED])
def test_a_file_of_no_known_kind_is_named_as_such(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.yaml").write_text(text)
    assert run(["check", "own.yaml"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "own.yaml has a kind that trainwiz does not know; its keys are" in said
    assert "Axolotl (base_model, datasets)" in said
    assert run(["check", "own.yaml", "--skip-others"]) == 0
    (folder / "other.yaml").write_text(text)
    (folder / "bad.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 0\n")
    assert run(["check", "own.yaml", "bad.yaml", "other.yaml"]) == 2, "what is known is judged nevertheless"
    shown = capsys.readouterr()
    assert "bad.yaml:2:1: error" in shown.out + shown.err
    assert "2 files have a kind that trainwiz does not know: own.yaml, other.yaml" in shown.err


def test_the_action_runs_what_there_is(folder: Path) -> None:
    action = yaml.safe_load((HERE.parent / "docs" / "action" / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    assert {f"${{{{ inputs.{name} }}}}" for name in ("paths", "ignore")} == set(step["env"].values())
    (folder / "ax.yaml").write_text(AXOLOTL)
    (folder / "trainwiz").write_text(f'#!/bin/sh\nexec {sys.executable} -m trainwiz "$@"\n')
    (folder / "trainwiz").chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TRAINWIZ_PATHS": "ax.yaml"}
    for ignored, expected in (("", "title=TW813"), ("TW8", "")):
        done = subprocess.run(
            ["bash", "-ec", step["run"]],
            env={**environ, "TRAINWIZ_IGNORE": ignored},
            capture_output=True,
            text=True,
            timeout=60 * patience(),
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
        assert bool(done.stdout.strip()) == bool(expected)


def test_most_keys_of_a_plan_make_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.yaml").write_text("modle: {name: tiny}\noptimiser: {name: adamw}\n")
    assert {found[0] for found in placed(checked(capsys, "own.yaml")[1])} == {"TW690"}


def test_the_sections_of_a_plan_are_those_of_its_model() -> None:
    assert set(PLAN_SECTIONS) == set(Plan.model_fields)
