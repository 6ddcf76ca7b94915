"""A debugger's side of the Debug Adapter Protocol, as an editor speaks it to debugpy.

https://microsoft.github.io/debug-adapter-protocol/specification
"""

import json
import socket
import time
from pathlib import Path
from typing import Any

from patience import patience


class Debugger:
    """Attached to one rank; `stopped` waits for a breakpoint."""

    def __init__(self, port: int, *, within: float = 180) -> None:
        self.connection = _connected(port, within)
        self.connection.settimeout(within)
        self.stream = self.connection.makefile("rb")
        self.number = 0
        self.events: list[dict[str, Any]] = []
        self.ask("initialize", adapterID="python", clientID="tests", linesStartAt1=True, pathFormat="path")
        self.attaching = self.send("attach", justMyCode=False)
        self.event("initialized")

    def breakpoint(self, file: Path, line: int) -> None:
        """Stop there."""
        found = self.ask("setBreakpoints", source={"path": str(file)}, breakpoints=[{"line": line}])
        assert [b["verified"] for b in found["breakpoints"]] == [True], found

    def go(self) -> None:
        """Everything is set: let the program begin."""
        self.ask("configurationDone")
        self.response(self.attaching)

    def stopped(self) -> tuple[int, str, int]:
        """Wait for a stop; thread, file and line."""
        thread = self.event("stopped")["threadId"]
        frame = self.ask("stackTrace", threadId=thread, levels=1)["stackFrames"][0]
        self.frame = frame["id"]
        return thread, Path(frame["source"]["path"]).name, frame["line"]

    def value(self, expression: str) -> str:
        """An expression where it stands."""
        return str(self.ask("evaluate", expression=expression, frameId=self.frame)["result"])

    def clear(self, file: Path) -> None:
        """No breakpoints any more."""
        self.ask("setBreakpoints", source={"path": str(file)}, breakpoints=[])

    def resume(self, thread: int) -> None:
        """Go on."""
        self.ask("continue", threadId=thread)

    def leave(self) -> None:
        """Detach; the program goes on."""
        self.ask("disconnect", terminateDebuggee=False)
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self.stream.close()
        self.connection.close()

    def __enter__(self) -> "Debugger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """A request and its answer."""
        return self.response(self.send(command, **arguments))

    def send(self, command: str, **arguments: Any) -> int:
        self.number += 1
        body = json.dumps({"seq": self.number, "type": "request", "command": command, "arguments": arguments}).encode()
        self.connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self.number

    def response(self, number: int) -> dict[str, Any]:
        while True:
            message = self.message()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                body: dict[str, Any] = message.get("body") or {}
                return body
            if message["type"] == "event":
                self.events.append(message)

    def event(self, name: str) -> dict[str, Any]:
        while True:
            for i, message in enumerate(self.events):
                if message["event"] == name:
                    body: dict[str, Any] = self.events.pop(i).get("body") or {}
                    return body
            message = self.message()
            if message["type"] == "event":
                self.events.append(message)

    def message(self) -> dict[str, Any]:
        length = 0
        while line := self.stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the debuggee has gone"
        message: dict[str, Any] = json.loads(self.stream.read(length))
        return message


def _connected(port: int, within: float) -> socket.socket:
    until = time.monotonic() + within * patience()
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=within)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
