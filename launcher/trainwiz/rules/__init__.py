"""The rules, by subject: TW1xx environment, TW2xx precision, TW3xx sharding and offload, TW4xx batch and schedule,
TW5xx checkpoint and data, TW6xx cluster and launch, TW7xx a user's own script."""

from __future__ import annotations

from trainwiz.findings import REGISTRY, Rule

SCRIPTS = "TW7"
"""What the ids of the rules on training scripts begin with."""
FILES = "TW52"
"""What the ids of the rules on generated files begin with; generating them again satisfies all of these."""


def load() -> tuple[Rule, ...]:
    """Every rule, by id."""
    of_plans()
    of_scripts()
    of_configurations()
    return tuple(sorted(REGISTRY.values(), key=lambda r: r.id))


def of_plans() -> tuple[Rule, ...]:
    """The rules on plans and machines, by id: all that a launch asks, without what only other files need."""
    # Importing a module registers its rules.
    from trainwiz.rules import (  # noqa: F401
        adapters,
        checkpoint,
        cluster,
        colossalai,
        compiling,
        data,
        environment,
        equation,
        files,
        machines,
        memory,
        offload,
        packages,
        precision,
        schedule,
        settings,
        sharding,
        toolchain,
    )

    facts = {"plan", "machine", "project", "estimate"}
    return tuple(sorted((r for r in REGISTRY.values() if set(r.needs) <= facts), key=lambda r: r.id))


def of_scripts() -> tuple[Rule, ...]:
    """The rules on training scripts, by id. They need nothing of plans, so that `lint` starts fast."""
    from trainwiz.rules import (  # noqa: F401
        accumulation,
        boosting,
        divergence,
        evaluation,
        gradients,
        hot_loop,
        leftovers,
        resuming,
        saving,
        scheduling,
        syncing,
    )

    return tuple(sorted((r for r in REGISTRY.values() if r.id.startswith(SCRIPTS)), key=lambda r: r.id))


def of_configurations() -> tuple[Rule, ...]:
    """The rules on files of accelerate and DeepSpeed, by id."""
    from trainwiz.rules.foreign import (  # noqa: F401
        batches,
        deepspeed_block,
        deepspeed_file,
        deepspeed_offload,
        features,
        fsdp,
        heads,
        inert,
        launchers,
        optimizers,
        pairs,
        parallelism,
        parameters,
        reading,
        starting,
        types,
        values,
        world,
        wrapping,
    )

    facts = {"document", "accelerate", "deepspeed"}
    return tuple(sorted((r for r in REGISTRY.values() if facts & set(r.needs)), key=lambda r: r.id))
