"""The rules, by subject: TW1xx environment, TW2xx precision, TW3xx sharding and offload, TW4xx batch and schedule,
TW5xx checkpoint and data, TW6xx cluster and launch."""

from __future__ import annotations

from trainwiz.findings import REGISTRY, Rule

FILES = "TW52"
"""What the ids of the rules on generated files begin with; generating them again satisfies all of these."""


def load() -> tuple[Rule, ...]:
    """Every rule, by id."""
    # Importing a module registers its rules.
    from trainwiz.rules import (  # noqa: F401
        checkpoint,
        cluster,
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
        sharding,
        toolchain,
    )

    return tuple(sorted(REGISTRY.values(), key=lambda r: r.id))
