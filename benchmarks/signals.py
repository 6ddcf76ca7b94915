"""What is left of a run after its launcher or a rank is ended: trainwiz beside accelerate launch and torchrun.

`python benchmarks/signals.py --trials 3` runs every event in turn on 2 real ranks and writes docs/reliability.md. Each
cell says the launcher's exit code, the seconds until no process of the run was left, and how many were left after 5 s
beyond the grace. `--engines` and `--launchers` choose a part; `light` ranks import no torch and save in 0.3 s.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- signals: written by benchmarks/signals.py -->", "<!-- signals: end -->"
GRACE = 10
WAIT_SECONDS, LIMIT_SECONDS = 120.0, 5.0
MARK = "SIGNALS_BENCHMARK"

LIGHT = """
import os, signal, sys, time
folder, rank = os.environ["SIGNALS_FOLDER"], os.environ.get("RANK", "0")
def save(*_):
    time.sleep(0.3); sys.exit(0)
signal.signal(signal.SIGTERM, save)
with open(f"{folder}/ready-{rank}.part", "w") as file: file.write(str(os.getpid()))
os.rename(f"{folder}/ready-{rank}.part", f"{folder}/ready-{rank}")
while True: time.sleep(0.05)
"""
FOREIGN = """
import os, sys, time, torch, accelerate
from torch import nn
kind = sys.argv[1]
handlers = [accelerate.utils.InitProcessGroupKwargs(backend="gloo")] if kind == "deepspeed" else []
accelerator = accelerate.Accelerator(kwargs_handlers=handlers, cpu=kind == "ddp" or None)
model = nn.Linear(8, 1)
if kind == "deepspeed":
    accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 4
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
folder, rank = os.environ["SIGNALS_FOLDER"], os.environ.get("RANK", "0")
for update in range(10**9):
    accelerator.backward(model(torch.randn(4, 8)).square().mean())
    optimizer.step(); optimizer.zero_grad()
    if update == 3:
        with open(f"{folder}/ready-{rank}.part", "w") as file: file.write(str(os.getpid()))
        os.rename(f"{folder}/ready-{rank}.part", f"{folder}/ready-{rank}")
    time.sleep(0.01)
"""
WORLD = "num_processes: 2\nnum_machines: 1\nmain_process_port: 0\nmixed_precision: 'no'\n"
CONFIGS = {
    "ddp": f"distributed_type: MULTI_CPU\n{WORLD}use_cpu: true\n",
    "deepspeed": f"distributed_type: DEEPSPEED\n{WORLD}"
    "deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 1, offload_optimizer_device: none, "
    "offload_param_device: none}\n",
}
CONFIGS["light"] = CONFIGS["ddp"]


@dataclass(frozen=True)
class Seen:
    """One trial. `seconds` until nothing was left (None: something still was), `left` after the limit."""

    code: int | None
    seconds: float | None
    left: int


def grace(script: str) -> int:
    """Seconds that ranks get for saving; a real checkpoint on a busy machine takes its time."""
    return 30 if script == "generated" else GRACE


def marked(mark: str) -> list[int]:
    """Living processes whose environment carries the mark."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def busy() -> float:
    """The processes that want each core, in the last minute, at least 1: by it a limit in seconds is longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def patience() -> float:
    """Seconds that a start may take: two ranks that import DeepSpeed need 20 s of a core, and may have to share."""
    return WAIT_SECONDS * busy()


# docs/decisions/tests.md: Trials wait until a build lock is old enough to be judged
def forget_killed_builds() -> None:
    """Remove what an earlier trial's SIGKILL left while DeepSpeed loaded an op: the next would wait for it for ever."""
    from trainwiz.probe import locks

    time.sleep(locks.JUST_NOW if list(locks.extensions_folder().glob("**/lock")) else 0)
    for lock in locks.stale_locks():
        Path(lock).unlink(missing_ok=True)


def ready(folder: Path, script: str, mark: str, launcher: subprocess.Popen[bytes]) -> list[int]:
    """The ranks' processes, by what they write, or for a generated project by its metrics."""
    until = time.monotonic() + patience()
    while time.monotonic() < until:
        if launcher.poll() is not None:
            said = (folder / "said.txt").read_text(errors="replace")
            raise TimeoutError(
                f"the launcher ended with {launcher.returncode} before the ranks were ready: {said[-3000:]}"
            )
        if script == "generated":
            if any(metrics.stat().st_size for metrics in (folder / "runs").glob("*-*/metrics.jsonl")):
                return ranks_of(mark)
        elif all((folder / f"ready-{rank}").exists() for rank in (0, 1)):
            return [int((folder / f"ready-{rank}").read_text()) for rank in (0, 1)]
        time.sleep(0.05)
    said = (folder / "said.txt").read_text(errors="replace")
    raise TimeoutError(f"{folder}: the ranks did not get ready; what was said: {said[-3000:]}")


def ranks_of(mark: str) -> list[int]:
    """Processes with a RANK of a world, in its order."""
    found = {}
    for pid in sorted(marked(mark), reverse=True):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for rank in (0, 1):
            if f"RANK={rank}".encode() in environ:
                found[rank] = pid
    return [found[0], found[1]]


def make(folder: Path, engine: str) -> None:
    """A generated project of the custom task that trains for ever."""
    kind = ["strategy.kind=ddp"] if engine == "ddp" else ["strategy.kind=deepspeed", "strategy.zero_stage=2"]
    values = [
        "task=custom",
        "machine.device=cpu",
        "machine.num_processes=2",
        "batch.real_batch_size=16",
        "batch.per_device_batch_size=4",
        "schedule.n_steps=1000000",
        "tracking.logging_steps=1",
        "checkpoint.checkpointing_steps=0",
        "data.eval=",
        "machine.main_process_port=0",
        *kind,
    ]
    settings = [word for value in values for word in ("--set", value)]
    command = [str(BIN / "trainwiz"), "init", str(folder), "--defaults", "--yes", *settings]
    subprocess.run(command, check=True, capture_output=True)


def command(launcher: str, engine: str, script: str, folder: Path) -> list[str]:
    """The line that starts it, to be run in `folder`."""
    if script == "generated":
        return [str(BIN / "trainwiz"), "launch", "--new", "--grace", str(grace(script))]
    (folder / "their.py").write_text(LIGHT if engine == "light" else FOREIGN)
    (folder / "theirs.yaml").write_text(CONFIGS[engine])
    arguments = ["their.py", engine]
    if launcher == "trainwiz":
        return [str(BIN / "trainwiz"), "launch", "--grace", str(GRACE), "--config", "theirs.yaml", *arguments]
    if launcher == "torchrun":
        return [str(BIN / "torchrun"), "--nproc_per_node", "2", "--master_port", "0", *arguments]
    # One process: several CPU ranks it starts as one anyway.
    return [str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "1", *arguments]


EVENTS: dict[str, Callable[[subprocess.Popen[bytes], list[int], int], None]] = {
    "SIGTERM": lambda launcher, _ranks, _terminal: launcher.terminate(),
    "SIGINT": lambda launcher, _ranks, _terminal: launcher.send_signal(signal.SIGINT),
    "SIGHUP": lambda launcher, _ranks, _terminal: launcher.send_signal(signal.SIGHUP),
    "SIGUSR1": lambda launcher, _ranks, _terminal: launcher.send_signal(signal.SIGUSR1),
    "SIGKILL": lambda launcher, _ranks, _terminal: launcher.kill(),
    "terminal lost": lambda _launcher, _ranks, terminal: os.close(terminal),
    "rank 1: SIGKILL": lambda _launcher, ranks, _terminal: os.kill(ranks[-1], signal.SIGKILL),
    "rank 0: SIGSEGV": lambda _launcher, ranks, _terminal: os.kill(ranks[0], signal.SIGSEGV),
}


def trial(launcher: str, engine: str, script: str, event: str, port: int) -> Seen:
    """Start, wait until both ranks train, let it happen, and watch what is left."""
    folder = Path(tempfile.mkdtemp(prefix="signals-"))
    mark = os.urandom(8).hex()
    environ = {
        **os.environ,
        MARK: mark,
        "SIGNALS_FOLDER": str(folder),
        "OMP_NUM_THREADS": "1",
        "TRAINWIZ_LANG": "en",
        **({"DS_ACCELERATOR": "cpu"} if engine == "deepspeed" else {"ACCELERATE_USE_CPU": "true"}),
    }
    try:
        if engine == "deepspeed":
            forget_killed_builds()
        if script == "generated":
            make(folder, engine)
        words = [
            word if word != "0" or launcher != "torchrun" else str(port)
            for word in command(launcher, engine, script, folder)
        ]
        ours, theirs = pty.openpty()
        with (folder / "said.txt").open("wb") as said:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environ,
                stdin=theirs,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_own_terminal if event == "terminal lost" else None,
            )
        os.close(theirs)
        if launcher == "accelerate" and script == "foreign":
            (folder / "ready-1").write_text("0")
        ranks = [pid for pid in ready(folder, script, mark, process) if pid]
        began = time.monotonic()
        EVENTS[event](process, ranks, ours)
        seconds = _emptied(process, mark, began, (grace(script) + LIMIT_SECONDS) * busy())
        left = len(marked(mark))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        code = process.poll()
        if script == "generated" and code not in (75, 137, 139, -9):
            print((folder / "said.txt").read_text(errors="replace")[-3000:], file=sys.stderr)
        if event != "terminal lost":
            os.close(ours)
        return Seen(code, seconds, left)
    finally:
        for pid in marked(mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(UnboundLocalError, subprocess.TimeoutExpired):
            process.wait(5)
        shutil.rmtree(folder, ignore_errors=True)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _emptied(process: subprocess.Popen[bytes], mark: str, began: float, limit: float) -> float | None:
    while time.monotonic() - began < limit:
        process.poll()
        if not marked(mark):
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def cell(seen: Sequence[Seen]) -> str:
    """Codes, median seconds, and what was left."""
    codes = "/".join(sorted({"–" if s.code is None else str(s.code) for s in seen}))
    times = [s.seconds for s in seen if s.seconds is not None]
    left = max(s.left for s in seen)
    spent = f"{statistics.median(times):.1f} s" if times else "never"
    return f"{codes}, {spent}" + (f", **left: {left}** ({sum(s.left > 0 for s in seen)}/{len(seen)})" if left else "")


def main() -> None:
    """Run the matrix and print it; with --write, into docs/reliability.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--events", nargs="*", default=list(EVENTS))
    parser.add_argument(
        "--columns",
        nargs="*",
        default=[
            "trainwiz:ddp:generated",
            "trainwiz:deepspeed:generated",
            "trainwiz:ddp:foreign",
            "trainwiz:deepspeed:foreign",
            "trainwiz:light:foreign",
            "torchrun:light:foreign",
            "accelerate:light:foreign",
        ],
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    # Started with nohup or in the background, this process ignores them, and what it starts would, too.
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(130))
    seen: dict[tuple[str, str], list[Seen]] = {}
    port = 29850
    for _ in range(options.trials):
        for event in options.events:
            for column in options.columns:
                launcher, engine, script = column.split(":")
                port += 1
                try:
                    result = trial(launcher, engine, script, event, port)
                except (TimeoutError, KeyError) as error:
                    print(f"{event} {column}: not measured: {error}", file=sys.stderr)
                    continue
                seen.setdefault((event, column), []).append(result)
                print(event, column, result, file=sys.stderr, flush=True)
    graces = f"{grace('generated')} for generated, else {GRACE}"
    trials = f"trials: {options.trials}; --grace {graces}; command: `python benchmarks/signals.py`"
    head = ["event", *(column.replace(":", ", ") for column in options.columns)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for event in options.events:
        cells = [cell(seen[event, c]) if (event, c) in seen else "not measured" for c in options.columns]
        lines.append(f"| {event} | {' | '.join(cells)} |")
    table = "\n".join([trials, "", *lines])
    print(table)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
