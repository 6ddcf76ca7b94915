"""Trainings that only save, killed with SIGKILL at random points, and resumed: with the generated checkpoints.py.

    python killed_saves.py FOLDER_OF_CHECKPOINTS_PY OUTPUT TRIALS RANKS BEHIND SEED

BEHIND is how many saves may still be under way when the next one has returned: 1 where they go on in the background.
torch is imported once and each trial is forked from here, so that a trial takes no second. Prints one JSON object.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

code, output, trials, ranks, behind, seed = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:7])
sys.path.insert(0, code)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from checkpoints import Checkpoints  # noqa: E402
from manifest import damage_in  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

SHAPE = (50_000,)


@dataclass
class Config:
    """What checkpoints.py asks of a config."""

    output_dir: str
    resume: str = "auto"
    trust: bool = False
    seed: int = 1
    real_batch_size: int = 8
    checkpoints_total_limit: int = 2
    on_failed_save: str = "stop"


class Training:
    """Its whole state is the number of its updates, three times, in each rank's files."""

    def __init__(self, rank: int) -> None:
        self.rank, self.update, self.copied = rank, 0, 0

    def save_state(self, folder: str) -> None:
        """All at once."""
        self.copy(folder)
        self.write(folder)

    def copy(self, _folder: str) -> None:
        """What is kept for the thread."""
        self.copied = self.update

    def write(self, folder: str) -> None:
        """Three files a rank, one of them a level deeper."""
        (Path(folder) / "deep").mkdir(exist_ok=True)
        for name in self.names():
            save_file({"update": torch.full(SHAPE, self.copied)}, Path(folder) / name)

    def load_state(self, folder: str) -> None:
        """All files must tell of one update."""
        updates = {int(u) for name in self.names() for u in load_file(Path(folder) / name)["update"].unique()}
        assert len(updates) == 1, updates
        self.update = updates.pop()

    def names(self) -> tuple[str, ...]:
        """The files of this rank."""
        return f"model-{self.rank}", f"optimizer-{self.rank}", f"deep/state-{self.rank}"


def train(rank: int, rendezvous: str, said: int) -> None:
    """One rank: resume, then save without end; rank 0 says what it resumed from, and what it has saved."""
    os.dup2(os.open(output.parent / f"{output.name}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    training = Training(rank)
    save = training.copy if behind else training.save_state
    checkpoints = Checkpoints(Config(str(output)), "whole", save, training.load_state)
    if behind:
        checkpoints.write_state = training.write
    start = checkpoints.resume(1)
    assert training.update == start, (training.update, start)
    if rank == 0:
        os.write(said, f"resumed {start}\n".encode())
    for update in range(start + 1, start + 1_000_000):
        training.update = update
        checkpoints.save(update)
        if rank == 0 and update > start + behind:
            os.write(said, f"saved {update - behind}\n".encode())


def trial(number: int, dice: random.Random, seconds: float) -> tuple[int, int]:
    """Start, kill the ranks after so many seconds; the update it resumed from and the last it had saved."""
    reads, writes = os.pipe()
    rendezvous = str(output.parent / f"{output.name}-rendezvous-{number}")
    children = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            try:
                train(rank, rendezvous, writes)
            finally:
                os._exit(1)
        children.append(pid)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        first = pipe.readline().split()
        assert first[:1] == ["resumed"], f"trial {number} did not resume: {logs()}"
        time.sleep(seconds)
        dice.shuffle(children)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            time.sleep(dice.choice((0, 0, 0.002)))
        rest = [line.split() for line in pipe]
    for pid in children:
        os.waitpid(pid, 0)
    Path(rendezvous).unlink(missing_ok=True)
    return int(first[1]), max([int(words[1]) for words in rest if len(words) == 2], default=int(first[1]))


def logs() -> str:
    """What the ranks have said."""
    return "".join(path.read_text()[-2000:] for path in output.parent.glob(f"{output.name}-*.log"))


def main() -> None:
    """All trials in one folder, one after the other."""
    dice, saved, torn, pace = random.Random(seed), 0, 0, 0.02
    for number in range(trials):
        seconds = dice.uniform(0, 3 * pace)  # within the first three saves, however fast this machine is just now
        resumed, last = trial(number, dice, seconds)
        pace = seconds / (last - resumed) if last > resumed else 1.5 * pace
        assert resumed >= saved, f"trial {number}: update {saved} was saved, and {resumed} resumed from: {logs()}"
        saved = last
        torn += any((output / "checkpoints").glob("*.tmp"))
    complete = sorted(path for path in (output / "checkpoints").iterdir() if path.suffix == "" and path.is_dir())
    found = {
        "trials": trials,
        "ranks": ranks,
        "saved": saved,
        "killed_while_writing": torn,
        "skipped": logs().count("skipping"),
        "complete": len(complete),
        "whole": sum(not damage_in(path, {}) for path in complete),
    }
    print(json.dumps(found))


main()
