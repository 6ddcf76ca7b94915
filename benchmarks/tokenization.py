"""Measure tokenization: CPU time beside the tokenizer's own, speed by cores, memory; and packing of many pieces.

    python benchmarks/tokenization.py [--mb 30] [--rounds 3] [--pieces 1e8]
    python benchmarks/tokenization.py --sizes 100,1000,3000    once each, on all cores: what grows with the data

The contestants take turns, so that a busy machine slows all of them; a figure is a ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = """if True:
    import json, sys
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    texts = [json.loads(line)["text"] for line in open(sys.argv[2])]
    import resource, time
    began = time.process_time()
    for first in range(0, len(texts), 500):
        tokenizer(texts[first:first + 500], add_special_tokens=False, verbose=False)["input_ids"]
    print(json.dumps({"cpu": time.process_time() - began, "wall": 0.0}))
"""
PREPARE = """if True:
    import json, os, resource, sys, time
    import documents, task, token_cache
    config = task.TaskConfig(cache_dir=sys.argv[1], train_data=sys.argv[2])
    recipe = documents.recipe(config, config.train_data, "train")
    def used():
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    documents.Tokens(config)  # read once before, as the training does
    began, cpu = time.perf_counter(), used()
    tokens = token_cache.tokens_of(config.cache_dir, recipe)
    wall = time.perf_counter() - began
    time.sleep(0.5)  # its processes end
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"cpu": used() - cpu, "wall": wall, "peak_kib": peak, "tokens": len(tokens.ids)}))
"""
ROWS = """if True:
    import json, resource, sys, time
    from pathlib import Path
    import packing, token_cache
    folder, = (path for path in Path(sys.argv[1]).glob("tokens-*") if path.is_dir())
    tokens, cpu = token_cache.Tokens(folder), time.process_time()
    packing.write_rows(tokens, folder / "rows-made", packing.Selection(length=2048))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"cpu": time.process_time() - cpu, "peak_kib": peak}))
"""
PACK = """if True:
    import json, resource, sys, time
    import numpy as np
    import encoders, packing, token_cache
    from pathlib import Path
    folder, count = Path(sys.argv[1]), int(float(sys.argv[2]))
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    total = 0
    with (folder / "documents").open("wb") as file:
        for first in range(0, count, 1 << 20):
            some = min(1 << 20, count - first)
            table = np.zeros(some, dtype=encoders.DOCUMENT)
            table["size"] = np.clip(generator.lognormal(5.2, 0.8, some), 2, 2049)
            table["first"] = 1
            total += int(table["size"].sum())
            file.write(table.tobytes())
    with (folder / "tokens").open("wb") as file:
        file.truncate(2 * total)
    (folder / "about.json").write_text(json.dumps({"data": "made", "dtype": "uint16"}))
    tokens = token_cache.Tokens(folder)
    began, cpu = time.perf_counter(), time.process_time()
    packing.write_rows(tokens, folder / "rows-made", packing.Selection(length=2048))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = len(np.load(folder / "rows-made" / "ends.npy", mmap_mode="r"))
    filled = (total - count) / (rows * 2048)
    print(json.dumps({"wall": wall, "cpu": cpu, "peak_kib": peak, "rows": rows, "filled": filled}))
"""


def corpus(file: Path, megabytes: float) -> None:
    """Write documents of words from Python's language reference, of lengths as web pages have them."""
    from pydoc_data.topics import topics

    words = [word for name in sorted(topics) for word in topics[name].split(" ")]
    generator, size = random.Random(0), 0
    with file.open("w", encoding="utf-8") as out:
        while size < megabytes * 1e6:
            start = generator.randrange(len(words))
            line = json.dumps({"text": " ".join(words[start : start + int(generator.lognormvariate(5.5, 1))])}) + "\n"
            size += out.write(line)


def tokenizer(folder: Path, file: Path) -> None:
    """Train a byte-level BPE, as GPT-2's and Llama 3's are, and save it with a model's configuration."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    made = ByteLevelBPETokenizer()
    made.train([str(file)], vocab_size=20_000, special_tokens=["<|end|>"], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token="<|end|>").save_pretrained(folder)
    LlamaConfig(vocab_size=20_000, hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(folder)


def run(program: str, *arguments: str, cwd: Path, cores: int) -> dict[str, float]:
    """Run a program on so many cores and return what it measured."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = ["taskset", "-c", cpus, sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pieces", type=float, default=1e8)
    parser.add_argument("--sizes", default="", help="MB of data, with commas between; nothing else is measured then")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = (
            "model.from_scratch=true",
            "data.train=texts.jsonl",
            "data.eval=",
            "machine.device=cpu",
            "machine.num_processes=1",
        )
        settings = [part for value in (f"model.name={folder}/model", *values) for part in ("--set", value)]
        if asked.mb:
            corpus(folder / "small.jsonl", 5)
            tokenizer(folder / "model", folder / "small.jsonl")
            corpus(folder / "texts.jsonl", asked.mb)
        else:
            (folder / "texts.jsonl").write_text('{"text": "none"}\n')
            tokenizer(folder / "model", folder / "texts.jsonl")
        init = [sys.executable, "-m", "trainwiz", "init", str(folder / "p"), "--defaults", "--yes", *settings]
        subprocess.run(init, cwd=folder, check=True, capture_output=True)
        if asked.sizes:
            slopes(folder, [int(size) for size in asked.sizes.split(",")])
            return
        if asked.mb:
            tokenization(folder, asked.rounds, asked.mb)
        if asked.pieces:
            found = run(PACK, str(folder / "made"), str(asked.pieces), cwd=folder / "p", cores=1)
            print(f"packing {asked.pieces:.0e} pieces: {json.dumps(found)}")
    print(f"load average: {os.getloadavg()[0]:.1f}, {resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime:.0f} CPU s")


def tokenization(folder: Path, rounds: int, megabytes: float) -> None:
    """Let the tokenizer alone, one core and two take turns."""
    seen: dict[str, list[dict[str, float]]] = {"alone": [], "1": [], "2": []}
    for n in range(rounds):
        seen["alone"].append(run(OWN, str(folder / "model"), str(folder / "texts.jsonl"), cwd=folder, cores=1))
        for cores in (1, 2):
            cache, texts = str(folder / f"cache-{cores}-{n}"), str(folder / "texts.jsonl")
            began = time.perf_counter()
            found = run(PREPARE, cache, texts, cwd=folder / "p", cores=cores)
            seen[str(cores)].append({**found, "all": time.perf_counter() - began})
    middle = {name: {k: statistics.median(r[k] for r in each) for k in each[0]} for name, each in seen.items()}
    print(json.dumps(middle))
    print(f"CPU per 100 MB: {100 * middle['1']['cpu'] / megabytes:.1f} s")
    print(f"CPU / the tokenizer's own: {middle['1']['cpu'] / middle['alone']['cpu']:.3f} (goal: at most 1.15)")
    print(f"speed of two cores / of one: {middle['1']['wall'] / middle['2']['wall']:.2f} (goal: at least 1.8)")


def slopes(folder: Path, sizes: list[int]) -> None:
    """Prepare data of each size (MB), tokens and rows: a corpus of 100 MB, as often as the size needs."""
    corpus(folder / "part.jsonl", 100)
    cores = len(os.sched_getaffinity(0))
    for size in sizes:
        with (folder / "texts.jsonl").open("wb") as out:
            for _ in range(size // 100):
                out.write((folder / "part.jsonl").read_bytes())
        found = run(PREPARE, str(folder / "cache"), str(folder / "texts.jsonl"), cwd=folder / "p", cores=cores)
        rows = run(ROWS, str(folder / "cache"), cwd=folder / "p", cores=cores)
        disk = sum(file.stat().st_size for file in (folder / "cache").rglob("*") if file.is_file())
        shutil.rmtree(folder / "cache")
        print(f"{size} MB: {json.dumps({**found, 'rows': rows, 'disk': disk})}", flush=True)
        print(f"  CPU per 100 MB: {100 * found['cpu'] / size:.1f} s; load average {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
