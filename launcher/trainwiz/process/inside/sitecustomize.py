"""Runs first in every rank: lets trainwiz ask for its Python stack by a signal, at no cost until it does.

Where ranks are debugged, it also widens the others' timeouts.

Python imports the first `sitecustomize` on its path. This one steps aside at once: its folder leaves the path, and the
`sitecustomize` that would have been found without it runs in its place.
"""

# Every rank waits for what is imported here: contextlib and typing alone would double the start of an empty script.
import importlib.machinery
import os
import sys


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
    return file


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
    # Whatever goes wrong here (a full disk, a signal that is taken) is no reason for a training to fail.
    try:
        _open = listen()
        if "TRAINWIZ_PATIENCE" in os.environ:
            import _trainwiz_patience  # type: ignore[import-not-found]

            _trainwiz_patience.install()
    except Exception:
        pass
    step_aside()
