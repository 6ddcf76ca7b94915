"""`trainwiz adopt` on scripts for transformers' Trainer, TRL and Lightning: what cannot be taken over is named."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from trainwiz.adoption import own_code
from trainwiz.cli import run
from trainwiz.script import Script, read
from trainwiz.script.numbers import numbers
from trainwiz.script.pieces import Pieces, pieces

HERE = Path(__file__).parents[1]
CPU = ("--machine", str(HERE / "machines" / "cpu.json"))
WEIGHTED = (HERE / "own_scripts" / "weighted_trainer.py").read_text()
LIGHTNING = (HERE / "own_scripts" / "with_lightning.py").read_text()
TRAINER = """\
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from trl import DPOTrainer, SFTConfig, SFTTrainer
from theirs import OddTrainer

dataset = load_dataset("json", data_files="a.json", split="train")
model = AutoModelForCausalLM.from_pretrained("org/model")
arguments = TrainingArguments("out", per_device_train_batch_size=8)
trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
trainer.train()
"""


def script_of(text: str) -> Script:
    return read("train.py", textwrap.dedent(text))


def found(text: str) -> Pieces:
    return pieces(script_of(text))


def gap(text: str, name: str) -> str:
    piece = getattr(found(text), name)
    return str(piece.gap.why) if piece.gap else ""


def left(text: str) -> dict[str, tuple[str, int, str]]:
    script = script_of(text)
    entries = own_code.left(script, pieces(script), as_code=True)
    return {one.path: (one.kind, one.place.line, str(one.why)) for one in entries}


def numbers_of(text: str, kind: str) -> list[object]:
    return [one.value for one in numbers(script_of(text)) if one.kind == kind]


def test_a_trainer_of_trl_makes_its_samples_itself() -> None:
    """Its rows went to the model as they are, without tokens, masks, packing and the adapter; then it was a mark."""
    text = TRAINER.replace("= Trainer(", "= SFTTrainer(")
    adapted = text.replace("args=arguments", "args=arguments, peft_config=LoraConfig(r=4), formatting_func=str")
    adapted = adapted.replace("from trl", "from peft import LoraConfig\nfrom trl")
    adapted = adapted.replace("dataset)", "dataset, eval_dataset=unknown(), callbacks=[Own()])")
    made = found(adapted)
    assert made.whole_trainer
    assert "peft_config=LoraConfig(r=4), formatting_func=str" in made.whole_trainer.expression
    assert made.whole_trainer.expression.endswith("eval_dataset=None, callbacks=None)")
    assert [piece.gap for piece in made.all] == [None] * 4
    assert made.counted == "next_labels"
    assert {"SFTTrainer(callbacks)", "evaluation"} <= left(adapted).keys()
    assert "SFTTrainer(peft_config)" not in left(adapted)
    pairs = found(text.replace("SFTTrainer(", "DPOTrainer("))
    assert pairs.whole_trainer
    assert pairs.counted == "samples"
    assert gap(text.replace("SFTTrainer(", "OddTrainer("), "data") == "it is not known what OddTrainer does with it"
    assert gap(text.replace("SFTTrainer(", "OddTrainer("), "loss") == "OddTrainer has its own loss"
    unread = text.replace("train_dataset=dataset", "train_dataset=dataset_of(accelerator)")
    assert gap(unread, "data").startswith("SFTTrainer makes its samples itself, and ")
    assert "it is not known what" in gap(unread, "data")
    trained = "class SFTTrainer(DPOTrainer):\n    def training_step(self, model, inputs):\n        pass\n\n\ndataset = "
    assert "has its own training_step" in gap(text.replace("dataset = ", trained, 1), "data")


def test_the_defaults_of_a_configuration_of_trl() -> None:
    """Without a rate, the plan's default was taken."""
    text = TRAINER.replace("= Trainer(", "= SFTTrainer(").replace("= TrainingArguments(", "= SFTConfig(")
    assert numbers_of(text, "learning_rate") == [2e-5]
    assert numbers_of(text, "precision") == ["bf16"]
    assert numbers_of(text.replace("_size=8", "_size=8, bf16=False"), "precision") == []
    assert numbers_of(text, "epochs") == [3.0]


TYPED = """\
import sys
from datasets import load_dataset
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser


def main(script_args, training_args, model_args):
    training_args.model_init_kwargs = dict(revision=model_args.model_revision)
    dataset = load_dataset(script_args.dataset_name)
    trainer = SFTTrainer(model=model_args.model_name_or_path, args=training_args, train_dataset=dataset["train"])
    trainer.train()


if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    main(script_args, training_args, model_args)
"""


def test_a_command_line_that_dataclasses_read() -> None:
    """It could not be passed at all; what main does to its arguments belongs to them."""
    assert "pass it after --" in gap(TYPED, "data")
    words = (
        "--model_name_or_path",
        "org/m",
        "--learning_rate=3e-4",
        "--bf16",
        "false",
        "--max-steps",
        "7",
        "--packing",
    )
    script = read("train.py", TYPED, arguments=words)
    taken = pieces(script).whole_trainer
    assert taken
    assert f"parser.parse_args_and_config(args={[*words]!r})" in "\n".join(taken.outer)
    assert taken.outer[-2] == "training_args.model_init_kwargs = dict(revision=model_args.model_revision)"
    said = {one.kind: one.value for one in numbers(script)}
    assert (said["learning_rate"], said["steps"], said["micro_batch"]) == (3e-4, 7, 8)
    assert "precision" not in said


def test_a_trainer_of_ones_own_is_followed_to_its_base() -> None:
    text = TRAINER.replace("dataset = ", "class Mine(OddTrainer):\n    pass\n\n\ndataset = ").replace(
        "= Trainer(", "= Mine("
    )
    assert gap(text, "data") == "it is not known what Mine does with it"
    assert not gap(text.replace("(OddTrainer)", "(Trainer)"), "data")


def test_arguments_of_a_trainer_are_accounted_for() -> None:
    """None of these was named, and the loss was taken as if nothing were smoothed."""
    said = (
        "dataloader_drop_last=True, group_by_length=True, neftune_noise_alpha=5, torch_compile=True, save_steps=5, "
        "lr_scheduler_kwargs={'num_cycles': 2}, eval_steps=7, weight_decay=0.1, optim_args='a=1', jit_mode_eval=False"
    )
    text = TRAINER.replace("_batch_size=8", f"_batch_size=8, {said}").replace("dataset)", "dataset, callbacks=[Own()])")
    names = {"dataloader_drop_last", "group_by_length", "neftune_noise_alpha", "lr_scheduler_kwargs", "optim_args"}
    told = left(text)
    assert {path for path in told if path.startswith("Training")} == {f"TrainingArguments({name})" for name in names}
    assert told["Trainer(callbacks)"] == ("lost", 9, "the project calls no callbacks")
    stops = left(text.replace("[Own()]", "[EarlyStoppingCallback(3)]"))["Trainer(callbacks)"][2]
    assert "evaluation.patience" in stops
    smoothed = TRAINER.replace("_batch_size=8", "_batch_size=8, label_smoothing_factor=0.1")
    assert gap(smoothed, "loss") == "label_smoothing_factor changes the loss of the model"
    assert "TrainingArguments(**)" in left(TRAINER.replace("_batch_size=8", "_batch_size=8, **more"))
    assert "Trainer(args)" in left(TRAINER.replace("TrainingArguments(", "parsed(TrainingArguments, "))
    assert "evaluation" in left(TRAINER.replace("dataset)", "dataset, eval_dataset=dataset)"))
    assert "loss" in left(TRAINER), "GPT-2's Trainer divides by more labels"


def test_a_trainer_without_arguments_has_its_defaults() -> None:
    text = TRAINER.replace("args=arguments, ", "").replace("arguments = ", "# ")
    assert numbers_of(text, "micro_batch") == [8]
    assert numbers_of(text, "learning_rate") == [5e-5]
    assert numbers_of(text, "epochs") == [3.0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("def create_optimizer(self): ...", "WeightedTrainer.create_optimizer"),
        ("def get_train_dataloader(self): ...", "WeightedTrainer.get_train_dataloader"),
        ("def training_step(self, model, inputs): ...", "WeightedTrainer.training_step"),
    ],
)
def test_methods_that_change_the_training_are_named(method: str, path: str) -> None:
    text = WEIGHTED.replace("    def compute_loss(", f"    {method}\n\n    def compute_loss(")
    assert left(text)[path][0] == "code"
    assert path not in left(WEIGHTED)
    if "dataloader" in method:
        assert gap(text, "data") == "WeightedTrainer makes its own loader"


def test_what_compute_loss_takes_from_its_trainer() -> None:
    loss = found(WEIGHTED).loss.taken
    assert loss
    assert "SimpleNamespace(model=bare(model), class_weights=a_trainer_class_weights)" in loss.expression
    assert loss.outer == ("a_trainer_class_weights = own.weights.to(device)",)
    popped = WEIGHTED.replace("*args, class_weights=None, **kwargs):\n", "*args, **kwargs):\n").replace(
        "= class_weights.to(self.args.device)", '= kwargs.pop("class_weights", None)'
    )
    taken = found(popped).loss.taken
    assert taken
    assert taken.outer == ("a_trainer_class_weights = own.weights",)
    for change in (
        ("self.class_weights = class_weights", "self.class_weights = 2 * class_weights"),
        ("        labels = inputs", "        self.seen = 1\n        labels = inputs"),
        ("outputs = model(**inputs)", "outputs = super().compute_loss(model, inputs, True)[1]"),
        ("        labels = inputs", "        print(self.args)\n        labels = inputs"),
    ):
        assert change[0] in WEIGHTED
        assert gap(WEIGHTED.replace(*change), "loss") == "compute_loss uses the Trainer itself", change


def test_a_mean_over_class_weights_is_counted_or_named_and_keeps_its_micro_batch(tmp_path: Path) -> None:
    """Halves of a batch weigh differently, so that the mean of their means is another one."""
    assert "count" not in left(WEIGHTED)
    mean = found(WEIGHTED).mean
    assert mean
    assert mean.over
    weights = 'outside(torch.device("cpu")).a_trainer_class_weights'
    assert mean.over.expression == f"counted_labels(labels.view(-1), weight={weights})"
    drawn = WEIGHTED.replace("labels.view(-1))", "labels[torch.randperm(24)])")
    assert left(drawn)["count"][:2] == ("code", 27)
    for name in ("weighted_trainer.py", "short_texts.py"):
        (tmp_path / name).write_text((HERE / "own_scripts" / name).read_text())
    one = ("--set", "machine.num_processes=1", "--set", "strategy.kind=single")
    assert run(["adopt", str(tmp_path / "weighted_trainer.py"), "--yes", *CPU, *one]) == 0
    assert "per_device_batch_size: 24  # file" in (tmp_path / "weighted_trainer-adopted" / "trainwiz.yaml").read_text()


def test_modules_beside_the_script_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """task.py imported them before anything made them known."""
    for name in ("weighted_trainer.py", "short_texts.py"):
        (tmp_path / name).write_text((HERE / "own_scripts" / name).read_text())
    script = tmp_path / "weighted_trainer.py"
    assert run(["adopt", str(script), "--yes", *CPU]) == 0
    task = (tmp_path / "weighted_trainer-adopted" / "task.py").read_text()
    assert task.index("sys.path.append(") < task.index("from short_texts import rows")
    assert "import short_texts" not in capsys.readouterr().err
    (tmp_path / "metrics.py").write_text("def rows(): return []\n")
    script.write_text(script.read_text().replace("short_texts import", "metrics import"))
    assert run(["adopt", str(script), "--yes", *CPU, "--dry-run"]) == 0
    assert "import metrics: from metrics import WORDS, rows the project has a module of this name, too" in " ".join(
        capsys.readouterr().err.split()
    )


def test_globals_that_a_script_makes_as_it_runs() -> None:
    """A tokenizer above all; a second model, optimizer or loader would not be the one that trains."""
    script = found(WEIGHTED)
    assert script.main_names == ("tokenizer",)
    assert script.main
    assert 'tokenizer.pad_token = "#"' in "\n".join(script.main.outer)
    own = WEIGHTED.replace("truncation=True", "truncation=model.config.truncate")
    told = gap(own, "data")
    assert (
        told == "it uses model, tokenizer, which the script creates at run time: model is what the project makes itself"
    )


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("max_epochs=6", "max_epochs=6, limit_train_batches=1"), "Trainer(limit_train_batches)"),
        (("max_epochs=6", 'max_epochs=6, gradient_clip_algorithm="value"'), "Trainer(gradient_clip_algorithm)"),
        (("max_epochs=6", "max_epochs=6, callbacks=[Average()]"), "Trainer(callbacks)"),
        (("    def configure_opt", "    def on_train_batch_end(self):\n        self.ema()\n\n    def configure_opt"),
         "Net.on_train_batch_end"),
        (("    def configure_opt", "    def validation_step(self, batch, i):\n        pass\n\n    def configure_opt"),
         "evaluation"),
        (("return torch.optim", "self.trainer.estimated_stepping_batches\n        return torch.optim"),
         "configure_optimizers"),
    ],
)  # fmt: skip
def test_what_lightning_is_told_is_accounted_for(change: tuple[str, str], path: str) -> None:
    """None of these was named."""
    assert change[0] in LIGHTNING
    path = path.replace("Net", found(LIGHTNING).lightning.classes[0].name)  # type: ignore[union-attr]
    assert path in left(LIGHTNING.replace(*change))
    assert path not in left(LIGHTNING)
    usual = "limit_train_batches=1.0, callbacks=[ModelCheckpoint(), LearningRateMonitor()], enable_progress_bar=False"
    assert left(LIGHTNING.replace("max_epochs=6", f"max_epochs=6, {usual}")) == left(LIGHTNING)


def test_a_step_that_counts_with_lightning_is_marked() -> None:
    """Outside of Lightning's Trainer, its counters are 0 for ever."""
    step = "        return loss\n"
    assert step in LIGHTNING
    text = LIGHTNING.replace(step, f"        loss = loss * min(1, self.global_step / 10)\n{step}")
    assert gap(text, "loss") == "its training_step computes with self.global_step, which only Lightning's Trainer sets"
    logged = LIGHTNING.replace(step, f'        self.log("step", self.global_step)\n{step}')
    assert not gap(logged, "loss")


def test_a_schedule_of_lightning_counts_epochs_unless_it_says_otherwise() -> None:
    """It was taken for one that counts updates."""
    body = "        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)\n"
    body += "        schedule = get_linear_schedule_with_warmup(optimizer, 2, 10)\n"
    head, _, _ = LIGHTNING.partition("        return torch.optim")
    _, _, tail = LIGHTNING.partition("        return torch.optim")
    rest = tail[tail.index("\n") :]
    imported = "from transformers import get_linear_schedule_with_warmup\n"
    text = f"{imported}{head}{body}        return [optimizer], [RETURN]{rest}"
    assert numbers_of(text.replace("RETURN", "schedule"), "schedule") == [None]
    by_update = text.replace("RETURN", '{"scheduler": schedule, "interval": "step"}')
    assert numbers_of(by_update, "schedule") == ["linear"]
    assert found(by_update).late_warmup


def test_options_in_f_strings_and_their_methods() -> None:
    text = """
        import argparse
        from datasets import load_dataset
        from torch.utils.data import DataLoader
        from own_model import Net
        import torch

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--part", type=int, default=5)
            parser.add_argument("--file", default="a.json")
            args = parser.parse_args()
            data = load_dataset(args.file.split(".")[-1], data_files=args.file, split=f"train[{args.part}%:]")
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in DataLoader(data, batch_size=4):
                loss = model(x).mean()
                loss.backward()
                optimizer.step()

        if __name__ == "__main__":
            main()
    """
    data = found(text).data.taken
    assert data
    assert """load_dataset('a.json'.split(".")[-1], data_files='a.json', split=f'train[{5}%:]')""" in data.outer[0]


def test_the_collate_function_is_made_once(tmp_path: Path) -> None:
    """It was made for each micro-batch: with a tokenizer, and with a model that the collator was given."""
    for name in ("weighted_trainer.py", "short_texts.py"):
        (tmp_path / name).write_text((HERE / "own_scripts" / name).read_text())
    assert run(["adopt", str(tmp_path / "weighted_trainer.py"), "--yes", *CPU]) == 0
    task = (tmp_path / "weighted_trainer-adopted" / "task.py").read_text()
    assert "@functools.cache\ndef collator(" in task
    assert "return with_columns(" in task
    assert "COLUMNS.update(" in task


SUMS = {
    "(self(x) - y).square().sum()": True,
    "(self(x) - y).square().mean()": False,
    "torch.sum((self(x) - y) ** 2)": True,
    "torch.sum((self(x) - y) ** 2) / x.shape[0]": False,
    "(self(x) - y).square().sum(dim=1).mean()": False,
    "nn.functional.mse_loss(self(x), y, reduction='sum') + 0.5 * (self(x) ** 2).sum()": True,
    "nn.functional.mse_loss(self(x), y, reduction='sum').div(len(x))": False,
    "nn.MSELoss(reduction='sum')(self(x), y)": True,
    "nn.functional.mse_loss(self(x), y) + sum(p.abs().sum() for p in self.parameters())": False,
    "nn.functional.mse_loss(self(x), y) * len(x)": True,
    "((self(x) - y).square() * y).sum() / y.sum()": False,
    "{'loss': (self(x) - y).abs().sum()}['loss']": True,
}


@pytest.mark.parametrize("loss", SUMS)
def test_a_loss_that_is_a_sum_is_told_from_a_mean(loss: str) -> None:
    """In a step of Lightning and in a compute_loss of a Trainer; both were taken for means."""
    step = LIGHTNING.replace("nn.functional.mse_loss(self(x), y)", loss)
    assert step.count(loss) == 1
    assert (found(step).sums is not None) is SUMS[loss]
    own = f"""
        x, y = inputs["x"], inputs["labels"]
        return {loss.replace("self(x)", "model(x)").replace("self.", "model.")}
"""
    start = "from torch import nn\nimport torch\n" + WEIGHTED
    head, rest = start.split("        labels = inputs", 1)
    text = head + own.lstrip("\n") + rest[rest.index("\n\n") :]
    assert (found(text).sums is not None) is SUMS[loss]


def test_a_sum_is_found_behind_methods_and_attributes() -> None:
    """And the project then does not multiply it by the number of samples."""
    made = "self.body = "
    text = LIGHTNING.replace(made, f"self.far = nn.L1Loss(reduction='sum')\n        {made}", 1)
    step = text.replace("nn.functional.mse_loss(self(x), y)", "self.score(self(x), y)")
    step = step.replace(
        "    def configure", "    def score(self, out, y):\n        return self.far(out, y)\n\n    def configure"
    )
    assert found(step).sums is not None
    assert found(step.replace("(out, y)\n\n", "(out, y) / len(y)\n\n")).sums is None
    assert "a sum over the samples" in left(step)["loss"][2]


@pytest.mark.parametrize(
    ("name", "package", "says"),
    [
        ("KTO", "trl", "preference.loss=kto"),
        ("ORPO", "trl.experimental.orpo", "preference.loss=orpo"),
        ("CPO", "trl.experimental.cpo", "preference.loss=simpo"),
    ],
)
def test_losses_that_no_split_keeps_name_what_does(name: str, package: str, says: str) -> None:
    """They were called trainers with a loss of their own, and sent to `init --task sft`."""
    text = TRAINER.replace("= Trainer(", f"= {name}Trainer(").replace(
        "from trl import DPOTrainer,", f"from {package} import {name}Trainer\nfrom trl import"
    )
    assert f"--set task=preference --set {says}" in gap(text, "loss")
    assert gap(text, "data") == f"{name}Trainer makes its samples itself"
    rates = text.replace("TrainingArguments(", f"{name}Config(")
    rates = f"from {package} import {name}Config\n{rates}"
    assert numbers_of(rates, "learning_rate") == [1e-6]


def test_a_trainer_whose_model_writes_the_samples_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "online.py"
    script.write_text(TRAINER.replace("= Trainer(", "= GRPOTrainer(").replace("DPOTrainer,", "GRPOTrainer,"))
    assert run(["adopt", str(script), "--yes", *CPU]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "online.py:9: with GRPOTrainer the model writes answers as it trains" in said
    assert "trainwiz launch --config accelerate.yaml" in said
    assert not (tmp_path / "online-adopted").exists()


def test_what_an_adopted_trainer_of_pairs_does_otherwise_is_named() -> None:
    text = TRAINER.replace("= Trainer(", "= DPOTrainer(").replace("SFTConfig", "DPOConfig")
    text = text.replace("TrainingArguments(", "DPOConfig(sync_ref_model=True, loss_type=LOSS, output_dir=")
    for loss, word in (('"bco_pair"', "with each other"), ('["sigmoid", "sft"]', "a mean over tokens")):
        found_left = left(text.replace("LOSS", loss))
        assert word in found_left["DPOTrainer(loss_type)"][2]
        assert "calls no callbacks" in found_left["DPOConfig(sync_ref_model)"][2]
    assert "DPOTrainer(loss_type)" not in left(text.replace("LOSS", '"sigmoid"'))
