"""Every rule on files of accelerate and DeepSpeed against its cases in tests/configurations, and against the engines.

A case's `engine` says how the real engine is given the same file: in a failing case it must stop with `stops`, in the
others it must not. One child process asks for all of them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plans
import pytest
import warm
import yaml_cases

from trainwiz import config, rules
from trainwiz.adoption import optimizer as adoption
from trainwiz.config.edit import edited
from trainwiz.engines import accelerate, colossalai, deepspeed, torch
from trainwiz.engines import deepspeed_types as types
from trainwiz.engines.accelerate import (
    BLOCKS,
    CLUSTER_KEYS,
    DISTRIBUTED_TYPES,
    DYNAMO_BACKENDS,
    LAUNCH_ARGUMENTS,
    SAGEMAKER_KEYS,
)
from trainwiz.engines.deepspeed import REMOVED_IN_0_19, STRICT_BLOCKS, STRICT_IN_0_19, ZERO_KEYS, ZERO_UNTIL_0_18
from trainwiz.finding import Finding
from trainwiz.language import text
from trainwiz.probe import model as probing
from trainwiz.probe.cache import HubCache
from trainwiz.render import training_files
from trainwiz.script import read as read_script
from trainwiz.store import plans as store
from trainwiz.store import templates
from trainwiz.workflows.check.configurations import Files

HERE = Path(__file__).parents[1]
CHILD = HERE / "engine_children" / "configurations.py"
RULES = {rule.id: rule for rule in rules.of_configurations()}
TEMPLATES = templates.load()
TRIED = {"accelerate": accelerate.TRIED, "deepspeed": deepspeed.TRIED}
OUTCOMES = ("fails", "passes", "almost")
KEYS = {
    *OUTCOMES,
    "says",
    "engine",
    "stops",
    "files",
    "beside",
    "version",
    "world",
    "script",
    "name",
    "asked",
    "about",
    "model",
    "programs",
}


def each_case() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    for file in sorted((HERE / "configurations").glob("*.yaml")):
        for id, cases in yaml_cases.read(file).items():
            for i, case in enumerate(cases):
                assert case.keys() <= KEYS, f"{id}: a case has no {case.keys() - KEYS}"
                yield id, next(name for name in OUTCOMES if name in case), i, case


CASES = list(each_case())


def name_of(case: dict[str, Any], text: str) -> str:
    return case.get("name") or ("ds.json" if "beside" in case or text.startswith('{"') else "accelerate.yaml")


def files_of(case: dict[str, Any], outcome: str, folder: Path) -> tuple[Files, Path]:
    """The case's files on the disk, as `trainwiz check` takes them up; and the one that it is about."""
    folder.mkdir(parents=True, exist_ok=True)
    text = case[outcome]
    if outcome != "fails" and config.kind_of(config.read("trainwiz.yaml", text)) == "plan":
        text = plans.completed(text)
    texts = {name_of(case, case[outcome]): text, **case.get("files", {})}
    if "beside" in case:
        texts["accelerate.yaml"] = case["beside"]
    for name, text in texts.items():
        (folder / name).write_text(text)
    texts = {name: text for name, text in texts.items() if name.endswith((".yaml", ".json", *config.SHELL_SUFFIXES))}
    documents = {str(folder / name): config.read(str(folder / name), text) for name, text in texts.items()}
    script = read_script("train.py", case["script"]) if "script" in case else None
    versions = {**TRIED, "deepspeed": case.get("version", deepspeed.TRIED)}
    about = case.get("about") or name_of(case, case[outcome])
    mistakes = {
        path: store.mistakes(document) for path, document in documents.items() if config.kind_of(document) == "plan"
    }
    files = Files(documents=documents, mistakes=mistakes, script=script, versions=versions)
    if "model" in case:
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text(json.dumps(case["model"]))
        architecture = probing.architecture("model", folder, HubCache({}))
        assert architecture is not None
        files = dataclasses.replace(files, models=dict.fromkeys(documents, architecture))
    if "programs" in case:
        files = dataclasses.replace(files, programs=frozenset(case["programs"].split()))
    return files, folder / about


def test_what_is_installed_is_what_an_engines_room_names() -> None:
    root = HERE.parent
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)", (root / "constraints.txt").read_text(), re.MULTILINE))
    assert TRIED.items() <= pins.items()
    older = re.findall(r"^([\w-]+)==([\d.]+)", (root / "constraints-colossalai.txt").read_text(), re.MULTILINE)
    assert colossalai.TRIED.items() <= dict(older).items()
    bounds = dict(re.findall(r'^  "([\w-]+)>=([\d.]+)', (root / "pyproject.toml").read_text(), re.MULTILINE))
    for name, engine in {"accelerate": accelerate, "deepspeed": deepspeed, "torch": torch}.items():
        assert bounds[name] == engine.OLDEST


@pytest.mark.parametrize(("id", "outcome", "case"), [pytest.param(i, o, c, id=f"{i}-{o}-{n}") for i, o, n, c in CASES])
def test_case(id: str, outcome: str, case: dict[str, Any], tmp_path: Path) -> None:
    files, about = files_of(case, outcome, tmp_path)
    found = files.findings([id], [])
    if outcome != "fails":
        assert not found, found[0].message
        return
    said = [each for each in found if case["says"] in text(each.message)]
    assert said, [str(each.message) for each in found]
    assert found[0] in said or id == "TW690"  # which also names the keys that a short text leaves out
    assert said[0].file == str(about)
    assert_readable(said[0])
    assert_fixed(id, said[0], files)


def assert_readable(finding: Finding) -> None:
    assert finding.place
    for message in (finding.message, finding.fix.message if finding.fix else finding.message):
        assert "{" not in str(message).replace("'{", "")
        assert "None" not in str(message)
    lines = Path(finding.place.file).read_text().splitlines() or [""]
    assert 1 <= finding.place.line <= len(lines)
    assert 1 <= finding.place.column <= len(lines[finding.place.line - 1]) + 1


def assert_fixed(id: str, finding: Finding, files: Files) -> None:
    """What a finding would change ends it, and makes no file that cannot be read."""
    if not finding.fix or not finding.fix.changes or finding.file not in files.documents:
        return
    text = edited(files.documents[finding.file], finding.fix.changes)
    assert text is not None, f"{finding.fix.changes} cannot be written"
    documents = {**files.documents, finding.file: config.read(finding.file, text)}
    again = dataclasses.replace(files, documents=documents)
    assert not again.documents[finding.file].problem
    left = [f for f in again.findings([id], []) if f.where == finding.where]
    assert not left, f"after its own fix: {left[0].message}"


@pytest.mark.parametrize("id", sorted(RULES))
def test_every_rule_has_each_kind_of_case(id: str) -> None:
    assert {outcome for i, outcome, _, _ in CASES if i == id} == set(OUTCOMES)


def test_manuals_have_all_their_parts() -> None:
    assert len(RULES) > 50
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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """What the engines said to each case that is given to one; empty where they did not stop."""
    asked, cases = [], []
    for id, outcome, i, case in CASES:
        if "engine" not in case:
            continue
        folder = tmp_path_factory.mktemp(f"{id}-{i}")
        files, _ = files_of(case, outcome, folder)
        about = folder / name_of(case, case[outcome])
        kind = "deepspeed" if about.suffix == ".json" else "accelerate"
        extra = {key: case[key] for key in ("world", "asked", "script") if key in case}
        if case["engine"] == "inert":
            (found, *_) = files.findings([id], [])
            without = edited(files.documents[str(about)], {found.where: None})
            assert without is not None
            (folder / "without.yaml").write_text(without)
            extra["without"] = str(folder / "without.yaml")
        asked.append((id, i))
        cases.append({"how": case["engine"], "folder": str(folder), kind: str(about), **extra})
    done = warm.child(CHILD, text=json.dumps(cases), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.err
    results = json.loads(done.out.splitlines()[-1])
    return dict(zip(asked, results, strict=True))


# docs/decisions/rules.md: A rule's cases are also given to the engine
@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize(
    ("id", "outcome", "number", "case"),
    [pytest.param(i, o, n, c, id=f"{i}-{o}-{n}") for i, o, n, c in CASES if "engine" in c],
)
def test_engine(answers: dict[tuple[str, int], str], id: str, outcome: str, number: int, case: dict[str, Any]) -> None:
    said = answers[id, number]
    if outcome == "fails":
        assert said
        assert case["stops"] in said
    else:
        assert not said


def shown() -> set[str]:
    """The rules that an engine agrees with in some case."""
    return {id for id, outcome, _, case in CASES if outcome == "fails" and "stops" in case}


def answered(program: str, folder: Path) -> Any:
    """What a program prints last, as JSON."""
    (folder / "program.py").write_text(program)
    done = warm.child(folder / "program.py")
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


def test_the_vocabulary_is_that_of_the_engines(tmp_path: Path) -> None:
    program = """
import json, os
os.environ["DS_ACCELERATOR"] = "cpu"
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, DynamoBackend
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor import config as monitor
from deepspeed.runtime import config, precision_config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero import config as zero, offload_config
def names(kind):
    fields = kind.model_fields
    return sorted(set(fields) | {f.alias for f in fields.values() if f.alias})
print()
print(json.dumps({
    "cluster": sorted(ClusterConfig.__dataclass_fields__), "sagemaker": sorted(SageMakerConfig.__dataclass_fields__),
    "arguments": sorted(a.dest for a in launch_command_parser()._actions),
    "types": [t.value for t in DistributedType], "dynamo": [b.value for b in DynamoBackend],
    "zero": names(zero.DeepSpeedZeroConfig), "param": names(offload_config.DeepSpeedZeroOffloadParamConfig),
    "optimizer": names(offload_config.DeepSpeedZeroOffloadOptimizerConfig),
    "fp16": names(precision_config.DeepSpeedFP16Config), "bf16": names(precision_config.DeepSpeedBF16Config),
    "tensor_parallel": names(TPTrainingConfig), "compile": names(CompileConfig),
    "hybrid_engine": names(config.HybridEngineConfig), "comms_logger": names(CommsLoggerConfig),
    "tensorboard": names(monitor.TensorBoardConfig), "csv_monitor": names(monitor.CSVConfig),
    "wandb": names(monitor.WandbConfig), "comet": names(monitor.CometConfig),
    "removed": sorted(config._REMOVED_TOP_LEVEL_CONFIG_KEYS), "gone": sorted(config._REMOVED_ZERO_CONFIG_KEYS),
}))
"""
    engines = {key: set(value) for key, value in answered(program, tmp_path).items()}
    assert engines["cluster"] == CLUSTER_KEYS
    assert engines["sagemaker"] == SAGEMAKER_KEYS
    assert engines["types"] == set(DISTRIBUTED_TYPES)
    assert engines["dynamo"] == set(DYNAMO_BACKENDS)
    assert engines["zero"] == ZERO_KEYS
    assert engines["param"] == STRICT_BLOCKS["zero_optimization.offload_param"]
    assert engines["optimizer"] == STRICT_BLOCKS["zero_optimization.offload_optimizer"]
    assert engines["fp16"] == STRICT_BLOCKS["fp16"]
    assert engines["bf16"] == STRICT_BLOCKS["bf16"]
    for block in STRICT_IN_0_19:
        assert engines[block] == STRICT_BLOCKS[block], block
    assert engines["removed"] == REMOVED_IN_0_19
    assert engines["gone"] == ZERO_UNTIL_0_18
    in_blocks = {key for _, keys in BLOCKS.values() for key in keys}
    # The one key that reaches accelerate's launcher without being an argument, and one that no file may hold.
    assert in_blocks | LAUNCH_ARGUMENTS | {"help"} == engines["arguments"] | {"fsdp_ignored_modules"}


def test_the_types_are_those_of_the_engine(tmp_path: Path) -> None:
    """Every field of these classes that is a truth value or a number, with its smallest value."""
    program = """
import inspect, json, os, re
os.environ["DS_ACCELERATOR"] = "cpu"
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor import config as monitor
from deepspeed.runtime import config, lr_schedules, precision_config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero import config as zero, offload_config
blocks = {"zero_optimization.": zero.DeepSpeedZeroConfig, "fp16.": precision_config.DeepSpeedFP16Config,
          "bf16.": precision_config.DeepSpeedBF16Config,
          "zero_optimization.offload_param.": offload_config.DeepSpeedZeroOffloadParamConfig,
          "zero_optimization.offload_optimizer.": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
          "tensor_parallel.": TPTrainingConfig, "compile.": CompileConfig, "comms_logger.": CommsLoggerConfig,
          "hybrid_engine.": config.HybridEngineConfig, "tensorboard.": monitor.TensorBoardConfig,
          "csv_monitor.": monitor.CSVConfig, "wandb.": monitor.WandbConfig, "comet.": monitor.CometConfig}
found = {"bool": [], "int": [], "int from 0": [], "float": [], "str": [], "list": []}
for block, kind in blocks.items():
    for name, field in kind.model_fields.items():
        words = re.sub("typing.Optional|class|[^a-z]", "", str(field.annotation))
        words += " from 0" if words == "int" and field.metadata else ""
        for each in {name, field.alias} - {None}:
            found.get(words, []).append(block + each)
def taken(*made):
    return sorted({p for each in made for p in list(inspect.signature(each.__init__).parameters)[2:]})
print()
def defaults(made, names):
    given = inspect.signature(made.__init__).parameters
    return {name: given[name].default for name in names.split()}
import torch
usual = {"adamw": defaults(FusedAdam, "lr weight_decay betas eps"),
         "sgd": defaults(torch.optim.SGD, "lr weight_decay momentum")}
also = defaults(DeepSpeedCPUAdam, "lr weight_decay betas eps")
print(json.dumps([usual, also, found,
                  {name: taken(getattr(lr_schedules, name)) for name in lr_schedules.VALID_LR_SCHEDULES},
                  taken(FusedAdam, DeepSpeedCPUAdam), taken(FusedLion, DeepSpeedCPULion)]))
"""
    usual, also, found, schedulers, adam, lion = answered(program, tmp_path)
    assert usual == adoption.DEFAULTS
    assert also == usual["adamw"]
    assert set(found["bool"]) == types.TRUTH
    of_at_least_1 = {"hybrid_engine.max_out_tokens"}
    assert set(found["int"]) == types.WHOLE - of_at_least_1
    assert set(found["int from 0"]) - of_at_least_1 == types.WHOLE_FROM_0
    assert of_at_least_1 <= set(found["int from 0"])
    assert set(found["str"]) == {key for key in types.TEXTS if not key.endswith(("nvme_path", ".type"))}
    assert set(found["list"]) <= types.LISTS
    assert set(found["float"]) == types.NUMBERS
    assert {name: set(known) for name, known in schedulers.items()} == deepspeed.SCHEDULERS
    assert set(adam) < deepspeed.OPTIMIZER_PARAMETERS["adamw"]
    assert set(lion) == deepspeed.OPTIMIZER_PARAMETERS["lion"]


def test_what_trainwiz_renders_is_judged_right() -> None:
    """Only what the plan's own rules say as well, and what a launch by trainwiz takes care of."""
    seen, judged = set(), 0
    for plan in [p for p in plans.product() if p.machine.device in ("cuda", "cpu")][::3]:
        texts = {
            a.path: a.text for a in training_files(plan, TEMPLATES) if a.path in ("accelerate.yaml", "ds_config.json")
        }
        files = Files(documents={path: config.read(path, text) for path, text in texts.items()}, versions=TRIED)
        judged += len(texts)
        seen |= {finding.rule for finding in files.findings([], ["TW332"])}  # the file is not on the disk
    assert judged > 200
    # Offload below its stage, CPU ranks under accelerate launch, machines whose number is given at the launch.
    assert seen <= {"TW345", "TW667", "TW674", "TW349"}


JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  trainer: {numProcPerNode: %d, resourcesPerNode: {limits: {nvidia.com/gpu: 2}}, command: [torchrun, train.py]}
"""


def test_each_job_of_a_file_is_judged_at_its_own_place() -> None:
    document = config.read("jobs.yaml", "\n---\n".join([JOB % 2, "kind: Service", JOB % 4, JOB % 8]))
    found = Files(documents={"jobs.yaml": document}).findings(["TW901"], [])
    assert [finding.line for finding in found] == [12, 18]
    assert [str(finding.message)[:1] for finding in found] == ["4", "8"]
    # A change is made by its key, which the first job has, too.
    assert not any(finding.fix and finding.fix.changes for finding in found)
