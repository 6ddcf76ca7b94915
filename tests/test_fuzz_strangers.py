"""More that strangers may send or leave, made up as in tests/test_fuzz.py: tools' files, dumps, requests, answers."""

import contextlib
import http.client
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from patience import patience
from plans import BASE
from test_fuzz import BOUNDED, SCALARS, VALUES, _in_bounds, changed, dumped, quickly

from trainwiz import plan as plans
from trainwiz import schedulers, tasks
from trainwiz.adoption import adopt
from trainwiz.cli import run as trainwiz
from trainwiz.diagnose import flight_recorder
from trainwiz.network import orders
from trainwiz.network.coordination import Line
from trainwiz.network.messages import InvalidMessage
from trainwiz.network.pages import PageServer
from trainwiz.outcome import Outcome
from trainwiz.probe import model as models
from trainwiz.probe.cache import HubCache
from trainwiz.record.run import Recorded
from trainwiz.render import job_files
from trainwiz.schedulers import Job
from trainwiz.store import calibration, jobs, machines, runs
from trainwiz.store.runs import Run
from trainwiz.workflows.board import Board
from trainwiz.workflows.create import import_files
from trainwiz.workflows.launch import lockstep
from trainwiz.workflows.launch.formation import Formation
from trainwiz.workflows.replay import sources

__all__ = ["_in_bounds"]  # holds time and memory of every test here, too
RUN = "2026-01-31_10-22-05-1"
DIGITS = "9" * 5000
"""More than Python makes an integer of."""

TOOLS: dict[str, dict[str, Any]] = {
    "axolotl": {
        "base_model": "some/model",
        "datasets": [{"path": "some/data", "type": "alpaca"}],
        "adapter": "lora",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "learning_rate": 2e-4,
        "deepspeed": "zero2.json",
        "fsdp_config": {"offload_params": True},
    },
    "llamafactory": {
        "model_name_or_path": "some/model",
        "stage": "dpo",
        "finetuning_type": "lora",
        "dataset": "one",
        "cutoff_len": 512,
        "lora_rank": 8,
        "save_steps": 50,
    },
    "swift": {
        "model": "some/model",
        "train_type": "lora",
        "dataset": ["one#500"],
        "target_modules": "all-linear",
        "max_length": 2048,
        "rlhf_type": "dpo",
    },
    "trl": {
        "model_name_or_path": "some/model",
        "dataset_name": "one",
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": True,
        "use_peft": True,
        "lora_r": 16,
        "max_length": 512,
    },
    "torchtune": {
        "model": {"_component_": "torchtune.models.llama3.lora_llama3_8b", "lora_rank": 8},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 512},
        "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "packed": False},
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5},
        "batch_size": 2,
        "epochs": 1,
    },
    "trainjob": {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {
            "trainer": {
                "numNodes": 2,
                "numProcPerNode": 8,
                "command": ["torchrun", "--nnodes=2", "train.py"],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
            }
        },
    },
    "pytorchjob": {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {
            "pytorchReplicaSpecs": {
                "Worker": {"replicas": 2, "template": {"spec": {"containers": [{"command": ["torchrun", "a.py"]}]}}}
            }
        },
    },
    "skypilot": {
        "resources": {"accelerators": "H100:8"},
        "num_nodes": 2,
        "run": "torchrun --nproc_per_node=8 train.py",
    },
}
SBATCH = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:4
#SBATCH --ntasks-per-node=1
export MASTER_ADDR=$(hostname)
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d train.py --batch_size 4
"""


def check_and_import(folder: Path, name: str) -> None:
    assert trainwiz(["check", str(folder / name)]) in (0, 1, 2)

    def imported() -> None:
        files = import_files.together([str(folder / name)], default=False, versions=())
        adopt(files.accelerate, files.deepspeed, None, files.tool_file)

    quickly(imported)


@pytest.mark.parametrize("tool", TOOLS)
@BOUNDED
@given(data=st.data())
def test_files_of_tools(tool: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tool")
    value = data.draw(changed(TOOLS[tool]))
    (folder / "file.yaml").write_text(yaml.safe_dump(value, allow_unicode=True), errors="replace")
    quickly(lambda: check_and_import(folder, "file.yaml"))


@BOUNDED
@given(where=st.integers(0, len(SBATCH)), noise=st.text(max_size=20) | st.sampled_from([DIGITS, "$(", "'", "\\"]))
def test_batch_scripts(where: int, noise: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sbatch")
    (folder / "job.sbatch").write_text(SBATCH[:where] + noise + SBATCH[where:], errors="replace")
    quickly(lambda: check_and_import(folder, "job.sbatch"))


def test_a_backslash_before_a_space_begins_no_other_command(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(SBATCH.replace("srun torchrun ", "srun torchrun\\ "))
    check_and_import(tmp_path, "job.sbatch")


CLUSTER = {**plans.with_changes(BASE, {"machine.num_processes": 1}).model_dump(mode="json")["cluster"], "kind": "slurm"}


@BOUNDED
@given(value=changed(CLUSTER), kind=st.sampled_from(["slurm", "kubernetes", "skypilot"]))
def test_clusters_of_plans(value: dict[str, Any], kind: str) -> None:
    values = {**BASE.model_dump(mode="json"), "cluster": {**value, "kind": kind}}
    quickly(lambda: job_files(plans.parse(values)))


@BOUNDED
@given(
    lines=st.lists(st.dictionaries(st.sampled_from(["scheduler", "id", "submitted"]), SCALARS) | VALUES), rest=VALUES
)
def test_jobs_and_what_schedulers_say_of_them(
    lines: list[object], rest: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = tmp_path_factory.mktemp("jobs")
    (project / "runs").mkdir()
    (project / "runs" / "jobs.jsonl").write_text("\n".join(map(dumped, lines)) + "\n", errors="replace")
    quickly(lambda: jobs.every(project))
    for name in ("slurm", "kubernetes", "skypilot"):
        for said in (str(rest), dumped(rest), f"12|{rest}|FAILED\n", "[" * 100_000, dumped({"status": rest})):
            quickly(lambda name=name, said=said: ask(name, said))  # type: ignore[misc]


def ask(name: str, said: str) -> None:
    """Read what a scheduler says, whatever was asked."""
    scheduler, job = schedulers.named(name), Job(scheduler=name, id="12")
    assert scheduler
    scheduler.submitted(BASE, said)
    for argv in scheduler.questions(job):
        scheduler.seen(job, argv, said)


@BOUNDED
@given(value=VALUES, entries=st.lists(st.dictionaries(st.sampled_from(["run", "ratios", "at", "strategy"]), VALUES)))
def test_what_is_remembered_of_machines(
    value: object, entries: list[object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("cache") / "trainwiz" / "calibration.json"
    file.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(file.parent.parent))
        for text in (dumped(value), dumped({"host: CPU": entries, "other": value})):
            file.write_text(text, errors="replace")
            quickly(lambda: [calibration.made_of(found) for found in calibration.every().values()])
            assert trainwiz(["plan", "--calibration"]) in (0, 1, 2)
    (file.parent / "machine.json").write_text(dumped({"machine": value}), errors="replace")
    quickly(lambda: machines.read(file.parent / "machine.json"))


ENTRY = {
    "profiling_name": "nccl:all_reduce sum",
    "process_group": ["0", "default"],
    "collective_seq_id": 1,
    "input_sizes": [[4, 4]],
    "input_dtypes": ["Float"],
    "frames": [{"filename": "train.py", "line": 3, "name": "step"}],
    "state": "scheduled",
}


@BOUNDED
@given(dumps=st.lists(st.lists(changed(ENTRY), max_size=4), min_size=1, max_size=3), value=VALUES, rest=st.binary())
def test_dumps_of_the_flight_recorder(dumps: list[list[object]], value: object, rest: bytes) -> None:
    kinds = [{"entries": entries, "pg_config": {"0": {"ranks": "[0, 1]"}}} for entries in dumps]
    for written in ([pickle.dumps(each) for each in kinds], [dumped(each).encode(errors="replace") for each in kinds]):
        found = {rank: read for rank, each in enumerate(written) if (read := flight_recorder.read(each))}
        quickly(lambda found=found: flight_recorder.compare(found))  # type: ignore[misc]
        for data in (written[0][: len(rest)] + rest, b"\x80\x04" + rest, pickle.dumps({"entries": value})):
            quickly(lambda data=data: flight_recorder.read(data))  # type: ignore[misc]


def aliased(shape: int) -> bytes:
    """A small dump that names one list many times."""
    entry = {**ENTRY, "input_sizes": [[1] * shape] * shape}
    return pickle.dumps({"entries": [entry] * shape})


@pytest.mark.parametrize(
    "data",
    [
        aliased(9_000),
        pickle.dumps({"entries": [{**ENTRY, "frames": [{"filename": "a/" * 100_000, "line": 1}] * 9_000}]}),
        b"\x80\x04N" + b"\x94" * (1 << 18) + b".",
        b"\x80\x04" + b"]" * (1 << 18) + b".",
        b'{"entries":[' + b"[]," * 4_000_001 + b"1]}",
    ],
    ids=["shapes", "names", "memo", "lists", "JSON"],
)
def test_a_dump_that_would_fill_the_memory(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "_MOST_STEPS", 100_000)
    began = time.process_time()
    assert flight_recorder.read(data) is None
    assert time.process_time() - began < 5


COMMAND = {
    "plan": BASE.model_dump(mode="json"),
    "files": {"train.py": "0" * 64},
    "git": {"commit": "a" * 40, "dirty": 0},
    "arguments": ["--seed", "7"],
    "argv": ["python"],
    "job": {"scheduler": "slurm", "id": "7"},
}


@BOUNDED
@given(command=changed(COMMAND))
@example(command={**COMMAND, "argv": ["\ud800"]})
def test_records_that_are_replayed(command: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    run = Run(tmp_path_factory.mktemp("replay") / "runs" / RUN)
    run.logs.mkdir(parents=True)
    (run.folder / "command.json").write_text(dumped(command), errors="replace")
    assert trainwiz(["replay", str(run.folder), "--dry-run", "--json"]) in (0, 1, 2)
    quickly(lambda: sources.find(run.folder.parent.parent, Recorded(name=RUN, command=run.read("command"))))
    quickly(lambda: jobs.of_run(run))


@BOUNDED
@given(
    config=changed({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 99}), rest=VALUES
)
def test_folders_of_models(config: dict[str, Any], rest: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(dumped(config), errors="replace")
    header = dumped(rest).encode(errors="replace")
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "model.safetensors.index.json").write_text(dumped(rest), errors="replace")
    looking = models.Looking(root=folder, cache=HubCache({"HF_HOME": str(folder)}), offline=True, told=None)
    quickly(lambda: models.facts(str(folder), looking, from_scratch=False, task=tasks.of(BASE)))
    quickly(lambda: models.architecture(str(folder), folder, looking.cache))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    project = tmp_path_factory.mktemp("board")
    (project / "runs" / RUN / "logs").mkdir(parents=True)
    (project / "runs" / RUN / "command.json").write_text("{}")
    server = PageServer(Board(project).page, 18217)
    threading.Thread(target=server.serve, daemon=True).start()
    yield server
    server.close()
    server.release()


HEADERS = st.dictionaries(
    st.sampled_from(["Host", "Content-Length", "Transfer-Encoding", "Connection", "Cookie", "X" * 999, "Range"]),
    st.text(max_size=40) | st.sampled_from(["localhost:1", "-1", "9" * 99, "chunked", "bytes=0-", "127.0.0.1.evil:1"]),
)


@BOUNDED
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "X", ""])
    | st.text(max_size=9),
    path=st.text(max_size=40)
    | st.sampled_from(["run", "log", "diff", "compare", "runs", "../..", "%2e%2e/", "//x:[", ""]),
    query=st.text(max_size=40)
    | st.sampled_from([f"run={RUN}", f"run={RUN}&rank=9", f"run={RUN}&run={RUN}", "run=..%2f"]),
    headers=HEADERS,
    knows=st.booleans(),
)
def test_requests_to_the_board(
    served: PageServer, method: str, path: str, query: str, headers: Mapping[str, str], knows: bool
) -> None:
    token = served.token if knows else "x" * len(served.token)
    lines = [f"{method} /{token}/{path}?{query} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.create_connection(("127.0.0.1", served.port), timeout=90 * patience()) as line:
        line.sendall("\r\n".join([*lines, "", ""]).encode(errors="replace"))
        line.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while chunk := line.recv(1 << 16):
                answer += chunk
    is_page = answer.startswith(b"HTTP/1.0 200")
    assert not is_page or (knows and headers.get("Host", "").rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]"))
    assert b"Traceback" not in answer
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=90 * patience())
    connection.request("GET", f"/{served.token}/runs")
    assert connection.getresponse().status == 200  # it still answers
    connection.close()


REPORT = {
    "attempt": 0,
    "exit_code": 1,
    "codes": {"2": 1, "3": None},
    "first_failed": 2,
    "culprits": [2],
    "stopped": False,
    "hung": False,
    "leaving": False,
}
OVER = {
    "do": "over",
    "exit_code": 1,
    "first_failed": 2,
    "machine": [1, "host"],
    "lost": {"1": "gone"},
    "stopped": False,
}
START = {
    "do": "start",
    "formation": {
        "attempt": 0,
        "machines": [0, 1],
        "port": 29500,
        "resume": False,
        "batch": {"micro": 2, "accumulation": 3, "world": 2},
    },
}


@BOUNDED
@given(reported=changed(REPORT), started=changed(START), over=changed(OVER))
def test_what_launchers_tell_each_other(
    reported: dict[str, Any], started: dict[str, Any], over: dict[str, Any]
) -> None:
    """Whatever is understood can be acted on."""
    own = Outcome(exit_code=1, codes={0: -15})
    with contextlib.suppress(InvalidMessage):
        lockstep._joined(own, {1: orders.report(reported)}, [], {})
    with contextlib.suppress(InvalidMessage):
        Formation.told(orders.order(started, 1)["formation"])
    with contextlib.suppress(InvalidMessage):
        lockstep._over(own, orders.order(over, 1))


@BOUNDED
@given(said=st.lists(VALUES | st.binary(max_size=40), max_size=5))
def test_lines_between_launchers(said: list[object]) -> None:
    """Whatever comes, the other side hears that the line is dead."""
    ours, theirs = socket.socketpair()
    heard: list[object] = []
    ended = threading.Event()

    def hear(value: dict[str, Any] | None, _: object) -> None:
        heard.append(value)
        if value is None:
            ended.set()

    line = Line(ours, hear)
    for each in said:
        with contextlib.suppress(OSError):
            theirs.sendall((each if isinstance(each, bytes) else dumped(each).encode(errors="replace")) + b"\n")
    with contextlib.suppress(OSError):
        theirs.sendall(b"[" * 200_000 + b"\n")
    theirs.close()
    assert ended.wait(90)
    line.close()


@pytest.mark.parametrize("suffix", ["log", "sbatch", "yaml"])
def test_numbers_of_thousands_of_digits_in_files(suffix: str, tmp_path: Path) -> None:
    texts = {
        "log": f"[rank{DIGITS}]: Traceback (most recent call last):\n[1,{DIGITS}]<stderr>: x\nRuntimeError: x\n",
        "sbatch": SBATCH.replace("=2", f"={DIGITS}").replace(":4", f":{DIGITS}"),
        "yaml": yaml.safe_dump({**TOOLS["skypilot"], "num_nodes": DIGITS}),
    }
    file = tmp_path / f"file.{suffix}"
    file.write_text(texts[suffix])
    assert trainwiz(["diagnose" if suffix == "log" else "check", str(file)]) in (0, 1, 2)
    assert trainwiz(["explain", DIGITS]) == 2


def test_numbers_of_thousands_of_digits_in_records(tmp_path: Path) -> None:
    run = Run(tmp_path / "runs" / RUN)
    run.logs.mkdir(parents=True)
    (run.folder / "command.json").write_text(dumped({"arguments": ["--n_steps", DIGITS]}))
    run.metrics.write_text('{"update": 1, "loss": 1.0}\n')
    run.memory.write_text(dumped({"at": 1.0, "host": {DIGITS: 5, "0": 7}}) + "\n")
    (run.logs / "rank-0.peak").write_text(f"host_bytes {DIGITS}\n")
    for words in (["runs", str(tmp_path)], ["report", str(run.folder)], ["watch", str(run.folder)]):
        assert trainwiz(words) == 0


@pytest.mark.parametrize(
    "value", ["[" + "[]," * 2_000_001 + "1]", '"' + "a" * (9 << 20) + '"'], ids=["values", "bytes"]
)
def test_a_record_that_would_fill_the_memory_is_none(value: str, tmp_path: Path) -> None:
    run = runs.create(tmp_path)
    (run.folder / "command.json").write_text(f'{{"argv": {value}}}')
    assert run.read("command") == {}


def test_a_hole_of_a_terabyte_in_a_log_is_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("starts\n" * 40_000)
    with log.open("ab") as file:
        file.truncate(1 << 40)
    with log.open("a") as file:
        file.write("\nTraceback (most recent call last):\nValueError: behind the hole\n")
    began = time.process_time()
    assert trainwiz(["diagnose", str(log), "--json"]) == 0
    assert time.process_time() - began < 5
    assert "behind the hole" in capsys.readouterr().out


def test_a_pipe_in_a_model_s_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"")
    looking = models.Looking(root=tmp_path, cache=HubCache({"HF_HOME": str(tmp_path)}), offline=True, told=None)
    assert models.facts(str(tmp_path), looking, from_scratch=False, task=tasks.of(BASE)).kind == "missing"
