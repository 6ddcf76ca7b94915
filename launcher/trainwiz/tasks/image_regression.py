"""Which number a picture gets, such as an age; a residual network, or one of timm."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.networks import NETWORKS, with_outputs
from trainwiz.tasks.task import IMAGE_MODELS, IMAGE_TABLES, OF_NUMBERS, Task

TASK = Task(
    name="image_regression",
    summary=say("predict a number per image; residual network, or timm"),
    samples="scored_pictures",
    presets=with_outputs(NETWORKS, 1),
    backbones=True,
    labeled=True,
    model_prompt=IMAGE_MODELS,
    data_prompt=say("Training data: embedded, a table of images and numbers, or an .npz file"),
    data_names=IMAGE_TABLES,
    data_forms=say(
        "set data.image_column to the column of the files and data.label_column to that of the labels, which are "
        "numbers; or use an .npz file with images (uint8) and labels"
    ),
    packages=("pillow",),
    named_packages=("timm",),
    embedded_packages=("scikit-learn",),
    parts=("class_names.py", "json_rows.py", "labels.py", "pictures.py", "network.py", "sources.py", "splits.py"),
    sharded_layer="Block",
    regions={"scored": True},
    weight_decay=(0.01, say("common for vision models")),
    metrics=OF_NUMBERS,
    gathered_metrics={**OF_NUMBERS, "eval_pearson": "max", "eval_spearman": "max"},
    gathered_region="numbers",
)
