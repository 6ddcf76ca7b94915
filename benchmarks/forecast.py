"""Forecasts against published measurements: `python benchmarks/forecast.py FILE.csv [--json] [--page]`.

Every row that says enough gets a forecast of the peak memory and of the tokens per second and GPU, by the formulas that
the rules, the wizard and `trainwiz plan` use; the others say what they lack. The errors follow by group.

With --json the forecasts alone go to stdout, with the row's line in the file. With --page the file's table in
docs/forecast.md is written anew. benchmarks/published/ has measurements.csv, with which the constants were found, and
unseen.csv, whose rows were collected later; docs/forecast.md says which of them were forecast at first sight.
"""

from __future__ import annotations

import csv
import itertools
import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "launcher")]

from published import spelling  # noqa: E402
from published.recipes import Recipe, Unknown, recipe  # noqa: E402

from trainwiz.estimate.datasheets import GpuModel  # noqa: E402
from trainwiz.estimate.device import Moment, Needs, Work, needs, training_of  # noqa: E402
from trainwiz.estimate.gpus import gpu_model  # noqa: E402
from trainwiz.estimate.reserve import device_bytes, reserved_bytes  # noqa: E402
from trainwiz.estimate.speed import FITTED, Rates, pace  # noqa: E402
from trainwiz.models.activations import Checkpointing  # noqa: E402

PAGE = ROOT / "docs" / "forecast.md"
BEGIN, END = "<!-- {file}, written by benchmarks/forecast.py -->", "<!-- end -->"
COLUMNS = (
    *("source", "model", "params_b", "gpu", "gpus", "strategy", "precision", "micro_batch", "seq_len"),
    *("checkpointing", "extras", "peak_gib", "tokens_per_s_per_gpu", "mfu"),
)
_GIB = 2**30
_ALIKE = 1.1
_TENSOR_CORES_IN_FP32 = (8, 0)
_FSDP1_BLOCKS = 1.15
"""Blocks for each byte of tensors under FSDP 1, whose gathers are on a stream of their own: 1.10 to 1.16 where the rows
of fms-acceleration on several GPUs say both, with 3.2 GiB of context.
"""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is forecast for one row, and what was measured."""

    row: int
    group: str
    source: str
    where: tuple[str, str, str, str]
    """Source, model, GPU and number of GPUs: rows that share them can be ranked."""
    way: str
    """The strategy, as the source names it."""
    exact: bool
    peak_gib: float | None
    tokens: float | None
    """Per second and GPU."""
    why_not: str
    measured_gib: float | None
    measured_tokens: float | None
    peers: dict[str, float]
    """What other estimators say of the memory, in GiB."""


def forecast(line: int, row: dict[str, str]) -> Forecast:
    """The forecast of one row."""
    measured = {"measured_gib": _number(row["peak_gib"]), "measured_tokens": _number(row["tokens_per_s_per_gpu"])}
    source, way = row["source"].split(" ")[0], row["strategy"]
    where = (row["source"], row["model"], row["gpu"], row["gpus"])
    try:
        found = recipe(row)
    except Unknown as why:
        return Forecast(
            row=line,
            group="",
            source=source,
            where=where,
            way=way,
            exact=False,
            peak_gib=None,
            tokens=None,
            why_not=str(why),
            peers={},
            **measured,
        )
    speed = tokens_per_second(found, row["gpu"])
    return Forecast(
        row=line,
        group=found.group,
        source=source,
        where=where,
        way=way,
        exact=found.exact,
        peak_gib=_shown(found) / _GIB,
        tokens=speed,
        why_not="" if speed else "the GPU is missing or unknown, so there is no forecast of the speed",
        peers=_peers(found),
        **measured,
    )


def tokens_per_second(found: Recipe, name: str, rates: Rates = FITTED) -> float | None:
    """Of one GPU with this name; None for one that is not listed."""
    gpu = gpu_model(spelling.model_of_gpu(name))
    if gpu is None:
        return None
    gpu = replace(gpu.limited(found.watts), attention_share=gpu.attention_share * found.attention)
    if found.tensor_cores and gpu.capability >= _TENSOR_CORES_IN_FP32:
        gpu = replace(gpu, single_flops=gpu.half_flops / 2, single_share=gpu.matrix_share)
    seconds, tokens = [], 0
    for work in _ways(found, "none"):
        speed = pace(
            found.strategy,
            work,
            gpu,
            accumulation=found.accumulation,
            ranks_per_machine=found.machine,
            attended=work.length * found.context,
            compiled=found.compiled,
            network=found.network,
            rates=rates,
        )
        if speed is None:
            return None
        between = _between(found, work, (found.network or gpu.network) * rates.ring)
        seconds.append(
            replace(
                speed,
                compute=speed.compute + (found.accumulation * _wide_head(work, gpu, rates) if found.wide_head else 0),
                communication=speed.communication + between,
            ).seconds
        )
        tokens = speed.tokens
    return tokens / statistics.mean(seconds)


def _between(found: Recipe, work: Work, link: float) -> float:
    """Seconds to add up the gradients of shards that several machines hold."""
    training = training_of(work)
    shard = training.compute_bytes * training.parameters / work.world
    return 2 * (found.replicas - 1) / found.replicas * shard / link


def _wide_head(work: Work, gpu: GpuModel, rates: Rates) -> float:
    """Seconds that a frozen head in fp32 takes longer than in 16 bits."""
    assert work.transformer is not None
    flops = 4 * work.tokens * work.transformer.hidden_size * work.transformer.vocab_size
    reached = gpu.single_flops * gpu.single_share, gpu.half_flops * gpu.matrix_share
    return flops / rates.matrices * (1 / reached[0] - 1 / reached[1])


def _ways(found: Recipe, less: Checkpointing) -> list[Work]:
    """The work; or the two that it lies between, where only every second matrix or layer is computed again."""
    ways = [less, "full"] if found.halves else [found.work.checkpointing]
    return [replace(found.work, checkpointing=way) for way in ways]


def _shown(found: Recipe) -> float:
    """The peak as the source measures it."""
    works, shares = _ways(found, found.kept), (found.share, 1 - found.share)
    totals = [_peak(found, work) for work in works]
    tensors = statistics.fmean(totals, weights=shares[: len(totals)])
    if found.meter == "allocated":
        return tensors
    if found.meter == "reserved" and found.strategy.kind == "colossal_fsdp":
        return _FSDP1_BLOCKS * tensors
    return reserved_bytes(tensors) if found.meter == "reserved" else device_bytes(tensors, ranks=found.work.world)


def _peak(found: Recipe, work: Work) -> int:
    """Bytes of tensors; where the optimizer steps in the backward pass, with no gradients but the largest."""
    said: Needs = needs(found.strategy, work)
    if not found.steps_early:
        return max(said.at(moment) + _held(found, moment) for moment in said.moments)
    training = training_of(work)
    gradients, largest = found.strategy.gradient_bytes(training), training.weight_bytes * training.table
    step = said.state - gradients + largest * (1 if work.fused_step else 2)
    return max(said.at("loss") + largest, said.at("backward") + largest, step)


def _held(found: Recipe, moment: Moment) -> int:
    """What a source's loop has in memory at a moment beside what the generated script has.

    What the model returned for the last micro-batch is there until its name is bound again, behind the next forward
    pass.
    """
    outputs = found.returned + found.cached if found.returned else 0
    forward = moment == "loss"
    casts = found.casts if moment in ("loss", "backward") else 0
    return outputs + casts + found.constants + (found.cached if forward else 0)


def _peers(found: Recipe) -> dict[str, float]:
    """What two estimators say of full fine-tuning: bytes of state alone.

    accelerate: four times the weights for Adam (`accelerate estimate-memory`, docs/usage_guides/model_size_estimator).
    DeepSpeed: 2 P + 18 P / N at stage 2, and 18 P / N + 4 bytes of the largest layer at stage 3
    (`estimate_zero*_model_states_mem_needs`).
    """
    work = found.work
    if work.adapter != "none" or work.transformer is None:
        return {}
    parameters, world = work.parameters, work.world
    said = {"accelerate": 4 * work.weight_bytes * parameters}
    if found.strategy.partitions_weights:
        said["DeepSpeed"] = 18 * parameters // world + 4 * work.transformer.largest_table
    elif found.strategy.uses_deepspeed:
        said["DeepSpeed"] = 2 * parameters + 18 * parameters // world
    return {name: count / _GIB for name, count in said.items()}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number > 0 else None


def read(path: Path) -> list[Forecast]:
    """All rows of a file, forecast; `row` counts lines, the header is line 1."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = {"model", "strategy", "micro_batch", "seq_len"} - set(reader.fieldnames or ())
        if missing:
            raise SystemExit(f"{path}: the columns {', '.join(sorted(missing))} are missing")
        found = []
        for row in reader:
            found.append(forecast(reader.line_num, {name: row.get(name) or "" for name in COLUMNS}))
        return found


def errors(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    """Forecast over measured, less 1, of the pairs that have both."""
    return [said / true - 1 for said, true in pairs if said is not None and true]


def ranked(rows: Iterable[Forecast], said: str, measured: str) -> list[bool]:
    """Whether pairs of strategies for one model on the same GPUs are forecast in the order that was measured.

    Pairs that were measured within 10 % of each other have no order.
    """
    known = [row for row in rows if getattr(row, said) and getattr(row, measured)]
    found = []
    for one, other in itertools.combinations(known, 2):
        true = getattr(one, measured) / getattr(other, measured)
        if one.where == other.where and one.way != other.way and not 1 / _ALIKE < true < _ALIKE:
            found.append((getattr(one, said) > getattr(other, said)) == (true > 1))
    return found


def summary(found: list[float]) -> str:
    """One row of the table."""
    if not found:
        return "0 | – | – | – | – | –"
    sizes = sorted(map(abs, found))
    ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    low = sum(error < -0.05 for error in found)
    worst = max(found, key=abs)
    return (
        f"{len(found)} | {statistics.median(sizes):.1%} | {ninth:.1%} | {worst:+.1%} | "
        f"{statistics.median(found):+.1%} | {low}"
    )


def table(rows: list[Forecast]) -> str:
    """The errors by group, as Markdown."""
    return "\n".join([*_memory(rows), "", *_time(rows), "", *_coverage(rows), *_ranking(rows)])


_HEAD = ("rows | median | p90 | worst | signed median | more than 5 % below", "---:|---:|---:|---:|---:|---:")


def _memory(rows: list[Forecast]) -> list[str]:
    lines = [f"| memory | {_HEAD[0]} |", f"|---|{_HEAD[1]}|"]
    exact = [row for row in rows if row.exact]
    for group in sorted({row.group for row in exact if row.measured_gib}):
        lines.append(_line(group, [row for row in exact if row.group == group]))
    lines.append(_line("**all with exact batch and length**", exact))
    lines.append(_line("those with a bound for the length", [row for row in rows if row.group and not row.exact]))
    for peer in ("accelerate", "DeepSpeed"):
        known = [row for row in exact if peer in row.peers]
        lines.append(_line(f"*rows that {peer}'s estimator covers, by trainwiz*", known))
        said = errors((row.peers[peer], row.measured_gib) for row in known)
        lines.append(f"| *the same rows, by {peer}'s estimator* | {summary(said)} |")
    return lines


def _line(name: str, rows: list[Forecast]) -> str:
    return f"| {name} | {summary(errors((row.peak_gib, row.measured_gib) for row in rows))} |"


def _time(rows: list[Forecast]) -> list[str]:
    lines = [f"| tokens per second and GPU | {_HEAD[0]} |", f"|---|{_HEAD[1]}|"]
    known = [row for row in rows if row.measured_tokens]
    for source in sorted({row.source for row in known if row.tokens}):
        said = errors((row.tokens, row.measured_tokens) for row in known if row.source == source)
        lines.append(f"| {source} | {summary(said)} |")
    lines.append(f"| **all** | {summary(errors((row.tokens, row.measured_tokens) for row in known))} |")
    return lines


def _coverage(rows: list[Forecast]) -> list[str]:
    memory = [row for row in rows if row.measured_gib]
    speed = [row for row in rows if row.measured_tokens]
    said = sum(row.peak_gib is not None for row in memory), sum(row.tokens is not None for row in speed)
    return [
        f"{said[0]} of {len(memory)} rows with a measured peak have a forecast, and {said[1]} of {len(speed)} rows",
        "with a measured speed.",
    ]


def _ranking(rows: list[Forecast]) -> list[str]:
    memory = ranked((row for row in rows if row.exact), "peak_gib", "measured_gib")
    speed = ranked(rows, "tokens", "measured_tokens")
    return [
        "Of two strategies for one model on the same GPUs, measured more than 10 % apart, the order is forecast",
        f"correctly in {sum(memory)} of {len(memory)} pairs by memory, and in {sum(speed)} of {len(speed)} by speed.",
    ]


def as_json(rows: list[Forecast]) -> str:
    """The forecasts alone."""
    return json.dumps(
        {
            "rows": [
                {
                    "row": row.row,
                    "peak_gib": row.peak_gib and round(row.peak_gib, 2),
                    "tokens_per_s_per_gpu": row.tokens and round(row.tokens, 1),
                    "why_not": row.why_not,
                }
                for row in rows
            ]
        },
        indent=1,
    )


def _details(rows: list[Forecast]) -> Iterable[str]:
    for row in rows:
        peak = _compared(row.peak_gib, row.measured_gib, "GiB")
        speed = _compared(row.tokens, row.measured_tokens, "tokens/s")
        yield f"{row.row:4} {row.source[:40]:40} {peak:32} {speed:38} {row.why_not}"


def _compared(said: float | None, true: float | None, unit: str) -> str:
    if said is None:
        return "–"
    return f"{said:.1f} {unit}" + (f" ({true:g}: {said / true - 1:+.1%})" if true else "")


def main(arguments: list[str]) -> None:
    """Print the forecasts."""
    files = [argument for argument in arguments if not argument.startswith("--")]
    if len(files) != 1 or not set(arguments) - set(files) <= {"--json", "--page"}:
        raise SystemExit("usage: python benchmarks/forecast.py FILE.csv [--json] [--page]")
    rows = read(Path(files[0]))
    if "--json" in arguments:
        print(as_json(rows))
        return
    print(*_details(rows), "", table(rows), sep="\n")
    if "--page" in arguments:
        text = PAGE.read_text(encoding="utf-8")
        begin = BEGIN.format(file=Path(files[0]).name)
        start = text.index(begin) + len(begin)
        before, after = text[:start], text[text.index(END, start) :]
        PAGE.write_text(f"{before}\n{table(rows)}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
