"""liger-kernel's layers: where they are used, what they leave alone, and what is said where they are not.

PyTorch's operators stand in for its kernels, which run on GPUs only.
"""

import copy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from test_tasks import load
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from trainwiz.engines.liger import FAMILIES

pytestmark = pytest.mark.filterwarnings("default")
PLAN: dict[str, Any] = {"machine__device": "cuda", "model__kernels": "liger"}


class Norm(nn.RMSNorm):
    """liger-kernel's norm, with PyTorch's operators."""

    factor = 1.0

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) * self.factor


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Install a liger-kernel that patches models as 0.8.5 does. Returns what its kernels were asked for."""
    asked: list[str] = []
    plain = modeling_llama.apply_rotary_pos_emb

    def rotate(*arguments: Any, **options: Any) -> Any:
        asked.append("rotary")
        return plain(*arguments, **options)

    def normalize(self: Any, hidden: Tensor) -> Tensor:
        asked.append("norm")
        return nn.functional.rms_norm(hidden, hidden.shape[-1:], self.weight, self.variance_epsilon)

    def apply(*, model: Any, cross_entropy: bool, fused_linear_cross_entropy: bool) -> None:
        assert (cross_entropy, fused_linear_cross_entropy) == (False, False)
        modeling_llama.LlamaRMSNorm = Norm
        modeling_llama.apply_rotary_pos_emb = rotate
        for part in model.modules():
            if type(part).__name__ == "LlamaRMSNorm":
                part.forward = normalize.__get__(part)

    package = ModuleType("liger_kernel.transformers")
    vars(package).update(LigerRMSNorm=Norm, _apply_liger_kernel_to_instance=apply)
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    for name in ("apply_rotary_pos_emb", "LlamaRMSNorm"):
        monkeypatch.setattr(modeling_llama, name, getattr(modeling_llama, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return asked


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    kernels = load(folder, "causal_lm", "kernels", **PLAN)
    error = kernels.kernel_error
    monkeypatch.setattr(kernels, "kernel_error", lambda norm: error(norm, "cpu"))
    return kernels


def decoder(kind: str = "llama", **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, vocab_size=37, pad_token_id=None, **sizes, **more)
    )


def outcome(model: Any) -> list[Tensor]:
    tokens = torch.arange(22).view(2, 11)
    loss = model(input_ids=tokens, use_cache=False).logits.square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


# docs/decisions/loop.md: liger-kernel's layers where nothing is compiled, and our own loss
def test_a_model_computes_the_same_with_them_and_later_models_do_not_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = stand_in(monkeypatch)
    kernels = loaded(tmp_path, monkeypatch)
    assert kernels.FAMILIES == FAMILIES
    model = decoder()
    expected = outcome(copy.deepcopy(model))
    kernels.use_kernels(model)
    monkeypatch.setattr(kernels, "on_gpu", lambda _tensor: True)
    for mine, other in zip(outcome(model), expected, strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-7)
    assert (asked.count("norm"), asked.count("rotary")) == (5, 2)
    asked.clear()
    monkeypatch.setattr(kernels, "on_gpu", lambda tensor: bool(tensor.is_cuda))
    outcome(decoder())  # on the CPU
    assert not asked
    assert capsys.readouterr().out == ""


def test_heads_that_turn_in_part_are_left_to_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch)
    kernels = loaded(tmp_path, monkeypatch)
    kernels.use_kernels(decoder())
    monkeypatch.setattr(kernels, "on_gpu", lambda _tensor: True)
    heads, cosines = torch.ones(1, 2, 3, 8), torch.ones(1, 3, 6)
    with pytest.raises(RuntimeError, match="size of tensor"):  # Llama's own turns whole heads, too
        modeling_llama.apply_rotary_pos_emb(heads, heads, cosines, cosines)
    assert "rotary" not in asked


def test_the_norm_is_compared_where_fsdp_gives_new_parameters_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = stand_in(monkeypatch)
    kernels = loaded(tmp_path, monkeypatch)
    with init_empty_weights():
        kernels.use_kernels(decoder())
    assert capsys.readouterr().out == ""
    assert not asked
    assert modeling_llama.apply_rotary_pos_emb.__name__ == "rotate"


def test_where_they_cannot_be_used_a_training_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = loaded(tmp_path, monkeypatch)
    model, expected = decoder(), outcome(decoder())

    def said(model: Any) -> str:
        kernels.use_kernels(model)
        return capsys.readouterr().out

    assert said(model) == "liger-kernel is not used: its kernels run on GPUs only\n"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "ModuleNotFoundError: No module named 'liger_kernel'" in said(model)
    stand_in(monkeypatch)
    assert "not tested with models of type gpt_neox" in said(decoder("gpt_neox"))
    assert "compute silu, and the model's gelu" in said(decoder(hidden_act="gelu"))
    monkeypatch.setattr(Norm, "factor", 1.01)
    assert "its norm differs from PyTorch's by" in said(model)
    monkeypatch.setenv("RANK", "1")
    assert said(model) == ""
    assert all(torch.equal(mine, other) for mine, other in zip(outcome(model), expected, strict=True))


def test_a_plan_has_its_kernels_or_the_compiler_and_one_loss(tmp_path: Path) -> None:
    def source(folder: str, **changes: Any) -> SimpleNamespace:
        load(tmp_path / folder, "causal_lm", "rows", **{**PLAN, **changes})
        files = {path.name: path.read_text() for path in (tmp_path / folder).rglob("*.py")}
        return SimpleNamespace(files=files, rows=files["rows.py"], head=files["head_loss.py"])

    fused = source("fused", model__compile=False)
    assert "use_kernels(model)" in fused.rows
    assert "@torch.compile" in fused.head
    assert "liger_kernel" not in fused.rows + fused.head
    for name, changes in {"compiled": {"model__compile": True}, "cpu": {"machine__device": "cpu"}}.items():
        other = source(name, **changes)
        assert "kernels.py" not in other.files
        assert "use_kernels" not in other.rows
    assert "@torch.compile" not in source("plain", model__kernels="none").head
