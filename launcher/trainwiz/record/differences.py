"""The differences between two runs: plan, versions, machine, environment, code and result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainwiz.record import metrics
from trainwiz.record.run import Recorded, state

_RUN_FOLDER = "--output_dir"
_CODE = ("commit", "branch", "dirty")
_FOR_PEOPLE = frozenset({"TRAINWIZ_LANG", "COLUMNS", "LINES", "TQDM_NCOLS", "NO_COLOR"})
_DIGITS = 12
"""Of a file's sha256."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs."""

    section: str
    """One of `SECTIONS`."""
    key: str
    """The name of the value in its section."""
    before: Any
    """None: the earlier run has no such value."""
    after: Any
    """The value in the later one."""


def differences(before: Recorded, after: Recorded) -> tuple[Difference, ...]:
    """All differences, in the order of `SECTIONS`."""
    found = []
    for section in SECTIONS:
        a, b = _FACTS[section](before), _FACTS[section](after)
        if section in _NEWER and not (a and b):
            continue  # a run of an older trainwiz does not say it
        for key in dict.fromkeys([*a, *b]):
            if a.get(key) != b.get(key):
                found.append(Difference(section=section, key=key, before=a.get(key), after=b.get(key)))
    return tuple(found)


def flat(value: object, prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted key; those of a list of mappings by its indices."""
    if isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        pairs = [(str(i), item) for i, item in enumerate(value)]
    else:
        return {prefix: value} if prefix else {}
    result: dict[str, Any] = {}
    for key, item in pairs:
        result.update(flat(item, f"{prefix}.{key}" if prefix else key))
    return result


def _arguments(run: Recorded) -> dict[str, Any]:
    """The command's arguments by option, or by position; the run's own folder is left out."""
    given: dict[str, Any] = {}
    words = [str(word) for word in run.command.get("argv") or ()]
    i = place = 0
    while i < len(words):
        option, equals, value = words[i].partition("=")
        if not option.startswith("--"):
            given[f"[{place}]"], place = words[i], place + 1
        elif equals:
            given[option] = value
        elif i + 1 < len(words) and not words[i + 1].startswith("--"):
            given[option] = words[i + 1]
            i += 1
        else:
            given[option] = True
        i += 1
    given.pop(_RUN_FOLDER, None)
    return given


def _machine(run: Recorded) -> dict[str, Any]:
    found = flat(run.command.get("machine") or {})
    # Free space changes by the minute.
    found.pop("disk_free_bytes", None)
    return {"hostname": run.command.get("hostname"), **found}


def _result(run: Recorded) -> dict[str, Any]:
    use = metrics.use(run.records)
    shares = {"mfu": use.mfu, "data_wait_share": use.data_wait}
    return {
        "state": state(run).value,
        "exit_code": run.outcome.get("exit_code"),
        "updates": metrics.last(run.records, "update"),
        "loss": metrics.last(run.records, "loss"),
        **{name: metrics.last(run.records, name) for name in metrics.names(run.records, "eval_")},
        "tokens_per_second": _rounded(metrics.speed(run.records)),
        **{name: _share(value) for name, value in shares.items()},
        "seconds": _rounded(run.outcome.get("seconds")),
        "peak_rank_bytes": run.outcome.get("peak_rank_bytes"),
        "gpu_memory_peak_bytes": use.gpu_peak_bytes,
    }


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _rounded(value: Any) -> float | None:
    return round(value, 1) if isinstance(value, (int, float)) else None


def _environment(run: Recorded) -> dict[str, Any]:
    """The variables that a training had, without those that only change what people see."""
    both = {**(run.command.get("inherited") or {}), **(run.command.get("environment") or {})}
    return {name: value for name, value in both.items() if name not in _FOR_PEOPLE}


_FACTS: dict[str, Callable[[Recorded], dict[str, Any]]] = {
    "plan": lambda run: flat(run.command.get("plan") or {}),
    "config": lambda run: flat(run.command.get("config_values") or {}),
    "arguments": _arguments,
    "versions": lambda run: dict(run.command.get("versions") or {}),
    "machine": _machine,
    "environment": _environment,
    "code": lambda run: {key: value for key, value in (run.command.get("git") or {}).items() if key in _CODE},
    "files": lambda run: {path: str(digest)[:_DIGITS] for path, digest in (run.command.get("files") or {}).items()},
    "data": lambda run: dict(run.command.get("data") or {}),
    "result": _result,
}
_NEWER = ("files", "data")
SECTIONS = tuple(_FACTS)
