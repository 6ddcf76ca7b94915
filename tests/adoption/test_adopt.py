"""`trainwiz adopt`: a training script becomes a project with the same losses, or a mark where it could not."""

from __future__ import annotations

import ast
import importlib
import json
import shutil
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import warm

from trainwiz.cli import run
from trainwiz.script import read
from trainwiz.script.numbers import numbers
from trainwiz.script.pieces import Pieces, pieces

HERE = Path(__file__).parents[1]
SCRIPTS = HERE / "own_scripts"
CPU = ("--machine", str(HERE / "machines" / "cpu.json"))
NAMES = (
    *("by_hand", "at_top_level", "in_main_block", "with_accelerate", "with_trainer", "weighted_trainer"),
    *("with_trl", "with_trl_pairs", "with_masks", "with_lightning"),
)
TWO_RANKS = {"with_accelerate": 6, "with_trl": 3, "with_trl_pairs": 3, "with_masks": 6, "weighted_trainer": 6}
"""Those that two ranks train, too, with the size of their micro-batches. Masks and weights differ between these."""
PLANNED = ("--set", "machine.num_processes=1", "--set", "tracking.logging_steps=1", "--set", "strategy.kind=single")


def adopted(folder: Path, name: str, *arguments: str, code: int = 0) -> Path:
    """The project of one of the scripts, which lie in the folder."""
    into = folder / f"{name}-adopted"
    assert run(["adopt", str(folder / f"{name}.py"), "--yes", *CPU, *arguments]) == code
    return into


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def function(project: Path, name: str) -> str:
    node = next(
        n
        for n in ast.parse((project / "task.py").read_text()).body
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name
    )
    return ast.unparse(node)


def found(text: str) -> Pieces:
    return pieces(read("train.py", textwrap.dedent(text)))


def said(text: str) -> dict[str, Any]:
    return {one.kind: one.value for one in numbers(read("train.py", textwrap.dedent(text)))}


@pytest.mark.train
def test_the_project_trains_to_the_losses_of_the_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on one rank, and some also over two, in other micro-batches."""
    scripts = [f"{name}.py" for name in NAMES[:-1]] + ["lightning_by_hand.py"]
    monkeypatch.chdir(folder)  # where the Trainer writes
    theirs = warm.child(folder / "run_all.py", *(str(folder / script) for script in scripts))
    assert theirs.code == 0, theirs.err
    expected = {Path(script).name: losses for script, losses in json.loads(theirs.out.splitlines()[-1]).items()}
    expected["with_lightning.py"] = expected.pop("lightning_by_hand.py")
    runs = []
    for name in NAMES:
        project = adopted(folder, name, *PLANNED)
        runs.append({"project": str(project), "ranks": 1, "output": str(folder / name), "arguments": {}})
    for name, size in TWO_RANKS.items():
        shares = {"per_device_batch_size": size, "gradient_accumulation_steps": 2}
        project = folder / f"{name}-adopted"
        runs.append({"project": str(project), "ranks": 2, "arguments": shares, "output": f"{folder}/two-{name}"})
    (folder / "runs.json").write_text(json.dumps(runs))
    child = HERE / "engine_children" / "many_runs.py"
    done = warm.child(child, runs[0]["project"], str(folder / "runs.json"))
    assert done.code == 0, done.err
    for each, ended in zip(runs, json.loads(done.out.splitlines()[-1]), strict=True):
        output = Path(str(each["output"]))
        assert set(ended["codes"]) == {0}, (output / "rank-0.log").read_text()
        lines = (output / "metrics.jsonl").read_text().splitlines()
        mine = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
        wanted = expected[f"{output.name.removeprefix('two-')}.py"]
        assert len(wanted) >= 5
        # A Trainer rounds what it logs.
        assert mine == pytest.approx(wanted, rel=1e-5 if output.name != "with_trainer" else 2e-4), output.name


def test_the_optimizer_is_the_scripts_own_with_the_rate_of_the_plan(folder: Path) -> None:
    project = adopted(folder, "by_hand")
    made = "torch.optim.Adam(model.parameters(), lr=config.learning_rate, betas=(config.beta1, config.beta2))"
    assert made in function(project, "build_optimizers")
    assert "beta1: 0.8  # file: by_hand.py:31" in (project / "trainwiz.yaml").read_text()
    grouped = function(adopted(folder, "with_accelerate"), "build_optimizers")
    assert "'lr': 0.004}], lr=config.learning_rate)" in grouped
    assert "decay = [p for n, p in model.named_parameters() if 'weight' in n]" in grouped


def test_a_strategy_with_an_optimizer_of_its_own_keeps_to_the_plan(folder: Path) -> None:
    project = adopted(folder, "by_hand", "--set", "strategy.kind=deepspeed", "--set", "strategy.zero_stage=2")
    assert "build_optimizers" not in (project / "task.py").read_text()
    assert "beta1: 0.8  # file: by_hand.py:31" in (project / "trainwiz.yaml").read_text()


def test_the_real_batch_is_that_of_the_script_on_any_number_of_ranks(folder: Path) -> None:
    plan = (adopted(folder, "by_hand", "--set", "machine.num_processes=4") / "trainwiz.yaml").read_text()
    assert "real_batch_size: 32" in plan
    assert "lr_scheduler_type: constant  # file: by_hand.py:38 optimizer.step: the script has no schedule" in plan


HIDDEN = """\
import torch
def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
def main(settings):
    model = torch.nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.zeros(8, 2), **settings)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    while settings:
        train(model, loader, optimizer)
"""


def test_a_batch_and_a_length_that_are_not_found_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hidden.py").write_text(HIDDEN)
    adopted(tmp_path, "hidden", "--set", "machine.num_processes=1")
    shown = capsys.readouterr().err
    known = shown[shown.index("known only to your script") : shown.index("written to task.py")]
    assert "hidden.py:5 epochs: loss.backward()\n" in known
    assert "schedule.n_steps is 100" in known
    assert "hidden.py:9 batch_size: loader = torch.utils.data.DataLoader(" in known
    assert "batch.per_device_batch_size is" in known
    assert "optimizer (" in shown[shown.index("written to task.py") :]


def test_lightning_has_a_stand_in_where_it_is_not_installed(folder: Path) -> None:
    project = adopted(folder, "with_lightning")
    assert "return Stepped(model)" in function(project, "build_model")
    assert "training_step(batch, 0)" in function(project, "Stepped")
    assert "stand_in.for_lightning()" in (project / "own.py").read_text()
    plan = (project / "trainwiz.yaml").read_text()
    assert "gradient_clipping: 0.5" in plan
    assert "n_epochs: 6" in plan
    assert "seed: 3" in plan


def test_a_module_that_steps_by_itself_is_marked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "with_lightning.py"
    script.write_text(script.read_text().replace("        return loss\n", "        self.manual_backward(loss)\n"))
    project = adopted(folder, "with_lightning")
    assert "its training_step makes the updates itself" in " ".join(capsys.readouterr().err.split())
    assert "raise NotImplementedError" in function(project, "loss_sum")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("weight = torch", "self.seen = 1\n        weight = torch"), "compute_loss uses the Trainer itself"),
        (
            ("labels, weight=weight)", "labels, weight=weight) / num_items_in_batch"),
            "compute_loss divides by num_items_in_batch",
        ),
    ],
)
def test_a_loss_that_needs_its_trainer_is_marked(change: tuple[str, str], why: str) -> None:
    text = (SCRIPTS / "with_trainer.py").read_text()
    assert change[0] in text
    gap = found(text.replace(*change)).loss.gap
    assert gap is not None
    assert str(gap.why) == why


def test_a_trainer_that_adds_up_means_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "with_trainer.py"
    steps = "gradient_accumulation_steps=2, per_device_train_batch_size=12"
    script.write_text(script.read_text().replace("per_device_train_batch_size=24", steps))
    adopted(folder, "with_trainer", "--dry-run")
    assert "the Trainer sums this loss over the micro-batches" in " ".join(capsys.readouterr().err.split())


def test_an_optimizer_with_a_closure_is_left_to_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was taken over, and the first update ended with a missing argument."""
    script = folder / "by_hand.py"
    text = script.read_text()
    made = next(line for line in text.splitlines() if "torch.optim.Adam(" in line)
    script.write_text(
        text.replace(
            made, f"{made[: len(made) - len(made.lstrip())]}optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)"
        )
    )
    project = adopted(folder, "by_hand")
    assert "computes a batch's loss several times through a closure" in capsys.readouterr().err.replace("\n      ", " ")
    assert "build_optimizers" not in (project / "task.py").read_text()


def test_a_rate_that_is_set_by_hand_is_no_constant() -> None:
    text = (SCRIPTS / "by_hand.py").read_text()
    assert said(text)["schedule"] == "constant"
    changed = said(
        text.replace(
            "            loss.backward()",
            "            optimizer.param_groups[0]['lr'] = 0.1\n            loss.backward()",
        )
    )
    assert changed["schedule"] is None


def test_a_loader_beside_the_module() -> None:
    text = (SCRIPTS / "with_lightning.py").read_text()
    own = text.replace(
        "    data = Points()\n", "    loader = DataLoader(TensorDataset(torch.ones(8, 6)), batch_size=4)\n"
    )
    own = own.replace("datamodule=data", "loader")
    script = found(own)
    assert script.whole_loader is None
    assert script.data.taken
    assert script.data.taken.expression == "TensorDataset(torch.ones(8, 6))"


def test_arguments_of_the_script_count(folder: Path) -> None:
    project = adopted(folder, "at_top_level", "--", "--width", "8")
    assert "own.Net(8)" in function(project, "build_model")
    names = "".join(f'    "{name}",\n' for name in ("FEATURES", "Net", "device", "loss_of"))
    assert f"NAMES: tuple[str, ...] = (\n{names})" in (project / "own.py").read_text()
    adopted(folder, "at_top_level", "--", "--depth", "8", code=2)


def test_without_a_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["adopt", str(tmp_path / "none.py"), "--yes", *CPU]) == 2
    assert "none.py" in capsys.readouterr().err
    assert run(["adopt", "--yes", *CPU]) == 2


SCHEDULED = """
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, WARM = 3, 2

def warm(step):
    return min(1, (step + 1) / WARM)

def train(model, loader, optimizer, scheduler):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        BATCH

def main():
    data = TensorDataset(torch.ones(10, 2), torch.ones(10, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    MADE
    for epoch in range(1, EPOCHS + 1):
        train(model, loader, optimizer, scheduler)
        EPOCH

if __name__ == "__main__":
    main()
"""
STEP = "scheduler.step()"
SEQUENCE = """one = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    two = lr_scheduler.ExponentialLR(optimizer, 0.9)
    scheduler = lr_scheduler.SequentialLR(optimizer, [one, two], milestones=[2])"""


@pytest.mark.parametrize(
    ("made", "batch", "epoch"),
    [
        ("scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.7)", "pass", STEP),
        ("scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5], gamma=0.1)", STEP, "pass"),
        ("scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=warm)", STEP, "pass"),
        ("scheduler = lr_scheduler.LambdaLR(optimizer, lambda e: 0.5**e)", "pass", STEP),
        (
            "scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader), eta_min=0.01)",
            STEP,
            "pass",
        ),
        ("scheduler = lr_scheduler.OneCycleLR(optimizer, 2.0, 9, len(loader), cycle_momentum=False)", STEP, "pass"),
        (SEQUENCE, STEP, "pass"),
    ],
)
def test_a_schedule_of_torch_gives_the_rates_of_the_script(
    made: str, batch: str, epoch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCHEDULED.replace("MADE", made).replace("BATCH", batch).replace("EPOCH\n", f"{epoch}\n")
    (tmp_path / "job.py").write_text(text)
    rates: list[float] = []
    noted = text.replace("optimizer.step()", 'optimizer.step(); RATES.append(optimizer.param_groups[0]["lr"])')
    exec(compile(noted, "job.py", "exec"), {"__name__": "__main__", "RATES": rates})
    project = adopted(tmp_path, "job", *PLANNED)
    monkeypatch.syspath_prepend(str(project))
    for name in ("task", "own"):
        sys.modules.pop(name, None)
    task = importlib.import_module("task")
    config = SimpleNamespace(learning_rate=0.5, n_epochs=3, real_batch_size=4)
    assert [0.5 * task.schedule(config, update, 9) for update in range(9)] == pytest.approx(rates, abs=1e-12)
    assert "n_epochs: 3" in (project / "trainwiz.yaml").read_text(), "range(1, 4) counts three"
    for name in ("task", "own"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("made", "batch", "epoch"),
    [
        ("scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)", "pass", "scheduler.step(1.0)"),
        ("scheduler = lr_scheduler.OneCycleLR(optimizer, 2.0, total_steps=9)", STEP, "pass"),
        ("scheduler = lr_scheduler.StepLR(optimizer, 1)", "pass", f"if epoch > 1: {STEP}"),
        ("scheduler = lr_scheduler.StepLR(optimizer, 1)", STEP, STEP),
    ],
)
def test_a_schedule_whose_rates_are_not_known_beforehand_is_named(made: str, batch: str, epoch: str) -> None:
    text = SCHEDULED.replace("MADE", made).replace("BATCH", batch).replace("EPOCH\n", f"{epoch}\n")
    assert found(text).schedule is None
    assert said(text)["schedule"] is None


IN_A_LOOP = """
import torch
from torch import nn
def main():
    model, optimizer = nn.Linear(4, 2), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for images, labels in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            BODY
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
data = [(torch.ones(2, 2), 0)] * 9
main()
"""


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ("images = images.reshape(-1, 4)", ["images = images.reshape(-1, 4)"]),
        ("images, labels = images.flatten(1).cuda(), labels.cuda()", ["images, labels = images.flatten(1), labels"]),
        ("images = images.flatten(1); images -= 0.5", ["images = images.flatten(1)", "images -= 0.5"]),
        ("images[:, 0] = 0", ["images[:, 0] = 0"]),
        ("images.mul_(2)", ["images.mul_(2)"]),
        ("images, labels = images.to(device), labels.cuda(non_blocking=True)", []),
        ("if torch.cuda.is_available(): images = images.cuda()", []),
        ("print(labels)", []),
    ],
)
def test_what_the_loop_makes_of_a_batch_is_part_of_the_loss(body: str, taken: list[str]) -> None:
    loss = found(IN_A_LOOP.replace("BODY", body)).loss
    assert loss.taken, loss.gap
    assert list(loss.taken.inner[:-1]) == taken


def test_a_loop_within_the_loop_is_taken_as_one() -> None:
    summed = "loss = 0\n            for i in range(2): loss += nn.functional.cross_entropy(model(images[i]), labels[i])"
    text = IN_A_LOOP.replace("loss = nn.functional.cross_entropy(model(images), labels)", summed).replace(
        "BODY", "pass"
    )
    loss = found(text).loss
    assert loss.taken, loss.gap
    assert [part.split(":")[0] for part in loss.taken.inner] == ["loss = 0", "for i in range(2)"]


def test_what_is_said_in_a_dictionary_counts(folder: Path) -> None:
    """As in PyTorch's own MNIST example: `DataLoader(data, **kwargs)`."""
    spread = """
    def together(rows):
        return rows
    kwargs = {"batch_size": 24}
    kwargs.update({"shuffle": True, "collate_fn": together, "drop_last": True})
    """
    text = textwrap.dedent(spread) + IN_A_LOOP.replace("BODY", "pass").replace("batch_size=8, shuffle=True", "**kwargs")
    assert said(text)["micro_batch"] == 24
    collate = found(text).collate.taken
    assert collate
    assert collate.expression == "own.together"
    (folder / "spread.py").write_text(text)
    told = adopted(folder, "spread", *PLANNED)
    assert "real_batch_size: 24  # file: spread.py" in (told / "trainwiz.yaml").read_text()


def test_the_order_in_a_dictionary_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = IN_A_LOOP.replace("BODY", "pass").replace("shuffle=True", "**kwargs")
    (folder / "spread.py").write_text('kwargs = {"shuffle": False, "drop_last": True}\n' + text)
    adopted(folder, "spread", *PLANNED)
    told = " ".join(capsys.readouterr().err.split())
    assert "DataLoader(shuffle): False the project shuffles the samples anew" in told
    assert "DataLoader(drop_last): True the project also trains on the last samples" in told


@pytest.mark.parametrize(("ranks", "micro"), [(1, 24), (2, 12)])
def test_batch_normalization_keeps_its_micro_batch_where_one_rank_trains(
    ranks: int, micro: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = IN_A_LOOP.replace("BODY", "pass").replace("nn.Linear(4, 2)", "nn.BatchNorm1d(4)").replace("=8", "=24")
    (folder / "normed.py").write_text(text)
    several = ("--set", f"machine.num_processes={ranks}", "--set", "strategy.kind=ddp" if ranks > 1 else PLANNED[-1])
    plan = (adopted(folder, "normed", *several) / "trainwiz.yaml").read_text()
    assert "real_batch_size: 24" in plan
    assert (f"per_device_batch_size: {micro}  # file" in plan) == (ranks == 1)
    told = " ".join(capsys.readouterr().err.split())
    assert ("DataLoader(batch_size): 24" in told) == (ranks > 1)


def test_a_device_that_is_asked_for_at_the_top_is_no_obstacle() -> None:
    text = IN_A_LOOP.replace("BODY", "pass").replace("nn.Linear(4, 2)", "Net()")
    text += textwrap.dedent("""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        class Net(nn.Linear):
            def __init__(self): super().__init__(4, 2, device=device)
    """)
    model = found(text).model
    assert model.taken, model.gap
    assert model.taken.outer == ("model, optimizer = own.Net(), None",)


def test_what_the_main_block_sets_is_set_in_its_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = function(adopted(folder, "in_main_block", *PLANNED), "set_globals")
    assert "word_index[word] = i" in body
    assert [line.strip() for line in body.splitlines() if "own." in line] == [
        "own.n_features = n_features",
        "own.n_samples = n_samples",
        "own.width = width",
    ]
    told = " ".join(capsys.readouterr().err.split())
    assert "data: range(7) the loop goes over no data: all that an update uses is one sample" in told
    text = (
        (folder / "in_main_block.py")
        .read_text()
        .replace("    n_features =", "    with open(words[0]) as file:\n        n_features =")
    )
    gap = found(text).model.gap
    assert gap
    assert str(gap.why).startswith("the main block sets n_features, width, which it uses: n_features is")


@pytest.mark.parametrize(
    ("made", "told", "missing"),
    [
        ("schedulefree.AdamWScheduleFree(model.parameters(), lr=2e-5, warmup_steps=10)", 2e-5, False),
        ("make_it()", None, True),
    ],
)
def test_an_optimizer_of_another_package_is_the_scripts_own(
    made: str, told: float | None, missing: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = IN_A_LOOP.replace("BODY", "pass").replace("torch.optim.SGD(model.parameters(), lr=0.1)", made)
    (folder / "other.py").write_text("import schedulefree\nfrom elsewhere import make_it\n" + text)
    project = adopted(folder, "other", *PLANNED)
    assert said((folder / "other.py").read_text()).get("learning_rate") == told
    shown = " ".join(capsys.readouterr().err.split())
    assert ("what makes the optimizer was not found in the script" in shown) == missing
    assert ("AdamWScheduleFree" in (project / "task.py").read_text()) is not missing


PADDED = """\
import argparse
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        row = torch.randint(1, 9, (7,), generator=generator)
        row[1 + i % 6 :] = 0
        return row


class Tagger(L.LightningModule):
    def __init__(self, args, padding, weights):
        super().__init__()
        self.save_hyperparameters(args)
        self.body = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
        self.loss = nn.CrossEntropyLoss(ignore_index=padding, weight=weights)

    def training_step(self, batch, batch_idx):
        rows = batch
        return self.loss(self.body(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    args = argparse.Namespace(lr=0.1)
    model = Tagger(args, padding=0, weights=torch.arange(1.0, 10.0))
    L.Trainer(max_epochs=2).fit(model, DataLoader(Rows(), batch_size=8, shuffle=True))
"""


def test_a_module_counts_as_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches of unlike numbers of labels have the loss and the gradient of one batch."""
    (tmp_path / "tagger.py").write_text(PADDED)
    project = adopted(tmp_path, "tagger", "--set", "machine.num_processes=1")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    for name in (names := ("task", "own", "stand_in")):
        sys.modules.pop(name, None)
    task = importlib.import_module("task")
    data = task.load_train_data(task.TaskConfig())
    with pytest.raises(RuntimeError, match="batches are made before the model"):
        task.collate([data[0]], [True])
    model = task.build_model(task.TaskConfig())
    assert model.module.hparams.lr == 0.1
    model.module.training_step(torch.stack([data[i] for i in range(8)]), 0).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parts = [task.collate([data[i] for i in at], [True] * len(at)) for at in ([0, 1, 2, 3, 4], [5, 6], [7])]
    total = sum(count for _, count in parts)
    for batch, _ in parts:
        (task.loss_sum(model, batch) / total).backward()
    for one, other in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(one.grad, other)
    for name in names:
        sys.modules.pop(name, None)


BESIDE = """\
import json
import torch
from torch import nn
from torch.utils.data import DataLoader

PATH = "rows/train.json"


def rows(path=PATH):
    with open(path) as file:
        return torch.tensor(json.load(file))


if __name__ == "__main__":
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(rows(), batch_size=2, shuffle=True):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("started", [".", "code"])
def test_files_are_read_where_the_script_reads_them(
    started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relative paths begin where it is started; the project runs in its own folder, and did not find them."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text(BESIDE)
    (tmp_path / started / "rows").mkdir()
    (tmp_path / started / "rows" / "train.json").write_text("[[1.0, 2.0], [3.0, 4.0]]")
    monkeypatch.chdir(tmp_path)
    assert run(["adopt", "code/beside.py", "--into", "made", "--yes", *CPU, "--set", "machine.num_processes=1"]) == 0
    project = tmp_path / "made"
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    for name in ("task", "own"):
        sys.modules.pop(name, None)
    task = importlib.import_module("task")
    assert task.load_train_data(task.TaskConfig()).tolist() == [[1, 2], [3, 4]]
    assert Path.cwd() == project
    for name in ("task", "own"):
        sys.modules.pop(name, None)
    without = adopted(tmp_path / "code", "beside") if started == "." else None
    assert "at_start" in (project / "task.py").read_text()
    assert without is None or "at_start" not in (without / "task.py").read_text()
