"""A model that scores answers: trained on pairs of which one is better."""

from __future__ import annotations

from dataclasses import replace

from trainwiz.message import say
from trainwiz.tasks.shapes import DECODERS
from trainwiz.tasks.task import TABLE_NAMES, Task

TASK = Task(
    name="reward_model",
    summary=say("a model that scores answers, trained on pairs"),
    samples="preferences",
    presets={name: replace(shape, outputs=1, headless=True) for name, shape in DECODERS.items()},
    from_hub=True,
    auto_class="AutoModelForSequenceClassification",
    pairs=True,
    adapters=True,
    data_prompt=say("Preferences: embedded, files, folders, patterns, or hub ids, separated by commas"),
    data_names=TABLE_NAMES,
    data_forms=say(
        'a row contains "chosen" and "rejected", as texts with a "prompt", as messages or as transcripts; for '
        "other names set data.columns, like prompt=question,chosen=better,rejected=worse"
    ),
    packages=("transformers",),
    parts=(
        "model_folder.py",
        "chat.py",
        "conversations.py",
        "transcripts.py",
        "preferences.py",
        "pairs.py",
        "definitions.py",
        "encoders.py",
        "sources.py",
        "splits.py",
        "json_rows.py",
        "token_cache.py",
    ),
    weight_decay=(0.0, say("common for fine-tuning on answers; the training is short")),
    regions={"grouped": True, "answers": True, "two_answers": True},
    metrics={"eval_loss": "min", "eval_accuracy": "max", "eval_margin": "max"},
)
