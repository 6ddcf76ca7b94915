"""Checkpoints that a thread writes from a copy of the state: byte for byte those that the training waits for."""

import hashlib
import importlib
import json
import operator
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from projects import SMALL, make
from safetensors.torch import save_model
from test_checkpoints import SAMPLES, Config, names, write_code
from test_tasks import GENERATED
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from torch import nn
from warm import spawn


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The generated checkpoints.py and staging.py, imported."""
    import sys

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(write_code(tmp_path / "code", checkpoint__background=True))
    for name in GENERATED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    yield importlib.import_module("checkpoints"), importlib.import_module("staging")
    for name in ("checkpoints", "staging", "trust"):
        sys.modules.pop(name, None)


class Tied(nn.Module):
    """Two weights that are one, and a buffer without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.LayerNorm(3)
        self.register_buffer("nothing", torch.empty(0))


class Trained:
    """A model with an optimizer, read and written as the generated loop does it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Tied()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.noise = torch.arange(12.0)
        self.step()

    def step(self) -> None:
        self.model.norm(self.model.head.weight).square().sum().backward()
        self.optimizer.step()
        self.noise += 1

    def state(self) -> list[dict[str, Any]]:
        return [
            dict(self.model.state_dict()),
            {"optimizer": self.optimizer.state_dict(), "parts": [self.noise[2:5], (self.noise[4:],)]},
        ]

    def save(self, folder: Path) -> None:
        save_model(self.model, str(folder / "model"))
        torch.save(self.state()[1], folder / "optimizer")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


# docs/decisions/checkpoints.md: A thread writes a copy of the state
def test_what_is_written_later_is_what_was_copied(code: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    staging, trained = code[1], Trained()

    def write(folder: Path, state: Any) -> None:
        save_model(staging.Held(state[0]), str(folder / "model"))
        torch.save(state[1], folder / "optimizer")

    staged = staging.Staged(trained.state, write)
    memory: list[int] = []
    for number in range(3):
        now, later = tmp_path / f"now-{number}", tmp_path / f"later-{number}"
        now.mkdir()
        later.mkdir()
        trained.save(now)
        assert staged.copy(later)
        trained.step()
        memory = memory or [part.data_ptr() for part in staged.memory]
        assert [part.data_ptr() for part in staged.memory] == memory, "the memory is used again"
        staged.write(later)
        assert digests(now) == digests(later)
    assert digests(tmp_path / "now-0") != digests(tmp_path / "now-1")
    held = sum(part.numel() for part in staged.memory)
    weights = 4 * (7 * 3 + 3 + 3)
    assert held == 3 * weights + 12 * 4 + 3 * 4, "weights and moments, tied ones once; the noise; three steps"


def test_without_memory_for_a_copy_the_state_itself_is_written(
    code: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoints, staging = code
    state, written = {"weight": torch.ones(1000)}, []
    staged = staging.Staged(lambda: state, lambda _, held: written.append(held))
    monkeypatch.setattr(staging, "free_memory", lambda: 3999)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    saving = checkpoints.Checkpoints(Config(str(tmp_path)), "whole", staged.copy, lambda _: None)
    saving.write_state = staged.write
    saving.resume(SAMPLES)
    for update in (1, 2):
        saving.save(update)
        assert names(tmp_path)[-1] == f"checkpoint-{update:08d}", "it is complete when the training goes on"
    assert written == [state, state]
    assert capsys.readouterr().out.count("no memory to copy 4,000 bytes") == 1
    # One rank copies, however many there are.
    monkeypatch.setattr(staging, "free_memory", lambda: 4000)
    assert staging.Staged(lambda: state, print).copy(tmp_path)
    # With a GPU, all of it is pinned at once, until the memory is free again.
    pinned, free = dict[int, int](), dict[int, int]()
    calls = {"cudaHostRegister": lambda at, size, _: pinned.update({at: size}) or 0}
    calls["cudaHostUnregister"] = lambda at: free.update({at: pinned.pop(at)})
    known = {"is_initialized": True, "synchronize": None, "current_device": 0, "cudart": SimpleNamespace(**calls)}
    for name, said in known.items():
        monkeypatch.setattr(torch.cuda, name, lambda said=said: said)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: operator.index(code) and 1 / 0)
    state["bias"] = torch.ones(3)
    assert not staging.Staged(lambda: state, print).copy(tmp_path), "4000 bytes, and 12 at the next multiple of 64"
    monkeypatch.setattr(staging, "free_memory", lambda: 4044)
    copying = staging.Staged(lambda: state, print)
    assert copying.copy(tmp_path)
    assert list(pinned.values()) == [4044]
    del copying
    assert list(free.values()) == [4044]
    saving.lock.close()


def test_free_memory_is_a_number_of_this_machine(code: tuple[ModuleType, ModuleType]) -> None:
    assert 1 << 20 < code[1].free_memory() < 1 << 50


def test_the_limit_of_a_job_counts_and_cached_files_do_not(
    code: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "/proc/self/cgroup": "0::/slurm/job_7/step_0\n",
        "/sys/fs/cgroup/slurm/job_7/memory.max": "9000\n",
        "/sys/fs/cgroup/slurm/job_7/memory.current": "8000\n",
        "/sys/fs/cgroup/slurm/job_7/memory.stat": "anon 1\ninactive_file 3000\n",
        "/sys/fs/cgroup/slurm/memory.max": "max\n",
    }

    class Pretended(type(Path())):  # type: ignore[misc]
        def read_text(self, *_: Any) -> str:
            if str(self) not in files:
                raise FileNotFoundError(self)
            return files[str(self)]

        def exists(self) -> bool:
            return str(self) in files

    monkeypatch.setattr(code[1], "Path", Pretended)
    assert code[1].free_memory() == 4000


def test_a_checkpoint_is_complete_once_its_thread_has_written_it(
    code: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    """Until then the one before it is the newest; what cannot be written leaves it so."""
    checkpoints, staging = code
    value, may_write, problem = torch.zeros(1), threading.Event(), ""

    def write(folder: Path, state: dict[str, torch.Tensor]) -> None:
        assert may_write.wait(60)
        if problem:
            raise OSError(problem)
        (folder / "value").write_text(str(float(state["value"])))

    staged = staging.Staged(lambda: {"value": value}, write)
    saving = checkpoints.Checkpoints(Config(str(tmp_path)), "whole", staged.copy, lambda _: None)
    saving.write_state = staged.write
    saving.resume(SAMPLES)
    saving.save(1)
    value += 5
    assert names(tmp_path) == ["checkpoint-00000001.tmp"], "the training goes on"
    may_write.set()
    saving.finish()
    assert (tmp_path / "checkpoints" / "checkpoint-00000001" / "value").read_text() == "0.0"
    problem = "No space left on device"
    saving.save(2)
    saving.finish()
    assert names(tmp_path) == ["checkpoint-00000001"]
    assert "update 2 was not saved: rank 0: OSError: No space left on device" in saving.problem
    problem = ""
    assert saving.save(3) == 1, "saves have failed"
    saving.close()
    assert (tmp_path / "checkpoints" / "checkpoint-00000003" / "value").read_text() == "5.0"
    saving.lock.close()


@pytest.mark.train
@pytest.mark.parametrize("name", ["single", "fsdp"])
def test_a_training_saves_the_same_bytes_either_way(name: str, tmp_path: Path) -> None:
    """FSDP's files are written by both ranks together, beside the training's own collectives."""
    values = {**SMALL, **(SINGLE if name == "single" else STRATEGIES[name]), "checkpoint.checkpointing_steps": 1}
    values |= {"schedule.n_steps": 4, "schedule.n_warmup_steps": 0, "checkpoint.checkpoints_total_limit": ""}
    found = []
    for background in (False, True):
        folder = make(tmp_path / f"{background}", {**values, "checkpoint.background": background})
        assert (folder / "staging.py").exists() == background
        env = ON_STANDIN if name == "fsdp" else {}
        assert spawn(folder, 1 if name == "single" else 2, folder / "output", {}, env) == 0
        manifests = [json.loads(p.read_text()) for p in sorted((folder / "output").glob("checkpoints/*/manifest.json"))]
        assert [each["update"] for each in manifests] == [1, 2, 3, 4]
        found.append([{n: h for n, h in each["sha256"].items() if n != ".metadata"} for each in manifests])
    assert found[0] == found[1]
    assert len({json.dumps(each) for each in found[0]}) == 4
