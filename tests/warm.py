"""Trainings whose ranks begin at once: forked where torch and its kin were imported before.

`launch` and `spawn` are what `projects.launch` and `test_training.spawn` are, two to five seconds sooner. They are for
tests of what a training computes and writes. Where it matters how processes begin and end, and once for each engine
and task, tests start ranks as users do; `pytest --cold` starts all of them so.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apart
import projects
import psutil
from engine_children import claimed
from patience import patience

import trainwiz as trainwiz_package

# docs/decisions/tests.md: Tests fork the ranks of most trainings from a process that has imported everything
SERVER = Path(__file__).parent / "engine_children" / "warm_ranks.py"
PYTHON = SERVER.with_name("warm_python.py")
DEBUGPY = Path(sysconfig.get_path("purelib"), "debugpy", "__main__.py")
LENGTH = struct.Struct("!I")
ROOM = "x" * 2**15
"""For the arguments, and for the variables, that /proc shows of a rank."""
COMMAND = SERVER.with_name("forked_command.py")
IN_STANDIN = ("PYTHONPATH", "ACCELERATE_TORCH_DEVICE", "TRAINWIZ_COLOSSALAI_STANDIN")
"""Variables that are read while something is imported. For their values there is a server, but that accelerate's
stand-in is loaded by each rank that was forked."""
LATER = ("torch._dynamo", "deepspeed")
"""What every rank imports in the end: the first optimizer, and accelerate when it unwraps the model."""
MODEL = {"transformers.models.llama.modeling_llama"}
"""What every model of transformers imports once it is built, and 500 modules with it."""
ENGINE = {"deepspeed.ops.op_builder.all_ops", "deepspeed.runtime.zero.muon.muon_optimizer"}
"""What DeepSpeed imports once it prepares a model, and torch's compiler with it."""
PROCESSOR = {"cpuinfo"}
"""By what DeepSpeed's CPU Adam asks for the processor: the server asks once, for all its ranks."""
SHARED, LIFE = "warm", "life"
"""In the folder of a run of the tests: what its servers lie in, and the pipe that they read until nobody holds it."""
cold = False
"""`pytest --cold`."""


@dataclass
class Rank:
    """A rank that was begun; as much of a `subprocess.Popen` as is wanted."""

    connection: socket.socket
    pid: int = 0

    def __post_init__(self) -> None:
        self.answers = self.connection.makefile()
        self.pid = int(self.answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises `TimeoutError` where that takes longer, and ends it."""
        self.connection.settimeout(timeout)
        with self.connection, self.answers:
            return int(self.answers.readline())

    def __del__(self) -> None:
        self.answers.close()
        self.connection.close()


def begun(
    address: str,
    argv: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    imports: Sequence[str],
    *streams: int,
    executable: str = "",
    memory: int | None = None,
) -> Rank:
    """A rank of the server at this address. `argv` begins with its script, `streams` are its three.

    Where `executable` is empty, its `sys.executable` is the server's. `memory` limits its address space, in bytes.
    """
    known = {"argv": list(argv), "cwd": cwd, "environ": dict(environ), "imports": list(imports)}
    order = json.dumps({**known, "executable": executable, "memory": memory}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [LENGTH.pack(len(order))], streams)
    connection.sendall(order)
    return Rank(connection)


class Server:
    """One interpreter in one environment. It ends when nobody has `life` open for writing: by default, with this."""

    def __init__(self, python: str, environ: Mapping[str, str], folder: Path, life: int = subprocess.PIPE) -> None:
        self.address = str(folder / "socket")
        command = [python, str(SERVER), self.address, ROOM]
        environ = {**environ, "WARM_ROOM": ROOM}
        self.process = subprocess.Popen(command, env=environ, stdin=life, stdout=subprocess.PIPE)
        assert self.process.stdout
        assert self.process.stdout.readline() == b"listening\n"

    def close(self) -> None:
        self.process.communicate()


_addresses: dict[object, str] = {}
_begun: list[Server] = []
"""By this process, and for it alone."""
_outlived: list[subprocess.Popen[bytes]] = []
"""Servers that this process began for all workers of its run."""
_own = tempfile.TemporaryDirectory(prefix="warm-")
_life: list[int] = []
"""In the process that the workers of a run come from: what its servers live by."""
_behind: dict[str, str] = {}
"""The interpreters whose scripts `python` forks, by what it returned."""
_beginning = threading.Lock()


def share() -> None:
    """Let the servers of all workers of this run be the same, and end with this process."""
    folder = Path(os.environ[apart.RUN], SHARED)
    with contextlib.suppress(FileExistsError):  # else a test runs tests
        folder.mkdir()
        os.mkfifo(folder / LIFE)
        _life.append(os.open(folder / LIFE, os.O_RDWR))


def close() -> None:
    """End the servers that nobody else asks any more."""
    while _life:
        os.close(_life.pop())
        for ended in Path(os.environ[apart.RUN], SHARED).glob("*/pid"):
            with contextlib.suppress(psutil.Error):
                psutil.Process(int(ended.read_text())).wait(60)
    while _begun:
        _begun.pop().close()
    _addresses.clear()


def server(python: str, environ: Mapping[str, str], use: str = "warm") -> str:
    """The address of the server for these. Another use has a server of its own, with other modules imported."""
    environ = dict(environ)
    path = [folder for folder in environ.pop("PYTHONPATH", "").split(os.pathsep) if folder]
    if str(projects.STANDIN) in path:
        path.remove(str(projects.STANDIN))
        environ.pop("ACCELERATE_TORCH_DEVICE", None)
    environ |= {"PYTHONPATH": os.pathsep.join(path)} if path else {}
    key = (use, python, *(environ.get(name) for name in IN_STANDIN))
    name = f"{use}-{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"  # seen among the words of the processes
    with _beginning:  # threads of a test may want the first one at once
        if key not in _addresses:
            _addresses[key] = _asked(name, python, {**environ, "DS_ACCELERATOR": "cpu"})
    return _addresses[key]


def _asked(name: str, python: str, environ: Mapping[str, str]) -> str:
    """The address of the server of this name, begun if it was not yet."""
    shared = Path(os.environ.get(apart.RUN, ""), SHARED)
    if apart.RUN not in os.environ or not (shared / LIFE).exists():
        folder = Path(_own.name, name)
        folder.mkdir()
        _begun.append(Server(python, environ, folder))
        return _begun[-1].address
    folder = shared / name
    with (shared / "lock").open("w") as lock, (shared / LIFE).open("rb") as life:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "pid").exists():
            folder.mkdir()
            server = Server(python, environ, folder, life.fileno())
            (folder / "pid").write_text(str(server.process.pid))
            _outlived.append(server.process)
    return str(folder / "socket")


EARLY = ("HF_", "HOME", "LANG", "LC_", "LD_", "PYTHON", "TRANSFORMERS_", "XDG_", *IN_STANDIN)
"""Beginnings of variables that are read while torch or transformers is imported."""


def python(own: str = sys.executable, *, offspring: bool = False) -> str:
    """An interpreter for `--python` whose scripts find torch and transformers imported: in the environment of `own`.

    With `offspring` it is `sys.executable` in its scripts, too, and forks trainwiz itself, which lies beside it.
    """
    import forked  # which needs this module

    if cold:
        return own
    environ, prefix = projects.environment(), Path(own).parents[1]
    values = {
        "ADDRESS": server(own, environ),
        "PYTHON": own,
        "EARLY": EARLY,
        "ENVIRON": {name: value for name, value in environ.items() if name.startswith(EARLY)},
        "IMPORTS": ["torch", "transformers", *MODEL, *((*LATER, *forked.modules()) if offspring else ())],
        "HOOK": str(Path(trainwiz_package.__file__).parent / "process" / "inside"),
        "LAUNCHER": str(Path(trainwiz_package.__file__).parents[1]),
        "COMMAND": str(COMMAND) if offspring else "",
    }
    known = Path(values["ADDRESS"]).parent.name
    made = Path(_own.name, known, f"venv{'-of-all' * offspring}", "bin", "python")
    if not made.exists():
        made.parent.mkdir(parents=True)
        (made.parents[1] / "lib").symlink_to(prefix / "lib")
        shutil.copy(prefix / "pyvenv.cfg", made.parents[1])
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        made.write_text(f"#!{own} -IS\n{head}{PYTHON.read_text()}")
        command = made.with_name("trainwiz")
        command.write_text(f'#!/bin/sh\nexec "{made}" -m trainwiz "$@"\n')
        for file in (made, command):
            file.chmod(0o755)
    _behind[str(made)] = own
    return str(made)


def torchrun() -> dict[str, str]:
    """The variables with which torchrun starts its ranks by `python`, on whichever host it is."""
    return {} if cold else {"PYTHON_EXEC": python()}


def _forking(own: str) -> str:
    return python(own, offspring=True)


def option(own: str = sys.executable) -> tuple[str, str]:
    """`--python`, for a command whose children find torch imported."""
    return ("--python", python(own))


PARSING = threading.Lock()
"""Python 3.11 counts the depth of all trees together: two threads that parse at once may end with a SystemError."""


def imported(script: Path) -> list[str]:
    """What a script and its neighbors import at their top, neighbors left out."""
    neighbors = {file.stem: file for file in script.parent.glob("*.py")}
    found, files = set(LATER), [script, *(file for file in neighbors.values() if script.name == "train.py")]
    for file in files:
        with PARSING:
            tree = ast.parse(file.read_text())
        for node in tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    found |= MODEL if "transformers" in found else set()
    plan = script.with_name("trainwiz.yaml")
    planned = plan.read_text() if plan.exists() else ""
    found |= ENGINE if "kind: deepspeed" in planned else set()
    found |= PROCESSOR if "offload_optimizer_device: cpu" in planned else set()
    return sorted(name for name in found if name.partition(".")[0] not in neighbors)


def launch(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> projects.Done:
    """`projects.launch`, with ranks that begin at once."""
    return trainwiz(folder / "train.py", "launch", str(folder), *arguments, env=env)


def trainwiz(
    script: Path, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 240
) -> projects.Done:
    """A launch of this script by trainwiz as it is, but for how the ranks begin."""
    import forked  # which needs this module

    environ = projects.environment(env)
    if cold:
        done = forked.run(words, env=environ, cwd=cwd, timeout=timeout)
    else:
        own = command(script, *words, env=env)[2:]
        done = forked.run(own, env=environ, cwd=cwd, timeout=timeout, script=Path(__file__))
    return projects.Done(done.returncode, done.stdout, done.stderr)


def command(script: Path, *words: str, env: dict[str, str] | None = None, debugged: bool = False) -> list[str]:
    """The command of such a launch; ranks that wait for a debugger are forked, too, where they are `debugged`."""
    if cold:
        return [sys.executable, "-m", "trainwiz", *words]
    python = words[words.index("--python") + 1] if "--python" in words else sys.executable
    address = server(_behind.get(python, python), projects.environment(env))
    own = {"address": address, "python": python, "imports": imported(script)}
    own["modules"] = {"debugpy": str(DEBUGPY)} if debugged else {}
    return [sys.executable, __file__, json.dumps(own), *words]


def spawn(
    folder: Path,
    ranks: int,
    output: Path,
    overrides: dict[str, object],
    env: dict[str, str] | None = None,
    seconds: float = 120,
) -> int:
    """`test_training.spawn`: the ranks of train.py by torch.distributed's contract alone; the worst exit code."""
    arguments = [part for name, value in overrides.items() for part in (f"--{name}", str(value))]
    argv = ["train.py", "--output_dir", str(output), *arguments]
    ended = run(folder, argv, ranks, env=env, seconds=seconds)
    for rank, done in enumerate(ended):
        if done.code:  # shown where the test fails
            print(f"rank {rank} ended with {done.code}:\n{done.err[-4000:]}")
    return max(abs(done.code) for done in ended)


def child(
    script: Path, *arguments: str, env: dict[str, str] | None = None, text: str = "", seconds: float = 540
) -> projects.Done:
    """A script of tests/engine_children that is no rank, with this input: forked where its imports are imported."""
    environ, argv = projects.environment(env), [str(script), *arguments]
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(text)
        given.seek(0)
        if cold:
            command = [sys.executable, *argv]
            code = subprocess.run(command, env=environ, stdin=given, stdout=out, stderr=err, timeout=seconds).returncode
        else:
            address, streams = server(sys.executable, environ), (file.fileno() for file in (given, out, err))
            forked = begun(address, argv, os.getcwd(), environ, imported(script), *streams)
            code = forked.wait(seconds * patience())
        for file in (out, err):
            file.seek(0)
        return projects.Done(code, out.read(), err.read())


def process(folder: Path, rank: int) -> int:
    """The process of a rank that trains in this folder, cold or warm; it may be no child of its launcher."""
    return int(next(processes(folder, rank)).pid)


def processes(folder: Path, rank: int) -> Iterator[psutil.Process]:
    """All of a rank: behind torchrun, also the one that waits for what was forked."""
    found = 0
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get("RANK") == str(rank) and Path(each.cwd()) == folder.resolve():
                found += 1
                yield each
    assert found, f"no process of rank {rank}"


def run(
    folder: Path,
    argv: Sequence[str],
    ranks: int = 1,
    *,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    seconds: float = 120,
) -> list[projects.Done]:
    """A script's ranks in that folder, run to their end: for each its code and what it said."""
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(claimed.port())}
    environ = projects.environment({**world, **meeting, **(env or {})})
    imports = imported(folder / argv[0])
    # What a rank on a stand-in starts would not be forked.
    executable = "" if cold or set(IN_STANDIN) & set(env or ()) else _forking(python)
    with contextlib.ExitStack() as open_files:

        def temporary() -> Any:
            return open_files.enter_context(tempfile.TemporaryFile("w+"))

        nothing, said = open_files.enter_context(open(os.devnull)), [(temporary(), temporary()) for _ in range(ranks)]
        started: list[Any] = []
        for rank, (out, err) in enumerate(said):
            own = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if cold:
                command = [python, *argv]
                started.append(subprocess.Popen(command, cwd=folder, env=own, stdin=nothing, stdout=out, stderr=err))
            else:
                streams = (file.fileno() for file in (nothing, out, err))
                address = server(python, environ)
                started.append(begun(address, argv, str(folder), own, imports, *streams, executable=executable))
        until = time.monotonic() + seconds * patience()
        codes = [rank.wait(max(0.1, until - time.monotonic())) for rank in started]
        for file in itertools.chain(*said):
            file.seek(0)
        return [projects.Done(code, out.read(), err.read()) for code, (out, err) in zip(codes, said, strict=True)]


def main() -> None:
    """trainwiz itself, in a process of its own, with ranks from the server."""
    from trainwiz.__main__ import main as trainwiz
    from trainwiz.process import child, ranks

    own, started_from_scratch = json.loads(sys.argv[1]), child.start

    def spawned(process: child.Process, environ: Mapping[str, str]) -> child.Running:
        script = [word for word in process.argv[1:] if word not in ("-u", "-X", "frozen_modules=off")]
        if script[0] == "-m" and script[1] in own["modules"]:
            script = [own["modules"][script[1]], *script[2:]]
        if process.argv[0] != own["python"] or not script[0].endswith(".py"):
            return started_from_scratch(process, environ)
        with open(process.log, "ab") as log, open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            return begun(own["address"], script, os.path.abspath(process.cwd), environ, own["imports"], *streams)

    ranks.start = spawned  # type: ignore[attr-defined]
    sys.argv = ["trainwiz", *sys.argv[2:]]
    trainwiz()


if __name__ == "__main__":
    main()
