"""What a model writes while it is evaluated: the same for any number of ranks, and what it is compared with."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_tasks import load

ANSWERS: dict[str, Any] = {"evaluation__generation_metrics": "exact_match", "evaluation__max_new_tokens": 12}


def both(folder: Path, task: str = "sft", metrics: str = "exact_match") -> tuple[Any, Any]:
    """The generated generation.py and task.py."""
    made = load(folder, task, **{**ANSWERS, "evaluation__generation_metrics": metrics})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module("generation"), made


class Ranks:
    """torch.distributed, as the ranks of a world see it that run one after another."""

    def __init__(self, world: int) -> None:
        self.world, self.sent = world, list[torch.Tensor]()

    def is_initialized(self) -> bool:
        return self.world > 1

    def get_world_size(self) -> int:
        return self.world

    def all_gather(self, ranks: list[torch.Tensor], mine: torch.Tensor) -> None:
        self.sent.append(mine)
        for place, sent in zip(ranks, self.sent, strict=False):
            place.copy_(sent)


def written(generation: Any, model: Any, data: Any, world: int, **config: Any) -> list[tuple[str, str]]:
    """What the last rank compares once the others have written."""
    given = {"generated_answers": 19, "max_new_tokens": 12, "mixed_precision": "no", "generation_metrics": "kept"}
    seen: list[tuple[str, str]] = []

    def kept(texts: list[tuple[str, str]]) -> Any:
        seen[:] = texts
        yield "eval_kept", 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "dist", Ranks(world))
        patch.setitem(generation.METRICS, "kept", kept)
        for rank in range(world):
            agreement = SimpleNamespace(rank=rank, reach=lambda _count: (0, False))
            settings = SimpleNamespace(num_processes=world, vocab_size=257, **{**given, **config})
            found = generation.metrics(settings, agreement, model, data, torch.device("cpu"))
    assert found == {
        "eval_kept": 1.0,
        "eval_answers": len(seen),
        "eval_answers_left_out": found["eval_answers_left_out"],
    }
    return list(seen)


@pytest.mark.parametrize("task", ["sft", "causal_lm"])
def test_any_world_writes_what_one_prompt_alone_is_continued_with(task: str, tmp_path: Path) -> None:
    """19 prompts are three batches, the last of them not full; two ranks and five write the last one again."""
    generation, made = both(tmp_path, task)
    torch.manual_seed(1)
    config = made.TaskConfig(cache_dir=str(tmp_path / "cache"), sequence_length=96)
    data, model = made.load_eval_data(config), made.build_model(config).train()
    for parameter in model.parameters():
        parameter.data *= 4  # what it writes depends on the prompt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "until", lambda row, _ends: row)
        patch.setattr(generation.Words, "decode", lambda _self, ids: json.dumps(ids))
        one = written(generation, model, data, 1)
        assert written(generation, model, data, 2) == written(generation, model, data, 5) == one
        short = written(generation, model, data, 1, generated_answers=3)
    assert len(one) == 19
    assert len(short) == 3
    assert len({text for text, _ in one}) > 5
    assert model.training
    assert "forward" in vars(model)
    asked, _ = generation.prompts(data, 19, None)
    alone = type(model)(model.config)
    alone.load_state_dict(model.state_dict())
    alone.eval()
    pairs = list(zip(sorted(asked, key=lambda p: len(p[0])), one, strict=True))
    for (given, wanted), (text, stands) in pairs[::3]:
        ids = torch.tensor([given])
        while ids.shape[1] < len(given) + 12 and not (ids.shape[1] > len(given) and ids[0, -1] == 256):
            ids = torch.cat([ids, alone(ids).logits[:, -1].argmax(1, keepdim=True)], 1)
        said = [token for token in json.loads(text) if token >= 0]
        assert said[: ids.shape[1] - len(given)] == ids[0, len(given) :].tolist()
        assert json.loads(stands) == wanted


def test_prompts_are_what_stands_before_an_answer(tmp_path: Path) -> None:
    generation, _ = both(tmp_path)
    no = generation.IGNORED
    # Two conversations in one row, the first with two answers; the second is cut off within its answer.
    inputs = torch.tensor([1, 2, 3, 4, 5, 6, 7, 11, 12, 13])
    labels = torch.tensor([no, 3, 4, no, 6, 7, no, no, 13, 14])
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2])
    row = torch.stack((inputs, labels, positions))
    expected = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6, 7]), ([11, 12], [13, 14])]
    assert generation.prompts([row], 0, None) == (expected, 0)
    assert generation.prompts([row], 0, 4) == ([expected[0], expected[2]], 1)
    assert generation.until([5, 6, 256, 9], [256]) == [5, 6]
    assert generation.until([5, generation.NOTHING], [256]) == [5]


def test_texts_are_compared_as_the_metrics_have_it(tmp_path: Path) -> None:
    generation, _ = both(tmp_path)
    texts = [("a cat", "a cat"), ("cat", "A cat"), ("", "x")]
    assert dict(generation.exact_match(texts)) == {"eval_exact_match": 1 / 3}


def test_bleu_is_that_of_sacrebleu(tmp_path: Path) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    bleu = both(tmp_path, metrics="bleu")[0].bleu
    english = [("the cat sat on a mat", "the cat sat on the mat"), ("yes, it is so", "yes, it is so")]
    chinese = [("我今天去了北京大学", "我今天去了北京大学看书")]
    for texts, tokenize in ((english, "13a"), (chinese, "zh")):
        said, stands = map(list, zip(*texts, strict=True))
        score = sacrebleu.corpus_bleu(said, [stands], tokenize=tokenize).score
        assert dict(bleu(texts)) == {"eval_bleu": score}
        assert 30 < score < 100


def test_rouge_counts_chinese_by_characters(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score")
    generation, _ = both(tmp_path, metrics="rouge")
    pieces = generation.Pieces().tokenize
    assert pieces("The cat's 3rd_toy") == ["the", "cat", "s", "3rd", "toy"]
    assert pieces("我爱 GPU，Größe ёлка") == ["我", "爱", "gpu", "größe", "ёлка"]
    found = dict(generation.rouge([("我爱北京", "我爱上海"), ("the cat sat", "The cat sat.")]))
    assert found == pytest.approx({"eval_rouge_1": 0.75, "eval_rouge_2": (1 / 3 + 1) / 2, "eval_rouge_l": 0.75})
