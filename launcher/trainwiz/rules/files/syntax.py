"""Files and plans that cannot be read, and keys that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

from trainwiz import config
from trainwiz.config import Accelerate, Document
from trainwiz.config.spelling import is_unambiguous, nearest, renamed
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
from trainwiz.finding import Fix, Level, Violation, Violations, remedy, safe, violation
from trainwiz.message import say
from trainwiz.rules.registry import rule


@rule("TW651", level=Level.ERROR, field="document")
def a_file_can_be_read(document: Document) -> Violations:
    """A configuration file must be UTF-8 text with keys and values: YAML, or JSON if its name ends in .json.

    Without it: accelerate and DeepSpeed stop with the parser's error; for an empty file, with `'NoneType' object
    has no attribute 'get'`.
    Why: tabs, comments in JSON and a comma before a closing bracket look right, but are invalid. DeepSpeed by itself
    reads past the last two; accelerate does not.
    Instead: fix the character that the finding points to.
    Source: seen with accelerate 1.15.0 (`load_config_from_file`) and Python's json
    """
    strict = config.kind_of(document) == "accelerate" or document.reader == "accelerate"
    problem = document.problem or (document.loose if strict else None)
    if problem:
        yield Violation(
            problem.message,
            Fix(message=problem.fix) if problem.fix else None,
            where="document",
            place=document.at_character(problem.at),
        )


@rule("TW688", level=Level.WARNING, field="document")
def a_json_file_is_strict(document: Document) -> Violations:
    """A DeepSpeed file should not have comments, commas before closing brackets or a byte order mark.

    Without it: accelerate and the Trainer of transformers stop with the parser's error, `JSONDecodeError`.
    Why: DeepSpeed by itself reads Hjson, which allows them; the others read JSON.
    Instead: delete what the finding points to. A key that begins with _ can contain a comment.
    Source: seen with DeepSpeed 0.19.8 (`hjson.load`) and accelerate 1.15.0 (`json.load`)
    """
    if document.loose and not document.reader and config.kind_of(document) == "deepspeed":
        yield violation(
            "{problem}; only DeepSpeed itself can read this file",
            Fix(message=document.loose.fix) if document.loose.fix else None,
            where="document",
            place=document.at_character(document.loose.at),
            problem=document.loose.message,
        )


@rule("TW689", level=Level.ERROR, field="document")
def deepspeed_refuses_a_key_that_stands_twice(document: Document) -> Violations:
    """A file passed to deepspeed.initialize must not contain a key twice at the same level.

    Without it: every rank stops with `ValueError: Duplicate keys in DeepSpeed config`.
    Why: DeepSpeed's own reader counts the keys; accelerate's uses the last value (TW652).
    Instead: delete the one that you do not want.
    Source: seen with DeepSpeed 0.19.8 (`dict_raise_error_on_duplicate_keys`)
    """
    if document.reader == "deepspeed":
        for duplicate in document.duplicates:
            path, first = ".".join(duplicate.path), document.at(duplicate.first).line
            yield violation(
                "{key} is also set in line {first}; DeepSpeed stops",
                remedy("delete line {first} or this one", first=first),
                key=path,
                first=first,
                where=path,
                place=document.at(duplicate.last),
            )


@rule("TW690", level=Level.ERROR, field="plan")
def a_plan_has_known_keys_and_legal_values(mistakes: Sequence[Violation]) -> Violations:
    """A plan contains only keys that trainwiz knows, each of them once and with a valid value.

    Without it: no command of trainwiz accepts the plan, and its other rules cannot check it.
    Why: if a misspelled key were ignored, the training would use an unintended default.
    Instead: use the nearest key or a valid value, which the message names; `trainwiz explain keys` lists them all.
    Source: `Plan` in trainwiz/plan/model.py
    """
    yield from mistakes


@rule("TW652", level=Level.WARNING, field="document")
def a_key_stands_once(document: Document) -> Violations:
    """A key must not appear twice at the same level; the last value wins.

    Without it: under accelerate, the first value is silently lost; DeepSpeed by itself rejects a JSON file with
    `Duplicate keys in DeepSpeed config`.
    Why: Python's YAML and JSON parsers use the last value.
    Instead: delete the one that you do not want.
    Source: seen with PyYAML 6.0; deepspeed/runtime/config_utils.py (`dict_raise_error_on_duplicate_keys`)
    """
    for duplicate in () if document.reader == "deepspeed" else document.duplicates:
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
def accelerate_knows_every_key_at_the_top(accelerate: Accelerate) -> Violations:
    """The top level of an accelerate file may only contain keys that this accelerate version knows.

    Without it: `accelerate launch` stops after its imports with `The config file at … had unknown keys`, and suggests
    no similar key.
    Why: files outlive versions (ipex_config was removed), and some options exist only on the command line
    (max_restarts).
    Instead: use the key as accelerate spells it, or the option of `accelerate launch`.
    Source: seen with accelerate 1.15.0; `BaseConfig.from_yaml_file` in accelerate/commands/config/config_args.py
    """
    known = SAGEMAKER_KEYS if accelerate.on_sagemaker else CLUSTER_KEYS
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
            fix = renamed(key, near, accelerate.get(key), stops=True)
        else:
            fix = _moved(accelerate, key) or remedy("delete it", {key: None})
        yield violation("accelerate has no key {key} and stops", fix, where=key, key=key)


def _moved(accelerate: Accelerate, key: str) -> Fix | None:
    """The fix that moves a key into the block where it belongs."""
    homes = {"DEEPSPEED": "deepspeed_config", "FSDP": "fsdp_config", "MEGATRON_LM": "megatron_lm_config"}
    for block, (_, known) in BLOCKS.items():
        there = accelerate.section(block) or (block == homes.get(accelerate.kind) and not accelerate.has(block))
        near = nearest(key, known) if there else None
        if near and accelerate.has(f"{block}.{near}"):
            return remedy("delete it; {key} in {block} is used", {key: None}, key=near, block=block)
        if near:
            message = say("write it as {key} under {block}", key=near, block=block)
            changes = {key: None, f"{block}.{near}": accelerate.get(key)}
            return safe(Fix(message=message, changes=changes), is_unambiguous(key, near))
    return None


@rule("TW654", level=Level.WARNING, field="document")
def accelerate_knows_every_key_in_a_block(accelerate: Accelerate) -> Violations:
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
            # TW254 reports these.
            if full in known or key in ("amax_history_length", "amax_compute_algorithm", "optimization_level"):
                continue
            # The right name may have the prefix or lack it.
            near = nearest(key, known) or nearest(full, known)
            fix = renamed(path, f"{block}.{near}", value) if near and not accelerate.has(f"{block}.{near}") else None
            if not near and block == "deepspeed_config" and (key in TOP_LEVEL_KEYS or key in ZERO_KEYS):
                # Deleting the key would lose the setting, and the DeepSpeed file may not exist yet.
                fix = remedy(
                    "this is a DeepSpeed setting: put it in a DeepSpeed file, and set deepspeed_config_file to "
                    "that file"
                )
            yield violation(
                "accelerate ignores {key}: {block} has no such key",
                fix or safe(remedy("delete it", {path: None})),
                where=path,
                key=key,
                block=block,
            )


@rule("TW655", level=Level.WARNING, field="document")
def a_block_keeps_to_its_subject(accelerate: Accelerate) -> Violations:
    """A block should not set launch arguments that belong outside of it.

    Without it: `deepspeed_config: {num_processes: 7}` starts 7 processes, whatever the top level says.
    Why: accelerate copies every entry of every block to its launch arguments, without checking where it belongs.
    Instead: move the key to the top level of the file.
    Source: seen with accelerate 1.15.0; `_validate_launch_command` in accelerate/commands/launch.py
    """
    for block in BLOCKS:
        for key, value in accelerate.section(block).items():
            if key in LAUNCH_ARGUMENTS:
                path = f"{block}.{key}"
                top = key in CLUSTER_KEYS and not accelerate.has(key)
                yield violation(
                    "{key} inside {block} sets the launch option {key} to {value}",
                    safe(remedy("move it to the top level of the file", {path: None, key: value}))
                    if top
                    else remedy("delete it here", {path: None}),
                    where=path,
                    key=key,
                    block=block,
                    value=value,
                )


def _reaches(block: str, prefix: str, key: str) -> bool:
    """Whether an entry sets a launch argument. accelerate goes by its name alone, in any block."""
    known = BLOCKS[block][1]
    if key in known or key in LAUNCH_ARGUMENTS:
        return True
    if any(key in others for _, others in BLOCKS.values()):
        return True
    # These blocks also accept names without the prefix.
    return block in ("fsdp_config", "fp8_config", "dynamo_config") and prefix + key in known
