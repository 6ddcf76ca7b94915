"""What an update of the generated script costs beside a bare PyTorch loop and transformers' Trainer.

`python benchmarks/overhead.py`. All of them train the same model on the same data with the same ranks, but only one at
any moment: each stops after a slice of ten updates and waits for its turn. So a machine that grows busy slows them all
alike, and a round's ratio compares neighbors of a second. Where its memory happens to lie makes a process 2 or 3 %
slower or faster for its whole life, and so does its place in the order: all are started anew several times, in turns.
Counted is CPU time (user + system, over all ranks and threads); wall time stands beside it. The bare loop's losses
must equal the script's, or they did not do the same work. The table goes to stdout and into docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- overhead: written by benchmarks/overhead.py -->", "<!-- overhead: end -->"
CONTESTANTS = ("script", "bare", "trainer")
UPDATES_PER_SLICE = 10  # one log point in each
LIMITS = {"bare": 1.02, "trainer": 1.0}
"""The script's CPU time over that of the other one, at most."""
SAME_LOSS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is trained: a Llama of `layers` × `hidden`, on sequences of bytes."""

    name: str
    ranks: int
    layers: int
    hidden: int
    length: int
    micro: int
    accumulation: int

    def overrides(self) -> list[str]:
        """The generated script's options for this shape."""
        values = {
            "train_data": "texts.jsonl",
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": 11 * self.hidden // 4,
            "sequence_length": self.length,
            "num_processes": self.ranks,
            "per_device_batch_size": self.micro,
            "gradient_accumulation_steps": self.accumulation,
            "real_batch_size": self.micro * self.accumulation * self.ranks,
            "n_steps": 100_000,
            "n_warmup_steps": 0,
            "logging_steps": UPDATES_PER_SLICE,
            "checkpointing_steps": 0,
        }
        return [part for name, value in values.items() for part in (f"--{name}", str(value))]


SHAPES = (
    *(Shape(name="small", ranks=n, layers=4, hidden=128, length=64, micro=4, accumulation=2) for n in (1, 2)),
    *(Shape(name="least", ranks=n, layers=1, hidden=16, length=16, micro=1, accumulation=2) for n in (1, 2)),
)
"""`small` is the demo's model. `least` computes next to nothing: what remains is what a loop itself costs."""


class Slices:
    """Stops this rank after every slice of updates, reports what they took, and waits for its next turn."""

    def __init__(self, report: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.report, self.updates = os.fdopen(report, "w", buffering=1), 0
        self.start()
        register_optimizer_step_post_hook(self.after_update)

    def start(self) -> None:
        """Read the clocks."""
        self.cpu, self.wall = cpu_seconds(), time.perf_counter()

    def after_update(self, *_: object) -> None:
        """Count an optimizer's step."""
        self.updates += 1
        if self.updates % UPDATES_PER_SLICE == 0:
            self.report.write(f"{cpu_seconds() - self.cpu} {time.perf_counter() - self.wall}\n")
            if not sys.stdin.readline():
                os._exit(0)
            self.start()


def cpu_seconds() -> float:
    """User and system time of this process with all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_script(overrides: Sequence[str]) -> None:
    """The generated script, as it is."""
    import train

    sys.argv = ["train.py", *overrides]
    train.main()


def run_bare(overrides: Sequence[str]) -> None:
    """The shortest PyTorch loop that does the same: the same gradient, clipping, optimizer and schedule."""
    import task
    import torch
    import torch.distributed as dist
    import train
    from batches import keyed_seed
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    config = train.read_config(list(overrides))
    rank, ranks, steps = int(os.environ.get("RANK", "0")), config.num_processes, config.gradient_accumulation_steps
    torch.manual_seed(config.seed)
    data = task.load_train_data(config)
    model: Any = task.build_model(config)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = train.build_optimizer(config, model, torch.device("cpu"))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(keyed_seed(config.seed, 0)))
    whole = len(data) // config.real_batch_size * config.real_batch_size
    mine = order[:whole].view(-1, ranks, config.per_device_batch_size)[:, rank].tolist()
    batches = iter(DataLoader(data, batch_sampler=mine, collate_fn=lambda rows: task.collate(rows, [True] * len(rows))))
    total, records = torch.zeros(()), Path(config.output_dir) / "metrics.jsonl"
    for update in range(whole // config.real_batch_size):
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(config, update, config.n_steps)
        micro_batches = [next(batches) for _ in range(steps)]
        count = torch.tensor(sum(n for _, n in micro_batches))
        if ranks > 1:
            dist.all_reduce(count)
        for step, (batch, _) in enumerate(micro_batches, start=1):
            with model.no_sync() if ranks > 1 and step < steps else contextlib.nullcontext():
                loss = task.loss_sum(model, batch)
                total += loss.detach() / count
                (loss * (ranks / count)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        if (update + 1) % config.logging_steps == 0:
            if ranks > 1:
                dist.all_reduce(total)
            if rank == 0:
                loss_per_update, rate = float(total) / config.logging_steps, optimizer.param_groups[0]["lr"]
                record = {"update": update + 1, "loss": loss_per_update, "lr": rate, "grad_norm": float(norm)}
                with records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            total.zero_()


def run_trainer(overrides: Sequence[str]) -> None:
    """transformers' Trainer, told everything that makes it fast here."""
    import task
    import torch
    import train
    import transformers

    config = train.read_config(list(overrides))
    data = task.load_train_data(config)
    torch.manual_seed(config.seed)
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    shape = transformers.AutoConfig.for_model(
        config.model_type, **{name: getattr(config, name) for name in names}, use_cache=False
    )

    def collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        rows = torch.stack([sample[0] for sample in samples])
        return {"input_ids": rows, "labels": rows}

    transformers.Trainer(
        model=transformers.AutoModelForCausalLM.from_config(shape, dtype=torch.float32),
        train_dataset=data,
        data_collator=collate,
        args=transformers.TrainingArguments(
            output_dir=config.output_dir,
            per_device_train_batch_size=config.per_device_batch_size,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            max_steps=config.n_steps,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            max_grad_norm=config.gradient_clipping,
            lr_scheduler_type="cosine",
            adam_beta2=0.95,
            optim="adamw_torch_fused",
            logging_steps=config.logging_steps,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            ddp_find_unused_parameters=False,
            remove_unused_columns=False,
            disable_tqdm=True,
        ),
    ).train()


RUN = {"script": run_script, "bare": run_bare, "trainer": run_trainer}


class Contestant:
    """The ranks of one of them, each waiting for its turn."""

    def __init__(self, name: str, shape: Shape, project: Path, output: Path) -> None:
        output.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.ranks, self.reports = [], []
        for rank in range(shape.ranks):
            reader, writer = os.pipe()
            environ = {**_environment(), **_contract(rank, shape.ranks)}
            self.ranks.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        __file__,
                        "--as",
                        name,
                        "--report",
                        str(writer),
                        *shape.overrides(),
                        "--output_dir",
                        str(output),
                    ],
                    cwd=project,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(writer,),
                    text=True,
                    stderr=(output / f"rank-{rank}.err").open("w"),
                    env={**environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                )
            )
            os.close(writer)
            self.reports.append(os.fdopen(reader))
        self.output = output

    def wait(self) -> tuple[float, float]:
        """CPU seconds of all ranks and wall seconds of the slowest, in the slice that now ends."""
        lines = [report.readline() for report in self.reports]
        if not all(lines):
            errors = "\n".join(path.read_text()[-2000:] for path in sorted(self.output.glob("rank-*.err")))
            raise RuntimeError(f"{self.output.name} ended early:\n{errors}")
        taken = [tuple(map(float, line.split())) for line in lines]
        return sum(cpu for cpu, _ in taken), max(wall for _, wall in taken)

    def turn(self) -> tuple[float, float]:
        """Let it do one slice."""
        for rank in self.ranks:
            assert rank.stdin
            rank.stdin.write("\n")
            rank.stdin.flush()
        return self.wait()

    def end(self) -> None:
        """End its ranks: they wait, and have nothing to lose."""
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()

    def losses(self) -> dict[int, float]:
        """Update → loss, where the contestant wrote it."""
        path = self.output / "metrics.jsonl"
        records = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return {record["update"]: record["loss"] for record in records}


def _contract(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun tells a rank. Alone it is told nothing, as by `python` and `trainwiz launch`.

    accelerate would take it as a sign to wrap the model in DDP, which for one rank is 5 % of an update for nothing.
    """
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks} if ranks > 1 else {}
    return {name: str(number) for name, number in told.items()}


def _environment() -> dict[str, str]:
    dropped = ("TRAINWIZ_", "ACCELERATE_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRAINWIZ_LANG": "en", "TOKENIZERS_PARALLELISM": "0"}


@contextlib.contextmanager
def contest(shape: Shape, names: Sequence[str]) -> Iterator[dict[str, Contestant]]:
    """The contestants, each after two slices that do not count."""
    with tempfile.TemporaryDirectory(prefix="trainwiz-overhead-") as folder:
        project = Path(folder) / "project"
        strategy = "ddp" if shape.ranks > 1 else "single"
        made = subprocess.run(
            [
                sys.executable,
                "-m",
                "trainwiz",
                "init",
                str(project),
                "--defaults",
                "--yes",
                "--device",
                "cpu",
                "--num-processes",
                str(shape.ranks),
                "--strategy",
                strategy,
                "--set",
                "data.eval=",
                "--set",
                "data.packing=false",
            ],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        # Every document fills its row, so that no loop pads or masks.
        draw = random.Random(0)
        texts = ("".join(draw.choices("abcdefgh ", k=shape.length)) for _ in range(4096))
        (project / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        if made.returncode:
            sys.exit(made.stderr)
        there: dict[str, Contestant] = {}
        try:
            for name in names:
                there[name] = Contestant(name, shape, project, Path(folder) / name)
                there[name].wait()
                there[name].turn()
            yield there
        finally:
            for contestant in there.values():
                contestant.end()


# docs/decisions/loop.md: The overhead benchmark starts every contestant several times, in another order each time
def measure(shape: Shape, names: Sequence[str], starts: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(CPU, wall) seconds per update of each contestant, one per start and round. Raises if losses are not the same."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for start in range(starts):
        turned = [*names[start % len(names) :], *names[: start % len(names)]]
        with contest(shape, turned) as contestants:
            for number in range(rounds):
                for name in turned if number % 2 else reversed(turned):
                    cpu, wall = contestants[name].turn()
                    taken[name].append((cpu / UPDATES_PER_SLICE, wall / UPDATES_PER_SLICE))
            if "script" in names and "bare" in names:
                compare_losses(shape, contestants["script"].losses(), contestants["bare"].losses())
    print(table({shape: taken})[0], file=sys.stderr)  # so that a run that is cut off has told something
    return taken


def compare_losses(shape: Shape, script: Mapping[int, float], bare: Mapping[int, float]) -> None:
    """Raise if the two did not train the same."""
    common = script.keys() & bare.keys()
    apart = max(abs(script[n] / bare[n] - 1) for n in common)
    print(f"{shape.name}-{shape.ranks}: {len(common)} losses at most {apart:.1e} apart", file=sys.stderr)
    if apart > SAME_LOSS:
        raise RuntimeError("the bare loop and the script did not train the same")


def table(results: Mapping[Shape, Mapping[str, Sequence[tuple[float, float]]]]) -> tuple[str, bool]:
    """Markdown, and whether the script kept its limits wherever the model computes something."""
    lines = [
        "| model | ranks | loop | CPU ms per update, median (quartiles) | wall ms | script / this, median | limit |",
        "|---|---|---|---|---|---|---|",
    ]
    met = True
    for shape, taken in results.items():
        for name, runs in taken.items():
            cpu, wall = ([1000 * run[i] for run in runs] for i in (0, 1))
            low, middle, high = statistics.quantiles(cpu, n=4)
            ratio, limit = ratio_of("script", name, taken), LIMITS.get(name)
            judged = limit is not None and shape.name == "small"
            met = met and not (judged and limit is not None and ratio > limit)
            shown = f"{limit:.2f}: {'yes' if limit and ratio <= limit else '**no**'}" if judged else ""
            lines.append(
                f"| {shape.name} | {shape.ranks} | {name} | {middle:.2f} ({low:.2f}–{high:.2f}) "
                f"| {statistics.median(wall):.2f} | {ratio:.3f} | {shown} |"
            )
    return "\n".join(lines), met


def ratio_of(one: str, other: str, taken: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """The median of the rounds' ratios of CPU time."""
    return statistics.median(a / b for (a, _), (b, _) in zip(taken[one], taken[other], strict=True))


def _circumstances(starts: int, rounds: int, load_before: float) -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "accelerate", "transformers")]
    return (
        f"`python benchmarks/overhead.py`: {starts} starts, each with {rounds} rounds of {UPDATES_PER_SLICE} updates. "
        f"Python {platform.python_version()}, {', '.join(versions)}, {os.cpu_count()} CPU cores, one thread per rank; "
        f"load average per core before and after: {load_before:.1f}, {load():.1f}."
    )


def load() -> float:
    """The machine's load average of the last minute, per core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def write(text: str) -> None:
    """Put the text between the page's two marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measure, show, write; 1 if the script took more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=6, help="how often each contestant is started anew")
    parser.add_argument("--rounds", type=int, default=6, help="slices of each contestant after each start")
    parser.add_argument("--only", default="", help="NAME-RANKS of one shape, as small-2; nothing is written")
    parser.add_argument("--without", default="", help="a contestant to leave out; nothing is written")
    parser.add_argument("--as", choices=CONTESTANTS, dest="role", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=int, help=argparse.SUPPRESS)
    options, overrides = parser.parse_known_args()
    if options.role:
        sys.path[0] = str(Path.cwd())  # the project, where this file's neighbors have the same names
        Slices(options.report)
        RUN[options.role](overrides)
        return 0
    load_before = load()
    names = [name for name in CONTESTANTS if name != options.without]
    shapes = [shape for shape in SHAPES if options.only in ("", f"{shape.name}-{shape.ranks}")]
    shown, met = table({shape: measure(shape, names, options.starts, options.rounds) for shape in shapes})
    print(shown)
    if not options.only and not options.without:
        write(f"{_circumstances(options.starts, options.rounds, load_before)}\n\n{shown}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
