"""`trainwiz launch` as people use it: real commands, real ranks, small scripts in place of a training."""

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import forked
import pexpect
import pytest
from engine_children import claimed
from patience import patience
from plans import completed
from test_ranks import gone, wait_for

from trainwiz.store import plans

TRAINWIZ = [sys.executable, "-m", "trainwiz"]
PLAN = """
machine: {num_processes: %d, main_process_port: %d}
strategy: {kind: %s}
batch: {real_batch_size: 32, per_device_batch_size: 8, gradient_accumulation_steps: %d}
"""


@pytest.fixture(scope="module", autouse=True)
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for the module, so that the interpreter is looked at once; and plain English."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TRAINWIZ_LANG", "en")
        patch.delenv("OMP_NUM_THREADS", raising=False)
        yield


def project(folder: Path, script: str, *, ranks: int = 2, port: int = 0) -> Path:
    kind = "single" if ranks == 1 else "ddp"
    folder.mkdir(exist_ok=True)
    (folder / "trainwiz.yaml").write_text(completed(PLAN % (ranks, port, kind, 4 // ranks)))
    (folder / "train.py").write_text("import json, os, signal, sys, time\nfrom pathlib import Path\n" + script)
    return folder


def launch(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["launch", *words], cwd=folder, timeout=180, env={**os.environ, **environ})


def latest(folder: Path) -> Path:
    return (folder / "runs" / "latest").resolve()


def read(folder: Path, name: str) -> dict[str, object]:
    value = json.loads((latest(folder) / f"{name}.json").read_text())
    assert isinstance(value, dict)
    return value


SAVING = """
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
def save(*_):
    if os.environ["RANK"] == "0":
        (out / "checkpoints" / "checkpoint-00000007").mkdir(parents=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
for _ in range(3000): time.sleep(0.02)
"""


def test_two_launches_never_have_one_port(tmp_path: Path) -> None:
    """Also where each has a folder for temporary files of its own, as the jobs of a scheduler do."""
    with socket.create_server(("", 0)) as server:
        wanted = server.getsockname()[1]
    code = f"from trainwiz.network import ports; port = ports.claim({wanted}); print(port.number, flush=True); input()"
    held = []
    try:
        for job in ("a", "b"):
            (tmp_path / job).mkdir()
            held.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "TMPDIR": str(tmp_path / job)},
                )
            )
        numbers = [int(process.stdout.readline()) for process in held if process.stdout]
    finally:
        for process in held:
            process.communicate("\n")
    assert len(set(numbers)) == 2
    assert wanted in numbers


def test_a_run_and_all_that_it_leaves(tmp_path: Path) -> None:
    script = """
rank = os.environ["RANK"]
print("hello from", rank, "of", os.environ["WORLD_SIZE"])
print("oops", file=sys.stderr)
if rank == "0":
    out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
    lines = [{"update": 1, "loss": 5.0}, {"update": 20, "loss": 2.5}]
    (out / "metrics.jsonl").write_text("".join(json.dumps(l) + "\\n" for l in lines))
"""
    folder = project(tmp_path / "p", script)
    done = launch(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello from 0 of 2\noops\n"
    run = latest(folder)
    left = ["command.json", "logs", "metrics.jsonl", "outcome.json", "plan.yaml"]
    assert sorted(p.name for p in run.iterdir() if p.name != "memory.jsonl") == left  # of those that live for 3 s
    assert (run / "logs" / "rank-1.log").read_text() == "hello from 1 of 2\noops\n"
    assert "loss 5.0000 → 2.5000 (updates 1 to 20)" in done.stderr
    assert "torchrun --standalone --nproc_per_node 2 train.py" in done.stderr
    outcome = read(folder, "outcome")
    assert (outcome["exit_code"], outcome["first_failed_rank"], outcome["ranks"]) == (0, None, {"0": 0, "1": 0})
    command = read(folder, "command")
    assert command["argv"][2:] == ["train.py", "--output_dir", f"runs/{run.name}"]  # type: ignore[index]
    assert command["versions"]["torch"].startswith("2.")  # type: ignore[index]
    assert re.fullmatch("[0-9a-f]{64}", str(command["plan_hash"]))
    held = outcome["measured"]["ranks"]  # type: ignore[index]
    assert set(held) == {"0", "1"}
    assert all(4e6 < rank["host_bytes"] < 4e8 for rank in held.values())
    # The plan is that of a language model; this script trains none.
    assert outcome["forecast"]["host_bytes"] > 4e8  # type: ignore[index]
    listed = subprocess.run([*TRAINWIZ, "runs", "--json"], cwd=folder, capture_output=True, text=True, check=True)
    (found,) = json.loads(listed.stdout)
    assert [(pair["quantity"], pair["missed"]) for pair in found["forecast"]] == [("host_bytes", True)]
    assert found["forecast"][0]["likely"] == "the process's memory besides the model: libraries and data"


def test_a_card_for_want_of_memory_says_what_the_rank_held(tmp_path: Path) -> None:
    script = """
import types
gib = 2**30
cuda = types.SimpleNamespace(
    is_initialized=lambda: True, max_memory_allocated=lambda: 77 * gib, max_memory_reserved=lambda: 79 * gib
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
class OutOfMemoryError(RuntimeError): pass
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB")
"""
    folder = project(tmp_path / "p", script, ranks=1)
    done = launch(folder)
    assert done.returncode == 1
    assert "the GPU is out of memory" in done.stderr
    assert "measured peak: GPU memory of tensors, 77.0 GiB" in done.stderr
    held = read(folder, "outcome")["measured"]["ranks"]["0"]  # type: ignore[index]
    assert (held["allocated_bytes"], held["reserved_bytes"]) == (77 * 2**30, 79 * 2**30)


def test_the_folder_may_be_named_and_is_where_the_script_runs(tmp_path: Path) -> None:
    folder = project(tmp_path / "my project", "print(os.getcwd(), sys.argv[1:])", ranks=1)
    done = launch(tmp_path, "my project", "--", "--name", 'it\'s "5" $HOME', "--x=--", "--resume")
    assert done.returncode == 0, done.stderr
    run = latest(folder).name
    assert done.stdout.strip() == str(folder) + " " + str(
        ["--output_dir", f"runs/{run}", "--name", 'it\'s "5" $HOME', "--x=--", "--resume"]
    )


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("sys.exit(42)", 42, "rank 0 failed first with exit code 42"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "usually by the kernel or the container"),
        ("raise ValueError('so it is')", 1, "ValueError: so it is"),
        ("import no_such_thing", 1, "the package no_such_thing is not installed"),
    ],
)
def test_failures_keep_their_code_and_are_explained(tmp_path: Path, script: str, code: int, said: str) -> None:
    folder = project(tmp_path / "p", script, ranks=1)
    done = launch(folder)
    assert done.returncode == code
    assert said in done.stderr

    assert read(folder, "outcome")["exit_code"] == code


def test_the_rank_that_failed_first_is_named_though_another_one_waits(tmp_path: Path) -> None:
    script = """
if os.environ["RANK"] == "1":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
print("waiting", flush=True)
time.sleep(60)
"""
    folder = project(tmp_path / "p", script)
    started = time.monotonic()
    done = launch(folder)
    assert time.monotonic() - started < 60 * patience()
    assert done.returncode == 1
    assert "rank 1 failed first" in done.stderr
    assert "the GPU is out of memory" in done.stderr
    outcome = read(folder, "outcome")
    assert outcome["first_failed_rank"] == 1
    assert outcome["ranks"] == {"0": -15, "1": 1}


def test_dry_run_shows_all_and_writes_nothing(tmp_path: Path) -> None:
    port = claimed.port()
    folder = project(tmp_path / "p", "Path('ran').write_text('x')", port=port)
    before = sorted(folder.rglob("*"))
    done = launch(folder, "--dry-run", "--json", "--", "--n_steps", "3")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["argv"][2:] == ["train.py", "--output_dir", shown["run_folder"], "--n_steps", "3"]
    assert [r["environment"]["RANK"] for r in shown["ranks"]] == ["0", "1"]
    assert {r["environment"]["MASTER_PORT"] for r in shown["ranks"]} == {str(port)}
    assert shown["preflight"] == {"findings": [], "errors": 0, "warnings": 0}
    text = launch(folder, "--dry-run")
    assert text.returncode == 0
    assert "WORLD_SIZE=2" in text.stdout
    assert "runs/20" in text.stdout
    assert sorted(folder.rglob("*")) == before


def test_errors_of_the_preflight_refuse_the_launch(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "Path('ran').write_text('x')")
    plan = folder / "trainwiz.yaml"
    plan.write_text(plan.read_text().replace("real_batch_size: 32", "real_batch_size: 100"))
    done = launch(folder)
    assert done.returncode == 1
    assert "TW401" in done.stderr
    assert "nothing was started" in done.stderr
    assert not (folder / "runs").exists()
    dry = launch(folder, "--dry-run", "--json")
    assert dry.returncode == 1
    assert json.loads(dry.stdout)["preflight"]["errors"] >= 1
    assert launch(folder, "--ignore", "TW401").returncode == 0
    assert (folder / "ran").exists()


def test_a_plan_for_eight_gpus_is_refused_here_with_the_reason(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "Path('ran').write_text('x')")
    plan = folder / "trainwiz.yaml"
    changes = {"machine.device": "cuda", "machine.num_processes": 8, "batch.real_batch_size": 8 * 8 * 2}
    plan.write_text(plans.edited(plan, changes, comment="tried"))
    fixture = str(Path(__file__).parents[1] / "machines" / "8xh100.json")
    shown = launch(folder, "--dry-run", "--json", "--machine", fixture)
    assert shown.returncode == 0, shown.stdout
    assert len(json.loads(shown.stdout)["ranks"]) == 8
    here = launch(folder)
    assert here.returncode == 1
    assert "GPU" in here.stderr
    there = launch(folder, "--machine", fixture)
    assert there.returncode == 1
    assert "describes a machine; a launch always runs on this machine" in there.stderr
    assert not (folder / "runs").exists()


def test_a_taken_port_is_replaced_and_that_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        folder = project(tmp_path / "p", "print(os.environ['MASTER_PORT'])", port=port)
        done = launch(folder)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) != port
    assert f"port {port} is in use; using {int(done.stdout)}" in done.stderr


def test_resume_continues_the_newest_run_and_shares_its_checkpoints(tmp_path: Path) -> None:
    script = """
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
n = len(list((out / "checkpoints").glob("*"))) + 1
(out / "checkpoints" / f"checkpoint-{n:08d}").mkdir(parents=True)
print(sys.argv[3:])
"""
    folder = project(tmp_path / "p", script, ranks=1)
    assert "has no run to resume" in launch(folder, "--resume").stderr
    assert launch(folder).returncode == 0
    first = latest(folder)
    for n in (2, 3):
        done = launch(folder, "--resume", "--", "--lr", "1")
        assert done.stdout.strip() == "['--resume', 'auto', '--lr', '1']", done.stderr
        assert os.readlink(latest(folder) / "checkpoints") == f"../{first.name}/checkpoints"
        assert len(list((first / "checkpoints").iterdir())) == n
    assert launch(tmp_path, "--resume", first.name, "p").returncode == 0
    assert read(folder, "command")["resumed_from"] == first.name
    assert launch(tmp_path, "p", f"--resume=runs/{first.name}").returncode == 0


def test_resume_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "", ranks=1)
    launch(folder)
    made = sorted((folder / "runs").iterdir())
    done = launch(folder, "--resume")
    assert done.returncode == 1
    assert "has no complete checkpoint to resume from" in done.stderr
    assert sorted((folder / "runs").iterdir()) == made


def test_no_secret_is_shown_or_written(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "print(len(os.environ['WANDB_API_KEY']), len(sys.argv[-1]))", ranks=1)
    words = ("--hub_token", "s3cr3t-value", "--password=s3cr3t-value", "--note", "hf_s3cr3ts3cr3ts3cr3t")
    for extra in ((), ("--dry-run",), ("--dry-run", "--json")):
        done = launch(folder, *extra, "--", *words, WANDB_API_KEY="s3cr3t-value")
        assert done.returncode == 0
        assert "s3cr3t" not in done.stderr + done.stdout
    assert not [f for f in folder.rglob("*") if f.is_file() and "s3cr3t" in f.read_text()]


def test_two_launches_at_once_have_their_own_folder_and_port(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "time.sleep(1.5); print(os.environ['MASTER_PORT'])", port=claimed.port())
    both = [
        subprocess.Popen(
            [*TRAINWIZ, "launch"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(2)
    ]
    said = [p.communicate(timeout=180)[0].strip() for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert len(set(said)) == 2
    assert len([p for p in (folder / "runs").iterdir() if p.name[0].isdigit()]) == 2


def test_a_reader_that_goes_away_does_not_end_the_training(tmp_path: Path) -> None:
    script = "for i in range(20000): print(i)\nPath('finished').write_text('x')"
    folder = project(tmp_path / "p", script, ranks=1)
    process = subprocess.Popen([*TRAINWIZ, "launch"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(180) == 0
    assert (folder / "finished").exists()
    assert len((latest(folder) / "logs" / "rank-0.log").read_text().splitlines()) == 20000


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_was_closed_before_the_start_is_not_missed(tmp_path: Path, closed: str) -> None:
    folder = project(tmp_path / "p", "print('trained')", ranks=1)
    line = " ".join([*map(shlex.quote, TRAINWIZ), "launch", closed])
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "bug" in done.stderr) == (0, False), done.stderr
    assert read(folder, "outcome")["exit_code"] == 0
    assert (folder / "runs" / "latest" / "logs" / "rank-0.log").read_text() == "trained\n"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "Path('ran').write_text('x')", ranks=1)
    (folder / "runs").write_text("in the way")
    done = launch(folder)
    assert done.returncode == 1
    assert "cannot write to" in done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere"),
        (("--json",), "--json needs --dry-run"),
        ((".", "elsewhere"), "only one project can be launched at a time"),
        (("own.py", "--config", "acc.yaml"), "--config: after own.py, everything is an argument of the script"),
        (("--no-such-option",), "no-such-option"),
        (("--grace", "-3"), "--grace"),
    ],
)
def test_wrong_command_lines_end_with_2(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    folder = project(tmp_path / "p", "", ranks=1)
    done = launch(folder, *words)
    assert done.returncode == 2
    assert said in done.stderr.lower()
    assert "Traceback" not in done.stderr


# Ctrl-C, in a real terminal


def terminal(folder: Path, *words: str) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        TRAINWIZ[0],
        [*TRAINWIZ[1:], "launch", *words],
        cwd=str(folder),
        encoding="utf-8",
        timeout=180,
        dimensions=(24, 90),
        env={**os.environ, "TERM": "xterm"},
    )


def code(child: "pexpect.spawn[str]") -> int | None:
    child.expect(pexpect.EOF)
    child.wait()  # `close` would send it SIGHUP
    child.close()
    status: int | None = child.exitstatus
    return status


def test_ctrl_c_once_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", SAVING)
    child = terminal(folder)
    pids = [int(wait_for(folder / f"ready-{r}")) for r in (0, 1)]
    child.sendintr()
    child.expect("Ctrl-C: asked the ranks to save and exit; waiting up to 30 s")
    child.expect("trainwiz launch --resume")
    assert code(child) == 75
    assert all(gone(pid) for pid in pids)
    outcome = read(folder, "outcome")
    assert (outcome["stopped"], outcome["signal"], outcome["exit_code"]) == (True, signal.SIGINT, 75)


def test_ctrl_c_twice_ends_now(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", SAVING.replace("sys.exit(0)", "return"))
    child = terminal(folder)
    pids = [int(wait_for(folder / f"ready-{r}")) for r in (0, 1)]
    child.sendintr()
    child.expect("press Ctrl-C again to end them now")
    child.sendintr()
    child.expect("ending now: sending SIGKILL to ranks 0, 1")
    assert code(child) == 130
    assert all(gone(pid) for pid in pids)


def test_a_terminal_that_closes_lets_the_ranks_save(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", SAVING)
    child = terminal(folder)
    pids = [int(wait_for(folder / f"ready-{r}")) for r in (0, 1)]
    os.close(child.child_fd)
    assert all(gone(pid, 10) for pid in pids)
    assert (latest(folder) / "checkpoints" / "checkpoint-00000007").exists()
    wait_for(latest(folder) / "outcome.json")
    outcome = read(folder, "outcome")
    assert (outcome["exit_code"], outcome["signal"]) == (75, signal.SIGHUP)
    child.closed = True  # pexpect must not close what we closed
    child.wait()
    assert child.exitstatus == 75


def test_rank_0_knows_the_width_and_owns_the_last_line_with_a_bar(tmp_path: Path) -> None:
    script = """
from shutil import get_terminal_size
print("columns", get_terminal_size().columns)
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
print("\\r 10%|bar", end="", file=sys.stderr); time.sleep(0.3); print("\\r 20%|bar", file=sys.stderr)
(out / "metrics.jsonl").write_text('{"update": 3, "loss": 1.5}\\n')
time.sleep(1.2)
"""
    child = terminal(project(tmp_path / "p", script, ranks=1))
    shown = child.logfile_read = io.StringIO()
    assert code(child) == 0
    assert "columns 90\r\n\r 10%|bar\r 20%|bar\r\n" in shown.getvalue()
    assert "update 3/" not in shown.getvalue()


def test_a_live_line_where_rank_0_draws_none(tmp_path: Path) -> None:
    script = """
out = Path(sys.argv[sys.argv.index("--output_dir") + 1])
(out / "metrics.jsonl").write_text('{"update": 3, "loss": 1.5, "tokens_per_second": 12345.6}\\n')
time.sleep(1.2)
print("a line of its own")
"""
    child = terminal(project(tmp_path / "p", script, ranks=1))
    child.expect_exact("update 3/100 · loss 1.5000 · 12,346 tokens/s")
    child.expect_exact("\r\x1b[Ka line of its own\r\n")
    assert code(child) == 0


def test_a_breakpoint_in_rank_0_can_be_answered(tmp_path: Path) -> None:
    child = terminal(project(tmp_path / "p", "answer = input('how many? '); print('got', answer)", ranks=1))
    child.expect_exact("how many? ")
    child.sendline("7")
    child.expect("got 7")
    assert code(child) == 0


def test_kill_of_the_launcher_leaves_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", SAVING)
    process = subprocess.Popen([*TRAINWIZ, "launch"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = [int(wait_for(folder / f"ready-{r}")) for r in (0, 1)]
    process.kill()
    process.wait()
    assert all(gone(pid) for pid in pids)


# What trainwiz did not write


def config(folder: Path, text: str) -> Path:
    (folder / "theirs.yaml").write_text(text)
    return folder / "theirs.yaml"


def test_a_foreign_script_runs_with_its_ranks_and_is_recorded(tmp_path: Path) -> None:
    config(tmp_path, "distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: 'no'\nuse_cpu: true\n")
    (tmp_path / "their.py").write_text("import os, sys; print(os.environ['RANK'], sys.argv[1:])")
    done = launch(tmp_path, "--config", "theirs.yaml", "their.py", "--lr", "1e-4", "--dry-run", "--", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0 ['--lr', '1e-4', '--dry-run', '--', 'a b']"
    assert "--dry-run: passed to their.py, like everything after it" in " ".join(done.stderr.split())
    assert (latest(tmp_path) / "logs" / "rank-1.log").read_text().startswith("1 ['--lr'")
    command = read(tmp_path, "command")
    assert (command["config"], command["plan_hash"]) == ("theirs.yaml", None)
    assert read(tmp_path, "outcome")["exit_code"] == 0


def test_an_option_that_a_foreign_script_has_is_its_own(tmp_path: Path) -> None:
    config(tmp_path, "distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n")
    (tmp_path / "their.py").write_text("import sys; dry_run = '--dry-run' in sys.argv")
    assert "passed to" not in launch(tmp_path, "--config", "theirs.yaml", "their.py", "--dry-run").stderr


def test_a_foreign_script_fails_with_its_own_code(tmp_path: Path) -> None:
    config(tmp_path, "distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n")
    (tmp_path / "their.py").write_text("raise SystemExit(42)")
    assert launch(tmp_path, "--config=theirs.yaml", "their.py").returncode == 42


def test_a_foreign_configuration_for_gpus_is_refused_here(tmp_path: Path) -> None:
    config(tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: 'no'\n")
    (tmp_path / "their.py").write_text("print('ran')")
    done = launch(tmp_path, "--config", "theirs.yaml", "their.py")
    assert done.returncode == 1
    assert "nothing was started" in done.stderr
    assert "--ignore TW104 --ignore TW105" in " ".join(done.stderr.split()), "each that stops the launch"
    assert "ran" not in done.stdout


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ("num_machines: 2\nmain_process_ip: 10.0.0.1\nmain_process_port: 29611\n", "--nproc-per-node 2 --nnodes 2"),
        ("dynamo_config: {dynamo_mode: default}\n", "torchrun --nproc-per-node 4 their.py"),
    ],
)
def test_processes_that_accelerate_would_start_apart_are_refused(tmp_path: Path, more: str, start: str) -> None:
    config(tmp_path, "distributed_type: MULTI_CPU\nnum_processes: 4\nuse_cpu: true\n" + more)
    (tmp_path / "their.py").write_text("print('ran')")
    place = ("--machine-rank", "1") if "machines" in more else ()
    done = launch(tmp_path, "--config", "theirs.yaml", *place, "their.py")
    assert (done.returncode, start in done.stderr, "ran" in done.stdout) == (1, True, False), done.stderr


@pytest.mark.train
def test_what_is_not_fully_known_goes_through_accelerate_and_keeps_its_code(tmp_path: Path) -> None:
    config(tmp_path, "distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\ndynamo_config: {dynamo_mode: default}\n")
    (tmp_path / "their.py").write_text("raise SystemExit(42)")
    done = launch(tmp_path, "--config", "theirs.yaml", "their.py")
    assert done.returncode == 42, done.stderr
    assert read(tmp_path, "command")["launcher"] == "accelerate"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--config", "theirs.yaml"), "needs a script"),
        (("--config", "theirs.yaml", "absent.py"), "script absent.py does not exist"),
        (("--config", "absent.yaml", "their.py"), "absent.yaml"),
        (("--resume", "--config", "theirs.yaml", "their.py"), ""),
    ],
)
def test_wrong_command_lines_with_a_configuration(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    config(tmp_path, "distributed_type: 'NO'\n")
    (tmp_path / "their.py").write_text("")
    done = launch(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
