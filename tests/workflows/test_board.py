"""`trainwiz board`: the page of a project's runs, who may see it, and how fast it is there."""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from patience import patience
from test_history import CHROMIUM, EVIL, NAMES, Page, alive, browse, record

from trainwiz import language
from trainwiz.network import pages
from trainwiz.network.pages import PageServer
from trainwiz.store.runs import Run
from trainwiz.workflows import board
from trainwiz.workflows.board import Board

DIAGNOSIS = {
    "how": {"template": "rank 1 failed first", "values": {}, "text": "rank 1 failed first"},
    "cause": {"template": "the GPU ran out of memory", "values": {}, "text": "the GPU ran out of memory"},
    "remedy": {"template": "halve the micro-batch", "values": {}, "text": "halve the micro-batch"},
    "known": True,
    "last_lines": [EVIL],
}
LOOKS = 8
"""At most, until a browser has painted the page in the time that is promised."""
SECRET = "hf_" + "a1B2" * 9


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    language.choose([], {})
    yield
    language.choose([], {})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three runs: one that failed, one that is done, one that goes on."""
    folder = tmp_path / "project"
    record(folder, NAMES[0], range(1, 6), outcome={"exit_code": 1, "diagnosis": DIAGNOSIS}, plan={"seed": 1})
    record(folder, NAMES[1], range(1, 9), outcome={"exit_code": 0}, plan={"seed": 2, "model": {"name": EVIL}})
    running = record(folder, NAMES[2], range(1, 4), **alive())
    running.log(0).write_text(f"token {SECRET}\n{EVIL}\n")
    return folder


@pytest.fixture
def served(project: Path) -> Iterator[PageServer]:
    yield from serving(project)


def serving(project: Path) -> Iterator[PageServer]:
    server = PageServer(Board(project).page, 18017)
    threading.Thread(target=server.serve, daemon=True).start()
    yield server
    server.close()
    server.release()


def get(server: PageServer, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60 * patience())
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_only_who_knows_the_token_sees_anything(served: PageServer) -> None:
    status, text, headers = get(served, f"/{served.token}/")
    assert status == 200
    assert NAMES[0] in text
    assert "script-src 'nonce-" in headers["Content-Security-Policy"]
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
    for path in ("/", "/runs", f"/{served.token}", "/x/runs", f"/{served.token}x/", "/%00/"):
        assert get(served, path)[:2] == (404, ""), path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8017", "127.0.0.1.evil.example:80", ""])
def test_a_page_of_another_site_sees_nothing(served: PageServer, host: str) -> None:
    """Not even where a name of its own leads to this machine."""
    assert get(served, f"/{served.token}/", Host=host)[0] == 404


def test_a_tunnel_may_have_another_port(served: PageServer) -> None:
    assert get(served, f"/{served.token}/", Host="localhost:9999")[0] == 200


def test_nobody_but_this_machine_can_connect(served: PageServer) -> None:
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{served.port:04X} 00000000:0000 0A" in listening
    assert f"00000000:{served.port:04X} " not in listening


@pytest.mark.parametrize("name", ["../../etc", "/etc", "..", "latest", "", NAMES[0] + "/../" + NAMES[1], "%2e%2e"])
def test_a_run_is_named_and_never_a_path(served: PageServer, name: str) -> None:
    for page in ("run", "log"):
        assert get(served, f"/{served.token}/{page}?run={quote(name)}")[0] == 404
    assert get(served, f"/{served.token}/log?run={NAMES[0]}&rank=../../command")[0] == 200  # of the first rank


@pytest.mark.parametrize(
    "rest", ["log?run={run}&rank=" + "9" * 9000, "log?run={run}&rank=%D9%A3", "runs?" + "a=1&" * 500]
)
def test_odd_queries_are_answered(served: PageServer, rest: str) -> None:
    assert get(served, f"/{served.token}/{rest.format(run=NAMES[2])}")[0] in (200, 404)


def test_what_is_no_address_is_answered(served: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60 * patience()) as connection:
        connection.sendall(f"GET http://[/ HTTP/1.1\r\nHost: localhost:{served.port}\r\n\r\n".encode())
        assert connection.makefile("rb").readline() == b"HTTP/1.0 404 Not Found\r\n"


def test_whoever_holds_connections_keeps_nobody_out(served: PageServer) -> None:
    """Requests without an end, and lines and headers without one."""
    before = threading.active_count()
    held = [
        socket.create_connection(("127.0.0.1", served.port), timeout=60 * patience())
        for _ in range(3 * pages._MOST_CONNECTIONS)
    ]
    for i, one in enumerate(held):
        with contextlib.suppress(OSError):
            one.sendall((b"GET /", b"GET / HTTP/1.1\r\nA: ", b"G" * 70_000, b"\0")[i % 4])
    assert get(served, f"/{served.token}/")[0] == 200
    until = time.monotonic() + 60 * patience()
    while threading.active_count() > before + pages._MOST_CONNECTIONS and time.monotonic() < until:
        time.sleep(0.05)
    assert threading.active_count() <= before + pages._MOST_CONNECTIONS
    for one in held:
        one.close()


def test_who_sends_a_byte_now_and_then_is_dropped(served: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60 * patience()) as slow:
        slow.sendall(b"G")
        assert slow.recv(1) == b""


def test_logs_hide_secrets_and_show_no_markup(served: PageServer) -> None:
    _, text, _ = get(served, f"/{served.token}/log?run={NAMES[2]}&rank=0")
    assert SECRET not in text
    assert "token" in text
    assert "<script" not in text
    assert "<img" not in text


@pytest.mark.parametrize("shown", [20, 200, 1200])
def test_a_secret_that_the_page_would_cut_is_hidden(served: PageServer, project: Path, shown: int) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "CANARYkey\n" * 200 + "-----END PRIVATE KEY-----\n"
    for secret in (SECRET + "\n", key):
        rest = "x" * (board._LOG_BYTES - shown) + "\n"
        Run(project / "runs" / NAMES[2]).log(0).write_text(f"token {secret}{rest}")
        _, text, _ = get(served, f"/{served.token}/log?run={NAMES[2]}&rank=0")
        assert "CANARYkey" not in text
        assert SECRET[-12:] not in text


def test_what_differs_between_two_runs(served: PageServer) -> None:
    _, text, _ = get(served, f"/{served.token}/diff?run={NAMES[0]}&run={NAMES[1]}")
    assert re.search(r"<code>seed</code></td><td>1</td><td><b>2</b>", text)
    assert "<script" not in text
    assert get(served, f"/{served.token}/diff?run={NAMES[0]}")[0] == 404


def test_curves_of_the_chosen_runs(served: PageServer) -> None:
    path = f"/{served.token}/compare?run={NAMES[0]}&run={NAMES[1]}"
    _, text, _ = get(served, path)
    loss = text[text.index("<svg") : text.index("</svg>")]
    assert re.findall(r"<title>(.*?)</title>", loss) == [NAMES[0], NAMES[1]]
    assert loss.count("--curve-0") >= 1
    _, nothing, _ = get(served, f"/{served.token}/compare")
    assert "<svg" not in nothing
    assert "No run is checked" in nothing


def test_runs_with_something_to_compare_are_compared_at_first(served: PageServer, project: Path) -> None:
    """Five that failed before the first update are newer: none of them is checked, and why is said of any that is."""
    silent = [f"2031-01-0{day}_00-00-00-1" for day in range(1, 6)]
    for name in silent:
        record(project, name, outcome={"exit_code": 1, "diagnosis": DIAGNOSIS})
    _, text, _ = get(served, f"/{served.token}/")
    rows = re.findall(r'data-run="([^"]+)" data-chosen="true"', text)
    assert rows == list(reversed(NAMES))
    assert text.index(f'data-run="{silent[-1]}"') < text.index(f'data-run="{NAMES[2]}"'), "the newest comes first"
    _, nothing, _ = get(served, f"/{served.token}/compare?run={silent[0]}&run={silent[1]}")
    assert f"No metrics were written by {silent[0]}, {silent[1]}" in nothing


def test_the_table_follows_a_run(served: PageServer, project: Path) -> None:
    """Its numbers, and its end; what was read once is not read again until it changes."""
    path = f"/{served.token}/runs"

    def row() -> str:
        return next(line for line in get(served, path)[1].splitlines() if NAMES[2] in line)

    assert ">running<" in row()
    assert ">3<" in row()
    run = Run(project / "runs" / NAMES[2])
    run.metrics.write_text(json.dumps({"update": 7, "loss": 0.125}) + "\n")
    assert ">7<" in row()
    assert ">0.1250<" in row()
    run.record("outcome", {"exit_code": 0})
    assert ">done<" in row()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 runs with a million metric lines."""
    folder = tmp_path_factory.mktemp("large") / "project"
    names = [f"2026-11-{1 + i // 24:02d}_{i % 24:02d}-00-00-1" for i in range(50)]
    first = record(folder, names[0], outcome={"exit_code": 1, "diagnosis": DIAGNOSIS})
    lines = (f'{{"update": {u}, "loss": {3 + 10 / u:.4f}, "tokens_per_second": 100.0}}\n' for u in range(1, 20_001))
    first.metrics.write_text("".join(lines))
    for name in names[1:]:
        run = record(
            folder, name, outcome={"exit_code": 1, "diagnosis": DIAGNOSIS} if name == names[-1] else {"exit_code": 0}
        )
        run.metrics.unlink()
        os.link(first.metrics, run.metrics)
    return folder


def test_fifty_runs_are_there_at_once(large: Path) -> None:
    for server in serving(large):
        took = []
        for _ in range(3):
            began = time.perf_counter()
            status, text, _ = get(server, f"/{server.token}/")
            took.append(time.perf_counter() - began)
            assert (status, text.count("data-run=")) == (200, 50)
        assert took[0] < 3 * patience(), "nothing was read before"
        assert min(took) < 0.5 * patience(), took


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here: the board was NOT looked at in a browser")
def test_a_browser_paints_fifty_runs_within_a_second(large: Path, tmp_path: Path) -> None:
    for server in serving(large):
        # On a busy machine a browser takes a second for an empty page, too, or paints none before it is asked what it
        # shows: neither is the page's doing, and neither happens each time.
        for _ in range(LOOKS):
            dumped = browse(tmp_path, "--virtual-time-budget=8000", "--dump-dom", server.url)
            page, painted = Page(dumped), re.search(r'data-painted="(\d+)"', dumped)
            if page.tags.count("svg") >= 4 and painted and int(painted[1]) <= 1000:
                break
        assert page.tags.count("svg") >= 4, "those of the comparison, and of the run that is shown"
        assert "the GPU ran out of memory" in page.text
        assert "halve the micro-batch" in page.text
        assert EVIL in page.text
        assert "img" not in page.tags
        assert painted
        assert int(painted[1]) <= 1000, painted[1]
        shot = tmp_path / "shot.png"
        browse(tmp_path, "--window-size=1300,1400", "--virtual-time-budget=8000", f"--screenshot={shot}", server.url)
        assert shot.stat().st_size > 50_000


class Browser:
    """A page in a browser with somebody at its keyboard: Chromium's own protocol, over a pipe."""

    def __init__(self, folder: Path, url: str) -> None:
        assert CHROMIUM
        to, self._to = os.pipe()
        self._from, back = os.pipe()
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        # Chromium reads commands from its descriptor 3, and answers on 4.
        shell = f'exec "$@" 3<&{to} 4>&{back}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", CHROMIUM, *words, "about:blank"],
            pass_fds=(to, back),
            stderr=subprocess.DEVNULL,
        )
        os.close(to)
        os.close(back)
        self._session = self._number = 0
        self._rest = b""
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
        self("Page.navigate", url=url)

    def __call__(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                read = os.read(self._from, 1 << 16)
                assert read, "the browser ended"
                self._rest += read
            one, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self._number:
                return answer["result"]

    def value(self, expression: str) -> Any:
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + 60 * patience()
        while not self.value(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text * (kind == "keyDown"),
            )

    def close(self) -> None:
        self("Browser.close")
        self._process.wait(60)
        os.close(self._to)
        os.close(self._from)


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here: the board was NOT used with a keyboard")
def test_a_keyboard_is_enough_on_a_narrow_page(served: PageServer, project: Path, tmp_path: Path) -> None:
    """While a run goes on, and the table with it: Tab goes on where it was, and a chosen run comes into view."""
    browser = Browser(tmp_path / "browser", served.url)
    try:
        browser.until("document.querySelector('#detail h1') && document.querySelector('#runs tbody').dataset.text")
        assert browser.value("document.documentElement.scrollWidth") <= 400
        for _ in range(4):
            browser.press("Tab", 9)
        at = f"show-{NAMES[1]}"
        assert browser.value("document.activeElement.id") == at
        Run(project / "runs" / NAMES[2]).metrics.write_text(json.dumps({"update": 4321, "loss": 0.125}) + "\n")
        browser.until("document.querySelector('#runs').textContent.includes('4321')")
        assert browser.value("document.activeElement.id") == at
        browser.press("Enter", 13, "\r")
        browser.until("document.activeElement.id === 'tabs'")
        assert browser.value("document.querySelector('#tabs b').textContent") == NAMES[1]
        assert 0 <= browser.value("document.querySelector('#tabs').getBoundingClientRect().top") < 800
        browser.press("Tab", 9)
        assert browser.value("document.activeElement.dataset.tab") == "run"
    finally:
        browser.close()
