"""Every fix that `check --fix` makes without a question, given to the engine: the file before it and after it."""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from test_configurations import CASES, RULES, TEMPLATES, files_of  # noqa: F401

from trainwiz import config
from trainwiz.config.edit import edited
from trainwiz.config.spelling import is_unambiguous
from trainwiz.finding import Finding, Level, errors
from trainwiz.workflows.check.configurations import Files

HERE = Path(__file__).parents[1]
CHILD = HERE / "engine_children" / "replays.py"
ROOM = HERE.parent / "launcher" / "trainwiz" / "rules" / "files"


@dataclasses.dataclass(frozen=True)
class Replay:
    """A safe fix of a case, with the text that it makes."""

    name: str
    finding: Finding
    files: Files
    after: Files
    case: dict[str, Any]
    folder: Path

    @property
    def template(self) -> str:
        assert self.finding.fix
        return self.finding.fix.message.template

    def asked(self) -> dict[str, Any]:
        path = str(self.finding.file)
        for name, files in (("before", self.files), ("after", self.after)):
            (self.folder / name).write_text(files.documents[path].text)
        extra: dict[str, Any] = {key: self.case[key] for key in ("world", "asked", "script") if key in self.case}
        return {
            "how": self.case.get("engine", ""),
            "folder": str(self.folder),
            "path": path,
            "before": str(self.folder / "before"),
            "after": str(self.folder / "after"),
            **extra,
        }


def each_replay(root: Path) -> Iterator[Replay]:
    for id, outcome, number, case in CASES:
        if outcome != "fails" or RULES[id].level is Level.HINT:
            continue
        files, _ = files_of(case, outcome, root / f"{id}-{number}")
        for i, finding in enumerate(files.findings([id], [])):
            if finding.fix and finding.fix.safe and finding.fix.changes:
                document = files.documents[str(finding.file)]
                text = edited(document, finding.fix.changes)
                assert text is not None
                documents = {**files.documents, document.path: config.read(document.path, text)}
                after = dataclasses.replace(files, documents=documents)
                yield Replay(f"{id}-{number}-{i}", finding, files, after, case, root / f"{id}-{number}")


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> list[Replay]:
    return list(each_replay(tmp_path_factory.mktemp("replays")))


@pytest.fixture(scope="module")
def answers(replays: list[Replay]) -> dict[str, dict[str, Any]]:
    asked = json.dumps([replay.asked() for replay in replays])
    done = warm.child(CHILD, text=asked, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.code == 0, done.err
    return dict(zip((r.name for r in replays), json.loads(done.out.splitlines()[-1]), strict=True))


@pytest.mark.usefixtures("operators")
def test_the_engine_reads_both_alike_or_stopped_before(
    replays: list[Replay], answers: dict[str, dict[str, Any]]
) -> None:
    assert len(replays) > 40
    wrong = []
    for replay in replays:
        said = answers[replay.name]
        if said["after"] or (said["differ"] and not said["before"]):
            wrong.append((replay.name, replay.template, said))
    assert not wrong


def test_a_check_of_its_own_output_is_no_worse(replays: list[Replay]) -> None:
    for replay in replays:
        before, after = replay.files.findings([], []), replay.after.findings([], [])
        assert len(errors(after)) <= len(errors(before)), replay.name
        same = [f for f in after if (f.rule, f.where) == (replay.finding.rule, replay.finding.where)]
        assert not same, replay.name


def test_each_safe_fix_is_replayed(replays: list[Replay]) -> None:
    """By the sentences in the calls of `safe` in each module of rules on files, and of what spells names."""
    replayed = {(RULES[r.finding.rule].check.__module__.rpartition(".")[2], r.template) for r in replays}
    safe = {(file.stem, template) for file in ROOM.glob("*.py") for template in safe_sentences(file)}
    assert len(safe) > 15
    assert not safe - replayed, sorted(safe - replayed)


def safe_sentences(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "safe":
            inside = [n for n in ast.walk(node) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "remedy"]
            yield from (str(ast.literal_eval(call.args[0])) for call in inside)
        if any(keyword.arg == "stops" for keyword in node.keywords):
            yield "did you mean {key}?"


@pytest.mark.parametrize(
    ("word", "known", "sure"),
    [
        ("overlap_com", "overlap_comm", True),
        ("Overlap-Comm", "overlap_comm", True),
        ("learningrate", "learning_rate", True),
        ("FullShard", "FULL_SHARD", True),
        ("log", "log_level", False),
        ("stage", "zero_stage", False),
        ("bf16", "fp16", False),
        ("stage3_param", "stage3_param_persistence_threshold", False),
        ("offload_optimizer1", "offload_optimizer2", False),
        ("lr", "eps", False),
    ],
)
def test_what_a_name_can_only_mean(word: str, known: str, sure: bool) -> None:
    assert is_unambiguous(word, known) is sure


def test_the_engines_refusal_is_no_silence(tmp_path: Path) -> None:
    """What a newer DeepSpeed refuses is deleted without a question only where it was off."""
    shutil.rmtree(tmp_path / "x", ignore_errors=True)
    for block, deleted in (
        ('"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}', False),
        ('"sparse_attention": {"mode": "fixed"}', False),
        ('"progressive_layer_drop": {"enabled": true, "theta": 0.5}', False),
        ('"elasticity": {"enabled": false}', True),
        ('"compression_training": {}', True),
    ):
        text = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, ' + block + "}"
        files = Files(documents={"ds.json": config.read("ds.json", text)}, versions={"deepspeed": "0.19.8"})
        (finding,) = files.findings(["TW343"], [])
        assert finding.fix
        assert finding.fix.safe is deleted, block
