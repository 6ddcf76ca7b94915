"""Which rank did something else, from the dumps of PyTorch's flight recorder: each rank's last collectives."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwiz.diagnose.diagnosis import Diagnosis
from trainwiz.message import Message, say

_SAME_SIZES = re.compile(r"broadcast|reduce|all_?gather")
"""Collectives whose tensors are of the same size on every rank."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/")


_MOST_STEPS = 3_000_000
"""Of a dump's pickle: each is a byte that can become a hundred in memory. 2,000 collectives with stacks: 600,000."""
_MOST_COMMAS = 4_000_000
"""Of a dump as JSON."""
_MOST_NUMBERS = 3_000_000
"""Values in the lists of a dump's collectives; a pickle can name one list many times."""
_LONGEST = 4096
"""Characters of a name or a path."""


def _counted(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(dump: _Plain) -> None:
        dump.steps += 1
        if dump.steps > _MOST_STEPS:
            raise pickle.UnpicklingError("too many values")
        load(dump)

    return counted


class _Plain(pickle._Unpickler):  # C's makes room for any number that a file names
    """Reads numbers, strings, lists and dictionaries: a dump needs nothing else, and a class could run code."""

    steps = 0
    dispatch = {code: _counted(load) for code, load in pickle._Unpickler.dispatch.items()}  # noqa: RUF012 (as its base)
    del dispatch[pickle.BYTEARRAY8[0]]  # which makes room for any number as well

    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective as one rank called it."""

    operation: str
    """Without the backend: `all_reduce`."""
    elements: tuple[int, ...]
    """Of its input tensors; empty where ranks may differ in them."""
    dtypes: tuple[str, ...]
    """Of its input tensors."""
    place: str
    """`file:line` of the innermost call outside of libraries; empty: not recorded."""
    done: bool
    """Whether it ended on this rank."""

    def alike(self) -> tuple[object, ...]:
        """What must be the same on every rank."""
        return self.operation, self.elements, self.dtypes if self.elements else ()

    def __str__(self) -> str:
        shape = f" of {' + '.join(map(str, self.elements))} {'/'.join(self.dtypes)}" if self.elements else ""
        return f"{self.operation}{shape}" + (f" ({self.place})" if self.place else "")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one rank recorded: by process group, its calls by their number."""

    groups: Mapping[str, Mapping[int, Call]]
    """Calls by name of the process group, then by number."""
    members: Mapping[str, tuple[int, ...]]
    """The ranks of each process group, as far as the dump says."""


def read(data: bytes) -> Recording | None:
    """A dump, pickled or as JSON; None if it is none. Nothing of it is executed."""
    try:
        dump = _of_json(data) if data[:1] == b"{" else _Plain(io.BytesIO(data)).load()
        return _recording(dump)
    except (pickle.UnpicklingError, struct.error, ArithmeticError, AssertionError, AttributeError, EOFError):
        return None
    except (LookupError, MemoryError, RecursionError, TypeError, ValueError):
        return None


def _of_json(data: bytes) -> Any:
    if data.count(b",") > _MOST_COMMAS:
        raise ValueError("too many values")
    return json.loads(data)


def compare(recordings: Mapping[int, Recording], unread: Collection[int] = ()) -> Diagnosis | None:
    """What differs first between the ranks; None if all did the same, to its end. What `unread` ones did is unknown."""
    names = sorted({name for recording in recordings.values() for name in recording.groups})
    found = [diagnosis for name in names if (diagnosis := _compare_group(name, recordings, unread))]
    order = ("collective_mismatch", "collective_missing", "collective_timeout")
    return min(found, key=lambda diagnosis: order.index(diagnosis.name), default=None)


def _short(value: object) -> str:
    """A word or a number of a dump. Raises `TypeError` for what holds others, and for a number that none is."""
    if not isinstance(value, str | int) or (len(value) > _LONGEST if isinstance(value, str) else abs(value) >> 63):
        raise TypeError("not a flight recorder's dump")
    return str(value)


def _recording(dump: Mapping[str, object]) -> Recording:
    entries, config = dump["entries"], dump.get("pg_config") or {}
    if not isinstance(entries, list) or not isinstance(config, Mapping):
        raise TypeError("not a flight recorder's dump")
    groups: dict[str, dict[int, Call]] = {}
    numbers = 0
    for entry in entries:
        numbers += _numbers(entry)
        if numbers > _MOST_NUMBERS:
            raise ValueError("too many values")
        if not entry.get("is_p2p") and "coalesced" not in _short(entry["profiling_name"]):
            groups.setdefault(_short(entry["process_group"][0]), {})[int(_short(entry["collective_seq_id"]))] = _call(
                entry
            )
    return Recording(groups=groups, members={name: _ranks(config, name) for name in groups})


def _numbers(entry: Mapping[str, Any]) -> int:
    """How many values its lists have that are looked at one by one."""
    shapes = entry.get("input_sizes") or ()
    lists = (entry.get("frames") or (), entry.get("input_dtypes") or (), *shapes)
    return len(shapes) + sum(map(len, lists))


def _ranks(config: Mapping[str, Mapping[str, object]], name: str) -> tuple[int, ...]:
    found = config.get(name) or config.get("") or {}
    return tuple(int(rank) for rank in re.findall(r"\d+", _short(found.get("ranks", ""))))


def _call(entry: Mapping[str, object]) -> Call:
    operation = _short(entry["profiling_name"]).partition(":")[2].partition(" ")[0]
    sizes, frames = entry.get("input_sizes") or (), entry.get("frames") or ()
    same = _SAME_SIZES.search(operation) and isinstance(sizes, Sequence)
    elements = (
        tuple(int(_short(math.prod(map(int, map(_short, size))))) for size in sizes)
        if same and isinstance(sizes, Sequence)
        else ()
    )
    dtypes = entry.get("input_dtypes") or ()
    return Call(
        operation=operation,
        elements=elements,
        dtypes=tuple(map(_short, dtypes)) if isinstance(dtypes, Sequence) else (),
        place=_place(frames if isinstance(frames, Sequence) else ()),
        done=bool(entry.get("retired")) or entry.get("state") == "completed",
    )


def _place(frames: Iterable[Mapping[str, object]]) -> str:
    own = (frame for frame in frames if not _LIBRARY.search(_short(frame.get("filename", ""))))
    first = next(own, None)
    return f"{_short(first['filename']).rpartition('/')[2]}:{_short(first['line'])}" if first else ""


def _compare_group(name: str, recordings: Mapping[int, Recording], unread: Collection[int]) -> Diagnosis | None:
    calls = {rank: recording.groups[name] for rank, recording in sorted(recordings.items()) if name in recording.groups}
    members = next((r.members[name] for r in recordings.values() if r.members.get(name)), tuple(calls))
    # The recorder is a ring: what some rank no longer has cannot be compared.
    begin = max(min(own) for own in calls.values())
    last = {rank: max(own) for rank, own in calls.items()}
    for number in sorted({number for own in calls.values() for number in own if number >= begin}):
        present = {rank: own[number] for rank, own in calls.items() if number in own}
        behind = [rank for rank in members if rank in recordings and number > last.get(rank, 0)]
        waiting = {rank: call for rank, call in present.items() if not call.done}
        kinds = {call.alike() for call in present.values()}
        if len(kinds) > 1:
            return _mismatch(name, number, present)
        if behind and waiting:
            return _missing(name, number, behind, waiting, calls)
        if waiting and len(waiting) == len(present):
            silent = [rank for rank in members if rank not in recordings and rank not in unread]
            return _stuck(name, number, waiting, silent) if silent or not {*members} & {*unread} else None
        if behind:
            # Where a rank has ended, the collective fails on the others, which records it as done.
            return _left(name, number, behind, present)
    return None


def _mismatch(name: str, number: int, present: Mapping[int, Call]) -> Diagnosis:
    sides: dict[tuple[object, ...], list[int]] = {}
    for rank, call in present.items():
        sides.setdefault(call.alike(), []).append(rank)
    most, *_, least = sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks))
    return _diagnosis(
        "collective_mismatch",
        least[0],
        say(
            "collective {number} of group {group} differs: ranks {ranks} called {call}, ranks {others} called {other}",
            number=number,
            group=name,
            ranks=_list(least),
            call=str(present[least[0]]),
            others=_list(most),
            other=str(present[most[0]]),
        ),
        say("let all ranks call the same collectives in the same order, with the same sizes; look at these two places"),
    )


def _missing(
    name: str,
    number: int,
    behind: Sequence[int],
    waiting: Mapping[int, Call],
    calls: Mapping[int, Mapping[int, Call]],
) -> Diagnosis:
    own = calls.get(behind[0], {})
    return _diagnosis(
        "collective_missing",
        behind[0],
        say(
            "ranks {others} wait in collective {number} of group {group}, {call}; ranks {ranks} never called it, their "
            "last one was {last}",
            others=_list(waiting),
            number=number,
            group=name,
            call=str(next(iter(waiting.values()))),
            ranks=_list(behind),
            last=str(own[max(own)]) if own else "–",
        ),
        say(
            "find out what these ranks do after their last collective: another branch, a shorter loader, an exception, "
            "or a slow evaluation or save"
        ),
    )


def _left(name: str, number: int, behind: Sequence[int], present: Mapping[int, Call]) -> Diagnosis:
    cause = say(
        "ranks {others} called collective {number} of group {group}, {call}; ranks {ranks} had ended, or were slower",
        others=_list(present),
        number=number,
        group=name,
        call=str(next(iter(present.values()))),
        ranks=_list(behind),
    )
    remedy = say(
        "read the logs of the ranks that are behind: if all dumps were written after a failure, one of these "
        "ranks ended first"
    )
    return _diagnosis("collective_missing", behind[0], cause, remedy)


def _stuck(name: str, number: int, waiting: Mapping[int, Call], silent: Sequence[int]) -> Diagnosis:
    call = str(next(iter(waiting.values())))
    if silent:
        cause = say(
            "ranks {others} wait in collective {number} of group {group}, {call}; there is no dump of ranks {ranks}",
            others=_list(waiting),
            number=number,
            group=name,
            call=call,
            ranks=_list(silent),
        )
        remedy = say("read the logs of the ranks without a dump: they ended, or hang outside of collectives")
        return _diagnosis("collective_missing", silent[0], cause, remedy)
    cause = say(
        "all ranks are stuck in collective {number} of group {group}, {call}",
        number=number,
        group=name,
        call=call,
    )
    remedy = say("the ranks agree, so look at the network and the GPUs: NCCL_DEBUG=INFO, nvidia-smi, dmesg")
    return _diagnosis("collective_timeout", None, cause, remedy)


def _diagnosis(name: str, rank: int | None, cause: Message, remedy: Message) -> Diagnosis:
    how = say("the ranks' collectives, as PyTorch's flight recorder dumped them")
    return Diagnosis(name=name, rank=rank, how=how, cause=cause, remedy=remedy, certainty="shown", tool="")


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
