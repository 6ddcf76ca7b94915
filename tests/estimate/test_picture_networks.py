"""What networks for pictures keep for their backward pass, against what PyTorch keeps, and against measured batches."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import make
from torch import Tensor

from trainwiz import strategies, tasks
from trainwiz.estimate.device import Work, offloaded_activations
from trainwiz.estimate.gpus import gpu_model
from trainwiz.estimate.speed import pace
from trainwiz.estimate.state import device_needs, network, work_of
from trainwiz.models.pictures import network_of_timm, parameters_of_timm
from trainwiz.strategies import labeled
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
    assert sum(kept["offload"].moved) == kept["full"].saved - kept["offload"].saved


def test_what_is_moved_to_host_memory_is_counted_there() -> None:
    """Each block's input, in pinned blocks whose sizes are powers of two: eight of resnet18."""
    plan = make(
        task="image_classification",
        model__name="resnet18",
        model__activation_checkpointing="offload",
        batch__per_device_batch_size=32,
        data__train="photos",
        data__image_size=224,
    )
    inputs = NETWORKS["resnet18"].kept(224, "fp32", "offload").moved
    assert len(inputs) == 8
    expected = sum(2 ** math.ceil(math.log2(32 * each)) for each in inputs)
    assert offloaded_activations(strategies.of(plan), work_of(plan, NETWORKS["resnet18"].parameters, None)) == expected


@pytest.mark.parametrize(("name", "size"), [("tiny", 33), ("resnet18", 64)])
def test_a_preset_multiplies_what_its_modules_do(template: Any, name: str, size: int) -> None:
    config, counted = type("Config", (), NETWORKS[name].settings), [0, 0]
    model = template.build(config, 10)

    def count(module: torch.nn.Module, _: Any, result: Tensor) -> None:
        counted[1] += 1
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            counted[0] += module.weight[0].numel() * result[0].numel()

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(count)
    model(torch.zeros(1, 3, size, size, dtype=torch.uint8))
    assert NETWORKS[name].multiplications(size) == counted[0]
    assert NETWORKS[name].modules == pytest.approx(counted[1], rel=0.5)


def test_pictures_have_a_speed() -> None:
    """A ResNet-50 is faster than a deeper one, and fp32 is slower than 16 bits; an adapter's network has none."""
    gpu = gpu_model("3090")
    assert gpu
    work = Work(parameters=25_560_000, transformer=None, picture_size=224, precision="fp16", samples=256)
    fast, deep, single = (
        pace(labeled("single"), replace(work, network=network_of_timm(f"timm/{name}"), precision=how), gpu)
        for name, how in (("resnet50", "fp16"), ("resnet152", "fp16"), ("resnet50", "no"))
    )
    assert fast
    assert deep
    assert single
    assert fast.tokens == 256
    assert fast.tokens_per_second > 1.8 * deep.tokens_per_second
    assert fast.tokens_per_second > 1.8 * single.tokens_per_second
    assert pace(labeled("single"), work, gpu) is None


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
    assert network(pictures, "timm/no_such_network") is None
    assert network(tasks.named("text_classification"), "timm/resnet50") is None
    assert network(pictures, "timm/resnet50.a1_in1k")
