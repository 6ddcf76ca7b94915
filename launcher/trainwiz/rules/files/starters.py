"""What starts ranks on other machines: pdsh, ssh, MPI, Slurm; the hostfile that they go by, and its filters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainwiz.config import Accelerate
from trainwiz.finding import Level, Place, Violation, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule

PROGRAMS = {"pdsh": "pdsh", "slurm": "sinfo"}
"""What DeepSpeed's launchers look for: `backend_exists` in deepspeed/launcher/multinode_runner.py (0.19.8)."""
STARTERS = (*PROGRAMS.values(), "ssh", "mpirun", "mpiexec")
_REFUSING = ("openmpi", "mpich", "mvapich", "impi")
_LAUNCHER = "deepspeed_config.deepspeed_multinode_launcher"
_FILTERS = ("deepspeed_config.deepspeed_exclusion_filter", "deepspeed_config.deepspeed_inclusion_filter")
"""In the order that accelerate takes them: of both, the first."""
_SLOTS = re.compile(r"^(\S+)\s+slots=(\d+)")
_MPI = re.compile(r"^([^\s:#]+)(?:\s*:\s*(\d+)|\s+slots\s*=\s*(\d+))?")


@rule("TW682", level=Level.ERROR, field=_LAUNCHER)
def what_starts_the_others_is_installed(accelerate: Accelerate) -> Iterator[Violation]:
    """The program that starts ranks on other machines must be installed on the machine where you launch.

    Without it: `launcher 'pdsh' not installed.` or `No such file or directory: 'ssh'` from DeepSpeed; with
    mpirun_config, `mpirun or mpiexec were not found. Ensure that Intel MPI, Open MPI, or MVAPICH are installed.`
    Why: accelerate delegates the launch: by default to pdsh for DeepSpeed on multiple machines, and DeepSpeed first
    tries the first host by ssh; to MPI for CPU ranks with a hostfile.
    Instead: install it there; or set deepspeed_multinode_launcher: standard, and run `accelerate launch
    --machine_rank N` on each machine. Files may be checked on a different machine, so `check` looks for the program
    only with `--machine here`; `launch` always does.
    Source: seen with DeepSpeed 0.19.8 and accelerate 1.15.0; deepspeed/launcher/runner.py
    """
    here, launcher = accelerate.programs, accelerate.launcher
    if here is None:
        return
    if launcher in PROGRAMS:
        missing = [name for name in (PROGRAMS[launcher], "ssh") if name not in here]
        if missing:
            yield accelerate.wrong(
                _LAUNCHER if accelerate.has(_LAUNCHER) else "num_machines",
                say(
                    "{launcher} starts the other machines; missing on this machine: {programs}",
                    launcher=launcher,
                    programs=", ".join(missing),
                ),
                remedy("install it, or set deepspeed_multinode_launcher: standard", {_LAUNCHER: "standard"}),
            )
    elif _by_mpi(accelerate) and not {"mpirun", "mpiexec"} & here:
        yield accelerate.wrong(
            "mpirun_config.mpirun_hostfile",
            say("MPI starts the ranks, but neither mpirun nor mpiexec is installed here"),
            remedy("install Open MPI, MPICH or Intel MPI"),
        )


@rule("TW683", level=Level.ERROR, field="deepspeed_config.deepspeed_hostfile")
def the_hostfile_is_there(accelerate: Accelerate) -> Iterator[Violation]:
    """The hostfile must exist on the machine where you launch.

    Without it: DeepSpeed reports `Unable to find hostfile, will proceed with training with local resources only`
    and trains on this machine only, with a different batch; mpirun stops.
    Why: DeepSpeed treats a missing hostfile as a single machine.
    Instead: give the path relative to the folder where you launch; an absolute path is safer.
    Source: seen with DeepSpeed 0.19.8; deepspeed/launcher/runner.py, `fetch_hostfile`
    """
    key = accelerate.hostfile_named
    needed = accelerate.launcher is not None or _by_mpi(accelerate)
    if key and needed and accelerate.programs is not None and accelerate.hostfile is None:
        yield accelerate.wrong(
            key,
            say("file {path} not found here", path=accelerate.get(key)),
            remedy("correct the path, or create the file with a line like node1 slots=8 for each host"),
        )


@rule("TW684", level=Level.ERROR, field=_FILTERS[1])
def filters_name_what_the_hostfile_has(accelerate: Accelerate) -> Iterator[Violation]:
    """deepspeed_inclusion_filter and deepspeed_exclusion_filter must name hosts and slots of the hostfile.

    Without it: `Hostname 'node3' not found in hostfile`, or `No slot '8' specified on host 'node1'`, before
    anything starts. If both filters are set, accelerate silently passes only the exclusion filter.
    Why: a filter selects from the hosts and slots in the hostfile; slots are numbered from 0.
    Instead: for example, node1@node2:0,1 selects all of node1 and two slots of node2.
    Source: seen with DeepSpeed 0.19.8; deepspeed/launcher/runner.py, `parse_resource_filter`
    """
    if accelerate.hostfile is None or accelerate.launcher is None:
        return
    _, text = accelerate.hostfile
    slots = {match[1]: int(match[2]) for line in text.splitlines() if (match := _SLOTS.search(line.strip()))}
    key = next((key for key in _FILTERS if accelerate.get(key)), None)
    value = accelerate.get(key) if key else None
    if key is None or not isinstance(value, str) or not slots:
        return
    for node in value.split("@"):
        host, _, numbers = node.strip().partition(":")
        beyond = [n for n in numbers.split(",") if n.strip().isdecimal() and int(n) >= slots.get(host, 0)]
        if host not in slots:
            yield accelerate.wrong(
                key, say("{host} is not in the hostfile, which lists {hosts}", host=host, hosts=", ".join(slots))
            )
        elif beyond:
            yield accelerate.wrong(
                key,
                say(
                    "{host} has slots 0 to {last}, but no slot {slot}",
                    host=host,
                    last=slots[host] - 1,
                    slot=beyond[0].strip(),
                ),
            )


@rule("TW685", level=Level.WARNING, field="mpirun_config.mpirun_hostfile")
def mpis_hosts_hold_the_ranks(accelerate: Accelerate) -> Iterator[Violation]:
    """The MPI hostfile must list num_machines hosts, with enough slots for the ranks of each.

    Without it: Open MPI stops with `There are not enough slots available in the system to satisfy the slots that
    were requested`; other MPI implementations place the ranks on the hosts that are listed.
    Why: accelerate requests num_processes ranks, num_processes // num_machines on each host.
    Instead: write one line per machine: `node1 slots=4` for Open MPI, `node1:4` for Intel MPI and MPICH.
    Source: read in accelerate 1.15.0 (`prepare_simple_launcher_cmd_env`);
    https://docs.open-mpi.org/en/main/launching-apps/scheduling.html
    """
    if accelerate.hostfile is None or not _by_mpi(accelerate) or accelerate.world is None:
        return
    path, text = accelerate.hostfile
    lines = text.splitlines()
    found = [(n, m) for n, line in enumerate(lines, start=1) if (m := _MPI.search(line.strip()))]
    hosts = {match[1] for _, match in found}
    if len(hosts) != accelerate.machines:
        yield violation(
            "hosts in the hostfile: {hosts}; num_machines: {machines}",
            remedy("one line for each machine"),
            hosts=len(hosts),
            machines=accelerate.machines,
            place=Place(file=path, line=1),
        )
        return
    ranks = accelerate.world // accelerate.machines
    for number, match in found:
        slots = match[2] or match[3]
        if slots and int(slots) < ranks:
            yield violation(
                "{host} has {slots} slots, but gets {ranks} ranks",
                remedy("correct the slots, or num_processes"),
                host=match[1],
                slots=int(slots),
                ranks=ranks,
                place=Place(file=path, line=number, width=max(1, match.end()), source=lines[number - 1]),
            )


@rule("TW686", level=Level.ERROR, field=_LAUNCHER)
def deepspeeds_mpi_launchers_refuse_accelerate(accelerate: Accelerate) -> Iterator[Violation]:
    """deepspeed_multinode_launcher must not be openmpi, mpich or mvapich.

    Without it: `openmpi backend does not support limiting num nodes/gpus`, or `… does not support worker
    include/exclusion`, before anything starts.
    Why: with every launch, accelerate passes --num_gpus, or a filter instead; these launchers reject both.
    Instead: use pdsh; or standard, with `accelerate launch --machine_rank N` on each machine; or mpirun, with
    torchrun's environment variables set by hand.
    Source: seen with DeepSpeed 0.19.8 and accelerate 1.15.0; deepspeed/launcher/multinode_runner.py,
    `validate_args`
    """
    launcher = accelerate.launcher
    if launcher in _REFUSING and accelerate.hostfile_named:
        yield accelerate.wrong(
            _LAUNCHER,
            say("{launcher} rejects --num_gpus and filters, which accelerate passes to it", launcher=launcher),
            remedy("set deepspeed_multinode_launcher to standard or pdsh", {_LAUNCHER: "standard"}),
        )


def _by_mpi(accelerate: Accelerate) -> bool:
    return accelerate.hostfile_named == "mpirun_config.mpirun_hostfile"
