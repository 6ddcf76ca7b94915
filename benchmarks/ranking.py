"""What an update costs under each strategy on two CPU ranks, and how trainwiz ranks the same strategies.

`python benchmarks/ranking.py`. Every strategy trains the same Llama on the same data, and all take turns of a few
updates, in the opposite order each time, so that a machine that grows busy slows them alike; a rank that waits for its
turn takes no time. Counted is CPU time (user + system) over all ranks and threads: waiting for the other rank is not in
it, but for the loops that DeepSpeed's all-reduce by shared memory spins in. FSDP2 shards by the tests' stand-in. The
ranks are forked from one interpreter that has imported torch and the engines. The table goes to stdout, with `--write`
into docs/forecast.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "forecast.md"
BEGIN, END = "<!-- ranking: written by benchmarks/ranking.py -->", "<!-- ranking: end -->"
LABELS = ("single", "ddp", "zero2", "zero1", "zero3", "fsdp")
RANKS = 2
LENGTH = 64
SHAPE = {
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "intermediate_size": 1024,
    "sequence_length": LENGTH,
    "real_batch_size": 4,
    "n_steps": 100_000,
    "n_warmup_steps": 0,
    "logging_steps": 1,
    "checkpointing_steps": 0,
}
"""Of 21 million parameters. `single` takes the two micro-batches of an update one after the other."""
STANDIN = {"ACCELERATE_TORCH_DEVICE": "cpu", "PYTHONPATH": str(ROOT / "tests" / "standin")}
SAME_LOSS = 1e-4
"""The losses of strategies may differ by this much, relatively: they add in different orders."""


def rank_main() -> None:
    """A rank of the project in this folder: after each turn it says what that took, and waits for the next one."""
    import train

    turn = int(sys.argv.pop(1))
    report, sys.stdout = sys.stdout, sys.stderr
    calls, began = 0, 0.0
    rate_of = train.learning_rate

    def at_an_update(*arguments: object) -> object:
        nonlocal calls, began
        if calls % turn == 0:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            print(usage.ru_utime + usage.ru_stime - began, file=report, flush=True)
            if not sys.stdin.readline():
                os._exit(0)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            began = usage.ru_utime + usage.ru_stime
        calls += 1
        return rate_of(*arguments)

    train.learning_rate = at_an_update
    train.main()


class Contestant:
    """The ranks of one strategy, each waiting for its turn."""

    def __init__(self, label: str, project: Path, turn: int, home: Path) -> None:
        import projects
        import warm
        from engine_children import claimed

        world = 1 if label == "single" else RANKS
        contract = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(claimed.port()), "HOME": str(home)}
        contract |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)} if world > 1 else {}
        environ = projects.environment(contract | (STANDIN if label == "fsdp" else {}))
        values = {**SHAPE, "num_processes": world, "per_device_batch_size": 2}
        values["gradient_accumulation_steps"] = values["real_batch_size"] // world // 2
        argv = [Path(__file__).name, str(turn), "--output_dir", str(project / "output")]
        argv += [part for name, value in values.items() for part in (f"--{name}", str(value))]
        address, imports = warm.server(sys.executable, environ), warm.imported(project / "train.py")
        self.label, self.project = label, project
        self.ranks, self.inputs, self.reports = [], [], []
        for rank in range(world):
            told = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}
            given, give = os.pipe()
            read, report = os.pipe()
            with (project / f"rank-{rank}.err").open("w") as errors:
                streams = (given, report, errors.fileno())
                self.ranks.append(warm.begun(address, argv, str(project), {**environ, **told}, imports, *streams))
            os.close(given)
            os.close(report)
            self.inputs.append(os.fdopen(give, "w"))
            self.reports.append(os.fdopen(read))

    def wait(self) -> float:
        """The CPU seconds of all ranks in the turn that now ends."""
        lines = [report.readline() for report in self.reports]
        if not all(lines):
            errors = "\n".join(path.read_text()[-2000:] for path in sorted(self.project.glob("rank-*.err")))
            raise RuntimeError(f"{self.label} ended early:\n{errors}")
        return sum(map(float, lines))

    def turn(self) -> float:
        """Let it do its updates."""
        for given in self.inputs:
            given.write("\n")
            given.flush()
        return self.wait()

    def end(self) -> None:
        """End its ranks: they wait, and have nothing to lose."""
        for given in self.inputs:
            given.close()

    def losses(self) -> dict[int, float]:
        """Update → loss."""
        records = map(json.loads, (self.project / "output" / "metrics.jsonl").read_text().splitlines())
        return {record["update"]: record["loss"] for record in records if "loss" in record}


def make(folder: Path, label: str) -> Path:
    """The project that `trainwiz init` makes for this strategy, with documents that each fill a row."""
    stage = label.removeprefix("zero")
    values = (
        {"strategy.kind": "deepspeed", "strategy.zero_stage": stage} if stage != label else {"strategy.kind": label}
    )
    values |= {
        "machine.num_processes": str(1 if label == "single" else RANKS),
        "data.eval": "",
        "data.packing": "false",
    }
    answers = folder.with_suffix(".yaml")
    answers.write_text(json.dumps({"ignore": {"TW305": "the stand-in shards on CPU ranks"}}))
    words = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    words += ["--answers", str(answers)] if label == "fsdp" else []
    command = [sys.executable, "-m", "trainwiz", "init", str(folder), "--defaults", "--yes", "--device", "cpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    draw = random.Random(0)
    texts = ("".join(draw.choices("abcdefgh ", k=LENGTH)) for _ in range(1024))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / Path(__file__).name).write_bytes(Path(__file__).read_bytes())
    return folder


@contextlib.contextmanager
def contest(turn: int) -> Iterator[list[Contestant]]:
    """All of them, each after one turn that does not count."""
    import operators
    import warm

    with tempfile.TemporaryDirectory(prefix="trainwiz-ranking-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        operators.copied(home)
        there: list[Contestant] = []
        try:
            for label in LABELS:
                there.append(Contestant(label, make(Path(folder) / label, label), turn, home))
                there[-1].wait()
                there[-1].turn()
            yield there
        finally:
            for contestant in there:
                contestant.end()
            warm.close()


def measure(rounds: int, turn: int) -> dict[str, list[float]]:
    """CPU seconds per update, by strategy and round. Raises where they did not train the same."""
    taken: dict[str, list[float]] = {label: [] for label in LABELS}
    with contest(turn) as contestants:
        for number in range(rounds):
            for contestant in contestants if number % 2 else reversed(contestants):
                taken[contestant.label].append(contestant.turn() / turn)
                print(f"{contestant.label}: {taken[contestant.label][-1]:.3f}", file=sys.stderr, flush=True)
        compare({contestant.label: contestant.losses() for contestant in contestants})
    return taken


def compare(losses: Mapping[str, Mapping[int, float]]) -> None:
    """Raise where a strategy's losses are not those of one rank."""
    for label, found in losses.items():
        common = found.keys() & losses["single"].keys()
        apart = max(abs(found[n] / losses["single"][n] - 1) for n in common)
        if apart > SAME_LOSS:
            raise RuntimeError(f"{label} did not train the same: losses {apart:.1e} apart")


def places() -> dict[str, int]:
    """Each strategy's place in the order that trainwiz has where it forecasts no time. FSDP2 has none in it."""
    from trainwiz import strategies

    ranked = [row.label for row in strategies.every() if row.speed and row.label in LABELS]
    return {label: number for number, label in enumerate(ranked, start=1)}


def table(taken: Mapping[str, Sequence[float]]) -> str:
    """Markdown, the least CPU time first."""
    lines = ["| strategy | ranks | CPU s per update, median (least–most) | × single | trainwiz's place |"]
    lines += ["|---|---|---|---|---|"]
    middle = {label: statistics.median(seconds) for label, seconds in taken.items()}
    told = places()
    for label in sorted(taken, key=middle.__getitem__):
        ranks, least, most = 1 if label == "single" else RANKS, min(taken[label]), max(taken[label])
        ratio = statistics.median(a / b for a, b in zip(taken[label], taken["single"], strict=True))
        lines.append(
            f"| {label} | {ranks} | {middle[label]:.2f} ({least:.2f}–{most:.2f}) | {ratio:.2f} "
            f"| {told.get(label, '–')} |"
        )
    return "\n".join(lines)


def write(text: str) -> None:
    """Put the text between the page's two marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each strategy that count")
    parser.add_argument("--updates", type=int, default=3, help="in each turn")
    parser.add_argument("--write", action="store_true", help="into docs/forecast.md")
    options = parser.parse_args()
    sys.path.insert(1, str(ROOT / "tests"))
    load_before = os.getloadavg()[0] / (os.cpu_count() or 1)
    shown = table(measure(options.rounds, options.updates))
    print(shown)
    if options.write:
        load_after = os.getloadavg()[0] / (os.cpu_count() or 1)
        write(
            f"`python benchmarks/ranking.py --rounds {options.rounds} --updates {options.updates}`: "
            f"{os.cpu_count()} CPU cores, one thread per rank; load average\n"
            f"per core before and after: {load_before:.1f}, {load_after:.1f}.\n\n{shown}"
        )
    return 0


if __name__ == "__main__":
    if not (Path(__file__).parent / "train.py").exists():
        sys.exit(main())
    rank_main()
