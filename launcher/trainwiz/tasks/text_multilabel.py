"""Which of several labels a text has, any number of them; fine-tunes an encoder."""

from __future__ import annotations

from dataclasses import replace

from trainwiz.message import say
from trainwiz.tasks.shapes import ENCODERS
from trainwiz.tasks.task import OF_LABELS, TABLE_NAMES, Task

_EMBEDDED = 3
"""Labels of the embedded paragraphs: calls, long, names."""

TASK = Task(
    name="text_multilabel",
    summary=say("several labels for each text; fine-tunes an encoder"),
    samples="tagged_texts",
    presets={name: replace(shape, outputs=_EMBEDDED) for name, shape in ENCODERS.items()},
    from_hub=True,
    text_column=True,
    auto_class="AutoModelForSequenceClassification",
    labeled=True,
    several_columns=True,
    adapters=True,
    model_prompt=say("Model: tiny, a folder, or a hub id"),
    data_names=TABLE_NAMES,
    data_forms=say(
        "set data.label_column to a column of lists (cat|dog), or to several columns of 0 and 1 (cat,dog), and "
        "data.text_column to the column of the texts"
    ),
    packages=("transformers",),
    parts=(
        "class_names.py",
        "json_rows.py",
        "labels.py",
        "model_folder.py",
        "multilabel.py",
        "sources.py",
        "splits.py",
        "texts.py",
    ),
    weight_decay=(0.01, say("common for classification")),
    regions={"grouped": True, "names": True},
    metrics=OF_LABELS,
    gathered_metrics={**OF_LABELS, "eval_auc": "max"},
    gathered_region="several",
)
