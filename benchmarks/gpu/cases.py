"""What programme.py trains on a GPU, and what it makes of each training: its curve, its weights, its memory."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import throughput

ROOT = Path(__file__).resolve().parents[2]
UPDATES, SAVED = 12, 6
"""Updates of a training of part a, and the one that is resumed from."""
TOLERANCE = {"no": 2e-4, "bf16": 2e-2, "fp16": 2e-2, "fp8": 6e-2}
"""How far a loss may lie from the CPU's in fp32, as a share of it."""
MISS = 0.15
"""How far a measured peak may lie from its forecast, as a share of that (docs/forecast.md)."""
LONGEST = 300.0
"""Seconds that a child may take, if the part has as many left."""
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
ALONE |= {"MASTER_PORT": "0"}
"""What a launcher tells the only rank."""
WAITS = ROOT / "tests" / "engine_children" / "waits.py"
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where the programme runs, and how much of it."""

    part: str
    out: Path
    results: Path | None = None
    """Where its rows go; None: to the rest."""
    little: bool = False
    only: str = ""
    site: Path = Path("site")
    """What was brought along, installed."""
    colossalai: str = sys.executable
    end: float = math.inf
    """When its time is up, as `time.monotonic` counts."""

    @property
    def rows(self) -> Path:
        """The file of its rows, without what its name ends with."""
        return (self.results or self.out) / self.part

    def left(self) -> float:
        """Seconds until then."""
        return max(1.0, self.end - time.monotonic())

    @property
    def device(self) -> str:
        """What it trains on."""
        return "cpu" if self.little else "cuda"

    @property
    def environment(self) -> dict[str, str]:
        """Of every child: trainwiz from this checkout, packages from `site`, and no network."""
        path = [str(ROOT / "launcher"), str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
        # DeepSpeed compiles with ninja, whose program is beside the packages or the interpreter.
        programs = [str(self.site / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        own = {"PYTHONPATH": os.pathsep.join(path), "PATH": os.pathsep.join(programs)}
        return {**os.environ, **own, "HF_HUB_OFFLINE": "1", "TRAINWIZ_LANG": "en"}

    def wants(self, name: str) -> bool:
        """Whether `--only` lets a case through."""
        return bool(re.search(self.only, name))

    def has(self, package: str) -> bool:
        """Whether a package can be imported, on the machine or from `site`."""
        return (self.site / package).is_dir() or importlib.util.find_spec(package) is not None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One project: what it is called, and how its plan differs from `SMALL`."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    on_cpu: bool = False
    """Whether the CPU can run it, too."""
    resumes: bool = False
    """Whether it is also resumed from its middle."""
    same_as: str = ""
    """The case whose weights it must end with, to the last bit."""
    waits: bool = False
    """Whether it is also run with an eye on what waits for the device."""
    needs: str = ""
    """A package that it cannot do without."""

    @property
    def precision(self) -> str:
        """What it computes in."""
        return str(self.values.get("precision.mixed_precision", "no"))


SMALL: dict[str, Any] = {
    "task": "causal_lm",
    "machine.num_processes": 1,
    "strategy.kind": "single",
    "precision.mixed_precision": "no",
    "model.compile": "false",
    "model.activation_checkpointing": "none",
    "batch.real_batch_size": 16,
    "batch.per_device_batch_size": 4,
    "batch.sequence_length": 64,
    "schedule.n_steps": UPDATES,
    "schedule.n_warmup_steps": 2,
    "optimizer.learning_rate": 3e-3,
    "tracking.logging_steps": 1,
    "checkpoint.checkpointing_steps": SAVED,
    "checkpoint.checkpoints_total_limit": 9,
    "data.num_workers": 0,
    "data.eval": "",
}
REFERENCE = Case(name="cpu", values={"machine.device": "cpu"}, on_cpu=True)
"""What every training of part a must follow."""
BF16 = {"precision.mixed_precision": "bf16"}
ZERO2 = {"strategy.kind": "deepspeed", "strategy.zero_stage": 2}
ZERO3 = {"strategy.kind": "deepspeed", "strategy.zero_stage": 3, "strategy.zero3_save_16bit_model": "true"}
OFFLOAD = {"strategy.offload_optimizer_device": "cpu"}


def right(bench: Bench) -> list[Case]:
    """The cases of part a, the most worth first. A name begins with the strategy and the precision."""
    found = [
        Case(name="single bf16", values=BF16, on_cpu=True, resumes=True, waits=True),
        Case(name="single no", resumes=True),
        Case(name="single fp16", values={"precision.mixed_precision": "fp16"}),
    ]
    found += [
        Case(name=f"{name} {precision}", values={**values, "precision.mixed_precision": precision}, needs=needs)
        for precision in ("bf16", "no", "fp16")
        for name, values, needs in (
            ("fsdp", {"strategy.kind": "fsdp"}, ""),
            ("zero2", ZERO2, "deepspeed"),
            ("zero3", ZERO3, "deepspeed"),
            ("zero2+offload", {**ZERO2, **OFFLOAD}, "deepspeed"),
            ("zero3+offload", {**ZERO3, **OFFLOAD, "strategy.offload_param_device": "cpu"}, "deepspeed"),
            ("zero1", {**ZERO2, "strategy.zero_stage": 1}, "deepspeed"),
            ("zero0", {**ZERO2, "strategy.zero_stage": 0}, "deepspeed"),
        )
    ]
    ways = [
        Case(
            name=f"single bf16, activation checkpointing {how}",
            values={**BF16, "model.activation_checkpointing": how},
            on_cpu=how == "selective",
            same_as="single bf16",
            waits=True,
        )
        for how in ("full", "selective", "offload")
    ]
    ways += [
        Case(
            name="single bf16, checkpoints in the background",
            values={**BF16, "checkpoint.background": "true"},
            resumes=True,
            same_as="single bf16",
        ),
        Case(name="single bf16, compiled", values={**BF16, "model.compile": "true"}, waits=True),
        Case(name="single bf16, unpacked", values={**BF16, "data.packing": "false"}, waits=True),
        Case(name="fsdp bf16, compiled", values={**BF16, "strategy.kind": "fsdp", "model.compile": "true"}),
        Case(name="single fp8", values={"precision.mixed_precision": "fp8"}, needs="torchao"),
        Case(name="fsdp fp8", values={"precision.mixed_precision": "fp8", "strategy.kind": "fsdp"}, needs="torchao"),
    ]
    resumed = [replace(case, resumes=case.name in ("fsdp bf16", "zero2 bf16", "zero3 bf16")) for case in found[3:]]
    every = [*found[:3], *ways, *resumed, *adapters(bench)]
    return [case for case in every if case.on_cpu or not bench.little]


def adapters(bench: Bench) -> list[Case]:
    """LoRA and QLoRA beside weights of their own: the model of the reference, saved before its first update."""
    base = {**BF16, "model.name": str(bench.out / "published"), "model.from_scratch": "false"}
    return [
        Case(name="single bf16, lora", values={**base, "model.adapter": "lora"}, on_cpu=True, needs="peft"),
        Case(name="single bf16, qlora", values={**base, "model.adapter": "qlora"}, needs="bitsandbytes"),
        Case(
            name="fsdp bf16, qlora",
            values={**base, "model.adapter": "qlora", "strategy.kind": "fsdp"},
            needs="bitsandbytes",
        ),
    ]


def publish(folder: Path) -> None:
    """Save a model of random weights as the hub has them, with a tokenizer of bytes."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>"]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(folder)
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=len(words) - 1,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(folder)


def memory(bench: Bench) -> list[Case]:
    """The cases of part b: models of real size, for three updates."""
    if bench.little:
        return [REFERENCE]  # which part a has trained
    small = {"model.name": "gpt2-124m", "batch.sequence_length": 1024, "batch.per_device_batch_size": 16}
    large = {"model.name": "llama-1b", "batch.sequence_length": 2048, "batch.per_device_batch_size": 4}
    found = [
        Case(
            name=f"{model['model.name']}, {way}",
            values={**BF16, **model, **values, "batch.real_batch_size": model["batch.per_device_batch_size"]},
            needs="deepspeed" if "zero" in way else "",
        )
        for model in (large, small)
        for way, values in (
            ("single", {}),
            ("single, full checkpointing", {"model.activation_checkpointing": "full"}),
            ("single, selective checkpointing", {"model.activation_checkpointing": "selective"}),
            ("single, compiled", {"model.compile": "true"}),
            ("fsdp", {"strategy.kind": "fsdp"}),
            ("zero2+offload", {**ZERO2, **OFFLOAD}),
            ("zero3", ZERO3),
        )
    ]
    short = {"schedule.n_steps": 3, "checkpoint.checkpointing_steps": 0, "data.packing": "false"}
    return [replace(case, values={**case.values, **short, "data.train": str(texts(bench, case))}) for case in found]


def texts(bench: Bench, case: Case) -> Path:
    """Where the documents of a case of part b are: each of them fills a row, so that all micro-batches are as large."""
    return bench.out / f"texts-{case.values['batch.sequence_length']}.jsonl"


def project(bench: Bench, case: Case) -> Path:
    """The project of a case, made once. Raises `CalledProcessError`."""
    folder = bench.out / "projects" / re.sub(r"[^a-z0-9+]+", "-", case.name)
    if (folder / "train.py").exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    values = {**SMALL, "machine.device": bench.device, **case.values}
    answers = folder.with_name(f"{folder.name}.answers.json")
    # One rank in a strategy for several, and shapes that only a benchmark has, break rules that do not matter here.
    answers.write_text(json.dumps({"ignore": {f"TW{n}": "a benchmark" for n in range(1, 7)}}))
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    _said(bench, ["init", str(folder), "--defaults", "--yes", "--answers", str(answers), *settings])
    return folder


def curve(bench: Bench, case: Case) -> list[float]:
    """The loss of each update, of a new run where none has ended yet. Raises `CalledProcessError`."""
    folder = project(bench, case)
    if not (folder / "runs" / "latest" / "outcome.json").exists():
        _said(bench, ["launch", str(folder)])
    return losses(folder / "runs" / "latest")


def compare(bench: Bench, case: Case, reference: list[float]) -> dict[str, Any]:
    """How a training follows the reference, and whatever else the case asks for."""
    if case.needs and not bench.has(case.needs):
        return {"ok": None, "problem": f"{case.needs} is not installed"}
    if "model.name" in case.values and not (published := Path(case.values["model.name"])).exists():
        publish(published)
    found, row = curve(bench, case), dict[str, Any]()
    if "model.name" in case.values:  # an adapter learns otherwise
        row["falls"] = found[-1] < found[0]
    else:
        row["apart"] = max(abs(a - b) / b for a, b in zip(found, reference, strict=True))
        row["follows"] = row["apart"] <= TOLERANCE[case.precision]
    if case.same_as:
        row["same weights"] = digest(_latest(bench, case)) == digest(_latest(bench, Case(name=case.same_as)))
    if case.resumes:
        row["resumes"] = resumes(bench, case)
    if case.waits:
        row["waits"] = waits(bench, case)
    held = _outcome(bench, case)["measured"]["ranks"].get("0", {}).get("allocated_bytes")
    ok = all(value for value in row.values() if isinstance(value, bool)) and not row.get("waits")
    return {"ok": ok, **row, **({"peak GiB": held / GIB} if held else {})}


def resumes(bench: Bench, case: Case) -> bool:
    """Whether a training that is resumed from its middle ends with the same weights.

    Where kernels add in no fixed order, a training that is simply repeated ends with others, too: then losses decide.
    """
    again = bench.out / "again" / re.sub(r"\W+", "-", case.name)
    whole = _latest(bench, case)
    for saved in (whole / "checkpoints").glob("checkpoint-*"):
        if saved.name.endswith(f"{SAVED:08d}"):
            shutil.copytree(saved, again / "checkpoints" / saved.name)
    _trained(bench, case, ["--output_dir", str(again), "--resume", "auto"])
    if digest(again) == digest(whole):
        return True
    first, second = losses(whole)[SAVED:], losses(again)
    repeat = again.with_name(f"{again.name}-repeated")
    _trained(bench, case, ["--output_dir", str(repeat)])
    repeated = losses(repeat)[SAVED:]
    return repeated != first and all(abs(a - b) <= 1e-3 * a for a, b in zip(first, second, strict=True))


def waits(bench: Bench, case: Case) -> list[str]:
    """The lines of the project between two log points at which the host waits for the device."""
    arguments = ["--logging_steps", "4", "--n_steps", "8", "--checkpointing_steps", "0"]
    output = ["--output_dir", str(bench.out / "waits" / re.sub(r"\W+", "-", case.name))]
    said = _trained(bench, case, [*arguments, *output], WAITS)
    # Update 1 is looked at once; the first ones also compile and tune.
    return sorted({line for update, _, line in json.loads(said.splitlines()[-1]) if update in (5, 6, 7)})


def peak(bench: Bench, case: Case) -> dict[str, Any]:
    """The most memory of a training beside its forecast."""
    if case.needs and not bench.has(case.needs):
        return {"ok": None, "problem": f"{case.needs} is not installed"}
    if "data.train" in case.values and not (file := texts(bench, case)).exists():
        throughput.write_texts(file, throughput.lengths("fixed", case.values["batch.sequence_length"], 64))
    curve(bench, case)
    outcome = _outcome(bench, case)
    if not bench.little:
        for large in ("checkpoints", "model"):  # of a billion parameters 18 GB, and there are more such cases
            shutil.rmtree(_latest(bench, case) / large)
    name = "host_bytes" if bench.little else "allocated_bytes"
    expected, held = outcome["forecast"][name], outcome["measured"]["ranks"]["0"][name]
    off = held / expected - 1
    return {
        "ok": bench.little or abs(off) <= MISS,
        "forecast GiB": expected / GIB,
        "measured GiB": held / GIB,
        "off": off,
        "at": outcome["forecast"]["moment"],
    }


def speeds(results: Path) -> Iterator[dict[str, Any]]:
    """Rows of part c."""
    found = json.loads(results.read_text())
    machine = found["machine"]
    peaks = {"MFU": throughput.nominal_of(machine), "of the product": machine.get("matmul_flops")}
    for name, cell in found["cells"].items():
        row = {"case": name, "ok": bool(cell["rates"]), "micro-batch": cell["micro"]}
        if cell["rates"]:
            rate = statistics.median(cell["rates"])
            row["tokens/s"] = rate
            row |= {peak: rate * cell["flops_per_token"] / flops for peak, flops in peaks.items() if flops}
            row |= {"GiB": cell["memory_bytes"] / GIB} if cell["memory_bytes"] else {}
        row["attention"] = cell.get("attention", "")
        yield {**row, **({"problem": cell["problem"]} if "problem" in cell else {})}


def plugins(results: Path) -> Iterator[dict[str, Any]]:
    """Rows of part d."""
    for row in json.loads(results.read_text()):
        fine = None if "left out" in row else bool(row.get("follows the curve") and row["resume is exact"])
        yield {"case": f"{row['plugin']} {row['precision']}", "ok": fine, **row}


def losses(output: Path) -> list[float]:
    """The loss of each update of a run."""
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


def digest(output: Path) -> str:
    """The hash of the final weights of a run."""
    return hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest()


def _latest(bench: Bench, case: Case) -> Path:
    return (project(bench, case) / "runs" / "latest").resolve()


def _outcome(bench: Bench, case: Case) -> dict[str, Any]:
    return dict(json.loads((_latest(bench, case) / "outcome.json").read_text()))


def problem(error: Exception) -> str:
    """The end of what a child said, or the error itself where it said nothing or took too long."""
    said = None if isinstance(error, subprocess.TimeoutExpired) else getattr(error, "stderr", None)
    return " ".join(str(said or error).split())[-300:]


def _said(bench: Bench, words: list[str]) -> str:
    return _ran(bench, [sys.executable, "-m", "trainwiz", *words], bench.environment)


def _trained(bench: Bench, case: Case, words: list[str], script: Path | None = None) -> str:
    """The script alone, as the only rank of its world; `single` has none."""
    ranked = case.values.get("strategy.kind", "single") != "single"
    environ = {**bench.environment, **(ALONE if ranked else {}), "WAITS_ON": bench.device}
    return _ran(bench, [sys.executable, str(script or "train.py"), *words], environ, project(bench, case))


def _ran(bench: Bench, command: list[str], environ: Mapping[str, str], folder: Path | None = None) -> str:
    limit = min(LONGEST, bench.left())
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=limit, check=True)
    return done.stdout
