"""`trainwiz checkpoints`: what lies there, compared with its manifests; and whether a plan can go on from it."""

import hashlib
import json
import os
import sys
from pathlib import Path

import pexpect
import projects
import pytest
from plans import BASE

from trainwiz import checkpoint, language
from trainwiz import plan as plans
from trainwiz.cli import run as trainwiz
from trainwiz.plan import Plan
from trainwiz.store import checkpoints
from trainwiz.workflows.weights import gathered


def write(folder: Path, update: int, name: str = "", **said: object) -> Path:
    """A checkpoint as the generated script writes it."""
    made = folder / "checkpoints" / (name or f"checkpoint-{update:08d}")
    (made / "deep").mkdir(parents=True)
    files = {"model": b"weights", "deep/optimizer": b"moments" * 1000}
    for file, content in files.items():
        (made / file).write_bytes(content)
    manifest = {
        "update": update,
        "layout": "whole",
        "world": 2,
        "config": {"seed": 42, "real_batch_size": 32, "learning_rate": 1e-5},
        "bytes": {file: len(content) for file, content in files.items()},
        "sha256": {file: hashlib.sha256(content).hexdigest() for file, content in files.items()},
        **said,
    }
    rewrite(made, **manifest)
    return made


def rewrite(checkpoint: Path, **said: object) -> None:
    """Change what a manifest says, and seal it anew."""
    file = checkpoint / "manifest.json"
    manifest = {**(json.loads(file.read_text()) if file.exists() else {}), **said}
    manifest.pop("self", None)
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**manifest, "self": own}, indent=1))


def test_the_table_says_what_is_complete_and_valid(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "2026-11-21_01-02-03-1"
    write(run, 300)
    (write(run, 900) / "model").write_bytes(b"weightz")
    write(run, 1000, "checkpoint-00001000.tmp")
    write(run, 800, "checkpoint-00000800.damaged-17")
    (run / "checkpoints" / "checkpoint-final").mkdir()
    done = projects.trainwiz("checkpoints", str(tmp_path))
    assert done.code == 1, "one is damaged"
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["UPDATE", "SIZE", "FILES", "RANKS", "AGE", "COMPLETE", "VALID"]
    shown = {row[0]: (row[1:5], " ".join(row[6:])) for row in rows[1:]}
    assert list(shown) == ["300", "800", "900", "1000"]
    assert shown["300"] == (["7.3", "KiB", "3", "2"], "yes yes")
    assert shown["800"][1] == "no no: moved aside as damaged"
    assert shown["900"][1] == "yes no: model"
    assert shown["1000"][1] == "no -"
    assert str(run / "checkpoints") in done.err


def test_as_json_quick_and_by_any_name_of_the_place(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "2026-11-21_01-02-03-1"
    path = write(run, 300)
    for place in (tmp_path, run, run / "checkpoints", path):
        done = projects.trainwiz("checkpoints", str(place), "--json")
        assert done.code == 0
        (found,) = json.loads(done.out)
        assert (found["path"], found["update"], found["complete"], found["valid"]) == (str(path), 300, True, True)
        assert (found["layout"], found["num_processes"], found["damaged"]) == ("whole", 2, [])
    (path / "model").unlink()
    quick = projects.trainwiz("checkpoints", str(tmp_path), "--json", "--quick")
    assert (quick.code, json.loads(quick.out)[0]["valid"]) == (0, None)
    nothing = projects.trainwiz("checkpoints", str(tmp_path / "runs"))
    assert nothing.code == 2
    assert "no checkpoints in " in nothing.err
    assert "is not a folder" in projects.trainwiz("checkpoints", str(tmp_path / "nowhere")).err


def test_a_resumed_run_shows_those_of_its_lineage(tmp_path: Path) -> None:
    first, second = (tmp_path / "runs" / f"2026-11-21_01-02-0{n}-1" for n in (3, 4))
    path = write(first, 300)
    second.mkdir()
    (second / "checkpoints").symlink_to(path.parent)
    assert json.loads(projects.trainwiz("checkpoints", str(tmp_path), "--json").out)[0]["path"] == str(path)


def test_the_comparing_shows_how_far_it_is(tmp_path: Path) -> None:
    write(tmp_path, 300)
    command = f"-m trainwiz checkpoints {tmp_path}"
    terminal = pexpect.spawn(sys.executable, command.split(), env=projects.environment(), encoding="utf-8", timeout=180)  # type: ignore[arg-type]
    terminal.expect("verifying: [0-9]+ % of")
    terminal.expect(pexpect.EOF)
    terminal.wait()  # `close` would send it SIGHUP
    terminal.close()
    assert terminal.exitstatus == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "manifest.json").write_text((path / "manifest.json").read_text().replace("300", "301")),
        lambda path: (path / "manifest.json").write_text("[]"),
        lambda path: (path / "stray.pkl").write_bytes(b""),
        lambda path: (path / "deep" / "optimizer").write_bytes(b""),
        lambda path: path.rename(path.with_name("checkpoint-00000400")),
        lambda path: rewrite(path, sha256={"a\0b": ""}),
        lambda path: rewrite(path, sha256={"\ud800": ""}),
        lambda path: rewrite(path, sha256={"../../../../etc/hostname": ""}),
        lambda path: os.mkfifo(path / "pipe"),
        lambda path: (path / "zero").symlink_to("/dev/zero"),
        lambda path: (path / "state").symlink_to(path / "deep"),
        lambda path: (path / "manifest.json").unlink() or os.mkfifo(path / "manifest.json"),
        lambda path: (path / "manifest.json").write_text("[" * 60_000),
    ],
)
def test_what_is_not_as_written_is_found(tmp_path: Path, damage: object) -> None:
    path = write(tmp_path, 300)
    whole = checkpoints.verify(path, seconds=9)
    assert whole
    assert whole.whole
    damage(path)  # type: ignore[operator]
    (path,) = (tmp_path / "checkpoints").iterdir()
    found = checkpoints.verify(path, seconds=9)
    assert found
    assert found.damaged


@pytest.mark.parametrize("command", ["export", "chat"])
def test_code_that_came_with_a_checkpoint_never_runs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "downloaded", 300)
    for folder in (path, path.parent):
        (folder / "task.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    for place in (path, path.parent):
        language.choose(["--lang", "en"], {})
        assert trainwiz([command, str(place)]) == 2
    assert "no task.py found above" in capsys.readouterr().err
    assert not (tmp_path / "canary").exists()


def test_a_damaged_checkpoint_that_is_named_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 300)
    (tmp_path / "task.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    (path / "model").write_bytes(b"weightz")
    language.choose(["--lang", "en"], {})
    assert trainwiz(["chat", str(path)]) == 1
    assert f"{path} is damaged: model" in capsys.readouterr().err
    assert not (tmp_path / "canary").exists()


def plan_of(kind: str, world: int, **changes: object) -> Plan:
    stage = int(kind[-1]) if kind.startswith("zero") else None
    values = {"strategy.kind": "deepspeed" if stage is not None else kind, "strategy.zero_stage": stage}
    return plans.with_changes(BASE, {**values, "machine.num_processes": world, **changes})


SGD = {"optimizer.name": "sgd"}
ON_NVME = {"strategy.offload_optimizer_device": "nvme", "strategy.nvme_path": "/scratch"}
CONFIG = {"seed": 42, "real_batch_size": 32}


@pytest.mark.parametrize(
    ("before", "plan", "says"),
    [
        (("whole", 2), plan_of("ddp", 4), None),
        (("whole", 2), plan_of("single", 1), None),
        (("fsdp", 2), plan_of("fsdp", 8), None),
        (("zero2", 2), plan_of("zero2", 2), None),
        (("zero2", 2), plan_of("zero2", 4), None),
        (("zero0", 2), plan_of("zero0", 4, **SGD), None),
        (
            ("zero2", 2),
            plan_of("zero2", 4, **SGD),
            "saved by 2 ranks, and zero2 can only load it with the same number of ranks; the plan has 4",
        ),
        (
            ("zero3", 2),
            plan_of("zero3", 4, **ON_NVME),
            "saved by 2 ranks, and zero3 can only load it with the same number of ranks",
        ),
        (("zero2", 2), plan_of("zero3", 2), "was saved with zero2; zero3 cannot load its files"),
        (("fsdp", 2), plan_of("ddp", 2), "was saved with fsdp; ddp cannot load its files"),
        (("whole", 2), plan_of("ddp", 2, seed=43), "trained with seed 42, but the plan has 43"),
        (
            ("whole", 2),
            plan_of("ddp", 2, **{"batch.real_batch_size": 64}),
            "batch.real_batch_size 32, but the plan has 64",
        ),
    ],
)
def test_what_a_plan_can_go_on_from(before: tuple[str, int], plan: Plan, says: str | None) -> None:
    layout, world = before
    found = checkpoint.obstacle(plan, {"layout": layout, "world": world, "config": CONFIG})
    if says is None:
        assert found is None
    else:
        assert found
        assert says in language.text(found.what)
    assert checkpoint.obstacle(plan, {}) is None, "what is not known is for the script to say"


@pytest.mark.parametrize("config", [None, [1], "x"])
def test_a_manifest_of_another_form_is_no_bug(config: object, tmp_path: Path) -> None:
    found = checkpoint.obstacle(plan_of("ddp", 2), {"layout": "whole", "world": 2, "config": config})
    assert found
    assert f"config is {type(config).__name__}" in language.text(found.what)
    assert not checkpoints.is_own(write(tmp_path, 300, signed="\ud800"))


def test_a_launch_that_could_not_go_on_is_refused_before_anything_starts(tmp_path: Path) -> None:
    values = {**projects.REGRESSION, "strategy.kind": "deepspeed", "strategy.zero_stage": 2, **SGD}
    folder = projects.make(tmp_path / "project", values)
    config = {"seed": 42, "real_batch_size": 16}
    write(folder / "runs" / "2026-11-21_01-02-03-1", 3, layout="zero2", world=4, config=config)
    refused = projects.trainwiz("launch", str(folder), "--resume", "--dry-run")
    assert refused.code == 1
    assert "saved by 4 ranks, and zero2 can only load it with the same number of ranks; the plan has 2" in refused.err
    assert "trainwiz export" in refused.err
    write(folder / "runs" / "2026-11-21_01-02-04-1", 3, layout="zero2", world=2, config=config)
    assert projects.trainwiz("launch", str(folder), "--resume", "--dry-run").code == 0


TASK = """
from dataclasses import dataclass
@dataclass
class TaskConfig:
    size: int = 1
def build_model(config):
    return config.size
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that has a task and checkpoints: of an older train.py, and of an engine that nobody knows."""
    (tmp_path / "task.py").write_text(TASK)
    for update in (3, 6):
        write(tmp_path / "output", update, layout="pipeline")
    old = write(tmp_path / "output", 2)
    said = json.loads((old / "manifest.json").read_text())
    kept = {name: said[name] for name in ("update", "world", "config", "sha256")}
    (old / "manifest.json").write_text(json.dumps(kept))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 1, "it was saved in the layout pipeline, which this version of trainwiz does not support"),
        (("--checkpoint", "2"), 1, "its manifest does not say how the weights are split across files"),
        (("--checkpoint", "5"), 2, "has no complete checkpoint for update 5"),
        (("--output", "{folder}"), 2, "already exists; nothing was written"),
        (("--output", "{folder}/link"), 2, "already exists; nothing was written"),
    ],
)
def test_what_cannot_be_exported_is_said(project: Path, words: tuple[str, ...], code: int, says: str) -> None:
    (project / "link").symlink_to("nowhere")
    done = projects.trainwiz("export", str(project), *(word.format(folder=project) for word in words))
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert not (project / "exported" / "checkpoint-00000006").exists()


def test_only_a_checkpoint_that_is_whole_is_exported(project: Path) -> None:
    newest, before = (project / "output" / "checkpoints" / f"checkpoint-0000000{n}" for n in (6, 3))
    (newest / "model").write_bytes(b"weightz")
    for each in (newest, before):
        rewrite(each, layout="whole")
    (project / "exported").write_text("")
    done = projects.trainwiz("export", str(project))
    assert (done.code, "a file exists where a folder is needed; nothing was written" in done.err) == (1, True)
    (project / "exported").unlink()
    done = projects.trainwiz("export", str(project), "--python", "/nowhere/python")
    assert (done.code, "cannot gather the weights" in done.err) == (1, True)
    done = projects.trainwiz("export", str(project))
    assert f"skipping damaged checkpoint {newest}: model" in done.err
    assert f"gathering the weights of {before}" in done.err
    (before / "stray.pkl").write_bytes(b"")
    done = projects.trainwiz("export", str(project), "--checkpoint", "3")
    assert (done.code, "no intact checkpoint in" in done.err) == (1, True)
    done = projects.trainwiz("export", str(before))  # as a run's last line names it
    assert (done.code, f"checkpoint {before} is damaged: stray.pkl" in done.err) == (1, True)
    done = projects.trainwiz("export", str(before), "--checkpoint", "5")
    assert (done.code, f"{before} is the checkpoint of update 3, not 5" in done.err) == (2, True)
    (project / "task.py").unlink()
    done = projects.trainwiz("export", str(project / "output"))
    assert (done.code, "no task.py found above" in done.err) == (2, True)


@pytest.mark.parametrize(("words", "there"), [((), False), (("--trust",), True)])
def test_who_is_not_known_names_no_code_on_the_hub(project: Path, words: tuple[str, ...], there: bool) -> None:
    """`attention: them/kernel` in a manifest: transformers downloads it with this package, and runs it."""
    (project / "kernels.py").write_text("")
    tries = "    import importlib.util\n    raise ValueError(f'{importlib.util.find_spec(\"kernels\") is not None=}')\n"
    (project / "task.py").write_text(TASK.replace("    return config.size\n", tries))
    rewrite(project / "output" / "checkpoints" / "checkpoint-00000006", layout="whole", config={})
    done = projects.trainwiz("export", str(project), *words)
    assert (done.code, f"is not None={there}" in done.err) == (1, True), done.err


def test_a_projects_own_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    """Sets of speech are listed in files of that name."""
    made = write(tmp_path / "runs" / "2026-11-21_01-02-03-1", 300)
    for folder in (tmp_path, made):
        (folder / "task.py").touch()
    (tmp_path / "manifest.json").write_text('[{"audio_filepath": "a.wav"}]')
    assert gathered.project_of(made, made) == tmp_path
