"""What a picture shows; a residual network."""

from __future__ import annotations

from trainwiz.message import say
from trainwiz.tasks.networks import NETWORKS
from trainwiz.tasks.task import Task

TASK = Task(
    name="image_classification",
    summary=say("what does a picture show; a residual network"),
    samples="pictures",
    presets=NETWORKS,
    classifies=True,
    model_prompt=say("Model: tiny or resnet18"),
    data_prompt=say("Training data: embedded, a folder with one folder per class, or an .npz file"),
    data_names=say("name a folder with one folder of pictures per class, an .npz file, or embedded"),
    data_forms=say("pictures lie in one folder per class; an .npz file holds images (uint8) and labels"),
    packages=("pillow",),
    embedded_packages=("scikit-learn",),
    sharded_layer="Block",
    weight_decay=(0.01, say("usual for classification")),
    regions={"augmented_samples": True, "plain_samples": False},
)
