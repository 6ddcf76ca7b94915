"""Hiding secrets. This is the only place that decides what is a secret.

Everything that trainwiz shows or records of command lines, variables and logs passes through here: `arguments` and
`recorded` for what goes into `command.json`, `text` and `values` for what programs wrote. A secret is recognized by the
name of its option or variable, and by the shapes of tokens (`record/tokens.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainwiz.record import tokens
from trainwiz.record.tokens import HIDDEN
from trainwiz.record.variables import FAMILIES, RECORDED

_NAME = re.compile(
    r"(?i)(?:token|secret|passw(?:or)?d|passphrase|credentials?|cookie|jwt|bearer|auth_?string|(?:^|_)(?:pass|pwd|pin|dsn)"
    r"|(?:api|access|account|auth|encryption|hub|master|private|secret|service|signing|ssh|storage|wandb)_?key(?:_?id)?)s?$"
)
_VARIABLE = re.compile(r"(?i)(?:^|_)(?:key|auth|authorization|sas|signature|session)s?$")
"""Names of variables that hold secrets. An option of that name is rather the key of a column: --text_key content."""
_WITHIN = re.compile(
    r"(?i)(?:^|_)(?:token|secret|passw(?:or)?d|passphrase|credential|cookie|jwt|bearer|(?:api|access|private|signing)_?key)"
    r"s?_(?!(?:\w+_)?(?:count|dir|directory|disabled?|enabled?|expires?|file|folder|home|host|ids?|len|length|limit|manager|map|max"
    r"|min|name|parallelism|path|port|provider|size|sock|store|timeout|ttl|type|ur[il]|user|version)s?$)"
)
"""The same if the name continues, as in `TORCH_SECRET_X`, unless it then names a container or a measure of a secret."""
_TOKENS = re.compile(r"(?i)tokens?$")
_OF_A_TOKENIZER = re.compile(r"(?i)(?:add|added|special|stop|bos|eos|pad|unk|sep|cls|mask|image|audio|video)_tokens?$")
"""Names of words and marks of a vocabulary."""
_SHORTEST = 6
"""Characters; a shorter secret would also be found in ordinary words."""


def arguments(argv: Sequence[str]) -> list[str]:
    """Command-line arguments with secrets hidden."""
    shown: list[str] = []
    waiting = ""
    for word in argv:
        option, equals, value = word.partition("=")
        name = option.replace("-", "_") if option.startswith("-") else ""
        if waiting and _is_secret(waiting, word):
            shown.append(HIDDEN)
        elif name and equals and _is_secret(name, value):
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(tokens.hidden(word))
        waiting = "" if equals or shown[-1] == HIDDEN else name
    return shown


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with secrets hidden."""
    return {
        name: HIDDEN if _is_secret_variable(name, value) else tokens.hidden(value) for name, value in variables.items()
    }


def settings(named: Mapping[str, Any], secrets: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The settings of a script with secrets hidden."""
    return {
        name: HIDDEN if isinstance(value, str) and value and _is_secret(name, value) else values(value, secrets)
        for name, value in named.items()
    }


def recorded(variables: Mapping[str, str], prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that may be recorded; of their relatives, only that they are set.

    `prefixes` are those of the cluster.
    """
    # docs/decisions/launching.md: Variables are recorded by name; secrets are hidden by name, shape and value
    relatives = (*FAMILIES, *prefixes)
    kept = {
        name: value if name in RECORDED else HIDDEN for name, value in variables.items() if _is_kept(name, relatives)
    }
    return environment(kept)


def _is_kept(name: str, relatives: tuple[str, ...]) -> bool:
    return name in RECORDED or name.startswith(relatives)


def known(argv: Sequence[str], variables: Mapping[str, str]) -> frozenset[str]:
    """The secrets themselves, to be hidden in text that repeats them."""
    hidden = {value for name, value in variables.items() if _is_secret_variable(name, value)}
    for word, shown in zip(argv, arguments(argv), strict=True):
        if shown.endswith(HIDDEN) and shown != word:
            option, equals, value = word.partition("=")
            hidden.add(value if equals and option.startswith("-") else word)
    return frozenset(value for value in hidden if len(value) >= _SHORTEST)


def text(words: str, secrets: frozenset[str] = frozenset()) -> str:
    """Text with the known secrets, and everything that looks like a token, hidden."""
    # The longest first, since a secret may begin with another one.
    for secret in sorted(secrets, key=len, reverse=True):
        words = words.replace(secret, HIDDEN)
    return tokens.hidden(words)


def values(value: Any, secrets: frozenset[str] = frozenset()) -> Any:
    """The same for every string in nested lists and mappings."""
    if isinstance(value, str):
        return text(value, secrets)
    if isinstance(value, Mapping):
        return {key: values(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [values(item, secrets) for item in value]
    return value


def _is_secret(name: str, value: str) -> bool:
    # `--max_new_tokens=128` is a number of tokens, not a secret.
    number = _TOKENS.search(name) and value.isdecimal()
    return bool(_NAME.search(name)) and not number and not _OF_A_TOKENIZER.search(name)


def _is_secret_variable(name: str, value: str) -> bool:
    # The shell keeps the working directory in PWD, which is in every path that is printed.
    if name == "PWD":
        return False
    within = _WITHIN.search(name) and not _TOKENS.search(name) and not value.isdecimal()
    return _is_secret(name, value) or bool(within or _VARIABLE.search(name))
