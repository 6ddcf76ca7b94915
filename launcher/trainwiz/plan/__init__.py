"""What was decided: the one source of truth, kept in `trainwiz.yaml`.

Frozen; unknown keys are refused. `parse` is the way in for anything a person wrote, `with_changes` for changes
by dotted key (`batch.real_batch_size`). A plan only promises that each value alone is legal; whether the values
agree with each other and with the machine is for the rules to say.
"""

from trainwiz.plan.model import FORMAT_VERSION, Plan, fields, flat
from trainwiz.plan.problems import unknown_key
from trainwiz.plan.values import nested, parse, parse_value, with_changes

__all__ = [
    "FORMAT_VERSION",
    "Plan",
    "fields",
    "flat",
    "nested",
    "parse",
    "parse_value",
    "unknown_key",
    "with_changes",
]
