"""The engine colossalai, in the environment that `make colossalai` makes: TorchDDP trains for real on two CPU ranks.

The other plugins need a GPU. Here they train up to their device check, which the preflight names before; then, with
`standin_colossalai`, which answers for the device, through their own partitions, chunks and collectives.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import planting
import projects
import pytest
import warm
from plans import BASE
from projects import REGRESSION, SMALL, begins_with, forecast_and_measured, launch, losses, make, metrics
from test_frequencies import LLAMA, SAYS, are_exact
from test_training import held, wait_for

from trainwiz.engines import colossalai
from trainwiz.engines.transformers import MASKS_SINCE, takes_masks
from trainwiz.probe.weights import gather as weights_of

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-colossalai" / "bin" / "python"
pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-colossalai here: make colossalai"),
]

HERE = ("--python", str(PYTHON))
STANDIN = {
    "TRAINWIZ_COLOSSALAI_STANDIN": "cpu",
    "PYTHONPATH": projects.python_path(Path(__file__).parents[1] / "standin_colossalai"),
}
PORT = {"machine.main_process_port": 0}
LONGER = {**REGRESSION, **PORT, "schedule.n_steps": 12, "checkpoint.checkpointing_steps": 4}
PLUGINS: dict[str, dict[str, object]] = {
    "colossal_zero1": {},
    "colossal_zero2": {},
    "gemini": {"precision.mixed_precision": "bf16"},
    "colossal_fsdp": {},
}
UNCHECKED = {"ignore": {"TW309": "the stand-in answers for the device"}}


def weights(folder: Path) -> str:
    """The hash of the final weights below an output folder."""
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that TorchDDP has trained, and whose rank 1 can be met in an update."""
    folder = make(tmp_path_factory.mktemp("colossalai") / "project", {**LONGER, "strategy.kind": "colossal_ddp"}, *HERE)
    held(folder)
    done = warm.launch(folder, *HERE)
    assert done.code == 0, done.err
    return folder


# docs/decisions/colossalai.md: The loop rescales gradients and norms, since no plugin divides by the accumulation
def test_torch_ddp_follows_the_curve_of_accelerate(tmp_path: Path) -> None:
    """A language model, under two versions of transformers; accumulation 2 on both sides."""
    theirs = make(tmp_path / "accelerate", {**SMALL, **PORT, "strategy.kind": "ddp"})
    assert warm.launch(theirs).code == 0
    mine = make(tmp_path / "colossalai", {**SMALL, **PORT, "strategy.kind": "colossal_ddp"}, *HERE)
    done = launch(mine, *HERE)
    assert done.code == 0, done.err
    assert "The " in done.out, "no text from the trained model"
    for name in ("checkpoint_bytes", "host_bytes"):
        forecast, measured = forecast_and_measured(mine, name)
        assert forecast == pytest.approx(measured, rel=0.05), name
    exported(mine, tmp_path / "exported")
    for one, other in zip(metrics(mine), metrics(theirs), strict=True):
        assert set(one) == set(other)
        for field in ("loss", "grad_norm_pre_clip", "weight_norm", "lr", "epoch"):
            assert one[field] == pytest.approx(other[field], rel=1e-4), (field, one["update"])


def test_a_killed_run_ends_bit_for_bit_where_it_would_have(reference: Path, tmp_path: Path) -> None:
    curve = losses(reference)
    folder = tmp_path / "project"
    shutil.copytree(reference, folder, ignore=shutil.ignore_patterns("runs"))
    latest = folder / "runs" / "latest"
    command = warm.command(folder / "train.py", "launch", str(folder), *HERE)
    with subprocess.Popen(
        command,
        env=projects.environment({"HELD_AT": "12"}),  # the second micro-batch of update 6
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as p:
        wait_for((folder / "held").exists)
        os.kill(warm.process(folder, 1), signal.SIGKILL)
        assert p.wait(timeout=180) == 128 + signal.SIGKILL
    done = warm.launch(folder, "--resume", *HERE)
    assert done.code == 0, done.err
    rest = metrics(folder)
    assert [r["update"] for r in rest] == list(range(5, 13))
    assert [r["loss"] for r in rest] == curve[4:]
    assert weights(latest) == weights(reference / "runs" / "latest")
    newest, canary = latest / "checkpoints" / "checkpoint-00000012", tmp_path / "canary"
    subprocess.run([warm.python(), planting.__file__, str(newest), "optimizer.pt", str(canary)], check=True)
    done = warm.launch(folder, "--resume", *HERE)
    assert (done.code, "holds posix.system, which is not part of a checkpoint" in done.err) == (1, True), done.err
    assert not canary.exists()


def exported(folder: Path, target: Path) -> None:
    """From the ranks' own parts, without their engine, `trainwiz export` writes what the training wrote at its end."""
    done = projects.trainwiz("export", str(folder), *warm.option(str(PYTHON)), "--output", str(target))
    assert done.code == 0, done.err
    files = [file.name for file in (folder / "runs" / "latest" / "model").iterdir()]
    assert "model.safetensors" in files
    for name in files:
        assert (target / name).read_bytes() == (folder / "runs" / "latest" / "model" / name).read_bytes(), name


@pytest.mark.parametrize("kind", PLUGINS)
def test_the_preflight_names_the_device_before_the_plugin_does(kind: str, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(reference, folder, ignore=shutil.ignore_patterns("runs"))
    plan = folder / "trainwiz.yaml"
    plan.write_text(plan.read_text().replace("kind: colossal_ddp", f"kind: {kind}"))
    refused = launch(folder, *HERE)
    assert refused.code == 1
    assert f"TW309 error strategy.kind\n      {kind} runs only on cuda" in refused.out + refused.err
    assert not (folder / "runs").exists()


def test_preferences_follow_the_curve_of_accelerate(tmp_path: Path) -> None:
    """KTO needs forward passes without gradients: for its references, and before the first micro-batch of an update."""
    kto = {**SMALL, **PORT, "task": "preference", "preference.loss": "kto", "batch.sequence_length": 96}
    rows = [{"prompt": f"{i}?", "completion": "o" * (i % 9 + 1), "label": i % 3 == 0} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kto |= {"schedule.n_steps": 3, "data.train": str(tmp_path / "rows.jsonl"), "data.eval": "20%"}
    theirs = make(tmp_path / "accelerate", {**kto, "strategy.kind": "ddp"})
    assert warm.launch(theirs).code == 0
    for kind in ("colossal_ddp", *PLUGINS):
        changes = {"strategy.kind": kind, **PLUGINS.get(kind, {}), **(UNCHECKED if kind in PLUGINS else {})}
        mine = make(tmp_path / kind, {**kto, **changes}, *HERE)
        done = warm.launch(mine, *HERE, env=STANDIN if kind in PLUGINS else None)
        assert done.code == 0, done.err
        forecast, measured = forecast_and_measured(mine, "checkpoint_bytes")
        assert forecast == pytest.approx(measured, rel=0.05), kind
        tolerance = 0.02 if kind == "gemini" else 1e-4
        for one, other in zip(metrics(mine), metrics(theirs), strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=tolerance), (kind, one["update"])


# docs/decisions/colossalai.md: Gemini's chunks are at most as large as the model
@pytest.mark.parametrize("kind", PLUGINS)
def test_every_plugin_follows_the_curve_and_resumes_exactly(kind: str, reference: Path, tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**LONGER, "strategy.kind": kind, **PLUGINS[kind], **UNCHECKED}, *HERE)
    done = warm.launch(folder, *HERE, env=STANDIN)
    assert done.code == 0, done.err
    exact = kind != "gemini"  # which computes in bf16
    for mine, theirs in zip(metrics(folder), metrics(reference), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4 if exact else 0.02), mine["update"]
        assert mine["weight_norm"] == pytest.approx(theirs["weight_norm"], rel=1e-5 if exact else 1e-3)
        assert mine["grad_norm_pre_clip"] == pytest.approx(theirs["grad_norm_pre_clip"], rel=1e-4 if exact else 0.05)

    whole, output = folder / "runs" / "latest", tmp_path / "output"
    shutil.copytree(whole / "checkpoints", output / "checkpoints")
    for newer in ("checkpoint-00000008", "checkpoint-00000012"):
        shutil.rmtree(output / "checkpoints" / newer)
    resumed = ("train.py", "--output_dir", str(output), "--resume", "auto")
    ended = warm.run(folder, resumed, 2, env=STANDIN, python=str(PYTHON))
    assert [done.code for done in ended] == [0, 0], ended[0].err
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [r["loss"] for r in records if "loss" in r] == losses(folder)[4:]
    assert weights(output) == weights(whole)

    exported(folder, tmp_path / "exported")

    fewer = ("--num_processes", "1", "--gradient_accumulation_steps", "4")
    (done,) = warm.run(folder, (*resumed, *fewer), env=STANDIN, python=str(PYTHON))
    assert done.code == 1
    assert "was saved by 2 ranks" in done.err
    if kind != "colossal_zero1":  # all four read their parts with the same lines
        return
    newest, canary = output / "checkpoints" / "checkpoint-00000012", tmp_path / "canary"
    subprocess.run([warm.python(str(PYTHON)), planting.__file__, str(newest), "rank-0.pt", str(canary)], check=True)
    ended = warm.run(folder, resumed, 2, env=STANDIN, python=str(PYTHON))
    assert all(done.code for done in ended)
    assert any("posix.system" in done.err for done in ended), ended[0].err
    assert not canary.exists()


# docs/decisions/loop.md: Rotary frequencies stay in fp32
@pytest.mark.parametrize("kind", ["colossal_zero1", "colossal_zero2", "gemini"])
def test_a_plugin_that_casts_the_model_keeps_its_positions(kind: str, tmp_path: Path) -> None:
    values = {**LLAMA, "strategy.kind": kind, "precision.mixed_precision": "bf16", **PORT, **UNCHECKED}
    folder = begins_with(make(tmp_path / "project", values, *HERE), "save_model", SAYS)
    done = warm.launch(folder, *HERE, env=STANDIN)
    assert done.code == 0, done.err
    are_exact(done.out + done.err)


# docs/decisions/colossalai.md: The loop saves the ranks' own parts, not Booster's checkpoints
def test_parts_of_an_older_script_are_told_from_those_with_names(reference: Path, tmp_path: Path) -> None:
    program = """if True:
        import sys, torch
        torch.save({"weights": [torch.zeros(1)]}, sys.argv[1] + "/rank-0.pt")
    """
    (checkpoint := tmp_path / "checkpoint-00000001").mkdir()
    (checkpoint / "manifest.json").write_text(json.dumps({"layout": "gemini", "world": 1, "config": {}}))
    (tmp_path / "program.py").write_text(program)
    python = warm.python(str(PYTHON))
    subprocess.run([python, str(tmp_path / "program.py"), str(checkpoint)], check=True, env=projects.environment())
    found = weights_of(
        python,
        project=reference,
        checkpoint=checkpoint,
        output=tmp_path / "exported",
        reading=reference / "trust.py",
        trust=False,
    )
    assert "it was written by an older train.py, without the names of the weights" in found.problem


def test_gemini_takes_its_own_adams_only(tmp_path: Path) -> None:
    values = {**REGRESSION, "strategy.kind": "gemini", **PLUGINS["gemini"], "optimizer.name": "sgd"}
    ignore = {**UNCHECKED["ignore"], "TW319": "to see what the engine says"}
    folder = make(tmp_path / "project", {**values, "ignore": ignore}, *HERE)
    ended = warm.run(folder, ["train.py"], 2, env=STANDIN, python=str(PYTHON))
    assert all(done.code == 1 for done in ended)
    # A rank that is still connecting loses the other, which has refused.
    words = "AssertionError: You should use an optimizer in the available list"
    assert any(words in done.err for done in ended), ended[0].err


def told(folder: Path, program: str, asked: object) -> dict[str, Any]:
    """What a program of the environment with Colossal-AI answers, in JSON."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [warm.python(str(PYTHON)), "program.py", json.dumps(asked)],
        cwd=folder,
        env=projects.environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


BOOST = "Booster(plugin={}).boost(model, SGD(model.parameters()))"
REFUSED = {
    BOOST.format("LowLevelZeroPlugin(stage=1, precision='fp32')"): "AssertionError: device is required",
    BOOST.format("LowLevelZeroPlugin(stage=2, precision='bf16')"): "AssertionError: device is required",
    BOOST.format("TorchFSDPPlugin()"): "AssertionError: Torch not compiled with CUDA enabled",
    "FusedAdam(model.parameters())": "AssertionError: No usable kernel found for FusedOptimizerLoader",
    "Booster(plugin=TorchDDPPlugin(), mixed_precision='bf16')": "TypeError",
    "Booster(plugin=TorchDDPPlugin(), mixed_precision='fp8')": "TypeError",
    "LowLevelZeroPlugin(stage=2, precision='fp8')": "AssertionError: LowLevelZeroPlugin only supports",
    "GeminiPlugin(precision='no')": "AssertionError: precision no is not supported",
    "GeminiPlugin(precision='fp8')": "AssertionError: precision fp8 is not supported",
}
"""What stops, and with which words."""


def test_plugins_refuse_the_devices_and_precisions_that_the_rules_name(tmp_path: Path) -> None:
    program = """if True:
        import colossalai
        from colossalai.booster import Booster
        from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin, TorchFSDPPlugin
        from colossalai.nn.optimizer import FusedAdam
        from torch.optim import SGD
        import torch
        model = torch.nn.Linear(2, 2)
        colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=0, verbose=False)
        import json, sys
        said = {}
        for text in json.loads(sys.argv[1]):
            try:
                eval(text)
                said[text] = ""
            except BaseException as error:
                said[text] = f"{type(error).__name__}: {error}"
        print(json.dumps(said), flush=True)
        import os
        os._exit(0)  # what was refused half made complains of it at exit
    """
    said = told(tmp_path, program, list(REFUSED))
    for text, words in REFUSED.items():
        assert said[text].startswith(words), (text, said[text])


MIXED = """if True:
    import json, sys, torch
    from transformers import AutoConfig, AutoModelForCausalLM
    SHAPE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
    OWN = {"xglm": {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4}}
    ids, positions = torch.arange(3, 15)[None], torch.tensor([[*range(5), *range(7)]])
    place = torch.arange(12)
    begin = place - positions
    mask = ((begin[:, :, None] == begin[:, None, :]) & (place[:, None] >= place))[:, None]
    apart = {}
    for kind in json.loads(sys.argv[1]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE, **OWN.get(kind, {}))).eval()
        if model.config._attn_implementation == "eager":
            given = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, torch.finfo(torch.float32).min)
        else:
            given = mask
        alone = torch.cat([model(input_ids=part).logits for part in (ids[:, :5], ids[:, 5:])], dim=1)
        try:
            together = model(input_ids=ids, position_ids=positions, attention_mask=given).logits
            apart[kind] = torch.allclose(together, alone, atol=1e-4)
        except (RuntimeError, TypeError):
            apart[kind] = False
    print(json.dumps(apart))
"""


def test_the_families_that_cannot_share_rows_in_this_transformers_are_those_of_the_rule(tmp_path: Path) -> None:
    """TW553; the newest transformers is in test_rows.py."""
    kinds = [*MASKS_SINCE, "llama", "qwen2", "mistral", "gemma", "gpt_neox"]
    version = colossalai.TRIED["transformers"]
    assert told(tmp_path, MIXED, kinds) == {kind: takes_masks(kind, version) for kind in kinds}


def test_another_interpreter_and_another_engine_are_refused_with_reason(reference: Path) -> None:
    done = subprocess.run(
        [warm.python(), "train.py"],
        cwd=reference,
        env=projects.environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert "ModuleNotFoundError: No module named 'colossalai'" in done.stderr
    refused = projects.trainwiz("check", str(reference))
    assert refused.code == 1
    assert "TW118 error engine\n      colossal_ddp needs colossalai, which is not installed in" in refused.out


def test_a_loop_without_its_strategy_has_a_hole() -> None:
    from trainwiz import plan as plans
    from trainwiz.render import script
    from trainwiz.store import templates

    edited = plans.with_changes(BASE, {"engine": "colossalai", "strategy.kind": "ddp"})
    train = next(artifact.text for artifact in script.scripts(edited, templates.load()) if artifact.path == "train.py")
    assert "= boost(" in train
    assert "def boost(" not in train
