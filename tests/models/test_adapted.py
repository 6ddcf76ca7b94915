"""What layers keep where only adapters are trained, counted again as autograd saves it."""

from __future__ import annotations

import contextlib
from typing import Literal

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_activations import FAMILIES, TOKENS, built, forward, transformer
from torch import Tensor

from trainwiz.models import known
from trainwiz.models.activations import layer_bytes
from trainwiz.models.adapted import EVERYWHERE, Adapters, adapters
from trainwiz.models.kept import Arithmetic

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
Weights = Literal["fp32", "16-bit"]
WAYS: tuple[tuple[Arithmetic, Weights], ...] = (
    ("fp32", "fp32"),
    ("autocast", "fp32"),
    ("autocast", "16-bit"),
    ("16-bit", "16-bit"),
)
LINEAR = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "glm4": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt2": ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "bert": ("query", "key", "value", "output.dense", "intermediate.dense"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "starcoder2": ("q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"),
}
"""All linear layers of families that call them otherwise than Llama does."""
OF_LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def kept_bytes(kind: str, layers: int, samples: int, way: tuple[Arithmetic, Weights], targets: tuple[str, ...]) -> int:
    """What is saved in a forward pass, each storage once, weights left out."""
    arithmetic, weights = way
    model = built(kind, layers)
    if weights == "16-bit":
        model = model.bfloat16()
    adapted = get_peft_model(
        model,  # type: ignore[arg-type]
        LoraConfig(r=1, target_modules=list(targets), fan_in_fan_out=kind == "gpt2"),
        autocast_adapter_dtype=arithmetic != "16-bit",
    )
    base = adapted.get_base_model()
    base.get_input_embeddings().register_forward_hook(lambda _module, _inputs, output: output.requires_grad_(True))
    before = {tensor.untyped_storage().data_ptr() for tensor in (*adapted.parameters(), *adapted.buffers())}
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    cast = torch.autocast("cpu", torch.bfloat16) if arithmetic == "autocast" else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast:
        forward(base, kind, samples)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(size for pointer, size in storages.items() if pointer not in before)


def counted(kind: str, way: tuple[Arithmetic, Weights], targets: tuple[str, ...]) -> float:
    """Of a second layer the second sample, for each token."""
    one, two = (
        kept_bytes(kind, layers, 2, way, targets) - kept_bytes(kind, layers, 1, way, targets) for layers in (1, 2)
    )
    return (two - one) / TOKENS


@pytest.mark.parametrize("way", [way for way in WAYS if way != ("autocast", "16-bit")])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_layer_with_adapters_keeps_what_autograd_saves(kind: str, way: tuple[Arithmetic, Weights]) -> None:
    model = transformer(kind, 1)
    found = layer_bytes(model, model.blocks[0], way[0], adapters=adapters(model, EVERYWHERE))
    assert found == pytest.approx(counted(kind, way, LINEAR.get(kind, OF_LLAMA)), rel=0.02)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("targets", ["q_proj,v_proj", "q_proj,k_proj,v_proj,o_proj", "gate_proj,up_proj", "down_proj"])
def test_adapters_on_some_matrices_keep_less(targets: str, way: tuple[Arithmetic, Weights]) -> None:
    model = transformer("llama", 1)
    found = layer_bytes(model, model.blocks[0], way[0], adapters=adapters(model, targets))
    assert found == pytest.approx(counted("llama", way, tuple(targets.split(","))), rel=0.02)
    assert found < layer_bytes(model, model.blocks[0], way[0], adapters=adapters(model, EVERYWHERE))


def test_matrices_are_found_by_their_names() -> None:
    llama, phi3 = known("llama-3-8b"), known("phi-3-mini")
    assert llama
    assert phi3
    assert adapters(llama, EVERYWHERE) == Adapters(3, 1, 2, 1)
    assert adapters(phi3, EVERYWHERE) == Adapters(1, 1, 1, 1)
    assert adapters(llama, "q_proj, v_proj") == Adapters(2, 0, 0, 0)
    assert adapters(phi3, "qkv_proj,o_proj") == Adapters(1, 1, 0, 0)
    assert adapters(llama, "q_proj,something_else") == Adapters(3, 1, 2, 1), "a name may be any of them"
    assert not adapters(llama, "q_proj").on_mlp
