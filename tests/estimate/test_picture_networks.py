"""What networks for pictures keep for their backward pass, against what PyTorch keeps, and against measured batches."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import make
from torch import Tensor

from trainwiz import tasks
from trainwiz.estimate.state import device_needs, network
from trainwiz.models.pictures import network_of_timm, parameters_of_timm
from trainwiz.tasks.networks import NETWORKS

TEMPLATE = Path(__file__).parents[2] / "train_templates" / "parts" / "network.py"


@pytest.fixture(scope="module")
def template() -> Any:
    """The part of a generated project that builds presets; what builds others is left out."""
    source = TEMPLATE.read_text().replace("import timm\n", "").partition("class Backbone")[0]
    spec = importlib.util.spec_from_loader("network_of_presets", loader=None)
    assert spec
    module = importlib.util.module_from_spec(spec)
    exec(compile(source, str(TEMPLATE), "exec"), module.__dict__)
    return module


def kept(model: torch.nn.Module, pictures: Tensor) -> int:
    """Bytes of all that the forward pass saves and no parameter holds."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in own:
            found[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(pictures)
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "size"), [("tiny", 32), ("tiny", 45), ("resnet18", 64)])
def test_a_preset_keeps_what_pytorch_keeps(template: Any, name: str, size: int, dtype: torch.dtype) -> None:
    config = type("Config", (), NETWORKS[name].settings)
    with torch.device("meta"):
        model = template.build(config, 10).to(dtype)
        pictures = torch.zeros(4, 3, size, size, dtype=torch.uint8)
    counted = kept(model, pictures) / 4
    foretold = NETWORKS[name].kept(size, "fp32" if dtype == torch.float32 else "16-bit", "none").saved
    assert foretold == pytest.approx(counted, rel=0.02)


def test_checkpointing_keeps_less_and_needs_a_block_at_a_time() -> None:
    kept = {how: NETWORKS["resnet18"].kept(224, "autocast", how) for how in ("none", "selective", "full", "offload")}
    assert kept["none"].saved > kept["selective"].saved > kept["full"].saved > kept["offload"].saved
    assert kept["none"].live == 0 < kept["full"].live < kept["none"].saved


# Largest batches that trained on an RTX 3090 (24 GiB) in fp16, of steps of a third or a half:
# https://github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv
@pytest.mark.parametrize(
    ("name", "size", "batch"),
    [
        ("resnet101", 224, 256),
        ("vit_large_patch16_224", 224, 64),
        ("swin_base_patch4_window7_224", 224, 128),
        ("convnext_base", 224, 128),
        ("efficientnet_b4", 320, 96),
        ("densenet169", 224, 256),
        ("regnety_160", 224, 192),
    ],
)
def test_the_largest_batch_on_24_gib_fits_and_the_next_does_not(name: str, size: int, batch: int) -> None:
    found, parameters = network_of_timm(f"timm/{name}.a_tag"), parameters_of_timm(f"timm/{name}")
    assert found
    assert parameters
    each, state = found.kept(size, "autocast", "none").saved, 18 * parameters
    assert batch * each + state < 22 * 2**30
    assert 1.5 * batch * each + state > 20 * 2**30


def test_a_plan_counts_the_size_of_its_pictures() -> None:
    def activations(**data: Any) -> int:
        plan = make(
            task="image_classification",
            model__name="resnet18",
            batch__per_device_batch_size=32,
            **{f"data__{key}": value for key, value in {"train": "photos", **data}.items()},
        )
        return device_needs(plan, NETWORKS["resnet18"].parameters, None).activations

    assert activations(image_size=224) > 6 * 2**30
    assert activations(image_size=224) == pytest.approx(4 * activations(image_size=112), rel=0.01)
    assert activations(image_size=224, train="embedded") < 32 * 2**20, "digits of 8 × 8 pixels"


def test_only_known_networks_of_picture_tasks_are_counted() -> None:
    pictures = tasks.named("image_classification")
    assert network(pictures, "timm/no_such_network", "photos") is None
    assert network(tasks.named("text_classification"), "timm/resnet50", "a.csv") is None
    assert network(pictures, "timm/resnet50.a1_in1k", "photos")
    assert network(pictures, "resnet18", "arrays.npz") is None, "arrays keep their own size"
