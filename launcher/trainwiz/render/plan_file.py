"""`trainwiz.yaml`, the plan with its reasons, and the JSON Schema that editors check it with."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from trainwiz import plan as plans
from trainwiz import schedulers
from trainwiz.plan import Plan
from trainwiz.render.values import commented

SCHEMA_FILE = ".trainwiz/plan.schema.json"

# The first line is read by editors' YAML language server: completion and checks while typing.
_HEAD = f"""\
yaml-language-server: $schema={SCHEMA_FILE}
The plan of this project: `trainwiz check` checks it, `trainwiz launch` runs it."""


def text(plan: Plan, reasons: Mapping[str, str]) -> str:
    """The plan as YAML; `reasons` by dotted key stand behind the values."""
    values = plan.model_dump(mode="json")
    if not plan.deepspeed:
        del values["deepspeed"]  # few plans have any
    values["cluster"] = _cluster(plan)
    if not values["cluster"]:
        del values["cluster"]  # most run where they are launched
    return commented(values, reasons, _HEAD)


def _cluster(plan: Plan) -> dict[str, Any]:
    """The keys that the plan's scheduler takes, and those that say something else than their default."""
    scheduler = schedulers.of(plan)
    taken = {"kind", "job_name", "grace", *scheduler.keys} if scheduler else set()
    defaults = plans.defaults()
    values = plan.cluster.model_dump(mode="json")
    return {name: value for name, value in values.items() if name in taken or value != defaults[f"cluster.{name}"]}


@functools.cache
def schema() -> str:
    """The JSON Schema of any plan."""
    described = Plan.model_json_schema()
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(described, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
