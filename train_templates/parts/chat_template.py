"""A chat template in place of the tokenizer's own: a name or a file, tried before it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transcripts import SAID, two_messages

TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
}
"""Templates by their names."""


def template_of(name: str) -> str:
    """Return the template of a name or of a file."""
    try:
        return TEMPLATES.get(name) or Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{name}: this chat template cannot be used: {error}") from None


def give(tokenizer: Any, name: str) -> None:
    """Give the tokenizer a template. Exit if it cannot be rendered, leaves out what is said, or lacks tokens."""
    tokenizer.chat_template = template_of(name)
    try:
        text = str(tokenizer.apply_chat_template(two_messages(tokenizer), tokenize=False))
    except Exception as error:  # Jinja's errors, and what templates raise
        raise SystemExit(f"{name}: this chat template cannot be used: {error}") from None
    if missing := [message["content"] for message in SAID if message["content"] not in text]:
        raise SystemExit(f"{name}: this chat template cannot be used: it leaves out the message {missing[0]!r}")
    if marks := set(re.findall(r"<\|\w+\|>", text)) - tokenizer.get_vocab().keys():
        raise SystemExit(
            f"{name}: this chat template cannot be used: the tokenizer has no token {', '.join(sorted(marks))}"
        )


def stop_after_answers(tokenizer: Any, model: Any) -> None:
    """Let generation end with the special token that ends an answer in the template, too."""
    answer = str(tokenizer.apply_chat_template(two_messages(tokenizer), tokenize=False)).rpartition("second")[2]
    known = model.generation_config.eos_token_id
    ends = known if isinstance(known, list) else [known, tokenizer.eos_token_id]
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    written = [i for i in tokenizer(answer, add_special_tokens=False)["input_ids"] if i in special]
    model.generation_config.eos_token_id = sorted({i for i in [*ends, *written[:1]] if i is not None})
