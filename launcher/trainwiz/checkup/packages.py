"""The training interpreter and its packages."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.checkup.known_bad import Pair, known_bad
from trainwiz.checkup.line import Found, Line, joined, line
from trainwiz.finding import Level
from trainwiz.machine import Interpreter, Machine
from trainwiz.message import Message, say
from trainwiz.rules.plan.packages import OLDEST
from trainwiz.rules.versions import install, parts

_NEEDED_BY = {
    "accelerate": say("required by every generated project"),
    "deepspeed": say("only needed for the deepspeed strategy"),
    "transformers": say("only needed for text tasks"),
    "datasets": say("only needed for data from the hub"),
    "pillow": say("only needed for tasks on images"),
    "timm": say("only needed for pretrained networks on images"),
    "scikit-learn": say("only needed for the embedded images"),
}


def lines(machine: Machine) -> Iterator[Line]:
    """Interpreter, torch, the engine's and the task's packages, and known-bad pairs among them."""
    interpreter = machine.interpreter
    if interpreter is None:
        return
    # TW101 judges the version of a Python that could be asked, TW103 one that could not.
    yield line(
        "python", say("interpreter"), _python(interpreter), rules=("TW101" if interpreter.packages else "TW103",)
    )
    if not interpreter.packages:
        return
    yield line("torch", "torch", _judged(interpreter, "torch", _torch(interpreter)), rules=("TW102", "TW103"))
    for name, needed in _NEEDED_BY.items():
        yield line(name, name, _package(interpreter, name, needed))
    if version := interpreter.version("colossalai"):  # it has an environment of its own
        yield line("colossalai", "colossalai", Found(version))
    yield line("others", say("other packages"), _others(interpreter))
    for pair in known_bad(interpreter):
        first, second = pair.names
        title = say("{first} with {second}", first=first, second=second)
        yield line(f"{first}+{second}", title, _bad(interpreter, pair))


def _python(interpreter: Interpreter) -> Found:
    if interpreter.packages:
        version = interpreter.python_version
        return Found(say("Python {version}, {python}", version=version, python=interpreter.python))
    found = say("cannot query {python}: {error}", python=interpreter.python, error=interpreter.error)
    return Found(found, Level.ERROR, say("specify the Python to train with: --python PATH"))


def _torch(interpreter: Interpreter) -> Message:
    version = interpreter.version("torch")
    if version is None:
        return say("not installed")
    if interpreter.cuda_build is None:
        return say("{version}, built without CUDA", version=version)
    return say("{version}, built for CUDA {cuda}", version=version, cuda=interpreter.cuda_build)


def _package(interpreter: Interpreter, name: str, needed: Message) -> Found:
    version = interpreter.version(name)
    if version is not None:
        return _judged(interpreter, name, version)
    oldest = OLDEST.get(name)
    level = Level.ERROR if name == "accelerate" else Level.HINT
    fix = install(interpreter.python, f"{name}>={oldest}" if oldest else name).message
    return Found(say("not installed; {needed}", needed=needed), level, fix)


def _judged(interpreter: Interpreter, name: str, found: Message | str) -> Found:
    """A warning if the package is older than the oldest version that was tried."""
    version, oldest = interpreter.version(name), OLDEST.get(name)
    if version is None or oldest is None or parts(version) >= parts(oldest):
        return Found(found)
    install_it = install(interpreter.python, f"{name}>={oldest}").message
    fix = say("{oldest} is the oldest tested version; {line}", oldest=oldest, line=install_it)
    return Found(found, Level.WARNING, fix)


def _others(interpreter: Interpreter) -> Found:
    shown = {"torch", "colossalai", *_NEEDED_BY}
    others = sorted((name, version) for name, version in interpreter.packages.items() if version)
    return Found(joined(f"{name} {version}" for name, version in others if name not in shown))


def _bad(interpreter: Interpreter, pair: Pair) -> Found:
    first, second = pair.names
    found = say(
        "{first} {first_version} with {second} {second_version}: {problem}",
        first=first,
        first_version=interpreter.version(first),
        second=second,
        second_version=interpreter.version(second),
        problem=pair.message,
    )
    return Found(found, pair.level, install(interpreter.python, pair.requirement).message)
