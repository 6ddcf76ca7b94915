"""What starts ranks on other machines: pdsh, ssh, MPI, Slurm; their hostfile, and its filters."""

from __future__ import annotations

import re

from trainwiz.config import Accelerate
from trainwiz.engines.deepspeed import LAUNCHER_PROGRAMS, LAUNCHERS_WITHOUT_FILTERS
from trainwiz.finding import Level, Place, Violation, Violations, remedy, violation
from trainwiz.quantities import whole
from trainwiz.rules.registry import rule

STARTERS = (*LAUNCHER_PROGRAMS.values(), "ssh", "mpirun", "mpiexec")
_LAUNCHER = "deepspeed_config.deepspeed_multinode_launcher"
_FILTERS = ("deepspeed_config.deepspeed_exclusion_filter", "deepspeed_config.deepspeed_inclusion_filter")
"""If both are set, accelerate uses the first."""
_SLOTS = re.compile(r"^(\S+)\s+slots=(\d{1,9})")
"""`_parse_hostfile` in deepspeed/launcher/runner.py (0.19.8)."""
_MPI = re.compile(r"^([^\s:#]+)(?:\s*:\s*(\d+)|\s+slots\s*=\s*(\d+))?")


@rule("TW680", level=Level.ERROR, field="deepspeed_config.deepspeed_hostfile")
def a_hostfile_names_hosts_and_slots(accelerate: Accelerate) -> Violations:
    """Each line of a hostfile must be `host slots=N`, and each host may appear only once.

    Without it: DeepSpeed stops with `Hostfile contains a bad entry: node1, unable to proceed with launching`, or
    `Hostfile contains multiple entries for node1`.
    Why: DeepSpeed reads only this format; the format of MPI (a bare name, or node1:8) is different.
    Instead: write node1 slots=8
    Source: seen with DeepSpeed 0.19.8; deepspeed/launcher/runner.py
    """
    if accelerate.hostfile is None or accelerate.launcher is None:
        return
    path, text = accelerate.hostfile
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words, match = line.strip(), _SLOTS.search(line.strip())
        place = Place(file=path, line=number, width=max(1, len(line.rstrip())), source=line)
        if not words or words.startswith("#"):
            continue
        if not match:
            fix = remedy("write {line}", line=f"{words.replace(':', ' ').split()[0]} slots=N")
            yield violation("{line} is not in the form `node1 slots=8`", fix, line=repr(words), place=place)
            seen.setdefault(words, number)
        elif (first := seen.setdefault(match[1], number)) != number:
            fix = remedy("delete one of them")
            yield violation("{host} is already listed in line {first}", fix, host=match[1], first=first, place=place)
    if not seen:
        yield violation("the hostfile lists no hosts", place=Place(file=path, line=1))


@rule("TW681", level=Level.WARNING, field="deepspeed_config.deepspeed_hostfile")
def the_hostfile_is_the_world(accelerate: Accelerate) -> Violations:
    """The hostfile must list num_machines hosts, each with enough slots for its ranks.

    Without it: DeepSpeed starts num_processes // num_machines ranks on every host in the file, regardless of the
    number of hosts and of their slots: the world size is not the planned one, or several ranks share a GPU.
    Why: accelerate passes --num_gpus, which overrides the slots; it does not pass the number of machines.
    Instead: write one line per machine, with as many slots as it has ranks.
    Source: accelerate/utils/launch.py, `prepare_deepspeed_cmd_env` (1.15); deepspeed/launcher/runner.py (0.19.8)
    """
    # With a filter, the selected slots are the ranks.
    filtered = any(accelerate.get(key) for key in _FILTERS)
    if accelerate.hostfile is None or accelerate.world is None or accelerate.launcher is None or filtered:
        return
    slots, ranks = _slots(accelerate.hostfile[1]), accelerate.world // accelerate.machines
    where, place = "deepspeed_config.deepspeed_hostfile", Place(file=accelerate.hostfile[0], line=1)
    if slots and len(slots) != accelerate.machines:
        yield violation(
            "hosts in the hostfile: {hosts}; num_machines: {machines}; {world} ranks would start",
            remedy("one line for each machine"),
            hosts=len(slots),
            world=len(slots) * ranks,
            where=where,
            place=place,
        )
    few = next((host for host, count in slots.items() if count < ranks), None)
    if few:
        yield _too_few(few, slots[few], ranks, where, place)


@rule("TW682", level=Level.ERROR, field=_LAUNCHER)
def what_starts_the_others_is_installed(accelerate: Accelerate) -> Violations:
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
    if launcher in LAUNCHER_PROGRAMS:
        missing = [name for name in (LAUNCHER_PROGRAMS[launcher], "ssh") if name not in here]
        if missing:
            yield violation(
                "{launcher} starts the other machines; missing on this machine: {programs}",
                remedy("install it, or set deepspeed_multinode_launcher: standard", {_LAUNCHER: "standard"}),
                where=_LAUNCHER if accelerate.has(_LAUNCHER) else "num_machines",
                programs=", ".join(missing),
            )
    elif _by_mpi(accelerate) and not {"mpirun", "mpiexec"} & here:
        yield violation(
            "MPI starts the ranks, but neither mpirun nor mpiexec is installed here",
            remedy("install Open MPI, MPICH or Intel MPI"),
            where="mpirun_config.mpirun_hostfile",
        )


@rule("TW683", level=Level.ERROR, field="deepspeed_config.deepspeed_hostfile")
def the_hostfile_is_there(accelerate: Accelerate) -> Violations:
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
        fix = remedy("correct the path, or create the file with a line like node1 slots=8 for each host")
        yield violation("file {path} not found here", fix, where=key, path=accelerate.get(key))


@rule("TW684", level=Level.ERROR, field=_FILTERS[1])
def filters_name_what_the_hostfile_has(accelerate: Accelerate) -> Violations:
    """deepspeed_inclusion_filter and deepspeed_exclusion_filter must name hosts and slots of the hostfile.

    Without it: `Hostname 'node3' not found in hostfile`, or `No slot '8' specified on host 'node1'`, before
    anything starts. If both filters are set, accelerate silently passes only the exclusion filter.
    Why: a filter selects from the hosts and slots in the hostfile; slots are numbered from 0.
    Instead: for example, node1@node2:0,1 selects all of node1 and two slots of node2.
    Source: seen with DeepSpeed 0.19.8; deepspeed/launcher/runner.py, `parse_resource_filter`
    """
    if accelerate.hostfile is None or accelerate.launcher is None:
        return
    slots = _slots(accelerate.hostfile[1])
    key = next((key for key in _FILTERS if accelerate.get(key)), None)
    value = accelerate.get(key) if key else None
    if key is None or not isinstance(value, str) or not slots:
        return
    for node in value.split("@"):
        host, _, numbers = node.strip().partition(":")
        beyond = [n for n in numbers.split(",") if (slot := whole(n.strip())) and slot >= slots.get(host, 0)]
        if host not in slots:
            yield violation(
                "{host} is not in the hostfile, which lists {hosts}", where=key, host=host, hosts=", ".join(slots)
            )
        elif beyond:
            yield violation(
                "{host} has slots 0 to {last}, but no slot {slot}",
                where=key,
                host=host,
                last=slots[host] - 1,
                slot=beyond[0].strip(),
            )


@rule("TW685", level=Level.WARNING, field="mpirun_config.mpirun_hostfile")
def mpis_hosts_hold_the_ranks(accelerate: Accelerate) -> Violations:
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
            place=Place(file=path, line=1),
        )
        return
    ranks = accelerate.world // accelerate.machines
    for number, match in found:
        slots = match[2] or match[3]
        if slots and int(slots) < ranks:
            place = Place(file=path, line=number, width=max(1, match.end()), source=lines[number - 1])
            yield _too_few(match[1], int(slots), ranks, None, place)


@rule("TW686", level=Level.ERROR, field=_LAUNCHER)
def deepspeeds_mpi_launchers_refuse_accelerate(accelerate: Accelerate) -> Violations:
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
    if launcher in LAUNCHERS_WITHOUT_FILTERS and accelerate.hostfile_named:
        fix = remedy("set deepspeed_multinode_launcher to standard or pdsh", {_LAUNCHER: "standard"})
        yield violation("{launcher} rejects --num_gpus and filters, which accelerate passes to it", fix)


def _by_mpi(accelerate: Accelerate) -> bool:
    return accelerate.hostfile_named == "mpirun_config.mpirun_hostfile"


def _slots(hostfile: str) -> dict[str, int]:
    """The slots of each host, as DeepSpeed reads them."""
    return {match[1]: int(match[2]) for line in hostfile.splitlines() if (match := _SLOTS.search(line.strip()))}


def _too_few(host: str, slots: int, ranks: int, where: str | None, place: Place) -> Violation:
    return violation(
        "slots of {host}: {slots}; ranks that start there: {ranks}",
        remedy("correct the slots, or num_processes"),
        host=host,
        slots=slots,
        ranks=ranks,
        where=where,
        place=place,
    )
