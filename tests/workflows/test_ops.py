"""DeepSpeed's ops, compiled before the ranks start: progress, locks, failures, Ctrl-C, and nothing the second time."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plans
import pytest
import yaml
from patience import patience

from trainwiz import strategies
from trainwiz.errors import Refused
from trainwiz.machine import Cpu, Interpreter, Machine
from trainwiz.plan import Plan
from trainwiz.probe import locks
from trainwiz.process.lines import Lines
from trainwiz.rehearsal import setup
from trainwiz.store.rehearsals import Workspace
from trainwiz.ui import ops as shown
from trainwiz.workflows.launch import ops, script
from trainwiz.workflows.launch.request import Request
from trainwiz.workflows.rehearse import rehearsal, trial_run

OFFLOAD = {"strategy__kind": "deepspeed", "strategy__zero_stage": 2, "strategy__offload_optimizer_device": "cpu"}
BUILDER = """#!/bin/sh
# Stands in for the Python that runs probe/inside/build_ops.py with the ops' names.
shift
cd "$TORCH_EXTENSIONS_DIR"
for op in "$@"; do
    echo >> calls
    printf '{"op": "%s"}\\n' $op
    mkdir -p $op
    BODY
    printf '{"loaded": "%s", "file": "%s"}\\n' $op $PWD/$op/$op.so
done
"""
COMPILES = "echo '[1/2] c++ -c x.cpp'; echo '[2/2] c++ x.o'; [ -e $op/$op.so ] || touch $op/$op.so"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "extensions").mkdir()
    monkeypatch.setattr(locks, "_is_contained", lambda _root: False)


def plan(**values: object) -> Plan:
    return plans.make(**{**OFFLOAD, "machine__device": "cpu", **values})


def machine(deepspeed: str = "0.19.8") -> Machine:
    interpreter = Interpreter(python="python", packages={"torch": "2.13.0", "deepspeed": deepspeed})
    return Machine(cpu=Cpu(model="", physical_cores=1, usable_cores=1), interpreter=interpreter)


def build(
    folder: Path,
    body: str = COMPILES,
    *,
    on: Machine | None = None,
    by: Callable[..., None] = ops.build,
    **values: object,
) -> int:
    """Have the ops built by a stand-in; return how many it was asked for."""
    python = folder / "python"
    python.write_text(BUILDER.replace("BODY", body))
    python.chmod(0o755)
    calls = folder / "extensions" / "calls"
    calls.unlink(missing_ok=True)
    by(plan(**values), python=str(python), machine=on or machine())
    return len(calls.read_text()) if calls.exists() else 0


def gone(pid: int) -> bool:
    """Whether it has ended, whoever may still have to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ("cpu_adam", "deepspeed_shm_comm")),
        ({"machine__device": "cuda"}, ("cpu_adam",)),
        ({"machine__device": "cuda", "optimizer__name": "sgd"}, ()),
        ({"machine__device": "cuda", "strategy__offload_optimizer_device": "none"}, ()),
        ({"machine__device": "cpu", "strategy__offload_optimizer_device": "none"}, ("deepspeed_shm_comm",)),
        (
            {
                "machine__device": "cuda",
                "strategy__zero_stage": 3,
                "strategy__offload_optimizer_device": "nvme",
                "strategy__nvme_path": "/nvme",
            },
            ("cpu_adam", "async_io"),
        ),
    ],
)
def test_only_ops_that_the_strategy_and_offload_need(values: dict[str, object], wanted: tuple[str, ...]) -> None:
    chosen = plan(**values)
    assert strategies.of(chosen).ops(chosen) == wanted


def test_a_strategy_without_deepspeed_asks_nobody(tmp_path: Path) -> None:
    values = {"strategy__kind": "ddp", "strategy__zero_stage": None, "strategy__offload_optimizer_device": "none"}
    assert build(tmp_path, **values) == 0


def test_it_is_said_once_and_a_second_launch_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(tmp_path) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "compiling DeepSpeed's ops for this machine, once (takes a few minutes): cpu_adam, deepspeed_shm_comm"
    )
    assert said[1].startswith("compiled in 0:0")
    assert build(tmp_path) == 0
    assert capsys.readouterr().err == ""


def test_what_ranks_compiled_is_looked_at_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for op in ("cpu_adam", "deepspeed_shm_comm"):
        (tmp_path / "extensions" / "py311_cpu" / op).mkdir(parents=True)
        (tmp_path / "extensions" / "py311_cpu" / op / f"{op}.so").touch()
    assert build(tmp_path) == 2
    assert capsys.readouterr().err == ""


def test_another_version_and_a_deleted_library_are_looked_at_again(tmp_path: Path) -> None:
    assert build(tmp_path) == 2
    assert build(tmp_path, on=machine("0.20.0")) == 2
    assert build(tmp_path) == 0
    (tmp_path / "extensions" / "cpu_adam" / "cpu_adam.so").unlink()
    assert build(tmp_path) == 2


def test_a_failure_shows_the_compilers_words_and_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    echo '[1/3] c++ -MMD -c cpu_adam.cpp'
    echo 'FAILED: cpu_adam.o '
    echo '/usr/include/pybind11/common.h:212:10: fatal error: Python.h: No such file or directory'
    echo 'ninja: build stopped: subcommand failed.'
    echo 'Traceback (most recent call last):' >&2
    echo '  File "cpp_extension.py", line 2600, in _run_ninja_build' >&2
    echo "RuntimeError: Error building extension 'cpu_adam'" >&2
    exit 1"""
    with pytest.raises(Refused) as refused:
        build(tmp_path, body)
    assert "| /usr/include/pybind11/common.h:212:10: fatal error: Python.h: No such file" in capsys.readouterr().err
    assert str(refused.value).startswith(
        "DeepSpeed cannot compile its op cpu_adam (exit code 1): code must be compiled"
    )
    remedy = str(refused.value.remedy)
    assert "apt-get install python3-dev" in remedy
    log = Path(remedy.rpartition(": ")[2])
    assert "ninja: build stopped" in log.read_text()
    assert build(tmp_path) == 2, "a failure is not remembered"


def test_a_failure_that_nobody_knows_says_its_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with CXX=/bin/false: the exception is one that launchers also end with."""
    problem = "subprocess.CalledProcessError: Command '['/bin/false', '--version']' returned non-zero exit status 1."
    with pytest.raises(Refused) as refused:
        build(tmp_path, f'echo "Traceback (most recent call last):"; echo "{problem}"; exit 1')
    assert str(refused.value) == f"DeepSpeed cannot compile its op cpu_adam (exit code 1): {problem}"
    assert str(refused.value.remedy).startswith("to check the compiler, ninja, headers and nvcc, run: trainwiz doctor")
    assert problem in capsys.readouterr().err


def test_a_foreign_script_is_started_without_an_op_that_cannot_be_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path, "echo 'fatal error: no compiler'; exit 1", by=ops.build_if_possible)
    said = capsys.readouterr().err
    assert "DeepSpeed cannot compile its op cpu_adam (exit code 1): fatal error: no compiler" in said
    assert "starting the script anyway" in said


def test_a_rehearsal_and_a_foreign_script_compile_before_their_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiles(Exception):
        """In place of compiling, and of what would come after it."""

    asked: list[tuple[Plan, dict[str, Any]]] = []

    def compiles(plan: Plan, **values: Any) -> None:
        asked.append((plan, values))
        raise Compiles

    monkeypatch.setattr(ops, "build", compiles)
    small = setup.small_copy(plan(machine__device="cuda"), {}, by_hand={})
    here = trial_run.Environment(folder=tmp_path, python="python", workspace=Workspace(None), machine=machine())
    with pytest.raises(Compiles):
        rehearsal._results(here, small)
    assert asked[0][0].machine.device == "cpu"
    assert asked[0][1]["added"]["CUDA_VISIBLE_DEVICES"] == ""

    (tmp_path / "their.py").write_text("print()")
    config = {"distributed_type": "DEEPSPEED", "num_processes": 1, "mixed_precision": "no"}
    config["deepspeed_config"] = {"zero_stage": 2, "offload_optimizer_device": "cpu", "gradient_clipping": 1.0}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(script.preflight, "insist", lambda _: None)
    with pytest.raises(Compiles):
        script.launch(Request(config="theirs.yaml", words=("their.py",), python=sys.executable))
    chosen = asked[1][0]
    assert strategies.of(chosen).ops(chosen) == ("cpu_adam", "deepspeed_shm_comm")


def test_who_waited_for_a_dead_builder_builds_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch takes for granted that whoever held the lock has built the op, and fails where it did not."""
    monkeypatch.setattr(ops, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(ops.build_locks, "_EVERY_SECONDS", 0.05)
    body = f"""
    if [ ! -e tried ]; then
        touch tried $op/lock
        while [ -e $op/lock ]; do sleep 0.05; done
        echo "ImportError: $op.so: cannot open shared object file"
        exit 1
    fi
    {COMPILES}"""
    assert build(tmp_path, body) == 3
    said = capsys.readouterr().err
    assert f"removed a build lock that no process owns: {tmp_path}/extensions/cpu_adam/lock" in said
    assert "compiled in" in said


def test_who_waited_for_a_build_that_was_ended_in_good_order_builds_itself(tmp_path: Path) -> None:
    """Its lock is gone without a library, and nobody had to remove it."""
    (tmp_path / "extensions" / "cpu_adam").mkdir()
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"
    body = f"""
    if [ ! -e tried ]; then
        touch tried; sleep 0.5; rm {lock}
        echo "ImportError: $op.so: cannot open shared object file"
        exit 1
    fi
    {COMPILES}"""
    with lock.open("w"):
        assert build(tmp_path, body) == 3


def test_an_op_that_deepspeed_does_without_was_not_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """printf '{"loaded": "%s", "file": null}\\n' $op; continue"""
    build(tmp_path, body)
    said = capsys.readouterr().err
    assert "DeepSpeed does not use these ops here: cpu_adam, deepspeed_shm_comm" in said
    assert "compiled in" not in said


def test_ninja_s_steps_show_that_nobody_else_compiles(tmp_path: Path) -> None:
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    running = ops._Build(progress=shown.Progress([]), environ=os.environ, missing=frozenset({"cpu_adam"}))
    running._heard('{"op": "cpu_adam"}')
    assert (running._waits, running.waited) == (True, True)
    running._heard("[1/3] c++ x")
    assert (running._waits, running.waited, running.compiled) == (False, False, True)


def test_ctrl_c_ends_what_ninja_started_in_groups_of_its_own(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body = f"setsid sleep 60 & echo $! > {pid}; wait"

    def interrupt() -> None:
        until = time.monotonic() + 60 * patience()
        while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(1)  # the main thread has imported all it needs, and reads
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, body)
    thread.join()
    until = time.monotonic() + 30 * patience()  # a process that was killed on a busy machine ends a moment later
    while not gone(int(pid.read_text())) and time.monotonic() < until:
        time.sleep(0.02)
    assert gone(int(pid.read_text()))


def test_lines_come_as_they_are_written_with_pauses_between() -> None:
    with Lines(["/bin/sh", "-c", "echo a; sleep 2; printf 'b\\nc'; exit 3"], environ=dict(os.environ)) as program:
        heard = list(program.read(0.1))
        assert [line for line in heard if line is not None] == ["a", "b", "c"]
        assert None in heard[heard.index("a") : heard.index("b")]
        assert program.code() == 3


def test_progress_without_a_terminal_is_a_line_each_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = shown.Progress(["cpu_adam"], clock=lambda: now[0])
    for now[0] in range(0, 100, 5):
        progress.show("cpu_adam", (1, 3), waits=False)
    progress.show("cpu_adam", None, waits=True)
    progress.done()
    assert capsys.readouterr().err.splitlines()[1:] == [
        "compiling cpu_adam, 1 of 3 steps, 0:30",
        "compiling cpu_adam, 1 of 3 steps, 1:00",
        "compiling cpu_adam, 1 of 3 steps, 1:30",
        "compiled in 1:35; later launches reuse them",
    ]
