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
    """Keys of parallelism_config carry its name: parallelism_config_tp_size.

    Without it: `tp_size: 2` is ignored without a word, and every size stays 1.
    Why: accelerate adds the prefix for fsdp, fp8 and dynamo, and not here.
    Instead: parallelism_config_tp_size: 2
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
    """The sizes of parallelism_config multiplied give num_processes.

    Without it: `ParallelismConfig total_size (4) does not match num_processes (2)`, or from torch `Mesh should not be
    bigger than default world size 2`, on every rank after the imports.
    Why: every rank has one place in the grid of all dimensions.
    Instead: data parallel sizes that fill what tensor and context parallelism leave.
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
            "{product} = {total}, and num_processes is {world}",
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
    """Under FSDP 2, dp_shard_size or cp_size is larger than 1.

    Without it: `FSDP is enabled but the parallelism config has no dimension for FSDP to shard across` on every rank,
    after the imports.
    Why: with tensor parallelism over all ranks, nothing is left to shard over; sizes that are all 1 become plain data
    parallelism.
    Instead: a smaller parallelism_config_tp_size, and the rest as dp_shard_size.
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
            remedy("set parallelism_config_dp_shard_size to the ranks that tensor parallelism leaves"),
        )


def _sizes(accelerate: Accelerate) -> dict[str, int]:
    """The sizes that are given and act, by dimension; empty where one of them is no positive number."""
    section = accelerate.section("parallelism_config")
    given = {name: section[f"{_PREFIX}{name}_size"] for name in _SIZES if f"{_PREFIX}{name}_size" in section}
    return given if all(type(size) is int and size > 0 for size in given.values()) else {}
