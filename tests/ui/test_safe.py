"""What reaches the terminal of text that others wrote."""

import io
import json

import pytest

from trainwiz.finding import Place
from trainwiz.ui import console
from trainwiz.ui.html import rendered
from trainwiz.ui.safe import STYLES, Drawn, safe, safe_json


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


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_log_keeps_colors_and_bars_and_no_other_command(size: int) -> None:
    bar = "\r\x1b[31m 50%|█▌\x1b[0m\x1b[K\n\x1b[A中\t"
    evil = ["\x1b]52;c;QUJD\x07", "\x1b]8;;x\x1b\\", "\x1b[2J", "\x1b[10;1H", "\x9b31m", "\u202e", "\x1bc", "\x1bP"]
    written = "".join(bar + one for one in evil).encode() + b"\x9b\xff."
    drawn = Drawn()
    shown = b"".join(drawn.piece(written[i : i + size]) for i in range(0, len(written), size)).decode()
    assert shown.count(bar) == len(evil)
    left = shown.replace(bar, "")
    assert left.isprintable()
    assert left.startswith("�]52;c;QUJD��]8;;x�\\�[2J�[10;1H�31m��c�P")
    assert drawn.piece(b"\x1b[3") == b""
    assert drawn.piece(b"1mred") == b"\x1b[31mred"


def test_a_page_has_no_characters_that_turn_or_hide_text() -> None:
    assert rendered("<p>{{ a }}</p>", a="\u202e\x1b\x9b<中\t") == "<p>���&lt;中\t</p>"


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


@pytest.mark.parametrize("parameter", ["token", "access_token", "sig", "X-Amz-Signature"])
def test_tokens_in_urls_are_not_printed(parameter: str) -> None:
    url = f"https://example.com/d.jsonl?rows=5&{parameter}=abc123def456"
    shown = f"https://example.com/d.jsonl?rows=5&{parameter}=***"
    assert safe(f"data.train: {url}: not found") == f"data.train: {shown}: not found"
    assert safe_json(json.dumps({"path": url, "secret": "words"})) == json.dumps({"path": shown, "secret": "words"})
    assert safe("run?key=abc123def456 is no URL") == "run?key=abc123def456 is no URL"


def test_a_password_is_hidden_before_its_line_is_cut() -> None:
    url = f"https://oauth2:{'x1' * 60}@example.com/d.jsonl"
    place = Place(file="trainwiz.yaml", line=3, column=8, width=len(url), source=f"train: {url}")
    assert "x1x1" not in "".join(console.excerpt(place, "error", io.StringIO()))
