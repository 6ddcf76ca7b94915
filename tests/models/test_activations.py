"""What each family's layers keep, counted again as autograd saves it; and what activation checkpointing leaves."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import make
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING, AutoModel

from trainwiz import models
from trainwiz.models import Transformer
from trainwiz.models.activations import Checkpointing, live_bytes, saved_bytes
from trainwiz.models.kept import Arithmetic
from trainwiz.render import script
from trainwiz.store import templates

SIZES = {"hidden_size": 320, "num_attention_heads": 10, "intermediate_size": 832}
SHARED = {"num_key_value_heads": 2}
WIDE = {"head_dim": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SHARED, **WIDE},
    "mistral": {**SHARED, **WIDE},
    "qwen2": SHARED,
    "qwen3": {**SHARED, **WIDE},
    "gemma": {**SHARED, **WIDE},
    "gemma3_text": {**SHARED, **WIDE, "layer_types": ["full_attention"] * 2},
    "phi3": SHARED,
    "glm4": {**SHARED, **WIDE},
    "olmo": SHARED,
    "olmo2": SHARED,
    "cohere": SHARED,
    "stablelm": SHARED,
    "starcoder2": SHARED,
    "phi": {},
    "gpt2": {"n_inner": 832},
    "gpt_neox": {},
    "opt": {"ffn_dim": 832, "word_embed_proj_dim": 320},
    "bert": {},
}
ROUTED: dict[str, dict[str, Any]] = {
    "mixtral": {**SHARED, **WIDE, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {**SHARED, **WIDE, "moe_intermediate_size": 192, "num_experts": 8, "num_experts_per_tok": 4},
}
TOKENS = 64
TINY = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": TOKENS}


def activation_bytes(
    model: Transformer, arithmetic: Arithmetic, checkpointing: Checkpointing = "none", scored: int = 0
) -> int:
    """Bytes of one token over all layers at their peak, which is the backward pass of the last layer.

    With `full` checkpointing each layer keeps its input, with `selective` the results of its matrices and its attention
    as well; one layer at a time is computed again, and then keeps everything. The loss is not in it.
    """
    again = 0 if checkpointing == "none" else live_bytes(model, arithmetic, scored)
    return saved_bytes(model, arithmetic, checkpointing, scored=scored) + again


def built(kind: str, layers: int, attention: str = "sdpa", **more: Any) -> nn.Module:
    """A base model with random weights, in training mode."""
    values = {**SIZES, **{**FAMILIES, **ROUTED}[kind], "num_hidden_layers": layers}
    if kind in ROUTED:
        more = {**more, "experts_implementation": "eager"}
    if "layer_types" in values:
        values["layer_types"] = values["layer_types"][:layers]
    config = CONFIG_MAPPING[kind](**values, **TINY, attn_implementation=attention, **more)
    for name in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return AutoModel.from_config(config).train()


def recompute(model: nn.Module, how: Checkpointing) -> None:
    """Do what the generated program does."""
    if how != "none":
        part(how)["recompute_layers"](model, ())


def part(how: Checkpointing) -> dict[str, Any]:
    """What recompute.py defines."""
    artifacts = script.scripts(make(model__activation_checkpointing=how), templates.load())
    (text,) = [artifact.text for artifact in artifacts if artifact.path == "recompute.py"]
    names: dict[str, Any] = {}
    exec(compile(text, "recompute.py", "exec"), names)
    return names


def forward(model: nn.Module, kind: str, samples: int = 1) -> torch.Tensor:
    inputs = torch.arange(samples * TOKENS).remainder(90).reshape(samples, TOKENS)
    return model(input_ids=inputs, **({} if kind == "bert" else {"use_cache": False})).last_hidden_state


def living() -> list[torch.Tensor]:
    """The tensors that Python knows of, but for those of before `newer`."""
    gc.collect()
    return [value for value in gc.get_objects() if type(value) is torch.Tensor]


@contextlib.contextmanager
def newer() -> Iterator[None]:
    """What was there before is not searched: in a process with many objects that takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@newer()
def kept_bytes(
    kind: str,
    layers: int,
    samples: int,
    arithmetic: Arithmetic,
    how: Checkpointing = "none",
    attention: str = "sdpa",
    *,
    half: bool = False,
) -> int:
    """What is alive after a forward pass, each storage once, weights left out."""
    model = built(kind, layers, attention)
    if arithmetic == "16-bit":
        model = model.bfloat16()
    recompute(model, how)
    # What is kept in Python and not in the graph must be looked for.
    others = living if how == "selective" else list
    before = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), *others())}
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # Detached: a node that keeps its own output is never freed, and 3 GB of them stayed in this process.
        saved.append(tensor.detach())
        return saved[-1]

    autocast = torch.autocast("cpu", torch.bfloat16, half or arithmetic == "autocast")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), autocast:
        state = forward(model, kind, samples)
    assert state.requires_grad
    saved += others()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    return sum(size for pointer, size in storages.items() if pointer not in before)


def transformer(kind: str, layers: int) -> Transformer:
    config = json.loads(built(kind, layers).config.to_json_string(use_diff=False))
    found = models.of_config(config)
    assert found is not None
    return found


@pytest.mark.parametrize("arithmetic", ["fp32", "autocast", "16-bit"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_layer_keeps_what_autograd_saves(kind: str, arithmetic: Arithmetic) -> None:
    # Of a second layer the second sample: neither embeddings nor the cast weights are in it.
    one, two = (kept_bytes(kind, n, 2, arithmetic) - kept_bytes(kind, n, 1, arithmetic) for n in (1, 2))
    assert activation_bytes(transformer(kind, 1), arithmetic) == pytest.approx((two - one) / TOKENS, rel=0.01)


def test_weights_in_16_bits_keep_the_same_under_autocast() -> None:
    """Nothing is cast then, and the residual stream is in 16 bits."""
    one, two = (
        kept_bytes("llama", n, 2, "16-bit", half=True) - kept_bytes("llama", n, 1, "16-bit", half=True) for n in (1, 2)
    )
    assert activation_bytes(transformer("llama", 1), "16-bit") == pytest.approx((two - one) / TOKENS, rel=0.01)


@pytest.mark.parametrize("arithmetic", ["fp32", "16-bit"])  # autocast keeps casts of those experts that have a token
@pytest.mark.parametrize("kind", ROUTED)
def test_experts_keep_a_copy_of_each_token_that_they_are_given(kind: str, arithmetic: Arithmetic) -> None:
    one, two = (kept_bytes(kind, n, 2, arithmetic) - kept_bytes(kind, n, 1, arithmetic) for n in (1, 2))
    assert activation_bytes(transformer(kind, 1), arithmetic) == pytest.approx((two - one) / TOKENS, rel=0.01)


@pytest.mark.parametrize("arithmetic", ["fp32", "autocast", "16-bit"])
@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_recomputed_layer_keeps_less(kind: str, how: Checkpointing, arithmetic: Arithmetic) -> None:
    one, two = (kept_bytes(kind, n, 2, arithmetic, how) - kept_bytes(kind, n, 1, arithmetic, how) for n in (1, 2))
    shorter, longer = (activation_bytes(transformer(kind, n), arithmetic, how) for n in (1, 2))
    assert longer - shorter == pytest.approx((two - one) / TOKENS, rel=0.01)
    assert longer - shorter < activation_bytes(transformer(kind, 1), arithmetic) / (1.6 if how == "selective" else 6)


@pytest.mark.parametrize(
    ("kind", "arithmetic", "how"),
    [
        ("llama", "fp32", "none"),
        ("llama", "autocast", "none"),
        ("llama", "16-bit", "selective"),
        ("gpt2", "16-bit", "none"),
    ],
)
def test_eager_attention_keeps_scores_of_all_pairs(kind: str, arithmetic: Arithmetic, how: Checkpointing) -> None:
    one, two = (
        kept_bytes(kind, n, 2, arithmetic, how, "eager") - kept_bytes(kind, n, 1, arithmetic, how, "eager")
        for n in (1, 2)
    )
    shorter, longer = (activation_bytes(transformer(kind, n), arithmetic, how, TOKENS) for n in (1, 2))
    assert longer - shorter == pytest.approx((two - one) / TOKENS, rel=0.01)


def gradient(how: Checkpointing, *, half: bool, compiled: bool = False) -> tuple[float, list[torch.Tensor], int]:
    """Loss and gradients of a model with dropout, and how many matrices were multiplied."""
    torch.manual_seed(0)
    model = built("gpt2", 3, resid_pdrop=0.2)
    recompute(model, how)
    multiplied = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal multiplied
            multiplied += function.__name__ in ("mm.default", "addmm.default")
            return function(*args, **(kwargs or {}))

    if compiled:
        for layer in model.h:
            layer.compile(backend="aot_eager")
    torch.manual_seed(1)
    with contextlib.nullcontext() if compiled else Count():
        with torch.autocast("cpu", torch.bfloat16, half):
            loss = forward(model, "gpt2").square().mean()
        loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None], multiplied


@pytest.mark.parametrize("half", [False, True])
def test_the_gradient_is_the_same_to_the_last_bit(half: bool) -> None:
    loss, gradients, multiplied = gradient("none", half=half)
    for how, more in (("full", 4 * 3), ("offload", 4 * 3), ("selective", 0)):  # four matrices in each of three layers
        again, found, count = gradient(how, half=half)
        assert again == loss, how
        assert all(map(torch.equal, found, gradients)), how
        assert len(found) == len(gradients) > 30
        assert count == multiplied + more, how


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_attention_that_drops_at_random_drops_the_same_again(kind: str) -> None:
    """Eager attention and its neighbors, computed again, draw what they drew the first time."""

    def trained(how: Checkpointing, seed: int) -> tuple[float, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = built(kind, 2, "eager")
        for module in model.modules():
            if hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
                module.attention_dropout = 0.3
            if type(module) is nn.Dropout:
                module.p = 0.3
        recompute(model, how)
        torch.manual_seed(seed)
        loss = forward(model, kind).pow(4).mean()
        loss.backward()
        return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]

    loss, gradients = trained("none", 1)
    assert trained("none", 2)[0] != loss, "nothing was dropped"
    for how in ("full", "offload", "selective"):
        again, found = trained(how, 1)
        assert again == loss, how
        assert all(map(torch.equal, found, gradients)), how


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_experts_with_biases_are_computed_again(experts: str) -> None:
    """GPT-OSS adds them in place to results that would be kept: `Tensor cached during … has been mutated`."""
    sizes = {**SHARED, **TINY, "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    found = []
    for how in ("none", "selective"):
        torch.manual_seed(0)
        model = AutoModel.from_config(CONFIG_MAPPING["gpt_oss"](**sizes, experts_implementation=experts)).train()
        for parameter in model.parameters():
            nn.init.normal_(parameter, 0, 0.2)
        recompute(model, how)
        loss = forward(model, "gpt_oss").square().mean()
        loss.backward()
        found.append([loss, *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("default")  # of dynamo itself
@pytest.mark.parametrize("how", ["full", "selective", "offload"])
def test_compiled_layers_are_recomputed_too(how: Checkpointing) -> None:
    loss, gradients, _ = gradient("none", half=False, compiled=True)
    again, found, _ = gradient(how, half=False, compiled=True)
    assert again == pytest.approx(loss, rel=1e-6)
    assert len(found) == len(gradients) > 30
    for mine, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


Call = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Called(nn.Module):
    """Layers that are called in one way."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call, self.layers = call, nn.ModuleList(Odd() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.call(layer, x)
        return x


class Odd(nn.Module):
    """Takes what people's own layers take: pairs, masks before the input, arguments called name and value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))

    def forward(self, pair: Any = None, **named: Any) -> Any:
        state = pair[0] if pair is not None else named.get("x", named.get("value"))
        return state + self.inner(state)


@pytest.mark.parametrize(
    "call",
    [
        lambda layer, x: layer((x, x)),
        lambda layer, x: layer(mask=None, x=x),
        lambda layer, x: layer(value=x, name="odd"),
    ],
    ids=["a pair", "no mask, then the input", "by odd names"],
)
def test_layers_are_called_as_people_call_theirs(call: Call) -> None:
    found = []
    for how in ("full", "offload"):
        torch.manual_seed(0)
        model = Called(call)
        recompute(model, how)  # type: ignore[arg-type]
        model(torch.randn(3, 8)).sum().backward()
        found.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *found))
    assert len(found[0]) == 4


def test_the_first_tensor_of_a_layer_waits_elsewhere_and_the_mask_stays() -> None:
    made, seen = part("offload"), list[Any]()
    away = made["to_host"]
    made["to_host"] = lambda place, tensor: seen.append(away(place, tensor)) or seen[-1]
    x, mask, layer = torch.randn(3, 8, requires_grad=True), torch.ones(3, 8), nn.Linear(8, 8)
    made["compute_again"](lambda h, k: layer(h) * k, x, mask).sum().backward()
    assert [isinstance(each, tuple) for each in seen] == [True, False]
    assert seen[0][0].data_ptr() != x.data_ptr()


def test_what_cannot_be_computed_twice_is_refused() -> None:
    with pytest.raises(SystemExit, match="no layer to recompute"):
        recompute(nn.Linear(2, 2), "full")
    layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))])
    with pytest.raises(SystemExit, match="BatchNorm would count each batch twice"):
        recompute(nn.Sequential(layers), "full")


def test_offloaded_inputs_leave_those_of_one_layer() -> None:
    """Whatever the number of layers; a network without any has none."""
    model = models.known("llama-3.1-8b")
    assert model
    one = saved_bytes(model, "16-bit", "offload")
    assert one == 2 * 4096 == saved_bytes(model, "16-bit", "full") / 32
    assert saved_bytes(replace(model, blocks=()), "16-bit", "offload") == 0
