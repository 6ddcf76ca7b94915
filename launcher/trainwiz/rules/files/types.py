"""Values of another type than DeepSpeed reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainwiz.config import DeepSpeed
from trainwiz.engines import deepspeed_types as types
from trainwiz.finding import Fix, Level, Violation, remedy
from trainwiz.message import say
from trainwiz.rules.registry import rule

_QUOTED_WHOLE = re.compile(r"\s*[+-]?\d[\d_]*(\.0*)?\s*")


@rule("TW397", level=Level.ERROR, field="deepspeed")
def values_have_the_type_that_is_read(deepspeed: DeepSpeed) -> Iterator[Violation]:
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
        if entry.key is None or value == "auto" or not _is_read(deepspeed, name):
            continue
        if name in types.COUNTS and value is not None:
            yield from _number(deepspeed, name, value, whole=True, smallest=1, bare=True)
        elif name in types.BARE_NUMBERS:
            yield from _number(deepspeed, name, value, bare=True)
        elif name in types.NUMBERS:
            yield from _number(deepspeed, name, value)
        elif name in types.WHOLE or name in types.WHOLE_FROM_0:
            smallest = 0 if name in types.WHOLE_FROM_0 else None
            yield from _number(deepspeed, name, value, whole=True, smallest=smallest)
        elif name in types.TRUTH or name in types.BARE_TRUTH:
            yield from _truth(deepspeed, name, value)
        elif name in types.WORDS and not (value is None and name in types.MAY_BE_NULL):
            yield from _word(deepspeed, name, value)


def _is_read(deepspeed: DeepSpeed, name: str) -> bool:
    """Whether this version reads the value by the class whose types are known."""
    old = (0, 18) if name.startswith(("fp16.", "bf16.")) else (0, 19) if name in types.WORDS_SINCE_0_19 else (0,)
    return deepspeed.version >= old


def _block(deepspeed: DeepSpeed, path: str) -> Iterator[Violation]:
    value = deepspeed.get(path)
    # The oldest spelling of ZeRO is a truth value, and still read.
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
    fix = _deleted(path) if value is None or value is False else None
    if inside:
        pair = json.dumps(inside)[1:].partition(",")[0].rstrip("}")
        fix = remedy("make it a block that contains {pair}", {path: inside}, pair=pair)
    yield deepspeed.wrong(
        path, say("{key} is {value}; DeepSpeed expects a block of keys", **_shown(deepspeed, path)), fix
    )


def _number(
    deepspeed: DeepSpeed, path: str, value: Any, *, whole: bool = False, smallest: int | None = None, bare: bool = False
) -> Iterator[Violation]:
    """A number in quotes passes where a class of pydantic reads it, except that a whole one has no power of ten."""
    number = _as_number(value)
    # Batches of 1.5 pass, and nobody writes them.
    if number is None or (whole and not number.is_integer() and path not in types.COUNTS):
        message = (
            say("{key} is {value}; DeepSpeed expects a whole number", **_shown(deepspeed, path))
            if whole
            else say("{key} is {value}; DeepSpeed expects a number", **_shown(deepspeed, path))
        )
        # A clipping that is null stops; without the key, there is a default.
        yield deepspeed.wrong(path, message, _deleted(path) if value is None else None)
    elif smallest is not None and number < smallest:
        # Whether a bucket holds anything is a rule of its own.
        if not path.endswith("reduce_bucket_size"):
            yield deepspeed.wrong(
                path,
                say("{key} is {value}; it must be at least {smallest}", smallest=smallest, **_shown(deepspeed, path)),
            )
    elif isinstance(value, str) and (bare or (whole and not _QUOTED_WHOLE.fullmatch(value))):
        exact = int(number) if number.is_integer() and path != "gradient_clipping" else number
        yield deepspeed.wrong(
            path,
            say("{key} is {value}; DeepSpeed expects a number without quotes", **_shown(deepspeed, path)),
            _put(path, exact),
        )


def _truth(deepspeed: DeepSpeed, path: str, value: Any) -> Iterator[Violation]:
    bare = path in types.BARE_TRUTH
    read = isinstance(value, int) if bare else value in (0, 1) or (value is None and path in types.MAY_BE_NULL)
    word = value.lower() if isinstance(value, str) else ""
    if read or (word in types.TRUE_OR_FALSE and not bare):
        return
    meant = {"true": True, "false": False, "yes": True, "no": False}.get(word)
    fix = _deleted(path) if value is None else None if meant is None else _put(path, meant)
    yield deepspeed.wrong(
        path, say("{key} is {value}; DeepSpeed expects true or false", **_shown(deepspeed, path)), fix
    )


def _word(deepspeed: DeepSpeed, path: str, value: Any) -> Iterator[Violation]:
    allowed = types.WORDS[path]
    if not isinstance(value, str) or value.lower() not in {word.lower() for word in allowed}:
        yield deepspeed.wrong(
            path,
            say("{key} is {value}; it must be one of {choices}", choices=", ".join(allowed), **_shown(deepspeed, path)),
        )


def _as_number(value: Any) -> float | None:
    """The number that a value is, or that its text holds; None for what is none."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _shown(deepspeed: DeepSpeed, path: str) -> dict[str, str]:
    written = deepspeed.document.raw(path)
    return {"key": path, "value": written if len(written) < 40 else f"{written[:36]} …"}


def _put(path: str, value: Any) -> Fix:
    return remedy("write {value}", {path: value}, value=json.dumps(value))


def _deleted(path: str) -> Fix:
    return remedy("delete it", {path: None})
