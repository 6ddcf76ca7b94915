"""Which columns of other names are taken for a prompt, an answer, and so on."""

from typing import Any

import pytest

from trainwiz.tasks import chat_columns

TALK = [{"from": "human", "value": "a"}]
TALKS: dict[str, tuple[dict[str, Any], str | None, bool]] = {
    "in Chinese": ({"问题": "a", "回答": "b", "备注": "c"}, "prompt=问题,completion=回答", True),
    "with a language": (
        {"instruction_zh": "a", "input_zh": "", "output_zh": "b"},
        "prompt=instruction_zh,input=input_zh,completion=output_zh",
        True,
    ),
    "short": ({"q": "a", "a": "b"}, "prompt=q,completion=a", True),
    "in capitals": ({"Question": "a", "Answer": "b", "id": "c"}, "prompt=Question,completion=Answer", True),
    "messages": ({"dialog": TALK, "id": 3}, "messages=dialog", True),
    "in two languages": (
        {"question_en": "a", "question_zh": "b", "answer_zh": "c"},
        "prompt=question_en,completion=answer_zh",
        False,
    ),
    "a list of answers": (
        {"question": "a", "human_answers": ["b"], "chatgpt_answers": ["c"]},
        "prompt=question,completion=human_answers.0",
        False,
    ),
    "an answer with parts": (
        {"question": "a", "answers": {"text": ["b"], "answer_start": [0]}},
        "prompt=question,completion=answers.text.0",
        False,
    ),
    "a reference answer": (
        {"question": "a", "std_answer": "b", "class": "math"},
        "prompt=question,completion=std_answer",
        True,
    ),
    "unknown": ({"kysymys": "a", "vastaus": "b"}, "prompt=kysymys,completion=vastaus", False),
    "a kind and something": ({"class": "a", "data": "b"}, None, False),
    "an answer and something else": ({"answer": "b", "text": "a"}, "prompt=text,completion=answer", False),
    "where a row comes from": ({"text": "a", "source": "wikihow", "response": "b"}, None, False),
    "to translate": ({"source": "a", "target": "b"}, "prompt=source,completion=target", True),
    "a list in place of an answer": ({"question": "a", "answer": ["b"]}, "prompt=question,completion=answer.0", False),
    "messages as JSON": ({"dialog": '[{"from": "human", "value": "a"}]', "id": "c"}, "messages=dialog", True),
    "messages as JSON of several lines": ({"dialog": '[\n {"from": "human", "value": "a"}]'}, "messages=dialog", True),
    "messages as Python prints them": ({"dialog": "[{'from': 'human', 'value': 'a'}]", "id": "c"}, None, False),
    "a document": ({"id": "c", "text": "a"}, None, False),
    "not to be spelled": ({"question": "a", "best\nanswer": "b"}, None, False),
    "with a space": ({"question": "a", " answer": "b"}, None, False),
    "numbers": ({"question": 1, "answer": 2}, None, False),
    "one text": ({"body": "a"}, None, False),
}
PAIRS: dict[str, tuple[dict[str, Any], str | None, bool]] = {
    "of texts": ({"prompt": "a", "better": "b", "worse": "c"}, "prompt=prompt,chosen=better,rejected=worse", True),
    "of conversations": ({"winner": TALK, "loser": TALK}, "chosen=winner,rejected=loser", True),
    "of messages without the question": (
        {"q": "a", "better": [{"role": "assistant", "content": "b"}], "worse": [{"role": "assistant", "content": "c"}]},
        "prompt=q,chosen=better,rejected=worse",
        True,
    ),
    "after a conversation": (
        {"trajectory": TALK, "chosen": "b", "rejected": "c", "id": "d"},
        "messages=trajectory,chosen=chosen,rejected=rejected",
        True,
    ),
    "without a prompt": ({"better": "b", "worse": "c"}, None, False),
    "of ratings": ({"instruction": "a", "completions": [{"response": "b", "score": 1}]}, None, False),
}


@pytest.mark.parametrize(
    ("row", "spelled", "sure", "compares"),
    [(*case, False) for case in TALKS.values()] + [(*case, True) for case in PAIRS.values()],
    ids=[*TALKS, *PAIRS],
)
def test_columns_are_guessed_by_their_names_and_what_they_hold(
    row: dict[str, Any], spelled: str | None, sure: bool, compares: bool
) -> None:
    guess = chat_columns.guessed(row, compares=compares)
    assert (guess.spelled if guess else None, bool(guess and guess.sure)) == (spelled, sure)
    if guess:  # what is guessed can be read
        assert chat_columns.problem(chat_columns.renamed(row, guess.spelled), compares=compares) is None


def test_a_target_is_only_looked_at_where_nothing_else_answers() -> None:
    assert chat_columns.problem({"question": "a", "answer": "b", "target": ["c", "d"]}, compares=False) is None
    assert chat_columns.problem({"question": "a", "target": ["c", "d"]}, compares=False) == "talk"
