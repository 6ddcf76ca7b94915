"""Hiding secrets. This is the only place that decides what is a secret.

Everything that trainwiz shows or records of command lines, variables and logs passes through here: `arguments` and
`recorded` for what goes into `command.json`, `text` and `values` for what programs wrote. A secret is recognised by the
name of its option or variable, and by the published prefixes of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
_NAME = re.compile(
    r"(?i)(?:token|secret|passw(?:or)?d|passphrase|api_?key|credentials?|access_?key(?:_?id)?|private_?key|cookie|jwt)s?$"
)
# Hugging Face, OpenAI, GitHub, AWS and Slack tokens by their published prefixes; a password inside a URL.
_VALUE = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|xox[abprs]-)[A-Za-z0-9_-]{8,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_TOKENS = re.compile(r"(?i)tokens?$")
_SHORTEST = 6
"""Characters; a shorter secret would also be found in ordinary words."""

RECORDED = re.compile(
    r"(?:ACCELERATE|CUDA|CUBLAS|CUDNN|DEEPSPEED|DS|FSDP|GLOO|GROUP|HF|KMP|LOCAL|MASTER|MKL|NCCL|NVIDIA|OMP|PALS|PMI"
    r"|PYTORCH|ROLE|TOKENIZERS|TORCH|TORCHELASTIC|TORCHINDUCTOR|TP|TRAINWIZ|TRANSFORMERS|TRITON|UCX|XLA)_\w+"
    r"|CROSS_RANK|LD_LIBRARY_PATH|LD_PRELOAD|MIXED_PRECISION|PYTHONPATH|PYTHONUNBUFFERED|PYTHONHASHSEED|RANK|WORLD_SIZE"
)
"""The variables that affect a training, beside those of a cluster; the values of all others are never recorded."""


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
            shown.append(_VALUE.sub(HIDDEN, word))
        waiting = "" if equals or shown[-1] == HIDDEN else name
    return shown


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with secrets hidden."""
    return {name: HIDDEN if _is_secret(name, value) else _VALUE.sub(HIDDEN, value) for name, value in variables.items()}


def settings(named: Mapping[str, Any], secrets: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The settings of a script with secrets hidden."""
    return {
        name: HIDDEN if isinstance(value, str) and value and _is_secret(name, value) else values(value, secrets)
        for name, value in named.items()
    }


def recorded(variables: Mapping[str, str], prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """The environment variables that may be recorded, with secrets hidden; `prefixes` are those of the cluster."""
    # docs/decisions/launching.md: Variables are recorded by an allow-list; secrets are hidden by name, shape and value
    return environment({n: value for n, value in variables.items() if RECORDED.fullmatch(n) or n.startswith(prefixes)})


def known(argv: Sequence[str], variables: Mapping[str, str]) -> frozenset[str]:
    """The secrets themselves, to be hidden in text that repeats them."""
    hidden = {value for name, value in variables.items() if _is_secret(name, value)}
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
    return _VALUE.sub(HIDDEN, words)


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
    return bool(_NAME.search(name)) and not (_TOKENS.search(name) and value.isdecimal())
