"""Valid tokens per second and model FLOPs utilization of the generated script, beside Trainer and a nanoGPT-style loop.

One file, one GPU, no network: `python benchmarks/gpu/throughput.py --out DIR` ends within its `--budget` of seconds.
Every cell (model, data, contestant) is a process of its own with the whole GPU; what was measured is in DIR after each
cell (results.json, table.md), so that a run that is cut off has lost only its last one. The cells go by once, most
wanted first, and then backwards, until the budget is spent: A B … B A, medians over slices of a second, compiling left
out. A micro-batch that does not fit is halved. Where trainwiz cannot run (no pydantic), make the projects elsewhere
with `--prepare DIR` and bring them along with `--projects DIR`. `--toy` does all of it in little on a CPU.

FLOPs of a token: 6 × parameters in matrix products + 12 × layers × width × context (PaLM, appendix B,
https://arxiv.org/abs/2204.02311); recomputed ones do not count. With documents of different lengths the context is
their mean over tokens. Only tokens that are learned from count, padding does not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOMINAL = {"H200": 989.4e12, "H100 PCIe": 756e12, "H100": 989.4e12, "A100": 312e12}
"""Dense bf16 FLOP/s by what the name contains, from NVIDIA's data sheets: https://www.nvidia.com/en-us/data-center/h200/,
https://www.nvidia.com/en-us/data-center/h100/ (half of the figures "with sparsity"), …/a100/. Others are unknown."""
MEMORY_OF_THE_SIZES = 76 * 2**30
"""The micro-batches below are meant for this much device memory; twice as much takes twice as many samples."""
SECTIONS = (("gpt2-124m", "fixed"), ("llama-1b", "fixed"), ("gpt2-124m", "ragged"), ("llama-1b", "ragged"))
"""Models and data, the most wanted first."""
CONTESTANTS = ("script", "tuned", "flat", "nanogpt", "default")
"""The generated script; Trainer told all that makes it fast; the same, with documents in one row instead of padding; a
loop as in nanoGPT; Trainer as it comes. No model drops anything, and vocabularies are padded."""
ATTENTION = re.compile(r"\w*(?:flash|fmha|varlen|flex_attention|efficient_attention|cudnn_attention)\w*", re.I)
"""Of kernels and operators: what computes attention."""
RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
SMALLEST_PART = 20.0  # seconds: with less left, no other cell is begun


@dataclass(frozen=True)
class Shape:
    """A model, and how it is trained: samples of `length` tokens, `micro` at a time, `real` for each update."""

    preset: str
    model_type: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    length: int
    micro: int
    real: int

    def model(self) -> dict[str, Any]:
        """The values that both transformers' configuration and the generated script call by these names."""
        names = [f.name for f in fields(self) if f.name not in ("preset", "length", "micro", "real", "model_type")]
        return {name: getattr(self, name) for name in names}

    def flops_per_token(self, context: float) -> float:
        """Forward and backward, for a token that sees a document of `context` tokens."""
        width = self.hidden_size
        key_value = width * self.num_key_value_heads // self.num_attention_heads
        feed_forward = (2 if self.model_type == "gpt2" else 3) * width * self.intermediate_size
        layer = 2 * width * width + 2 * width * key_value + feed_forward
        matrices = self.num_hidden_layers * layer + self.vocab_size * width  # the head; looking up is no product
        return 6.0 * matrices + 12.0 * self.num_hidden_layers * width * context


SHAPES = {
    "gpt2-124m": Shape("gpt2-124m", "gpt2", 12, 768, 12, 12, 3072, 50304, 1024, 1024, 32, 256),
    "llama-1b": Shape("llama-1b", "llama", 22, 2048, 32, 4, 5632, 32000, 2048, 2048, 8, 32),
}
TOYS = {
    "gpt2-124m": Shape("gpt2-124m", "gpt2", 2, 32, 2, 2, 128, 257, 64, 64, 2, 4),
    "llama-1b": Shape("llama-1b", "llama", 2, 32, 2, 1, 88, 257, 64, 64, 2, 4),
}


@dataclass(frozen=True)
class Cell:
    """One thing to measure."""

    model: str
    data: str  # fixed or ragged
    contestant: str
    micro: int
    toy: bool
    project: str = ""
    texts: str = ""
    seconds: float = 8.0

    @property
    def shape(self) -> Shape:
        """The model's shape."""
        return (TOYS if self.toy else SHAPES)[self.model]

    @property
    def name(self) -> str:
        """How the cell is called in the table."""
        return f"{self.model} {self.data} {self.contestant}"


def lengths(data: str, longest: int, count: int) -> list[int]:
    """Tokens of each document: all alike, or as instructions and their answers are (log-normal)."""
    draw = random.Random(0)
    if data == "fixed":
        return [longest] * count
    return [min(longest, max(8, int(draw.lognormvariate(0, 0.8) * longest / 6))) for _ in range(count)]


def write_texts(file: Path, sizes: Sequence[int]) -> None:
    """Random letters; the script's tokens are bytes and one that ends the document, and the first is not predicted."""
    draw = random.Random(1)
    with file.open("w") as out:
        for size in sizes:
            out.write(json.dumps({"text": "".join(draw.choices("abcdefgh ", k=size))}) + "\n")


def make_project(folder: Path, preset: str, data: str, toy: bool) -> None:
    """A project as `trainwiz init` makes it for one GPU (or, for the toy, a CPU). Raises where trainwiz cannot run."""
    settings = {
        "task": "causal_lm",
        "model.name": preset,
        "model.from_scratch": "true",
        "data.train": "embedded",
        "data.eval": "",
        "data.packing": str(data == "ragged").lower(),  # of one length, each row is one document
        "machine.device": "cpu" if toy else "cuda",
        "machine.num_processes": 1,
        "strategy.kind": "single",
        "precision.mixed_precision": "no" if toy else "bf16",
        "model.compile": str(not toy).lower(),
    }
    # Made where it does not run, and with data that it is not measured on, it breaks rules that do not matter here.
    answers = folder.with_name(f"{folder.name}.answers.json")
    answers.parent.mkdir(parents=True, exist_ok=True)
    answers.write_text(json.dumps({"ignore": {f"TW{n}": "a benchmark" for n in (1, 3, 4, 5, 6)}}))
    command = [sys.executable, "-m", "trainwiz", "init", str(folder), "--defaults", "--yes", "--answers", str(answers)]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    path = os.pathsep.join(p for p in (str(ROOT / "launcher"), os.environ.get("PYTHONPATH")) if p)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    if not (folder / "train.py").exists():
        raise RuntimeError(f"trainwiz init made no project: {done.stderr[-1000:]}")


# What follows until `Child` runs in a process of its own, where torch may be imported.


class Clock:
    """Counts updates by a hook on every optimizer, and cuts the time into slices that end when the device is done."""

    def __init__(self, cell: Cell, tokens_per_update: float, context: float) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.cell, self.tokens, self.rates = cell, tokens_per_update, list[float]()
        self.flops = cell.shape.flops_per_token(context)
        self.wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
        self.updates, self.ended, self.skipped = 0, time.perf_counter(), 0
        self.slice = 0.05 if cell.toy else 1.0
        self.profile: Any = None
        self.attention = ""
        register_optimizer_step_post_hook(self.after_update)

    def after_update(self, *_: object) -> None:
        """Close a slice if it is long enough, and the measurement if there are enough of them."""
        self.updates += 1
        if time.perf_counter() - self.ended < self.slice:
            return
        if self.skipped == 2 and not self.attention:
            self.watch()
            return
        self.wait()
        now = time.perf_counter()
        if self.skipped < 3:  # compiling, the allocator's first round, and what follows it
            self.skipped += 1
        else:
            self.rates.append(self.updates * self.tokens / (now - self.ended))
        self.updates, self.ended = 0, now
        if len(self.rates) * self.slice >= self.cell.seconds:
            self.tell()

    def watch(self) -> None:
        """Note which kernels attend in the update after this one, before anything is measured."""
        import torch

        if self.profile is None:
            self.profile = torch.profiler.profile()
            self.profile.__enter__()
            return
        self.wait()
        self.profile.__exit__(None, None, None)
        names = {found[0] for each in self.profile.key_averages() if (found := ATTENTION.search(each.key))}
        self.attention = f"{', '.join(sorted(names)) or 'by matrices'} ({implementations()})"[:400]

    def tell(self) -> None:
        """Report, and end the process: what would come after the measurement is of no interest."""
        import torch

        on_gpu = torch.cuda.is_available()
        peak = torch.cuda.max_memory_reserved() if on_gpu else 0
        report(
            {
                "rates": self.rates,
                "flops_per_token": self.flops,
                "memory_bytes": peak,
                "micro": self.cell.micro,
                "attention": self.attention,
            }
        )
        os._exit(0)


def implementations() -> str:
    """What the models of this process say that they attend with."""
    import gc

    import transformers

    models = [each for each in gc.get_objects() if isinstance(each, transformers.PreTrainedModel)]
    return ", ".join(sorted({str(model.config._attn_implementation) for model in models}))


def report(record: Mapping[str, Any]) -> None:
    """A line for the parent."""
    sys.__stdout__.write("\n@" + json.dumps(record) + "\n")
    sys.__stdout__.flush()


def measure_matmul(toy: bool) -> None:
    """What the card reaches in a large product, its name and its memory."""
    import torch

    on_gpu = torch.cuda.is_available()
    device, size = ("cuda", 8192) if on_gpu else ("cpu", 256)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    rates = []
    for _ in range(5 if toy else 12):
        wait, start = (torch.cuda.synchronize if on_gpu else lambda: None), time.perf_counter()
        for _ in range(10):
            a @ b
        wait()
        rates.append(10 * 2 * size**3 / (time.perf_counter() - start))
    properties = torch.cuda.get_device_properties(0) if on_gpu else None
    name, memory = (properties.name, properties.total_memory) if properties else ("cpu", 0)
    flops = statistics.median(rates[2:])
    report({"device": name, "memory_bytes": memory, "matmul_flops": flops, "torch": torch.__version__})


def texts_of(cell: Cell) -> list[list[int]]:
    """The documents as the generated script reads them: bytes, and 256 at the end."""
    lines = Path(cell.texts).read_text().splitlines()
    return [[*json.loads(line)["text"].encode(), 256] for line in lines]


def sizes_of(cell: Cell) -> tuple[float, float]:
    """Learned tokens of a document in the mean, and the document that a token stands in, in the mean over tokens."""
    sizes = [min(len(text) - 1, cell.shape.length) for text in texts_of(cell)]
    return statistics.mean(sizes), sum(n * n for n in sizes) / sum(sizes)


def run_script(cell: Cell) -> None:
    """The generated project, with everything that its plan decides."""
    import train

    mean, context = sizes_of(cell)
    values: dict[str, Any] = {
        "train_data": cell.texts,
        "sequence_length": cell.shape.length,
        "real_batch_size": cell.shape.real,
        "per_device_batch_size": cell.micro,
        "gradient_accumulation_steps": cell.shape.real // cell.micro,
        "n_steps": 10**6,
        "n_epochs": 0,
        "n_warmup_steps": 0,
        "checkpointing_steps": 0,
        "logging_steps": 10,
        "output_dir": f"{cell.project}/output-{os.getpid()}",
        "cache_dir": f"{cell.project}/cache",
        **cell.shape.model(),
    }
    known = {field.name for field in fields(train.Config)}
    arguments = [part for name, value in values.items() if name in known for part in (f"--{name}", str(value))]
    rows = train.task.load_train_data(train.read_config(arguments))
    held = mean * len(texts_of(cell)) / len(rows)  # several documents may share a row
    Clock(cell, cell.shape.real * held, context)
    sys.argv = ["train.py", *arguments]
    train.main()


DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")


def build(cell: Cell) -> Any:
    """The model by transformers, with random weights."""
    import torch
    import transformers

    shape = transformers.AutoConfig.for_model(cell.shape.model_type, **cell.shape.model(), use_cache=False)
    for name in DROPOUT:
        if hasattr(shape, name):
            setattr(shape, name, 0.0)
    if cell.contestant == "flat":  # without a mask of all pairs, and without a package that has to be compiled
        shape._attn_implementation = "flex_attention" if torch.cuda.is_available() else "sdpa"
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32)


def run_trainer(cell: Cell) -> None:
    """transformers' Trainer: as it comes, or with what makes it fast."""
    import torch
    import transformers

    documents = [torch.tensor(text[:-1][: cell.shape.length]) for text in texts_of(cell)]
    data = [{"input_ids": ids, "labels": ids} for ids in documents]
    tuned, on_gpu = cell.contestant != "default", torch.cuda.is_available()
    flat = cell.contestant == "flat"
    multiple = 64 if tuned and cell.data == "ragged" and not cell.toy else 1

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        longest = -(-max(len(s["input_ids"]) for s in samples) // multiple) * multiple
        pad = torch.nn.functional.pad
        padded = [(pad(s["input_ids"], (0, longest - len(s["input_ids"]))), len(s["input_ids"])) for s in samples]
        ids = torch.stack([row for row, _ in padded])
        mask = torch.arange(longest) < torch.tensor([size for _, size in padded])[:, None]
        return {"input_ids": ids, "labels": ids.masked_fill(~mask, -100), "attention_mask": mask.long()}

    micro = cell.micro if tuned else min(8, cell.micro)
    fast = {
        "gradient_accumulation_steps": cell.shape.real // micro,
        "bf16": on_gpu,
        "tf32": on_gpu or None,
        "torch_compile": on_gpu,
        "optim": "adamw_torch_fused",
        "dataloader_num_workers": 4 if on_gpu else 0,
        "group_by_length": cell.data == "ragged" and not flat,
        "use_liger_kernel": on_gpu and importlib.util.find_spec("liger_kernel") is not None,
        "dataloader_persistent_workers": on_gpu,
        "train_sampling_strategy": "group_by_length" if cell.data == "ragged" and not flat else "random",
    }
    known = {field.name for field in fields(transformers.TrainingArguments)}
    chosen = {name: value for name, value in fast.items() if tuned and name in known}
    arguments = transformers.TrainingArguments(
        output_dir=f"{cell.project}/trainer-{os.getpid()}",
        per_device_train_batch_size=micro,
        max_steps=10**6,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not on_gpu,
        **chosen,
    )
    mean, context = sizes_of(cell)
    # The last place of a document has no label here: it predicts one token less.
    Clock(cell, micro * arguments.gradient_accumulation_steps * (mean - 1), context)
    joined = transformers.DataCollatorWithFlattening() if flat else collate
    transformers.Trainer(model=build(cell), args=arguments, train_dataset=data, data_collator=joined).train()


def run_nanogpt(cell: Cell) -> None:
    """The loop of https://github.com/karpathy/nanoGPT in essence: random windows, autocast, compile, fused AdamW."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu, length, steps = device.type == "cuda", cell.shape.length, cell.shape.real // cell.micro
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = build(cell)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            logits = model(input_ids=inputs).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    loss_of = torch.compile(loss_of) if on_gpu else loss_of  # the loss is compiled with the model, as there
    stream = torch.tensor([i for text in texts_of(cell) for i in text])

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(stream) - length - 1, (cell.micro,)).tolist()
        both = (torch.stack([stream[s + shift : s + shift + length] for s in starts]) for shift in (0, 1))
        inputs, labels = (t.pin_memory().to(device, non_blocking=True) if on_gpu else t for t in both)
        return inputs, labels

    Clock(cell, cell.shape.real * length, float(length))
    inputs, labels = batch()
    while True:
        for _ in range(steps):
            loss = loss_of(inputs, labels) / steps
            inputs, labels = batch()  # while the device is busy
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


RUN: dict[str, Callable[[Cell], None]] = {
    "script": run_script,
    "tuned": run_trainer,
    "flat": run_trainer,
    "default": run_trainer,
    "nanogpt": run_nanogpt,
}


def child_main(text: str) -> None:
    """Import what takes long, wait for the turn, measure."""
    values = json.loads(text)
    import torch

    if "matmul" not in values:
        import transformers  # noqa: F401

    if not sys.stdin.readline():
        return
    try:
        if "matmul" in values:
            measure_matmul(values["toy"])
            return
        cell = Cell(**values)
        sys.path.insert(0, cell.project)
        RUN[cell.contestant](cell)
        report({"error": "it ended before it was measured"})
    except torch.OutOfMemoryError as error:
        report({"oom": str(error)[:300]})
    except BaseException as error:  # also SystemExit: the parent says it in its table
        report({"oom" if "out of memory" in str(error) else "error": f"{type(error).__name__}: {error}"[:1000]})
    sys.__stdout__.flush()
    os._exit(0)


class Child:
    """A process that measures one cell, made ahead of its turn."""

    def __init__(self, values: Mapping[str, Any], log: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in RANK}
        environ = {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
            env=environ,
        )
        self.lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("@"):
                self.lines.put(line[1:])
        self.lines.put('{"error": "ended without a word; see children.log"}')

    def measure(self, seconds: float) -> dict[str, Any]:
        """Its report; an error if it takes longer than `seconds`."""
        assert self.process.stdin
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            return dict(json.loads(self.lines.get(timeout=max(1.0, seconds))))
        except Empty:
            return {"error": f"no result after {seconds:.0f} s"}
        except BrokenPipeError:
            return {"error": "died while it waited; see children.log"}
        finally:
            self.end()

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def nominal_of(machine: Mapping[str, Any]) -> float | None:
    """FLOP/s of the data sheet; None for an unknown device."""
    return next((flops for name, flops in NOMINAL.items() if name in machine.get("device", "")), None)


class Results:
    """What is known so far; on the disk after every cell."""

    def __init__(self, out: Path) -> None:
        self.out, self.machine, self.cells = out, dict[str, Any](), dict[str, dict[str, Any]]()

    def add(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Keep a cell's report beside earlier ones of the same cell."""
        known = self.cells.setdefault(cell.name, {**asdict(cell), "rates": [], "passes": 0})
        if record.get("rates"):
            known.update({k: v for k, v in record.items() if k != "rates"})
            known["rates"] += record["rates"]
            known["passes"] += 1
            known.pop("problem", None)
        elif not known["rates"]:
            known["problem"] = record.get("error") or record.get("oom") or "?"
        self.write()

    def write(self) -> None:
        """Both files."""
        text = json.dumps({"machine": self.machine, "cells": self.cells}, indent=1)
        (self.out / "results.json").write_text(text)
        (self.out / "table.md").write_text(self.table())

    def table(self) -> str:
        """Markdown: a row per cell, ratios to the script on the same model and data."""
        nominal = nominal_of(self.machine)
        matmul = self.machine.get("matmul_flops")
        device, torch = self.machine.get("device", "unknown device"), self.machine.get("torch", "?")
        known_rate = f"{nominal / 1e12:.0f}" if nominal else "unknown"
        reached = f"TFLOP/s of a matrix product: {(matmul or 0) / 1e12:.1f} here, nominal {known_rate}"
        columns = (
            "model",
            "data",
            "loop",
            "micro-batch",
            "tokens/s, median (quartiles)",
            "MFU",
            "of the product",
            "script / this",
            "GiB",
            "attention",
        )
        lines = [f"{device}, torch {torch}. {reached}.", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for known in self.cells.values():
            start = f"| {known['model']} | {known['data']} | {known['contestant']} | {known['micro']} "
            if not known["rates"]:
                lines.append(f"{start}| {known['problem'].splitlines()[0][:120]} | | | | | |")
                continue
            rate = statistics.median(known["rates"])
            low, _, high = statistics.quantiles(known["rates"], n=4) if len(known["rates"]) > 1 else (rate,) * 3
            flops = rate * known["flops_per_token"]
            script = self.cells.get(f"{known['model']} {known['data']} script", {}).get("rates")
            shares = [f"{100 * flops / of:.1f} %" if of else "" for of in (nominal, matmul)]
            beside = f"{statistics.median(script) / rate:.2f}" if script else ""
            lines.append(
                f"{start}| {rate:,.0f} ({low:,.0f}–{high:,.0f}) | {shares[0]} | {shares[1]} | {beside} "
                f"| {known['memory_bytes'] / 2**30:.1f} | {known.get('attention', '')} |"
            )
        return "\n".join(lines) + "\n"


def wanted_cells(toy: bool, pattern: str, memory_bytes: int) -> list[Cell]:
    """All cells, the most wanted first."""
    fit = 2 if memory_bytes > 1.6 * MEMORY_OF_THE_SIZES else 1
    cells = [
        Cell(
            model=model,
            data=data,
            contestant=name,
            toy=toy,
            seconds=0.3 if toy else 8.0,
            micro=(TOYS if toy else SHAPES)[model].micro * (1 if toy else fit),
        )
        for model, data in SECTIONS
        for name in CONTESTANTS
        if (data, name) not in (("ragged", "nanogpt"), ("fixed", "flat"))  # it knows no documents; nothing is padded
    ]
    first = [c for c in cells if c.contestant in ("script", "tuned")]
    return [c for c in (*first, *(c for c in cells if c not in first)) if re.search(pattern, c.name)]


def furnish(cells: Sequence[Cell], out: Path, projects: Path | None) -> list[Cell]:
    """The cells with their project and texts."""
    furnished = []
    for cell in cells:
        folder = (projects or out / "projects") / f"{cell.model}-{cell.data}"
        if not (folder / "train.py").exists():
            make_project(folder, cell.shape.preset, cell.data, cell.toy)
        texts = out / f"{cell.model}-{cell.data}.jsonl"
        if not texts.exists():
            count = 256 if cell.toy else 8192
            write_texts(texts, lengths(cell.data, cell.shape.length, count if cell.data == "fixed" else 4 * count))
        furnished.append(replace(cell, project=str(folder.resolve()), texts=str(texts.resolve())))
    return furnished


def passes(cells: Sequence[Cell], toy: bool) -> Iterator[Cell]:
    """There and back and there again; the toy, whose numbers say nothing, once."""
    yield from cells
    if not toy:
        yield from reversed(cells)
        yield from cells


def main() -> int:
    """Measure until the budget is spent; 1 if a cell that was tried gave no number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("throughput"), help="folder for results")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--per-cell", type=float, default=100.0, help="seconds for one cell, compiling included")
    parser.add_argument("--only", default="", help="cells whose name matches: 'gpt2.*fixed (script|tuned)'")
    parser.add_argument("--projects", type=Path, help="folder of projects that --prepare made")
    parser.add_argument("--prepare", type=Path, help="make the projects in this folder, and nothing else")
    parser.add_argument("--toy", action="store_true", help="tiny shapes on a CPU")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child_main(options.child)
        return 0
    if options.prepare:
        for model, data in SECTIONS:
            make_project(options.prepare / f"{model}-{data}", model, data, options.toy)
        return 0
    end = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    log, results = options.out / "children.log", Results(options.out)
    results.machine = Child({"matmul": True, "toy": options.toy}, log).measure(120.0)
    results.write()
    cells = wanted_cells(options.toy, options.only, results.machine.get("memory_bytes", 0))
    cells = furnish(cells, options.out, options.projects)
    measure_all(deque(passes(cells, options.toy)), results, log, end, options.per_cell)
    print(results.table())
    return 0 if all(known["rates"] for known in results.cells.values()) else 1


def measure_all(queue: deque[Cell], results: Results, log: Path, end: float, per_cell: float) -> None:
    """Cell after cell; the next process imports what it needs while the one before it measures."""
    waiting: dict[Cell, Child] = {}
    smaller: dict[str, int] = {}
    failed: set[str] = set()
    try:
        while queue and (left := end - time.monotonic()) > SMALLEST_PART:
            cell = queue.popleft()
            cell = replace(cell, micro=min(cell.micro, smaller.get(cell.name, cell.micro)))
            if cell.name in failed:
                continue
            child = waiting.pop(cell, None) or Child(asdict(cell), log)
            if queue and queue[0] not in waiting and queue[0].name not in failed:
                waiting[queue[0]] = Child(asdict(queue[0]), log)
            record = child.measure(min(per_cell, left))
            if "oom" in record and cell.micro > 1:
                smaller[cell.name] = cell.micro // 2
                queue.appendleft(cell)
            elif "rates" not in record:
                failed.add(cell.name)
            results.add(cell, record)
            state = record.get("error") or record.get("oom") or f"{statistics.median(record['rates']):,.0f} tokens/s"
            print(f"{cell.name}, micro-batch {cell.micro}: {state}", file=sys.stderr, flush=True)
    finally:
        for child in waiting.values():
            child.end()


if __name__ == "__main__":
    sys.exit(main())
