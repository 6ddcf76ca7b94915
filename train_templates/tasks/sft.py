"""The task: a chat model, trained on conversations. This file holds data, model and loss; the loop is in train.py.

Only the assistant's messages are learned. The loop divides the summed loss by the learned tokens of the whole real
batch, over all micro-batches and ranks, so the gradient is that of one big batch for any split.
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
import model_folder
import rows

transformers.utils.logging.disable_progress_bar()  # the loop shows its own

Batch = rows.Batch
Message = dict[str, str]
SPEAKERS = {"human": "user", "gpt": "assistant"}  # the names in ShareGPT
SHARDED_LAYERS: tuple[str, ...] = ()
"""Empty: FSDP shards the layers that the model from transformers names itself (`_no_split_modules`)."""


@dataclass
class TaskConfig:
    """Settings of the task. `--name value` overrides one."""

    train_data: str = "embedded"
    # feature: eval
    eval_data: str = "embedded"
    # end: eval
    sequence_length: int = 256
    loss_chunk: int = 1024  # tokens whose logits are in memory at once
    output_dtype: str = "source"  # of the saved model: as it was loaded, or float32, bfloat16, float16
    cache_dir: str = ".cache"  # the tokenized data; can be deleted
    # feature: named_model
    model_name: str = "openai-community/gpt2"
    # end: named_model
    # feature: tokenizer
    tokenizer_name: str = "openai-community/gpt2"
    # end: tokenizer
    # feature: lora
    frozen_dtype: str = "float32"  # dtype of the weights that are not trained
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_targets: str = "all-linear"  # or module names: q_proj,v_proj
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
    """Converts conversations to token ids, with the tokenizer's own chat template."""

    def __init__(self, config: TaskConfig) -> None:
        self.tokenizer = model_folder.read_tokenizer(config.tokenizer_name)
        self.tokenizer.chat_template = self.tokenizer.chat_template or PLAIN_TEMPLATE
        self.marked = re.search(r"{%-?\s*generation\b", self.tokenizer.get_chat_template())

    def encode(self, messages: list[Message]) -> list[list[int]]:
        """Return the samples of a conversation. Tokens that are given but not learned are complemented.

        If the template marks the answers, the marks decide. Otherwise an answer is what rendering it adds to its
        rendered prompt. If later messages change how an answer is rendered, each answer becomes a separate sample.
        """
        if self.marked:
            whole = self.tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
            return [only(whole["input_ids"], {i for i, learned in enumerate(whole["assistant_masks"]) if learned})]
        talk, answers = self.render(messages), []
        for i, message in enumerate(messages):
            if message["role"] == "assistant" and i > 0:  # an answer needs a prompt
                prompt, answered = self.render(messages[:i], answer=True), self.render(messages[: i + 1])
                if answered[: len(prompt)] == prompt:  # else inference would use another prompt
                    answers.append((answered, set(range(len(prompt), len(answered)))))
        if all(talk[: len(answered)] == answered for answered, _ in answers):
            return [only(talk, {i for _, places in answers for i in places})]
        return [only(answered, places) for answered, places in answers]

    def render(self, messages: list[Message], answer: bool = False) -> list[int]:
        """Return the ids of messages; `answer` adds the template's prompt for an answer."""
        rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=answer, return_dict=True)
        return list(rendered["input_ids"])

    def prompt(self, question: str) -> list[int]:
        """Return the ids that prompt for an answer."""
        return self.render([{"role": "user", "content": question}], answer=True)

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)
"""For tokenizers of base models, which have no template."""


def only(tokens: list[int], places: set[int]) -> list[int]:
    """Return the tokens, complemented except at the learned places."""
    return [token if place in places else ~token for place, token in enumerate(tokens)]


# end: tokenizer
# feature: bytes
class Chat:
    """Conversations as UTF-8 bytes; 256 ends a message. No vocabulary to download."""

    END = 256
    TEMPLATE = (
        "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
    )

    def __init__(self, config: TaskConfig) -> None:
        assert config.vocab_size > self.END
        self.tokenizer = model_folder.byte_tokenizer(self.END, self.TEMPLATE)  # does the same, for other programs

    def encode(self, messages: list[Message]) -> list[list[int]]:
        """Return the conversation as one sample. Tokens that are given but not learned are complemented."""
        tokens = []
        for message in messages:
            said = [*message["content"].encode(), self.END]
            tokens += [~byte for byte in f"{message['role']}:\n".encode()]
            tokens += said if message["role"] == "assistant" else [~token for token in said]
        return [tokens]

    def prompt(self, question: str) -> list[int]:
        """Return the ids that prompt for an answer."""
        return [*b"user:\n", *question.encode(), self.END, *b"assistant:\n"]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. Bytes that are not valid UTF-8 become �."""
        return bytes(i for i in ids if i < self.END).decode(errors="replace")


# end: bytes
def conversations(source: str, split: str) -> Iterator[list[Message]]:
    """Yield the conversations of a data set: embedded, a .jsonl or .json file, a folder of them, or a hub id."""
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
    """Return a row's messages: "messages", "conversations", or "instruction" with "input" and "output"."""
    if "messages" in row:
        return [turn(m["role"], m["content"]) for m in row["messages"]]
    if "conversations" in row:
        return [turn(SPEAKERS.get(m["from"], m["from"]), m["value"]) for m in row["conversations"]]
    asked = "\n\n".join(part for part in (row["instruction"], row.get("input")) if part)
    return [turn("user", asked), turn("assistant", row["output"])]


def turn(role: str, said: Any) -> Message:
    """Return a message. Raises `TypeError` if it is not text, such as a tool call or an image."""
    said = "".join(part["text"] for part in said) if isinstance(said, list) else said
    if not isinstance(said, str):
        raise TypeError(f"{role} says {said!r}, which is no text")
    return {"role": role, "content": said}


MODULES = (
    "builtins collections functools itertools json math operator os os.path pathlib random re shutil statistics string "
    "textwrap time"
)


def embedded_conversations(split: str) -> Iterator[list[Message]]:
    """Yield questions about Python, answered by its documentation. Every tenth answer is for evaluation."""
    documented: dict[str, str] = {}  # by text, because a function may have several names
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
    """Return the conversations as rows of tokens, from a file that the first rank of each machine writes once."""
    settings = {field.name: getattr(config, field.name) for field in fields(TaskConfig)}
    folder = rows.rows_folder(config.cache_dir, source, split, settings, Path(__file__).read_bytes())
    return rows.Rows(source, folder, config.sequence_length, samples(config, source, split))


def samples(config: TaskConfig, source: str, split: str) -> Iterator[list[int]]:
    """Yield the conversations' tokens, cut to the sequence length. Samples without an answer left are dropped."""
    chat, count, cut, dropped = Chat(config), 0, 0, 0
    for number, messages in enumerate(conversations(source, split), start=1):
        try:
            encoded = chat.encode(messages)
        except Exception as error:  # templates may refuse a system message or two questions in a row
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
    """Return the training data."""
    return load_rows(config, config.train_data, "train")


# feature: eval
def load_eval_data(config: TaskConfig) -> rows.Rows:
    """Return the evaluation data."""
    return load_rows(config, config.eval_data, "validation")


# end: eval
collate = rows.collate  # makes a micro-batch and its count from samples


# feature: pretrained_model
def build_model(config: TaskConfig) -> nn.Module:
    """Return the pretrained model in fp32. The engine moves, casts and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_name,
        **rows.FP32,
        # feature: flash
        attn_implementation=rows.ATTENTION,
        # end: flash
    )
    return rows.with_loss(model, config.loss_chunk)


# end: pretrained_model
# feature: lora
def build_model(config: TaskConfig) -> nn.Module:
    """Return the frozen pretrained model with an adapter to train. The engine moves and shards it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        config.model_name,
        dtype=config.frozen_dtype,
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
    """Return the named model with random weights in fp32. The engine moves, casts and shards it."""
    shape = transformers.AutoConfig.from_pretrained(config.model_name)
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
    """Return a model of the configured shape with random weights in fp32. The engine moves, casts and shards it."""
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
    """Return the cross-entropy **summed** over the tokens that count, a scalar in fp32. The loop divides it."""
    return model(**batch)


# feature: eval
def evaluation_sums(model: nn.Module, batch: Batch) -> Tensor:
    """Return what the loop adds up over all evaluation batches and ranks: the loss and its count."""
    return rows.loss_and_count(loss_sum(model, batch), batch)


def evaluation_metrics(sums: list[float]) -> dict[str, float]:
    """Return the metrics of the whole evaluation set, from the sums over it."""
    loss, count = sums
    return {"eval_loss": loss / count}


# end: eval
# feature: whole_model
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the final weights, gathered from all ranks, with all that `pipeline` and `from_pretrained` load."""
    model_folder.save(model, weights, folder, config.output_dtype, Chat(config).tokenizer)


# end: whole_model
# feature: lora
def save_model(config: TaskConfig, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Save the adapter for `AutoModelForCausalLM.from_pretrained(folder)`, which also loads its base model."""
    adapter.save(model, weights, folder, config.output_dtype, Chat(config).tokenizer)


# end: lora
# feature: final_weights
def sample(config: TaskConfig, folder: Path, question: str = "What is str.split?", length: int = 200) -> str:
    """Return an answer of the trained model, which is loaded from where `save_model` saved it."""
    chat = Chat(config)
    answer = rows.write_on(folder, chat.prompt(question), length)
    return f"{question}\n{chat.decode(answer)}"


# end: final_weights
