"""A traceback of rank 0 waits until it is known whether rank 0 is to blame."""

import pytest

from trainwiz.ui.live import Progress, Screen
from trainwiz.ui.traceback_filter import TracebackFilter

TRACEBACK = b"[rank0]: Traceback (most recent call last):\n[rank0]:   File x\nRuntimeError: Connection closed by peer\n"


def test_only_a_traceback_waits_and_not_for_long() -> None:
    now = [0.0]
    tracebacks = TracebackFilter(lambda: now[0])
    assert tracebacks.feed(b"loss 1\n") == b"loss 1\n"
    assert tracebacks.feed(b"loss 2\n" + TRACEBACK[:60]) == b"loss 2\n"
    assert tracebacks.feed(TRACEBACK[60:]) == b""
    now[0] = 4.9
    assert tracebacks.overdue() == b""
    now[0] = 5.1
    assert tracebacks.overdue() == TRACEBACK
    assert tracebacks.feed(b"it goes on\n") == b"it goes on\n"
    assert tracebacks.overdue() == tracebacks.flush() == b""


def test_a_flood_does_not_wait() -> None:
    tracebacks = TracebackFilter(lambda: 0.0)
    assert tracebacks.feed(TRACEBACK) == b""
    flood = b"x" * (1 << 16)
    assert tracebacks.feed(flood) == TRACEBACK + flood


@pytest.mark.parametrize("innocent", [True, False, None])
def test_the_screen_shows_it_unless_another_rank_is_to_blame(
    innocent: bool | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: nobody judged, since trainwiz itself was interrupted."""
    monkeypatch.setenv("TRAINWIZ_LANG", "en")
    screen = Screen(Progress(lambda: (), None))
    screen.output(b"before\n" + TRACEBACK)
    assert capfd.readouterr().out == "before\n"
    if innocent is not None:
        screen.judged(innocent=innocent)
    screen.close()
    said = capfd.readouterr()
    assert said.out == ("" if innocent else TRACEBACK.decode())
    assert ("its traceback is in its log" in said.err) is bool(innocent)
