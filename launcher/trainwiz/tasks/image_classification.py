"""What a picture shows; a residual network."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.networks import NETWORKS
from trainwiz.tasks.task import IMAGE_MODELS, OF_CLASSES, Task

TASK = Task(
    name="image_classification",
    summary=say("classify images; a residual network, or one from timm"),
    samples="pictures",
    presets=NETWORKS,
    labeled=True,
    backbones=True,
    model_prompt=IMAGE_MODELS,
    data_prompt=say("Training data: embedded, a folder with one subfolder per class, a table, or an .npz file"),
    data_names=say(
        "use a folder with one subfolder of images per class, a table of images and labels (.csv, .jsonl), an .npz "
        "file, or embedded"
    ),
    data_forms=say(
        "put images into one folder per class; or use a table with files in data.image_column and labels in "
        "data.label_column, or an .npz file with images (uint8) and labels"
    ),
    packages=("pillow",),
    named_packages=("timm",),
    embedded_packages=("scikit-learn",),
    parts=("class_names.py", "json_rows.py", "labels.py", "pictures.py", "network.py", "sources.py", "splits.py"),
    sharded_layer="Block",
    regions={"names": True},
    weight_decay=(0.01, say("common for classification")),
    metrics=OF_CLASSES,
    gathered_metrics={**OF_CLASSES, "eval_auc": "max"},
    gathered_region="classes",
)
