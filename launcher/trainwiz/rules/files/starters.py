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
    """The program that starts ranks on the other machines is installed where the launch is typed.

    Without it: `launcher 'pdsh' not installed.` or `No such file or directory: 'ssh'` from DeepSpeed; with
    mpirun_config `mpirun or mpiexec were not found. Ensure that Intel MPI, Open MPI, or MVAPICH are installed.`
    Why: accelerate hands the launch over: to pdsh for DeepSpeed over several machines, where nothing else is said, and
    DeepSpeed tries every first host by ssh before; to MPI for CPU ranks with a hostfile.
    Instead: install it there; or deepspeed_multinode_launcher: standard, and `accelerate launch --machine_rank N` on
    each machine. Files are also checked elsewhere, so `check` looks for it with `--machine here` only, `launch` always.
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
                    "{launcher} starts the other machines, and needs on this one: {programs}",
                    launcher=launcher,
                    programs=", ".join(missing),
                ),
                remedy("install it, or set deepspeed_multinode_launcher: standard", {_LAUNCHER: "standard"}),
            )
    elif _by_mpi(accelerate) and not {"mpirun", "mpiexec"} & here:
        yield accelerate.wrong(
            "mpirun_config.mpirun_hostfile",
            say("MPI starts the ranks, and there is neither mpirun nor mpiexec here"),
            remedy("install Open MPI, MPICH or Intel MPI"),
        )


@rule("TW683", level=Level.ERROR, field="deepspeed_config.deepspeed_hostfile")
def the_hostfile_is_there(accelerate: Accelerate) -> Iterator[Violation]:
    """The hostfile that is named is there, where the launch is typed.

    Without it: DeepSpeed says `Unable to find hostfile, will proceed with training with local resources only` and
    trains on this machine alone, with another batch; mpirun stops.
    Why: a missing hostfile means a single machine to DeepSpeed.
    Instead: the path as seen from the folder where the launch is typed; an absolute one is surer.
    Source: seen with DeepSpeed 0.19.8; deepspeed/launcher/runner.py, `fetch_hostfile`
    """
    key = accelerate.hostfile_named
    needed = accelerate.launcher is not None or _by_mpi(accelerate)
    if key and needed and accelerate.programs is not None and accelerate.hostfile is None:
        yield accelerate.wrong(
            key,
            say("there is no file {path} here", path=accelerate.get(key)),
            remedy("correct the path, or make the file: node1 slots=8 in each line"),
        )


@rule("TW684", level=Level.ERROR, field=_FILTERS[1])
def filters_name_what_the_hostfile_has(accelerate: Accelerate) -> Iterator[Violation]:
    """deepspeed_inclusion_filter and deepspeed_exclusion_filter name hosts and slots of the hostfile.

    Without it: `Hostname 'node3' not found in hostfile`, or `No slot '8' specified on host 'node1'`, before anything
    starts. Of both filters, accelerate hands on the exclusion only, and says nothing.
    Why: a filter picks from what the hostfile has; slots count from 0.
    Instead: node1@node2:0,1 takes all of node1, and two slots of node2.
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
                key, say("{host} is not in the hostfile, which has {hosts}", host=host, hosts=", ".join(slots))
            )
        elif beyond:
            yield accelerate.wrong(
                key,
                say(
                    "{host} has the slots 0 to {last}, and no {slot}",
                    host=host,
                    last=slots[host] - 1,
                    slot=beyond[0].strip(),
                ),
            )


@rule("TW685", level=Level.WARNING, field="mpirun_config.mpirun_hostfile")
def mpis_hosts_hold_the_ranks(accelerate: Accelerate) -> Iterator[Violation]:
    """MPI's hostfile names num_machines hosts, with slots for the ranks of each.

    Without it: `There are not enough slots available in the system to satisfy the slots that were requested` from Open
    MPI; other MPIs put the ranks on the hosts that there are.
    Why: accelerate asks for num_processes ranks, num_processes // num_machines on each host.
    Instead: a line for each machine: `node1 slots=4` for Open MPI, `node1:4` for Intel MPI and MPICH.
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
            "the hostfile names hosts: {hosts}, and num_machines is {machines}",
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
                "{host} has {slots} slots, and gets {ranks} ranks",
                remedy("correct its slots, or num_processes"),
                host=match[1],
                slots=int(slots),
                ranks=ranks,
                place=Place(file=path, line=number, width=max(1, match.end()), source=lines[number - 1]),
            )


@rule("TW686", level=Level.ERROR, field=_LAUNCHER)
def deepspeeds_mpi_launchers_refuse_accelerate(accelerate: Accelerate) -> Iterator[Violation]:
    """deepspeed_multinode_launcher is none of openmpi, mpich and mvapich.

    Without it: `openmpi backend does not support limiting num nodes/gpus`, or `… does not support worker
    include/exclusion`, before anything starts.
    Why: accelerate hands on --num_gpus, or a filter in its place, with every launch; these launchers refuse both.
    Instead: pdsh; standard, with `accelerate launch --machine_rank N` on each machine; or mpirun with torchrun's
    variables set by hand.
    Source: seen with DeepSpeed 0.19.8 and accelerate 1.15.0; deepspeed/launcher/multinode_runner.py, `validate_args`
    """
    launcher = accelerate.launcher
    if launcher in _REFUSING and accelerate.hostfile_named:
        yield accelerate.wrong(
            _LAUNCHER,
            say("{launcher} refuses what accelerate hands on: --num_gpus, or a filter", launcher=launcher),
            remedy("set deepspeed_multinode_launcher: standard, or pdsh", {_LAUNCHER: "standard"}),
        )


def _by_mpi(accelerate: Accelerate) -> bool:
    return accelerate.hostfile_named == "mpirun_config.mpirun_hostfile"
