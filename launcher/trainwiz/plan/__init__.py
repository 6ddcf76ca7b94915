"""What was decided: the one source of truth, kept in `trainwiz.yaml`.

Frozen; unknown keys are refused. `parse` reads a whole plan that a person wrote, `parse_values` some of its values, and
`with_changes` changes values by dotted key (`batch.real_batch_size`). A plan only promises that each value alone is
legal; the rules say whether the values agree with each other and with the machine.
"""

from trainwiz.plan.model import FORMAT_VERSION, Plan, defaults, fields, flat
from trainwiz.plan.problems import unknown_key
from trainwiz.plan.values import dotted, nested, parse, parse_value, parse_values, with_changes

__all__ = [
    "FORMAT_VERSION",
    "Plan",
    "defaults",
    "dotted",
    "fields",
    "flat",
    "nested",
    "parse",
    "parse_value",
    "parse_values",
    "unknown_key",
    "with_changes",
]
