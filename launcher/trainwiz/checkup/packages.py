"""The training interpreter and its packages."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.checkup.known_bad import known_bad
from trainwiz.checkup.line import Line, joined
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
    "pillow": say("only needed for the image_classification task"),
    "scikit-learn": say("only needed for the embedded images"),
}


def lines(machine: Machine) -> Iterator[Line]:
    """Interpreter, torch, the engine's and the task's packages, and known-bad pairs among them."""
    interpreter = machine.interpreter
    if interpreter is None:
        return
    yield _python(interpreter)
    if not interpreter.packages:
        return
    yield Line(
        subject="torch",
        title="torch",
        found=_torch(interpreter),
        level=Level.WARNING if _old(interpreter, "torch") else None,
        fix=_old(interpreter, "torch"),
        rules=("TW102", "TW103"),
    )
    for name, needed in _NEEDED_BY.items():
        yield _package(interpreter, name, needed)
    if version := interpreter.version("colossalai"):  # it has an environment of its own
        yield Line(subject="colossalai", title="colossalai", found=version)
    yield _others(interpreter)
    for pair in known_bad(interpreter):
        yield Line(
            subject=f"{pair.first}+{pair.second}",
            title=say("{first} with {second}", first=pair.first, second=pair.second),
            found=say(
                "{first} {first_version} with {second} {second_version}: {problem}",
                first=pair.first,
                first_version=interpreter.version(pair.first),
                second=pair.second,
                second_version=interpreter.version(pair.second),
                problem=pair.message,
            ),
            level=pair.level,
            fix=install(interpreter.python, pair.requirement).message,
        )


def _python(interpreter: Interpreter) -> Line:
    title = say("interpreter")
    if not interpreter.packages:
        return Line(
            subject="python",
            title=title,
            found=say("cannot query {python}: {error}", python=interpreter.python, error=interpreter.error),
            level=Level.ERROR,
            fix=say("specify the Python to train with: --python PATH"),
            rules=("TW103",),
        )
    found = say("Python {version}, {python}", version=interpreter.python_version, python=interpreter.python)
    return Line(subject="python", title=title, found=found, rules=("TW101",))


def _torch(interpreter: Interpreter) -> Message:
    version = interpreter.version("torch")
    if version is None:
        return say("not installed")
    if interpreter.cuda_build is None:
        return say("{version}, built without CUDA", version=version)
    return say("{version}, built for CUDA {cuda}", version=version, cuda=interpreter.cuda_build)


def _package(interpreter: Interpreter, name: str, needed: Message) -> Line:
    version = interpreter.version(name)
    if version is not None:
        old = _old(interpreter, name)
        return Line(subject=name, title=name, found=version, level=Level.WARNING if old else None, fix=old)
    oldest = OLDEST.get(name)
    return Line(
        subject=name,
        title=name,
        found=say("not installed; {needed}", needed=needed),
        level=Level.ERROR if name == "accelerate" else Level.HINT,
        fix=install(interpreter.python, f"{name}>={oldest}" if oldest else name).message,
    )


def _old(interpreter: Interpreter, name: str) -> Message | None:
    """What to type if the package is older than the oldest version that was tried."""
    version, oldest = interpreter.version(name), OLDEST.get(name)
    if version is None or oldest is None or parts(version) >= parts(oldest):
        return None
    line = install(interpreter.python, f"{name}>={oldest}").message
    return say("{oldest} is the oldest tested version; {line}", oldest=oldest, line=line)


def _others(interpreter: Interpreter) -> Line:
    shown = {"torch", "colossalai", *_NEEDED_BY}
    others = [f"{name} {version}" for name, version in sorted(interpreter.packages.items()) if version]
    named = [other for other in others if other.partition(" ")[0] not in shown]
    return Line(subject="others", title=say("other packages"), found=joined(named))
