"""A rank in waiting: imports what the script imports, and becomes the rank once it is told to.

`python standby.py DESCRIPTOR SCRIPT METRICS`. It waits until the training writes METRICS, so that it does not slow the
start of the others, then imports. What it reads from DESCRIPTOR, JSON with `argv`, `environ` and `log`, makes it the
rank; the end of the pipe without a message ends it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import select
import sys
from pathlib import Path

LOOK_SECONDS = 0.5
LATER = {"torch": ("torch._dynamo",), "accelerate": ("torch._dynamo",)}
"""What a package imports only when it is first used: the optimizer's first step imports torch._dynamo, 1 s."""


def imported(script: Path, seen: set[Path]) -> list[str]:
    """Names that a script imports at its top, with those of its neighbors, which are not imported themselves."""
    if script in seen:
        return []
    seen.add(script)
    names: list[str] = []
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    found: list[str] = []
    for name in names:
        neighbor = script.parent / f"{name.partition('.')[0]}.py"
        found += imported(neighbor, seen) if neighbor.is_file() else [name, *LATER.get(name, ())]
    return found


def changed(file: str) -> float:
    """When a file was last written; 0 where there is none."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def wait_for_the_others(descriptor: int, metrics: str) -> None:
    """Wait until they have begun to train, or this one is needed."""
    before = changed(metrics)
    while changed(metrics) == before and not select.select([descriptor], [], [], LOOK_SECONDS)[0]:
        pass


def become(order: dict[str, object], hook: object) -> None:
    """Take the rank's place: its environment, output, arguments and script."""
    argv, environ = order["argv"], order["environ"]
    assert isinstance(argv, list)
    assert isinstance(environ, dict)
    # What was said while importing belongs into the log, too.
    said = os.pread(1, os.fstat(1).st_size, 0)
    log = os.open(str(order["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, said)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(environ)
    hook.listen()  # type: ignore[attr-defined]
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    main = sys.modules["__main__"].__dict__
    with open(argv[0], "rb") as file:
        source = file.read()
    keep = ("__name__", "__builtins__", "__doc__", "__loader__", "__package__", "__spec__")
    for name in [name for name in main if name not in keep]:
        del main[name]
    main["__file__"] = argv[0]
    exec(compile(source, argv[0], "exec"), main)


def main() -> None:
    """Wait, import, wait, become."""
    descriptor, script, metrics = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel ends this one first
    # Loaded before its variable is set, so that it does nothing yet.
    spec = importlib.util.spec_from_file_location("_stacks", Path(__file__).with_name("sitecustomize.py"))
    assert spec
    assert spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    sys.path[0] = str(script.resolve().parent)
    wait_for_the_others(descriptor, metrics)
    with contextlib.suppress(OSError, SyntaxError):
        for name in imported(script, set()):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    with os.fdopen(descriptor, "rb") as orders:
        order = orders.read()
    if order:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("0")
        become(json.loads(order), hook)


main()
