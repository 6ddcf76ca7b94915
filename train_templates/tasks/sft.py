"""The task: a model that answers, trained on conversations. Data, model and loss; the loop is in train.py.

Only what the assistant says is learned. The loop divides the summed loss by the learned tokens of the whole real batch,
over all micro-batches and ranks, so the gradient is that of one big batch, however it is split.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor, nn

# feature: lora
import adapter

# end: lora
import rows

transformers.utils.logging.disable_progress_bar()  # the loop has one

Batch = rows.Batch
Message = dict[str, str]
SPEAKERS = {"human": "user", "gpt": "assistant"}  # as ShareGPT calls them
SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the transformers model names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task; `--name value` overrides one."""

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    sequence_length: int = 256
    loss_chunk: int = 1024  # tokens of a micro-batch whose logits are held at once
    cache_dir: str = ".cache"  # the data as tokens; may be deleted
    # feature: named_model
    model_name: str = "openai-community/gpt2"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "openai-community/gpt2"
    # end: tokenizer
    # feature: lora
    frozen_dtype: str = "float32"  # of the weights that are not trained
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"  # or names of modules: q_proj,v_proj
    # end: lora
    # feature: preset_model
    model_type: str = "llama"
    vocab_size: int = 257
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    intermediate_size: int = 352
    max_position_embeddings: int = 1024
    # end: preset_model


# feature: tokenizer
class Chat:
    """Conversations as token ids, by the tokenizer's own chat template."""

    def __init__(self, config: TaskConfig) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(config.tokenizer_name)
        self.tokenizer.chat_template = self.tokenizer.chat_template or PLAIN_TEMPLATE
        self.marked = re.search(r"{%-?\s*generation\b", self.tokenizer.get_chat_template())

    def encode(self, messages: list[Message]) -> list[list[int]]:
        """Samples of a conversation; tokens that are only given, and not learned, as their complement.

        A template may mark the answers itself. Else an answer is what its rendering adds to its prompt's, token by
        token. Where the template renders an answer otherwise once the talk goes on, each answer is a sample of its own.
        """
        if self.marked:
            whole = self.tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            return [only(whole["input_ids"], {i for i, learned in enumerate(whole["assistant_masks"]) if learned})]
        talk, answers = self.render(messages), []
        for i, message in enumerate(messages):
            if message["role"] == "assistant" and i > 0:  # what nobody asked for is no answer
                prompt, answered = self.render(messages[:i], answer=True), self.render(messages[: i + 1])
                if answered[: len(prompt)] == prompt:  # else what is asked at inference is not what is trained
                    answers.append((answered, set(range(len(prompt), len(answered)))))
        if all(talk[: len(answered)] == answered for answered, _ in answers):
            return [only(talk, {i for _, places in answers for i in places})]
        return [only(answered, places) for answered, places in answers]

    def render(self, messages: list[Message], answer: bool = False) -> list[int]:
        """The ids of some messages, with the template's call for an answer where one is wanted."""
        rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=answer, return_dict=True)
        return list(rendered["input_ids"])

    def prompt(self, question: str) -> list[int]:
        """The ids that ask for an answer."""
        return self.render([{"role": "user", "content": question}], answer=True)

    def decode(self, ids: list[int]) -> str:
        """The text of some token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)
"""For the tokenizer of a base model, which has no template."""


def only(tokens: list[int], places: set[int]) -> list[int]:
    """The tokens, all but those at the learned places as their complement."""
    return [token if place in places else ~token for place, token in enumerate(tokens)]


# end: tokenizer
# feature: bytes
class Chat:
    """Conversations as UTF-8 bytes; 256 ends what somebody says. No vocabulary to download."""

    END = 256

    def __init__(self, config: TaskConfig) -> None:
        assert config.vocab_size > self.END

    def encode(self, messages: list[Message]) -> list[list[int]]:
        """The conversation as one sample; tokens that are only given, and not learned, as their complement."""
        tokens = []
        for message in messages:
            said = [*message["content"].encode(), self.END]
            tokens += [~byte for byte in f"{message['role']}:\n".encode()]
            tokens += said if message["role"] == "assistant" else [~token for token in said]
        return [tokens]

    def prompt(self, question: str) -> list[int]:
        """The ids that ask for an answer."""
        return [*b"user:\n", *question.encode(), self.END, *b"assistant:\n"]

    def decode(self, ids: list[int]) -> str:
        """The text of some ids; bytes that are no UTF-8 show as �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
def conversations(source: str, split: str) -> Iterator[list[Message]]:
    """The conversations of a data set: embedded, a .jsonl or .json file, a folder of them, or a hub id."""
    path = Path(source)
    if source == "embedded":
        yield from embedded_conversations(split)
    elif path.exists():
        for file in sorted(path.rglob("*.json*")) if path.is_dir() else [path]:
            yield from rows.read_json(file, messages_of, "messages or an output")
    else:
        from datasets import load_dataset

        yield from map(messages_of, load_dataset(source, split=split))


def messages_of(row: dict[str, Any]) -> list[Message]:
    """What was said: under "messages" or "conversations", or an "instruction" with its "input", and the "output"."""
    if "messages" in row:
        return [turn(m["role"], m["content"]) for m in row["messages"]]
    if "conversations" in row:
        return [turn(SPEAKERS.get(m["from"], m["from"]), m["value"]) for m in row["conversations"]]
    asked = "\n\n".join(part for part in (row["instruction"], row.get("input")) if part)
    return [turn("user", asked), turn("assistant", row["output"])]


def turn(role: str, said: Any) -> Message:
    """A message. Raises `TypeError` for what is no text: a tool's call, a picture."""
    said = "".join(part["text"] for part in said) if isinstance(said, list) else said
    if not isinstance(said, str):
        raise TypeError(f"{role} says {said!r}, which is no text")
    return {"role": role, "content": said}


MODULES = (
    "builtins collections functools itertools json math operator os os.path pathlib random re shutil statistics string "
    "textwrap time"
)


def embedded_conversations(split: str) -> Iterator[list[Message]]:
    """Questions about Python, answered by its own documentation; every tenth answer is kept for evaluation."""
    documented: dict[str, str] = {}  # by its text: the same function may have many names
    for module in map(importlib.import_module, MODULES.split()):
        for name, thing in sorted(vars(module).items()):
            members = sorted(vars(thing).items()) if isinstance(thing, type) else ()
            for path, member in ((name, thing), *((f"{name}.{member}", value) for member, value in members)):
                text = inspect.getdoc(member) if callable(member) and not re.search(r"(^|\.)_", path) else None
                if text and len(text) >= 40:
                    documented.setdefault(text, path if module.__name__ == "builtins" else f"{module.__name__}.{path}")
    for i, (text, name) in enumerate(documented.items()):
        if (i % 10 == 9) == (split == "validation"):
            first, _, rest = text.partition("\n\n")
            talk = [{"role": "user", "content": f"What is {name}?"}, {"role": "assistant", "content": first}]
            if rest:
                talk += [{"role": "user", "content": "Tell me more."}, {"role": "assistant", "content": rest.strip()}]
            yield talk


def load_rows(config: TaskConfig, source: str, split: str) -> rows.Rows:
    """The conversations as rows of tokens, from a file that the first rank of each machine writes once."""
    settings = {field.name: getattr(config, field.name) for field in fields(TaskConfig)}
    folder = rows.rows_folder(config.cache_dir, source, split, settings, Path(__file__).read_bytes())
    return rows.Rows(source, folder, config.sequence_length, samples(config, source, split))


def samples(config: TaskConfig, source: str, split: str) -> Iterator[list[int]]:
    """The conversations' tokens, cut to the sequence length; those that have no answer left are dropped and counted."""
    chat, count, cut, dropped = Chat(config), 0, 0, 0
    for number, messages in enumerate(conversations(source, split), start=1):
        try:
            encoded = chat.encode(messages)
        except Exception as error:  # a template says itself what it refuses: a system's turn, two questions in a row
            raise SystemExit(f"{source}: conversation {number} is refused by the chat template: {error}") from None
        for tokens in encoded:
            count, cut = count + 1, cut + (len(tokens) > config.sequence_length + 1)
            tokens = tokens[: config.sequence_length + 1]
            if any(token >= 0 for token in tokens[1:]):
                yield tokens
            else:
                dropped += 1
    told = f"{cut} cut to {config.sequence_length} tokens, {dropped} dropped, since nothing of an answer was left"
    print(f"{source} ({split}): samples: {count}, {told}", flush=True)


def load_train_data(config: TaskConfig) -> rows.Rows:
    """The data to train on."""
    return load_rows(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> rows.Rows:
    """The data to evaluate on."""
    return load_rows(config, config.eval_data, "validation")


# end: eval
collate = rows.collate  # samples to a micro-batch and its count


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """The pretrained model in fp32; the engine moves, casts and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_name,
        **rows.FP32,
        use_cache=False,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


# end: pretrained_model
# feature: lora
def build_model(config: TaskConfig) -> nn.Module:
    """The pretrained model, frozen, with an adapter to train; the engine moves and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_name,
        dtype=config.frozen_dtype,
        use_cache=False,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
        # feature: qlora
        **adapter.four_bits(),
        # end: qlora
    )
    adapter.add(model, config.lora_rank, config.lora_alpha, config.lora_targets)
    return rows.with_loss(model, config.loss_chunk)


# end: lora
# feature: config_model
def build_model(config: TaskConfig) -> nn.Module:
    """The named model's architecture with random weights in fp32; the engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


# end: config_model
# feature: preset_model
def build_model(config: TaskConfig) -> nn.Module:
    """A model of the configured shape with random weights in fp32; the engine moves, casts and shards it."""
    shape = transformers.AutoConfig.for_model(
        config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        bos_token_id=None,
        # feature: bytes
        eos_token_id=Chat.END,
        # end: bytes
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(
        shape,
        **rows.FP32,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


# end: preset_model
def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy **summed** over the tokens that count; the loop divides. A scalar in fp32."""
    return model(**batch)


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """What the loop adds up over all evaluation batches and ranks: the loss and its count."""
    return rows.loss_and_count(loss_sum(model, batch), batch)


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """The metrics of the whole evaluation set, from the sums over it."""
    loss, count = sums
    return {"eval_loss": loss / count}


# end: eval
# feature: final_weights
# feature: whole_model
def save_model(model: transformers.PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    """The final weights, gathered from all ranks, for `AutoModelForCausalLM.from_pretrained(folder)`."""
    model.save_pretrained(folder, state_dict=weights)


# end: whole_model
# feature: lora
def save_model(model: transformers.PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    """The adapter as peft keeps it; `AutoModelForCausalLM.from_pretrained(folder)` loads it with the model below."""
    adapter.save(model, weights, folder)


# end: lora
def sample(config: TaskConfig, folder: Path, question: str = "What is str.split?", length: int = 200) -> str:
    """What the trained model answers, loaded from where `save_model` put it."""
    chat = Chat(config)
    answer = rows.write_on(folder, chat.prompt(question), length)
    return f"{question}\n{chat.decode(answer)}"


# end: final_weights
