"""The network for pictures, and how it is saved."""

from __future__ import annotations

# feature: preset_model
import json

# end: preset_model
# feature: pretrained_model
import os

# end: pretrained_model
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# feature: named_model
import timm
import torch

# end: named_model
from safetensors.torch import load_file

# feature: preset_model
from safetensors.torch import save_file

# end: preset_model
from torch import Tensor, nn

COLORS = 3


# feature: preset_model
SETTINGS = ("image_size", "width", "stages", "blocks_per_stage")
"""The settings that the network is built from, which are saved with it."""


def norm(channels: int) -> nn.Module:
    """Return a group norm, not the usual batch norm.

    Batch norm depends on the other images of a micro-batch, so the result would depend on how the batch is split over
    ranks and micro-batches, and on the images that only pad the last one.
    """
    return nn.GroupNorm(min(8, channels), channels)


class Block(nn.Module):
    """Two 3 × 3 convolutions with a residual connection: https://arxiv.org/abs/1512.03385, section 4.2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = norm(after), norm(after)
        same = before == after and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Shapes: (samples, before, height, width) → (samples, after, height / stride, width / stride)."""
        hidden = self.first_norm(self.first(pictures)).relu()
        return (self.second_norm(self.second(hidden)) + self.around(pictures)).relu()


class ResNet(nn.Module):
    """A residual network for small images: a 3 × 3 stem, stages of blocks, the mean over all places, and a head."""

    def __init__(self, config: Any, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(COLORS, config.width, 3, padding=1, bias=False), norm(config.width), nn.ReLU()
        )
        blocks, before = [], config.width
        for stage in range(config.stages):
            after = config.width * 2**stage
            for block in range(config.blocks_per_stage):
                blocks.append(Block(before, after, stride=2 if stage > 0 and block == 0 else 1))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, outputs)

    def forward(self, pictures: Tensor) -> Tensor:
        """Shapes: uint8 (samples, 3, height, width) → (samples, outputs)."""
        pictures = (pictures / 127.5 - 1).to(self.head.weight.dtype)  # DeepSpeed casts the model, not its inputs
        return self.head(self.blocks(self.stem(pictures)).mean((2, 3)))


def build(config: Any, outputs: int, names: Sequence[str] = ()) -> nn.Module:
    """Return the network with random weights in fp32. The engine moves, casts and shards it."""
    return ResNet(config, outputs)


def save(config: Any, weights: dict[str, Tensor], folder: Path, outputs: int, **facts: Any) -> None:
    """Save the weights, and beside them what the outputs mean and the network's settings."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    settings = {name: getattr(config, name) for name in SETTINGS}
    (folder / "config.json").write_text(json.dumps({**facts, **settings}, indent=1, ensure_ascii=False))


def saved(config: Any, folder: Path, outputs: int) -> nn.Module:
    """Return the network that was saved in a folder."""
    network = ResNet(config, outputs)
    network.load_state_dict(load_file(folder / "model.safetensors"))
    return network.eval()


# end: preset_model
# feature: named_model
class Backbone(nn.Module):
    """A network of timm. Batch norm keeps the statistics that the network was trained with.

    Statistics of micro-batches would depend on how the batch is split over ranks and micro-batches.
    """

    def __init__(self, config: Any, outputs: int, *, pretrained: bool) -> None:
        super().__init__()
        name = timm_name(config.model_name)
        arguments: dict[str, Any] = {"pretrained": pretrained, "num_classes": outputs}
        try:
            self.network = timm.create_model(name, **arguments)
            if self.network.pretrained_cfg.get("fixed_input_size"):  # position embeddings are resized
                self.network = timm.create_model(name, img_size=config.image_size, **arguments)
        except RuntimeError as error:  # no such network, or it has no weights
            raise SystemExit(f"{config.model_name}: timm cannot load this network: {error}") from None
        self.mean, self.std = (self.network.pretrained_cfg[name] for name in ("mean", "std"))
        self._no_split_modules = layers_of(self.network)  # FSDP shards these one by one

    @property
    def batch_norms(self) -> list[nn.Module]:
        """Its layers whose result depends on the other pictures of a micro-batch, while they are trained."""
        return [part for part in self.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]

    def train(self, mode: bool = True) -> Backbone:
        """Switch all but the batch norms to training."""
        super().train(mode)
        for part in self.batch_norms:
            part.eval()
        return self

    def forward(self, pictures: Tensor) -> Tensor:
        """Shapes: uint8 (samples, 3, height, width) → (samples, outputs)."""
        colors = [(pictures[:, i] / 255 - self.mean[i]) / self.std[i] for i in range(COLORS)]
        return self.network(torch.stack(colors, 1).to(next(self.network.parameters()).dtype))


def timm_name(name: str) -> str:
    """Return how timm names the network: one of its own (`timm/resnet50.a1_in1k`), of the hub, or in a folder."""
    if Path(name).is_dir():
        return f"local-dir:{name}"
    return name.removeprefix("timm/") if name.startswith("timm/") else f"hf-hub:{name}"


def layers_of(network: nn.Module) -> list[str]:
    """Return the classes of the repeated layers: members of lists and sequences that are not layers of torch itself."""
    lists = [part for part in network.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    repeated = [
        type(layer).__name__ for part in lists for layer in part if not type(layer).__module__.startswith("torch.")
    ]
    return sorted({name for name in repeated if repeated.count(name) > 1})


# feature: pretrained_model
def build(config: Any, outputs: int, names: Sequence[str] = ()) -> nn.Module:
    """Return the pretrained network, in fp32. Its head is new, unless it was trained for the same classes."""
    backbone = Backbone(config, outputs, pretrained=True)
    network = backbone.network
    kept = network.pretrained_cfg.get("num_classes") == outputs and known_names(network) == list(names)
    if not kept:
        network.reset_classifier(outputs)
    if os.environ.get("RANK", "0") == "0":
        says = "stays, since it was trained for the same classes" if kept else "is new"
        print(f"{config.model_name}: its head for {outputs} outputs {says}", flush=True)
    return backbone


def known_names(network: Any) -> list[str]:
    """Return what the outputs of a timm network mean; empty if it is not known."""
    if names := network.pretrained_cfg.get("label_names"):
        return list(names)
    subset = timm.data.infer_imagenet_subset(network)
    return list(timm.data.ImageNetInfo(subset).label_names()) if subset else []


# end: pretrained_model
# feature: config_model
def build(config: Any, outputs: int, names: Sequence[str] = ()) -> nn.Module:
    """Return the network with random weights in fp32. The engine moves, casts and shards it."""
    network = Backbone(config, outputs, pretrained=False)
    if network.batch_norms:
        count = len(network.batch_norms)
        raise SystemExit(
            f"{config.model_name}: {count} layers of batch norm have no statistics of their own, and "
            "those of micro-batches would depend on how the batch is split. Set model.from_scratch to false, or take "
            "a network without batch norm, such as timm/convnext_tiny or timm/vit_small_patch16_224"
        )
    return network


# end: config_model
def save(config: Any, weights: dict[str, Tensor], folder: Path, outputs: int, **facts: Any) -> None:
    """Save the network for `timm.create_model("local-dir:FOLDER", pretrained=True)`, with what its outputs mean."""
    backbone = Backbone(config, outputs, pretrained=False)
    backbone.load_state_dict(weights)
    if "class_names" in facts:
        facts["label_names"] = facts.pop("class_names")  # as timm calls them
    size = {"input_size": (3, config.image_size, config.image_size), "crop_pct": 1.0, "interpolation": "bilinear"}
    timm.models.save_for_hf(
        backbone.network, str(folder), model_config={**facts, "pretrained_cfg": size}, safe_serialization=True
    )


def saved(config: Any, folder: Path, outputs: int) -> nn.Module:
    """Return the network that was saved in a folder."""
    backbone = Backbone(config, outputs, pretrained=False)
    backbone.network.load_state_dict(load_file(folder / "model.safetensors"))
    return backbone.eval()


# end: named_model
