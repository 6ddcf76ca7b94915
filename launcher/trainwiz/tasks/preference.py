"""Tuning on preferences: answers that are better or worse than others, or good or bad."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.shapes import DECODERS
from trainwiz.tasks.task import TABLE_NAMES, Task

TASK = Task(
    name="preference",
    summary=say("learn what people prefer: DPO, IPO, ORPO, KTO, SimPO"),
    samples="preferences",
    presets=DECODERS,
    from_hub=True,
    generative=True,
    compares=True,
    adapters=True,
    data_prompt=say("Preferences: embedded, files, folders, patterns, or hub ids, separated by commas"),
    data_names=TABLE_NAMES,
    data_forms=say(
        'a row contains "chosen" and "rejected", as texts with a "prompt", as messages or as transcripts; or '
        '"prompt", "completion" and "label"; for other names set data.columns, like '
        "prompt=question,chosen=better,rejected=worse"
    ),
    packages=("transformers",),
    parts=(
        "model_folder.py",
        "rows.py",
        "logits.py",
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
    regions={"grouped": True},
    metrics={"eval_loss": "min", "eval_accuracy": "max", "eval_margin": "max"},
)
