"""What `trainwiz import --script` reads in a script: numbers where they stand, and nothing that is not sure."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from trainwiz.cli import run
from trainwiz.engines.torch import OPTIMIZER_DEFAULTS
from trainwiz.engines.transformers import TRAINER_DEFAULTS
from trainwiz.script import Script
from trainwiz.script import read as read_script
from trainwiz.script.numbers import numbers
from trainwiz.store import plans as store

HERE = Path(__file__).parents[1]
H100S = ("--machine", str(HERE / "machines" / "8xh100.json"))


def without_defaults(optimizer: dict[str, Any]) -> dict[str, Any]:
    """The settings of an optimizer that a file of another program can have."""
    ours = ("beta1", "beta2", "epsilon", "ema_decay", "rates", "decays")
    return {name: value for name, value in optimizer.items() if name not in ours}


def script_of(text: str) -> Script:
    return read_script("train.py", textwrap.dedent(text))


VALUES = {
    "a constant": ("x = 3\nuse(x)", 3),
    "a negative one": ("use(-2)", -2),
    "arithmetic": ("x = 2 ** 4 * 3 // 2\nuse(x)", 24),
    "a number in words": ("use(float('1e-4'))", 1e-4),
    "through names": ("a = 5e-5\nb = a\nuse(b)", 5e-5),
    "the last one counts": ("x = 1\nx = 2\nuse(x)", 2),
    "either way the same": ("x = 4\nif y:\n    x = 4\nuse(x)", 4),
    "either way another": ("x = 4\nif y:\n    x = 8\nuse(x)", None),
    "a choice": ("use(3 if y else 3)", 3),
    "another choice": ("use(3 if y else 4)", None),
    "a sum in a loop": ("x = 0\nfor i in y:\n    x += 1\n    use(x)", None),
    "computed": ("x = len(data)\nuse(x)", None),
    "by zero": ("use(1 / 0)", None),
    "far too large": ("use(10 ** 10 ** 10)", None),
    "of two at once": ("a, b = 1, 2\nuse(b)", 2),
    "of somebody's two": ("a, b = f()\nuse(b)", None),
    "a dictionary": ("c = {'lr': 1e-3}\nuse(c['lr'])", 1e-3),
    "one made by dict": ("c = dict(lr=1e-3)\nuse(c['lr'])", 1e-3),
    "its default": ("c = {}\nuse(c.get('lr', 2e-3))", 2e-3),
    "one that changes": ("c = {'lr': 1e-3}\nc['lr'] = 1\nuse(c['lr'])", None),
    "one with more from elsewhere": ("c = {'lr': 1e-3, **more}\nuse(c['lr'])", None),
    "a parameter": ("def f(lr):\n    use(lr)\nf(1e-3)", 1e-3),
    "a parameter by name": ("def f(a, *, lr=1):\n    use(lr)\nf(0, lr=3)", 3),
    "a parameter's default": ("def f(lr=7):\n    use(lr)\nf()", 7),
    "called in two ways": ("def f(lr=7):\n    use(lr)\nf()\nf(8)", None),
    "called by somebody else": ("def f(lr=7):\n    use(lr)\nlaunch(f)", None),
    "called with more": ("def f(lr=7):\n    use(lr)\nf(*a)", None),
    "decorated": ("@retry\ndef f(lr=7):\n    use(lr)\nf()", None),
    "a method": ("class A:\n    def f(self, lr=7):\n        use(lr)\nA().f(8)", None),
    "a field": ("@dataclass\nclass C:\n    lr: float = 1e-3\nc = C()\nuse(c.lr)", 1e-3),
    "a field that is given": ("@dataclass\nclass C:\n    lr: float = 1e-3\nc = C(lr=2)\nuse(c.lr)", 2),
    "field()": ("class C:\n    lr: float = field(default=5)\nuse(C().lr)", 5),
    "a class itself": ("class C:\n    lr = 6\nuse(C.lr)", 6),
    "an option": ("p.add_argument('--lr', type=float, default=1)\nargs = p.parse_args()\nuse(args.lr)", 1),
    "an option in words": ("p.add_argument('-l', '--lr', type=float, default='1e-4')\nuse(args.lr)", 1e-4),
    "an option with dashes": ("p.add_argument('--batch-size', default=8)\nuse(args.batch_size)", 8),
    "an option by dest": ("p.add_argument('--bs', dest='size', default=8)\nuse(args.size)", 8),
    "a flag": ("p.add_argument('--bf16', action='store_true')\nuse(args.bf16)", False),
    "a required option": ("p.add_argument('--lr', type=float, required=True)\nuse(args.lr)", None),
    "an option of something else": ("p.add_argument('--lr', default=8)\nuse(model.lr)", None),
    "an option that changes": ("p.add_argument('--lr', default=8)\nargs.lr = args.lr * n\nuse(args.lr)", None),
    "known options": ("p.add_argument('--lr', default=8)\no, rest = p.parse_known_args()\nuse(o.lr)", 8),
    "through main": (
        "p.add_argument('--lr', default=8)\ndef main(a):\n    use(a.lr)\nmain(p.parse_args())",
        8,
    ),
    "itself": ("x = x\nuse(x)", None),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_followed_to_where_it_is_written(name: str) -> None:
    text, expected = VALUES[name]
    script = script_of(text)
    (call,) = script.called("use")
    found = script.values.of(call.node.args[0])
    assert (found.value if found else None) == expected
    if found:
        assert type(found.value) is type(expected)


ACCELERATE = """\
import argparse
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import get_scheduler


def train(config, args):
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accumulate)
    set_seed(config["seed"])
    loader = DataLoader(train_data, shuffle=True, batch_size=config["batch_size"])
    eval_loader = DataLoader(eval_data, batch_size=64)
    no_decay = ["bias"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n not in no_decay], "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if n in no_decay], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config["lr"])
    schedule = get_scheduler("linear", optimizer, 10, num_training_steps=len(loader) * config["epochs"])
    for epoch in range(config["epochs"]):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--weight_decay", type=float, default=0.05)
    train({"lr": 2e-5, "epochs": 3, "seed": 7, "batch_size": 16}, parser.parse_args())


main()
"""
TRAINER = """\
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-5, bf16=True,
    lr_scheduler_type="cosine", max_steps=500, max_grad_norm=0.3,
)
Trainer(model=model, args=arguments).train()
"""
BY_HAND = """\
import torch
accumulation = 8
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
loader = torch.utils.data.DataLoader(data, 32)
for epoch in range(1, 5):
    for i, batch in enumerate(loader):
        (model(batch) / accumulation).backward()
        if (i + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def said(text: str) -> dict[str, Any]:
    return {number.kind: number.value for number in numbers(script_of(text))}


def test_the_numbers_of_a_loop_with_accelerate() -> None:
    assert said(ACCELERATE) == {
        "accumulation": 4,
        "precision": "bf16",
        "seed": 7,
        "micro_batch": 16,
        "optimizer": "AdamW",
        "learning_rate": 2e-5,
        "weight_decay": 0.05,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "schedule": "linear",
        "warmup": 10,
        "clipping": 0.5,
        "epochs": 3,
    }


def test_the_numbers_of_a_trainer() -> None:
    assert said(TRAINER) == {
        "micro_batch": 4,
        "accumulation": 2,
        "learning_rate": 1e-5,
        "weight_decay": 0.0,
        "clipping": 0.3,
        "seed": 42,
        "schedule": "cosine",
        "warmup": 0,
        "precision": "bf16",
        "steps": 500,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
    }


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("adamw_torch_fused", "AdamW"),
        ("sgd", "SGD"),
        ("lion_8bit", None),
        ("adafactor", None),
        ("adamw_bnb_8bit", "adamw_8bit"),
        ("paged_adamw_8bit", "paged_adamw_8bit"),
        ("paged_adamw_32bit", None),
        ("adamw_anyprecision", None),
    ],
)
def test_the_optimizer_of_a_trainer(given: str, kind: str | None) -> None:
    found = said(TRAINER.replace("max_steps=500", f"optim={given!r}"))
    assert found["optimizer"] == kind
    assert ("beta2" in found) == (kind not in ("SGD", None))
    assert found.get("beta1") == (None if kind is None else 0.0 if kind == "SGD" else 0.9)
    assert found["epochs"] == 3


def test_the_numbers_of_a_loop_by_hand() -> None:
    assert said(BY_HAND) == {
        "accumulation": 8,
        "micro_batch": 32,
        "optimizer": "SGD",
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "beta1": 0.9,
        "schedule": "constant",
        "warmup": 0,
        "clipping": 0.0,
        "epochs": 4,
    }


NO_TRAINER = """\
import argparse, math, torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim, set_seed
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=None)
parser.add_argument("--num_train_epochs", type=int, default=3)
parser.add_argument("--max_train_steps", type=int, default=None)
parser.add_argument("--learning_rate", type=float, default=5e-5)
args = parser.parse_args()
accelerator = Accelerator()
if args.seed is not None:
    set_seed(args.seed)
make = torch.optim.AdamW if accelerator.state.deepspeed_plugin is None else DummyOptim
optimizer = make(model.parameters(), lr=args.learning_rate)
schedule = get_constant_schedule(optimizer)
if args.max_train_steps is None:
    args.max_train_steps = args.num_train_epochs * len(loader)
args.num_train_epochs = math.ceil(args.max_train_steps / len(loader))
for epoch in range(args.num_train_epochs):
    for update in range(len(loader)):
        for batch in loader:
            accelerator.backward(model(batch))
        optimizer.step()
"""


def test_the_numbers_of_a_script_without_trainer() -> None:
    expected = {
        "accumulation": 1,
        "optimizer": "AdamW",
        "learning_rate": 5e-5,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "schedule": "constant",
        "warmup": 0,
        "clipping": 0.0,
        "epochs": 3,
    }
    assert said(NO_TRAINER) == expected
    steps = said(
        NO_TRAINER.replace('max_train_steps", type=int, default=None', 'max_train_steps", type=int, default=9')
    )
    assert (steps["steps"], "epochs" in steps) == (9, False)


def test_defaults_are_those_of_the_packages() -> None:
    import torch
    import transformers

    for name, known in OPTIMIZER_DEFAULTS.items():
        parameters = inspect.signature(getattr(torch.optim, name)).parameters
        assert {key: parameters[key].default for key in known} == known, name
    fields = {field.name: field.default for field in dataclasses.fields(transformers.TrainingArguments)}
    assert {key: fields[key] for key in TRAINER_DEFAULTS} == TRAINER_DEFAULTS


# ---- the command

AUTO = """\
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 2},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(AUTO)
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\nnum_processes: 4\n"
    )
    (tmp_path / "multi.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: 'no'\n")
    (tmp_path / "theirs.py").write_text(ACCELERATE)
    (tmp_path / "trainer.py").write_text(TRAINER)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["import", *arguments, "--into", "mine", "--dry-run", "--json", *H100S]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def line_of(words: str) -> int:
    """Where in ACCELERATE something stands."""
    return next(i for i, line in enumerate(ACCELERATE.splitlines(), start=1) if words in line)


VALUES_AT, OPTION_AT = line_of('"lr": 2e-5'), line_of('"--accumulate"')
OPTIMIZER_AT = line_of("torch.optim.AdamW(")


def left(answer: dict[str, Any], kind: str) -> list[tuple[str, int, str]]:
    return [(one["file"], one["line"], one["path"]) for one in answer["left"] if one["kind"] == kind]


@pytest.mark.usefixtures("folder")
def test_auto_takes_what_the_script_says(capsys: pytest.CaptureFixture[str]) -> None:
    without = answer(capsys, "acc.yaml")
    assert len(left(without, "open")) == 7
    made = answer(capsys, "acc.yaml", "--script", "theirs.py")
    assert left(made, "open") == []
    plan = made["plan"]
    assert plan["batch"] | {"sequence_length": 0} == {
        "real_batch_size": 256,
        "per_device_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "sequence_length": 0,
    }
    assert without_defaults(plan["optimizer"]) == {
        "name": "adamw",
        "learning_rate": 2e-5,
        "weight_decay": 0.05,
        "gradient_clipping": 1.0,  # accelerate's own for auto: under DeepSpeed its clip_grad_norm_ does nothing
    }
    assert left(made, "inert") == [("theirs.py", line_of("clip_grad_norm_"), "clip_grad_norm_")]
    assert (plan["precision"]["mixed_precision"], plan["seed"]) == ("bf16", 7)
    assert (plan["schedule"]["n_epochs"], plan["schedule"]["n_warmup_steps"]) == (3, 10)
    assert made["carried"]["optimizer.learning_rate"] == {
        "value": 2e-5,
        "file": "theirs.py",
        "line": VALUES_AT,
        "path": "AdamW(lr)",
    }
    assert made["carried"]["optimizer.beta2"]["value"] == 0.999
    assert "optimizer.beta1" not in made["carried"], "what the plan's optimizer does by itself needs no key"


def test_reasons_stand_in_the_plan(folder: Path) -> None:
    assert run(["import", "acc.yaml", "--script", "theirs.py", "--into", "mine", *H100S]) == 0
    text = (folder / "mine" / "trainwiz.yaml").read_text()
    assert f"learning_rate: 2.0e-05  # file: theirs.py:{VALUES_AT} AdamW(lr)\n" in text
    said = f"# file: theirs.py:{OPTION_AT} Accelerator(gradient_accumulation_steps): the default of --accumulate\n"
    assert f"gradient_accumulation_steps: 4  {said}" in text
    assert f"n_epochs: 3  # file: theirs.py:{VALUES_AT} for … in range(config['epochs'])\n" in text
    assert store.read(folder / "mine" / "trainwiz.yaml").batch.real_batch_size == 256


@pytest.mark.usefixtures("folder")
def test_files_are_stronger_than_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ds.json").write_text(AUTO.replace('accumulation_steps": "auto"', 'accumulation_steps": 2'))
    made = answer(capsys, "acc.yaml", "--script", "theirs.py")
    assert made["plan"]["batch"]["gradient_accumulation_steps"] == 2
    assert ("theirs.py", OPTION_AT, "Accelerator(gradient_accumulation_steps)") in left(made, "lost")


@pytest.mark.usefixtures("folder")
def test_the_accelerators_precision_is_stronger_than_accelerates_file(capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "multi.yaml", "--script", "theirs.py")
    assert made["plan"]["precision"]["mixed_precision"] == "bf16"
    assert made["plan"]["optimizer"]["gradient_clipping"] == 0.5
    assert left(made, "inert") == [("multi.yaml", 3, "mixed_precision")]


@pytest.mark.usefixtures("folder")
def test_the_arguments_of_a_trainer_fill_auto(capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "acc.yaml", "--script", "trainer.py")
    assert left(made, "open") == []
    assert made["plan"]["batch"]["real_batch_size"] == 4 * 2 * 4
    assert without_defaults(made["plan"]["optimizer"]) == {
        "name": "adamw",
        "learning_rate": 1e-5,
        "weight_decay": 0.0,
        "gradient_clipping": 0.3,
    }
    assert made["plan"]["schedule"]["n_steps"] == 500


def test_what_cannot_be_read_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = ACCELERATE.replace('lr=config["lr"]', "lr=scaled(1e-4)").replace("torch.optim.AdamW", "Lion")
    (folder / "theirs.py").write_text(changed.replace("import torch\n", "from bitsandbytes.optim import Lion\n"))
    made = answer(capsys, "multi.yaml", "--script", "theirs.py")
    assert left(made, "open") == [("theirs.py", OPTIMIZER_AT, "Lion"), ("theirs.py", OPTIMIZER_AT, "Lion(lr)")]
    assert run(["import", "multi.yaml", "--script", "theirs.py", "--into", "mine", "--dry-run", *H100S]) == 0
    shown = capsys.readouterr().err
    why = "the value is computed, or differs between code paths"
    assert f"  theirs.py:{OPTIMIZER_AT} Lion(lr): scaled(1e-4)\n      {why}; optimizer" in shown


def test_a_share_of_the_updates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("warmup_ratio=0.03", "warmup_steps=0.03"):
        (folder / "trainer.py").write_text(TRAINER.replace("max_grad_norm=0.3", words))
        call = ["import", "multi.yaml", "--script", "trainer.py", "--into", "mine", "--dry-run", "--json", *H100S]
        assert run(call) == 0
        schedule = json.loads(capsys.readouterr().out)["plan"]["schedule"]
        assert (schedule["warmup_ratio"], schedule["n_warmup_steps"]) == (0.03, 0)


def test_what_else_changes_an_update_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = "torch.optim.SGD(model.parameters(), 0.1, momentum=0.7, nesterov=True, foreach=True, maximize=False)"
    (folder / "hand.py").write_text(BY_HAND.replace("torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)", made))
    call = ["import", "multi.yaml", "--script", "hand.py", "--into", "mine", "--dry-run", "--json", *H100S]
    assert run(call) == 0
    assert "SGD(nesterov)" not in [where[2] for where in left(json.loads(capsys.readouterr().out), "lost")], "task.py"
    assert run([*call, "--set", "strategy.kind=deepspeed", "--set", "strategy.zero_stage=2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["optimizer"]["beta1"] == 0.7
    assert tuple(path for file, _, path in left(answer, "lost") if file == "hand.py") == (
        "SGD(nesterov)",
        "DataLoader(shuffle)",
    )


def test_a_trainer_that_is_given_its_optimizer() -> None:
    for own in ("Trainer(model=model, args=arguments, optimizers=(mine, None))", "def create_optimizer(self): ..."):
        found = said(TRAINER.replace("Trainer(model=model, args=arguments).train()", own))
        assert "beta2" not in found
        assert found["optimizer"] is None


def test_a_script_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.py").write_text("def (:\n")
    for name, words in (("broken.py", "broken.py:1: not valid Python"), ("none.py", "none.py does not exist")):
        assert run(["import", "acc.yaml", "--script", name, "--into", "mine", *H100S]) == 2
        assert words in capsys.readouterr().err
    assert not (folder / "mine").exists()
