"""The language model's loss in chunks: the same number and gradient as from whole logits, without holding them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from projects import SMALL, losses, make
from safetensors.torch import save_model
from test_tasks import load, small_decoder
from test_training import ON_STANDIN, STRATEGIES
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM
from warm import launch

from trainwiz.probe import weights

pytestmark = pytest.mark.filterwarnings("default")


def decoder(kind: str) -> Any:
    """A small model of random weights in fp64."""
    torch.manual_seed(0)
    shape = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "gemma2":  # it bends its logits after the head
        shape |= {"final_logit_softcapping": 2.0, "head_dim": 8, "num_key_value_heads": 2}
    if kind == "bert":  # its head is more than one layer
        shape |= {"is_decoder": True, "intermediate_size": 24}
    config = AutoConfig.for_model(kind, **shape, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()


def batch() -> tuple[Tensor, Tensor]:
    """Three windows of 11 tokens, some of which count nothing."""
    generator = torch.Generator().manual_seed(1)
    inputs, labels = (torch.randint(37, (3, 11), generator=generator) for _ in range(2))
    labels[1, 4:], labels[2] = -100, -100
    return inputs, labels


def loss_and_gradients(model: Any, loss: Tensor) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


# docs/decisions/tasks.md: The language model's loss is computed in chunks inside the model's forward
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "bert"])
@pytest.mark.parametrize("size", [1, 7, 11, 33, 1000])
@pytest.mark.parametrize("precision", ["no", "fp16"], ids=["fused", "recomputed"])
def test_chunks_give_the_loss_and_gradient_of_whole_logits(
    kind: str, size: int, precision: str, tmp_path: Path
) -> None:
    rows, model = load(tmp_path, "causal_lm", "rows", precision__mixed_precision=precision), decoder(kind)
    assert hasattr(rows, "HeadLoss") is (precision == "no")
    inputs, labels = batch()
    documents = {"inputs": inputs, "labels": labels, "positions": torch.arange(11).expand(3, -1)}
    logits = model(input_ids=inputs).logits.flatten(0, 1)
    plain = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    expected, gradients = loss_and_gradients(model, plain)
    chunked = rows.with_loss(model, size)
    loss, ours = loss_and_gradients(chunked, chunked(**documents))
    assert loss == pytest.approx(expected, rel=1e-13)
    assert len(ours) == len(gradients)
    for mine, theirs in zip(ours, gradients, strict=True):
        assert float((mine - theirs).norm()) <= 1e-12 * float(theirs.norm()) + 1e-15


def test_what_an_export_has_written_is_compared_with_the_checkpoint(tmp_path: Path) -> None:
    """transformers empties the weights that it is given to save."""
    task = load(tmp_path / "project", "causal_lm")
    (checkpoint := tmp_path / "checkpoint").mkdir()
    save_model(task.build_model(task.TaskConfig()), str(checkpoint / "model.safetensors"))
    (checkpoint / "manifest.json").write_text(json.dumps({"layout": "whole", "config": {}}))
    project = tmp_path / "project"
    found = weights.gather(
        warm.python(),
        project=project,
        checkpoint=checkpoint,
        output=tmp_path / "exported",
        reading=project / "trust.py",
        trust=False,
        seconds=120,
    )
    assert not found.problem
    assert (found.known, found.different) == (found.tensors, ())


# docs/decisions/tasks.md: What surrounds a head is computed by the model itself, in chunks
@pytest.mark.parametrize("kind", ["llama", "gemma2", "bert"])
def test_no_more_logits_are_held_than_a_chunk_has(kind: str, tmp_path: Path) -> None:
    """Neither at once nor for the gradient: no tensor that autograd keeps has a row of logits for each token."""
    model = load(tmp_path, "causal_lm", "rows").with_loss(decoder(kind), 5)
    kept = []
    inputs, labels = batch()
    with (
        Shapes() as shapes,
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t),
    ):
        loss = model(inputs, labels, positions=torch.arange(11).expand(3, -1))
    weight = (16, 37)  # the transposed one
    assert {shape[-2] for shape in shapes.seen - {weight} if len(shape) > 1 and shape[-1] == 37} == {5, 3}
    assert not [shape for shape in kept if shape[-1:] == (37,)]
    assert "forward" not in vars(model.base_model)
    loss.backward()
    with pytest.raises((RuntimeError, TypeError)):
        loss.backward()


def test_what_is_compiled_of_the_loss_is_the_same_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load(tmp_path / "plain", "causal_lm", "head_loss").loss_and_errors
    monkeypatch.setattr(torch, "compile", lambda function: function)
    compiled = load(tmp_path / "compiled", "causal_lm", "head_loss", model__compile=True).loss_and_errors
    assert compiled.__code__ != plain.__code__
    logits = torch.randn(9, 37, dtype=torch.float64)
    wanted = torch.randint(37, (9,))
    wanted[2] = -100
    for mine, other in zip(compiled(logits, wanted), plain(logits, wanted), strict=True):
        assert torch.allclose(mine, other, rtol=1e-13, atol=1e-15)
    monkeypatch.undo()
    whole = torch.compile(compiled, backend="aot_eager", fullgraph=True)  # one graph, whatever becomes of it
    assert torch.equal(whole(logits.bfloat16(), wanted)[1], compiled(logits.bfloat16(), wanted)[1])


PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()
        self.products_of_the_head = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = {size for each in args if isinstance(each, Tensor) for size in each.shape}
        self.products_of_the_head += 37 in sizes and func.overloadpacket in PRODUCTS
        self.seen |= {tuple(found.shape)} if isinstance(found, Tensor) else set()
        return found


# docs/decisions/loop.md: The head's gradients are computed with the loss
def test_no_product_of_the_head_is_computed_twice(tmp_path: Path) -> None:
    counts = {}
    for name, precision in (("fused", "bf16"), ("recomputed", "fp16")):
        rows = load(tmp_path / name, "causal_lm", "rows", precision__mixed_precision=precision)
        model = rows.with_loss(decoder("llama"), 5)
        inputs, labels = batch()
        with Shapes() as shapes:
            model(inputs, labels, positions=torch.arange(11).expand(3, -1)).backward()
        counts[name] = shapes.products_of_the_head
    chunks = 7
    assert counts == {"fused": 3 * chunks, "recomputed": 4 * chunks}


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_gradients_in_16_bits_are_as_near_to_the_truth_as_those_of_autograd(
    weights: torch.dtype, tmp_path: Path
) -> None:
    """Under autocast, and with weights that an engine has cast; also where a label does not count, or no weight is
    trained."""
    head_loss = load(tmp_path, "causal_lm", "head_loss")
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((96, 32), (57, 32)))
    labels = torch.randint(57, (96,), generator=generator)
    labels[::5] = head_loss.IGNORED

    def outcome(fused: bool, dtype: torch.dtype, trained: bool = True) -> list[Tensor]:
        given = [t.clone().to(dtype).detach() for t in (hidden, weight)]
        given[0].requires_grad_()
        given[1].requires_grad_(trained)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float64):
            if fused:
                loss = head_loss.HeadLoss.apply(*given, labels, 7)
            else:
                logits = nn.functional.linear(*given)
                logits = logits if dtype == torch.float64 else logits.float()
                loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        (loss * 3).backward()
        assert given[0].grad is not None
        assert given[0].grad.dtype is dtype
        return [loss, given[0].grad, *([given[1].grad] if given[1].grad is not None else [])]

    truth, ours, theirs = outcome(False, torch.float64), outcome(True, weights), outcome(False, weights)
    assert ours[0].item() == pytest.approx(theirs[0].item(), rel=1e-6)
    for true, mine, other in zip(truth, ours, theirs, strict=True):
        assert float((mine - true).detach().norm()) <= 1.5 * float((other - true).detach().norm()) + 1e-6 * float(
            true.detach().norm()
        )
    assert len(outcome(True, weights, trained=False)) == 2
    for one, other in zip(outcome(True, torch.float64), truth, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.train
@pytest.mark.parametrize("name", ["zero3", "fsdp"])
def test_chunks_go_with_every_way_to_shard_also_with_tied_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the very good film the bad film very very good " * 200)
    values = {**SMALL, "model.name": str(small_decoder(tmp_path / "decoder")), "batch.sequence_length": 32}
    values |= {"data.train": str(tmp_path / "text.txt"), "schedule.n_steps": 4, **STRATEGIES[name]}
    folder = make(tmp_path / "project", values)
    curves = []
    for size in ("10", "1000"):
        done = launch(folder, "--", "--loss_chunk", size, env=ON_STANDIN if name == "fsdp" else None)
        assert done.code == 0, done.err
        curves.append(losses(folder))
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0][-1] < curves[0][0]
