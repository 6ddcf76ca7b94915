"""Which of several labels a picture has, any number of them; a residual network, or one of timm."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.networks import NETWORKS, with_outputs
from trainwiz.tasks.task import IMAGE_MODELS, IMAGE_TABLES, OF_LABELS, Task

_EMBEDDED = 3
"""Labels of the embedded digits: even, large, round."""

TASK = Task(
    name="image_multilabel",
    summary=say("several labels per image; a residual network, or timm"),
    samples="tagged_pictures",
    presets=with_outputs(NETWORKS, _EMBEDDED),
    backbones=True,
    labeled=True,
    several_columns=True,
    model_prompt=IMAGE_MODELS,
    data_prompt=say("Training data: embedded, a table of images and their labels, or an .npz file"),
    data_names=IMAGE_TABLES,
    data_forms=say(
        "set data.label_column to a column of lists (cat|dog), or to several columns of 0 and 1 (cat,dog), and "
        "data.image_column to the column of the files; or use an .npz file with images (uint8) and rows of 0 and "
        "1 as labels"
    ),
    packages=("pillow",),
    named_packages=("timm",),
    embedded_packages=("scikit-learn",),
    parts=(
        "class_names.py",
        "json_rows.py",
        "labels.py",
        "multilabel.py",
        "pictures.py",
        "network.py",
        "sources.py",
        "splits.py",
    ),
    sharded_layer="Block",
    regions={"names": True},
    weight_decay=(0.01, say("common for vision models")),
    metrics=OF_LABELS,
    gathered_metrics={**OF_LABELS, "eval_auc": "max"},
    gathered_region="several",
)
