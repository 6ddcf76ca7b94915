"""Which number a text gets, such as a rating; fine-tunes an encoder."""

from __future__ import annotations

from dataclasses import replace

from trainwiz.message import say
from trainwiz.tasks.shapes import ENCODERS
from trainwiz.tasks.task import OF_NUMBERS, TABLE_NAMES, Task

# docs/decisions/tasks.md: Numbers of texts are learned as they are
TASK = Task(
    name="text_regression",
    summary=say("predict a number for each text; fine-tunes an encoder"),
    samples="scored_texts",
    presets={name: replace(shape, outputs=1) for name, shape in ENCODERS.items()},
    from_hub=True,
    text_column=True,
    auto_class="AutoModelForSequenceClassification",
    labeled=True,
    adapters=True,
    model_prompt=say("Model: tiny, a folder, or a hub id"),
    data_names=TABLE_NAMES,
    data_forms=say(
        "set data.text_column to the column of the texts and data.label_column to that of their labels, which are "
        "numbers"
    ),
    packages=("transformers",),
    parts=("class_names.py", "json_rows.py", "labels.py", "model_folder.py", "sources.py", "splits.py", "texts.py"),
    weight_decay=(0.01, say("common for fine-tuning an encoder")),
    regions={"grouped": True, "scored": True},
    metrics=OF_NUMBERS,
    gathered_metrics={**OF_NUMBERS, "eval_pearson": "max", "eval_spearman": "max"},
    gathered_region="numbers",
)
