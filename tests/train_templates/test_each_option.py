"""What people expect to be able to say, as a user says it: launched on two ranks, recorded, killed, and resumed.

Each option is a row; those that do not disturb each other share one. Optimizers, averages, bf16 weights, frozen parts
and noise are resumed in test_optimizers.py and test_noise_and_frozen.py.
"""

import csv
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from projects import CLOCKED, REGRESSION, SMALL, make
from safetensors.torch import load_file
from test_adapters import ALL, published
from test_tasks import draw
from transformers import AutoTokenizer
from warm import launch

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]

EVERY = {"checkpoint.checkpointing_steps": 1, "checkpoint.checkpoints_total_limit": "", "schedule.n_warmup_steps": 0}
STEPS = 6
Records = list[dict[str, Any]]


@dataclass
class Run:
    """What a finished run left."""

    folder: Path

    @property
    def records(self) -> Records:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k not in CLOCKED} for line in lines]

    @property
    def curve(self) -> Records:
        return [record for record in self.records if "loss" in record]

    @property
    def evaluations(self) -> Records:
        return [record for record in self.records if "loss" not in record]

    def model(self, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model" / file)

    def saved(self, update: int) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "checkpoints" / f"checkpoint-{update:08d}" / "model.safetensors")


Effect = Callable[[Run, Run], None]


@dataclass(frozen=True)
class Option:
    """Keys of a plan, the project that they are said in, and what must be seen of them beside the usual run."""

    base: str
    values: dict[str, object]
    effect: Effect


def rates(*shares: float) -> Effect:
    def effect(run: Run, _: Run) -> None:
        assert [each["lr"] / 3e-3 for each in run.curve] == pytest.approx(shares, rel=1e-6)

    return effect


def differs(since: int, *fields: str) -> Effect:
    """The curve is another from this update on, and the same before."""

    def effect(run: Run, usual: Run) -> None:
        for one, other in zip(run.curve, usual.curve, strict=True):
            for name in fields or ("loss",):
                same = one[name] == pytest.approx(other[name], rel=1e-7)
                assert same == (one["update"] < since), (name, one["update"], one[name], other[name])

    return effect


def best(run: Run, _: Run) -> None:
    assert [(each["update"], each["best_update"]) for each in run.evaluations] == [(2, 2), (4, 2), (6, 2)]
    assert all(torch.equal(value, run.saved(2)[name]) for name, value in run.model().items())


def early(run: Run, _: Run) -> None:
    assert run.curve[-1]["update"] == 3
    assert [each["update"] for each in run.evaluations] == [1, 2, 3]


def both(*effects: Effect) -> Effect:
    def effect(run: Run, usual: Run) -> None:
        for each in effects:
            each(run, usual)

    return effect


def measured(*names: str) -> Effect:
    def effect(run: Run, _: Run) -> None:
        for each in run.evaluations:
            assert all(math.isfinite(each[name]) for name in names), each

    return effect


def in_half(run: Run, usual: Run) -> None:
    """The model is saved in two bytes, and what is computed is the same."""
    assert {value.dtype for value in run.model().values()} == {torch.float16}
    for one, other in zip(run.curve, usual.curve, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5), one["update"]


def whole(run: Run, _: Run) -> None:
    names = set(run.model("adapter_model.safetensors"))
    assert {"base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"} <= names
    assert (run.folder / "merged" / "model.safetensors").exists()


def adapted(run: Run, usual: Run) -> None:
    told = json.loads((run.folder / "model" / "adapter_config.json").read_text())
    expected = {"lora_dropout": 0.5, "use_rslora": True, "r": 2, "lora_alpha": 64, "target_modules": ["q_proj"]}
    assert {name: told[name] for name in expected} == expected
    assert run.curve[0]["loss"] == usual.curve[0]["loss"], "an adapter begins with zeros"
    differs(2)(run, usual)


def named_classes(run: Run, usual: Run) -> None:
    text = "".join(path.read_text() for path in (run.folder / "model").glob("*.json"))
    assert all(f'"{name}"' in text for name in ("cat", "dog"))
    differs(1)(run, usual)


def board(run: Run, _: Run) -> None:
    files = [path.relative_to(run.folder) for path in run.folder.rglob("events.out.*")]
    assert all("mine" in path.parts for path in files)
    assert any(path.name.endswith(".first.a.b") for path in files), files


def knows_tokens(run: Run, usual: Run) -> None:
    words = AutoTokenizer.from_pretrained(run.folder / "model")
    assert all(len(words.tokenize(token)) == 1 for token in ("<a>", "<b>", "<c>"))
    assert (words.eos_token, words.decode(words("<a>x<c>").input_ids, skip_special_tokens=True)) == ("<b>", "x<c>")
    differs(1)(run, usual)


def templated(run: Run, usual: Run) -> None:
    assert "<|im_start|>" in AutoTokenizer.from_pretrained(run.folder / "model").chat_template
    differs(1)(run, usual)


EVAL = {"evaluation.evaluation_steps": 2, "evaluation.best_metric": "eval_loss"}
WORSE = {"schedule.lr_scheduler_type": "constant", "optimizer.learning_rate": 1}
"""Each update makes the model worse."""
RATIO = {"schedule.lr_scheduler_type": "wsd", "schedule.warmup_ratio": 0.5, "schedule.decay_ratio": 0.33}
SQUARED = rates(*(0.1 + 0.9 * (1 - n / 6) ** 2 for n in range(6)))
POWER = {"schedule.lr_scheduler_type": "polynomial", "schedule.polynomial_power": 2, "schedule.min_lr_ratio": 0.1}
MOMENTS = {"optimizer.beta1": 0.5, "optimizer.beta2": 0.5, "optimizer.epsilon": 0.01, "optimizer.gradient_clipping": 9}
GROUPS = {"optimizer.rates": "head=0.1,blocks=3", "optimizer.decays": "bias=9", "optimizer.weight_decay": 5}
NAMED = {"tracking.project": "mine", "tracking.run_name": "first", "tracking.tags": "a,b"}
WRITTEN = {"evaluation.generation_metrics": "exact_match,bleu,rouge", "evaluation.max_new_tokens": 8}
FEWER = {"data.min_tokens": 4, "data.max_tokens": 12, "data.max_rows": 90}
COMPUTED = {"model.attention": "eager", "model.loss_chunk": 16, "model.activation_checkpointing": "full"}
CHATML = {"data.chat_template": "chatml", "data.special_tokens": "<|im_start|>,eos_token=<|im_end|>"}
ADAPTER = {"model.lora_dropout": 0.5, "model.lora_rslora": True, "model.lora_rank": 2, "model.lora_alpha": 64}
WHOLE = {"model.modules_to_save": ALL, "model.merge_adapter": True}
SCORES = ("eval_exact_match", "eval_bleu", "eval_rouge_1", "eval_rouge_2", "eval_rouge_l")
OPTIONS: dict[str, Option] = {
    "best": Option("numbers", {**EVAL, **WORSE}, best),
    "patience": Option("numbers", {**EVAL, **WORSE, "evaluation.evaluation_steps": 1, "evaluation.patience": 2}, early),
    "auc": Option("labels", {**EVAL, "evaluation.gather_outputs": True}, measured("eval_auc", "eval_f1")),
    "written": Option("chat", {**EVAL, **WRITTEN}, measured(*SCORES)),
    "moments and groups": Option("numbers", {**MOMENTS, **GROUPS}, differs(2)),
    "warm-up and wsd": Option("numbers", RATIO, rates(1 / 3, 2 / 3, 1, 1, 1, 1 - 0.5**0.5)),
    "polynomial on a board": Option(
        "numbers", {**POWER, "tracking.log_with": "tensorboard", **NAMED}, both(SQUARED, board)
    ),
    "packing": Option("text", {"data.packing": True}, differs(1)),
    "fewer documents": Option("text", FEWER, differs(1)),
    "computed otherwise": Option("text", {**COMPUTED, "model.output_dtype": "float16"}, in_half),
    "prompts": Option("chat", {"data.train_on": "all"}, differs(1)),
    "template": Option("chat", CHATML, templated),
    "tokens": Option("chat", {"data.special_tokens": "<a>,eos_token=<b>", "data.added_tokens": "<c>"}, knows_tokens),
    "adapter": Option("adapter", {**ADAPTER, "model.lora_targets": "q_proj", **WHOLE}, both(adapted, whole)),
    "pictures": Option("pictures", {"data.image_size": 16, "data.augmentation": "color"}, named_classes),
}


def base(name: str, folder: Path) -> dict[str, object]:
    """The project without the option."""
    folder.mkdir(exist_ok=True)
    known = {**EVERY, "schedule.n_steps": STEPS, "data.eval": "10%"}
    if name == "numbers":
        return {**REGRESSION, **EVERY, "schedule.n_steps": STEPS, "schedule.lr_scheduler_type": "cosine"}
    if name == "pictures":
        draw(folder, {"photos": 60})
        with (folder / "rows.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(
                [("image", "label"), *((f"photos/{i}.png", ("cat", "dog")[i % 2]) for i in range(60))]
            )
        return {**SMALL, **known, "task": "image_classification", "data.train": str(folder / "rows.csv")}
    model = published(folder / "model", "bert" if name == "labels" else "llama")
    rows = [{"text": f"{i} " * (i % 9 + 1), "label": "ab"[i % 2]} for i in range(120)]
    if name == "chat":
        rows = [{"prompt": f"{i} and {i % 3}?", "completion": f"{i % 5} {i % 7}"} for i in range(60)]
    data = folder / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    task = {"labels": "text_classification", "text": "causal_lm", "chat": "sft", "adapter": "causal_lm"}[name]
    adapted = {"model.adapter": "lora", "model.lora_rank": 4} if name == "adapter" else {}
    values = {"task": task, "model.name": model, "model.from_scratch": False, "data.train": str(data), **adapted}
    return {**SMALL, **known, **values, "data.cache_dir": str(folder / "cache")}


def prepared(folder: Path, option: Option | None, name: str, data: Path) -> Path:
    values = {**base(name, data), **(option.values if option else {})}
    return make(folder, values)


def killed_after(run: Path, update: int, log: int) -> None:
    """Leave of a finished run what a kill after this update would have left."""
    for path in (run / "checkpoints").glob("checkpoint-????????"):
        if int(path.name[-8:]) > update:
            shutil.rmtree(path)
    for name in ("model", "merged"):
        shutil.rmtree(run / name, ignore_errors=True)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["update"] <= log))
    (run / "outcome.json").unlink()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    known: dict[str, Run] = {}
    where = tmp_path_factory.mktemp("usual")

    def of(name: str) -> Run:
        if name not in known:
            project = prepared(where / name, None, name, where / f"{name}-data")
            done = launch(project)
            assert done.code == 0, done.err
            known[name] = Run((project / "runs" / "latest").resolve())
        return known[name]

    return of


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name: str, usual: Callable[[str], Run], tmp_path: Path) -> None:
    option = OPTIONS[name]
    project = prepared(tmp_path / "project", option, option.base, tmp_path / "data")
    done = launch(project)
    assert done.code == 0, done.err
    run = Run((project / "runs" / "latest").resolve())
    plan = yaml.safe_load((run.folder / "plan.yaml").read_text())
    config = json.loads((run.folder / "config.json").read_text())
    for key, value in option.values.items():
        section, word = key.split(".")
        assert plan[section][word] == value, key
        assert config.get(word, value) == value, key
    option.effect(run, usual(option.base))
    undisturbed, model = run.records, {p.name: p.read_bytes() for p in (run.folder / "model").iterdir()}
    update = 2 if name == "patience" else 3
    killed_after(run.folder, update, update + 1)
    done = launch(project, "--resume")
    assert done.code == 0, done.err
    again = Run((project / "runs" / "latest").resolve())
    assert again.folder != run.folder
    assert again.records == [each for each in undisturbed if each["update"] > update]
    assert {p.name: p.read_bytes() for p in (again.folder / "model").iterdir()} == model
