"""Tuning on preferences: the rows that are read, and losses, rewards and gradients against TRL and the papers."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sft import CHATML, instructed
from test_tasks import load

pytestmark = pytest.mark.filterwarnings("default")

LOSSES = ("dpo", "ipo", "orpo", "kto", "simpo")
BETA = {"dpo": 0.3, "ipo": 0.2, "orpo": 0.4, "kto": 0.3, "simpo": 2.5}


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def ragged(loss: str) -> list[dict[str, Any]]:
    """Preferences whose answers have different lengths; for kto the good ones first, as TRL's order needs it."""
    prompts = [[message("user", "q" * (3 * i % 7 + 1) + f" {i}?")] for i in range(6)]
    if loss == "kto":
        return [
            {"prompt": prompt, "completion": [message("assistant", "ab" * (5 * i % 8 + 1))], "label": i < 4}
            for i, prompt in enumerate(prompts)
        ]
    return [
        {
            "prompt": prompt,
            "chosen": [message("assistant", "ab" * (5 * i % 8 + 1))],
            "rejected": [message("assistant", "c" * (4 * i % 9 + 1))],
        }
        for i, prompt in enumerate(prompts)
    ]


def shifted(model: Any) -> None:
    """Move the weights away from those of the reference."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator)


def computed(folder: Path, loss: str, rows: list[dict[str, Any]], **changes: Any) -> tuple[Any, Any, Any, Any]:
    """The generated task, its model, its samples with references, and a batch of all of them."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    name = str(instructed(folder / "model", CHATML))
    settings = {"preference__loss": loss, "preference__beta": BETA[loss], "batch__sequence_length": 64, **changes}
    named = {"model__name": name, "model__from_scratch": False, "data__train": str(folder / "rows.jsonl")}
    task = load(folder / "code", "preference", **settings, **named)
    config = task.TaskConfig(cache_dir=str(folder / "cache"))
    data, model = task.load_train_data(config), task.build_model(config)
    counted = [True] * len(data)
    if hasattr(data, "references"):
        with torch.no_grad():
            data.references.copy_(task.answer_log_probs(model, task.collate(list(data), counted)[0]))
    shifted(model)
    batch, count = task.collate(list(data), counted)
    assert count == len(data) == len(rows)
    if hasattr(task, "real_batch_mean"):
        batch["mean"] = task.real_batch_mean(model, [batch], lambda sums: sums)
    return task, model, data, batch


def trained_by_trl(folder: Path, loss: str, rows: list[dict[str, Any]], data: Any) -> tuple[float, Any, dict[str, float]]:
    """TRL's mean loss over the same preferences, the model with its gradient, and what it records of rewards."""
    pytest.importorskip("trl")  # docs/requirements-dev.txt
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, reference = (AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32) for _ in range(2))
    shifted(model)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.pad_token = "<|end|>"
    settings = {"output_dir": str(folder / "trl"), "per_device_train_batch_size": len(rows), "report_to": "none"}
    settings |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "beta": BETA[loss], "max_length": 64}
    given = {"model": model, "processing_class": tokenizer, "train_dataset": Dataset.from_list(rows)}
    if loss in ("orpo", "simpo"):
        from trl.experimental import cpo, orpo

        if loss == "orpo":
            trainer: Any = orpo.ORPOTrainer(args=orpo.ORPOConfig(**settings), **given)
        else:
            more = {"loss_type": "simpo", "simpo_gamma": 0.7, "cpo_alpha": 0.0}
            trainer = cpo.CPOTrainer(args=cpo.CPOConfig(**settings, **more), **given)
        value, recorded = trainer.get_batch_loss_metrics(model, by_side(data))
    elif loss == "kto":
        import trl

        more = {"desirable_weight": 1.5, "undesirable_weight": 0.5}
        trainer = trl.KTOTrainer(args=trl.KTOConfig(**settings, **more), ref_model=reference, **given)
    else:
        import trl

        kind = {"dpo": "sigmoid", "ipo": "ipo"}[loss]
        trainer = trl.DPOTrainer(args=trl.DPOConfig(**settings, loss_type=[kind]), ref_model=reference, **given)
    if loss in ("dpo", "ipo", "kto"):
        model.train()
        value = trainer.compute_loss(model, next(iter(trainer.get_train_dataloader())))
        recorded = {name: numbers[-1] for name, numbers in trainer._metrics["train"].items() if numbers}
    value.backward()
    return float(value), model, recorded


def by_side(data: Any) -> dict[str, torch.Tensor]:
    """Samples as those trainers of TRL take them that tokenize by other rules than the chat template's."""
    batch: dict[str, torch.Tensor] = {}
    for side, name in enumerate(("chosen", "rejected")):
        rows = [torch.from_numpy(sample["rows"][side]) for sample in data]
        ids = [row.where(row >= 0, ~row) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        batch[f"{name}_input_ids"] = pad(ids, batch_first=True)
        batch[f"{name}_attention_mask"] = pad([torch.ones_like(row) for row in ids], batch_first=True)
        batch[f"{name}_labels"] = pad([row.masked_fill(row < 0, -100) for row in rows], True, -100)
    return batch


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_rewards_and_gradients_are_those_of_trl(loss: str, tmp_path: Path) -> None:
    rows = ragged(loss)
    changes = {"preference__gamma": 0.7, "preference__desirable_weight": 1.5, "preference__undesirable_weight": 0.5}
    task, model, data, batch = computed(tmp_path, loss, rows, **changes)
    theirs, their_model, recorded = trained_by_trl(tmp_path, loss, rows, data)
    ours = task.loss_sum(model, batch) / len(rows)
    ours.backward()
    assert float(ours) == pytest.approx(theirs, abs=1e-5)
    gradients = dict(their_model.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, gradients[name].grad, atol=1e-5), name
    assert max(float(p.grad.abs().max()) for p in model.parameters()) > 1e-3
    with torch.no_grad():
        found = task.evaluation_metrics(task.evaluation_sums(model, batch).tolist())
    names = {"rewards/chosen": "eval_reward_chosen", "rewards/rejected": "eval_reward_rejected"}
    names |= {} if loss == "kto" else {"rewards/accuracies": "eval_accuracy", "rewards/margins": "eval_margin"}
    for theirs_name, name in names.items():
        assert found[name] == pytest.approx(float(recorded[theirs_name]), abs=1e-5), name
