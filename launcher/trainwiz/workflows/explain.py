"""`trainwiz explain`: the manual of the rules and of the plan's keys."""

from __future__ import annotations

import json
import sys
import typing
from typing import TYPE_CHECKING, Any

from trainwiz import plan, questions, rules
from trainwiz.errors import UsageError
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.rules import selection
from trainwiz.ui import console, manual

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from trainwiz.rules.registry import Rule

KEYS = "keys"
_ROOTS = ("task", "engine", "seed", "deepspeed", "ignore")
"""Keys of the plan without a dot; with one, a topic is always a key."""


def explain(topic: str, *, as_markdown: bool, as_json: bool = False) -> None:
    """Show the entry of a rule or key, the list of the rules whose ids begin so, or all keys."""
    keys = _keys(topic)
    if as_json:
        console.data_json([_key_values(key, _known_key(key)) for key in keys] or _values(topic))
    elif keys:
        for key in keys:
            _show_key(key)
    elif topic.lower() == KEYS:
        for key, info in plan.fields().items():
            _show_entry(key, info)
    else:
        _show_rules(topic, as_markdown)


def _keys(topic: str) -> list[str]:
    """The keys of the plan that a topic names: in full, or by the part behind the dot; none for rules."""
    if "." in topic or topic in _ROOTS:
        return [topic]
    return [key for key in plan.fields() if key.rpartition(".")[2] == topic]


def _values(topic: str) -> list[dict[str, Any]]:
    """The same for programs: always a list, of one entry for a single rule or key."""
    if topic.lower() == KEYS:
        return [_key_values(key, info) for key, info in plan.fields().items()]
    return [manual.to_dict(rule) for rule in _chosen(topic)]


def _key_values(key: str, info: FieldInfo) -> dict[str, Any]:
    decided = info.is_required()
    default = None if decided else info.get_default(call_default_factory=True)
    shown = {"key": key, "legal": _words(info), "decided_by_init": decided, "default": default, "help": _help(key)}
    return {**shown, "choices": choices} if (choices := _choices(key)) else shown


def _chosen(topic: str) -> list[Rule]:
    known = rules.load()
    chosen = [rule for rule in known if rule.id.startswith(topic.strip().upper())]
    if not chosen:
        raise selection.unknown(topic, [rule.id for rule in known])
    return chosen


def _show_rules(topic: str, as_markdown: bool) -> None:
    chosen = _chosen(topic)
    if as_markdown:
        console.data(manual.markdown(chosen).rstrip("\n"))
    elif len(chosen) == 1:
        manual.show(chosen[0])
    else:
        manual.show_list(chosen)


def _show_key(key: str) -> None:
    _show_entry(key, _known_key(key))
    choices = _choices(key)
    width = max(map(len, choices), default=0)
    for value, meaning in choices.items():
        for line in console.fitted(meaning, first=f"    {value:{width}}  ", rest=" " * (width + 6), stream=sys.stdout):
            console.data(line)


def _known_key(key: str) -> FieldInfo:
    info = plan.fields().get(key)
    if info is None:
        raise UsageError(plan.unknown_key(key), say("list all keys: trainwiz explain keys"))
    return info


def _show_entry(key: str, info: FieldInfo) -> None:
    console.data(f"{key}: {_legal(info)}")
    if help := _help(key):
        for line in console.fitted(help, first="    ", rest="    ", stream=sys.stdout):
            console.data(line)


def _help(key: str) -> str:
    if key == "ignore":
        return t(
            "Rules to ignore in this project, each with the reason why. On the command line: --set "
            "ignore.TW416=REASON, repeatable."
        )
    if key == "deepspeed":
        return t(
            "DeepSpeed settings that are not keys of a plan, by their path in ds_config.json; null leaves a "
            "setting to DeepSpeed. On the command line: --set "
            "deepspeed.zero_optimization.reduce_bucket_size=200000000, repeatable."
        )
    try:
        return text(Message(questions.question_for(key).help))
    except KeyError:
        return ""


def _choices(key: str) -> dict[str, str]:
    """What each legal value means, where a question lists them for this key alone."""
    asked = [question for question in (*questions.ADVANCED, *questions.BASIC) if question.sets == (key,)]
    return {choice.value: text(choice.label) for question in asked[:1] for choice in question.choices}


def _words(info: FieldInfo) -> str:
    """The legal values, or their type."""
    kind: Any = info.annotation
    alternatives = [part for part in (kind, *typing.get_args(kind)) if typing.get_origin(part) is typing.Literal]
    choices = [choice for part in alternatives for choice in typing.get_args(part)]
    return " | ".join(str(choice) for choice in choices) if choices else _type_name(kind)


def _legal(info: FieldInfo) -> str:
    words = _words(info)
    if info.is_required():
        return t("{legal} (decided by init)", legal=words)
    default = json.dumps(info.get_default()).strip('"')
    return t("{legal} (default: {default})", legal=words, default=default)


def _type_name(kind: Any) -> str:
    names = {
        int: t("integer"),
        float: t("number"),
        bool: t("true or false"),
        str: t("string"),
        dict: t("mapping"),
        type(None): t("null"),
    }
    if typing.get_origin(kind) is dict:
        return names[dict]
    parts = typing.get_args(kind) or (kind,)
    bare = [typing.get_args(part)[0] if hasattr(part, "__metadata__") else part for part in parts]
    return " | ".join(names[part] for part in bare if part in names)
