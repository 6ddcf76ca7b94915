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
    text_column=True,
    generative=True,
    adapters=True,
    data_names=say(
        "use files (.jsonl, .json, .csv, .tsv, .parquet, .arrow or .txt), folders of them, patterns, hub ids "
        "(organization/name:subset:split), or embedded"
    ),
    data_forms=say(
        "set data.text_column to the column with the texts; files must be UTF-8, .jsonl files with one JSON "
        "object per line"
    ),
    packages=("transformers",),
    parts=(
        "model_folder.py",
        "documents.py",
        "definitions.py",
        "encoders.py",
        "packing.py",
        "rows.py",
        "logits.py",
        "sources.py",
        "splits.py",
        "json_rows.py",
        "token_cache.py",
    ),
    weight_decay=(0.1, say("common for language models")),
    regions={"documents": True},
)
