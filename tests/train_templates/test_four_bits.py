"""QLoRA under FSDP2: each matrix is packed into one parameter, which ranks shard; bitsandbytes computes with it."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from projects import make, metrics
from test_sft import ADAPTED, CHATML, adapter_hash, conversations_file, export, instructed
from test_sharding import asked, published
from test_tasks import load
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.pytorch_utils import Conv1D
from warm import launch

from trainwiz.engines.transformers import LOADED_AS_SAVED

bitsandbytes = pytest.importorskip("bitsandbytes")
QLORA = {**ADAPTED, "model.adapter": "qlora"}
SHARDED = {"model__name": "org/model", "model__from_scratch": False, "model__adapter": "qlora"}


@pytest.fixture
def four_bits(tmp_path: Path) -> Any:
    load(tmp_path / "code", "sft", **SHARDED, strategy__kind="fsdp", machine__num_processes=2)
    return sys.modules["four_bits"]


def linear(shape: tuple[int, int], dtype: torch.dtype, bias: bool) -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(*reversed(shape), bias=bias, dtype=dtype)


@pytest.mark.parametrize(
    ("cuda", "bf16", "expected"),
    [(False, False, torch.float32), (True, False, torch.float16), (True, True, torch.bfloat16)],
)
def test_a_card_without_bf16_multiplies_in_fp16(
    four_bits: Any,  # noqa: ARG001 - the project of adapter.py
    monkeypatch: pytest.MonkeyPatch,
    cuda: bool,
    bf16: bool,
    expected: torch.dtype,
) -> None:
    """`is_bf16_supported()` alone is true on a V100, which only emulates it."""
    adapter = sys.modules["adapter"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or bf16)
    assert adapter.product_type() == expected


@pytest.mark.parametrize("shape", [(48, 32), (33, 65), (7, 3), (257, 129)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_matrix_computes_what_bitsandbytes_does(four_bits: Any, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """To the last bit, forward and backward, whatever numbers its bytes pass for."""
    layer = linear(shape, dtype, bias=True)
    options = {"compute_dtype": dtype, "quant_type": "nf4", "compress_statistics": True}
    theirs = bitsandbytes.nn.Linear4bit(*reversed(shape), **options)
    theirs.weight = bitsandbytes.nn.Params4bit(
        layer.weight.data.clone(), requires_grad=False, quant_type="nf4", compress_statistics=True
    ).to("cpu")
    theirs.bias = torch.nn.Parameter(layer.bias.detach().clone())
    mine = four_bits.Matrix(layer, dtype)
    mine.weight.data = mine.packed(layer.weight.detach(), torch.device("cpu"))
    inputs = torch.randn(5, shape[1], dtype=dtype)
    outcomes = []
    for model in (theirs, mine):
        given = inputs.clone().requires_grad_()
        output = model(given)
        output.float().square().sum().backward()
        outcomes.append((output, given.grad))
    for one, other in zip(*outcomes, strict=True):
        assert torch.equal(one, other)
    for passed in (torch.float32, torch.bfloat16):
        four_bits.as_numbers(mine, passed)
        assert mine.weight.dtype == passed
        assert torch.equal(mine(inputs), outcomes[0][0])
        mine.weight = torch.nn.Parameter(mine.weight.detach().view(torch.uint8), requires_grad=False)


def test_layers_whose_weights_are_saved_turned_are_packed_as_transformers_turns_them(four_bits: Any) -> None:
    layer = Conv1D(512, 256)  # 512 outputs
    mine = four_bits.Matrix(layer, torch.float32)
    mine.weight.data = mine.packed(layer.weight.detach(), torch.device("cpu"))
    inputs = torch.randn(3, 256)
    turned = linear((512, 256), torch.float32, bias=True)
    turned.weight.data, turned.bias = layer.weight.detach().T.contiguous(), layer.bias
    usual = four_bits.Matrix(turned, torch.float32)
    usual.weight.data = usual.packed(turned.weight.detach(), torch.device("cpu"))
    assert torch.equal(mine(inputs), usual(inputs))
    assert (mine(inputs) - layer(inputs)).norm() < 0.15 * layer(inputs).norm(), "rounded, and not of another order"


def test_the_same_layers_get_four_bits_as_by_transformers(four_bits: Any) -> None:
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True)
    for family in (*sorted(LOADED_AS_SAVED), "mixtral"):
        config = transformers.AutoConfig.for_model(family, vocab_size=64, head_dim=16, pad_token_id=0, **small)
        with torch.device("meta"):
            theirs, mine = (transformers.AutoModelForCausalLM.from_config(config) for _ in range(2))
        replace_with_bnb_linear(theirs, modules_to_not_convert=["lm_head"], quantization_config=settings)
        four_bits.replace(mine, ["lm_head"], torch.float32)
        wanted = {name for name, part in theirs.named_modules() if isinstance(part, bitsandbytes.nn.Linear4bit)}
        assert {name.removesuffix(".weight") for name, _ in four_bits.matrices(mine)} == wanted, family
        assert wanted
        assert "lm_head" not in wanted


def in_four_bits(model: Path, folder: Path, **options: Any) -> Path:
    """The same model as some publish it: its matrices as bitsandbytes rounds them, with their scales."""
    settings = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, **options}
    rounded = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype="bfloat16", quantization_config=transformers.BitsAndBytesConfig(load_in_4bit=True, **settings)
    )
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    rounded.save_pretrained(folder, max_shard_size="3MB")
    return folder


@pytest.mark.train
@pytest.mark.parametrize("loading", ["read", "sent"])
@pytest.mark.parametrize("files", [16, 4])
def test_no_rank_holds_more_than_its_part_of_the_bytes(loading: str, files: int, tmp_path: Path) -> None:
    """Each matrix is rounded by one rank as a whole: all bytes are those that one rank alone would have."""
    model = published(tmp_path / "model", tied=True, layers=12)
    if files == 4:
        model = in_four_bits(model, tmp_path / "rounded")
    adapted = {"model.adapter": "qlora", "model.lora_rank": 4, "precision.mixed_precision": "bf16"}
    adapted |= {"model.modules_to_save": "model.norm"} if loading == "sent" else {}
    ignored = {"TW305": "the stand-in shards on CPU ranks", "TW201": "FSDP2 computes in what its policy says"}
    values = {**ADAPTED, **STRATEGIES["fsdp"], "model.name": str(model), **adapted, "ignore": ignored}
    found = asked(make(tmp_path / "project", values), "loading", 2)
    shape = transformers.AutoConfig.from_pretrained(model)
    dense = shape.num_hidden_layers * (4 * 512 * 512 + 3 * 512 * 2048)
    kept = 0.516 * dense + 2 * shape.vocab_size * 512 + 4 * found[0]["trained"]
    for rank in found:
        assert 0.49 * kept < rank["held"] < 0.51 * kept + 1e5
        assert rank["digest"] == found[0]["digest"] == found[0]["rounded"]
        if loading == "read":
            # In 16 bits, the model would take twice `dense`. What is imported is here, and a matrix as it is rounded.
            assert max(rank["build"], rank["prepare"]) < 1.25 * dense


@pytest.mark.train
def test_sharded_weights_of_four_bits_train_as_on_one_rank_and_go_on_bit_for_bit(tmp_path: Path) -> None:
    named = {
        "model.name": str(instructed(tmp_path / "model", CHATML)),
        "data.train": str(conversations_file(tmp_path)),
        "model.merge_adapter": True,
    }
    ignored = {"TW305": "the stand-in shards on CPU ranks", "TW533": "a test", "TW535": "a test"}
    one = make(tmp_path / "one", {**QLORA, **named, **SINGLE, "ignore": ignored})
    two = make(tmp_path / "two", {**QLORA, **named, **STRATEGIES["fsdp"], "ignore": ignored})
    for folder in (one, two):
        done = launch(folder, env=ON_STANDIN if folder == two else None)
        assert done.code == 0, done.err
    whole = metrics(two)
    for mine, theirs in zip(whole, metrics(one), strict=True):
        for field in ("loss", "grad_norm_pre_clip", "weight_norm"):
            assert mine[field] == pytest.approx(theirs[field], rel=1e-6), (field, mine["update"])
    assert whole[-1]["loss"] < whole[0]["loss"] - 0.3
    latest = (two / "runs" / "latest").resolve()
    first = adapter_hash(latest)
    export(two, latest, tmp_path / "exported")
    for checkpoint in sorted((latest / "checkpoints").glob("checkpoint-*")):
        names = b"".join(part.read_bytes() for part in checkpoint.glob(".metadata"))
        assert b"lora_A" in names
        assert b"base_layer" not in names, "the frozen model is in no checkpoint"
    shutil.rmtree(latest / "checkpoints" / "checkpoint-00000006")
    done = launch(two, "--resume", env=ON_STANDIN)
    assert done.code == 0, done.err
    assert [r["loss"] for r in metrics(two)] == [r["loss"] for r in whole[3:]]
    assert adapter_hash(two / "runs" / "latest") == first


@pytest.mark.train
def test_dora_of_four_bits_goes_on_bit_for_bit(tmp_path: Path) -> None:
    named = {
        "model.name": str(instructed(tmp_path / "model", CHATML)),
        "data.train": str(conversations_file(tmp_path)),
        "model.lora_dora": True,
    }
    one = make(tmp_path / "one", {**QLORA, **named, **SINGLE, "ignore": {"TW533": "a test", "TW535": "a test"}})
    assert (done := launch(one)).code == 0, done.err
    whole = metrics(one)
    assert whole[-1]["loss"] < whole[0]["loss"] - 0.3
    latest = (one / "runs" / "latest").resolve()
    first = adapter_hash(latest)
    shutil.rmtree(latest / "checkpoints" / "checkpoint-00000006")
    assert (done := launch(one, "--resume")).code == 0, done.err
    assert [r["loss"] for r in metrics(one)] == [r["loss"] for r in whole[3:]]
    assert adapter_hash(one / "runs" / "latest") == first


@pytest.mark.train
def test_a_model_published_in_four_bits_trains_as_in_16_that_are_rounded_and_as_its_own_layers(tmp_path: Path) -> None:
    """The same numbers, whoever rounded them: to the last bit under FSDP2, and beside the layers of bitsandbytes."""
    whole = instructed(tmp_path / "whole", CHATML, hidden_size=64, intermediate_size=64)  # on a CPU, multiples of 64
    shape = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype="bfloat16")
    shape.save_pretrained(whole)
    rounded = in_four_bits(whole, tmp_path / "rounded")
    data = {"data.train": str(conversations_file(tmp_path))}
    ignored = {"TW305": "the stand-in shards on CPU ranks", "TW533": "a test", "TW201": "FSDP2's policy says it"}
    curves, hashes = list[list[Any]](), []
    half = {"precision.mixed_precision": "bf16"}  # so that those that are rounded here have the numbers of the files
    for name, model, way in (
        ("here", whole, {**STRATEGIES["fsdp"], **half}),
        ("there", rounded, {**STRATEGIES["fsdp"], **half}),
        ("sharded", rounded, STRATEGIES["fsdp"]),
        ("one", rounded, SINGLE),
    ):
        values = {**QLORA, **data, **way, "model.name": str(model), "schedule.n_steps": 3, "ignore": ignored}
        folder = make(tmp_path / name, values)
        done = launch(folder, env=ON_STANDIN if way is not SINGLE else None)
        assert done.code == 0, done.err
        curves.append([(r["loss"], r["grad_norm_pre_clip"]) for r in metrics(folder)])
        hashes.append(adapter_hash((folder / "runs" / "latest").resolve()))
    assert curves[0] == curves[1]
    assert hashes[0] == hashes[1]
    # There, transformers leaves everything beside the matrices in the type of the files.
    assert curves[3] == [pytest.approx(one, rel=2e-3) for one in curves[2]]


MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 16, "intermediate_size": 48},
    "mixtral": {"num_local_experts": 4, "intermediate_size": 48},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 16, "intermediate_size": 48},  # saved with their inputs first
}


def mixture(kind: str, experts: str) -> Any:
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    shape = transformers.AutoConfig.for_model(
        kind, vocab_size=64, pad_token_id=0, num_experts_per_tok=2, use_cache=False, **small, **MIXTURES[kind]
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(shape, experts_implementation=experts)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    return model


def as_rounded(weight: torch.Tensor) -> torch.Tensor:
    """What bitsandbytes makes of a tensor. On a CPU, it unpacks tensors of several dimensions by rows of blocks."""
    made = bitsandbytes.functional
    numbers, state = made.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    state.shape = torch.Size((weight.numel(),))
    return torch.Tensor(made.dequantize_4bit(numbers, state)).view(weight.shape)


# docs/decisions/tasks.md: FSDP packs routed experts, too
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("targets", ["o_proj", "all-linear"])
@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_packed_experts_compute_what_their_rounded_weights_do(
    kind: str, targets: str, experts: str, recompute: str, tmp_path: Path
) -> None:
    """To the last bit: the loss, and the gradient of each adapter, in the second pass too."""
    values = {**SHARDED, "strategy__kind": "fsdp", "machine__num_processes": 2}
    values |= {"model__activation_checkpointing": recompute}
    again = load(tmp_path / "code", "sft", "recompute", **values) if recompute != "none" else None
    four_bits: Any = load(tmp_path / "code", "sft", "four_bits", **values)
    experts_of: Any = sys.modules["experts"]
    mine, plain = mixture(kind, experts), mixture(kind, experts)
    joined = [weight for weight in plain.parameters() if weight.dim() == 3]
    assert joined
    for weight in joined:
        weight.data = as_rounded(weight.detach())
    for model in (mine, plain):
        torch.manual_seed(1)
        named = targets if targets == "all-linear" else [targets]
        model.add_adapter(peft.LoraConfig(r=4, target_modules=named, init_lora_weights=False))
    experts_of.pack_experts(mine, [])
    four_bits.as_numbers(mine, torch.float32)
    assert not [weight for weight in mine.parameters() if weight.dim() == 3], "they are whole at no other time"
    for model in (mine, plain) if again else ():
        again.recompute_layers(model, ())
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    found = []
    for model in (plain, mine):
        for _ in range(2):
            model.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        found.append([loss, *(weight.grad for weight in model.parameters() if weight.requires_grad)])
    adapted = [name for name, weight in mine.named_parameters() if weight.requires_grad and "experts" in name]
    assert bool(adapted) == (targets == "all-linear" and kind != "gpt_oss")
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("count", [3 * 4096, 3 * 4096 + 64, 4096 + 1, 2 * 4096 + 63])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_more_experts_than_bitsandbytes_counts_become_the_same_bytes_in_parts(
    four_bits: Any,  # noqa: ARG001 - the project of experts.py
    count: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernels on GPUs count in 32 bits, and a layer of DeepSeek-V3 has 7.5 billion numbers in a tensor."""
    nf4: Any = sys.modules["nf4"]
    packing: Any = sys.modules["experts"]
    assert nf4.AT_ONCE < 2**31
    assert nf4.AT_ONCE % nf4.BLOCK == 0
    torch.manual_seed(0)
    tensor = torch.randn(count, dtype=dtype).view(1, 1, count)
    once = packing.Packed({"w": tensor}, {}, torch.device("cpu"))
    at_once, sizes = once.whole("w"), list[int]()
    for module, made in ((nf4, "quantize_4bit"), (packing, "dequantize_4bit")):
        monkeypatch.setattr(module, "AT_ONCE", 4096)
        real = getattr(module, made)

        def noting(given: Any, *rest: Any, real: Any = real, **named: Any) -> Any:
            found = real(given, *rest, **named)
            sizes.append(max(part.numel() for part in (given, found) if isinstance(part, torch.Tensor)))
            return found

        monkeypatch.setattr(module, made, noting)
    parted = packing.Packed({"w": tensor}, {}, torch.device("cpu"))
    assert torch.equal(parted.w, once.w)
    assert torch.equal(parted.whole("w"), at_once)
    assert torch.equal(parted.unpacked("w", 64, count), at_once.view(-1)[64:])
    assert max(sizes) <= 4096


def test_experts_without_an_adapter_are_kept_by_no_layer(
    four_bits: Any,  # noqa: ARG001 - the project of experts.py
) -> None:
    """For the backward pass, they are unpacked again: until then, nothing that is kept is as large."""
    packing: Any = sys.modules["experts"]
    model = mixture("qwen3_moe", "grouped_mm")
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["o_proj"]))
    packing.pack_experts(model, [])
    kept = list[torch.Tensor]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    whole, places = packing.without_numbers, list[Any]()

    def seen(*given: Any) -> Any:
        found = whole(*given)
        (note if isinstance(found, torch.Tensor) else places.append)(found)
        return found

    packing.without_numbers = seen
    model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits.sum().backward()
    assert len(places) == 4, "two tensors of each of two layers"
    assert kept
    assert all(tensor.untyped_storage().nbytes() < 4 * 4 * 32 * 16 for tensor in kept)


# docs/decisions/tasks.md: Experts are packed as they are read
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("saved", ["", "lm_head"])
def test_while_a_model_loads_it_never_has_all_experts_in_16_bits(kind: str, saved: str, tmp_path: Path) -> None:
    """Beside those that are packed, one layer's at most; the bytes are those of experts that are packed afterwards."""
    load(tmp_path / "code", "sft", **SHARDED, strategy__kind="single", machine__num_processes=1)
    packing, adapter = sys.modules["experts"], sys.modules["adapter"]
    mixture(kind, "eager").save_pretrained(tmp_path / "model")
    most = 0
    real = packing.pack

    def joint() -> dict[int, int]:
        alive = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter) and t.dim() == 3]
        storages = [t.untyped_storage() for t in alive if t.device.type == "cpu"]
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    def noted(weight: torch.Tensor) -> torch.Tensor:
        nonlocal most
        most = max(most, sum(size for place, size in joint().items() if place not in before))
        return real(weight)

    packing.pack = noted
    gc.collect()
    before = joint()  # of other tests
    arguments = adapter.in_four_bits(["lm_head"])
    with packing.packed_as_read(saved):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", **arguments)
    whole = mixture(kind, "eager")
    joined = [weight for weight in whole.parameters() if weight.dim() == 3]
    if saved:
        assert most == 0
    else:
        assert 0 < most <= sum(weight.nbytes for weight in joined) / 2
    model.add_adapter(peft.LoraConfig(r=4, target_modules="all-linear"))
    packing.pack_experts(model, ["lm_head"])
    packed = {name: part for name, part in model.named_modules() if type(part).__name__ == "Packed"}
    plain = [part for part in whole.modules() if any(w.dim() == 3 for w in part.parameters(recurse=False))]
    assert len(packed) == len(plain) == 2
    for mine, theirs in zip(packed.values(), plain, strict=True):
        for name, own in mine.named_parameters():
            assert torch.equal(own, real(theirs.get_parameter(name).detach())), name
        mine.half()
        assert mine.compute == torch.float16
    assert not [weight for weight in model.parameters() if weight.dim() == 3]


def published_mixture(folder: Path) -> tuple[Path, Path, Any]:
    """A mixture in a folder, the same with experts that are rounded already, and its configuration."""
    model = instructed(folder / "model", CHATML)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
    vocabulary = transformers.AutoConfig.from_pretrained(model).vocab_size
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    ends = {"bos_token_id": None, "eos_token_id": 256}
    shape = transformers.Qwen3MoeConfig(vocab_size=vocabulary, **small, **experts, **ends)
    torch.manual_seed(0)
    whole = transformers.AutoModelForCausalLM.from_config(shape)
    whole.save_pretrained(model)
    rounded = shutil.copytree(model, folder / "rounded")
    for weight in whole.parameters():
        if weight.dim() == 3:
            weight.data = as_rounded(weight.detach())
    whole.save_pretrained(rounded)
    return model, rounded, shape


def unpacked(folder: Path) -> Path:
    """The project, with experts that stay as bitsandbytes leaves them."""
    left = "\n\npacked_as_read = lambda _: __import__('contextlib').nullcontext()\npack_experts = lambda *_: None\n"
    (folder / "experts.py").write_text((folder / "experts.py").read_text() + left)
    return folder


@pytest.mark.train
@pytest.mark.parametrize("way", ["single", "ddp", "zero1", "zero2"])
def test_experts_are_packed_as_they_are_read_and_train_as_their_rounded_weights(way: str, tmp_path: Path) -> None:
    model, rounded, _ = published_mixture(tmp_path)
    data = {"data.train": str(conversations_file(tmp_path)), "model.lora_targets": "q_proj,v_proj"}
    ignored = {"TW533": "a test"}
    curves = []
    for name, published_as, values in (("one", rounded, SINGLE), ("two", model, {**STRATEGIES, "single": SINGLE}[way])):
        folder = make(tmp_path / name, {**QLORA, **data, **values, "model.name": str(published_as), "ignore": ignored})
        done = launch(unpacked(folder) if name == "one" else folder)
        assert done.code == 0, done.err
        curves.append([(r["loss"], r["grad_norm_pre_clip"]) for r in metrics(folder)])
    assert curves[1] == [pytest.approx(one, rel=1e-5) for one in curves[0]]
    assert curves[0][-1] < curves[0][0]


@pytest.mark.train
def test_experts_are_sharded_in_four_bits_and_train_as_their_rounded_weights(tmp_path: Path) -> None:
    model, rounded, shape = published_mixture(tmp_path)
    data = {"data.train": str(conversations_file(tmp_path))}
    ignored = {"TW305": "the stand-in shards on CPU ranks", "TW533": "a test"}
    curves = []
    for name, published_as, way in (("one", rounded, SINGLE), ("two", model, STRATEGIES["fsdp"])):
        values = {**QLORA, **data, **way, "model.name": str(published_as), "ignore": ignored}
        folder = make(tmp_path / name, values)
        done = launch(unpacked(folder) if name == "one" else folder, env=ON_STANDIN if name == "two" else None)
        assert done.code == 0, done.err
        curves.append([(r["loss"], r["grad_norm_pre_clip"]) for r in metrics(folder)])
    assert curves[1] == [pytest.approx(one, rel=1e-6) for one in curves[0]]
    found = asked(make(tmp_path / "held", values), "loading", 2)
    weights = shape.num_hidden_layers * shape.num_experts * 3 * 32 * shape.moe_intermediate_size
    vocabulary = shape.vocab_size
    for rank in found:
        assert rank["digest"] == found[0]["rounded"]
        part = (0.516 * weights + 4 * (2 * vocabulary * 32 + rank["trained"])) / 2
        assert part < rank["held"] < part + 6000, "a rank has its half, and little else: matrices in 4 bits, norms"


@pytest.mark.train
@pytest.mark.parametrize("how", ["full", "selective", "offload"])
def test_what_is_computed_again_is_the_same_beside_four_bits(how: str, tmp_path: Path) -> None:
    named = {"model.name": str(instructed(tmp_path / "model", CHATML)), "data.train": str(conversations_file(tmp_path))}
    hashes = set()
    for kept in ("none", how):
        changed = {"model.activation_checkpointing": kept, "schedule.n_steps": 3}
        folder = make(tmp_path / kept, {**QLORA, **named, **STRATEGIES["fsdp"], **changed})
        done = launch(folder, env=ON_STANDIN)
        assert done.code == 0, done.err
        hashes.add(adapter_hash(folder / "runs" / "latest"))
    assert len(hashes) == 1


@pytest.mark.usefixtures("four_bits")
def test_what_cannot_be_sharded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharding = sys.modules["sharding"]
    loader = sharding.Loader(transformers.AutoModelForCausalLM)
    saved = published(tmp_path / "model", tied=False, width=64, file_size="100KB")
    told = transformers.AutoConfig.from_pretrained(saved)
    by_bitsandbytes = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    asked_for: dict[str, Any] = {"dtype": "bfloat16", "spared": [], "output_loading_info": True}
    for method, settings in {
        "gptq": {"quant_method": "gptq", "bits": 4},
        "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "fp4": {**by_bitsandbytes, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
        "nf4": by_bitsandbytes,  # whose scales are in fp32
    }.items():
        told.quantization_config = settings
        told.save_pretrained(saved)
        for blank in ("meta", ""):
            monkeypatch.setattr(sharding, "blank", blank)
            with pytest.raises(SystemExit, match=f"is quantized already, by {method}; FSDP2 needs"):
                loader.from_pretrained(str(saved), **asked_for)
    monkeypatch.setattr(sharding, "blank", "meta")
    monkeypatch.setattr(sharding.torch, "__version__", "2.8.0+cu126")
    with pytest.raises(SystemExit, match=r"torch 2\.8\.0\+cu126: FSDP2 shards"):
        loader.from_pretrained(str(saved), **asked_for)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"blocksize": 128}, "128, 256 numbers share a scale"),
        ({"shape": [64, 32]}, r"is \[64, 32\] there"),
        ({}, "the model has no layers for 1 weights in 4 bits"),
    ],
    ids=["blocks", "shape", "names"],
)
def test_files_whose_four_bits_are_others_are_refused(four_bits: Any, changed: dict[str, Any], told: str) -> None:
    state = {"blocksize": 64, "nested_blocksize": 256, "shape": [32, 64], "dtype": "bfloat16", **changed}
    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(64, 32)})
    model.base_model_prefix = "model"  # type: ignore[assignment]
    keys = [f"model.{'layer' if changed else 'layers.0.expert'}.weight.{four_bits.STATE}"]
    if changed:
        keys = [key.removeprefix("model.") for key in keys]
    with pytest.raises(SystemExit, match=told):
        four_bits.replace_published(
            model, "org/m", keys, lambda _: torch.tensor([*json.dumps(state).encode()]), torch.bfloat16
        )


def test_numbers_that_stand_for_other_values_are_refused(four_bits: Any) -> None:
    _, state = sys.modules["nf4"].quantized(torch.randn(32, 64))
    assert four_bits.same_codes("org/m", state) is state
    state.code = state.code * 1.01
    with pytest.raises(SystemExit, match="they stand for other values"):
        four_bits.same_codes("org/m", state)


@pytest.mark.filterwarnings("default")
def test_dora_of_four_bits_has_the_loss_and_the_gradients_of_peft(tmp_path: Path) -> None:
    """Of peft's own DoRA on bitsandbytes' own layers; sizes are multiples of 64, others it dequantizes wrongly here."""
    folder = Path(instructed(tmp_path / "model", CHATML))
    shape = transformers.AutoConfig.from_pretrained(folder)
    shape.hidden_size, shape.intermediate_size, shape.head_dim = 64, 128, 64 // shape.num_attention_heads
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    named: dict[str, Any] = {"model__name": str(folder), "model__from_scratch": False, "model__lora_dora": True}
    named |= {"model__adapter": "qlora", "model__lora_rank": 4, "data__packing": False}
    made = load(tmp_path / "code", "causal_lm", **named)
    config = made.TaskConfig()
    model = made.build_model(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 10)
    made.save_model(
        config, model, {n: value.clone() for n, value in model.state_dict().items()}, tmp_path / "out" / "model"
    )
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=settings)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out" / "model", is_trainable=True).eval()
    assert any(isinstance(layer, bitsandbytes.nn.Linear4bit) for layer in theirs.modules())
    ids = torch.arange(9)[None]
    loss = torch.nn.functional.cross_entropy(theirs(ids).logits[0, :-1], ids[0, 1:], reduction="sum")
    loss.backward()
    batch = made.collate([torch.stack((ids[0, :-1], ids[0, 1:], torch.arange(8)))], [True])[0]
    mine = model(**batch)
    mine.backward()
    torch.testing.assert_close(mine, loss, rtol=1e-5, atol=1e-5)
    wanted = {key.removeprefix("base_model.model."): part.grad for key, part in theirs.named_parameters()}
    found = {key: part.grad for key, part in model.named_parameters() if part.requires_grad}
    assert sum("lora_magnitude_vector" in key for key in found) == len(found) // 3 > 0
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[key], rtol=1e-5, atol=1e-5, msg=key)
        assert gradient.abs().sum() > 0, key
