"""What `trainwiz import --script` makes of a script's own model, data and loss: code, or a mark with file and line."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import warm
from projects import trainwiz

from trainwiz.adoption import own_code
from trainwiz.cli import run
from trainwiz.errors import UsageError
from trainwiz.script import read
from trainwiz.script.numbers import numbers
from trainwiz.script.pieces import Pieces, pieces

HERE = Path(__file__).parents[1]
CPU = ("--machine", str(HERE / "machines" / "cpu.json"))

DEFINITIONS = """\
import argparse
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 8


class Points(Dataset):
    def __init__(self, n, noise=0.0):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(n, WIDTH, generator=generator)
        self.y = 2 * self.x[:, 0] + noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)
"""
OWN = f"""\
{DEFINITIONS}

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--accumulation", type=int, default=2)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    train_data = Points(64, noise=0.1)
    loader = DataLoader(train_data, batch_size=4, shuffle=True)
    eval_loader = DataLoader(Points(16), batch_size=4)
    net = Net(WIDTH, args.hidden)
    net.layers[0].bias.data.zero_()
    for parameter in net.layers[2].parameters():
        parameter.data.zero_()
    net = net.to(accelerator.device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer, loader, eval_loader = accelerator.prepare(net, optimizer, loader, eval_loader)
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            with accelerator.accumulate(net):
                prediction = net(x)
                loss = criterion(prediction, y.to(accelerator.device))
                loss = loss / args.accumulation
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                average_weights(net)
        print(epoch, loss.item())


def average_weights(model):
    pass


if __name__ == "__main__":
    main()
"""


TOP_LEVEL = f"""\
{DEFINITIONS}

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=32)
args = parser.parse_args()
torch.manual_seed(3)
loader = DataLoader(Points(64), batch_size=4, shuffle=True)
net = Net(WIDTH, args.hidden).to("cuda")


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
"""
OWN_CLASS = f"""\
{DEFINITIONS}

class Trainer:
    def __init__(self, model, data, optimizer, gpu_id):
        self.model, self.data, self.optimizer, self.gpu_id = model.to(gpu_id), data, optimizer, gpu_id

    def batch(self, x, y):
        self.optimizer.zero_grad()
        output = self.model(x)
        loss = nn.functional.mse_loss(output, y)
        loss.backward()
        self.optimizer.step()

    def epoch(self):
        for source, target in self.data:
            source = source.to(self.gpu_id)
            self.batch(source, target)


def made():
    model = Net(WIDTH, 4)
    return Points(64), model, torch.optim.SGD(model.parameters(), lr=0.01)


def loader_of(points, size):
    return DataLoader(points, batch_size=size, shuffle=True)


def main():
    dataset, model, optimizer = made()
    Trainer(model, loader_of(dataset, 4), optimizer, 0).epoch()


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acc.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n")
    (tmp_path / "train.py").write_text(OWN)
    return tmp_path


def imported(*arguments: str, code: int = 0) -> None:
    assert run(["import", "acc.yaml", "--script", "train.py", "--into", "mine", "--yes", *CPU, *arguments]) == code


def line_of(words: str, text: str = OWN) -> int:
    return next(i for i, line in enumerate(text.splitlines(), start=1) if words in line)


def left(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, int], dict[str, Any]]:
    imported("--dry-run", "--json", *arguments)
    answer = json.loads(capsys.readouterr().out)
    return {(one["path"], one["line"]): one for one in answer["left"] if one["kind"] in ("code", "lost")}


def function(text: str, name: str) -> list[str]:
    """The statements of a function, without its docstring."""
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    return [ast.unparse(statement) for statement in node.body[1:]]


def found(text: str) -> Pieces:
    return pieces(read("train.py", textwrap.dedent(text)))


def gaps(text: str) -> dict[str, tuple[int, str]]:
    return {
        one.name: (getattr(one.gap.node, "lineno", 0), str(one.gap.why))
        for one in found(text).all
        if one.gap is not None
    }


# The command


def test_model_data_and_loss_become_the_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported()
    shown = capsys.readouterr().err
    assert f"loss (train.py:{line_of('accelerator.backward')})" in shown
    text = (folder / "mine" / "task.py").read_text()
    assert function(text, "load_train_data") == ["train_data = own.Points(64, noise=0.1)", "return train_data"]
    assert function(text, "build_model") == [
        "net = own.Net(own.WIDTH, 32)",
        "net.layers[0].bias.data.zero_()",
        "for parameter in net.layers[2].parameters():\n    parameter.data.zero_()",
        "return net",
    ]
    assert function(text, "loss_sum")[-3:] == [
        "prediction = net(x)",
        "loss = criterion(prediction, y)",
        "return loss.float() * n_of_the_mean",
    ]
    assert "criterion = nn.MSELoss()" in function(text, "outside")
    plan = (folder / "mine" / "trainwiz.yaml").read_text()
    assert "task: custom" in plan
    assert "train.py has its own model, data and loss" in plan
    # What is written is the user's: another init leaves it, and nothing is stale.
    assert run(["init", "mine", "--defaults", "--yes", "--seed", "7", *CPU]) == 0
    assert (folder / "mine" / "task.py").read_text() == text
    assert (folder / "mine" / "own.py").exists()


def test_all_that_is_left_out_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = left(capsys)
    assert entries.keys() == {
        ("option", line_of("net = Net(")),
        ("evaluation", line_of("eval_loader = ")),
        ("loop", line_of("average_weights(net)")),
    }
    assert "the default 32 of --hidden is used" in entries["option", line_of("net = Net(")]["why"]
    assert entries["loop", line_of("average_weights(net)")]["value"] == "average_weights(net)"
    assert not (folder / "mine").exists()


@pytest.mark.usefixtures("folder")
def test_another_task_is_the_users_choice(capsys: pytest.CaptureFixture[str]) -> None:
    entries = left(capsys, "--set", "task=causal_lm")
    for name, words in {"model": "AdamW(net", "data": "= DataLoader(train_data", "loss": "backward(loss)"}.items():
        assert entries[name, line_of(words)]["kind"] == "lost"
        assert "the plan's task provides its own" in entries[name, line_of(words)]["why"]


def test_what_cannot_be_taken_is_marked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs = OWN.replace('"--hidden", type=int, default=32', '"--hidden", type=int, required=True')
    (folder / "train.py").write_text(needs)
    imported()
    shown = " ".join(capsys.readouterr().err.split())
    at = line_of("AdamW(", needs)
    why = "--hidden is required: pass it after --, for example: -- --hidden VALUE"
    assert f"train.py:{at} model: net line {line_of('net = Net(', needs)}: {why}" in shown
    assert "Next: write build_model in mine/task.py: comments there point to" in shown
    text = (folder / "mine" / "task.py").read_text()
    assert f"# TODO: train.py:{at}: {why}" in text
    assert function(text, "build_model") == [
        f"raise NotImplementedError('write build_model in task.py: see train.py:{at}')"
    ]


def test_marks_stop_a_launch(folder: Path) -> None:
    (folder / "train.py").write_text(OWN.replace("type=int, default=32", "type=int, required=True"))
    imported()
    found = json.loads(trainwiz("check", "mine", "--json").out)["findings"]
    [unwritten] = [one["message"] for one in found if one["rule"] == "TW527"]
    assert unwritten.startswith("build_model in task.py:")
    assert trainwiz("launch", "mine").code == 1
    assert not (folder / "mine" / "runs").exists()


def test_an_existing_task_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "task.py").write_text("mine = 1\n")
    imported(code=1)
    assert "-mine = 1" in capsys.readouterr().err
    imported("--on-conflict", "beside")
    assert (folder / "mine" / "task.py").read_text() == "mine = 1\n"
    assert "own.Net" in (folder / "mine" / "task.py.new").read_text()


def test_files_of_ones_own_are_left_alone_and_nothing_is_said_to_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`written to task.py` stood above `nothing was written`, and no remedy named another folder."""
    assert run(["import", "acc.yaml", "--script", "train.py", "--yes", *CPU]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert "train.py; nothing was written" in shown
    assert "choose another folder with --into DIR" in shown
    assert "written to task.py" not in shown
    assert (folder / "train.py").read_text() == OWN
    imported("--dry-run")
    shown = capsys.readouterr().err
    assert "for task.py: model (train.py:" in shown
    assert "written to task.py" not in shown
    imported()
    assert "written to task.py: model (train.py:" in capsys.readouterr().err


def test_secrets_of_a_script_stay_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token for the hub and a service's key were copied into task.py."""
    token, key = "hf_" + "abcdefghijklmnopqrstuvwxyz012345", "0123456789abcdef0123"
    text = f"""\
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM


def main():
    data = load_dataset("org/data", split="train", token="{token}", storage_options={{"access_key": "{key}"}})
    model = AutoModelForCausalLM.from_pretrained("org/é", token="{token}", pad_token="<pad>")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for batch in DataLoader(data, shuffle=True):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""
    (folder / "train.py").write_text(text)
    imported()
    shown = capsys.readouterr().err
    assert f"train.py:{line_of('load_dataset(', text)} token: ***" in shown
    assert "reads it from the variable HF_TOKEN" in shown
    assert "reads it from the variable ACCESS_KEY" in shown
    written = "".join(path.read_text() for path in (folder / "mine").rglob("*") if path.is_file())
    assert token not in written + shown
    assert key not in written + shown
    task = (folder / "mine" / "task.py").read_text()
    assert 'AutoModelForCausalLM.from_pretrained("org/é", token=os.environ.get("HF_TOKEN"), pad_token="<pad>")' in task
    assert 'storage_options={"access_key": os.environ["ACCESS_KEY"]}' in task
    assert "import os" in task.splitlines()


def test_a_custom_task_takes_no_data_from_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["init", str(tmp_path / "new"), "--defaults", "--yes", "--task", "custom", *CPU]
    assert run([*arguments, "--data", "data.txt", "--model", "org/net"]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert "data.train data.txt is not used: the task custom gets it from load_train_data in task.py" in shown
    assert "model.name org/net is not used" in shown
    assert not (tmp_path / "new").exists()
    assert run(arguments) == 0


@pytest.mark.train
def test_the_project_proves_itself(folder: Path) -> None:
    """Summed loss, padding, resume and another split of the batch, with the user's own code."""
    imported()
    done = warm.trainwiz(folder / "mine" / "train.py", "rehearse", str(folder / "mine"), "--updates", "4")
    assert done.code == 0, done.err + done.out
    assert "warnings: 0" in done.out


# Shapes of scripts

HUB = """\
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

NAME = "org/model"


def loaders(accelerator, size=8):
    tokenizer = AutoTokenizer.from_pretrained(NAME)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    data = load_dataset("org/data", split="train")

    def tokenized(rows):
        return tokenizer(rows["text"], truncation=True)

    with accelerator.main_process_first():
        data = data.map(tokenized, batched=True)

    def collate(rows):
        return tokenizer.pad(rows, return_tensors="pt")

    return DataLoader(data, shuffle=True, collate_fn=collate, batch_size=size)


def training(accelerator):
    loader = loaders(accelerator)
    model = AutoModelForCausalLM.from_pretrained(NAME)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        optimizer.step()


if __name__ == "__main__":
    training(Accelerator())
"""


def test_models_and_data_of_the_hub() -> None:
    script = found(HUB)
    assert [one.name for one in script.all if one.gap] == []
    assert script.counted == "next_labels"
    assert script.model.taken
    assert script.model.taken.outer == ("model = AutoModelForCausalLM.from_pretrained(own.NAME)",)
    assert script.data.taken
    assert [text.splitlines()[0] for text in script.data.taken.outer] == [
        "tokenizer = AutoTokenizer.from_pretrained(own.NAME)",
        "if tokenizer.pad_token is None:",
        'data = load_dataset("org/data", split="train")',
        "def tokenized(rows):",
        "data = data.map(tokenized, batched=True)",
    ]
    assert script.loss.taken
    assert script.loss.taken.inner == ("outputs = model(**batch)",)


def test_a_script_that_trains_on_import() -> None:
    """What it only defines is had without the rest, and the statements that make model and data become functions."""
    assert gaps(TOP_LEVEL) == {}
    script = found(TOP_LEVEL)
    assert script.definitions == ("Net", "Points", "WIDTH", "loss_of")
    assert script.model.taken
    assert script.data.taken
    assert script.loss.taken
    assert (script.model.taken.outer, script.model.taken.expression) == (("net = own.Net(own.WIDTH, 32)",), "net")
    assert script.data.taken.expression == "own.Points(64)"
    assert script.loss.taken.inner == ("loss = own.loss_of(net(x), y)",)
    assert script.batch == "(x, y)"
    # A function that needs what the script makes as it runs cannot be had alone.
    text = TOP_LEVEL.replace("return nn.functional", "print(args)\n    return nn.functional")
    assert gaps(text)["loss"][1] == (
        "it uses args, which the script creates at run time: the value of args is not written in the script"
    )


def test_the_arguments_of_a_script() -> None:
    text = TOP_LEVEL.replace("default=32", "required=True")
    why = "--hidden is required: pass it after --, for example: -- --hidden VALUE"
    assert gaps(text)["model"] == (line_of("net = Net(", text), why)
    for words in (("--hidden", "16"), ("--hidden=16",)):
        model = pieces(read("train.py", text, arguments=words)).model.taken
        assert model
        assert model.outer == ("net = own.Net(own.WIDTH, 16)",)
        assert model.options == ()
    for wrong, says in (
        (("--width", "3"), "the script has no option --width"),
        (("--hidden",), "no value for --hidden"),
    ):
        with pytest.raises(UsageError, match=says):
            pieces(read("train.py", text, arguments=wrong))


def test_a_sum_over_the_samples_is_no_mean() -> None:
    text = TOP_LEVEL.replace("mse_loss(output, target)", 'mse_loss(output, target, reduction="sum")')
    assert found(TOP_LEVEL).sums is None
    assert found(text).sums is not None
    assert found(text.replace("(net(x), y)", "(net(x), y) / len(y)")).sums is None


def test_several_backward_passes() -> None:
    text = TOP_LEVEL.replace("loss.backward()", "loss.backward()\n        loss_of(net(y), x).backward()")
    line = line_of("loss_of(net(y), x)", text)
    assert gaps(text) == {"loss": (line, "the loop has several backward passes: for loss and loss_of(net(y), x)")}


def test_a_class_that_trains() -> None:
    """It is called Trainer, and is none of transformers'; its loop gives a method each micro-batch."""
    script = found(OWN_CLASS)
    assert {one.name: str(one.gap.why) for one in script.all if one.gap} == {}
    assert script.model.taken
    assert script.data.taken
    assert script.loss.taken
    assert script.model.taken.outer == ("model = own.Net(own.WIDTH, 4)",)
    assert script.data.taken.outer == ("dataset, model, optimizer = own.made()",)
    assert (script.batch, script.loss.taken.inner) == (
        "(x, y)",
        ("output = model(x)", "loss = nn.functional.mse_loss(output, y)"),
    )
    more = OWN_CLASS.replace("            self.batch(", "            source = source + 1\n            self.batch(")
    assert gaps(more)["loss"][1] == "no loop over micro-batches with a backward pass was found"


def test_classes_of_a_command_line_of_lightning() -> None:
    text = (HERE / "own_scripts" / "with_lightning.py").read_text()
    text = text[: text.index("if __name__")] + (
        "from lightning.pytorch.cli import LightningCLI\n\n"
        'LightningCLI(Regressor, Points, trainer_defaults={"max_epochs": 6})\n'
    )
    script = found(text)
    assert script.model.taken
    assert script.whole_loader
    assert (script.model.taken.expression, script.whole_loader.expression) == ("own.Regressor()", "own.Points()")
    assert {one.kind: one.value for one in numbers(read("train.py", text))}["epochs"] == 6
    needs = text.replace("def __init__(self", "def __init__(self, path", 1)
    assert gaps(needs)["model"][1] == "Regressor needs path, which comes from its command line"


def test_each_update_by_hand_in_a_training_step_is_named() -> None:
    text = (HERE / "own_scripts" / "with_lightning.py").read_text()
    by_hand = text.replace(
        "        return loss\n",
        "        first = self.optimizers()\n"
        "        self.manual_backward(loss)\n"
        "        if (batch_idx + 1) % 2 == 0:\n"
        "            first.step()\n"
        "            first.zero_grad()\n"
        "        self.lr_schedulers().step()\n",
    )
    script = read("train.py", by_hand)
    named = {
        one.place.line for one in own_code.left(script, pieces(script), as_code=True) if one.path == "training_step"
    }
    words = (
        "self.optimizers()",
        "manual_backward",
        "if (batch_idx",
        "first.step()",
        "first.zero_grad()",
        "lr_schedulers",
    )
    assert named == {line_of(part, by_hand) for part in words}
    assert gaps(by_hand)["loss"] == (
        line_of("self.optimizers()", by_hand),
        "its training_step makes the updates itself",
    )
    script = read("train.py", text)
    assert all(one.path != "training_step" for one in own_code.left(script, pieces(script), as_code=True))


def test_a_collate_function_that_asks_the_engine() -> None:
    text = HUB.replace(
        "return tokenizer.pad(", "size = 8 if accelerator.is_main_process else 4\n        return tokenizer.pad("
    )
    assert gaps(text) == {
        "collate": (
            line_of("size = 8 if", text),
            "the value of accelerator.is_main_process is not written in the script",
        )
    }


def test_several_models() -> None:
    text = OWN.replace(
        "    criterion",
        "    other = Net(WIDTH, 4)\n    second = torch.optim.SGD(other.parameters(), 0.1)\n    criterion",
    ).replace("prediction = net(x)", "prediction = net(x) + other(x)")
    text = text.replace("net, optimizer, loader, eval_loader", "net, other, optimizer, loader, eval_loader")
    why = gaps(text)
    assert why["model"] == (line_of("AdamW(net", text), "the script trains several models: other, net")
    assert why["loss"] == (
        line_of("prediction = net(x)", text),
        "net is another model or loader that the engine prepares",
    )


def test_what_the_loop_changes_stays_in_the_loop() -> None:
    text = OWN.replace("    criterion", "    turn = 0\n    criterion").replace("net(x)\n", "net(x) * (1 + turn)\n")
    text = text.replace("average_weights(net)\n", "turn += 1\n", 1)
    assert gaps(text)["loss"] == (line_of("turn += 1", text), "turn changes from one micro-batch to the next")
    # What is given anew in each turn is no state.
    again = OWN.replace("    criterion", "    loss = None\n    criterion")
    assert gaps(again) == {}


def test_a_training_in_the_main_block() -> None:
    text = OWN.replace("def main():", 'if __name__ == "__main__":')
    moved = text.partition("\n\n\ndef average_weights")[0]
    assert moved != text
    script = found(moved)
    assert gaps(moved) == {}
    assert script.model.taken
    assert script.model.taken.outer[0] == "net = own.Net(own.WIDTH, 32)"
    assert script.loss.taken
    assert script.loss.taken.outer == ("criterion = nn.MSELoss()",)


ON_ONE_LINE = """\
import torch; from torch import nn
from torch.utils.data import DataLoader, TensorDataset
get_ipython().system("pip install something")
# In[2]:
def weights(model): return model.parameters()
def main():
    x = torch.randn(64, 4); y = x.sum(1, keepdim=True)
    net = nn.Linear(4, 1); net.bias.data.zero_()
    if (gpus := torch.cuda.device_count()) > 1: net = nn.DataParallel(net)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3); criterion = nn.MSELoss()
    for xb, yb in loader: optimizer.zero_grad(); out = net(xb); loss = criterion(out, yb); loss.backward(); mend(net)
if __name__ == "__main__": main()
"""


def test_statements_on_one_line_are_told_apart() -> None:
    """Each is taken without those around it, and what is left out of such a line is named."""
    made = found(ON_ONE_LINE)
    assert not [one.gap for one in made.all if one.gap]
    data, model, loss = (one.taken for one in (made.data, made.model, made.loss))
    assert data
    assert (data.outer, data.expression) == (
        ("x = torch.randn(64, 4)", "y = x.sum(1, keepdim=True)"),
        "TensorDataset(x, y)",
    )
    assert model
    assert model.outer == ("net = nn.Linear(4, 1)", "net.bias.data.zero_()"), "a rank for each GPU, no DataParallel"
    assert loss
    assert (loss.outer, loss.inner) == (
        ("criterion = nn.MSELoss()",),
        ("out = net(xb)", "loss = criterion(out, yb)"),
    )
    left = own_code.left(read("train.py", ON_ONE_LINE), made, as_code=True)
    assert [(one.path, one.place.line) for one in left] == [
        ("get_ipython", 3),
        ("DataParallel", 9),
        ("DataLoader(shuffle)", 10),
        ("loop", 12),
    ]


def test_a_part_of_a_model() -> None:
    text = OWN.replace("AdamW(net.parameters()", "AdamW(net.layers[2].parameters()")
    assert gaps(text)["model"][1] == "the optimizer gets only the parameters of net.layers[2]"


def test_deepspeeds_own_engine() -> None:
    text = f"""\
{DEFINITIONS}
import deepspeed

def main():
    net = Net(WIDTH, 4)
    engine, _, loader, _ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(), training_data=Points(8), config="ds.json"
    )
    for x, y in loader:
        loss = (engine(x) - y).square().mean()
        engine.backward(loss)
        engine.step()

main()
"""
    script = found(text.replace("\nmain()", '\nif __name__ == "__main__":\n    main()'))
    assert script.model.taken
    assert script.model.taken.outer == ("net = own.Net(own.WIDTH, 4)",)
    assert script.data.taken
    assert script.data.taken.expression == "own.Points(8)"
    assert script.model_name == "engine"
    assert script.loss.taken
    assert script.loss.taken.inner == ("loss = (engine(x) - y).square().mean()",)


def test_a_frozen_model_beside_goes_to_the_device() -> None:
    text = OWN.replace(
        "    criterion = nn.MSELoss()",
        "    teacher = Net(WIDTH, 4)\n    teacher.requires_grad_(False)\n    teacher.to(accelerator.device)",
    )
    text = text.replace("criterion(prediction, y.to(accelerator.device))", "(teacher(x) - prediction).square().mean()")
    loss = found(text).loss
    assert loss.taken
    assert loss.taken.outer == (
        "teacher = own.Net(own.WIDTH, 4)",
        "teacher.requires_grad_(False)",
        "teacher.to(device)",
    )
    assert loss.taken.from_outside == ("teacher",)


def test_a_loss_of_a_function() -> None:
    text = OWN.replace("criterion(prediction, y.to(accelerator.device))", "average_weights(prediction - y)")
    loss = found(text).loss
    assert loss.taken
    assert loss.taken.inner == ("prediction = net(x)", "loss = own.average_weights(prediction - y)")
    assert loss.taken.outer == ()


def test_a_trainer() -> None:
    text = """\
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
    from rows import Rows

    def main():
        data = Rows("train")
        model = AutoModelForSequenceClassification.from_pretrained("org/model")
        Trainer(model=model, args=TrainingArguments("out"), train_dataset=data).train()

    if __name__ == "__main__":
        main()
    """
    script = found(text)
    assert script.data.taken
    assert script.data.taken.imports == ("from rows import Rows",)
    assert script.collate.taken
    assert script.collate.taken.expression == "default_data_collator"
    padded = text.replace("train_dataset=data", "train_dataset=data, processing_class=words")
    assert gaps(padded)["collate"][1] == "it is not known what words is"
    assert script.loss.taken
    assert script.loss.taken.expression == "model(**batch).loss"
    given = text.replace("train_dataset=data", "train_dataset=data, compute_loss_func=lambda *_: 0")
    assert gaps(given)["loss"][1] == "the Trainer has its own loss"


def test_nothing_to_find() -> None:
    assert {name: why for name, (_, why) in gaps("x = 1\n").items()} == {
        "model": "it was not found in the script",
        "data": "it was not found in the script",
        "loss": "no loop over micro-batches with a backward pass was found",
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("shuffle=True", {}),
        ("shuffle=True, sampler=None, drop_last=False", {}),
        ("", {"shuffle": "shuffles the samples"}),
        ("shuffle=False", {"shuffle": "shuffles the samples"}),
        ("shuffle=True, drop_last=True", {"drop_last": "the last samples of an epoch"}),
        ("sampler=WeightedRandomSampler(weights, 9)", {"sampler": "in its own order"}),
        ("sampler=DistributedSampler(train_data, shuffle=True)", {}),
        ("shuffle=args.shuffle", {}),
        ("**options", {}),
    ],
)
def test_the_order_of_a_loader_is_named_where_the_project_has_another(arguments: str, named: dict[str, str]) -> None:
    text = OWN.replace("batch_size=4, shuffle=True", f"batch_size=4, {arguments}")
    assert f"batch_size=4, {arguments}" in text
    script = read("own.py", text)
    found = own_code.left(script, pieces(script), as_code=True)
    shown = {one.path: one.why.template for one in found if one.path.startswith("DataLoader(")}
    assert shown.keys() == {f"DataLoader({name})" for name in named}
    assert all(words in shown[f"DataLoader({name})"] for name, words in named.items())


HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 2)
loader = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8).long()), batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = "    optimizer.step(); optimizer.zero_grad()\n"
LOSSES = {
    "a sum made before the loop": """
criterion = nn.CrossEntropyLoss(reduction="sum")
for x, y in loader:
    x = x / 255
    loss = criterion(model(x), y)
    loss.backward()
""",
    "a sum that is divided": """
criterion = nn.CrossEntropyLoss(reduction="sum")
for x, y in loader:
    loss = criterion(model(x), y) / len(y)
    loss.backward()
""",
    "a sum that is only logged": """
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y)
    total = F.cross_entropy(out, y, reduction="sum")
    loss.backward()
""",
    "a loss over several lines": """
for x, y in loader:
    (F.cross_entropy(model(x), y)
     + 0.1 * model.weight.norm()).backward()
""",
    "two ways to the backward pass": """
scaler = torch.amp.GradScaler()
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    if amp:
        scaler.scale(loss).backward()
    else:
        loss.backward()
""",
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_what_it_is_made_of(name: str) -> None:
    found = pieces(read("x.py", HEAD + LOSSES[name] + STEP))
    assert found.loss.taken, found.loss.gap
    for part in (*found.loss.taken.inner, f"loss = {found.loss.taken.expression}"):
        ast.parse(part)
        assert "backward" not in part
    assert bool(found.sums) is (name == "a sum made before the loop")


def test_what_is_no_part_of_the_micro_batch_is_not_taken_for_one() -> None:
    text = (
        "def step(net, optimizer, x, y):\n    loss = F.cross_entropy(net(x), y)\n    loss.backward()\n"
        "for x, y in loader:\n    step(model, optimizer, x, y)\n"
    )
    assert pieces(read("x.py", HEAD + text)).loss.gap
    assert pieces(read("x.py", (HEAD + text).replace("net", "model"))).loss.taken


ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--files", nargs="+")
parser.add_argument("--betas", nargs=2, type=float)
parser.add_argument("--tag", action="append")
parser.add_argument("--lr", type=float)
parser.add_argument("-v", action="count")
parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
args = parser.parse_args()
use(args.files, args.betas, args.tag, args.lr)
"""


def test_arguments_are_read_as_argparse_does() -> None:
    typed = "--files a b --lr 3 --betas 0.9 0.95 --tag x --tag y"
    found = read("x.py", ARGUMENTS, arguments=typed.split())
    (call,) = [
        node for node in ast.walk(found.tree.module) if isinstance(node, ast.Call) and script_name(node) == "use"
    ]
    values = [value.value for value in map(found.values.of, call.args) if value]
    assert values == [["a", "b"], [0.9, 0.95], ["x", "y"], 3.0]
    for wrong, says in (("--lr abc", "--lr: abc is not valid"), ("-v", "only flags"), ("--amp", "only flags")):
        with pytest.raises(UsageError, match=says):
            assert read("x.py", ARGUMENTS, arguments=wrong.split()).values


def script_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


HOSTILE = """
import torch
{lines}
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD({parameters}.parameters(), lr={rate})
for x in range(3):
    loss = model(torch.zeros(1)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("lines", "parameters", "rate"),
    [
        ("", "model", f"0x{'f' * 400}"),
        ("a0 = 1\n" + "\n".join(f"a{i + 1} = a{i}" for i in range(2000)), "model", "a2000"),
        ("def part(model):\n    return model", "part(model)", "0.1"),
        ("models = [0]", "models[0]", "0.1"),
    ],
    ids=["number", "chain", "call", "item"],
)
def test_hostile_scripts_are_adopted_as_far_as_they_can_be_read(
    folder: Path, lines: str, parameters: str, rate: str
) -> None:
    (folder / "train.py").write_text(HOSTILE.format(lines=lines, parameters=parameters, rate=rate))
    imported()
    ast.parse((folder / "mine" / "task.py").read_text())


def test_numbers_of_thousands_of_digits_are_refused_and_texts_of_them_are_not(folder: Path) -> None:
    digits = "0x" + "f" * 9000
    (folder / "train.py").write_text(HOSTILE.format(lines=f"x = {digits}", parameters="model", rate="0.1"))
    imported(code=2)
    assert read("train.py", f"import torch\nx = '{digits}'\n").lines[1].startswith("x = ")
    with pytest.raises(UsageError, match=r"train\.py:2: a number of thousands of digits"):
        read("train.py", f"import torch\nx = {digits}\n")


@pytest.mark.parametrize("trains", ["trainer.fit(model, loader)", "trainer.train()"])
def test_a_trainer_without_a_main_block_does_not_train_when_it_is_imported(trains: str) -> None:
    """Each rank trained the whole script before the project began, with the script's own Trainer."""
    text = f"""\
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.body(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.ones(8, 2))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = Net()
trainer = {"L.Trainer(max_epochs=2)" if "fit" in trains else "Trainer(model=model, train_dataset=data)"}
{trains}
"""
    script = found(text)
    assert script.definitions == ("Net",)
    assert script.model.taken
    assert script.data.taken
    assert (script.model.taken.outer, script.data.taken.outer) == (
        ("model = own.Net()",),
        ("data = TensorDataset(torch.ones(8, 2))",),
    )
