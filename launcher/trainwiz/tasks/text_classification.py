"""Which class a text belongs to; fine-tunes an encoder."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import ENCODERS
from trainwiz.tasks.task import OF_CLASSES, TABLE_NAMES, Task

TASK = Task(
    name="text_classification",
    summary=say("classify texts; fine-tunes an encoder"),
    samples="labeled_texts",
    presets=ENCODERS,
    from_hub=True,
    text_column=True,
    auto_class="AutoModelForSequenceClassification",
    labeled=True,
    adapters=True,
    model_prompt=say("Model: tiny, a folder, or a hub id"),
    data_names=TABLE_NAMES,
    data_forms=say("set data.text_column to the column of the texts and data.label_column to that of their labels"),
    packages=("transformers",),
    parts=("class_names.py", "json_rows.py", "labels.py", "model_folder.py", "sources.py", "splits.py", "texts.py"),
    weight_decay=(0.01, say("common for classification")),
    regions={"grouped": True, "names": True},
    metrics=OF_CLASSES,
    gathered_metrics={**OF_CLASSES, "eval_auc": "max"},
    gathered_region="classes",
)
