"""The whole menu of faults in real trainings on 2 ranks: who is named, as what, how soon, and what is left.

`python benchmarks/faults.py --trials 2 --write` runs every fault under DDP and DeepSpeed, in generated projects and in
a script that trainwiz did not write, and puts the table into docs/reliability.md. A cell says the launcher's exit code,
the rank that was named, the cause by its name in the table of `trainwiz diagnose`, and the seconds from the fault to
the end of the launcher, with its verdict written. Some faults need root: a cgroup, a small tmpfs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import signals

BEGIN, END = "<!-- faults: written by benchmarks/faults.py -->", "<!-- faults: end -->"
HANG_LIMIT = 3.0
LEFT_SECONDS = 5.0
CGROUPS = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 1_500_000_000

TROUBLE = '''
"""What goes wrong, and where: `happens` is called in every forward pass, `at_start` before the ranks meet."""
import ctypes, os, signal, socket, sys, threading, time
from pathlib import Path

FAULT, RANK, FOLDER = os.environ["FAULT"], os.environ.get("RANK", "0"), Path(os.environ["FAULT_FOLDER"])
calls, held = 0, []


def struck():
    (FOLDER / "struck.part").write_text(str(time.time()))
    os.rename(FOLDER / "struck.part", FOLDER / "struck")


def at_start():
    (FOLDER / f"pid-{RANK}").write_text(str(os.getpid()))
    if FAULT == "a rank never starts" and RANK == "1":
        struck()
        time.sleep(600)
    if FAULT == "port taken" and RANK == "0":
        taken = socket.create_server(("", int(os.environ["MASTER_PORT"])), family=socket.AF_INET6, dualstack_ipv6=True)
        held.append(taken)
        struck()


def happens():
    global calls
    calls += 1
    if calls != 40:
        return
    if RANK == "0":
        time.sleep(2 * (FAULT == "dies in a collective"))
        return
    if FAULT in FAULTS:
        struck()
        FAULTS[FAULT]()


def memory():
    import torch
    while True:
        held.append(torch.ones(10**7))


def memory_of_process():
    import resource, torch
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, now + 2**28))
    held.append(torch.ones(10**9))


def disk():
    with open(FOLDER / "runs" / "filled", "wb", buffering=0) as file:
        while file.write(bytes(2**16)): pass


def shm():
    import torch
    class Large(torch.utils.data.Dataset):
        def __len__(self): return 8
        def __getitem__(self, index): return torch.ones(10**7)
    for _ in torch.utils.data.DataLoader(Large(), num_workers=1): pass


def in_collective():
    def die():
        time.sleep(0.5)  # in the backward pass by then, where rank 0 is not yet
        os._exit(7)
    threading.Thread(target=die).start()


def fail():
    raise RuntimeError("the sky has fallen")


FAULTS = {
    "exception": fail,
    "exit code 42": lambda: sys.exit(42),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "out of memory (cgroup)": memory,
    "out of memory (RLIMIT_AS)": memory_of_process,
    "disk full": disk,
    "/dev/shm full": shm,
    "dies in a collective": in_collective,
}
'''
FOREIGN = {
    "ddp": """
import trouble; trouble.at_start()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def step(x):
    model(x).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
""",
    "deepspeed": """
import trouble; trouble.at_start()
import torch, deepspeed
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "gradient_clipping": 0.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}})
def step(x):
    engine.backward(engine(x).square().mean()); engine.step()
""",
}
LOOP = """
for update in range(10**6):
    trouble.happens()
    step(torch.randn(4, 8))
    print("update", update, flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the launcher must do: its code, the rank it names, the cause, and words of what it says."""

    code: int
    cause: str
    rank: int | None = 1
    says: str = ""


FAULTS: dict[str, Expected] = {
    "exception": Expected(code=1, cause="unknown", says="RuntimeError: the sky has fallen"),
    "exit code 42": Expected(code=42, cause="exit_code", says="code 42"),
    "SIGSEGV": Expected(code=139, cause="segfault", says="crashed in native code"),
    "SIGKILL": Expected(code=137, cause="killed", says="killed from outside"),
    "SIGSTOP": Expected(code=124, cause="hang", says="rank 1 is stopped (SIGSTOP)"),
    "out of memory (cgroup)": Expected(code=137, cause="cgroup_memory", says="reached its host memory limit"),
    "out of memory (RLIMIT_AS)": Expected(code=1, cause="host_memory", says="is out of host memory"),
    "port taken": Expected(code=1, cause="port_in_use", rank=0, says="is used by another program"),
    "disk full": Expected(code=1, cause="disk_full", says="the disk is full"),
    "/dev/shm full": Expected(code=1, cause="shm_full", says="/dev/shm"),
    "a rank never starts": Expected(code=143, cause="hang", says="the other ranks are waiting for rank 1"),
    "dies in a collective": Expected(code=7, cause="exit_code", says="rank 1 failed first"),
    "launcher killed": Expected(code=-9, cause="", rank=None),
    "terminal lost": Expected(code=129, cause="", rank=None),
}
"""Generated scripts end in order when their terminal is lost: code 75, that of a stopped run."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One trial; `seconds` from the fault to the launcher's end, or to its verdict on a hang."""

    code: int | None
    rank: int | None
    cause: str
    seconds: float
    left: int
    said: str


def cannot(fault: str) -> str:
    """Why a fault cannot be made here; empty where it can."""
    root = os.geteuid() == 0
    if fault == "out of memory (cgroup)" and not (root and os.access(CGROUPS, os.W_OK)):
        return "needs root and a writable memory cgroup (version 1)"
    if fault in ("disk full", "/dev/shm full"):
        tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False) if root else None
        return "" if tried and tried.returncode == 0 else "needs root, to mount a small tmpfs"
    return ""


def make(folder: Path, engine: str, script: str) -> list[str]:
    """A folder with the training, and the line that launches it there."""
    # Silent steps are milliseconds here, so that a short limit is a fair one.
    launch = [str(signals.BIN / "trainwiz"), "launch", "--on-hang", "stop", "--hang-limit", str(HANG_LIMIT)]
    if script == "foreign":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "their.py").write_text(FOREIGN[engine] + LOOP)
        (folder / "theirs.yaml").write_text(signals.CONFIGS[engine])
        line = [*launch, "--config", "theirs.yaml", "their.py"]
    else:
        signals.make(folder, engine)
        task = folder / "task.py"
        source = task.read_text()
        begin = source.index("def loss_sum(")
        body = source.index("\n", source.index('"""', source.index('"""', begin) + 3)) + 1
        hooked = source[:begin] + source[begin:body] + "    trouble.happens()\n" + source[body:]
        task.write_text(hooked.replace("import torch\n", "import trouble\nimport torch\n", 1) + "\n")
        (folder / "trouble.py").write_text(TROUBLE + "\n\nat_start()\n")
        return [*launch, "--new"]
    (folder / "trouble.py").write_text(TROUBLE)
    return line


def trial(
    engine: str, script: str, fault: str, *, ready: Path | None = None, command: Sequence[str] | None = None
) -> Seen:
    """Launch, let it happen, and look at what the launcher made of it. `ready`: a folder made before."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    mark = os.urandom(8).hex()
    project = folder / "p"
    if engine == "deepspeed":
        signals.forget_killed_builds()
    if ready:
        shutil.copytree(ready, project)
        line = command or json.loads((ready / "line.json").read_text())
    else:
        line = make(project, engine, script)
    on_cpu = {"DS_ACCELERATOR": "cpu"} if engine == "deepspeed" else {"ACCELERATE_USE_CPU": "true"}
    environ = {
        **os.environ,
        **on_cpu,
        signals.MARK: mark,
        "FAULT": fault,
        "FAULT_FOLDER": str(project),
        "OMP_NUM_THREADS": "1",
        "TRAINWIZ_LANG": "en",
    }
    try:
        with surroundings(fault, project, mark) as before, (folder / "said.txt").open("w+b") as said:
            ours, theirs = os.openpty()
            process = subprocess.Popen(
                [*before, *line],
                cwd=project,
                env=environ,
                stdin=theirs,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=signals._own_terminal if fault == "terminal lost" else None,
            )
            os.close(theirs)
            seconds = _ended(process, project, fault, ours, folder / "said.txt")
            outcome = _outcome(project)
            until = time.monotonic() + LEFT_SECONDS * signals.busy()
            while (left := signals.marked(mark)) and time.monotonic() < until:
                time.sleep(0.05)
            words = (folder / "said.txt").read_text(errors="replace")
            return Seen(code=process.returncode, seconds=seconds, left=len(left), said=words, **outcome)
    finally:
        for pid in signals.marked(mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def surroundings(fault: str, project: Path, mark: str) -> Any:
    """What the launcher is started through: a cgroup with a limit, a mount namespace with a small tmpfs."""
    if fault == "out of memory (cgroup)":
        cgroup = CGROUPS / f"faults-{mark}"
        cgroup.mkdir()
        try:
            (cgroup / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
            yield ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"]
        finally:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    cgroup.rmdir()
                    break
                time.sleep(0.1)
    elif fault in ("disk full", "/dev/shm full"):
        place = project / "runs" if fault == "disk full" else Path("/dev/shm")
        place.mkdir(exist_ok=True)
        mount = f"mount -t tmpfs -o size=8m tmpfs {shlex.quote(str(place))} && "
        # The records lie on the small disk, which only its namespace can see: kept aside at the end.
        keep = '"$@"; code=$?; rm -f runs/filled; cp -r runs kept; exit $code'
        yield ["unshare", "-m", "sh", "-c", mount + (keep if fault == "disk full" else 'exec "$@"'), "sh"]
    else:
        yield []


def _ended(process: subprocess.Popen[bytes], project: Path, fault: str, terminal: int, said: Path) -> float:
    """Seconds from the fault to the launcher's end, or to its verdict where it goes on."""
    limit = time.monotonic() + signals.patience()
    if fault in ("launcher killed", "terminal lost"):
        _wait(lambda: _trains(project) or process.poll() is not None, limit)
        struck = time.time()
        if fault == "launcher killed":
            process.kill()
        else:
            os.close(terminal)
        process.wait(60 * signals.busy())
        return time.time() - struck
    _wait(lambda: (project / "struck").exists() or process.poll() is not None, limit)
    if not (project / "struck").exists():
        raise TimeoutError(f"it ended before the fault: {said.read_text(errors='replace')[-3000:]}")
    struck = float((project / "struck").read_text())
    if fault == "a rank never starts":
        # A start may rightly be slow and silent, so it is only named; then a person ends it.
        _wait(lambda: FAULTS[fault].says in said.read_text(errors="replace") or process.poll() is not None, limit)
        time.sleep(0.5)
        seconds = time.time() - struck
        process.terminate()
        process.wait(60 * signals.busy())
        return seconds
    process.wait(60 * signals.busy())
    return time.time() - struck


def _trains(project: Path) -> bool:
    for log in (project / "runs").glob("*-*/logs/rank-0.log"):
        if "update 5" in log.read_text(errors="replace"):
            return True
    return any(f.read_text().count("\n") > 3 for f in (project / "runs").glob("*-*/metrics.jsonl"))


def _wait(done: Any, until: float) -> None:
    while not done():
        if time.monotonic() > until:
            raise TimeoutError("the ranks did not get ready")
        time.sleep(0.05)


def _outcome(project: Path) -> dict[str, Any]:
    """The rank and the cause as `outcome.json` has them."""
    records = [*project.glob("kept/*-*/outcome.json"), *project.glob("runs/*-*/outcome.json")]
    if not records:
        return {"rank": None, "cause": ""}
    record = json.loads(records[0].read_text())
    if record["interrupted"] or record["hung"]:
        # The last silence: on a busy machine the start may have been another one.
        suspects = record["stalls"][-1]["suspects"] if record["stalls"] else []
        return {"rank": suspects[0] if suspects else None, "cause": "hang" if record["stalls"] else ""}
    return {"rank": record["first_failed_rank"], "cause": (record["diagnosis"] or {}).get("name", "")}


def cell(seen: Sequence[Seen]) -> str:
    """What was seen in all trials of one fault."""

    def several(values: Sequence[object]) -> str:
        return "/".join(sorted({"–" if value in (None, "") else str(value) for value in values}))

    left = max(s.left for s in seen)
    found = [several([s.code for s in seen]), f"rank {several([s.rank for s in seen])}"]
    found += [several([s.cause for s in seen]), f"{statistics.median(s.seconds for s in seen):.1f} s"]
    return ", ".join([*found, f"**left: {left}**"] if left else found)


def main() -> None:
    """Run the menu and print it; with --write, into docs/reliability.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS))
    columns = ["ddp:generated", "ddp:foreign", "deepspeed:generated", "deepspeed:foreign"]
    parser.add_argument("--columns", nargs="*", default=columns)
    parser.add_argument("--show", action="store_true", help="print what the launcher said")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(130))
    seen: dict[tuple[str, str], list[Seen]] = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        for column in options.columns:
            line = make(Path(made) / column, *column.split(":"))
            (Path(made) / column / "line.json").write_text(json.dumps(line))
        for _ in range(options.trials):
            for fault in options.faults:
                if why := cannot(fault):
                    print(f"{fault}: {why}", file=sys.stderr)
                    continue
                for column in options.columns:
                    try:
                        result = trial(*column.split(":"), fault, ready=Path(made) / column)
                    except (TimeoutError, FileNotFoundError, subprocess.TimeoutExpired) as error:
                        print(f"{fault} {column}: not measured: {error}", file=sys.stderr)
                        continue
                    seen.setdefault((fault, column), []).append(result)
                    if options.show:
                        print(result.said, file=sys.stderr)
                    print(fault, column, cell([result]), file=sys.stderr, flush=True)
    lines = [f"Trials: {options.trials} of each. Command: `python benchmarks/faults.py --trials {options.trials}`.", ""]
    lines += [f"| fault | {' | '.join(c.replace(':', ', ') for c in options.columns)} |"]
    lines += ["|" + "---|" * (1 + len(options.columns))]
    for fault in options.faults:
        cells = [cell(seen[fault, c]) if (fault, c) in seen else "not measured" for c in options.columns]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    print(table)
    if options.write:
        before, _, rest = signals.PAGE.read_text().partition(BEGIN)
        signals.PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
