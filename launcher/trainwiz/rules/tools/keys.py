"""Keys of training tools' files that are misspelled or given twice."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz.config.spelling import is_unambiguous, nearest, renamed
from trainwiz.config.tools import ToolFile
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule


@rule("TW812", level=Level.ERROR, field="document")
def a_key_stands_once_for_omegaconf(tool_file: ToolFile) -> Violations:
    """In a file that OmegaConf reads, each key may appear only once.

    Without it: LLaMA-Factory and torchtune stop with `found duplicate key`.
    Why: the same key was added again further down.
    Instead: keep one of the two.
    Source: read in OmegaConf 2.3 (`get_yaml_loader`), which LLaMA-Factory 0.9.6 and torchtune 0.7.0 use
    """
    for duplicate in tool_file.document.duplicates if tool_file.tool.stops_at_duplicates else ():
        yield violation(
            "{key} is set twice, first in line {first}; {name} stops",
            remedy("keep one of the two"),
            where=".".join(duplicate.path),
            place=tool_file.document.at(duplicate.last),
            key=".".join(duplicate.path),
            first=tool_file.document.at(duplicate.first).line,
            name=tool_file.name,
        )


@rule("TW813", level=Level.WARNING, field="document")
def the_tool_reads_every_key(tool_file: ToolFile) -> Violations:
    """An unknown key that resembles a known one is probably misspelled.

    Without it: the setting silently has no effect.
    Why: Axolotl's schema drops unknown keys.
    Instead: use the tool's spelling.
    Source: read in Axolotl 0.18.0 (pydantic's default for unknown keys)
    """
    for key, near in () if tool_file.tool.stops_at_unknown_keys else _unknown(tool_file):
        if near:
            yield violation(
                "{name} ignores {key}",
                renamed(key, near, tool_file.get(key)),
                where=key,
                name=tool_file.name,
                key=key,
            )


@rule("TW814", level=Level.ERROR, field="document")
def the_tool_refuses_unknown_keys(tool_file: ToolFile) -> Violations:
    """The tool must know every key.

    Without it: LLaMA-Factory and TRL stop before anything is loaded: `Some keys are not used by the HfArgumentParser`.
    Why: the key is misspelled.
    Instead: use the tool's spelling; with ALLOW_EXTRA_ARGS=1, LLaMA-Factory ignores unknown keys.
    Source: seen with transformers 5.23.0 (`HfArgumentParser.parse_dict`); read in LLaMA-Factory 0.9.6 and TRL 1.10.0
    """
    for key, near in _unknown(tool_file) if tool_file.tool.stops_at_unknown_keys else ():
        if near and is_unambiguous(key, near):
            yield violation(
                "{name} does not know {key} and stops",
                renamed(key, near, tool_file.get(key), stops=True),
                where=key,
                name=tool_file.name,
                key=key,
            )


@rule("TW815", level=Level.WARNING, field="document")
def the_tools_version_knows_every_key(tool_file: ToolFile) -> Violations:
    """If a tool rejects unknown keys, its current version should know every key.

    Without it: the tool's current version stops: `Some keys are not used by the HfArgumentParser`.
    Why: the key belongs to an older or newer version, or to another tool.
    Instead: remove the key, or look up its current name.
    Source: read in LLaMA-Factory 0.9.6 and TRL 1.10.0
    """
    for key, near in _unknown(tool_file) if tool_file.tool.stops_at_unknown_keys else ():
        if near and is_unambiguous(key, near):
            continue
        yield violation(
            "{name} has no key {key}",
            renamed(key, near, tool_file.get(key)) if near else remedy("remove {key}", {key: None}, key=key),
            where=key,
            name=tool_file.name,
            key=key,
        )


def _unknown(tool_file: ToolFile) -> Iterator[tuple[str, str | None]]:
    known = tool_file.tool.keys
    for key in tool_file.document.values if known else ():
        if isinstance(key, str) and key not in known and not key.startswith(("_", "x-")):
            near = nearest(key, known)
            yield key, near if near not in tool_file.document.values else None
