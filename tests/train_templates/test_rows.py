"""Rows of documents: nothing is lost, hardly a place is wasted, and no document sees another."""

import functools
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import projects
import pytest
import tokenizers
import torch
import warm
from plans import BASE
from projects import SMALL, losses, make
from test_tasks import load, small_decoder
from test_training import SINGLE
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
    masking_utils,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from warm import launch, spawn

from trainwiz import plan as plans
from trainwiz.engines.transformers import MASKS_SINCE
from trainwiz.estimate import packing
from trainwiz.probe.project import project

pytestmark = pytest.mark.filterwarnings("default")

CUDA = {"machine__device": "cuda", "precision__mixed_precision": "bf16"}


def decoder(kind: str) -> Any:
    """A small model of random weights."""
    torch.manual_seed(0)
    shape = {"vocab_size": 37, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 16, "max_position_embeddings": 64}
    if kind in ("mistral", "gemma2", "gemma3_text", "gemma3"):
        shape["sliding_window"] = 4
    shape |= {"ffn_dim": 48, "word_embed_proj_dim": 32} if kind == "opt" else {}
    shape |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "gemma3":  # it also sees pictures
        seen = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = AutoConfig.for_model(kind, text_config=shape, vision_config=seen)
    else:
        config = AutoConfig.for_model(kind, **shape)
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def three_documents() -> tuple[Tensor, Tensor]:
    """Two rows of documents of 7, 9 and 4 tokens, and their positions."""
    inputs = torch.randint(37, (2, 20), generator=torch.Generator().manual_seed(1))
    return inputs, torch.cat([torch.arange(n) for n in (7, 9, 4)]).expand(2, -1)


# Not only models that are alike: learned positions, rotary ones, windows in all layers or some, no SDPA (gemma2), and a
# language model inside of another one, whose settings are not at the top (gemma3).
KINDS = (
    "llama",
    "gpt2",
    "mistral",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "qwen3",
    "opt",
    "cohere2",
    "gpt_bigcode",
    "xglm",
)


# docs/decisions/tasks.md: Packed documents do not see each other
@pytest.mark.parametrize("kind", KINDS)
def test_changing_one_document_changes_no_logit_of_another(kind: str, tmp_path: Path) -> None:
    rows, model = load(tmp_path, "causal_lm", "rows"), decoder(kind)
    rows.refuse_what_mixes(model)
    inputs, positions = three_documents()
    changed = inputs.clone()
    changed[:, 7:16] = (changed[:, 7:16] + 1) % 37
    config = model.config.get_text_config()
    with torch.no_grad():
        before, after = (model(**rows.given(config, ids, positions)).logits for ids in (inputs, changed))
        alone = model(input_ids=inputs[:, 7:16]).logits
    for others in (slice(0, 7), slice(16, 20)):
        assert torch.equal(before[:, others], after[:, others]), "bit for bit"
    assert not torch.equal(before[:, 7:16], after[:, 7:16])
    assert torch.allclose(before[:, 7:16], alone, atol=1e-6), "and each is what it is without the others"


def test_families_that_older_transformers_mix_are_refused_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load(tmp_path, "causal_lm", "rows")
    assert rows.MASKS_SINCE == MASKS_SINCE
    gpt2, llama = decoder("gpt2"), decoder("llama")
    monkeypatch.setattr(rows.transformers, "__version__", "4.51.3")
    rows.refuse_what_mixes(llama)
    with pytest.raises(SystemExit, match=r"GPT2LMHeadModel cannot keep .* before transformers 4\.52: train"):
        rows.refuse_what_mixes(gpt2)
    monkeypatch.setattr(rows.transformers, "__version__", "4.52.0.dev0")
    rows.refuse_what_mixes(gpt2)


class Waits(TorchDispatchMode):
    """Notes operations whose result a GPU would have to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(i is not None and i.dtype is torch.bool for i in args[1])
        if by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"):
            self.noted.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "mixtral", "phi", "gpt_neox"])
def test_no_model_waits_for_the_device(
    kind: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", masking_utils.find_packed_sequence_indices)
    rows = load(tmp_path, "causal_lm", "rows", data__packing=packed)
    model = rows.with_loss(decoder(kind).train(), 1024)
    inputs, positions = three_documents()
    with Waits() as waits:
        model(inputs=inputs, labels=inputs, **({"positions": positions} if packed else {})).backward()
    assert not waits.noted


def test_a_model_whose_attention_cannot_be_replaced_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Falcon takes any name but its own for attention without a mask, over all documents of a row."""
    rows = load(tmp_path, "causal_lm", "rows", **CUDA)
    config = AutoConfig.for_model("falcon", vocab_size=37, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(rows, "kernel_agrees", lambda _: True)
    rows.choose_attention(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_sample_is_written_where_it_takes_no_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = load(tmp_path, "causal_lm", "rows")
    assert rows.place_for(124_000_000) == ("cpu", torch.float32)
    assert rows.place_for(8_000_000_000) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 << 30, 80 << 30))
    for bf16, dtype in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda bf16=bf16, **_: bf16)
        assert rows.place_for(8_000_000_000) == ("cuda", dtype)
    assert rows.place_for(70_000_000_000) is None
    decoder("llama").save_pretrained(tmp_path / "model")
    monkeypatch.setattr(rows, "place_for", lambda parameters: ("cpu", torch.float32) if parameters < 20_000 else None)
    assert len(rows.write_on(tmp_path / "model", [1, 2, 3], 5)) == 5
    monkeypatch.setattr(rows, "place_for", lambda _: None)
    assert rows.write_on(tmp_path / "model", [1, 2, 3], 5) is None


# docs/decisions/tasks.md: What surrounds a head is computed by the model itself, in chunks
@pytest.mark.parametrize("kind", ["gemma3", "gemma3_text"])
def test_the_loss_over_rows_is_that_of_each_document_by_itself(kind: str, tmp_path: Path) -> None:
    """Windows, scales and the like are found where the model has them, and are the same for rows."""
    rows, model = load(tmp_path, "causal_lm", "rows"), decoder(kind)
    inputs, positions = three_documents()
    bounds = list(itertools.pairwise((0, 7, 16, 20)))
    with torch.no_grad():
        alone = torch.cat([model(input_ids=inputs[:, a:b]).logits for a, b in bounds], dim=1).flatten(0, 1)
        plain = nn.functional.cross_entropy(alone, inputs.flatten(), reduction="sum")
        ours = rows.with_loss(model, 1024)(inputs=inputs, labels=inputs, positions=positions)
    assert float(ours) == pytest.approx(float(plain), rel=1e-6)


# docs/decisions/tasks.md: rows.py makes the attention mask itself
@pytest.mark.parametrize("kind", ["mamba", "bloom", "qwen3_next", "openai-gpt"])
def test_a_model_that_would_mix_documents_is_refused(kind: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(kind, vocab_size=37, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(SystemExit, match="cannot keep packed documents apart"):
        load(tmp_path / "packed", "causal_lm", "rows").with_loss(model, 1024)
    load(tmp_path / "apart", "causal_lm", "rows", data__packing=False).with_loss(model, 1024)


def test_the_kernel_for_documents_is_told_where_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn needs a GPU: in its place stands attention of each document by itself, by the bounds it is given."""
    rows, model = load(tmp_path, "causal_lm", "rows", **CUDA), decoder("llama")
    inputs, positions = three_documents()
    labels = inputs.roll(-1, 1)
    batch, count = rows.collate(
        [torch.stack(row) for row in zip(inputs, labels, positions, strict=True)], [True, False]
    )
    assert (batch["bounds"].tolist(), count) == ([0, 7, 16, 20, 27, 36, 40], 20)
    given = {name: batch[name] for name in ("inputs", "positions", "bounds")}
    masked = model(**rows.given(model.config, **given)).logits

    calls = []

    def by_document(_: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **told: Any) -> tuple[Tensor, None]:
        calls.append(told["max_length_q"])
        assert mask is None
        ends = told["cu_seq_lens_q"].tolist()
        parts = [
            torch.nn.functional.scaled_dot_product_attention(*(x[:, :, a:b] for x in (q, k, v)), is_causal=True)
            for a, b in itertools.pairwise(ends)
        ]
        return torch.cat(parts, dim=2).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", by_document)
    model.config._attn_implementation = "flash_attention_2"
    flashed = model(**rows.given(model.config, **given)).logits
    assert calls == [20, 20]
    assert torch.allclose(flashed.view_as(masked), masked, atol=1e-6)


def reference(  # as PyTorch 2.13 has it
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: Tensor,
    _ends: Tensor,
    longest: int,
    _longest: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What varlen_attn computes, without a GPU."""
    assert window_size[1] == 0
    assert max(b - a for a, b in itertools.pairwise(ends.tolist())) <= longest
    parts = []
    for a, b in itertools.pairwise(ends.tolist()):
        place = torch.arange(b - a)
        before = place[:, None] - place
        mask = (before >= 0) & ((before <= window_size[0]) | (window_size[0] < 0))
        some = (x[a:b].transpose(0, 1)[None] for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*some, mask, scale=scale, enable_gqa=enable_gqa)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def reference_before_gqa(*given: Any, scale: float | None, window_size: tuple[int, int]) -> Tensor:
    """As PyTorch 2.11 has it: heads may share keys and values without a word."""
    return reference(*given, scale=scale, window_size=window_size, enable_gqa=True)


# docs/decisions/tasks.md: PyTorch's own kernel for documents is used only where it agrees with a mask
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_pytorch_s_kernel_gives_what_masks_give(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel needs a GPU: a reference with its signature, and that of PyTorch 2.11, stands in its place."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    rows, model = load(tmp_path, "causal_lm", "rows", **CUDA), decoder(kind)
    inputs, positions = three_documents()
    given = {"inputs": inputs, "positions": positions, "bounds": torch.tensor([0, 7, 16, 20, 27, 36, 40]).int()}
    masked = model(**rows.given(model.config, **given)).logits
    attention = sys.modules["attention"]
    assert not rows.kernel_agrees(attention.Shape(2, 2, 16, 16), "cpu"), "it does not run here, and is not chosen"
    rows.choose_attention(model)
    assert model.config._attn_implementation == "sdpa"
    wrong: list[Callable[..., Tensor]] = [
        lambda *a, **k: 1.1 * reference(*a, **k),
        lambda q, *rest, **k: reference(q.detach() + (q - q.detach()) * 1.1, *rest, **k),  # its gradient alone
        lambda q, k, v, *rest, **told: reference(q, k, v[..., : q.shape[2] // 2], *rest, **told),
    ]
    for kernel in wrong:
        monkeypatch.setattr(varlen, "varlen_attn", functools.wraps(reference)(kernel))
        assert not rows.kernel_agrees(attention.Shape(2, 2, 16, 16), "cpu"), "one that gives something else"
    for kernel in (reference, reference_before_gqa):
        rows.shared_heads.clear()
        monkeypatch.setattr(varlen, "varlen_attn", kernel)
        assert rows.kernel_agrees(attention.Shape(4, 2, 24, 16), "cpu")
        assert rows.shared_heads == ({"enable_gqa": True} if kernel is reference else {})
    kernel_agrees = rows.kernel_agrees
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(rows, "kernel_agrees", lambda shape: kernel_agrees(shape, "cpu"))
    rows.choose_attention(model)
    if kind == "gpt2":  # its attention drops out
        assert model.config._attn_implementation == "sdpa"
        return
    assert model.config._attn_implementation == "by_document"
    flat = model(**rows.given(model.config, **given)).logits
    assert torch.allclose(flat.view_as(masked), masked, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma4_text", "minicpm3", "youtu", "deepseek_v3"])
def test_the_shapes_that_kernels_are_tried_with_are_those_that_the_layers_ask_for(kind: str, tmp_path: Path) -> None:
    """DeepSeek's values are narrower than its queries, and Gemma 4 has two kinds of layers."""
    attention = load(tmp_path, "causal_lm", "attention", **CUDA)
    asked = set()

    def noted(_module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        asked.add((query.shape[1], key.shape[1], query.shape[3], value.shape[3]))
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3]), None

    AttentionInterface.register("noted", noted)
    dense = {"first_k_dense_replace": 2} if kind == "deepseek_v3" else {}
    config = AutoConfig.for_model(kind, **{**dense, "num_hidden_layers": 6 if kind == "gemma4_text" else 2})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="noted", dtype=torch.float32)
        ids = torch.zeros(1, 8, dtype=torch.long)
        model(input_ids=ids, position_ids=ids, use_cache=False)
    assert set(attention.shapes_of(model.config.get_text_config())) == asked
    assert len(attention.shapes_of(model.config)) == config.num_hidden_layers


def tokenized(rows: ModuleType, folder: Path, length: int, documents: list[list[int]], whole: bool = False) -> Any:
    """Rows of documents whose tokens are known."""
    cache = sys.modules["token_cache"]
    signed = any(token < 0 for document in documents for token in document)
    encoder = sys.modules["encoders"].Encoder(
        encode=lambda some: ([ids for _, ids in some], {}), vocabulary=1000, complemented=signed
    )
    recipe = cache.Recipe(
        name="test",
        rows=[(f"test: {n}", document) for n, document in enumerate(documents)],
        decided_by=[],
        code=[],
        encoder=lambda: encoder,
    )
    folder.mkdir(parents=True)
    cache.write(folder, recipe)
    return rows.rows_of(cache.Tokens(folder), rows.Selection(length=length, whole=whole))


def ragged(count: int, longest: int) -> list[list[int]]:
    """Documents of lengths as instructions and their answers have them."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(5.2, 0.8, count).astype(int), 1, longest)
    return [random.integers(0, 1000, n).tolist() for n in lengths]


@pytest.mark.parametrize("packing_is_on", [True, False])
def test_every_token_but_a_document_s_first_is_predicted_once(packing_is_on: bool, tmp_path: Path) -> None:
    rows = load(tmp_path, "causal_lm", "rows", data__packing=packing_is_on)
    documents = [[7], [1, 2], *ragged(300, 900)]
    data = tokenized(rows, tmp_path / "tokens", 128, documents)
    expected, found = Counter[tuple[int, int, int]](), Counter[tuple[int, int, int]]()
    for document in documents:
        expected.update((i % 128, *pair) for i, pair in enumerate(itertools.pairwise(document)))
    for row in data:
        counted = row[1] != -100
        found.update((int(p), int(g), int(w)) for g, w, p in row.T[counted].tolist())
        assert row.shape[1] == 128 if packing_is_on else counted.all()
    assert found == expected
    assert packing.rows(map(len, documents), 128, packing=packing_is_on) == len(data)


def answers_of_half_a_row(length: int) -> list[list[int]]:
    """Documents of which only a good packer makes full rows: what is left beside one is exactly what another needs."""
    random = np.random.default_rng(0)
    long = random.integers(length * 600 // 1000, length * 750 // 1000, 500)
    half = random.integers(length * 548 // 1000, length * 552 // 1000, 500)
    short = np.clip(random.lognormal(3.5, 0.6, 2000).astype(int), 1, 200)
    quarter = (length - half) // 2
    lengths = np.concatenate((long, length - long, half, quarter, quarter, short))
    random.shuffle(lengths)
    return [[0] * (n + 1) for n in lengths.tolist()]


DOCUMENTS = {"instructions": lambda: ragged(8000, 5000), "answers of half a row": lambda: answers_of_half_a_row(2048)}


def share_filled(data: Any, documents: list[list[int]]) -> float:
    """Of all places in the rows, how many are of documents."""
    return sum(len(document) - 1 for document in documents) / (2048 * len(data))


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_packing_wastes_less_than_half_a_percent_and_is_a_function_of_the_lengths(kind: str, tmp_path: Path) -> None:
    rows, documents = load(tmp_path, "causal_lm", "rows"), DOCUMENTS[kind]()
    began = time.process_time()
    data = tokenized(rows, tmp_path / "one", 2048, documents)
    assert time.process_time() - began < 10
    assert share_filled(data, documents) >= 0.995
    again = tokenized(rows, tmp_path / "two", 2048, documents)
    assert all(torch.equal(data[i], again[i]) for i in range(0, len(data), 50))


def by_space(counts: Any, choose: Any, shuffle: bool) -> Any:
    """The row of each piece, the longest first or shuffled: one that is chosen among those with space, or a new one."""
    length = len(counts) - 1
    sizes = np.repeat(np.arange(length, -1, -1), counts[::-1])
    order = np.random.default_rng(0).permutation(len(sizes)) if shuffle else range(len(sizes))
    row_of, spaces = np.empty(len(sizes), dtype=np.int64), np.empty(0, dtype=np.int64)
    for piece in order:
        fitting = np.flatnonzero(spaces >= sizes[piece])
        row = choose(fitting, spaces) if len(fitting) else len(spaces)
        spaces = spaces if len(fitting) else np.append(spaces, length)
        spaces[row] -= sizes[piece]
        row_of[piece] = row
    return row_of


WORSE = {
    "worst fit, the longest first": lambda counts: by_space(
        counts, lambda fitting, spaces: fitting[spaces[fitting].argmax()], shuffle=False
    ),
    "best fit, as they come": lambda counts: by_space(
        counts, lambda fitting, spaces: fitting[spaces[fitting].argmin()], shuffle=True
    ),
    "first fit, as they come": lambda counts: by_space(counts, lambda fitting, _: fitting[0], shuffle=True),
}


# docs/decisions/tasks.md: Pieces of one size are packed together
def test_pieces_of_one_size_go_where_one_after_the_other_would(tmp_path: Path) -> None:
    """Placed together, they fill as many rows, to the same space, as best fit places them one by one."""
    rows, random = load(tmp_path, "causal_lm", "rows"), np.random.default_rng(3)
    for length in (5, 16, 97):
        counts = random.integers(0, 9, length + 1)
        counts[0] = 0
        sizes = np.repeat(np.arange(length, 0, -1), counts[:0:-1])
        theirs = by_space(counts, lambda fitting, spaces: fitting[spaces[fitting].argmin()], shuffle=False)
        ours = rows.packing.best_fit(counts)
        filled = [sorted(np.bincount(row_of, weights=sizes).tolist()) for row_of in (ours, theirs)]
        assert filled[0] == filled[1]
        assert max(filled[0]) <= length


@pytest.mark.parametrize("name", WORSE)
def test_a_worse_packer_would_be_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the packer can be failed: by these, which are right but for what they waste."""
    rows, documents = load(tmp_path, "causal_lm", "rows"), answers_of_half_a_row(2048)
    monkeypatch.setattr(rows.packing, "best_fit", WORSE[name])
    data = tokenized(rows, tmp_path / "rows", 2048, documents)
    assert 0.8 < share_filled(data, documents) < 0.97


def test_what_is_only_given_is_no_label(tmp_path: Path) -> None:
    rows = load(tmp_path, "causal_lm", "rows")
    data = tokenized(rows, tmp_path / "rows", 8, [[~5, ~6, 7, 8, ~9]])
    inputs, labels, positions = data[0].tolist()
    assert inputs == [5, 6, 7, 8, 0, 0, 0, 0]
    assert labels == [-100, 7, 8, -100, -100, -100, -100, -100]
    assert positions == [0, 1, 2, 3, 0, 1, 2, 3]
    batch, count = rows.collate([data[0], data[0]], [True, False])
    assert count == 2
    assert (batch["labels"][1] == -100).all()


def test_packed_and_apart_have_one_gradient(tmp_path: Path) -> None:
    """The sum over the same documents, in rows that they share and in rows of their own."""
    documents, gradients = [[i % 37 for i in document] for document in ragged(12, 60)], []
    for packing_is_on in (True, False):
        rows = load(tmp_path / str(packing_is_on), "causal_lm", "rows", data__packing=packing_is_on)
        model = rows.with_loss(decoder("llama").double(), 50)
        data = tokenized(rows, tmp_path / f"rows-{packing_is_on}", 60, documents)
        batch, count = rows.collate(list(data), [True] * len(data))
        assert count == sum(len(document) - 1 for document in documents)
        model(**batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert float((gradients[0] - gradients[1]).norm()) <= 1e-12 * float(gradients[0].norm())


# docs/decisions/tasks.md: One rank per machine writes the tokens, in forked processes, and all ranks map the file
def test_tokens_are_written_once_per_machine_and_anew_when_the_data_changes(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words " * 50)
    load(tmp_path, "causal_lm", data__train=str(text))
    program = "import task; print(len(task.load_train_data(task.TaskConfig())), flush=True)"
    (tmp_path / "count.py").write_text(program)
    command = [warm.python(), "count.py"]

    def start(rank: int) -> "subprocess.Popen[str]":
        environment = projects.environment({"LOCAL_RANK": str(rank)})
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    waiting = start(1)  # it never writes
    first = start(0)
    assert [p.communicate(timeout=180)[0] for p in (first, waiting)] == ["3\n", "3\n"]
    (tokens,) = (tmp_path / ".cache").glob("tokens-*/tokens")
    written = tokens.stat().st_mtime_ns
    assert start(0).communicate(timeout=180)[0] == "3\n"
    assert tokens.stat().st_mtime_ns == written
    text.write_text("other words " * 100)
    os.utime(text, (1, 1))
    assert start(0).communicate(timeout=180)[0] == "5\n"
    assert len(list((tmp_path / ".cache").glob("tokens-*"))) == 2, "and nothing half written"


def test_rows_are_made_anew_where_packing_is_turned_off(tmp_path: Path) -> None:
    """Rows of many documents, read by what keeps none apart, would let each see the others."""
    (tmp_path / "text.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for packing_is_on, expected in ((True, 1), (False, 2)):
        changes = {"data__train": str(tmp_path / "text.jsonl"), "data__packing": packing_is_on}
        task = load(tmp_path / "project", "causal_lm", **changes)
        assert len(task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache")))) == expected


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.jsonl", '{"text": "one"}\n\n{"text": "two"}\n\n', ["one", "two"]),
        ("a.json", '[{"text": "one"},\n {"text": "two"}]', ["one", "two"]),
        ("a.md", "# one\n\ntwo", ["# one\n\ntwo"]),
        ("a.csv", 'text,label\n"one, \n1",two\n\nthree,\n', ["one, \n1", "three"]),
        ("a.tsv", "n\ttext\n1\tNA\n", ["NA"]),
        ("a.jsonl", '{"text": "one"}\n{"text": null}\n', 'a.jsonl:2: column "text" is None, which is not text'),
        ("a.json", '[{"text": "one"}, {"words": "two"}]', 'a.json: item 2: no column "text"; it has words'),
        ("a.csv", "text,label\none,two\nthree\n", "a.csv:3: fields: 1, but line 1 names 2 columns"),
    ],
)
def test_documents_of_every_form(name: str, text: str, found: list[str] | str, tmp_path: Path) -> None:
    """And what has a form is never learned with its brackets and commas."""
    (tmp_path / name).write_text(text)
    task = load(tmp_path, "causal_lm", data__train=name)
    facts = project(plans.with_changes(BASE, {"data.train": name}), str(tmp_path)).train
    assert facts
    assert bool(facts.detail) == isinstance(found, str), "that is seen from the first lines"
    recipe = task.documents.recipe(task.TaskConfig(), str(tmp_path / name), "train")
    if isinstance(found, list):
        assert [sys.modules["sources"].text_of(row, "text") for row in recipe.rows] == found
    else:
        with pytest.raises(SystemExit, match=found):
            recipe.encoder().encode(list(recipe.rows))


# docs/decisions/tasks.md: Documents begin with the token that the tokenizer puts before a text
def test_documents_begin_as_the_tokenizer_begins_texts(tmp_path: Path) -> None:
    """A model that was pretrained with a token before each text (Llama, Gemma) goes on with it; GPT-2 has none."""
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"one": 0, "two": 1, "<s>": 2, "</s>": 3}, unk_token="one")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for begins, expected in ((False, [[0, 1, 3], []]), (True, [[2, 0, 1, 3], []])):
        if begins:
            plain.post_processor = tokenizers.processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 2)]
            )
        PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path)
        LlamaConfig(vocab_size=4).save_pretrained(tmp_path)
        task = load(tmp_path / str(begins), "causal_lm", model__name=str(tmp_path), model__from_scratch=False)
        tokens = task.Tokens(task.TaskConfig())
        assert tokens.encode(["one two", ""]) == [ids for ids in expected if ids]


def test_data_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n{"words": "two"}\n')
    task = load(tmp_path, "causal_lm", data__train=str(tmp_path / "rows.jsonl"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"rows\.jsonl:2: no column"):
        task.load_train_data(task.TaskConfig())
    (tmp_path / "rows.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(SystemExit, match="no text to train on"):
        task.load_train_data(task.TaskConfig())
    assert not [*(tmp_path / ".cache").rglob("*.partial"), *(tmp_path / ".cache").rglob("rows-*")]


@pytest.mark.parametrize(("length", "most"), [(200, 20), (5, 5)])
def test_a_sample_fits_the_positions_of_a_small_model(length: int, most: int, tmp_path: Path) -> None:
    """It has 24 positions: what is asked takes at least one, and the answer the rest."""
    from transformers import GPT2Config, GPT2LMHeadModel

    rows = load(tmp_path, "causal_lm", "rows")
    config = GPT2Config(
        vocab_size=7, n_positions=24, n_embd=8, n_layer=1, n_head=1, bos_token_id=None, eos_token_id=None
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    assert len(rows.write_on(tmp_path / "model", [1, 2, 3, 4], length)) == most
    assert len(rows.write_on(tmp_path / "model", [1] * 100, length)) >= 1


@pytest.mark.train
@pytest.mark.parametrize("packing_is_on", ["true", "false"])
def test_documents_train_alike_however_the_batch_is_split(packing_is_on: str, tmp_path: Path) -> None:
    """Two epochs of ragged documents, tail included: 1 rank, 2 ranks, accumulation."""
    texts = [f"document {i} has {'many ' * (i % 13)}words" for i in range(60)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    values = {**SMALL, "data.train": str(tmp_path / "texts.jsonl"), "data.packing": packing_is_on}
    folder = make(tmp_path / "project", {**values, "schedule.n_epochs": 2, "schedule.train_strategy": "epochs"})
    curves = []
    for ranks, micro in ((1, 16), (2, 4), (2, 8)):
        split = {"num_processes": ranks, "per_device_batch_size": micro}
        split |= {"gradient_accumulation_steps": 16 // ranks // micro}
        output = tmp_path / f"{ranks}-{micro}"
        assert spawn(folder, ranks, output, split) == 0
        curves.append([json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()])
    assert len(curves[0]) > 3
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-5)


@pytest.mark.train
def test_a_learned_model_of_few_positions_shows_a_sample(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the very good film the bad film very very good " * 50)
    values = {**SMALL, **SINGLE, "model.name": str(small_decoder(tmp_path / "decoder")), "batch.sequence_length": 32}
    folder = make(tmp_path / "project", {**values, "data.train": str(tmp_path / "text.txt"), "schedule.n_steps": 3})
    done = launch(folder)
    assert done.code == 0, done.err
    assert len(losses(folder)) == 3
    assert "The " in done.out
