"""What a picture shows; a residual network."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.networks import NETWORKS
from trainwiz.tasks.task import OF_CLASSES, Task

TASK = Task(
    name="image_classification",
    summary=say("classify images; a residual network"),
    samples="pictures",
    presets=NETWORKS,
    labelled=True,
    model_prompt=say("Model: tiny or resnet18"),
    data_prompt=say("Training data: embedded, a folder with one subfolder per class, or an .npz file"),
    data_names=say("use a folder with one subfolder of images per class, an .npz file, or embedded"),
    data_forms=say("put images into one folder per class, or use an .npz file with images (uint8) and labels"),
    packages=("pillow",),
    embedded_packages=("scikit-learn",),
    sharded_layer="Block",
    weight_decay=(0.01, say("common for classification")),
    regions={"augmented_samples": True, "keyed_samples": True, "plain_samples": False},
    metrics=OF_CLASSES,
    gathered_metrics={**OF_CLASSES, "eval_auc": "max"},
    gathered_region="classes",
)
