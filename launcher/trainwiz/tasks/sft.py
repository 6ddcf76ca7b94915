"""Fine-tuning on conversations or instructions: only the answers are learned."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import DECODERS
from trainwiz.tasks.task import Task

TASK = Task(
    name="sft",
    summary=say("a model that answers; fine-tunes on conversations or instructions"),
    samples="conversations",
    presets=DECODERS,
    from_hub=True,
    generative=True,
    adapters=True,
    data_prompt=say("Conversations: embedded, a .jsonl or .json file, a folder of such files, or a hub id"),
    data_names=say("use a .jsonl or .json file, a folder of such files, a hub id (organisation/name), or embedded"),
    data_forms=say(
        'a row holds "messages" (OpenAI), "conversations" (ShareGPT), "instruction" and "output" (Alpaca), "prompt" '
        'and "completion", or "query" and "response"'
    ),
    packages=("transformers",),
    parts=("model_folder.py", "rows.py", "chat.py", "conversations.py"),
    weight_decay=(0.0, say("common for fine-tuning on answers; the training is short")),
)
