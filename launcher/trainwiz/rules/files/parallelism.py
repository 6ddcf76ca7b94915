"""accelerate's parallelism_config: sizes whose product is the world."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainwiz.config import Accelerate
from trainwiz.engines.accelerate import BLOCKS
from trainwiz.finding import Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_PREFIX = "parallelism_config_"
_SIZES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


@rule("TW381", level=Level.WARNING, field="parallelism_config")
def parallel_sizes_have_their_prefix(accelerate: Accelerate) -> Iterator[Violation]:
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
            yield accelerate.wrong(
                path,
                say("accelerate ignores {key}; it reads {right}", key=key, right=full),
                remedy("write {right}", {path: None, right: value}, right=full),
            )


@rule("TW382", level=Level.ERROR, field="parallelism_config")
def parallel_sizes_make_up_the_world(accelerate: Accelerate) -> Iterator[Violation]:
    """The product of the sizes in parallelism_config must equal num_processes.

    Without it: every rank fails after the imports with `ParallelismConfig total_size (4) does not match
    num_processes (2)`, or with torch's `Mesh should not be bigger than default world size 2`.
    Why: every rank has one position in the grid of all dimensions.
    Instead: choose data parallel sizes that use up the ranks left by tensor and context parallelism.
    Source: seen with accelerate 1.15.0; accelerate/parallelism_config.py
    """
    sizes, world = _sizes(accelerate), accelerate.world
    # Under DeepSpeed, sequence parallelism is checked by nobody, and all sizes 1 mean plain data parallelism.
    if world is None or not sizes or math.prod(sizes.values()) in (1, world) or sizes.get("sp", 1) > 1:
        return
    total = math.prod(sizes.values())
    others = total // sizes.get("dp_shard", 1)
    key = "parallelism_config.parallelism_config_dp_shard_size"
    fits = world % others == 0 and (accelerate.has(key) or accelerate.kind == "FSDP")
    yield accelerate.wrong(
        "parallelism_config",
        say(
            "{product} = {total}, but num_processes is {world}",
            total=total,
            world=world,
            product=" × ".join(f"{name} {size}" for name, size in sizes.items()),
        ),
        remedy("set parallelism_config_dp_shard_size: {size}", {key: world // others}, size=world // others)
        if fits
        else None,
    )


@rule("TW383", level=Level.ERROR, field="parallelism_config")
def fsdp_has_ranks_to_shard_over(accelerate: Accelerate) -> Iterator[Violation]:
    """Under FSDP 2, dp_shard_size or cp_size must be larger than 1.

    Without it: every rank fails after the imports with `FSDP is enabled but the parallelism config has no dimension
    for FSDP to shard across`.
    Why: if tensor parallelism uses all ranks, none are left to shard over. If all sizes are 1, accelerate uses
    plain data parallelism.
    Instead: use a smaller parallelism_config_tp_size, and set dp_shard_size to the rest.
    Source: read in accelerate 1.15.0 (`ParallelismConfig._validate_accelerator`)
    """
    sizes = _sizes(accelerate)
    version = accelerate.section("fsdp_config").get("fsdp_version")
    invalid = any(f"{_PREFIX}{name}_size" in accelerate.section("parallelism_config") for name in _SIZES) and not sizes
    if accelerate.kind != "FSDP" or str(version) != "2" or not accelerate.section("parallelism_config") or invalid:
        return
    if sizes.get("dp_shard", 1) == 1 and sizes.get("cp", 1) == 1:
        yield accelerate.wrong(
            "parallelism_config",
            say(
                "FSDP has no ranks to shard over: dp_shard_size and cp_size are 1, tp_size is {tp}",
                tp=sizes.get("tp", 1),
            ),
            remedy("set parallelism_config_dp_shard_size to the number of ranks that tensor parallelism leaves"),
        )


def _sizes(accelerate: Accelerate) -> dict[str, int]:
    """The sizes that are given and act, by dimension; empty where one of them is no positive number."""
    section = accelerate.section("parallelism_config")
    given = {name: section[f"{_PREFIX}{name}_size"] for name in _SIZES if f"{_PREFIX}{name}_size" in section}
    return given if all(type(size) is int and size > 0 for size in given.values()) else {}
