"""Which class a text belongs to; fine-tunes an encoder."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import ENCODERS
from trainwiz.tasks.task import Task

TASK = Task(
    name="text_classification",
    summary=say("what kind of text is this; fine-tunes an encoder"),
    samples="labelled_texts",
    presets=ENCODERS,
    from_hub=True,
    classifies=True,
    model_prompt=say("Model: tiny, a folder, or a hub id"),
    data_prompt=say("Training data: embedded, a .jsonl file, or a hub id"),
    data_names=say("name a .jsonl file, a hub id (organisation/name), or embedded"),
    data_forms=say('a .jsonl file needs a JSON object with a "text" and a "label" per line'),
    packages=("transformers",),
    weight_decay=(0.01, say("usual for classification")),
    regions={"grouped": True},
)
