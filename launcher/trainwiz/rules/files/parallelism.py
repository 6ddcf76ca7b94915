"""accelerate's parallelism_config: sizes whose product is the world."""

from __future__ import annotations

import math

from trainwiz.config import Accelerate
from trainwiz.config.kinds import PARALLEL
from trainwiz.engines.accelerate import BLOCKS
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule

_PREFIX = "parallelism_config_"
_SIZES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


@rule("TW381", level=Level.WARNING, field="parallelism_config")
def parallel_sizes_have_their_prefix(accelerate: Accelerate) -> Violations:
    """Keys of parallelism_config need its prefix: parallelism_config_tp_size.

    Without it: `tp_size: 2` is silently ignored, and every size stays 1.
    Why: accelerate adds the prefix for fsdp, fp8 and dynamo, but not for parallelism_config.
    Instead: write parallelism_config_tp_size: 2
    Source: seen with accelerate 1.15.0
    """
    _, known = BLOCKS["parallelism_config"]
    for key, value in accelerate.section("parallelism_config").items():
        full = f"{_PREFIX}{key}"
        if full in known:
            path, right = f"parallelism_config.{key}", f"parallelism_config.{full}"
            fix = remedy("write {right}", {path: None, right: value}, right=full)
            yield violation("accelerate ignores {key}; it reads {right}", fix, where=path, key=key, right=full)


@rule("TW360", level=Level.ERROR, field="parallelism_config")
def sizes_are_counts(accelerate: Accelerate) -> Violations:
    """Sizes in parallelism_config must be whole numbers from 1, without quotes; its backends are torch and deepspeed.

    Without it: every rank fails with `tp_size must be at least 1, but got 0` or `cp_backend must be one of ['torch']`.
    Why: accelerate reads the sizes from environment variables, after the launcher has compared them as numbers.
    Instead: write 1 for what is not split.
    Source: seen with accelerate 1.15.0; accelerate/parallelism_config.py
    """
    for name in _SIZES:
        path = f"{PARALLEL}{name}_size"
        value = accelerate.get(path)
        # The launcher compares the others.
        quoted = name in ("dp_replicate", "tp") and isinstance(value, str) and value.isdecimal() and int(value) >= 1
        if accelerate.has(path) and not quoted and not (type(value) is int and value >= 1):
            fix = remedy("delete it", {path: None}) if value is None else None
            yield violation("{key} is {value}; it must be a whole number from 1", fix, where=path)
    for name, backend in (("cp", "torch"), ("sp", "deepspeed")):
        path = f"{PARALLEL}{name}_backend"
        if accelerate.has(path) and accelerate.get(path) != backend:
            fix = remedy("write {backend}", {path: backend}, backend=backend)
            yield violation("{key} is {value}; it must be {backend}", fix, where=path, backend=backend)


@rule("TW382", level=Level.ERROR, field="parallelism_config")
def parallel_sizes_make_up_the_world(accelerate: Accelerate) -> Violations:
    """The product of the sizes in parallelism_config must equal num_processes.

    Without it: every rank fails after the imports with `ParallelismConfig total_size (4) does not match
    num_processes (2)`, or with torch's `Mesh should not be bigger than default world size 2`.
    Why: every rank has one position in the grid of all dimensions.
    Instead: choose data parallel sizes that use up the ranks left by tensor and context parallelism.
    Source: seen with accelerate 1.15.0; accelerate/parallelism_config.py
    """
    sizes, world = _sizes(accelerate), accelerate.world
    # Nothing checks sequence parallelism under DeepSpeed, and all sizes 1 mean plain data parallelism.
    if world is None or not sizes or math.prod(sizes.values()) in (1, world) or sizes.get("sp", 1) > 1:
        return
    total = math.prod(sizes.values())
    others = total // sizes.get("dp_shard", 1)
    key = f"{PARALLEL}dp_shard_size"
    fits = world % others == 0 and (accelerate.has(key) or accelerate.kind == "FSDP")
    yield violation(
        "{product} = {total}, but num_processes is {world}",
        remedy("set parallelism_config_dp_shard_size: {size}", {key: world // others}, size=world // others)
        if fits
        else None,
        total=total,
        product=" × ".join(f"{name} {size}" for name, size in sizes.items()),
    )


@rule("TW383", level=Level.ERROR, field="parallelism_config")
def fsdp_has_ranks_to_shard_over(accelerate: Accelerate) -> Violations:
    """Under FSDP 2, dp_shard_size or cp_size must be larger than 1.

    Without it: every rank fails after the imports with `FSDP is enabled but the parallelism config has no dimension
    for FSDP to shard across`.
    Why: tensor parallelism may use all ranks; with all sizes 1, accelerate uses plain data parallelism.
    Instead: use a smaller parallelism_config_tp_size, and set dp_shard_size to the rest.
    Source: read in accelerate 1.15.0 (`ParallelismConfig._validate_accelerator`)
    """
    sizes = _sizes(accelerate)
    version = accelerate.section("fsdp_config").get("fsdp_version")
    invalid = any(f"{_PREFIX}{name}_size" in accelerate.section("parallelism_config") for name in _SIZES) and not sizes
    if accelerate.kind != "FSDP" or str(version) != "2" or not accelerate.section("parallelism_config") or invalid:
        return
    if sizes.get("dp_shard", 1) == 1 and sizes.get("cp", 1) == 1:
        yield violation(
            "FSDP has no ranks to shard over: dp_shard_size and cp_size are 1, tp_size is {tp}",
            remedy("set parallelism_config_dp_shard_size to the number of ranks left over by tensor parallelism"),
            tp=sizes.get("tp", 1),
        )


@rule("TW384", level=Level.ERROR, field="megatron_lm_config")
def megatrons_sizes_divide_the_world(accelerate: Accelerate) -> Violations:
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
    keys = ("tp_degree", "pp_degree", "context_parallel_size")
    sizes = [accelerate.get(f"megatron_lm_config.megatron_lm_{key}", 1) for key in keys]
    if all(type(size) is int and size > 0 for size in sizes) and world % math.prod(sizes):
        yield violation(
            "one model takes {product} = {total} ranks, but num_processes {world} is not a multiple of that",
            product=" × ".join(str(size) for size in sizes if size > 1),
            total=math.prod(sizes),
        )


@rule("TW385", level=Level.ERROR, field="parallelism_config")
def sequence_parallel_ranks_divide_the_world(accelerate: Accelerate) -> Violations:
    """parallelism_config_sp_size must divide num_processes.

    Without it: every rank builds the model, then fails: `world_size (4) is not divisible by sequence_parallel_size
    3`.
    Why: each group of that many ranks shares one sequence.
    Instead: use a size that divides num_processes, the model's attention heads, and the sequence length.
    Source: seen with DeepSpeed 0.19.8
    """
    size, world = accelerate.size(f"{PARALLEL}sp_size"), accelerate.world
    if accelerate.kind == "DEEPSPEED" and world is not None and world % size:
        yield violation(
            "sp_size {size} does not divide num_processes {world}",
            remedy("set it to a divisor of {world}"),
            where=f"{PARALLEL}sp_size",
            size=size,
        )


@rule("TW386", level=Level.ERROR, field="parallelism_config")
def a_sequence_is_split_in_one_way(accelerate: Accelerate) -> Violations:
    """Use context parallelism or sequence parallelism, not both; cp_comm_strategy must be valid.

    Without it: every rank fails after the imports with `Context Parallelism (CP) and Sequence Parallelism (SP) are
    mutually exclusive`, or `Invalid cp_comm_strategy: ring. Must be one of 'allgather' or 'alltoall'`.
    Why: cp is torch's ring attention under FSDP 2, sp is DeepSpeed's Ulysses; both split the same dimension.
    Instead: use cp_size with FSDP 2, or sp_size with DEEPSPEED.
    Source: seen with accelerate 1.15.0; accelerate/parallelism_config.py
    """
    cp, sp = accelerate.size(f"{PARALLEL}cp_size"), accelerate.size(f"{PARALLEL}sp_size")
    if min(cp, sp) > 1:
        path = f"{PARALLEL}sp_size"
        fix = remedy("set one of them to 1", {path: 1})
        yield violation("cp_size {cp} and sp_size {sp} cannot be combined", fix, where=path, cp=cp, sp=sp)
    path = f"{PARALLEL}cp_comm_strategy"
    way = accelerate.get(path)
    if cp > 1 and way is not None and way not in ("allgather", "alltoall"):
        fix = remedy("write {key}", {path: "allgather"}, key="allgather")
        yield violation("cp_comm_strategy is {way}; it must be allgather or alltoall", fix, where=path, way=str(way))


def _sizes(accelerate: Accelerate) -> dict[str, int]:
    """The given sizes by dimension; empty if one of them is not a positive number."""
    section = accelerate.section("parallelism_config")
    given = {name: section[f"{_PREFIX}{name}_size"] for name in _SIZES if f"{_PREFIX}{name}_size" in section}
    return given if all(type(size) is int and size > 0 for size in given.values()) else {}
