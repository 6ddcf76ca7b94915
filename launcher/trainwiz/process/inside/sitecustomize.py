"""Runs first in every rank: lets trainwiz ask for its Python stack by a signal, and beats once a second.

When a rank ends by itself, it writes down the most memory that it held. Where ranks are debugged, this also widens the
others' timeouts.

Python imports the first `sitecustomize` on its path. This one steps aside at once: its folder leaves the path, and the
`sitecustomize` that would have been found without it runs in its place.
"""

# Every rank waits for what is imported here: contextlib and typing alone would double the start of an empty script.
import importlib.machinery
import os
import sys

BEAT_SECONDS = 1.0
LITTLE_SECONDS = 0.001
LINE = 200
"""Bytes of a beat: always as many, so that it is replaced whole."""
DEPTH = 12
"""Calls from the innermost outwards in which a collective is looked for, as `hangs.Rank.waiting` does."""
COLLECTIVES = ("/torch/distributed/", "/deepspeed/comm/", "/accelerate/utils/operations.py")
BACKWARD = "/torch/autograd/graph.py"


def listen() -> object:
    """Answer the signal in TRAINWIZ_STACKS (`number:folder`) with a dump into `rank-N.stack` in that folder."""
    number, _, folder = os.environ.get("TRAINWIZ_STACKS", "").partition(":")
    rank = os.environ.get("RANK") or os.environ.get("TRAINWIZ_RANK")
    if not (number and folder and rank and os.path.isdir(folder)):
        return None
    import faulthandler

    # Kept open, for the handler has only its descriptor.
    file = open(os.path.join(folder, f"rank-{rank}.stack"), "a")  # noqa: SIM115
    faulthandler.register(int(number), file=file, all_threads=True)
    # The rank starts before what it starts itself, so its line comes first.
    file.write(f"process {os.getpid()}\n")
    file.flush()
    try:
        beat(folder, rank)
        leave_peak(folder, rank)
    except OSError:
        pass
    return file


def leave_agent() -> None:
    """Undo what torchrun and trainwiz did for the agent that started this rank.

    The signals in TRAINWIZ_IGNORED are heard again, and stderr goes where stdout goes, in the order of writing.
    """
    numbers = os.environ.pop("TRAINWIZ_IGNORED", None) if "LOCAL_RANK" in os.environ else None
    if numbers is not None:
        os.dup2(1, 2)
    if numbers:
        import _signal  # type: ignore[import-not-found]

        for number in map(int, numbers.split(",")):
            if _signal.getsignal(number) == _signal.SIG_IGN:
                _signal.signal(number, _signal.default_int_handler if number == _signal.SIGINT else _signal.SIG_DFL)


def look(descriptor: int, main: int) -> None:
    """Look at the main thread once a second; keep the counts of looks, waits for other ranks, and moves in a file.

    Backward passes wait inside for other ranks' gradients; they count as waiting only where they do not compute. A rank
    in the same calls as before has moved if it computed a little in between: one that waits does not compute, or spins
    without end.
    """
    import time

    clock = time.pthread_getcpuclockid(main)
    looks = waits = moves = 0
    last, before = None, 0.0
    while True:
        time.sleep(BEAT_SECONDS)
        frame = sys._current_frames().get(main)
        if frame is None:
            return
        used = time.clock_gettime(clock)
        spent, before = used - before, used
        busy = spent > BEAT_SECONDS / 2
        place, waiting, outer, calls = "", False, 0, [id(frame)]
        while frame is not None:
            file = frame.f_code.co_filename
            if outer < DEPTH and not waiting:
                waiting = any(part in file for part in COLLECTIVES) or (BACKWARD in file and not busy)
            if not place and "-packages/" not in file and "/lib/python3" not in file and file[:1] != "<":
                place = f"{frame.f_code.co_name}, {os.path.basename(file)}:{frame.f_lineno}"
            calls.append(frame.f_lasti)
            frame, outer = frame.f_back, outer + 1
        moved = calls != last or (not busy and spent > LITTLE_SECONDS)
        looks, waits, moves, last = looks + 1, waits + waiting, moves + moved, calls
        os.pwrite(descriptor, f"{looks} {waits} {moves} {place}".encode()[:LINE].ljust(LINE), 0)


# docs/decisions/supervision.md: A thread in each rank records where it is; stacks still need a signal
def beat(folder: str, rank: str) -> None:
    """Begin to beat, unless another process already does for this rank: what a rank starts inherits its environment."""
    import _thread

    file = os.path.join(folder, f"rank-{rank}.beat")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    main = _thread.get_ident()

    def quietly() -> None:
        # No beats on a platform without thread clocks, or if the interpreter is ending.
        try:  # noqa: SIM105
            look(descriptor, main)
        except Exception:
            pass

    _thread.start_new_thread(quietly, ())


def leave_peak(folder: str, rank: str) -> None:
    """At this process's end, write the most memory that it held, in bytes: of the host, and of its GPU if it has one.

    A rank that is killed leaves nothing.
    """
    import atexit

    own = os.getpid()

    def write() -> None:
        if os.getpid() != own:
            return
        # Nothing is written on a full disk, without /proc, or if the GPU is lost.
        try:
            lines = [f"{name} {count}\n" for name, count in peaks()]
            with open(os.path.join(folder, f"rank-{rank}.peak"), "w") as file:
                file.writelines(lines)
        except Exception:
            pass

    atexit.register(write)


def peaks() -> "list[tuple[str, int]]":
    """The peaks of this process. Of memory that the kernel counts, the one before it became this program is not in."""
    with open("/proc/self/status") as status:
        found = [("host_bytes", int(line.split()[1]) * 1024) for line in status if line.startswith("VmHWM:")]
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda and cuda.is_initialized():
        found.append(("allocated_bytes", cuda.max_memory_allocated()))
        found.append(("reserved_bytes", cuda.max_memory_reserved()))
    return found


# docs/decisions/supervision.md: Stacks come from a sitecustomize that hands over to the user's own
def step_aside() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "TRAINWIZ_STACKS" in os.environ or "TRAINWIZ_PATIENCE" in os.environ:
    # A problem here (a full disk, a signal in use) must not make a training fail.
    try:
        leave_agent()
        _open = listen()
        if "TRAINWIZ_PATIENCE" in os.environ:
            import _trainwiz_patience  # type: ignore[import-not-found]

            _trainwiz_patience.install()
    except Exception:
        pass
    step_aside()
