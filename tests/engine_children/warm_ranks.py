"""Ranks that have nothing to import any more: forked from here, where torch and its kin were imported once.

`python warm_ranks.py SOCKET ROOM`. Who connects sends the length of an order, with the rank's standard streams, and
then the order: JSON with `argv`, `cwd`, `environ`, `imports` and `memory`. Told is the rank's process id and, once it
has ended, its exit code. A connection that closes before ends the rank; the end of standard input ends them all.

What a rank imported later than at its top, it leaves in a file when it ends, and the next ones find it imported.

Whoever looks for a rank's process finds it in /proc by its own arguments and variables: they are written over those of
this process, where ROOM, an argument of any words, and a variable as long left room for them.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import io
import itertools
import json
import os
import random
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import types
import weakref
from pathlib import Path

HOOK = Path(__file__).parents[2] / "launcher" / "trainwiz" / "process" / "inside" / "sitecustomize.py"
STANDIN = Path(__file__).parents[1] / "standin" / "sitecustomize.py"
LENGTH = struct.Struct("!I")
PEER = struct.Struct("iII")
"""struct ucred: socket(7)."""
STREAMS = 16
"""At most: the three of everybody, and those that a rank was given besides."""
GRACE = 5
"""Seconds in which a server ends by itself."""
PDEATHSIG = 1
"""<linux/prctl.h>: the signal that a process gets when its parent ends."""
LONG_TEXT, LENGTH_OF_TEXT = 150, 5
"""Tokens. A model that was trained writes 200 of them, for nobody: that takes as long as the rest of most trainings."""
ready = set()
"""What was made ready, of `MAKING`."""


def main():
    del sys.path[0]  # this folder: each rank has that of its own script in its place
    server, selector, pids, later = socket.socket(socket.AF_UNIX), selectors.DefaultSelector(), {}, []
    server.bind(sys.argv[1])
    server.listen(64)
    print("listening", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    be_guarded(server)
    selector.register(server, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is server:
                connection, _ = server.accept()
                try:
                    pid = started(connection, server, later)
                except OrderCutOffError:
                    connection.close()
                    continue
                pids[pid] = os.pidfd_open(pid)
                selector.register(pids[pid], selectors.EVENT_READ, (pid, connection))
                selector.register(connection, selectors.EVENT_READ, pid)
                tell(connection, pid)
            elif key.fileobj == 0:
                for pid in pids:
                    end(pid)
                return
            elif isinstance(key.data, int):
                if key.data in pids:  # else it ended at the same moment, and its connection is closed
                    selector.unregister(key.fileobj)
                    end(key.data)
            else:
                pid, connection = key.data
                selector.unregister(key.fileobj)
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                os.close(pids.pop(pid))
                later.extend(left_by(pid))
                tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                connection.close()


def be_guarded(server):
    """Be killed where standard input ended and this process does not see it: it is stopped, or waits for words."""
    own = os.pidfd_open(os.getpid())
    if not os.fork():
        try:
            os.setsid()  # Ctrl-C is for the server
            server.close()
            ended = select.poll()
            ended.register(own, select.POLLIN)
            either = select.poll()
            either.register(own, select.POLLIN)
            either.register(0, select.POLLIN)
            either.poll()
            if not ended.poll(GRACE * 1000):
                signal.pidfd_send_signal(own, signal.SIGKILL)
        finally:
            os._exit(0)
    os.close(own)


def tell(connection, number):
    with contextlib.suppress(OSError):
        connection.sendall(f"{number}\n".encode())


def end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def left_by(pid):
    """What a rank that ended by itself imported of installed packages, in the order in which it began to."""
    file = Path(f"{sys.argv[1]}-{pid}")
    if not file.exists():
        return []
    names = file.read_text().split()
    file.unlink()
    return names


class OrderCutOffError(Exception):
    """The process that asked for a rank was ended before it had said which."""


def ordered(connection):
    """What is asked for, and the streams for it."""
    try:
        length, streams, *_ = socket.recv_fds(connection, LENGTH.size, STREAMS)
        if length:
            size = LENGTH.unpack(length)[0]
            text = connection.recv(size, socket.MSG_WAITALL)
            if len(text) == size:
                return json.loads(text), streams
            for stream in streams:
                os.close(stream)
    except OSError:
        pass
    raise OrderCutOffError


def imported(before):
    """The installed modules after that many; those of the project are the rank's own.

    The others are not looked at: to touch an object is to copy its page, and there are thousands of modules.
    """
    for name in reversed(list(itertools.islice(reversed(sys.modules), len(sys.modules) - before))):
        origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None) or ""
        if origin.startswith((sys.prefix, sys.base_prefix)):
            yield name


def keep_to_the_end():
    """No rank takes apart, when it ends, what is here already: torch's operators, for three times a fork's own cost."""
    for finalizer in weakref.finalize._registry.values():
        finalizer.atexit = False


def started(connection, server, later):
    """The process id of a rank that was forked."""
    order, streams = ordered(connection)
    asking, *_ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    for name in (*order["imports"], *later):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    later.clear()
    for name in MAKING.keys() & sys.modules.keys() - ready:
        ready.add(name)
        MAKING[name](sys.modules[name])
    keep_to_the_end()
    gc.collect()
    gc.freeze()  # what is here already is looked at by no rank
    own = os.getpid()
    if pid := os.fork():
        for stream in streams:
            os.close(stream)
        return pid
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own:
            os._exit(code)  # the server ended before this could be asked for
        join(asking)
        server.close()
        connection.close()
        streams = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 256) for stream in streams]
        os.closerange(3, 256)
        for number, stream in zip((0, 1, 2, *order.get("given", ())), streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        left = f"{sys.argv[1]}-{os.getpid()}"
        before = len(sys.modules)
        code = become(order)
        Path(left).write_text("\n".join(imported(before)))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def join(asking):
    """Be on the host of the process that asks for the rank, and within its mounts and its limit of memory."""
    for name in ("net", "mnt"):  # names of hosts are in a file that is mounted
        if os.readlink(f"/proc/self/ns/{name}") != os.readlink(f"/proc/{asking}/ns/{name}"):
            namespace = os.open(f"/proc/{asking}/ns/{name}", os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
                raise OSError(ctypes.get_errno(), "setns")
            os.close(namespace)
    own, theirs = memory_group("self"), memory_group(asking)
    if own != theirs:
        Path(f"/sys/fs/cgroup/memory{theirs}/cgroup.procs").write_text(str(os.getpid()))


def memory_group(pid):
    """The memory cgroup (version 1) of a process; empty where there are none."""
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return next((group for _, kinds, group in lines if "memory" in kinds.split(",")), "")


def measured_once(cpuinfo):
    """What the processor is: each time somebody asks, processes are begun to measure it, which takes a second."""
    known = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: dict(known)


def made_ready(transformers):
    """What transformers makes once in a process is made, and the text that a training ends with is a short one."""
    with contextlib.suppress(ImportError, AttributeError):  # older ones have none
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
    generate = transformers.GenerationMixin.generate

    def generate_less(model, *inputs, **options):
        if (options.get("max_new_tokens") or 0) > LONG_TEXT:
            options["max_new_tokens"] = LENGTH_OF_TEXT
        return generate(model, *inputs, **options)

    transformers.GenerationMixin.generate = generate_less


MAKING = {"transformers": made_ready, "cpuinfo": measured_once}
"""What is done once to modules that ranks import."""


def become(order):
    """Be the rank, as an interpreter that was started with this environment would; its exit code."""
    os.chdir(order["cwd"])
    os.environ.clear()  # nothing points there any more
    os.environ.update(order["environ"])
    show(order)
    if memory := order.get("memory"):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(number, "wb", closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True))
    random.seed()  # no two processes begin alike
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(int(threads))
    if "TRAINWIZ_STACKS" in os.environ:
        load("_hook", HOOK)  # it keeps a file open
    if str(STANDIN.parent) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        load("_standin", STANDIN)
    sys.executable = order.get("executable") or sys.executable
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if order["argv"][0] == "-c":
        _, text, *words = order["argv"]
        sys.argv[:], name, folder = ["-c", *words], "<string>", ""
    else:
        sys.argv[:] = order["argv"]
        name = module.__file__ = sys.argv[0]
        text, folder = Path(name).read_bytes(), str(Path(name).resolve().parent)
    sys.path.insert(0, folder)
    code = run(compile(text, name, "exec"), module.__dict__)
    threading._shutdown()
    atexit._run_exitfuncs()
    return code


def load(name, file):
    """Run what an interpreter would have run when it started."""
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def show(order):
    """Let /proc say of this process what it would say of one that was started so."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[45:49])  # proc(5): 48 to 51
    variables = (f"{name}={value}" for name, value in order["environ"].items())
    for words, start, end in ((["python", *order["argv"]], arg_start, arg_end), (variables, env_start, env_end)):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(text) < end - start
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def run(program, names):
    try:
        exec(program, names)
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    main()
