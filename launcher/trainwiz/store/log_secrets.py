"""Hiding the secrets in a run's logs once its ranks have ended."""

from __future__ import annotations

from pathlib import Path

from trainwiz import files
from trainwiz.record import redaction

_HIDING_BYTES = 1 << 14
_KEY_BEGINS, _KEY_ENDS = b" PRIVATE KEY-----", b"-----END "


# docs/decisions/launching.md: Variables are recorded by name; secrets are hidden by name, shape and value
def hide_secrets(file: Path, secrets: frozenset[str]) -> bool:
    """Overwrite what looks like a secret in a log that nobody writes any more; False if that failed.

    A line keeps its length, so that no space is needed on a full disk and every place in the log stays where it was.
    """
    in_key = False
    try:
        with files.opened(file), file.open("r+b") as stream:
            while block := stream.readlines(_HIDING_BYTES):
                if not in_key and not _has_secret(b"".join(block), secrets):
                    continue
                start = stream.tell() - sum(map(len, block))
                lines = []
                for line in block:
                    in_key |= _KEY_BEGINS in line
                    lines.append(_without_key(line) if in_key else _without_secrets(line, secrets))
                    in_key &= _KEY_ENDS not in line
                stream.seek(start)
                stream.write(b"".join(lines))
    except OSError:
        return False
    return True


def _has_secret(content: bytes, secrets: frozenset[str]) -> bool:
    words = content.decode("utf-8", "surrogateescape")
    return redaction.text(words, secrets) != words


def _without_secrets(line: bytes, secrets: frozenset[str]) -> bytes:
    body = line.rstrip(b"\r\n")
    hidden = redaction.text(body.decode("utf-8", "surrogateescape"), secrets).encode("utf-8", "surrogateescape")
    return hidden[: len(body)].ljust(len(body)) + line[len(body) :]


def _without_key(line: bytes) -> bytes:
    body = line.rstrip(b"\r\n")
    return b"*" * len(body) + line[len(body) :]
