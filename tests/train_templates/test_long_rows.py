"""Long rows of documents: which models attend without a mask of all pairs of places, and that they learn the same."""

import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_model_families import FAMILIES
from test_rows import Waits
from test_tasks import load
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import flex_attention as flex

pytestmark = pytest.mark.filterwarnings("default")

LENGTH, WINDOW = 320, 40
SIZES = (7, 150, 3, 160)
WINDOWS = ("mistral", "gemma2", "gemma3_text")
KEPT = {
    "llama": ("each_document", "flex_attention"),
    "qwen2": ("each_document", "flex_attention"),
    "qwen3": ("each_document", "flex_attention"),
    "qwen3_moe": ("each_document", "flex_attention"),
    "mistral": ("each_document", "flex_attention"),
    "mixtral": ("each_document", "flex_attention"),
    "gemma2": ("eager", "flex_attention"),  # its scores are bent before their softmax
    "gemma3_text": ("each_document", "flex_attention"),
    "phi": ("each_document", "flex_attention"),
    "gpt2": ("each_document", "sdpa"),
    "gpt_neox": ("each_document", "flex_attention"),
    "glm": ("each_document", "flex_attention"),
    "olmo": ("each_document", "flex_attention"),
}
"""How each family attends within long rows, on a CPU and on a GPU without a kernel for documents."""


def model_of(kind: str, **changes: Any) -> Any:
    """A small model of random weights, without dropout, as those that train from scratch."""
    torch.manual_seed(0)
    places = {"n_positions": LENGTH} if kind == "gpt2" else {"max_position_embeddings": LENGTH}
    windows = {"sliding_window": WINDOW} if kind in WINDOWS else {}
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(kind, vocab_size=37, **{**FAMILIES[kind], **places, **windows, **ids})
    config.update(
        dict.fromkeys({"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"} & vars(config).keys(), 0.0)
    )
    config.update(changes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def batch() -> dict[str, Tensor]:
    """Two rows; the second holds other documents."""
    inputs = torch.randint(37, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    places = [torch.cat([torch.arange(n) for n in sizes]) for sizes in (SIZES, SIZES[::-1])]
    return {"inputs": inputs, "labels": inputs.roll(-1, 1), "positions": torch.stack(places)}


class Squares(TorchDispatchMode):
    """The bytes of the largest tensor over all pairs of places."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for each in tree_leaves(returned):
            if isinstance(each, Tensor) and each.dim() > 1 and set(each.shape[-2:]) <= {LENGTH, 2 * LENGTH}:
                self.largest = max(self.largest, each.numel() * each.element_size())
        return returned


def learned(model: Any, rows: ModuleType, length: int) -> tuple[float, list[Tensor], int]:
    """The loss, the gradients, and the largest square."""
    model = rows.with_loss(model, 1024, length)
    with Squares() as squares:
        loss = model(**batch())
        loss.backward()
    return float(loss.detach()), [p.grad for p in model.parameters() if p.grad is not None], squares.largest


def test_the_families_are_those_that_are_trained() -> None:
    assert KEPT.keys() <= FAMILIES.keys()


# docs/decisions/tasks.md: Long rows are kept apart without a mask
@pytest.mark.parametrize("kind", KEPT)
def test_a_cpu_attends_within_one_document_after_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = load(tmp_path, "causal_lm", "rows")
    masked = learned(model_of(kind), rows, LENGTH)
    assert masked[2] >= 2 * LENGTH**2, "up to 4096 places, a mask for each row"
    monkeypatch.setattr(sys.modules["long_rows"], "LONGEST_MASK", 64)
    monkeypatch.setattr(sys.modules["long_rows"], "QUERIES", 16)
    found = learned(model := model_of(kind), rows, LENGTH)
    assert model.config._attn_implementation == KEPT[kind][0]
    if KEPT[kind][0] == "each_document":
        assert found[2] == 0
    else:
        assert "320 × 320 places" in capsys.readouterr().out
    assert found[0] == pytest.approx(masked[0], rel=1e-6)
    for ours, theirs in zip(found[1], masked[1], strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-4)


def by_hand(begin: Tensor, window: int) -> Tensor:
    """Which places see which, of all pairs."""
    place = torch.arange(begin.shape[1])
    before = place[:, None] - place
    return (begin[:, :, None] == begin[:, None]) & (before >= 0) & (before < window)


def blocks(mask: Tensor, beyond: bool) -> Tensor:
    """The same in blocks of 128, with `beyond` for queries behind the last."""
    padded = torch.nn.functional.pad(mask, (0, 768 - 700))
    padded = torch.nn.functional.pad(padded, (0, 0, 0, 768 - 700), value=beyond)
    return padded.view(2, 6, 128, 6, 128).transpose(2, 3).flatten(3)


def dense(counts: Tensor, indices: Tensor) -> Tensor:
    """Which blocks are listed."""
    is_listed = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros_like(is_listed).scatter(-1, indices.long(), is_listed)


@pytest.mark.parametrize("window", [None, 1, 100, 128, 129, 300])
@pytest.mark.parametrize("sizes", [(700,), (128, 256, 316), (1, 127, 129, 300, 143), (5,) * 140])
def test_blocks_hold_exactly_what_a_mask_lets_through(
    sizes: tuple[int, ...], window: int | None, tmp_path: Path
) -> None:
    load(tmp_path, "causal_lm", "rows", machine__device="cuda")
    begin = torch.cat([torch.full((n,), a) for a, n in zip(itertools.accumulate((0, *sizes)), sizes, strict=False)])
    begin = torch.stack((begin, torch.zeros_like(begin)))
    with Waits() as waits:
        found = sys.modules["long_rows"].block_mask(begin, window)
    assert not waits.noted, "the host goes on ahead of the device"
    wanted = by_hand(begin, window or len(begin[0]))
    assert torch.equal(found.to_dense()[:, 0].bool(), blocks(wanted, False).any(-1)), "no block is looked at in vain"
    rows, queries, keys = torch.meshgrid(torch.arange(2), torch.arange(700), torch.arange(700), indexing="ij")
    assert torch.equal(found.mask_mod(rows, rows, queries, keys), wanted)
    full = dense(found.full_kv_num_blocks, found.full_kv_indices)[:, 0]
    assert blocks(wanted, True).all(-1)[full].all(), "of a full block, nobody asks which pairs are let through"
    assert window is not None or full.any()


def reference(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, score_mod: Any, **named: Any) -> Tensor:
    """What the kernel computes from the blocks that it is told of."""
    length = query.shape[2]
    place = torch.arange(length)
    rows, _, queries, keys = torch.meshgrid(torch.arange(len(query)), torch.arange(1), place, place, indexing="ij")
    listed = [
        dense(*some).repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :length, :length]
        for some in (
            (block_mask.kv_num_blocks, block_mask.kv_indices),
            (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
        )
    ]
    mask = (listed[0] & block_mask.mask_mod(rows, None, queries, keys)) | listed[1]
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (named["scale"] or query.shape[3] ** -0.5)
    scores = score_mod(scores, None, None, None, None).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("kind", KEPT)
def test_a_gpu_attends_by_blocks(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel needs a GPU: a reference that reads the blocks stands in its place."""
    rows = load(tmp_path, "causal_lm", "rows", machine__device="cuda")
    masked = learned(model_of(kind), rows, LENGTH)
    long_rows = sys.modules["long_rows"]
    agrees = long_rows.flex_agrees
    monkeypatch.setattr(long_rows, "LONGEST_MASK", 64)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(long_rows, "flex_agrees", lambda config: agrees(config, "cpu"))
    monkeypatch.setattr(flex, "compile_friendly_flex_attention", reference)
    found = learned(model := model_of(kind), rows, LENGTH)
    assert model.config._attn_implementation == KEPT[kind][1]
    assert found[0] == pytest.approx(masked[0], rel=1e-6)
    for ours, theirs in zip(found[1], masked[1], strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-4)
    with Squares() as squares:
        rows.given(model.config, batch()["inputs"], batch()["positions"])
    assert bool(squares.largest) == (KEPT[kind][1] == "sdpa")


# docs/decisions/tasks.md: Families without a kernel of PyTorch's attend by blocks
@pytest.mark.parametrize(("kind", "found"), [("gemma2", "flex_attention"), ("llama", "sdpa")])
def test_a_family_without_another_kernel_attends_by_blocks_in_short_rows_too(
    kind: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load(tmp_path, "causal_lm", "rows", machine__device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys.modules["long_rows"], "flex_agrees", lambda _: True)
    assert rows.with_loss(model_of(kind), 1024, LENGTH).config._attn_implementation == found


@pytest.mark.parametrize(("is_native", "kind"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_kernel_is_tried_in_what_the_card_computes(
    is_native: bool, kind: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Ampere, PyTorch says that it supports bfloat16, which Triton does not."""
    load(tmp_path, "causal_lm", "rows", machine__device="cuda")

    def is_supported(including_emulation: bool = True) -> bool:
        return including_emulation or is_native

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert sys.modules["attention"].half_of(torch.device("cuda")) == kind
    assert sys.modules["attention"].half_of(torch.device("cpu")) == torch.bfloat16


def test_a_kernel_that_fails_or_differs_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = load(tmp_path, "causal_lm", "rows", machine__device="cuda")
    config = model_of("llama").config
    for wrong in (lambda *given, **_: given[0] * 1.1, lambda *_, **__: 1 / 0):
        monkeypatch.setattr(flex, "compile_friendly_flex_attention", wrong)
        assert not sys.modules["long_rows"].flex_agrees(config, "cpu")
    assert "flex attention does not work here: ZeroDivisionError" in capsys.readouterr().out
    model = rows.with_loss(model_of("llama"), 1024, 8192)
    assert model.config._attn_implementation == "sdpa", "without a GPU"
    assert "8,192 × 8,192 places, 0.1 GiB" in capsys.readouterr().out
    dropping = rows.with_loss(model_of("llama", attention_dropout=0.1), 1024, 8192)
    assert dropping.config._attn_implementation == "sdpa"
    assert "attention dropout 0.1" in capsys.readouterr().out
