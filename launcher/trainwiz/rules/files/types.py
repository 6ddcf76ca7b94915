"""Values whose type is not the one that DeepSpeed expects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainwiz.config import DeepSpeed
from trainwiz.engines import deepspeed_types as types
from trainwiz.engines.deepspeed import REMOVALS, STRICT_IN_0_19, STRICT_PRECISION
from trainwiz.finding import Fix, Level, Violations, remedy, safe, violation
from trainwiz.rules.registry import rule

_LARGEST = 2.0**63
"""A whole number with a point or an exponent is read up to here."""
_QUOTED_WHOLE = re.compile(r"\s*[+-]?\d[\d_]*(\.0*)?\s*")


@rule("TW397", level=Level.ERROR, field="deepspeed")
def values_have_the_type_that_is_read(deepspeed: DeepSpeed) -> Violations:
    """Values in a DeepSpeed file must have the expected type: an object for a block, a number for a number.

    Without it: every rank fails after the model is built: with pydantic's `Input should be a valid integer` for
    "5e8"; with `argument after ** must be a mapping, not bool` for `"bf16": true`; with `'>' not supported between
    instances of 'str' and 'float'` for `"gradient_clipping": "1.0"`. The last two do not name the key.
    Why: DeepSpeed does not check a value before it uses it.
    Instead: write the value as the finding shows it.
    Source: seen with DeepSpeed 0.19.8
    """
    for block in sorted(types.BLOCKS):
        if deepspeed.has(block):
            yield from _block(deepspeed, block)
    for path, entry in deepspeed.document.entries.items():
        name = ".".join(path)
        value = deepspeed.get(name)
        read_as = f"bf16.{path[1]}" if path[0] == "bfloat16" and path[1:] and not deepspeed.has("bf16") else name
        if entry.key is None or value == "auto" or not _is_read(deepspeed, read_as):
            continue
        if value is None and name in types.MAY_BE_NULL | types.BARE_TRUTH_MAY_BE_NULL:
            continue
        if name in types.COUNTS and value is not None:
            yield from _number(name, value, whole=True, smallest=1, bare=True)
        elif name in types.BARE_NUMBERS | types.NUMBERS:
            if not _is_per_group(name, value):
                yield from _number(name, value, bare=name in types.BARE_NUMBERS)
        elif name in types.WHOLE | types.WHOLE_FROM_0:
            yield from _number(name, value, whole=True, smallest=0 if name in types.WHOLE_FROM_0 else None)
        elif read_as in types.TRUTH | types.BARE_TRUTH:
            yield from _truth(name, value)
        elif name in types.WORDS:
            yield from _word(name, value)
        elif name in types.TEXTS | types.LISTS | types.NOT_IN_A_FILE:
            yield from _other(name, value)


def _is_per_group(name: str, value: Any) -> bool:
    numbers = isinstance(value, list) and value and all(type(each) in (int, float) for each in value)
    return bool(numbers) and name in types.PER_GROUP


def _is_read(deepspeed: DeepSpeed, name: str) -> bool:
    """Whether this version reads the value with the class whose types are known."""
    if name.startswith(("fp16.", "bf16.")):
        return deepspeed.version >= STRICT_PRECISION
    if name.partition(".")[0] in STRICT_IN_0_19 and "." in name:
        return deepspeed.version >= REMOVALS
    return name not in types.WORDS_SINCE_0_19 or deepspeed.version >= REMOVALS


def _block(deepspeed: DeepSpeed, path: str) -> Violations:
    value = deepspeed.get(path)
    # DeepSpeed still reads the oldest form, a truth value.
    old_zero = path == "zero_optimization" and isinstance(value, bool)
    if isinstance(value, Mapping) or old_zero or value == "auto" or (value is None and path in types.MAY_BE_NULL):
        return
    inside: dict[str, Any] = {}
    if value is True and path in types.SWITCHED:
        inside = {"enabled": True}
    elif path == "zero_optimization" and str(value) in ("0", "1", "2", "3"):
        inside = {"stage": int(value)}
    elif path.startswith("zero_optimization.offload") and value in ("cpu", "none", True):
        inside = {"device": "cpu" if value is True else value}
    elif path in ("optimizer", "scheduler") and isinstance(value, str):
        inside = {"type": value, "params": {}}
    fix = safe(_deleted(path), path in types.SWITCHED) if value is None or value is False else None
    if inside:
        pair = json.dumps(inside)[1:].partition(",")[0].rstrip("}")
        # Without its parameters an optimizer would train at its class's own learning rate.
        fix = remedy("make it a block that contains {pair}", {path: inside}, pair=pair)
        other = {"fp16": "bf16", "bf16": "fp16"}.get(path)
        fix = safe(fix, path not in ("optimizer", "scheduler") and not (other and deepspeed.enabled(other)))
    yield violation("{key} is {value}; DeepSpeed expects a block of keys", fix, where=path, key=path)


def _number(
    path: str, value: Any, *, whole: bool = False, smallest: int | None = None, bare: bool = False
) -> Violations:
    """pydantic accepts a quoted number, but no power of ten for a whole one; `bare` numbers must not be quoted."""
    number = _as_number(value)
    # DeepSpeed accepts a batch of 1.5, which nobody writes.
    broken = whole and number is not None and not number.is_integer() and path not in types.COUNTS
    huge = whole and isinstance(value, float) and abs(value) > _LARGEST
    if number is None or broken or huge or (isinstance(value, bool) and path in types.NOT_TRUTH):
        # DeepSpeed stops at null; without the key, it uses the default.
        fix = _deleted(path) if value is None else None
        if whole:
            yield violation("{key} is {value}; DeepSpeed expects a whole number", fix, where=path, key=path)
        else:
            yield violation("{key} is {value}; DeepSpeed expects a number", fix, where=path, key=path)
    elif smallest is not None and number < smallest:
        # TW344 reports empty buckets.
        if not path.endswith("reduce_bucket_size"):
            yield violation("{key} is {value}; it must be at least {smallest}", where=path, key=path, smallest=smallest)
    elif isinstance(value, str) and (bare or (whole and not _QUOTED_WHOLE.fullmatch(value))):
        fix = _put(path, int(number) if number.is_integer() and path != "gradient_clipping" else number)
        yield violation("{key} is {value}; DeepSpeed expects a number without quotes", fix, where=path, key=path)


def _truth(path: str, value: Any) -> Violations:
    bare = path in types.BARE_TRUTH
    read = value in (0, 1) if bare else value in (0, 1) or (value is None and path in types.MAY_BE_NULL)
    word = value.lower() if isinstance(value, str) else ""
    if read or (word in types.TRUE_OR_FALSE and not bare):
        return
    meant = {"true": True, "false": False, "yes": True, "no": False}.get(word)
    fix = _deleted(path) if value is None else None if meant is None else _put(path, meant)
    if fix and meant is False and bare and path not in types.NO_WORD:
        fix = replace(fix, safe=False)  # the engine has read it as true
    yield violation("{key} is {value}; DeepSpeed expects true or false", fix, where=path, key=path)


def _word(path: str, value: Any) -> Violations:
    allowed = types.WORDS[path]
    if path in types.WORDS_OR_DEFAULT and not isinstance(value, (list, dict)):
        return  # TW443 warns of it
    same = str if path in types.EXACT_WORDS else str.lower
    if not isinstance(value, str) or same(value) not in {same(word) for word in allowed}:
        choices = ", ".join(allowed)
        yield violation("{key} is {value}; it must be one of {choices}", where=path, key=path, choices=choices)


def _other(path: str, value: Any) -> Violations:
    if path in types.NOT_IN_A_FILE:
        yield violation("DeepSpeed cannot read {key} from a file", remedy("delete it"), where=path, key=path)
    elif path in types.LISTS and not isinstance(value, list):
        yield violation("{key} is {value}; DeepSpeed expects a list", where=path, key=path)
    elif path in types.TEXTS and not isinstance(value, str):
        yield violation("{key} is {value}; DeepSpeed expects text in quotes", where=path, key=path)


def _as_number(value: Any) -> float | None:
    """The value, or its text, as a number; None if it is not one."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _put(path: str, value: Any) -> Fix:
    return safe(remedy("write {value}", {path: value}, value=json.dumps(value)))


def _deleted(path: str) -> Fix:
    return remedy("delete it", {path: None})
