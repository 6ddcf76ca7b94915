"""What to say of a value that no plan can have: key, value, and what is legal."""

from __future__ import annotations

import difflib

from pydantic_core import ErrorDetails

from trainwiz.message import Message, say
from trainwiz.plan.model import Plan, fields


def unknown_key(key: str) -> Message:
    """What to say of a key that no plan has, with the nearest that it does have."""
    known = [*fields(), *Plan.model_fields]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6) or [
        k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]
    ]
    if near:
        return say("{key}: unknown key; did you mean {near}?", key=key, near=near[0])
    return say("{key}: unknown key; `trainwiz explain keys` lists them all", key=key)


def problem(error: ErrorDetails) -> Message:
    """What is wrong with one value, by the error that pydantic found."""
    key = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    value, context = _shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return unknown_key(key)
        case "literal_error":
            return say("{key}: {value} is not one of {legal}", key=key, value=value, legal=context["expected"])
        case "greater_than":
            return say("{key}: {value} must be greater than {limit}", key=key, value=value, limit=context["gt"])
        case "greater_than_equal":
            return say("{key}: {value} must be at least {limit}", key=key, value=value, limit=context["ge"])
        case "less_than_equal":
            return say("{key}: {value} must be at most {limit}", key=key, value=value, limit=context["le"])
        case "int_parsing" | "int_type" | "int_from_float":
            return say("{key}: {value} is not a whole number", key=key, value=value)
        case "float_parsing" | "float_type" | "finite_number":
            return say("{key}: {value} is not a number", key=key, value=value)
        case "bool_parsing" | "bool_type":
            return say("{key}: {value} is neither true nor false", key=key, value=value)
        case "model_type" | "dict_type" | "model_attributes_type":
            return say("{key}: {value} stands where a section of keys belongs", key=key, value=value)
        case "string_type":
            return say("{key}: {value} is not a text", key=key, value=value)
        case "string_too_long":
            return say("{key}: the text is longer than {limit} characters", key=key, limit=context["max_length"])
        case "string_pattern_mismatch" if key == "model.lora_targets":
            return say(
                "{key}: {value} is neither all-linear nor names of modules (q_proj,v_proj)", key=key, value=value
            )
        case "string_pattern_mismatch":
            return say("ignore: {value} is neither a rule's id (TW401) nor the beginning of one (TW4)", value=value)
        case "setting_decided":
            return say("deepspeed: {value} is decided by {key}; set that", value=value, key=context["decides"])
        case "setting_foreign":
            return say("deepspeed: {value} is no setting that the training loop can work with", value=value)
        case "value_error" if "control" in str(context.get("error")):
            return say("{key}: {value} must not contain line breaks or control characters", key=key, value=value)
        case "value_error":
            return say("{key}: must not be empty", key=key)
    return say("{key}: {value}: {problem}", key=key, value=value, problem=error["msg"])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
