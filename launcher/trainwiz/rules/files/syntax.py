"""Files that cannot be read, and keys that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwiz.config import Accelerate, Document
from trainwiz.config.spelling import nearest
from trainwiz.engines.accelerate import (
    BLOCKS,
    CLUSTER_KEYS,
    COMMAND_LINE_ONLY,
    LAUNCH_ARGUMENTS,
    OLD_KEYS,
    REMOVED_KEYS,
    SAGEMAKER_KEYS,
    knows_keys_of,
)
from trainwiz.engines.deepspeed import TOP_LEVEL_KEYS, ZERO_KEYS
from trainwiz.finding import Fix, Level, Violation, remedy, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule


@rule("TW651", level=Level.ERROR, field="document")
def a_file_can_be_read(document: Document) -> Iterator[Violation]:
    """A configuration file must be UTF-8 text with keys and values: YAML, or JSON if its name ends in .json.

    Without it: accelerate and DeepSpeed stop with the parser's error; for an empty file, with `'NoneType' object
    has no attribute 'get'`.
    Why: tabs, comments in JSON and a comma before a closing bracket look right, but are invalid.
    Instead: fix the character that the finding points at.
    Source: seen with accelerate 1.15.0 (`load_config_from_file`) and Python's json
    """
    if document.trouble:
        trouble = document.trouble
        yield Violation(
            trouble.message,
            Fix(message=trouble.fix) if trouble.fix else None,
            where="document",
            place=document.at_character(trouble.at),
        )


@rule("TW652", level=Level.WARNING, field="document")
def a_key_stands_once(document: Document) -> Iterator[Violation]:
    """A key must not appear twice at the same level; the last value wins.

    Without it: under accelerate, the first value is silently lost; DeepSpeed by itself rejects a JSON file with
    `Duplicate keys in DeepSpeed config`.
    Why: Python's YAML and JSON parsers use the last value.
    Instead: delete the one that you do not want.
    Source: seen with PyYAML 6.0; deepspeed/runtime/config_utils.py (`dict_raise_error_on_duplicate_keys`)
    """
    for duplicate in document.duplicates:
        first, path = document.at(duplicate.first), ".".join(duplicate.path)
        yield violation(
            "{key} is already set in line {first}; the value here wins",
            remedy("delete line {first} or this one", first=first.line),
            key=path,
            first=first.line,
            where=path,
            place=document.at(duplicate.last),
        )


@rule("TW653", level=Level.ERROR, field="document")
def accelerate_knows_every_key_at_the_top(accelerate: Accelerate) -> Iterator[Violation]:
    """The top level of an accelerate file may only contain keys that this accelerate version knows.

    Without it: `accelerate launch` stops after its imports with `The config file at … had unknown keys`, and
    suggests no similar key.
    Why: files outlive versions (ipex_config has been removed), and some options exist only on the command line
    (max_restarts).
    Instead: use the key as accelerate spells it, or the option of `accelerate launch`.
    Source: seen with accelerate 1.15.0; `BaseConfig.from_yaml_file` in accelerate/commands/config/config_args.py
    """
    on_sagemaker = accelerate.get("compute_environment") == "AMAZON_SAGEMAKER"
    known = SAGEMAKER_KEYS if on_sagemaker else CLUSTER_KEYS
    for key in accelerate.document.values:
        if not isinstance(key, str) or key in known or key in OLD_KEYS:
            continue
        option = COMMAND_LINE_ONLY.get(key)
        near = nearest(key, known - set(accelerate.document.values))
        if not near and not knows_keys_of(accelerate.version):
            continue
        if option:
            fix = remedy(
                "delete it, and launch with {option} {value}", {key: None}, option=option, value=accelerate.get(key)
            )
        elif near and key not in REMOVED_KEYS:
            fix = _renamed(key, near, accelerate.get(key))
        else:
            fix = _moved(accelerate, key) or remedy("delete it", {key: None})
        yield accelerate.wrong(key, say("accelerate has no key {key} and stops", key=key), fix)


def _moved(accelerate: Accelerate, key: str) -> Fix | None:
    """The way into the block of the file that has such a key."""
    homes = {"DEEPSPEED": "deepspeed_config", "FSDP": "fsdp_config", "MEGATRON_LM": "megatron_lm_config"}
    for block, (_, known) in BLOCKS.items():
        there = accelerate.section(block) or (block == homes.get(accelerate.kind) and not accelerate.has(block))
        near = nearest(key, known) if there else None
        if near and accelerate.has(f"{block}.{near}"):
            return remedy("delete it; {key} in {block} is used", {key: None}, key=near, block=block)
        if near:
            message = say("write it as {key} under {block}", key=near, block=block)
            return Fix(message=message, changes={key: None, f"{block}.{near}": accelerate.get(key)})
    return None


@rule("TW654", level=Level.WARNING, field="document")
def accelerate_knows_every_key_in_a_block(accelerate: Accelerate) -> Iterator[Violation]:
    """Blocks of an accelerate file should only contain keys that have an effect.

    Without it: the key is silently ignored: `zero_stge: 3` trains ZeRO 2, and settings for DeepSpeed's own file
    (overlap_comm, bucket sizes) do nothing here.
    Why: accelerate copies each entry to its arguments, and nothing reads an entry that it does not know.
    Instead: use the key as accelerate spells it; put DeepSpeed's own options in a deepspeed_config_file.
    Source: seen with accelerate 1.15.0: launch environment and arguments stay the same
    """
    if not knows_keys_of(accelerate.version):
        return
    for block, (prefix, known) in BLOCKS.items():
        for key, value in accelerate.section(block).items():
            if not isinstance(key, str) or _reaches(block, prefix, key):
                continue
            path, full = f"{block}.{key}", key if not prefix or key.startswith(prefix) else prefix + key
            # These have rules of their own.
            if full in known or key in ("amax_history_length", "amax_compute_algorithm", "optimization_level"):
                continue
            # A misspelt name is looked for with and without its prefix.
            near = nearest(key, known) or nearest(full, known)
            fix = _renamed(path, f"{block}.{near}", value) if near and not accelerate.has(f"{block}.{near}") else None
            if not near and block == "deepspeed_config" and (key in TOP_LEVEL_KEYS or key in ZERO_KEYS):
                # Deleting what was meant would lose it; where it goes is a file that may not exist yet.
                fix = remedy(
                    "this is a DeepSpeed setting: put it in a DeepSpeed file, and set deepspeed_config_file to "
                    "that file"
                )
            yield accelerate.wrong(
                path,
                say("accelerate ignores {key}: {block} has no such key", key=key, block=block),
                fix or remedy("delete it", {path: None}),
            )


@rule("TW655", level=Level.WARNING, field="document")
def a_block_keeps_to_its_subject(accelerate: Accelerate) -> Iterator[Violation]:
    """A block should not set launch arguments that belong outside of it.

    Without it: `deepspeed_config: {num_processes: 7}` starts 7 processes, regardless of num_processes at the top
    level.
    Why: accelerate copies every entry of every block to its launch arguments, without checking where it belongs.
    Instead: move the key to the top level of the file.
    Source: seen with accelerate 1.15.0; `_validate_launch_command` in accelerate/commands/launch.py
    """
    for block in BLOCKS:
        for key, value in accelerate.section(block).items():
            if key in LAUNCH_ARGUMENTS:
                path = f"{block}.{key}"
                top = key in CLUSTER_KEYS and not accelerate.has(key)
                yield accelerate.wrong(
                    path,
                    say(
                        "{key} inside {block} sets the launch option {key} to {value}",
                        key=key,
                        block=block,
                        value=value,
                    ),
                    remedy("move it to the top level of the file", {path: None, key: value})
                    if top
                    else remedy("delete it here", {path: None}),
                )


def _reaches(block: str, prefix: str, key: str) -> bool:
    """Whether an entry sets a launch argument, which accelerate decides by its name alone, whatever block it is in."""
    known = BLOCKS[block][1]
    if key in known or key in LAUNCH_ARGUMENTS:
        return True
    if any(key in others for _, others in BLOCKS.values()):
        return True
    # In these blocks, short names stand for the long ones.
    return block in ("fsdp_config", "fp8_config", "dynamo_config") and prefix + key in known


def _renamed(old: str, new: str, value: Any) -> Fix:
    return remedy("did you mean {key}?", {old: None, new: value}, key=new.rpartition(".")[2])
