"""Fine-tuning on conversations or instructions: only the answers are learned."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import DECODERS
from trainwiz.tasks.task import TABLE_NAMES, Task

TASK = Task(
    name="sft",
    summary=say("fine-tune a model on conversations or instructions"),
    samples="conversations",
    presets=DECODERS,
    from_hub=True,
    generative=True,
    adapters=True,
    data_prompt=say("Conversations: embedded, files, folders, patterns, or hub ids, separated by commas"),
    data_names=TABLE_NAMES,
    data_forms=say(
        'a row contains "messages" (OpenAI), "conversations" (ShareGPT), "instruction" and "output" (Alpaca), '
        '"prompt" and "completion", or "query" and "response"; for other names set data.columns, like '
        "prompt=question,completion=answer"
    ),
    packages=("transformers",),
    parts=(
        "model_folder.py",
        "packing.py",
        "rows.py",
        "logits.py",
        "chat.py",
        "conversations.py",
        "transcripts.py",
        "definitions.py",
        "encoders.py",
        "sources.py",
        "splits.py",
        "json_rows.py",
        "token_cache.py",
    ),
    weight_decay=(0.0, say("common for fine-tuning on answers; the training is short")),
    regions={"documents": True},
)
