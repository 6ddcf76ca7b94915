"""Secrets that are recognized by their shape, wherever they occur."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

HIDDEN = "***"
_compiled = functools.cache(re.compile)
"""Long patterns take longer to compile than most commands run, and few texts have one of the cues."""

_MADE_BY_SERVICES = (
    # As their makers publish them, with at least as many characters as the shortest has.
    r"(?:hf_|api_org_|sk-|sk_live_|rk_live_|gh[pousr]_|github_pat_|gl(?:pat|rt|dt|ft|ptt|soat)-|xox[abeprs]-|xapp-|npm_|pypi-|nvapi-|gsk_|r8_)"
    r"[A-Za-z0-9_-]{8,512}"
    r"|(?:dckr_pat_|pplx-|lsv2_pt_|wandb_v\d_|dop_v1_|hvs\.|AGE-SECRET-KEY-1|shp(?:at|ca|pa|ss)_|sq0[a-z]{3}-)[A-Za-z0-9_-]{8,512}"
    r"|eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/=_-]{8,4096}"  # Neptune's
    # Addresses that anybody who knows them may send to.
    r"|hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_+-]{8,512}"
    r"|discord(?:app)?\.com/api/webhooks/\d{1,32}/[A-Za-z0-9_-]{8,512}"
    r"|webhook\.office\.com/[A-Za-z0-9/@_-]{8,512}"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/[A-Za-z0-9-]{8,512}"
    r"|bot\d{6,12}:[A-Za-z0-9_-]{30,64}"  # Telegram's
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{35}"
    r"|ya29\.[A-Za-z0-9_-]{16,512}"
    r"|dapi[0-9a-f]{32}"
    r"|SG\.[A-Za-z0-9_-]{16,512}\.[A-Za-z0-9_-]{16,512}"
    r"|eyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{4,4096}(?:\.[A-Za-z0-9_-]*)?"  # JSON web tokens: RFC 7519
)
_COLOR = re.compile(r"\x1b\[[0-9;]{0,20}[mK]")
_ESCAPED = (
    # What is written before a token may end with a letter: a color, `\n` in a quoted text, `%3D` in an address.
    r"(?<=[0-9;\[]m)|(?<=\[K)|(?<=\[[0-2]K)|(?<=\\[abfnrtv0])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=%[0-9A-Fa-f]{2})"
)
_WORD = rf"(?:\b|{_ESCAPED})"
_BEGIN = rf"(?:(?<![A-Za-z0-9_])|{_ESCAPED})"
_WHOLE = (
    rf"(?=[a-eghlnoprswxyAS]){_BEGIN}(?:{_MADE_BY_SERVICES})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_WHOLE_CUES = (
    *(
        "hf_",
        "api_org_",
        "sk-",
        "sk_live_",
        "rk_live_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "glrt-",
        "gldt-",
        "glft-",
        "glptt-",
        "glsoat-",
    ),
    *("xox", "xapp-", "npm_", "pypi-", "nvapi-", "gsk_", "r8_", "dckr_pat_", "pplx-", "lsv2_pt_", "wandb_v", "AKIA"),
    *("shp", "sq0", "dop_v1_", "hvs.", "AGE-SECRET", "hooks.slack", "/webhooks/", "webhook.office", "/bot"),
    *("ASIA", "AROA", "AIDA", "AIza", "ya29.", "dapi", "SG.", "eyJ", "PRIVATE KEY"),
)
"""One of these is in every text that `_WHOLE` changes; looking for them is many times faster."""
_URL = (
    r"(?:(?<=://)|(?<=\w:/))(?!(?:localhost|[^/\s:@]{0,256}\.[^/\s:@]{1,256}):\d{1,5}[/?#])"
    r"[^/\s:@]{0,256}:[^\s@]{1,512}(?=@)"
    r"|(?<=://)(?=[A-Za-z_-]{0,256}\d)[\w-]{20,256}(?=@)"
)
"""User and password in a URL, also in one that was taken for a path and lost a slash. The port of a host is none.

A token may stand there alone.
"""
_PARAMETER = (
    r"[?&](?:access_token|api_?key|auth|key|sig|signature|token|x-(?:amz|goog)-(?:credential|security-token|signature))"
)
"""Of a URL, where a token follows."""
_AFTER = (
    # What follows a header, a parameter of a URL, or a name that is only given to secrets.
    rf"(?i)((?=[abcls]){_WORD}(?:bearer(?:\s+|\s?:\s?)(?=\S*[\d._~+/=-])|bearer\s+(?=\S{{24}})"
    r"|authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|token)\s+|(?=[^\s\"']{20}))"
    r"|(?:set-)?cookie[\"']?\s*:\s*[\"']?[\w.-]{1,64}=|login\s+\S{1,256}\s+password\s+"
    r"|api_?key\s+(?=[^\s\"']*\d)(?=[^\s\"']{16})|curl\s[^\n]{0,512}?(?<=\s)(?:-u|--user)\s*[^\s:]{1,256}:)"
    rf"|{_PARAMETER}="
    r"|(?:passw(?:or)?d|passphrase|secret|\w_pwd"
    r"|(?:api|access|secret|private|account|wandb|hub|encryption|signing|ssh|auth)[ _-]?key(?:_?id)?|authkey"
    r"|(?:access|auth|hf|hub|api|bearer|refresh|session|security)[_-]?token)[\"']?\s*[:=]\s*[\"']?"
    r"|(?:admin|api|db|ftp|git|ldap|login|mail|mongo|mysql|pg|proxy|redis|root|smtp|ssh|sudo|user)_?pass[\"']?\s*[:=]\s*[\"']?|\bpwd\s*=\s*(?![/~.\\]|\w:)|\b(?:docker|podman)\s+login\s[^\n]{0,256}?(?<=\s)-p\s+"
    # Options, but not the words in capitals or brackets that stand for their values in a program's help.
    r"|(?<!\S)--?(?:\w[\w-]{0,63}[_-])?(?:secret|passw(?:or)?d|passphrase|(?:api|access|private)[_-]?key)\s+"
    r"(?![-<\[{]|(?-i:[A-Z_]+)(?:\s|\Z))"
    r"|\b(?:oauth2|x-access-token|__token__):(?=[^\s@]{6,512}@)"
    rf"|(?=[_-]?t)(?:{_WORD}|[_-])token(?:[\"']?\s?[:=]\s?[\"']?|\s+)(?=[^\s\"']*\d)(?=[^\s\"']*[A-Za-z])(?=[^\s\"']{{16}}))"
    r"(?!(?:None|null|true|false)\b)([^\s\"'&,;}\])]{6,})"
)
_IN_URL = rf"(?i)({_PARAMETER}=)[^\s\"'&,;}}\])]{{5,}}[^\s\"'&,;:}}\])]"
_AFTER_CUES = (
    "bearer",
    "curl",
    "authorization",
    "pass",
    "secret",
    "key",
    *("_token", "-token", "token=", "token:", "token ", "token'", 'token"', "oauth2:", "__token__:"),
    "sig=",
    "signature=",
    "auth=",
    "x-amz-",
    "x-goog-",
    "cookie",
    "pwd",
    "login",
)
"""The same for `_AFTER`, in small letters."""
_HEX = re.compile(rf"(?:(?<![0-9A-Za-z_-])|{_ESCAPED})[0-9a-f]{{40}}(?![0-9A-Za-z_-])")
_HASHES = re.compile(r"(?i)(?:commit|revision|rev|sha1?|hash|head|snapshots?|tree|blob|resolve|digest|@)\W*$")
"""What stands before a commit; a Weights & Biases key has the same shape."""
_BEFORE = 16


def without_passwords(words: str) -> str:
    """Text with users, passwords and tokens of URLs hidden."""
    if ":/" not in words:
        return words
    if "@" in words:
        words = _compiled(_URL).sub(HIDDEN, words)
    return _compiled(_IN_URL).sub(rf"\1{HIDDEN}", words) if "=" in words else words


def hidden(words: str, cover: Callable[[str], str] = lambda _: HIDDEN) -> str:
    """Text with everything that looks like a token hidden: `cover` says what stands in its place."""
    if any(cue in words for cue in _WHOLE_CUES):
        words = _compiled(_WHOLE).sub(lambda match: cover(match[0]), words)
    if ":/" in words and "@" in words:
        words = _compiled(_URL).sub(lambda match: cover(match[0]), words)
    lowered = words.lower()
    if any(cue in lowered for cue in _AFTER_CUES):
        words = _compiled(_AFTER).sub(lambda match: f"{match[1]}{cover(match[2])}", words)
    return _HEX.sub(lambda m: m[0] if _is_commit(words, m.start()) else cover(m[0]), words)


def _is_commit(words: str, start: int) -> bool:
    """Whether what stands before a place says that a commit begins there."""
    return _HASHES.search(_COLOR.sub("", words[max(0, start - _BEFORE) : start])) is not None


def starred(words: str) -> str:
    """The same with a star for each character of what is hidden, where columns count."""
    return hidden(words, lambda secret: "*" * len(secret))
