"""Processes, machines and GPUs of an accelerate file."""

from __future__ import annotations

import re

from trainwiz.config import Accelerate
from trainwiz.finding import Level, Violation, Violations, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule
from trainwiz.shell_words import quoted

_BY_TORCHRUN = ("MULTI_", "FSDP", "DEEPSPEED", "MEGATRON_LM")
_MOST_LISTED = 3
_PARTS, _BYTE = 4, 255
"""Of an IPv4 address: its numbers, and the largest of them."""


@rule("TW663", level=Level.ERROR, field="gpu_ids")
def there_is_a_gpu_id_for_each_process(accelerate: Accelerate) -> Violations:
    """gpu_ids must list a different GPU for each process on the machine.

    Without it: two processes share a GPU, and NCCL stops with `Duplicate GPU detected`; a single id under MULTI_GPU
    stops immediately with `Less than two GPU ids were configured`; a repeated id leaves no GPU at all.
    Why: gpu_ids becomes CUDA_VISIBLE_DEVICES; with too few ids, process 2 of 4 finds no third GPU; CUDA treats a
    list with a repeated number as invalid.
    Instead: list one id per process, or write gpu_ids: all
    Source: the second seen with accelerate 1.15.0; the first read in NCCL's source, the last in
    torch's (`_parse_visible_devices` in torch/cuda/__init__.py)
    """
    value, world = accelerate.get("gpu_ids"), accelerate.world
    if not isinstance(value, str) or value == "all" or world is None or not _distributed(accelerate):
        return
    ids, here = [i.strip() for i in value.split(",") if i.strip()], world // accelerate.machines
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice is not None:
        fix = remedy("list {processes} different GPUs, or write gpu_ids: all", {"gpu_ids": "all"}, processes=here)
        yield violation("gpu_ids {ids} lists GPU {id} twice; CUDA then shows no GPU", fix, ids=value, id=twice)
    elif len(ids) < here:
        yield violation(
            "gpu_ids {ids} lists {n} GPU(s) for {processes} processes on each machine",
            remedy("list {processes} GPUs, or write gpu_ids: all", {"gpu_ids": "all"}, processes=here),
            ids=value,
            n=len(ids),
            processes=here,
        )


@rule("TW667", level=Level.WARNING, field="num_processes")
def cpu_processes_need_a_starter(accelerate: Accelerate) -> Violations:
    """`accelerate launch` starts only one process for MULTI_CPU and NO, regardless of num_processes.

    Without it: only one process trains, with exit code 0 and no message; `accelerate test` reports success.
    Why: on the CPU, accelerate starts several processes only through mpirun, and only if mpirun_config has a hostfile.
    Instead: use `trainwiz launch --config FILE SCRIPT.py`, which starts all of them; or use torchrun or mpirun.
    Source: seen with accelerate 1.15.0; https://github.com/huggingface/accelerate/issues/2741
    """
    world = accelerate.world
    hostfile = accelerate.get("mpirun_config.mpirun_hostfile")
    if accelerate.kind in ("NO", "MULTI_CPU") and world and world > 1 and not hostfile and not accelerate.on_sagemaker:
        yield violation(
            "under {kind}, accelerate launch starts 1 process, not {world}",
            remedy(
                "start them with `trainwiz launch --config {file} SCRIPT.py`, torchrun or mpirun",
                file=quoted(accelerate.document.path),
            )
            if accelerate.get("num_machines") in (None, 1)
            else remedy("start them with torchrun or mpirun, on each machine"),
        )


@rule("TW668", level=Level.WARNING, field="num_processes")
def the_number_of_processes_is_given(accelerate: Accelerate) -> Violations:
    """An accelerate file for distributed training should set num_processes.

    Without it: accelerate stops with `You need to manually pass in --num_processes using this config yaml.`
    Why: when there is a config file, accelerate does not count the GPUs.
    Instead: set num_processes to the number of GPUs on all machines; or pass --num_processes at every launch.
    Source: seen with accelerate 1.15.0
    """
    if accelerate.kind not in ("", "NO") and not accelerate.on_sagemaker and accelerate.get("num_processes") is None:
        yield violation(
            "num_processes is not set; accelerate launch stops without --num_processes",
            remedy("add num_processes: the number of GPUs on all machines together"),
            where="distributed_type",
        )


@rule("TW671", level=Level.ERROR, field="num_processes")
def machines_share_the_processes(accelerate: Accelerate) -> Violations:
    """num_processes counts the processes on all machines and must be a multiple of num_machines.

    Without it: 3 processes on 2 machines silently become 1 on each; 1 becomes 0, and a bare AssertionError.
    Why: accelerate divides and drops the remainder.
    Instead: set it to GPUs per machine × machines.
    Source: seen with accelerate 1.15.0
    """
    world, machines = accelerate.world, accelerate.machines
    if world is None or machines < 2 or world % machines == 0 or not _distributed(accelerate):
        return
    right = max(1, world // machines) * machines
    fix = remedy("write {low} or {high}", {"num_processes": right}, low=right, high=right + machines)
    each = world // machines
    yield violation("num_processes {world} on {machines} machines becomes {each} per machine", fix, each=each)


@rule("TW672", level=Level.ERROR, field="machine_rank")
def a_machine_rank_is_in_range(accelerate: Accelerate) -> Violations:
    """machine_rank must be between 0 and num_machines - 1.

    Without it: the machines find each other; then machine 0 waits for the missing rank, and the others wait for
    machine 0, for 15 minutes: `wait timeout after 900000ms, keys: … role_info/1`.
    Why: accelerate passes the number to torchrun without checking it.
    Instead: use 0 on the machine whose address is main_process_ip, then 1, 2, …
    Source: seen with accelerate 1.15.0 and torchrun 2.13
    """
    rank, machines = accelerate.get("machine_rank"), accelerate.machines
    if type(rank) is int and machines > 1 and not 0 <= rank < machines:
        yield violation(
            "machine_rank is {rank}; with {machines} machines it must be 0 to {last}", rank=rank, last=machines - 1
        )


@rule("TW673", level=Level.HINT, field="machine_rank")
def each_machine_has_its_own_rank(accelerate: Accelerate) -> Violations:
    """A file that sets machine_rank cannot be used unchanged on several machines.

    Without it: two machines with the same rank 0 wait for 15 minutes, then stop with `wait timeout after 900000ms`.
    Why: machine_rank is in the file, and files are copied from machine to machine.
    Instead: run `accelerate launch --machine_rank N` on each machine; the command line overrides the file.
    Source: seen with accelerate 1.15.0 on two hosts: DistStoreError after 912 s
    """
    if accelerate.machines < 2 or not _distributed(accelerate) or _by_ssh(accelerate):
        return
    rank = accelerate.get("machine_rank", 0)
    if type(rank) is int and 0 <= rank < accelerate.machines:
        others = [n for n in range(accelerate.machines) if n != rank]
        yield violation(
            "this file is for machine rank {rank} of {machines} machines",
            remedy("on the other machines, launch with --machine_rank {others}", others=_listed(others)),
            where="machine_rank" if accelerate.has("machine_rank") else "num_machines",
            rank=rank,
        )


@rule("TW674", level=Level.WARNING, field="main_process_ip")
def several_machines_have_an_address(accelerate: Accelerate) -> Violations:
    """Multiple machines need main_process_ip and main_process_port for the rendezvous.

    Without it: torchrun looks for a host called None; with mpirun, the launch stops with `you need to specify the
    main process IP`.
    Why: accelerate writes the missing value into the rendezvous endpoint as it is.
    Instead: set the address of machine 0 as the other machines see it, and a port that is open between them.
    Source: seen with accelerate 1.15.0 (rdzv_endpoint None:29500)
    """
    if accelerate.machines < 2 or accelerate.on_sagemaker or _by_ssh(accelerate) or accelerate.kind in ("", "XLA"):
        return
    if accelerate.get("main_process_ip") in (None, ""):
        fix = remedy("add main_process_ip: the address of machine 0; or launch with --main_process_ip")
        yield violation("{machines} machines, but main_process_ip is not set", fix, where="num_machines")


@rule("TW675", level=Level.ERROR, field="main_process_ip")
def the_address_is_that_of_machine_0(accelerate: Accelerate) -> Violations:
    """main_process_ip must be an address of machine 0 that the other machines can reach.

    Without it: with 127.0.0.1, every machine waits for itself for 15 minutes; a bare number like 1234 is read as
    the address 0.0.4.210; `http://10.0.0.1` and `10.0.0.1:29500` are taken as host names that do not exist.
    Why: a loopback address refers to the local machine; the C library reads numbers as addresses; the port belongs
    in main_process_port.
    Instead: use what `hostname -I` prints on machine 0, or its host name.
    Source: seen with accelerate 1.15.0 and torchrun 2.13; inet_aton(3)
    """
    value = accelerate.get("main_process_ip")
    if accelerate.machines < 2 or value is None:
        return
    address = str(value)
    if address == "localhost" or re.fullmatch(r"127(\.\d+){1,3}|::1|0\.0\.0\.0", address):
        message = say(
            "main_process_ip {address} points each machine to itself, but there are {machines} machines",
            address=address,
            machines=accelerate.machines,
        )
    elif re.fullmatch(r"\d+", address):
        read = ".".join(str(int(address) >> shift & 255) for shift in (24, 16, 8, 0))
        message = say("main_process_ip {address} is read as the address {read}", address=address, read=read)
    elif "/" in address or (re.search(r"\s|[^:]:\d+$", address) and address.count(":") == 1):
        message = say("main_process_ip {address} contains more than an address", address=address)
    elif not isinstance(value, str | int) or isinstance(value, bool) or _is_no_address(address):
        message = say("main_process_ip {address} is not an address", address=address)
    else:
        return
    yield Violation(message, remedy("write the address of machine 0"))


def _is_no_address(address: str) -> bool:
    """Whether dots and digits make no IPv4 address, or letters stand for its digits, as in `x.x.x.x`."""
    parts = address.split(".")
    if re.fullmatch(r"[xX*?]+(\.[xX*?]+){3}", address):
        return True
    digits = re.fullmatch(r"[\d.]+", address) is not None
    return digits and (len(parts) != _PARTS or not all(part.isdecimal() and int(part) <= _BYTE for part in parts))


@rule("TW676", level=Level.WARNING, field="deepspeed_config.deepspeed_hostfile")
def pdsh_needs_a_hostfile(accelerate: Accelerate) -> Violations:
    """DeepSpeed on multiple machines needs a hostfile or the standard launcher.

    Without it: `deepspeed --hostfile None` finds no such file, and silently trains on this machine only.
    Why: pdsh is accelerate's default launcher for DeepSpeed, and without a hostfile it runs locally only.
    Instead: set deepspeed_multinode_launcher: standard and launch on every machine; or set deepspeed_hostfile.
    Source: read in accelerate 1.15.0 (`prepare_deepspeed_cmd_env`) and DeepSpeed 0.19.8 (launcher/runner.py)
    """
    if _by_ssh(accelerate) and not accelerate.get("deepspeed_config.deepspeed_hostfile"):
        key = "deepspeed_config.deepspeed_multinode_launcher"
        yield violation(
            "{launcher} starts {machines} machines, but deepspeed_hostfile is not set: only this machine would train",
            remedy("set deepspeed_multinode_launcher: standard, or set deepspeed_hostfile", {key: "standard"}),
            where="deepspeed_config",
        )


def _listed(numbers: list[int]) -> str:
    shown = [str(n) for n in numbers[:_MOST_LISTED]]
    return ", ".join([*shown, "…"] if len(numbers) > _MOST_LISTED else shown)


def _distributed(accelerate: Accelerate) -> bool:
    return accelerate.kind.startswith(_BY_TORCHRUN) and accelerate.kind != "MULTI_CPU" and not accelerate.on_sagemaker


def _by_ssh(accelerate: Accelerate) -> bool:
    """Whether one machine starts the others, which then do not read this file."""
    return accelerate.launcher not in (None, "nossh")
