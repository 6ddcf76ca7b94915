"""Words on a terminal: Chinese takes two columns, and breaks without spaces."""

import catalogue
import pytest
import wcwidth

from trainwiz import columns
from trainwiz.columns import cut, pad, shortened, width, wrap

MIXED = (
    "一个 rank 的权重、梯度和 optimizer 状态放得进它的 GPU（单位：GiB）。启动容器时加 `--shm-size 8g`，或减少 worker。"
)


def test_every_sentence_is_as_wide_as_the_terminal_library_says() -> None:
    looked_at = 0
    for message in catalogue.load():
        for text in (str(message.id), str(message.string)):
            for line in text.split("\n"):
                assert width(line) == wcwidth.wcswidth(line), line
                looked_at += 1
    assert looked_at > 1000


def test_combining_marks_take_no_column() -> None:
    assert width("e\u0301") == 1
    assert width("a\u200bb") == 2


@pytest.mark.parametrize(
    ("text", "room", "kept"),
    [("更新", 4, "更新"), ("更新", 3, "更"), ("更新", 1, ""), ("a更新", 3, "a更"), ("abc", 2, "ab"), ("abc", 5, "abc")],
)
def test_cutting_counts_columns(text: str, room: int, kept: str) -> None:
    assert cut(text, room) == kept


def test_what_is_shortened_says_so_within_the_columns() -> None:
    assert shortened("更新", 4) == "更新"
    assert shortened("更新 3", 5) == "更新…"
    assert shortened("abc", 2) == "a…"


def test_padding_counts_columns() -> None:
    assert pad("警告", 7) == "警告   "
    assert pad("warning", 7) == "warning"
    assert pad("too long", 3) == "too long"


@pytest.mark.parametrize("room", range(12, 90))
def test_no_line_is_wider_than_it_may_be_and_nothing_is_lost(room: int) -> None:
    lines = wrap(MIXED, room, first="  - ", rest="    ")
    assert all(width(line) <= max(room, 4 + width("`--shm-size")) for line in lines)
    assert "".join(line[4:] for line in lines).replace(" ", "") == MIXED.replace(" ", "")
    assert all(line[:4] in ("  - ", "    ") and line[4] not in columns._NEVER_FIRST for line in lines)
    assert not any(line[-1] in columns._NEVER_LAST for line in lines)


def test_chinese_fills_the_line() -> None:
    lines = wrap("训练数据的样本数不少于一个批次训练数据的样本数不少于一个批次", 20)
    assert [width(line) for line in lines[:-1]] == [20] * (len(lines) - 1)


def test_english_breaks_at_spaces_only() -> None:
    assert wrap("give --on-conflict beside, or leave it", 15) == ["give", "--on-conflict", "beside, or", "leave it"]


def test_a_line_may_break_between_chinese_and_latin() -> None:
    assert wrap("显存不足GPU显存", 10) == ["显存不足", "GPU显存"]
    assert wrap("GPU显存", 5) == ["GPU显", "存"]


def test_an_address_stays_in_one_piece() -> None:
    address = "https://pytorch.org/docs/stable/distributed.html"
    assert address in wrap(f"见 {address} 。", 20)


def test_lines_of_their_own_stay_so() -> None:
    assert wrap("one two\nthree", 40, first="- ", rest="  ") == ["- one two", "  three"]
    assert wrap("", 10) == [""]
