"""The benchmarks of speed at their smallest: what they measure is the same work, and what they say adds up."""

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import operators
import projects
import pytest
import torch
import transformers
import warm
from patience import patience
from plans import BASE

from trainwiz import plan as plans
from trainwiz import strategies

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COLOSSALAI = BENCHMARKS.parent / ".venv-colossalai" / "bin" / "python"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "gpu")]

import bring  # noqa: E402
import cases  # noqa: E402
import colossalai as plugins  # noqa: E402
import overhead  # noqa: E402
import programme  # noqa: E402
import throughput  # noqa: E402


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A benchmark as a person would start it, but that all its processes find torch and trainwiz imported."""
    return subprocess.run(
        [warm.python(offspring=True), str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=projects.environment(),
    )


def test_what_is_forked_is_given_the_same_and_says_the_same() -> None:
    """Arguments, another file than the three of everybody, its exit code; and trainwiz itself."""
    program = "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode()); print(sys.argv[0]); sys.exit(3)"
    found = []
    for python in (sys.executable, warm.python(offspring=True)):
        reader, writer = os.pipe()
        with os.fdopen(reader, closefd=True) as given:
            command = [python, "-c", program, str(writer), "one word"]
            done = subprocess.run(command, capture_output=True, pass_fds=[writer], env=projects.environment())
            os.close(writer)
            version = subprocess.run(
                [python, "-m", "trainwiz", "--version"], capture_output=True, check=True, env=projects.environment()
            )
            found.append((done.returncode, done.stdout, done.stderr, given.read(), version.stdout))
    assert found[0] == found[1]
    assert found[0][:4] == (3, b"-c\n", b"", "one word")


@pytest.mark.train
def test_the_gpu_programme_in_little_trains_resumes_and_measures_every_loop(tmp_path: Path) -> None:
    limits = ["--seconds", str(350 * patience()), "--only", "^cpu$|^single bf16(, lora)?$|gpt2-124m fixed"]
    parts, tables = ("--part", "a", "--part", "b", "--part", "c"), tmp_path / "tables"
    done = run("gpu/programme.py", "--little", *parts, "--out", str(tmp_path), "--results", str(tables), *limits)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tables.iterdir()) == [
        f"{part}.{end}" for part in "abc" for end in ("json", "md")
    ]
    row, adapted = json.loads((tables / "a.json").read_text())
    assert row["case"] == "single bf16"
    assert 0 < row["apart"] < cases.TOLERANCE["bf16"]
    assert row["resumes"] is True
    assert row["waits"] == []
    assert adapted["case"] == "single bf16, lora"
    assert adapted["falls"] is True
    (row,) = json.loads((tables / "b.json").read_text())
    assert row["forecast GiB"] * (1 + row["off"]) == pytest.approx(row["measured GiB"])
    assert row["measured GiB"] > 0.1
    results = json.loads((tmp_path / "throughput" / "results.json").read_text())
    assert results["machine"]["device"] == "cpu"
    of_fixed = set(throughput.CONTESTANTS) - {"flat"}  # for documents of many lengths
    assert {known["contestant"] for known in results["cells"].values()} == of_fixed
    table = (tmp_path / "throughput" / "table.md").read_text()
    for known in results["cells"].values():
        assert len(known["rates"]) >= 6
        assert min(known["rates"]) > 0
        assert f"| {known['contestant']} |" in table
        assert "flash_attention_for_cpu" in known["attention"] or "by matrices" in known["attention"]
    speeds = json.loads((tables / "c.json").read_text())
    assert {row["case"] for row in speeds} == set(results["cells"])
    assert all(row["of the product"] > 0 for row in speeds)
    assert list(tmp_path.glob("throughput/projects/gpt2-124m-fixed/train.py")), "the generated script was measured"


def test_the_gpu_programme_has_every_strategy_and_precision_once(tmp_path: Path) -> None:
    bench = cases.Bench(part="a", out=tmp_path)
    wanted = [*cases.right(bench), *cases.memory(bench)]
    names = [case.name for case in wanted]
    assert len(set(names)) == len(names)
    assert {case.same_as for case in wanted if case.same_as} <= set(names)
    for case in wanted:
        values = {**cases.SMALL, "machine.device": "cuda", **case.values}
        plans.with_changes(BASE, {key: value for key, value in values.items() if key != "data.eval"})
    labels = {row.label for row in strategies.every() if row.engine == "accelerate"} - {"ddp"}  # one GPU
    assert {name.partition(" ")[0].partition("+")[0] for name in names if name.endswith(" bf16")} == labels
    assert not [case for case in cases.right(cases.Bench(part="a", out=tmp_path, little=True)) if not case.on_cpu]


@pytest.mark.train
@pytest.mark.skipif(not COLOSSALAI.exists(), reason="make colossalai makes the environment")
def test_part_d_in_little_trains_and_resumes_a_plugin(tmp_path: Path) -> None:
    arguments = ("--part", "d", "--out", str(tmp_path), "--colossalai", str(COLOSSALAI))
    done = run("gpu/programme.py", "--little", *arguments, "--seconds", str(350 * patience()))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "d.json").read_text())
    assert (row["case"], row["ranks"]) == ("colossal_ddp no", 2)
    assert row["follows the curve"] is row["resume is exact"] is True


def test_a_row_of_part_c_has_the_median_and_its_share_of_the_peak(tmp_path: Path) -> None:
    cell = {"rates": [90.0, 110.0, 100.0, 104.0], "flops_per_token": 1e9, "memory_bytes": 2**30, "micro": 1}
    cells = {"one": cell, "none": {"rates": [], "micro": 4, "problem": "no result"}}
    machine = {"device": "NVIDIA H100 80GB HBM3", "matmul_flops": 1e12}
    (tmp_path / "results.json").write_text(json.dumps({"machine": machine, "cells": cells}))
    row, lost = cases.speeds(tmp_path / "results.json")
    assert (row["tokens/s"], row["GiB"], row["of the product"]) == (102.0, 1.0, 0.102)
    assert row["MFU"] == pytest.approx(102e9 / 989.4e12)
    assert (lost["ok"], lost["problem"]) == (False, "no result")


def test_programs_that_are_brought_are_found(tmp_path: Path) -> None:
    """DeepSpeed compiles with the ninja that is on PATH."""
    program = tmp_path / "site" / "bin" / "ninja"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    bench = cases.Bench(part="a", out=tmp_path, site=tmp_path / "site")
    assert shutil.which("ninja", path=bench.environment["PATH"]) == str(program)


def test_rows_are_written_as_they_end_and_time_that_is_up_is_said(tmp_path: Path) -> None:
    bench = cases.Bench(part="a", out=tmp_path, end=time.monotonic() + 600)
    other, written = threading.Event(), tmp_path / "a.json"

    def measure(case: cases.Case) -> dict[str, Any]:
        if case.name == "slow":
            assert other.wait(60)
            while not written.exists():
                time.sleep(0.01)
            object.__setattr__(bench, "end", 0.0)
            cases._ran(bench, [sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ))
        other.set()
        return {"ok": True}

    table = programme.measured(bench, [cases.Case(name="slow"), cases.Case(name="fast")], measure)
    assert [(row["case"], row["ok"]) for row in table.rows] == [("fast", True), ("slow", False)]
    assert "timed out after 1" in table.rows[1]["problem"]
    late = programme.measured(bench, [cases.Case(name="late")], measure)
    assert late.rows[0]["ok"] is None


def test_the_rows_of_every_plugin_are_written_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, found = tmp_path / "rows.json", list[int]()

    def measure(options: argparse.Namespace, *_: object) -> dict[str, Any]:
        found.append(len(json.loads(output.read_text())) if output.exists() else 0)
        if len(found) == 2:
            end = "\nTraceback:\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED"
            plugins.said([sys.executable, "-c", f"import sys; sys.exit({'KeyError: broken' + end!r})"], options.end)
        if len(found) == 3:
            options.end = 0.0
        plugins.said([sys.executable, "-c", ""], options.end)
        return {"follows the curve": True, "resume is exact": True}

    monkeypatch.setattr(plugins, "measure", measure)
    arguments = ["--python", sys.executable, "--ranks", "1", "--output", str(output), "--kinds", "colossal_zero1"]
    monkeypatch.setattr(sys, "argv", ["colossalai.py", *arguments])
    assert plugins.main() == 1
    assert found == [0, 1, 2]
    rows = list(cases.plugins(output))
    assert [row["ok"] for row in rows] == [True, False, None]
    assert rows[1]["failed"] == ["KeyError: broken"]


def test_a_wheel_keeps_the_library_of_one_cuda_version(tmp_path: Path) -> None:
    wheel = tmp_path / "bitsandbytes-1-py3-none-any.whl"
    kept = ["bitsandbytes/libbitsandbytes_cpu.so", "bitsandbytes/libbitsandbytes_cuda130.so", "bitsandbytes/nn.py"]
    left = ["bitsandbytes/libbitsandbytes_cuda118.so", "bitsandbytes/libbitsandbytes_rocm72.so"]
    with zipfile.ZipFile(wheel, "w") as written:
        for name in (*kept, *left):
            written.writestr(name, name)
        written.writestr("bitsandbytes-1.dist-info/RECORD", "".join(f"{name},sha256=,1\n" for name in (*kept, *left)))
    bring.thin(wheel)
    with zipfile.ZipFile(wheel) as thinner:
        assert set(thinner.namelist()) == {*kept, "bitsandbytes-1.dist-info/RECORD"}
        lines = thinner.read("bitsandbytes-1.dist-info/RECORD").decode().splitlines()
        assert [line.partition(",")[0] for line in lines] == kept


def test_what_wheels_need_is_brought_or_there(tmp_path: Path) -> None:
    """Everything that deepspeed or peft is needed for failed on a bare machine where one package was left out."""
    needs = ("torch>=2", "Inner_Part>1", 'old; python_version < "3.12"', 'dev-tool; extra == "dev"', "Lost.One")
    for name, lines in {"first": needs, "inner_part": ()}.items():
        with zipfile.ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as written:
            written.writestr(f"{name}-1.dist-info/METADATA", "".join(f"Requires-Dist: {line}\n" for line in lines))
    assert bring.lacking(tmp_path) == ["lost-one"]
    assert bring.lacking(tmp_path, "lost_one") == []
    known = importlib.metadata.requires("deepspeed") or []
    assert {bring._key(re.split(r"[^\w-]", line)[0]) for line in known if "extra" not in line} <= {
        *bring.THERE,
        *bring.TRAINING,
        *bring.OWN,
    }


WITHOUT = """
import sys
from importlib.machinery import PathFinder

absent, spec = set(sys.argv[1:]), PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in absent else spec(name, *rest)
import colossalai
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, LowLevelZeroPlugin, TorchDDPPlugin, TorchFSDPPlugin
from colossalai.nn.optimizer import FusedAdam
from transformers import LlamaConfig, LlamaForCausalLM
LlamaForCausalLM(LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32))
"""
MODULES = {"pre-commit": "pre_commit", "pillow": "PIL", "protobuf": "google"}


@pytest.mark.skipif(not COLOSSALAI.exists(), reason="make colossalai makes the environment")
def test_what_is_not_brought_for_colossalai_is_never_imported() -> None:
    """Its wheel declares servers; the environment of the test has them all."""
    absent = {MODULES.get(name, name) for name in bring.NEVER_IMPORTED}
    done = subprocess.run([COLOSSALAI, "-c", WITHOUT, *absent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_ceiling_counts_every_product_once_and_no_gpu_is_above_it() -> None:
    done = run("gpu/ceiling.py", "--toy", "--model", "llama-1b")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shape = throughput.TOYS["llama-1b"]
    tokens = shape.micro * shape.length
    # Fused attention computes half of the square: two products forward, five backward.
    square = shape.num_hidden_layers * shape.hidden_size * shape.length
    assert found["flops"] == tokens * (shape.flops_per_token(0.0) + (2 + 5) * square)
    assert found["gpus"].keys() == {"H100", "H200"}
    for each in found["gpus"].values():
        assert 0 < each["mfu"] < each["mfu_compiled"] < 1
    assert found["gpus"]["H200"]["mfu"] > found["gpus"]["H100"]["mfu"]  # the faster memory


def test_what_fails_is_said_and_a_smaller_micro_batch_is_tried(tmp_path: Path) -> None:
    cell = throughput.Cell(model="gpt2-124m", data="fixed", contestant="script", micro=2, toy=True)
    results = throughput.Results(tmp_path)
    results.add(cell, {"oom": "CUDA out of memory"})
    assert "CUDA out of memory" in results.table()
    results.add(
        cell,
        {"rates": [100.0, 110.0, 90.0], "flops_per_token": 1e9, "memory_bytes": 2**30, "micro": 1, "attention": "sdpa"},
    )
    results.machine = {"device": "NVIDIA H200", "matmul_flops": 1e12, "torch": "2.11"}
    assert "| 1 | 100 (90–110) | 0.0 % | 10.0 % | 1.00 | 1.0 | sdpa |" in results.table()


@pytest.mark.parametrize("model", throughput.TOYS)
def test_flops_of_a_token_are_those_that_torch_counts(model: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape = throughput.TOYS[model]
    config = transformers.AutoConfig.for_model(shape.model_type, **shape.model(), use_cache=False)
    config._attn_implementation = "eager"
    net = transformers.AutoModelForCausalLM.from_config(config)
    inputs = torch.zeros(1, shape.length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        net(input_ids=inputs, labels=inputs).loss.backward()
    counted = counter.get_total_flops() / shape.length
    assert shape.flops_per_token(shape.length) == pytest.approx(counted, rel=0.02)


COMPARE = """
import json, torch, task, train
config = train.Config(num_hidden_layers=2)
found = []
for compiles in (False, True):
    torch.manual_seed(0)
    model = task.build_model(config)
    if compiles:
        train.compile_layers(model)
    rows = torch.randint(0, 256, (2, 2, 64))
    loss = task.loss_sum(model, {"inputs": rows[0], "labels": rows[1]})
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    found.append((loss.item(), gradient, [name for name, _ in model.named_parameters()]))
compiled = [m for m in model.modules() if m._compiled_call_impl is not None]
distance = float((found[0][1] - found[1][1]).norm() / found[0][1].norm())
print(json.dumps([found[0][0], found[1][0], distance, found[0][2] == found[1][2], len(compiled)]))
"""
"""Loss and gradient of the generated model, with and without compiled layers."""
KERNELS = operators.CACHE.with_name("kernels")
"""What torch.compile builds, half a minute, once per checkout; torch itself knows by its content what it may use."""


# docs/decisions/loop.md: torch.compile compiles layers, not the model
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_layers_give_the_same_loss_gradient_and_names(tmp_path: Path) -> None:
    values = {"model.compile": "true", "data.packing": "false"}
    folder = projects.make(tmp_path / "project", {**projects.SMALL, **values})
    (folder / "compare.py").write_text(COMPARE)
    done = warm.child(folder / "compare.py", env={"TORCHINDUCTOR_CACHE_DIR": str(KERNELS)})
    assert done.code == 0, done.err
    plain, compiled, distance, same_names, n_layers = json.loads(done.out.splitlines()[-1])
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert distance < 1e-5
    assert same_names
    assert n_layers == 2


COUNTED = """
import importlib.util, json, sys, traceback, train
from torch.optim.optimizer import register_optimizer_step_post_hook
calls, at_updates = [0, 0], []
def counting(i, function):
    def counted(*arguments, **named):
        calls[i] += 1
        return function(*arguments, **named)
    return counted
importlib.util.find_spec = counting(0, importlib.util.find_spec)
traceback.format_stack = counting(1, traceback.format_stack)
register_optimizer_step_post_hook(lambda *_: at_updates.append(tuple(calls)))
sys.argv[1:] = ["--n_steps", "6", "--logging_steps", "2", "--checkpointing_steps", "0", "--output_dir", sys.argv[1]]
train.main()
print(json.dumps(at_updates))
"""
"""The generated script, and after each update how often packages were looked for, and stacks noted."""


# docs/decisions/loop.md: What the loop adds to an update
# docs/decisions/loop.md: The loop bypasses accelerate's optimizer wrapper where it does nothing
# docs/decisions/loop.md: On a CPU, only the CPU's generator is seeded
@pytest.mark.train
def test_an_update_searches_no_disk_and_notes_no_stack(tmp_path: Path) -> None:
    """accelerate's optimizer looks for a package at each step, `torch.manual_seed` notes three stacks: 1 ms."""
    values = {"strategy.kind": "single", "machine.num_processes": 1, "batch.gradient_accumulation_steps": 4}
    folder = projects.make(tmp_path / "project", {**projects.REGRESSION, **values})
    (folder / "counted.py").write_text(COUNTED)
    done = warm.child(folder / "counted.py", str(tmp_path / "output"))
    assert done.code == 0, done.err
    at_updates = json.loads(done.out.splitlines()[-1])
    assert len(at_updates) == 6
    assert at_updates[-1] == at_updates[1], "the first update may still import something"


@pytest.mark.train
def test_the_bare_loop_does_what_the_script_does_and_the_table_says_what_each_took() -> None:
    done = run("overhead.py", "--only", "least-2", "--starts", "1", "--rounds", "3", "--without", "trainer")
    assert done.returncode == 0, done.stderr
    assert "losses at most" in done.stderr
    assert "| least | 2 | script |" in done.stdout
    assert "| least | 2 | bare |" in done.stdout


def test_a_limit_that_is_not_kept_is_marked_and_fails() -> None:
    small = next(shape for shape in overhead.SHAPES if shape.name == "small")
    taken = {"script": [(0.103, 0.1)] * 4, "bare": [(0.100, 0.1)] * 4, "trainer": [(0.2, 0.2)] * 4}
    shown, met = overhead.table({small: taken})
    assert not met
    assert "1.02: **no**" in shown
    assert "1.00: yes" in shown
