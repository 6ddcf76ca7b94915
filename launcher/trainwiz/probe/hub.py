"""Whether the model hub answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

from trainwiz.language import t
from trainwiz.probe.cache import offline
from trainwiz.probe.limit import within
from trainwiz.surroundings import Hub

SECONDS = 4.0


def look(environ: Mapping[str, str] = os.environ, *, seconds: float = SECONDS) -> Hub:
    """Whether the model hub answers a request without a token."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if variable := offline(environ):
        return Hub(endpoint=endpoint, offline=variable)
    try:
        within(seconds, lambda: _ask(endpoint, seconds))
    except Exception as error:
        return Hub(endpoint=endpoint, reachable=False, detail=str(getattr(error, "reason", error)))
    return Hub(endpoint=endpoint, reachable=True)


def _ask(endpoint: str, seconds: float) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(t("HF_ENDPOINT is not an http(s) address"))
    parts = urlsplit(endpoint)  # urllib takes a password for part of the port, and shows it in its error
    address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        urlopen(Request(address, method="HEAD"), timeout=seconds).close()
    except HTTPError as error:
        error.close()  # an answer, even if an error
        if error.code >= 500:
            raise ValueError(f"HTTP {error.code}") from None
