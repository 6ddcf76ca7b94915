"""`trainwiz launch --hosts a,b`: the same launch on each of these hosts, started through ssh from here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwiz import cluster, files
from trainwiz.errors import TrainwizError, UsageError
from trainwiz.language import t
from trainwiz.message import say
from trainwiz.outcome import shell_code
from trainwiz.plan import Plan
from trainwiz.process import orders, ranks
from trainwiz.process.capture import capture
from trainwiz.process.remote import COULD_NOT_CONNECT, Remote
from trainwiz.shell_words import quoted
from trainwiz.store import plans, secret
from trainwiz.ui import console
from trainwiz.workflows.launch.request import Request

_SSH = "ssh"
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""Passwords cannot be typed for several hosts; a host that disappeared is noticed after a minute."""
_SECONDS = 20.0
_HOST = re.compile(r"(?P<name>(?:[\w.+-]+@)?(?:[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.]+\]))(?::(?P<slots>\d{1,4}))?")
_NOT_STARTED = (COULD_NOT_CONNECT, 126, 127)
_OWN = ("words", "arguments", "hosts", "dry_run", "json")
"""Fields of the request that are not passed on as they are."""
_PASSED_ON = ("TRAINWIZ_LANG", "LANG", "NO_COLOR")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of the hosts."""

    name: str
    """As ssh takes it."""
    slots: int | None = None
    """The number of its ranks, if given."""

    @property
    def address(self) -> str:
        """Its name or address without the user."""
        return self.name.rpartition("@")[2].strip("[]")


def launch(request: Request) -> int:
    """Launch on every host, and return the exit code of the first. Raises `UsageError`, `TrainwizError`."""
    hosts = parsed(request.hosts)
    _check_usage(request)
    plan_file = plans.find(request.folder)
    plan, folder = plans.read(plan_file), files.resolved(plan_file.parent)
    _agree(plan, hosts, request.folder)
    commands = [command(request, plan, folder, hosts, rank) for rank in range(len(hosts))]
    if request.dry_run:
        for words in commands:
            console.data(shlex.join(words))
        return 0
    if shutil.which(_SSH) is None:
        raise TrainwizError(
            say("--hosts needs ssh, which is not installed here"),
            say(
                "install it (Debian: apt install openssh-client), or run trainwiz launch with --machine-rank on "
                "each host"
            ),
        )
    return _Fleet(hosts, commands, goes_on=bool(request.nnodes)).run()


def parsed(words: str) -> list[Host]:
    """The hosts of `a,user@b:2,[fe80::1]`. Raises `UsageError`."""
    hosts = []
    for word in words.split(","):
        match = _HOST.fullmatch(word.strip())
        if match is None:
            raise UsageError(
                say("--hosts {words}: {word!r} is not a host", words=words, word=word),
                say("write names or addresses separated by commas: --hosts node1,user@node2:8"),
            )
        hosts.append(Host(name=match["name"], slots=int(match["slots"]) if match["slots"] else None))
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError(say("--hosts {words}: a host is listed twice", words=words))
    return hosts


def command(request: Request, plan: Plan, folder: Path, hosts: Sequence[Host], rank: int) -> tuple[str, ...]:
    """What starts the launch on one of the hosts: ssh's words, the last of which a POSIX shell reads there."""
    address = plan.machine.main_process_ip or _resolved(hosts[0])
    passed = [f"{name}={os.environ[name]}" for name in _PASSED_ON if name in os.environ]
    words = (
        *("env", f"{orders.VARIABLE}=stdin", f"MASTER_ADDR={address}", *passed),
        *(sys.executable, "-m", "trainwiz", "launch", "--machine-rank", str(rank), *_options(request)),
        *(("--", *request.arguments) if request.arguments else ()),
    )
    line = f"{shlex.join(['cd', str(folder)])} && exec {shlex.join(words)}"
    return (_SSH, *_OPTIONS, "--", hosts[rank].name.replace("[", "").replace("]", ""), line)


def _resolved(host: Host) -> str:
    """Its address as the other hosts may know it: a name of ssh's own configuration means nothing to them."""
    told = capture((_SSH, "-G", "--", host.name.replace("[", "").replace("]", "")), timeout=_SECONDS)
    found = re.search(r"^hostname (\S+)$", told.stdout, re.MULTILINE) if told.code == 0 else None
    return found[1] if found else host.address


def _options(request: Request) -> list[str]:
    """The request's options, as they were typed."""
    typed = []
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if field.name in _OWN or value == field.default:
            continue
        if field.name == "python" and os.sep in value:
            value = os.path.abspath(value)  # there, the folder is the project's
        name = f"--{field.name.replace('_', '-')}"
        if value is True:
            typed.append(name)
        else:
            typed += [word for each in (value if isinstance(value, tuple) else (value,)) for word in (name, str(each))]
    return typed


def _check_usage(request: Request) -> None:
    if request.config or request.machine_rank is not None or request.debug or request.json or request.secret:
        raise UsageError(
            say("--hosts cannot be combined with --config, --machine-rank, --debug, --json or --secret"),
            say("with --hosts, each host gets its rank and the secret from here"),
        )
    if job := cluster.job(os.environ):
        raise UsageError(
            say(
                "--hosts was used inside a job of {scheduler}, which starts the machines itself",
                scheduler=job.scheduler,
            ),
            say(
                "remove --hosts; under Slurm: srun --ntasks-per-node=1 trainwiz launch {folder}",
                folder=quoted(request.folder),
            ),
        )


def _agree(plan: Plan, hosts: Sequence[Host], folder: str) -> None:
    """Raises `UsageError` where the hosts are not those of the plan."""
    machines, here = plan.machine.num_machines, plan.machine.ranks_per_machine
    if len(hosts) != machines or machines == 1:
        raise UsageError(
            say("--hosts lists {given} hosts, but the plan has {n} machines", given=len(hosts), n=machines),
            say(
                "list that many hosts, or change the plan: trainwiz update {folder} --set machine.num_machines={n}",
                folder=quoted(folder),
                n=len(hosts),
            ),
        )
    for host in hosts:
        if host.slots is not None and host.slots != here:
            raise UsageError(
                say(
                    "--hosts: {host} has {slots} ranks, but the plan has {n} on each machine",
                    host=host.name,
                    slots=host.slots,
                    n=here,
                ),
                say(
                    "write :{n}, or change the plan: trainwiz update {folder} --set machine.num_processes={all}",
                    folder=quoted(folder),
                    n=here,
                    all=host.slots * machines,
                ),
            )


class _Fleet:
    """The launches on all hosts."""

    def __init__(self, hosts: Sequence[Host], commands: Sequence[Sequence[str]], *, goes_on: bool) -> None:
        self._hosts, self._commands, self._goes_on = hosts, commands, goes_on
        self._codes: dict[int, int] = {}
        self._ends: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._printing = threading.Lock()

    def run(self) -> int:
        """Run to the end of all; the exit code of the first host, else that of one that failed."""
        words = secret.made()
        with ranks.listening() as inbox:
            remotes = [self._start(rank, words) for rank in range(len(self._hosts))]
            asked = 0
            while len(self._codes) < len(remotes):
                try:
                    rank, code = self._ends.get(timeout=0.2)
                    self._end(rank, code, remotes)
                except queue.Empty:
                    pass
                if signum := ranks.pause(inbox, 0.0):
                    asked += 1
                    self._pass_on(signum, remotes, asked)
        code = self._codes[0]
        if not self._goes_on:  # otherwise the first host knows how the run ended, whatever happened to the others
            code = code or next((code for code in self._codes.values() if code), 0)
        return shell_code(code)

    def _start(self, rank: int, words: str) -> Remote:
        name = self._hosts[rank].name
        return Remote(
            self._commands[rank],
            first=words,
            tell=lambda line, on_stderr: self._print(f"[{name}] {line}", on_stderr),
            ended=lambda code: self._ends.put((rank, code)),
        )

    def _print(self, line: str, on_stderr: bool) -> None:
        # The reader may be gone; the hosts' output must still be read.
        with self._printing, contextlib.suppress(OSError):
            (console.talk if on_stderr else console.data)(line)

    def _end(self, rank: int, code: int, remotes: Sequence[Remote]) -> None:
        self._codes[rank] = code
        if code not in _NOT_STARTED:
            return
        name = self._hosts[rank].name
        console.failure(
            TrainwizError(
                say(
                    "{host}: not started, or its connection was lost (exit code {code}): {why}",
                    host=name,
                    code=code,
                    why=remotes[rank].last_words or "-",
                ),
                say(
                    "`ssh {host} true` must work without a password, and {python} must exist there as it does here",
                    host=name,
                    python=sys.executable,
                ),
            )
        )
        if not self._goes_on:
            for remote in remotes:
                remote.order("TERM")

    def _pass_on(self, signum: int, remotes: Sequence[Remote], asked: int) -> None:
        name = signal.Signals(signum).name.removeprefix("SIG")
        self._print(t("forwarding {signal} to all hosts", signal=f"SIG{name}"), True)
        for remote in remotes:
            if asked > 2:
                remote.kill()
            else:
                remote.order(name)
