"""A chat template that a plan names, as `check` sees it."""

import os
from pathlib import Path

import pytest

from trainwiz.probe.chat_template import problem

GOOD = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD, ""),
        ("{% generation %}" + GOOD + "{% endgeneration %}", ""),
        ("{% for", "line 1"),
        ("no loop", "it does not use messages"),
        ("{{ " + "(" * 3000 + ")" * 3000 + " }}", "nested too deeply"),
        (GOOD + " " * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_is_read_as_a_template(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(text)
    found = problem("t.jinja", tmp_path)
    assert says in found
    assert bool(says) is bool(found)


def test_what_is_not_a_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", ".", "missing", "a\0b"):
        assert "no such file can be read" in problem(name, tmp_path)
