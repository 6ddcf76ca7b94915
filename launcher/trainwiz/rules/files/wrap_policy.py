"""The FSDP wrapping policy of an accelerate file, and the keys that it reads."""

from __future__ import annotations

from trainwiz.config import Accelerate
from trainwiz.finding import Level, Violation, Violations, remedy, safe, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule

_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")


@rule("TW366", level=Level.ERROR, field="fsdp_config.fsdp_transformer_layer_cls_to_wrap")
def layer_classes_have_no_spaces(accelerate: Accelerate) -> Violations:
    """List the classes to wrap in one string, separated by commas without spaces.

    Without it: `Could not find the transformer layer class Linear in the model.` after the model is built.
    Why: accelerate splits the string at the commas and looks for ` Linear` with the space; a YAML list becomes the
    string `['Block', 'Linear']`.
    Instead: write Block,Linear
    Source: seen with accelerate 1.15.0
    """
    path, value = accelerate.fsdp.get("fsdp_transformer_layer_cls_to_wrap", ("", None))
    policy = accelerate.fsdp.get("fsdp_auto_wrap_policy", ("", None))[1]
    if str(policy).upper() != "TRANSFORMER_BASED_WRAP":
        return
    if isinstance(value, list):
        right = ",".join(str(item).strip() for item in value)
        message = say("fsdp_transformer_layer_cls_to_wrap is a list; it must be a string")
    elif isinstance(value, str) and value != "".join(value.split()):
        right = "".join(value.split())
        message = say("the space in {value} becomes part of a class name", value=repr(value))
    else:
        return
    yield Violation(message, safe(remedy("write {value}", {path: right}, value=right)), where=path)


@rule("TW367", level=Level.HINT, field="fsdp_config.fsdp_auto_wrap_policy")
def fsdp_wraps_something(accelerate: Accelerate) -> Violations:
    """FSDP needs an auto-wrap policy to save memory.

    Without it: the whole model is one FSDP unit, and every rank holds all weights at once in forward and backward,
    unless the script passes its own plugin.
    Why: FSDP gathers one unit (usually a layer) at a time. Without a policy, the only unit is the whole model.
    Instead: set fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP; for a model that is not from transformers, also name
    the class of its layers.
    Source: seen with accelerate 1.15.0; https://pytorch.org/docs/stable/fsdp.html
    """
    policy = accelerate.fsdp.get("fsdp_auto_wrap_policy", ("", None))[1]
    if accelerate.kind == "FSDP" and (policy is None or str(policy).upper() == "NO_WRAP"):
        yield violation(
            "without fsdp_auto_wrap_policy, FSDP gathers the whole model at once",
            remedy("set fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP in fsdp_config"),
            where="fsdp_config.fsdp_auto_wrap_policy" if accelerate.has("fsdp_config") else "distributed_type",
        )


@rule("TW371", level=Level.ERROR, field="fsdp_config.fsdp_min_num_params")
def the_smallest_unit_is_a_whole_number(accelerate: Accelerate) -> Violations:
    """fsdp_min_num_params must be written as an integer, such as 100000000.

    Without it: every rank fails with `invalid literal for int() with base 10: '1e8'` after the imports.
    Why: YAML reads 1e8 as a string and 1.0e+8 as a float, but accelerate needs an integer.
    Instead: write 100000000
    Source: seen with accelerate 1.15.0 and PyYAML 6.0
    """
    path, value = accelerate.fsdp.get("fsdp_min_num_params", ("", None))
    policy = accelerate.fsdp.get("fsdp_auto_wrap_policy", ("", None))[1]
    if not path or type(value) is int or str(policy).upper() != "SIZE_BASED_WRAP" or str(value).isdecimal():
        return
    number = _number(value)
    yield violation(
        "fsdp_min_num_params is {value}, which is not a whole number",
        safe(remedy("write {number}", {path: number}, number=number)) if number else None,
        where=path,
    )


@rule("TW372", level=Level.WARNING, field="fsdp_config.fsdp_transformer_layer_cls_to_wrap")
def a_wrapping_key_fits_its_policy(accelerate: Accelerate) -> Violations:
    """fsdp_transformer_layer_cls_to_wrap needs TRANSFORMER_BASED_WRAP; fsdp_min_num_params needs SIZE_BASED_WRAP.

    Without it: the key is ignored, and other modules than intended become units.
    Why: each policy reads only its own key.
    Instead: set the policy that the key belongs to.
    Source: seen with accelerate 1.15.0
    """
    values = accelerate.fsdp
    policy = str(values.get("fsdp_auto_wrap_policy", ("", "NO_WRAP"))[1]).upper()
    for name, home in (
        ("fsdp_transformer_layer_cls_to_wrap", "TRANSFORMER_BASED_WRAP"),
        ("fsdp_min_num_params", "SIZE_BASED_WRAP"),
    ):
        path, value = values.get(name, ("", None))
        if value and policy != home and policy in _POLICIES:
            # accelerate's questionnaire writes the default with any policy.
            if name == "fsdp_min_num_params" and value in (100000000, 0):
                continue
            yield violation(
                "{key} only works with {home}; fsdp_auto_wrap_policy is {policy}",
                remedy("set fsdp_auto_wrap_policy: {home}, or delete the key", {path: None}, home=home),
                where=path,
                key=name,
                home=home,
                policy=policy,
            )


def _number(value: object) -> int | None:
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return None
