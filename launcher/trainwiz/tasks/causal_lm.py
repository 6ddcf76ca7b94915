"""A language model that predicts the next token."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import DECODERS
from trainwiz.tasks.task import Task

TASK = Task(
    name="causal_lm",
    summary=say("a language model that predicts the next token"),
    samples="documents",
    presets=DECODERS,
    from_hub=True,
    generative=True,
    data_names=say(
        "use a .txt, .jsonl or .json file, a folder of .txt and .jsonl files, a hub id (organisation/name), or embedded"
    ),
    data_forms=say(
        'each line of a .jsonl file must be a JSON object with a "text", a .json file must be a list of them, a '
        ".txt file must be UTF-8"
    ),
    packages=("transformers",),
    parts=("model_folder.py", "rows.py"),
    weight_decay=(0.1, say("common for language models")),
)
