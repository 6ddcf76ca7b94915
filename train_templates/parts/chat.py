"""Conversations as tokens: how a chat template renders them, and which of the tokens are learned.

An answer is learned after exactly the prompt that the model is given at inference: the template's rendering of all
messages before it, with the template's beginning of an answer. The rest of the answer's own rendering is learned.
"""

from __future__ import annotations

# feature: tokenizer
import functools
import itertools
import re

# end: tokenizer
# feature: embedded_data
import sys

# end: embedded_data
# feature: tokenizer
from bisect import bisect_left

# feature: answers_learned
from bisect import bisect_right

# end: answers_learned

# end: tokenizer
from collections.abc import Callable

# feature: embedded_data
from collections.abc import Iterable

# end: embedded_data
# feature: tokenizer
# feature: all_learned
from dataclasses import replace

# end: all_learned
# end: tokenizer
from typing import Any

# feature: tokenizer
from typing import NamedTuple

# end: tokenizer
# feature: own_template
import chat_template

# end: own_template
import conversations
import model_folder

# feature: tokenizer
# feature: new_tokens
import new_tokens

# end: new_tokens
# end: tokenizer
# feature: answers
import preferences

# end: answers
# feature: documents
# feature: embedded_data
import python_questions

# end: embedded_data
# end: documents
from conversations import Conversation

# feature: tokenizer
from conversations import Message

# end: tokenizer
from encoders import Encoder, Notes

# feature: documents
from encoders import merge

# end: documents
from sources import Row, Sources

# feature: tokenizer
from token_cache import tokenizer_key, versions

# end: tokenizer
from token_cache import Recipe

# feature: tokenizer
from transcripts import given, place_of, reasoning_of, refuse_losses, said_by, refuse_lost_calls, takes_text
from transcripts import with_text_arguments

# end: tokenizer


# feature: documents
def recipe(config: Any, source: str, split: str) -> Recipe:
    """Return how the conversations of a source become tokens."""
    # feature: embedded_data
    return recipe_of(config, source, split, embedded=python_questions.embedded_conversations, encode=encoded)
    # end: embedded_data
    # feature: own_data
    return recipe_of(config, source, split, encode=encoded)
    # end: own_data


# end: documents
def first_question(config: Any) -> str:
    """Return the first question of the training data."""
    # feature: embedded_data
    if config.train_data == "embedded":
        return "What is str.split?"
    # end: embedded_data
    row = next(iter(Sources(config.train_data, "train", 1)))
    # feature: documents
    # feature: plain_columns
    talk = conversations.read(row)
    # end: plain_columns
    # feature: own_columns
    talk = conversations.read(row, columns=config.columns)
    # end: own_columns
    # end: documents
    # feature: answers
    # feature: plain_columns
    talk = conversations.read(row, preferences.preference_of).answers[0]
    # end: plain_columns
    # feature: own_columns
    talk = conversations.read(row, preferences.preference_of, config.columns).answers[0]
    # end: own_columns
    # end: answers
    return next((str(message["content"]) for message in talk.messages if message["role"] == "user"), "")


def recipe_of(
    config: Any,
    source: str,
    split: str,
    *,
    # feature: embedded_data
    embedded: Callable[[str], Iterable[Any]],
    # end: embedded_data
    encode: Callable[[Chat, list[Row]], tuple[list[list[int]], Notes]],
) -> Recipe:
    # feature: embedded_data
    """Return how the rows of a source become tokens by `encode`; `embedded` makes those of the embedded data."""
    # end: embedded_data
    # feature: own_data
    """Return how the rows of a source become tokens by `encode`."""
    # end: own_data

    def encoder() -> Encoder:
        talker = Chat(config)
        return Encoder(encode=lambda rows: encode(talker, rows), vocabulary=len(talker.tokenizer), complemented=True)

    decided_by: list[Any] = []
    code: list[Callable[..., Any]] = [encode]
    # feature: embedded_data
    if source == "embedded":
        talks: Any = ((f"{source}: {talk.place}", talk) for talk in embedded(split))
        decided_by, code = [split, sys.version], [encode, embedded]
    else:
        talks = Sources(source, split, config.max_rows)
    # end: embedded_data
    # feature: own_data
    talks = Sources(source, split, config.max_rows)
    # end: own_data
    # feature: own_columns
    decided_by.append(config.columns)
    # end: own_columns
    # feature: tokenizer
    tokenizer = [tokenizer_key(config.tokenizer_name), *versions()]
    # feature: new_tokens
    tokenizer += [config.special_tokens, config.added_tokens]
    # end: new_tokens
    # feature: own_template
    tokenizer.append(chat_template.template_of(config.chat_template))
    # end: own_template
    # end: tokenizer
    # feature: bytes
    tokenizer = ["bytes"]
    # end: bytes
    return Recipe(name=source, rows=talks, decided_by=[tokenizer, *decided_by], code=code, encoder=encoder)


# feature: documents
def encoded(talker: Chat, rows: list[Row]) -> tuple[list[list[int]], Notes]:
    """Return the samples of conversations, and notes on what is not used."""
    samples: list[list[int]] = []
    notes: Notes = {}
    for row in rows:
        # feature: plain_columns
        talk = row[1] if isinstance(row[1], Conversation) else conversations.read(row)
        # end: plain_columns
        # feature: own_columns
        talk = row[1] if isinstance(row[1], Conversation) else conversations.read(row, columns=talker.columns)
        # end: own_columns
        told = [*conversations.notes_on(talk, talker.reads), *talker.formatted(talk)]
        merge(notes, dict.fromkeys(told, (1, talk.place)))
        samples += samples_of(talker, talk)
    return samples, notes


# end: documents
def samples_of(talker: Chat, talk: Conversation) -> list[list[int]]:
    """Return the samples of a conversation. Exit if the chat template does not render it."""
    try:
        return talker.encode(talk)
    except Exception as error:  # templates may refuse a system message or two questions in a row
        raise SystemExit(f"{talk.place}: this conversation cannot be used with the chat template: {error}") from None


# feature: tokenizer
Span = tuple[int, int]  # where an answer begins and ends in a text
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)
"""For tokenizers of base models, which have no template."""
ANY_ANSWER, ANY_THOUGHT = {"role": "assistant", "content": "zq"}, "zqzq"
"""They show where an answer begins, and how its thoughts end."""


class Coded(NamedTuple):
    """Token ids of a text."""

    ids: list[int]
    starts: list[int]
    """Where each token begins in the text."""
    ends: list[int]


class Chat:
    """Converts conversations to token ids, and ids to text."""

    def __init__(self, config: Any) -> None:
        self.tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
        # feature: new_tokens
        new_tokens.add(self.tokenizer, config)
        # end: new_tokens
        if not self.tokenizer.is_fast:
            raise SystemExit(
                f"the tokenizer of {config.tokenizer_name} does not tell where tokens begin (it is not fast)"
            )
        # feature: own_template
        chat_template.give(self.tokenizer, config.chat_template)
        # end: own_template
        self.tokenizer.chat_template = self.tokenizer.chat_template or PLAIN_TEMPLATE
        self.special = tuple(token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        self.rendered: dict[tuple[int, ...], str] = {}  # of the current conversation
        self.latest = "", Coded([], [], [])
        # feature: own_columns
        self.columns = config.columns
        # end: own_columns

    def encode(self, talk: Conversation) -> list[list[int]]:
        """Return the samples of a conversation. Tokens that are given but not learned are complemented.

        Raises `ValueError` if the template leaves something out, and what the template raises if it refuses a message.
        """
        talk = self.fitted(talk)
        self.rendered.clear()
        whole = self.render(talk, talk.messages)
        # feature: answers_learned
        if re.search(r"{%-?\s*generation\b", self.template(talk)) and (marked := self.marked(talk, whole)):
            refuse_losses(talk, whole)
            return [marked]
        # Learned answers are looked for where they are rendered last: some templates shorten them in later turns.
        seen_there = [not learned or i == 0 for i, learned in enumerate(talk.learned)]
        refuse_losses(talk, whole, seen_there)
        spans = self.spans(talk, whole)
        texts = [(whole, spans)] if spans is not None else self.apart(talk)
        return [sample for text, answers in texts for sample in self.tokens(text, answers)]
        # end: answers_learned
        # feature: all_learned
        refuse_losses(talk, whole)
        return [self.everything(talk, whole)]

    def everything(self, talk: Conversation, whole: str) -> list[int]:
        """Return a conversation as one sample. Everything is learned except answers of weight 0."""
        if lost := [text for text in map(reasoning_of, talk.messages) if text not in whole]:
            raise ValueError(f"it leaves out the reasoning {lost[0][:60]!r}; with data.train_on answers it is learned")
        left_out = self.spans(replace(talk, learned=unlearned(talk)), whole) if any(unlearned(talk)) else []
        if left_out is None:
            raise ValueError("later messages change how an answer that is not learned (weight 0) is rendered")
        if unlearned(talk)[0]:  # a greeting, before any question
            greeting = self.within(whole, self.render(talk, talk.messages[:1]))
            if greeting is None:
                raise ValueError("later messages change how an answer that is not learned (weight 0) is rendered")
            left_out.append((0, len(greeting)))
        ids, starts, ends = self.coded(whole)
        sample = [
            ~token if any(start < end and begin < stop for begin, end in left_out) else token
            for token, start, stop in zip(ids, starts, ends, strict=True)
        ]
        unended = self.tokenizer.eos_token and not whole.rstrip().endswith(self.special)
        end = self.tokenizer.eos_token_id
        return [*sample, ~end if unlearned(talk)[-1] else end] if unended else sample
        # end: all_learned

    def prompt(self, question: str) -> list[int]:
        """Return the ids that prompt for an answer."""
        asked = Conversation([{"role": "user", "content": question}], [False])
        self.rendered.clear()
        return self.coded(self.render(asked, asked.messages, answer=True)).ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def reads(self, name: str) -> bool:
        """Return whether the template reads a field of messages; `name` and `tools` are not only theirs."""
        of = r"\b(?:m|msg|messages?)(?:\[[^]]*\])?(?:\.|\[['\"])" if name in ("name", "tools") else r"\b"
        return re.search(rf"{of}{re.escape(name)}\b", str(self.tokenizer.chat_template)) is not None

    def template(self, talk: Conversation) -> str:
        """Return the template for a conversation: some tokenizers have another one for tools."""
        return str(self.tokenizer.get_chat_template(tools=talk.tools))

    def render(self, talk: Conversation, messages: list[Message], answer: bool = False) -> str:
        """Return messages as text; `answer` adds the template's beginning of an answer."""
        key = (answer, *map(id, messages))
        if key not in self.rendered:
            self.rendered[key] = self.rendered_now(talk, messages, answer)
        return self.rendered[key]

    def rendered_now(self, talk: Conversation, messages: list[Message], answer: bool = False) -> str:
        """Return the same of messages that are not the conversation's own."""
        said = given(self.tokenizer, self.template(talk), messages)
        told = {"tools": talk.tools, "tokenize": False, "add_generation_prompt": answer, **talk.settings}
        return str(self.tokenizer.apply_chat_template(said, **told))

    def fitted(self, talk: Conversation) -> Conversation:
        """Return the conversation as the template expects roles and calls."""
        messages = talk.messages
        if any(message["role"] == "developer" for message in messages) and not self.reads("developer"):
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        if any("tool_calls" in message for message in messages) and takes_text(self.tokenizer, self.template(talk)):
            messages = [with_text_arguments(message) for message in messages]
        refuse_lost_calls(self.tokenizer, self.template(talk), messages)
        if self.reads("thinking") and not self.reads("reasoning_content"):  # transformers 5.23 does so itself
            thoughts = [message.get("reasoning_content") for message in messages]
            messages = [m if t is None else {**m, "thinking": t} for m, t in zip(messages, thoughts, strict=True)]
        return Conversation(messages, talk.learned, talk.place, talk.tools, talk.settings)

    # feature: answers_learned
    def marked(self, talk: Conversation, whole: str) -> list[int] | None:
        """Return the sample of a template that marks its answers. None: there is not exactly one mark per answer."""
        said = given(self.tokenizer, self.template(talk), talk.messages)
        coded = self.tokenizer.apply_chat_template(
            said, tools=talk.tools, return_dict=True, return_assistant_tokens_mask=True, **talk.settings
        )
        ids, mask = coded["input_ids"], coded["assistant_masks"]
        answers = [learned for m, learned in zip(talk.messages, talk.learned, strict=True) if m["role"] == "assistant"]
        runs = [(bool(learned), len(list(run))) for learned, run in itertools.groupby(mask)]
        if sum(learned for learned, _ in runs) != len(answers) or any(
            reasoning_of(m) not in whole for m in talk.messages
        ):
            return None
        wanted, sample = iter(answers), iter(ids)
        return [
            token if keep else ~token
            for is_answer, length in runs
            for keep in [is_answer and next(wanted)]
            for token in itertools.islice(sample, length)
        ]

    # end: answers_learned
    def spans(self, talk: Conversation, whole: str) -> list[Span] | None:
        """Return where the learned answers are in the whole text. None: later messages change how one is rendered.

        Rendering everything before each answer takes time that is quadratic in the length of a conversation. So an
        answer is rendered after the first round and the messages of its own round only; a round begins with a question.
        What the round adds to the first must appear in the whole text directly after the earlier rounds.
        """
        messages, spans, place = talk.messages, [], 0
        starts = [i for i, message in enumerate(messages) if message["role"] == "user"][1:]
        first = messages[: starts[0]] if starts else messages
        first_text = self.within(whole, self.render(talk, first))
        if first_text is None:
            return None
        for start, end in itertools.pairwise([0, *starts, len(messages)]):
            before, known = (first, len(first_text)) if start else ([], 0)
            for i in (i for i in range(max(start, 1), end) if talk.learned[i]):
                text, begin = self.answer(talk, before + messages[start:i], messages[i])
                if (text := self.within(whole, text, known, place)) is None:
                    return None
                spans.append((place + begin - known, place + len(text) - known))
            if not start:
                place = len(first_text)
            elif talk.learned[end - 1]:
                place = spans[-1][1]
            elif end < len(messages):
                text = self.within(whole, self.render(talk, before + messages[start:end]), known, place)
                if text is None:
                    return None
                place += len(text) - known
        return spans

    def within(self, whole: str, text: str, known: int = 0, place: int = 0) -> str | None:
        """Return a text if what follows its known beginning is found at a place in the whole text, or None.

        Some templates add an end token to the last message, after the turn's own end; the text may come without it.
        """
        shorter = text.removesuffix(self.tokenizer.eos_token or "")
        if whole.startswith(text[known:], place):
            return text
        fits = shorter.rstrip().endswith(self.special) and whole.startswith(shorter[known:], place)
        return shorter if fits else None

    # feature: answers_learned
    def apart(self, talk: Conversation) -> list[tuple[str, list[Span]]]:
        """Return the texts of answers that later messages render differently, each with the answers that it shows."""
        texts: list[tuple[str, list[Span]]] = []
        for i in reversed(range(1, len(talk.messages))):
            if talk.learned[i]:
                text, begin = self.answer(talk, talk.messages[:i], talk.messages[i])
                if texts and texts[-1][0].startswith(text):
                    texts[-1][1].insert(0, (begin, len(text)))
                else:
                    texts.append((text, [(begin, len(text))]))
        return texts[::-1]

    # end: answers_learned
    def answer(self, talk: Conversation, before: list[Message], message: Message) -> tuple[str, int]:
        """Return the text of an answer after its prompt, and the length of the prompt. Nothing it says is left out."""
        text, begin = self.after_prompt(talk, before, message)
        if place_of(said := said_by(message), text, begin) < 0:
            raise ValueError(f"it leaves out what the assistant says: {said[:60]!r}")
        return text, begin

    def after_prompt(self, talk: Conversation, before: list[Message], message: Message) -> tuple[str, int]:
        """Return the text of an answer after its prompt, and the length of the prompt."""
        prompt, text = self.render(talk, before, answer=True), self.render(talk, [*before, message])
        reasoning = reasoning_of(message)
        if text.startswith(prompt) and reasoning in text[len(prompt) :]:
            return text, len(prompt)
        # The prompt already begins the reasoning, or the template leaves out an answer's reasoning.
        opened = re.search(r"<think>\s*$", prompt)
        begin = prompt[: opened.start()] if opened else prompt
        if not text.startswith(begin):
            if not reasoning and (rest := self.rest(before, text, prompt, talk)) is not None:
                return prompt + rest, len(prompt)
            if (rest := self.alone(talk, before, message)) is not None:
                return prompt + rest, len(prompt)
            shared = next((i for i, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b), len(text))
            if reasoning and "enable_thinking" in self.template(talk):
                raise ValueError(
                    f"it prompts for an answer with {prompt[shared:]!r}, but this answer thinks; a column "
                    'chat_template_kwargs with {"enable_thinking": true} changes the prompt'
                )
            raise ValueError(f"it prompts for an answer with {prompt[shared:]!r}, but no answer begins with it")
        if not opened and "</think>" not in self.template(talk):
            raise ValueError(f"it leaves out the reasoning {reasoning[:60]!r}; the model's template lacks it")
        if opened and (ended := self.thoughtless(talk, before, message, prompt)) is not None:
            return prompt + ended, len(prompt)
        opening = "" if opened else "<think>\n"
        rest = text[len(begin) :].rpartition("</think>")[2].lstrip("\n")
        return f"{prompt}{opening}{reasoning}\n</think>\n\n{rest}", len(prompt)

    def thoughtless(self, talk: Conversation, before: list[Message], message: Message, prompt: str) -> str | None:
        """Return an answer without thoughts behind a prompt that begins them, as the template ends and follows them.

        None: it renders no thoughts, or the answer has some.
        """
        if "</think>" in message["content"] or reasoning_of(message):
            return None
        text = self.rendered_now(talk, [*before, {**message, "reasoning_content": ANY_THOUGHT}])
        rest = text.removeprefix(prompt)
        return rest.replace(ANY_THOUGHT, "") if text.startswith(prompt) and rest.count(ANY_THOUGHT) == 1 else None

    def rest(self, before: list[Message], text: str, prompt: str, talk: Conversation) -> str | None:
        """Return what follows a prompt that ends with an empty thought, which answers are rendered without.

        None: the prompt ends otherwise. An open thought does: the answer would be a part of it.
        """
        header, found, _ = self.render(talk, [*before, ANY_ANSWER]).partition(ANY_ANSWER["content"])
        thought = prompt.removeprefix(header)
        marks = sum(thought.count(token.content) for token in self.tokenizer.added_tokens_decoder.values())
        if not found or not prompt.startswith(header) or not text.startswith(header) or marks != 2:
            return None
        return text[len(header) :]

    def alone(self, talk: Conversation, before: list[Message], message: Message) -> str | None:
        """Return what the template writes for an answer to the first question, if the conversation ends with it, too.

        Some templates (GPT-OSS) show what was thought before a call as long as no answer follows it: a prompt shows it,
        and the conversation with the answer does not. None: the answer is not the same there.
        """
        first = before[: 1 + next((i for i, said in enumerate(before) if said["role"] == "user"), len(before))]
        prompt, text = self.render(talk, first, answer=True), self.render(talk, [*first, message])
        header = prompt.removeprefix(self.render(talk, first))
        rest, reasoning = text.removeprefix(prompt), reasoning_of(message)
        alike = self.render(talk, before, answer=True) == self.render(talk, before) + header
        whole = self.render(talk, [*before, message])
        found = text.startswith(prompt) and alike and whole.endswith(header + rest) and reasoning in rest
        return rest if found else None

    # feature: answers_learned
    def tokens(self, text: str, spans: list[Span]) -> list[list[int]]:
        """Return the ids of a text, complemented outside of the spans.

        If a token crosses the edge of an answer, inference would see other tokens; then each answer is a sample, whose
        prompt is tokenized by itself. An answer that does not end with a special token is ended by the one that follows
        it, or by the end token.
        """
        ids, starts, ends = self.coded(text)
        places = {edge: bisect_right(ends, edge) for span in spans for edge in span}
        # Tokens may begin with a space that their offsets leave out.
        edges = [edge for edge in places if edge < len(text)]
        if any(starts[places[edge]] < edge or text[edge - 1] == " " for edge in edges):
            if len(spans) > 1 or spans[0][1] < len(text):
                return [sample for begin, end in spans for sample in self.tokens(text[:end], [(begin, end)])]
            begin = spans[0][0]
            prompt, answer = self.coded(text[:begin]).ids, self.coded(text[begin:]).ids
            if self.tokenizer.decode(prompt + answer) != self.tokenizer.decode(ids):
                raise ValueError(f"the tokenizer joins the prompt to the answer {text[begin : begin + 60]!r}")
            ids, places[begin] = prompt + answer, len(prompt)
            places[len(text)] = len(ids)
        sample = [~token for token in ids]
        for begin, end in spans:
            first, last = places[begin], places[end]
            last += text.startswith(self.special, end) and not text[begin:end].rstrip().endswith(self.special)
            sample[first:last] = ids[first:last]
        unended = spans and spans[-1][1] == len(text) and not text.rstrip().endswith(self.special)
        return [[*sample, self.tokenizer.eos_token_id] if unended and self.tokenizer.eos_token else sample]

    # end: answers_learned
    def coded(self, text: str) -> Coded:
        """Return the token ids of a text.

        What it shares with the previous text is not tokenized again. It is cut before a special token, which tokenizers
        never join to the text before it.
        """
        known, old = self.latest
        shared = bisect_left(range(min(len(known), len(text))), True, key=lambda n: known[: n + 1] != text[: n + 1])
        cut = max((known.rfind(token, 0, shared) for token in self.marks), default=-1)
        place = bisect_left(old.starts, cut)
        if cut <= 0 or old.starts[place] != cut:
            cut = place = 0
        coded = self.tokenizer(text[cut:], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        starts, ends = ([edge + cut for edge in edges] for edges in zip(*coded["offset_mapping"], strict=True))
        new = Coded(old.ids[:place] + coded["input_ids"], old.starts[:place] + starts, old.ends[:place] + ends)
        self.latest = text, new
        return new

    def formatted(self, talk: Conversation) -> list[str]:
        """Return a note if a message holds what the template writes around messages."""
        found = next((mark for mark in self.marks for said in talk.messages if mark in said["content"]), "")
        return [f"messages that hold {found}, as if they were formatted already"] * bool(found)

    @functools.cached_property
    def marks(self) -> list[str]:
        """The special tokens that the template writes."""
        tokens = self.tokenizer.added_tokens_decoder.values()
        template = str(self.tokenizer.chat_template)
        return [t.content for t in tokens if t.special and not t.lstrip and t.content in template]


# feature: all_learned
def unlearned(talk: Conversation) -> list[bool]:
    """Return which messages are answers that are not to be learned."""
    return [m["role"] == "assistant" and not learned for m, learned in zip(talk.messages, talk.learned, strict=True)]


# end: all_learned


# end: tokenizer
# feature: bytes
class Chat:
    """Conversations as UTF-8 bytes; 256 ends a message. No vocabulary to download."""

    END = 256
    TEMPLATE = (
        "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
    )

    def __init__(self, config: Any) -> None:
        assert config.vocab_size > self.END
        self.tokenizer = model_folder.byte_tokenizer(self.END, self.TEMPLATE)  # does the same, for other programs
        # feature: own_columns
        self.columns = config.columns
        # end: own_columns

    def encode(self, talk: Conversation) -> list[list[int]]:
        """Return the conversation as one sample. Tokens that are given but not learned are complemented."""
        if talk.tools or any(message.keys() & {"tool_calls", "reasoning_content"} for message in talk.messages):
            raise ValueError("it cannot represent tools or reasoning; choose a model with a tokenizer")
        tokens = []
        for message, learned in zip(talk.messages, talk.learned, strict=True):
            said = [*message["content"].encode(), self.END]
            role = [*f"{message['role']}:\n".encode()]
            # feature: answers_learned
            tokens += [~byte for byte in role]
            tokens += said if learned else [~token for token in said]
            # end: answers_learned
            # feature: all_learned
            left_out = message["role"] == "assistant" and not learned
            tokens += [~token for token in role + said] if left_out else role + said
            # end: all_learned
        return [tokens]

    def reads(self, name: str) -> bool:
        """Return whether a field of messages is used."""
        return name in ("role", "content")

    def formatted(self, _talk: Conversation) -> list[str]:
        """Return no note: bytes have no marks."""
        return []

    def prompt(self, question: str) -> list[int]:
        """Return the ids that prompt for an answer."""
        return [*b"user:\n", *question.encode(), self.END, *b"assistant:\n"]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. Bytes that are not valid UTF-8 become �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
