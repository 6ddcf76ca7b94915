"""Reward models: loss and gradient against TRL and the paper's formula, ranks, resumes, and the model that is saved."""

import json
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import transformers
from projects import SMALL, make
from safetensors.torch import load_file
from test_preference import ragged
from test_sft import CHATML, curve, instructed
from test_tasks import load
from warm import spawn

pytestmark = pytest.mark.filterwarnings("default")


def computed(folder: Path, **changes: Any) -> tuple[Any, Any, Any, Any]:
    """The generated task, its configuration, its model, and its samples."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ragged("dpo"))))
    name = str(instructed(folder / "model", CHATML))
    named = {"model__name": name, "model__from_scratch": False, "data__train": str(folder / "rows.jsonl")}
    task = load(folder / "code", "reward_model", batch__sequence_length=64, data__eval=None, **{**named, **changes})
    config = task.TaskConfig(cache_dir=str(folder / "cache"))
    torch.manual_seed(0)
    return task, config, task.build_model(config), task.load_train_data(config)


def gradient(model: Any) -> dict[str, torch.Tensor]:
    return {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


def test_the_loss_and_its_gradient_are_the_paper_s_and_do_not_depend_on_padding(tmp_path: Path) -> None:
    """-log sigmoid(r_chosen - r_rejected), row by row without padding, in a bare script."""
    task, config, model, data = computed(tmp_path)
    batch, count = task.collate(list(data), [True] * len(data))
    loss = task.loss_sum(model, batch)
    loss.backward()
    found = gradient(model)

    model.zero_grad()
    body, head = model.base_model, model.score
    tokenizer, total = task.chat.Chat(config).tokenizer, 0.0
    for row in ragged("dpo"):
        scores = []
        for answer in (row["chosen"], row["rejected"]):
            text = tokenizer.apply_chat_template([*row["prompt"], *answer], tokenize=False).rstrip("\n")
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
            ids = data_ids(data, ids)
            scores.append(head(body(input_ids=ids)[0][0, -1])[0])
        one = -torch.log(torch.sigmoid(scores[0] - scores[1]))
        one.backward()
        total += one.item()
    assert count == len(data) == 6
    assert loss.item() == pytest.approx(total, rel=1e-6)
    for name, part in gradient(model).items():
        torch.testing.assert_close(found[name], part, rtol=1e-4, atol=1e-6, msg=name)


def data_ids(data: Any, ids: torch.Tensor) -> torch.Tensor:
    """The sample's own ids that begin with these: a template may write a line break behind its last token."""
    for i in range(len(data)):
        for row in data[i]["rows"]:
            mine = torch.from_numpy(row)
            mine = mine.where(mine >= 0, ~mine)
            if len(mine) - ids.shape[1] in (0, 1) and torch.equal(mine[: ids.shape[1]], ids[0]):
                return mine[None]
    raise AssertionError("no sample has this text")


def test_a_pair_that_only_pads_a_batch_counts_nothing(tmp_path: Path) -> None:
    task, _, model, data = computed(tmp_path)
    whole = task.loss_sum(model, task.collate(list(data), [True] * 6)[0])
    parts = [([data[i] for i in some], [i < 6 for i in some]) for some in ([0, 1, 2], [3, 4], [5, 5])]
    parts[2] = ([data[5], data[5]], [True, False])
    found = [task.collate(*part) for part in parts]
    assert [count for _, count in found] == [3, 2, 1]
    torch.testing.assert_close(sum(task.loss_sum(model, batch) for batch, _ in found), whole, rtol=1e-5, atol=1e-6)


def test_the_loss_is_trl_s(tmp_path: Path) -> None:
    pytest.importorskip("trl")  # docs/requirements-dev.txt
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    task, config, model, data = computed(tmp_path)
    folder = tmp_path / "reward"
    task.save_model(config, model, dict(model.state_dict()), folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    settings = {"output_dir": str(tmp_path / "trl"), "per_device_train_batch_size": 6, "report_to": "none"}
    arguments = RewardConfig(**settings, use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=64)
    rows = Dataset.from_list(ragged("dpo"))
    trainer = RewardTrainer(model=theirs, processing_class=tokenizer, train_dataset=rows, args=arguments)
    theirs.eval()
    inputs = next(iter(torch.utils.data.DataLoader(trainer.train_dataset, 6, collate_fn=trainer.data_collator)))
    loss = trainer.compute_loss(theirs, inputs)
    loss.backward()
    batch, count = task.collate(list(data), [True] * 6)
    mine = task.loss_sum(model, batch) / count
    mine.backward()
    assert mine.item() == pytest.approx(loss.item(), abs=1e-5)
    expected = gradient(theirs)
    for name, part in gradient(model).items():
        torch.testing.assert_close(part, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_the_saved_model_scores_as_the_trained_one_does(adapter: str, tmp_path: Path) -> None:
    changes = {"model__adapter": adapter, "model__lora_rank": 4, "model__merge_adapter": adapter != "none"}
    task, config, model, data = computed(tmp_path, **changes)
    task.save_model(config, model, dict(model.state_dict()), tmp_path / "out" / "model")
    folder = tmp_path / "out" / ("model" if adapter == "none" else "merged")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    assert loaded.num_labels == 1
    batch, _ = task.collate(list(data), [True] * 6)
    want = model.eval()(batch["inputs"], batch["ends"])
    for i, (row, end) in enumerate(zip(batch["inputs"], batch["ends"], strict=True)):
        torch.testing.assert_close(loaded(row[None, : end + 1]).logits[0, 0], want[i], rtol=1e-5, atol=1e-5)
    # Padded rows in one batch, too: the token that pads ends no answer.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token_id == loaded.config.pad_token_id
    padded = batch["inputs"].clone()
    for row, end in zip(padded, batch["ends"], strict=True):
        row[end + 1 :] = loaded.config.pad_token_id
    torch.testing.assert_close(loaded(padded).logits[:, 0], want, rtol=1e-5, atol=1e-5)
    assert "is worth" in task.sample(config, tmp_path / "out" / "model")


def test_an_encoder_is_no_reward_model(tmp_path: Path) -> None:
    task, config, _, _ = computed(tmp_path)
    shape = transformers.BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=1
    )
    with pytest.raises(SystemExit, match="BertForSequenceClassification cannot be a reward model"):
        task.scored(transformers.AutoModelForSequenceClassification.from_config(shape), config)


@pytest.mark.train
def test_a_reward_model_learns_alike_on_two_ranks_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for _ in range(5) for row in ragged("dpo")))
    values = {
        "task": "reward_model",
        "data.train": str(tmp_path / "rows.jsonl"),
        "data.eval": "20%",
        "batch.real_batch_size": 8,
        "batch.per_device_batch_size": 2,
        "batch.gradient_accumulation_steps": 2,
        "schedule.n_steps": 6,
        "evaluation.evaluation_steps": 3,
        "evaluation.best_metric": "eval_accuracy",
    }
    folder = make(tmp_path / "project", {**SMALL, **values})
    one = {"num_processes": 1, "per_device_batch_size": 8, "gradient_accumulation_steps": 1}
    assert spawn(folder, 1, tmp_path / "one", one) == 0
    assert spawn(folder, 2, tmp_path / "two", {}) == 0
    for mine, theirs in zip(curve(tmp_path / "two"), curve(tmp_path / "one"), strict=True):
        for field in ("loss", "grad_norm_pre_clip", "eval_loss", "eval_accuracy", "eval_margin"):
            if field in theirs:
                assert mine[field] == pytest.approx(theirs[field], rel=1e-3, abs=1e-4), (field, mine["update"])
    assert curve(tmp_path / "one")[-1]["eval_accuracy"] > 0
    shutil.copytree(tmp_path / "two", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "checkpoint-00000006")
    shutil.rmtree(tmp_path / "again" / "model")
    assert spawn(folder, 2, tmp_path / "again", {"resume": "auto"}) == 0
    first, again = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("two", "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_padding_token_may_be_the_first_of_the_vocabulary(tmp_path: Path) -> None:
    """Llama 2's unknown token is 0. Without a padding token, its users would take the end token for one."""
    pairs = computed(tmp_path)[0].pairs

    class Tokenizer:
        pad_token_id, unk_token_id, eos_token_id, pad_token = None, 0, 2, None
        added_tokens_decoder = MappingProxyType[int, Any]({})
        chat_template = "{{ messages }}"

        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            return "first second"

        def convert_ids_to_tokens(self, place: int) -> str:
            return f"token {place}"

        def __call__(self, *_: Any, **__: Any) -> dict[str, list[int]]:
            return {"input_ids": [5, 6]}

    assert pairs.padded_by(Tokenizer()).pad_token == "token 0"
    Tokenizer.unk_token_id = 5
    assert pairs.padded_by(Tokenizer()).pad_token is None
