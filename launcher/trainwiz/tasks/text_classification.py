"""Which class a text belongs to; fine-tunes an encoder."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import ENCODERS
from trainwiz.tasks.task import Task

TASK = Task(
    name="text_classification",
    summary=say("classify texts; fine-tunes an encoder"),
    samples="labelled_texts",
    presets=ENCODERS,
    from_hub=True,
    auto_class="AutoModelForSequenceClassification",
    labelled=True,
    model_prompt=say("Model: tiny, a folder, or a hub id"),
    data_prompt=say("Training data: embedded, a .jsonl file, or a hub id"),
    data_names=say("use a .jsonl file, a hub id (organisation/name), or embedded"),
    data_forms=say('each line of a .jsonl file must be a JSON object with a "text" and a "label"'),
    packages=("transformers",),
    parts=("model_folder.py", "texts.py"),
    weight_decay=(0.01, say("common for classification")),
    regions={"grouped": True},
)
