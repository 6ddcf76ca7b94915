"""What a rank writes, where it goes to a file: without secrets, and nothing else of it is lost or changed."""

import random

from trainwiz.ui.secret_filter import SecretFilter

KEY = b"-----BEGIN PRIVATE KEY-----\nCANARY\n-----END PRIVATE KEY-----\n"
SAID = b"loss 1\r\nstep 1/9\rstep 2/9\rtoken hf_CANARYsaid1234 CANARY-known\n" + KEY + b"\xff\xfe bytes\n\nlast"
SHOWN = b"loss 1\r\nstep 1/9\rstep 2/9\rtoken *** ***\n***\n***\n***\n\xff\xfe bytes\n\nlast"


def test_secrets_are_hidden_wherever_the_pieces_end() -> None:
    for seed in range(200):
        cut, redacted, shown = random.Random(seed), SecretFilter(frozenset({"CANARY-known"}), lambda: 0.0), b""
        rest = SAID
        while rest:
            n = cut.randint(1, 40)
            shown, rest = shown + redacted.feed(rest[:n]), rest[n:]
        assert shown + redacted.flush() == SHOWN


def test_an_unfinished_line_waits_for_seconds_only() -> None:
    now = 0.0
    redacted = SecretFilter(frozenset(), lambda: now)
    assert redacted.feed(b"a\nb") == b"a\n"
    assert redacted.overdue() == b""
    now = 6.0
    assert redacted.overdue() == b"b"
    assert redacted.feed(b"x" * 70_000) == b"x" * 70_000
