"""Values as JSON, and as YAML with comments between: dumped by a library, and read back to be sure."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

# libyaml reads as Python's own does, ten times as fast. Its writer escapes what lies beyond the basic plane: not used.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def as_json(values: Mapping[str, Any]) -> str:
    """The values as a JSON file. Raises `RuntimeError` if it does not read back as it was meant."""
    written = json.dumps(values, indent=2) + "\n"
    if json.loads(written) != values:
        raise RuntimeError(f"JSON does not read back as it was meant:\n{written}")
    return written


def commented(values: Mapping[str, Any], comments: Mapping[str, str], head: str = "") -> str:
    """The values as YAML, in their order, with a comment behind each dotted key that has one.

    `head` stands above, one comment line for each of its lines. Sections (non-empty mappings) may be one level deep.
    """
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    after_section = False
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            lines += ["", _line(f"{key}:", comments.get(key, ""))]
            for name, inner in value.items():
                lines.append(_line(f"  {_dumped({name: inner})}", comments.get(f"{key}.{name}", "")))
            after_section = True
        else:
            lines += [""] if after_section else []
            after_section = False
            lines.append(_line(_dumped({key: value}), comments.get(key, "")))
    text = "\n".join(lines) + "\n"
    if yaml.load(text, Loader=_Loader) != dict(values):
        raise RuntimeError(f"YAML does not read back as it was meant:\n{text}")
    return text


def as_documents(documents: Sequence[Mapping[str, Any]], head: str = "") -> str:
    """The values as the documents of one YAML file, below a comment. Raises as `commented` does."""
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    text = comment + yaml.dump_all(
        [dict(each) for each in documents], Dumper=_Plain, sort_keys=False, allow_unicode=True, width=10**9
    )
    if list(yaml.load_all(text, Loader=_Loader)) != [dict(each) for each in documents]:
        raise RuntimeError(f"YAML does not read back as it was meant:\n{text}")
    return text


class _Plain(yaml.SafeDumper):
    """Strings of several lines as blocks, as people write them, and no references between equal values."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the base's signature)
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _string)


def _line(content: str, comment: str) -> str:
    # A comment is one line, whatever is in it: a line break would turn the rest into YAML.
    words = " ".join("".join(c if c.isprintable() else " " for c in comment).split())
    return f"{content}  # {words}" if words else content


def _dumped(value: Mapping[str, Any]) -> str:
    (key, held), *_ = value.items()
    if isinstance(held, list | dict) and held:
        # In brackets, on the key's own line.
        name = _line_of(key, None).removesuffix("null")
        return name + yaml.safe_dump(held, default_flow_style=True, allow_unicode=True, width=10**9).rstrip("\n")
    if isinstance(held, list | dict):
        return _line_of(key, held)
    return _scalar(key, held, repr(held))


@functools.lru_cache(4096)
def _scalar(key: str, held: object, _written: str) -> str:
    """A line that most plans have. What Python writes tells 1 from True and from 1.0, which are equal."""
    return _line_of(key, held)


def _line_of(key: str, held: object) -> str:
    # PyYAML folds long strings over several lines unless the width is beyond them.
    return yaml.safe_dump({key: held}, sort_keys=False, allow_unicode=True, width=10**9).rstrip("\n")
