"""Tuning on preferences: the rows that are read, and losses, rewards and gradients against TRL and the papers."""

import dataclasses
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plans import BASE
from projects import CLOCKED, SMALL, make
from safetensors.torch import load_file
from test_sft import CHATML, curve, instructed
from test_tasks import load
from test_training import ON_STANDIN, SINGLE, STRATEGIES
from warm import spawn

from trainwiz import plan as plans
from trainwiz.decide import decide
from trainwiz.estimate import estimate
from trainwiz.probe.project import project
from trainwiz.project import DataFacts

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


def shifted(model: Any) -> Any:
    """Return the model as a reference: with other weights."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator)
    return model


def computed(folder: Path, loss: str, rows: list[dict[str, Any]], **changes: Any) -> tuple[Any, Any, Any, Any]:
    """The generated task, its model, its samples with references, and a batch of all of them."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    name = str(instructed(folder / "model", CHATML))
    settings = {"preference__loss": loss, "preference__beta": BETA[loss], "batch__sequence_length": 64, **changes}
    named = {"model__name": name, "model__from_scratch": False, "data__train": str(folder / "rows.jsonl")}
    batches = load(folder / "code", "preference", "batches", **settings, **named)
    task = batches.task
    config = task.TaskConfig(cache_dir=str(folder / "cache"))
    data, model = task.load_train_data(config), task.build_model(config)
    counted = [True] * len(data)
    if hasattr(data, "references"):
        with torch.no_grad():
            reference = shifted(task.build_model(config))
            data.references.copy_(task.answer_log_probs(reference, task.collate(list(data), counted)[0]))
    batch, count = task.collate(list(data), counted)
    assert count == len(data) == len(rows)
    if hasattr(task, "real_batch_sums"):
        batch["mean"] = batches.mean_over(model, [(batch, count)], torch.device("cpu"), lambda sums: sums)
        assert float(batch["mean"]) > 0.01
    return task, model, data, batch


def trained_by_trl(
    folder: Path, loss: str, rows: list[dict[str, Any]], data: Any
) -> tuple[float, Any, dict[str, float]]:
    """TRL's mean loss over the same preferences, the model with its gradient, and what it records of rewards."""
    pytest.importorskip("trl")  # docs/requirements-dev.txt
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, reference = (AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32) for _ in range(2))
    shifted(reference)
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


ASKED, GOOD, BAD = "two and two?", "four", "five"
TURN = [message("user", ASKED)]
LONGER = [message("system", "be brief"), message("user", "hello"), message("assistant", "hi"), *TURN]
GPT = [{"from": "human", "value": ASKED}]
HELLO = "\n\nHuman: hello\n\nAssistant: hi\n\nHuman: " + ASKED + "\n\nAssistant:"
FORMS: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "texts": ({"prompt": ASKED, "chosen": GOOD, "rejected": BAD}, TURN),
    "orca": ({"system": "be brief", "question": ASKED, "chosen": GOOD, "rejected": BAD}, [LONGER[0], *TURN]),
    "explicit": (
        {"prompt": LONGER, "chosen": [message("assistant", GOOD)], "rejected": [message("assistant", BAD)]},
        LONGER,
    ),
    "implicit": (
        {"chosen": [*LONGER, message("assistant", GOOD)], "rejected": [*LONGER, message("assistant", BAD)]},
        LONGER,
    ),
    "ultrafeedback": (
        {
            "prompt": ASKED,
            "prompt_id": "6c1d",
            "chosen": [*TURN, message("assistant", GOOD)],
            "rejected": [*TURN, message("assistant", BAD)],
            "messages": [*TURN, message("assistant", GOOD)],
            "score_chosen": 8.0,
            "score_rejected": 3.5,
        },
        TURN,
    ),
    "hh-rlhf": ({"chosen": f"{HELLO} {GOOD}", "rejected": f"{HELLO} {BAD}"}, LONGER[1:]),
    "hh-rlhf with its prompt": ({"prompt": HELLO, "chosen": f" {GOOD}", "rejected": f" {BAD}"}, LONGER[1:]),
    "sharegpt": (
        {
            "conversations": GPT,
            "chosen": {"from": "gpt", "value": GOOD},
            "rejected": {"from": "gpt", "value": BAD},
            "system": "be brief",
        },
        [LONGER[0], *TURN],
    ),
    "alpaca": (
        {
            "instruction": "two and",
            "input": "two?",
            "chosen": GOOD,
            "rejected": BAD,
            "history": [["hello", "hi"]],
        },
        [*LONGER[1:3], message("user", "two and\ntwo?")],
    ),
    "openai": (
        {
            "input": {"messages": LONGER, "tools": []},
            "preferred_output": [message("assistant", GOOD)],
            "non_preferred_output": [message("assistant", BAD)],
        },
        LONGER,
    ),
    "hh-rlhf in full": ({"prompt": HELLO, "response": GOOD, "chosen": f" {GOOD}", "rejected": f" {BAD}"}, LONGER[1:]),
    "an empty prompt": (
        {"prompt": "", "chosen": [*TURN, message("assistant", GOOD)], "rejected": [*TURN, message("assistant", BAD)]},
        TURN,
    ),
    "a table's text": (
        {
            "prompt": ASKED,
            "chosen": json.dumps([*TURN, message("assistant", GOOD)]),
            "rejected": json.dumps([*TURN, message("assistant", BAD)]),
        },
        TURN,
    ),
}


RATED = {  # as UltraFeedback is published
    "instruction": "a",
    "models": ["x", "y"],
    "completions": [{"response": "b", "overall_score": 5.0}, {"response": "c", "overall_score": 9.0}],
}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the generated preferences.py makes of a row."""
    folder = tmp_path_factory.mktemp("read")
    load(folder, "preference")
    conversations, preferences = sys.modules["conversations"], sys.modules["preferences"]
    return lambda row: conversations.read(("rows.jsonl:7", json.dumps(row)), preferences.preference_of)


@pytest.mark.parametrize("name", FORMS)
def test_every_common_form_is_read(name: str, read: Any) -> None:
    row, prompt = FORMS[name]
    found = read(row)
    for talk, answer in ((found.chosen, GOOD), (found.rejected, BAD)):
        said = [{"role": m["role"], "content": m["content"].removeprefix(" ")} for m in talk.messages]
        assert said == [*prompt, message("assistant", answer)]
        assert talk.learned == [False] * len(prompt) + [True]
    empty = {name for name, value in row.items() if not value}
    assert set(found.columns) == set(row) - {"tools", "prompt_id", "score_chosen", "score_rejected"} - empty


@pytest.mark.parametrize("label", [True, 1, "true", "1.0"])
def test_answers_with_a_label_are_read(label: object, read: Any) -> None:
    found = read({"prompt": ASKED, "completion": GOOD, "label": label})
    assert (found.rejected, found.chosen.messages) == (None, [*TURN, message("assistant", GOOD)])
    bad = read({"messages": [*LONGER, message("assistant", BAD)], "kto_tag": False})
    assert (bad.chosen, bad.rejected.learned) == (None, [False] * 4 + [True])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "not a JSON object"),
        ({"text": "a"}, "neither chosen and rejected answers nor an answer with a label; it has text"),
        (RATED, "completions holds 2 rated answers, which do not make a pair: write the best one as chosen"),
        (
            {**RATED, "completions": [{"from": "gpt", "value": "b", "score": 1}]},
            "neither chosen and rejected answers nor",
        ),
        ({"prompt": "a", "chosen": "b"}, "it has a chosen answer, but no rejected one"),
        ({"prompt": "a", "rejected": "b", "chosen": None}, "it has a rejected answer, but no chosen one"),
        ({"chosen": "b", "rejected": "c"}, "it has answers, and neither messages nor a question beside them"),
        (
            {"prompt": "a", "response": "d", "chosen": "b", "rejected": "c"},
            "chosen and rejected answers and a further one in response",
        ),
        (
            {"instruction": "a", "input": "", "output": ["b", "c"]},
            "set data.columns to chosen=output.0,rejected=output.1",
        ),
        ({"prompt": "a", "completion": "b", "label": 0.7}, "the label is 0.7"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "the label is 'good'"),
        ({"prompt": "a", "label": True}, "neither messages nor a question with an answer"),
        ({"messages": LONGER, "label": True}, "the row does not end with an answer"),
        ({"prompt": "a", "chosen": [message("user", "a")], "rejected": [message("user", "a")]}, "chosen does not end"),
        (
            {
                "chosen": [*TURN, message("assistant", "b")],
                "rejected": [message("user", "x"), message("assistant", "b")],
            },
            "chosen and rejected do not begin with the same question",
        ),
        (
            {"prompt": "a", "chosen": [*TURN, message("assistant", "b")], "rejected": "c"},
            "one of chosen and rejected is",
        ),
        (
            {
                "prompt": "x",
                "chosen": [*TURN, message("assistant", "b")],
                "rejected": [*TURN, message("assistant", "c")],
            },
            "chosen is a whole conversation, and prompt is none of its messages: 'x'",
        ),
        (
            {"conversations": [*GPT, {"from": "gpt", "value": "b"}], "chosen": "c", "rejected": "d"},
            "ends with an answer",
        ),
        ({"prompt": "a", "query": "b", "chosen": "c", "rejected": "d"}, "it has prompt and query, which mean the same"),
        ({"prompt": "a", "chosen": [], "rejected": ["b"]}, "not a list of messages: []"),
        ({"prompt": "a", "chosen": 3, "rejected": 4}, "the assistant says 3, which is not text"),
        ({"prompt": "a", "images": ["b"], "chosen": "c", "rejected": "d"}, "it has images"),
    ],
)
def test_rows_that_cannot_be_used_end_the_program_with_their_place(row: Any, reason: str, read: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        read(row)
    assert str(ended.value).startswith("rows.jsonl:7: this conversation cannot be used: "), ended.value
    assert reason in str(ended.value)


def test_single_answers_are_for_kto_only(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"rows\.jsonl:1: .* it has one answer with a label.*preference\.loss kto"):
        computed(tmp_path, "dpo", [{"prompt": "a", "completion": "b", "label": True}])


def test_kto_takes_pairs_apart_and_finds_answers_to_other_prompts(tmp_path: Path) -> None:
    rows = [{"prompt": ASKED, "chosen": "a", "rejected": "b"}] * 2
    rows += [{"prompt": "hello", "chosen": "c", "rejected": "d"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load(tmp_path, "preference", preference__loss="kto", data__train=str(tmp_path / "rows.jsonl"))
    data = task.load_train_data(task.TaskConfig(cache_dir=str(tmp_path / "cache")))
    shown = [[bytes(i for i in (ids ^ (ids >> 63)).tolist() if i < 256).decode() for ids in s["rows"]] for s in data]
    asked, hello = (f"user:\n{prompt}assistant:\n" for prompt in (ASKED, "hello"))
    assert [(own, other) for own, other in shown] == [
        (asked + "a", asked + "d"),
        (asked + "a", asked + "d"),
        (hello + "c", hello + "a"),
        (asked + "b", asked + "c"),
        (asked + "b", asked + "c"),
        (hello + "d", hello + "b"),
    ]
    assert [sample["sign"] for sample in data] == [1, 1, 1, -1, -1, -1]


def test_what_is_cut_or_left_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"prompt": "a", "chosen": "b" * 60, "rejected": "c", "source": "web"},
        {"prompt": "a" * 60, "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "same", "rejected": "same"},
        {"prompt": "a", "chosen": "", "rejected": "c"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    changes = {"data__train": str(tmp_path / "rows.jsonl"), "batch__sequence_length": 40}
    task = load(tmp_path, "preference", **changes)
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
    data, _ = task.load_train_data(config), task.load_train_data(config)
    assert len(data) == 3
    assert max(len(row) for sample in data for row in sample["rows"]) == 41
    said = capsys.readouterr().out
    assert said.count("samples: 4") == 1, "evaluation may be a part of the same data"
    for line in (
        "samples: 4, 1 cut to 40 tokens, 1 dropped",
        "read from prompt, chosen, rejected (4, the first: ",
        "ignored column: source (1, the first: ",
        "chosen and rejected are equal, and nothing is learned from them (1, the first: ",
        "empty answers, of which only the end is learned (1, the first: ",
    ):
        assert line in said, (line, said)


def test_a_prompt_is_trained_on_or_evaluated_never_both(tmp_path: Path) -> None:
    rows = [{"prompt": f"number {i % 20}", "chosen": f"a{i}", "rejected": f"b{i}"} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load(tmp_path, "preference", data__train=str(tmp_path / "rows.jsonl"), data__eval="10%")
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
    parts = [task.load_train_data(config), task.load_eval_data(config)]
    assert [len(part) for part in parts] == [54, 6]
    prompts = [{part.prompt(row).tobytes() for row, _ in part.chosen} for part in parts]
    assert not prompts[0] & prompts[1]


@pytest.mark.parametrize(("loss", "length"), [("dpo", 48), ("dpo", 256), ("kto", 256)])
def test_the_probe_counts_the_samples_that_the_task_makes(loss: str, length: int, tmp_path: Path) -> None:
    changes = {"preference.loss": loss, "batch.sequence_length": length}
    found = project(plans.with_changes(BASE, {"task": "preference", **changes}), str(tmp_path))
    task = load(tmp_path, "preference", **{key.replace(".", "__"): value for key, value in changes.items()})
    config = task.TaskConfig(cache_dir=str(tmp_path / "cache"))
    assert found.train is not None
    assert found.eval is not None
    assert found.train.samples == len(task.load_train_data(config))
    assert found.eval.samples == len(task.load_eval_data(config))


@pytest.mark.parametrize(
    ("row", "loss", "problem"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "dpo", ""),
        ({"prompt": "a", "completion": "b", "label": True}, "kto", ""),
        ({"prompt": "a", "completion": "b", "label": True}, "dpo", "which only works with the kto loss"),
        (RATED, "dpo", "2 rated answers in completions, which do not make a pair"),
        (RATED, "kto", "2 rated answers in completions"),
        ({"instruction": "a", "output": "b"}, "dpo", "neither chosen and rejected answers nor an answer with a label"),
    ],
)
def test_what_a_loss_cannot_learn_from_is_named_before(row: Any, loss: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    changes = {"task": "preference", "preference.loss": loss, "data.train": "rows.jsonl"}
    found = project(plans.with_changes(BASE, changes), str(tmp_path)).train
    assert found is not None
    assert (problem in found.detail, bool(problem)) == (True, bool(found.detail))


def test_the_data_and_the_loss_decide_the_defaults() -> None:
    tuned = {"task": "preference", "model.name": "org/model", "model.parameters": 7_000_000_000}
    judged = decide(
        tuned, None, data=DataFacts(name="a", kind="file", first={"prompt": "a", "completion": "b", "label": True})
    ).plan
    assert judged.preference.loss == "kto"
    plan = decide(
        {**tuned, "model.adapter": "lora"},
        None,
        data=DataFacts(name="a", kind="file", first={"chosen": "a", "rejected": "b", "label": 1}),
    ).plan
    assert (plan.preference.loss, plan.optimizer.learning_rate, plan.data.packing) == ("dpo", 5e-6, False)
    both = [plans.with_changes(plan, {"preference.loss": loss, "model.adapter": "none"}) for loss in ("dpo", "kto")]
    pair, single = (estimate(each, 7_000_000_000).activation_bytes_per_rank for each in both)
    assert 1.8 < pair / single <= 2


TUNED = {
    **SMALL,
    "task": "preference",
    "model.from_scratch": False,
    "schedule.n_steps": 6,
    "batch.sequence_length": 64,
    "optimizer.learning_rate": 1e-3,
}
EVALUATED = {"eval_loss", "eval_accuracy", "eval_margin", "eval_reward_chosen", "eval_reward_rejected"}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A model with a chat template, and ragged preferences: two and a half real batches of 16, and some to evaluate."""
    folder = tmp_path_factory.mktemp("named")
    rows = [
        {"prompt": f"{i} + {i}?", "chosen": "o" * (7 * i % 23 + 1), "rejected": "x" * (5 * i % 17 + 1)}
        for i in range(45)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    name = str(instructed(folder / "model", CHATML))
    return {"model.name": name, "data.train": str(folder / "pairs.jsonl"), "data.eval": "5"}


def cached(folder: Path) -> dict[str, int]:
    """The files of references, and when they were written."""
    return {file.name: file.stat().st_mtime_ns for file in folder.rglob("references-*.npy")}


# docs/decisions/tasks.md: What a loss needs of the whole real batch is a mean that is taken first
@pytest.mark.train
@pytest.mark.parametrize("loss", ["kto", "orpo"])
def test_no_split_of_the_batch_changes_the_training(loss: str, named: dict[str, object], tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**TUNED, **named, "preference.loss": loss})
    curves = []
    for ranks, micro in ((1, 16), (2, 2)):
        split = {"num_processes": ranks, "per_device_batch_size": micro}
        split |= {"gradient_accumulation_steps": 16 // ranks // micro, "gradient_clipping": 0}
        assert spawn(folder, ranks, tmp_path / f"{ranks}", split) == 0
        curves.append(curve(tmp_path / f"{ranks}"))
    assert len(curves[0]) > 7  # with evaluations
    for mine, theirs in zip(*curves, strict=True):
        for field in mine.keys() - CLOCKED - {"lr", "epoch"}:
            assert mine[field] == pytest.approx(theirs[field], rel=2e-4, abs=1e-5), (field, mine["update"])
    assert curves[0][-1].keys() - {"update"} == EVALUATED - ({"eval_accuracy"} if loss == "kto" else set())
    assert curves[0][-1]["eval_margin"] > 0
    # One file for the training data and one for the evaluation, whatever the number of ranks.
    assert len(cached(folder)) == (0 if loss == "orpo" else 2)


# docs/decisions/tasks.md: References are computed once, by the model that is trained
@pytest.mark.train
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_it_goes_on_bit_for_bit_with_the_references_of_before(
    adapter: str, named: dict[str, object], tmp_path: Path
) -> None:
    changes = {"model.adapter": adapter, "model.lora_rank": 4, "optimizer.learning_rate": 3e-3}
    folder = make(tmp_path / "project", {**TUNED, **named, **changes})
    assert spawn(folder, 2, tmp_path / "whole", {}) == 0
    before = cached(folder)
    assert len(before) == 2
    (checkpoints := tmp_path / "again" / "checkpoints").mkdir(parents=True)
    (tmp_path / "whole" / "checkpoints" / "checkpoint-00000003").rename(checkpoints / "checkpoint-00000003")
    (tmp_path / "again" / "metrics.jsonl").write_text((tmp_path / "whole" / "metrics.jsonl").read_text())
    assert spawn(folder, 2, tmp_path / "again", {"resume": "auto"}) == 0
    assert cached(folder) == before
    name = "model.safetensors" if adapter == "none" else "adapter_model.safetensors"
    whole, again = (load_file(tmp_path / run / "model" / name) for run in ("whole", "again"))
    assert all(torch.equal(whole[key], again[key]) for key in whole)
    first = curve(tmp_path / "whole")[0]["loss"]
    assert first == pytest.approx(math.log(2), abs=1e-6), "an adapter begins as its reference"


@pytest.mark.train
def test_references_that_were_found_before_a_stop_are_kept(named: dict[str, object], tmp_path: Path) -> None:
    folder = make(tmp_path / "project", {**TUNED, **named, **SINGLE})
    assert spawn(folder, 1, tmp_path / "out", {}) == 0
    path = max(folder.rglob("references-*.npy"), key=lambda file: file.stat().st_size)
    values = np.load(path)
    partial = values.copy()
    partial[:20] += 1.0  # what is known is not computed again
    partial[20:] = np.nan
    np.save(path, partial)
    assert spawn(folder, 1, tmp_path / "again", {}) == 0
    assert np.allclose(np.load(path)[:20], values[:20] + 1)
    assert np.allclose(np.load(path)[20:], values[20:], atol=1e-4)


def test_references_are_named_by_what_decides_them(named: dict[str, object], tmp_path: Path) -> None:
    changes = {key.replace(".", "__"): value for key, value in named.items()}
    train = load(tmp_path, "preference", "train", model__from_scratch=False, **changes)
    task, references = train.task, sys.modules["references"]
    config = train.Config(cache_dir=str(tmp_path / "cache"))
    data = task.load_train_data(config)
    key = references.key_of(config, data)
    assert references.key_of(dataclasses.replace(config, beta=0.7, learning_rate=1.0), data) == key
    assert references.key_of(config, task.load_eval_data(config)) != key
    for other in ({"sequence_length": 60}, {"mixed_precision": "bf16"}):
        assert references.key_of(dataclasses.replace(config, **other), data) != key, other
    os.utime(Path(str(named["model.name"])) / "model.safetensors", ns=(1, 1))
    assert references.key_of(config, data) != key


@pytest.mark.train
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fsdp", {"preference.loss": "kto"}),
        ("fsdp", {"model.adapter": "lora", "model.lora_rank": 4}),
        ("zero2", {"preference.loss": "ipo"}),
        ("zero3", {"preference.loss": "kto"}),
    ],
)
def test_every_way_to_shard_gives_the_curve_of_one_rank(
    name: str, changes: dict[str, object], named: dict[str, object], tmp_path: Path
) -> None:
    settings = {**TUNED, **named, **changes, "schedule.n_steps": 3, "optimizer.gradient_clipping": 0}
    plain = make(tmp_path / "plain", {**settings, **SINGLE})
    assert spawn(plain, 1, tmp_path / "one", {}) == 0
    folder = make(tmp_path / "project", {**settings, **STRATEGIES[name]})
    assert spawn(folder, 2, tmp_path / "sharded", {}, env=ON_STANDIN if name == "fsdp" else None) == 0
    for mine, theirs in zip(curve(tmp_path / "sharded"), curve(tmp_path / "one"), strict=True):
        for field in mine.keys() & {"loss", "grad_norm_pre_clip", "weight_norm", *EVALUATED}:
            assert mine[field] == pytest.approx(theirs[field], rel=1e-3, abs=1e-5), (field, mine["update"])
    files = [{file.name for file in (tmp_path / run / "model").iterdir()} for run in ("one", "sharded")]
    assert files[0] == files[1]
    assert "chat_template.jinja" in files[0]
