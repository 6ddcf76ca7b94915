"""Ways to start that are neither torchrun nor one process: SageMaker, Megatron, hostfiles, compilers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from trainwiz.config import Accelerate
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import DYNAMO_BACKENDS, knows_keys_of
from trainwiz.finding import Level, Place, Violation, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule

_SAGEMAKER_NEEDS = ("ec2_instance_type", "iam_role_name")
_MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_LINE = re.compile(r"^(\S+)\s+slots=(\d+)")
"""deepspeed/launcher/runner.py, `_parse_hostfile` (0.19.8)."""


@rule("TW677", level=Level.ERROR, field="compute_environment")
def sagemaker_files_are_launched_by_another_version(accelerate: Accelerate) -> Iterator[Violation]:
    """accelerate 1.15 cannot launch SageMaker files.

    Without it: the launch stops with `'SageMakerConfig' object has no attribute 'parallelism_config'`, before
    anything is submitted.
    Why: the launcher reads parallelism_config from every file, but only files for LOCAL_MACHINE have it.
    Instead: submit with an older accelerate, or create the training job with the sagemaker package itself.
    Source: seen with accelerate 1.15.0; `_validate_launch_command` in accelerate/commands/launch.py
    """
    if accelerate.get("compute_environment") != "AMAZON_SAGEMAKER":
        return
    if (1, 15) <= accelerate.version < (1, 16):
        yield accelerate.wrong("compute_environment", say("accelerate 1.15 stops on any AMAZON_SAGEMAKER file"))


@rule("TW678", level=Level.ERROR, field="compute_environment")
def sagemaker_has_a_machine_and_a_role(accelerate: Accelerate) -> Iterator[Violation]:
    """A SageMaker file must set ec2_instance_type and iam_role_name, and must not use a quoted 'NO'.

    Without it: `SageMakerConfig.__init__() missing 1 required positional argument: 'iam_role_name'`; with a quoted
    'NO', `unknown keys (['num_processes'])`, a key that accelerate itself adds.
    Why: these two keys have no default; for 'NO', accelerate sets one process, a setting that SageMaker files do
    not allow.
    Instead: set both keys, and use DATA_PARALLEL, MODEL_PARALLEL or an unquoted NO.
    Source: seen with accelerate 1.15.0; accelerate/commands/config/config_args.py
    """
    if accelerate.get("compute_environment") != "AMAZON_SAGEMAKER":
        return
    missing = [key for key in _SAGEMAKER_NEEDS if not accelerate.get(key)]
    if missing:
        yield accelerate.wrong("compute_environment", say("a SageMaker file needs {keys}", keys=", ".join(missing)))
    if accelerate.get("distributed_type") == "NO":
        yield accelerate.wrong(
            "distributed_type",
            say("with a quoted 'NO', accelerate adds a key that it then rejects"),
            remedy("write it without quotes: NO"),
        )


@rule("TW679", level=Level.ERROR, field="dynamo_config.dynamo_backend")
def the_compiler_is_one_of_accelerates(accelerate: Accelerate) -> Iterator[Violation]:
    """dynamo_backend must be a backend that accelerate knows, dynamo_mode a mode that torch knows.

    Without it: `ValueError: Unknown dynamo backend: INDUCTR`, before any process starts; `Unrecognized
    mode=max_autotune` from torch.compile when the model is prepared.
    Why: accelerate has its own list of backends, in capitals, and passes the mode on without checking it.
    Instead: use INDUCTOR or NO for the backend; default, reduce-overhead, max-autotune or
    max-autotune-no-cudagraphs for the mode.
    Source: seen with accelerate 1.15.0 and torch 2.13
    """
    for key in ("dynamo_backend", "backend"):
        path = f"dynamo_config.{key}"
        value = accelerate.get(path)
        if value is None or value is False or str(value).upper() in DYNAMO_BACKENDS:
            continue
        if not knows_keys_of(accelerate.version) or accelerate.kind in ("DEEPSPEED", "XLA"):
            continue
        near = nearest(str(value).upper(), DYNAMO_BACKENDS)
        fix = remedy("did you mean {key}?", {path: near}, key=near) if near else None
        yield accelerate.wrong(path, say("accelerate has no dynamo backend {name}", name=str(value)), fix)
    for key in ("dynamo_mode", "mode"):
        path = f"dynamo_config.{key}"
        value = accelerate.get(path)
        acts = accelerate.kind not in ("DEEPSPEED", "XLA") and accelerate.get("dynamo_config.dynamo_backend")
        if acts and isinstance(value, str) and value not in _MODES:
            near = nearest(value, _MODES)
            yield accelerate.wrong(
                path,
                say("{key} is {value}; it must be one of {choices}", key=key, value=value, choices=", ".join(_MODES)),
                remedy("did you mean {key}?", {path: near}, key=near) if near else None,
            )


@rule("TW384", level=Level.ERROR, field="megatron_lm_config")
def megatrons_sizes_divide_the_world(accelerate: Accelerate) -> Iterator[Violation]:
    """The product of Megatron's tensor, pipeline and context sizes must divide num_processes.

    Without it: every rank fails after the imports with Megatron's `RuntimeError: world_size (8) is not divisible by
    6`.
    Why: each copy of the model takes that many ranks; data parallelism uses the remaining factor.
    Instead: use sizes whose product divides num_processes.
    Source: seen by hand with megatron-core 0.16.1 (`initialize_model_parallel` in megatron/core/parallel_state.py),
    which trainwiz's tests do not have
    """
    world = accelerate.world
    if accelerate.kind != "MEGATRON_LM" or world is None:
        return
    keys = ("megatron_lm_tp_degree", "megatron_lm_pp_degree", "megatron_lm_context_parallel_size")
    given = {key: accelerate.get(f"megatron_lm_config.{key}", 1) for key in keys}
    if not all(type(size) is int and size > 0 for size in given.values()) or world % math.prod(given.values()) == 0:
        return
    product = " × ".join(str(size) for size in given.values() if size > 1)
    yield accelerate.wrong(
        "megatron_lm_config",
        say(
            "one model takes {product} = {total} ranks, but num_processes {world} is not a multiple of that",
            product=product,
            total=math.prod(given.values()),
            world=world,
        ),
    )


@rule("TW680", level=Level.ERROR, field="deepspeed_config.deepspeed_hostfile")
def a_hostfile_names_hosts_and_slots(accelerate: Accelerate) -> Iterator[Violation]:
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
        words, match = line.strip(), _LINE.search(line.strip())
        place = Place(file=path, line=number, width=max(1, len(line.rstrip())), source=line)
        if not words or words.startswith("#"):
            continue
        if not match:
            right = f"{words.replace(':', ' ').split()[0]} slots=N"
            yield violation(
                "{line} is not in the form `node1 slots=8`",
                remedy("write {line}", line=right),
                line=repr(words),
                place=place,
            )
        elif match[1] in seen:
            yield violation(
                "{host} is already listed in line {first}",
                remedy("delete one of them"),
                host=match[1],
                first=seen[match[1]],
                place=place,
            )
        else:
            seen[match[1]] = number
    if not any(line.strip() and not line.strip().startswith("#") for line in text.splitlines()):
        yield violation("the hostfile lists no hosts", place=Place(file=path, line=1))


@rule("TW681", level=Level.WARNING, field="deepspeed_config.deepspeed_hostfile")
def the_hostfile_is_the_world(accelerate: Accelerate) -> Iterator[Violation]:
    """The hostfile must list num_machines hosts, each with enough slots for its ranks.

    Without it: DeepSpeed starts num_processes // num_machines ranks on every host in the file, regardless of the
    number of hosts and of their slots: the world size is not the planned one, or several ranks share a GPU.
    Why: accelerate passes --num_gpus, which overrides the slots; it does not pass the number of machines.
    Instead: write one line per machine, with as many slots as it has ranks.
    Source: accelerate/utils/launch.py, `prepare_deepspeed_cmd_env` (1.15); deepspeed/launcher/runner.py (0.19.8)
    """
    # With a filter, the slots that it picks are the ranks.
    filtered = any(accelerate.get(f"deepspeed_config.deepspeed_{way}_filter") for way in ("inclusion", "exclusion"))
    if accelerate.hostfile is None or accelerate.world is None or accelerate.launcher is None or filtered:
        return
    path, text = accelerate.hostfile
    slots = {match[1]: int(match[2]) for line in text.splitlines() if (match := _LINE.search(line.strip()))}
    ranks = accelerate.world // accelerate.machines
    where, place = "deepspeed_config.deepspeed_hostfile", Place(file=path, line=1)
    if slots and len(slots) != accelerate.machines:
        yield violation(
            "hosts in the hostfile: {hosts}; num_machines: {machines}; {world} ranks would start",
            remedy("one line for each machine"),
            hosts=len(slots),
            machines=accelerate.machines,
            world=len(slots) * ranks,
            where=where,
            place=place,
        )
    few = next((host for host, count in slots.items() if count < ranks), None)
    if few:
        yield violation(
            "{host} has {slots} slots, but gets {ranks} ranks",
            remedy("correct the slots, or num_processes"),
            host=few,
            slots=slots[few],
            ranks=ranks,
            where=where,
            place=place,
        )


@rule("TW385", level=Level.ERROR, field="parallelism_config")
def sequence_parallel_ranks_divide_the_world(accelerate: Accelerate) -> Iterator[Violation]:
    """parallelism_config_sp_size must divide num_processes.

    Without it: every rank fails with `world_size (4) is not divisible by sequence_parallel_size 3` after the model
    is built.
    Why: each group of that many ranks shares one sequence.
    Instead: use a size that divides num_processes and the number of the model's attention heads; it must also
    divide the sequence length.
    Source: seen with DeepSpeed 0.19.8
    """
    path = "parallelism_config.parallelism_config_sp_size"
    size, world = accelerate.get(path), accelerate.world
    if accelerate.kind != "DEEPSPEED" or type(size) is not int or size < 2 or world is None or world % size == 0:
        return
    yield accelerate.wrong(
        path,
        say("sp_size {size} does not divide num_processes {world}", size=size, world=world),
        remedy("set it to a divisor of {world}", world=world),
    )


@rule("TW386", level=Level.ERROR, field="parallelism_config")
def a_sequence_is_split_in_one_way(accelerate: Accelerate) -> Iterator[Violation]:
    """Use context parallelism or sequence parallelism, not both; cp_comm_strategy must be valid.

    Without it: every rank fails after the imports with `Context Parallelism (CP) and Sequence Parallelism (SP) are
    mutually exclusive`, or `Invalid cp_comm_strategy: ring. Must be one of 'allgather' or 'alltoall'`.
    Why: cp is torch's ring attention under FSDP 2, sp is DeepSpeed's Ulysses; both split the same dimension.
    Instead: use cp_size with FSDP 2, or sp_size with DEEPSPEED.
    Source: seen with accelerate 1.15.0; accelerate/parallelism_config.py
    """
    prefix = "parallelism_config.parallelism_config_"
    sizes = [accelerate.get(f"{prefix}{name}_size", 1) for name in ("cp", "sp")]
    if not all(type(size) is int for size in sizes):
        return
    if min(sizes) > 1:
        yield accelerate.wrong(
            f"{prefix}sp_size",
            say("cp_size {cp} and sp_size {sp} cannot be combined", cp=sizes[0], sp=sizes[1]),
            remedy("set one of them to 1", {f"{prefix}sp_size": 1}),
        )
    way = accelerate.get(f"{prefix}cp_comm_strategy")
    if sizes[0] > 1 and way is not None and way not in ("allgather", "alltoall"):
        yield accelerate.wrong(
            f"{prefix}cp_comm_strategy",
            say("cp_comm_strategy is {way}; it must be allgather or alltoall", way=str(way)),
            remedy("write {key}", {f"{prefix}cp_comm_strategy": "allgather"}, key="allgather"),
        )
