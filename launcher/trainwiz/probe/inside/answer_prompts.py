"""Let a trained model answer: a line of JSON for each question, lines of JSON for what it says.

Arguments: the model's folder, and the device (`auto` or `cpu`). First comes `{"ready": …}` or `{"problem": …}`. A
question has `messages` for a chat model, or `text` to continue, and how to choose tokens. `{"stop": true}` ends an
answer early. The answer comes as `{"piece": …}`, and ends with `{"end": …}` or `{"problem": …}`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOM = 0.85
"""The share of a GPU's free memory that weights may take; the rest is for what is computed."""
NO_CODE = {"trust_remote_code": False}
"""Transformers would ask on standard input, where the questions come, whether to run code of the model's folder."""
MARK = "\u2042"
"""A word that is in no template, to find what follows an answer."""
TEMPLATE_SECONDS = 5.0
"""A template comes with the model, and may have loops inside loops."""
TEMPLATE_BYTES = 512 << 20
"""Memory that a template may take: a few characters of one can make gigabytes."""
TEMPLATE_CHARACTERS = 1 << 20
"""Characters that a template may add to the messages; those that describe tools add some thousands."""


class Problem(Exception):
    """A problem: a name that the caller knows, and its details."""

    def __init__(self, name: str, **said: Any) -> None:
        super().__init__(name)
        self.said = {"problem": name, **said}


def main() -> None:
    folder, device = Path(sys.argv[1]), sys.argv[2]
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # libraries print, too

    def say(**said: Any) -> None:
        channel.write(json.dumps(said) + "\n")
        channel.flush()

    try:
        model = Model(folder, device)
    except Problem as problem:
        return say(**problem.said)
    say(ready=model.facts())
    questions: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=listen, args=(questions, model), daemon=True).start()
    while question := questions.get():
        try:
            say(end=model.answer(question, lambda piece: say(piece=piece)))
        except Problem as problem:
            say(**problem.said)
        except Exception as error:
            say(problem="failed", detail=f"{type(error).__name__}: {error}")
    return None


def listen(questions: SimpleQueue[dict[str, Any] | None], model: Model) -> None:
    """Pass on the questions; a stop ends the answer at once."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "stop" in asked:
            model.stopped = True
        else:
            questions.put(asked)
    model.stopped = True
    questions.put(None)


class Model:
    """A model with its tokenizer."""

    def __init__(self, folder: Path, device: str) -> None:
        import transformers

        logging: Any = transformers.utils.logging
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **NO_CODE)
        except Exception as error:  # tokenizers raise it as it is
            raise Problem("no_tokenizer", detail=first_line(error)) from None
        # For some models, transformers returns one without a vocabulary where its files are missing.
        if not set(self.tokenizer.get_vocab().values()) - set(self.tokenizer.all_special_ids):
            raise Problem("no_tokenizer", detail="it has no vocabulary")
        try:
            self.model: Any = loaded(folder, device)
        except Exception as error:
            raise Problem("not_loaded", detail=first_line(error)) from None
        self.stopped = False
        self.ends = self.end_tokens()

    def facts(self) -> dict[str, Any]:
        """What a user wants to know about it."""
        import torch

        weight = next(self.model.parameters())
        places = {str(parameter.device) for parameter in self.model.parameters()}
        name = torch.cuda.get_device_name(weight.device) if weight.is_cuda else ""
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": str(weight.dtype).removeprefix("torch."),
            "device": f"{', '.join(sorted(places))} {name}".strip(),
            "chat": self.tokenizer.chat_template is not None,
        }

    @functools.cached_property
    def takes_parts(self) -> bool:
        """Whether the template takes content as a list, as those of models that also see pictures may."""
        question = {"role": "user", "content": MARK}
        return not self.shows([question]) and self.shows([in_parts(question)])

    def shows(self, messages: list[dict[str, Any]]) -> bool:
        """Whether the template writes what the question says."""
        try:
            return MARK in self.rendered(messages)
        except Exception:  # it occurs again, and is reported, when a question is asked
            return False

    def end_tokens(self) -> list[int]:
        """The tokens that end an answer: the model's own, the tokenizer's, and what its template puts behind one."""
        own = self.model.generation_config.eos_token_id
        ends = {self.tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
        if self.tokenizer.chat_template is not None:
            talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
            try:
                text = self.templated(talk)
                text = text.rpartition(MARK)[2].lstrip()
            except Exception:  # it occurs again, and is reported, when a question is asked
                text = ""
            special = [token for token in self.tokenizer.added_tokens_decoder.items() if token[1].special]
            ends |= {number for number, token in special if text.startswith(token.content)}
        return sorted(ends)

    def answer(self, question: dict[str, Any], write: Any) -> dict[str, Any]:
        """Write an answer piece by piece. Return how it ended."""
        import torch

        self.stopped = False
        ids = self.ids(question).to(next(self.model.parameters()).device)
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if room is not None and ids.shape[1] >= room:
            raise Problem("too_long", tokens=ids.shape[1], room=room)
        length = question["max_tokens"] if room is None else min(question["max_tokens"], room - ids.shape[1])
        if question.get("seed") is not None:
            torch.manual_seed(question["seed"])
        warm = question["temperature"] > 0
        began = time.perf_counter()
        with torch.inference_mode():
            written = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                do_sample=warm,
                temperature=question["temperature"] if warm else None,
                top_p=question["top_p"] if warm else None,
                top_k=None,
                eos_token_id=self.ends or None,
                pad_token_id=self.ends[0] if self.ends else None,
                streamer=streamer(self.tokenizer, write),
                stopping_criteria=[lambda *_: torch.full((1,), self.stopped, device=ids.device)],
            )[0, ids.shape[1] :]
        ended = bool(len(written)) and int(written[-1]) in self.ends
        reason = "stopped" if self.stopped else "end" if ended else "length"
        return {"tokens": len(written), "seconds": time.perf_counter() - began, "reason": reason}

    def ids(self, question: dict[str, Any]) -> Any:
        """The tokens of the question."""
        if "text" in question:
            found = self.tokenizer(question["text"], return_tensors="pt")["input_ids"].long()
            if not found.shape[1]:  # most tokenizers add nothing before a text
                raise Problem("empty")
            return found
        if self.tokenizer.chat_template is None:
            raise Problem("no_template")
        try:
            text = self.templated(question["messages"], add_generation_prompt=True)
        except Exception as error:  # templates may refuse a system message
            raise Problem("refused", detail=first_line(error)) from None
        return self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]

    def templated(self, messages: list[dict[str, str]], **options: Any) -> str:
        """The template's text for messages."""
        text = self.rendered([in_parts(m) for m in messages] if self.takes_parts else [*messages], **options)
        given = sum(len(message["content"]) for message in messages)
        if len(text) > 2 * given + TEMPLATE_CHARACTERS:
            raise ValueError(f"its chat template makes {len(text):,} characters of {given:,}")
        return text

    def rendered(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """The template's text for messages whose content has the form that it takes."""
        with within(TEMPLATE_SECONDS), in_memory(TEMPLATE_BYTES):
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **options))


def in_parts(message: dict[str, str]) -> dict[str, Any]:
    """A message with its content as a list with one part."""
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in a block that takes longer. Only for the main thread."""

    def over(*_: object) -> None:
        raise TimeoutError(f"its chat template takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def in_memory(size: int) -> Iterator[None]:
    """Raise `MemoryError` in a block that needs more bytes."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:  # no Linux: no such limit either
        yield
        return
    most = pages * resource.getpagesize() + size
    limits = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *limits]), before[1]))
    try:
        yield
    except MemoryError:
        raise MemoryError(f"its chat template takes more than {size >> 20} MiB of memory") from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def loaded(folder: Path, device: str) -> Any:
    """The model, in its own type, on the GPU with the most free memory, on several, or on the CPU."""
    import torch
    import transformers

    since = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    argument = "dtype" if since >= (4, 56) else "torch_dtype"
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = Path(json.loads(adapter.read_text())["base_model_name_or_path"])
        size += sum(file.stat().st_size for file in base.glob("*.safetensors")) if base.is_dir() else 0
    settings: dict[str, Any] = {argument: "auto", **NO_CODE}
    free = {}
    if device == "auto" and torch.cuda.is_available():
        free = {number: torch.cuda.mem_get_info(number)[0] * ROOM for number in range(torch.cuda.device_count())}
    best = max(free, key=free.__getitem__, default=None)
    if best is not None and size <= free[best]:
        settings["device_map"] = {"": best}
    elif free and size <= sum(free.values()):
        settings |= {"device_map": "auto", "max_memory": {number: int(room) for number, room in free.items()}}
    loader: Any = transformers.AutoModelForCausalLM
    if adapter.is_file() and (json.loads(adapter.read_text()).get("use_dora") or new_rows(folder)):
        import peft

        # It gives the base model these rows, and loads the lengths of DoRA, which transformers loses.
        loader = peft.AutoPeftModelForCausalLM
    model: Any = loader.from_pretrained(folder, **settings)
    if "device_map" not in settings and model.dtype == torch.float16:
        model.float()  # processors compute fp16 slowly, or not at all
    return model.eval()


def new_rows(folder: Path) -> bool:
    """Whether an adapter's tokenizer has more tokens than its base model has rows for them."""
    import transformers

    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    shape = transformers.AutoConfig.from_pretrained(base, **NO_CODE).get_text_config()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **NO_CODE)
    return int(shape.vocab_size) < len(tokenizer)


def streamer(tokenizer: Any, write: Any) -> Any:
    """Passes on what is generated, in whole words and characters."""
    import transformers

    class Pieces(transformers.TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:  # noqa: ARG002
            if text:
                write(text)

    return Pieces(tokenizer, skip_prompt=True, skip_special_tokens=True)


def first_line(error: Exception) -> str:
    """The first line of an exception's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main()
