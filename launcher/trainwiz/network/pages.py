"""A server of pages for the person at this machine: on loopback only, behind a token in the address."""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LOOPBACK = "127.0.0.1"
_HOSTS = (LOOPBACK, "localhost", "[::1]")
"""What a browser may call this server, also through a tunnel; any other name is another site's."""
_SECONDS = 20.0
"""For a part of a request; a connection that says nothing holds a thread."""
_MOST_SECONDS = 120.0
"""For a connection."""
_MOST_CONNECTIONS = 32
"""Each holds a thread. A newer one takes the place of the oldest: other users of this machine can open many."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is sent."""

    body: str
    """The text or bytes of the answer."""
    kind: str = "text/html"
    """Its media type."""
    policy: str = "default-src 'none'"
    """The Content-Security-Policy."""
    status: int = 200
    """The status code of HTTP."""


Query = Mapping[str, list[str]]
Answer = Callable[[str, Query], Page | None]
"""The page of a path behind the token, and of its query; None: there is none. Several threads ask at once."""


class PageServer:
    """Serves what `answer` returns, to whoever knows the token. Raises `OSError` where no port is free.

    `port` is the first that is tried; a tunnel over ssh needs a number that does not change each time.
    """

    def __init__(self, answer: Answer, port: int, tries: int = 20) -> None:
        self.token = secrets.token_urlsafe(16)
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer), "token": self.token})
        for number in range(port, port + tries):
            try:
                self._server = _Server((LOOPBACK, number), handler)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or number == port + tries - 1:
                    raise
        self.port = int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def serve(self) -> None:
        """Answer until `close` is called or Ctrl-C is pressed."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()

    def release(self) -> None:
        """Give the port back."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *given: Any) -> None:
        self._open: dict[socket.socket, float] = {}
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, of which there are not many."""
        for oldest in list(self._open)[: -(_MOST_CONNECTIONS - 1)]:
            self._drop(oldest)
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It was answered."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Drop those that send or take a byte now and then."""
        for request, began in list(self._open.items()):
            if time.monotonic() - began > _MOST_SECONDS:
                self._drop(request)

    def _drop(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about a browser that closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    answer: Answer
    token: str
    timeout = _SECONDS
    server_version, sys_version = "trainwiz", ""

    def do_GET(self) -> None:
        """Send a page or 404; without the token, always 404."""
        page = self._page()
        body = page.body.encode("utf-8", "replace")
        self.send_response(page.status)
        self.send_header("Content-Type", f"{page.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", page.policy)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def _page(self) -> Page:
        missing = Page(body="", status=404, kind="text/plain")
        if self.headers.get("Host", "").rpartition(":")[0] not in _HOSTS:
            return missing
        try:
            address = urlsplit(self.path)
        except ValueError:
            return missing
        _, _, rest = address.path.partition("/")
        token, slash, path = rest.partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.token.encode()):
            return missing
        try:
            query = parse_qs(address.query, max_num_fields=200)
        except ValueError:
            return missing
        return type(self).answer(unquote(path), query) or missing

    def log_message(self, *_: object) -> None:
        """The address holds the token, which belongs in no log."""
