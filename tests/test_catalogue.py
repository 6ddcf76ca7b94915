"""Every sentence a person reads has its Chinese, with the same values in it."""

import gettext
import re
import string
import time

import catalogue
import pytest

from trainwiz import language
from trainwiz.message import say


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_every_sentence_is_translated() -> None:
    translated = {m.id for m in catalogue.load() if m.id and m.string}
    wanted = set(catalogue.sentences())
    assert len(wanted) > 200
    missing = sorted(wanted - translated)
    assert not missing, f"{len(missing)} sentences have no Chinese; run `make catalogue`: {missing[:5]}"


def test_a_translation_keeps_the_values() -> None:
    rules = {sentence for sentence, places in catalogue.sentences().items() if places[0].startswith("rules: ")}
    looked_at = 0
    for message in catalogue.load():
        if message.id and message.id not in rules:
            assert placeholders(message.string) == placeholders(message.id), message.id
            looked_at += 1
    assert looked_at > 200


def test_the_compiled_catalogue_is_that_of_the_text() -> None:
    with catalogue.MO.open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    translated = {m.id: m.string for m in catalogue.load() if m.id and m.string}
    assert len(translated) > 200
    assert {sentence: compiled.gettext(sentence) for sentence in translated} == translated


def test_the_catalogue_holds_todays_sentences() -> None:
    assert catalogue.PO.read_bytes() == catalogue.as_po(catalogue.renewed(catalogue.load()))


def test_messages_hold_chinese() -> None:
    chinese = [m for m in catalogue.load() if m.id and any("一" <= c <= "鿿" for c in m.string)]
    assert len(chinese) > 0.9 * len(catalogue.load())


def test_colons_of_chinese_sentences_are_full_width() -> None:
    """Others stand in code and in `key: value` of files alone."""
    narrow = re.compile(r"[\u4e00-\u9fff）」』”》]:|: ?[\u4e00-\u9fff「『“《（]")
    wide = 0
    for message in catalogue.load():
        words = re.sub(r"`[^`\n]*`", "``", message.string)
        wide += "：" in words
        assert not narrow.search(words), message.string
    assert wide > 1000


def test_no_sentence_is_chinese_by_itself() -> None:
    assert not [sentence for sentence in catalogue.sentences() if any("一" <= c <= "鿿" for c in sentence)]


@pytest.fixture(autouse=True)
def _english_afterwards() -> object:
    yield
    language.choose([], {})


def test_language_comes_from_the_option_then_the_variable_then_the_locale() -> None:
    assert language.choose(["init", "--lang", "zh"], {"TRAINWIZ_LANG": "en"}) == "zh"
    assert language.choose(["--lang=en"], {"TRAINWIZ_LANG": "zh"}) == "en"
    assert language.choose([], {"TRAINWIZ_LANG": "zh", "LANG": "en_US.UTF-8"}) == "zh"
    assert language.choose([], {"LANG": "zh_CN.UTF-8"}) == "zh"
    assert language.choose([], {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}) == "en"
    assert language.choose(["launch", "--", "--lang", "zh"], {}) == "en"
    assert language.choose(["launch", "--config", "a.yaml", "train.py", "--lang", "zh"], {}) == "en"
    assert language.choose(["lint", "train.py", "--lang", "zh"], {}) == "zh"
    assert language.choose(["--lang"], {}) == "en"


def test_a_message_inside_a_message_is_translated_too() -> None:
    language.choose(["--lang", "zh"], {})
    inner = say("{one} or {other}", one=1, other=2)
    outer = say("{real} is not divisible by {world} ranks; nearest: {nearest}", real=7, world=2, nearest=inner)
    assert language.text(inner) != str(inner)
    assert language.text(inner) in language.text(outer)


def test_what_generated_code_says_of_data_is_read_in_chinese() -> None:
    """Each refusal of a reader, with some values, is known again; a text that is none stays as it is."""
    refusals = [one for name in catalogue.READERS for one in catalogue.refusals(catalogue.PARTS / f"{name}.py")]
    assert len(refusals) > 60
    with language.spoken("zh"):
        for sentence in refusals:
            values = [f"<value {n}>" for n in range(sentence.count("{"))]
            told = language.retold(sentence.format("", *values))
            assert any("\u4e00" <= letter <= "\u9fff" for letter in told), sentence
            assert all(value in told for value in values), sentence
        within = say("{file}: {problem}", file="a.jsonl", problem="it has images, and this model reads text only")
        assert language.text(within) == "a.jsonl：含有 images，而该模型只读文本"
        cause = "a.jsonl:3: this conversation cannot be used: it has no messages"
        assert language.retold(cause) == "a.jsonl:3：该对话无法使用：没有消息"
        assert language.retold("my own notes: it has no messages yet") == "my own notes: it has no messages yet"
        before, endless = time.process_time(), ": not a JSON object" * 10_000
        assert language.retold(endless) == endless
        assert time.process_time() - before < 1
    assert language.retold(cause) == cause
