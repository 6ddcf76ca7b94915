"""What reaches the terminal of text that others wrote."""

import io
import json

import pytest

from trainwiz.finding import Place
from trainwiz.ui import console
from trainwiz.ui.safe import STYLES, safe, safe_json


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;title\x07",
        "\x1b[2J",
        "\x9b2J",
        "a\rb",
        "\x7f",
        "\u202egpj.exe",
        "\x1b[31m",
        "\x1b[1;31;5m",
        "\0",
        "\u2028",
        "\u200f",
    ],
)
def test_what_a_terminal_obeys_is_marked(text: str) -> None:
    assert "�" in safe(text)
    assert all(character.isprintable() for character in safe(text))


def test_what_is_only_shown_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("a\tb\nc", "中文，✗ → é", *(f"\x1b[{code}mx\x1b[0m" for code in STYLES.values())):
        assert safe(text) == text
    assert safe("a line of Windows\r\nand another\r") == "a line of Windows\nand another"
    console.talk("name: \x1b[2J")
    console.data("name: \x9b")
    assert capsys.readouterr() == ("name: �\n", "name: �[2J\n")


def test_json_says_the_same_without_them() -> None:
    value = {"a": "\x9b2J\u202e\x1b", "b": "中"}
    text = safe_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert text.isprintable()


def test_passwords_of_urls_are_not_printed() -> None:
    assert safe("data.train: https://me:hunter22@example.com/d.jsonl") == "data.train: https://***@example.com/d.jsonl"
    assert safe_json('{"path": "p/https:/me:hunter22@example.com"}') == '{"path": "p/https:/***@example.com"}'
    several = json.dumps("export A=http://h:1x\nuser@host")
    assert safe_json(several) == several


def test_a_password_is_hidden_before_its_line_is_cut() -> None:
    url = f"https://oauth2:{'x1' * 60}@example.com/d.jsonl"
    place = Place(file="trainwiz.yaml", line=3, column=8, width=len(url), source=f"train: {url}")
    assert "x1x1" not in "".join(console.excerpt(place, "error", io.StringIO()))
