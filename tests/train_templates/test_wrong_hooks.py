"""Functions of task.py that are wrong: each ends the training with the function's name and what to do, or is right."""

# ruff: noqa: E501  # a case a line

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from projects import REGRESSION, make
from safetensors.torch import load_file
from test_hooks import many, records, run, said

pytestmark = pytest.mark.train

ERRORS = 'return (errors.square() * batch["weights"]).sum()'
LOAD = "return Regression(config, config.n_samples, seed=0)"
COUNT = "return batch, sum(counted)"
SUMS = 'return torch.stack((loss_sum(model, batch), batch["weights"].sum()))'
GROUPS = "\ndef parameter_groups(config, model):\n    return {}\n"
BUILT = "\ndef build_optimizers(config, model):\n    return {}\n"
REFUSED = {
    "a loss for each sample": (ERRORS, "return errors.square() * batch[\"weights\"]", "a tensor of shape (4,); it must return one"),
    "no loss": (ERRORS, "errors.square().sum()", "loss_sum in task.py returns None"),
    "a loss as a number": (ERRORS, "return float(errors.square().sum())", "loss_sum in task.py returns a float"),
    "a loss without a gradient": (ERRORS, "return errors.square().sum().detach()", "must depend on trained weights"),
    "a loss that is not a number": (ERRORS, "return errors.square().sum() * float('nan')", "update 1: the loss is nan"),
    "a loader as data": (LOAD, "return torch.utils.data.DataLoader(Regression(config, 64, seed=0))", "return its dataset"),
    "parts of data": (LOAD, "return {'train': Regression(config, 64, seed=0), 'test': []}", "a dict (train, test): return one"),
    "no data": (LOAD, "Regression(config, 64, seed=0)", "returns a NoneType, which is no data"),
    "a path as data": (LOAD, "return 'rows.jsonl'", "returns a str: return samples"),
    "data without a length": ("def __len__(self) -> int:", "def size(self) -> int:", "a Regression without a length"),
    "no count": (COUNT, "return batch", "must return a micro-batch and the count"),
    "a count that is not a number": (COUNT, "return batch, float('nan')", "must return a micro-batch and the count"),
    "a negative count": (COUNT, "return batch, -1", "must return a micro-batch and the count"),
    "padding that counts": (COUNT, "return batch, len(samples)", "counts 4 for samples that only pad"),
    "an older collate": (", counted: list[bool]) -> tuple[Batch, int]:", "):\n    counted = [1] * len(samples)", "called with (samples, counted)"),
    "no collate": ("def collate(", "def collated(", "task.py has no collate"),
    "a loss with more parameters": ("def loss_sum(model: nn.Module, batch: Batch)", "def loss_sum(model, batch, config)", "called with (model, batch)"),
    "no sums": (SUMS, "loss_sum(model, batch)", "evaluation_sums in task.py returns None"),
    "sums as a list": (SUMS, "return [1.0, 2.0]", "evaluation_sums in task.py returns a list"),
    "an evaluation that trains": (SUMS, f"model.train()\n    with torch.no_grad():\n        next(model.parameters()).mul_(0.9)\n    {SUMS}", "an evaluation changed the model (embed.weight)"),
    "an evaluation with gradients": (
        SUMS,
        f"with torch.enable_grad():\n        loss_sum(model, batch).backward()\n    {SUMS}",
        "an evaluation changed the model (embed.weight)",
    ),
    "metrics that are no numbers": ("return {\"eval_loss\": loss / count}", "return {\"eval_loss\": [loss]}", "returns a list as eval_loss"),
    "metrics as a number": ("return {\"eval_loss\": loss / count}", "return loss / count", "evaluation_metrics in task.py returns a float"),
    "outputs without metrics": ("", "\ndef evaluation_outputs(model, batch):\n    return {}\n", "without metrics"),
    "outputs as lists": (
        "",
        "\ndef metrics(outputs):\n    return {}\ndef evaluation_outputs(model, batch):\n    return {'a': [1.0]}\n",
        "evaluation_outputs in task.py returns a list",
    ),
    "a schedule that is None": ("", "\ndef schedule(config, update, total):\n    pass\n", "schedule in task.py returns None for update 0"),
    "a negative schedule": ("", "\ndef schedule(config, update, total):\n    return -0.1\n", "returns -0.1 for update 0"),
    "an older schedule": ("", "\ndef schedule(update, total):\n    return 1.0\n", "called with (config, update, total)"),
    "a hook that is a number": ("", "\nschedule = 3\n", "schedule in task.py is not a function but a int"),
    "a setting with a wrong name": ("", GROUPS.format("[{'params': model.parameters(), 'learning_rate': 1.0}]"), "sets learning_rate, which"),
    "weights as groups": ("", GROUPS.format("model.parameters()"), "parameter_groups in task.py returns a generator"),
    "no groups": ("", GROUPS.format("None"), "parameter_groups in task.py returns None"),
    "an optimizer and a schedule": (
        "",
        BUILT.format("torch.optim.SGD(model.parameters(), lr=0.1), None"),
        "build_optimizers in task.py returns a tuple",
    ),
    "no optimizer": ("", BUILT.format("None"), "build_optimizers in task.py returns None"),
    "no optimizers": ("", BUILT.format("dict()"), "build_optimizers in task.py returns no optimizer"),
}  # fmt: skip
RIGHT = {
    "a count as a tensor": (COUNT, "return batch, torch.tensor(counted).sum()"),
    "a batch that is changed": ("    errors = model(inputs)", "    batch['targets'] = batch.pop('targets')\n    errors = model(inputs)"),
    "a rate as a tensor": ("", "\ndef schedule(config, update, total):\n    return torch.ones(())\n"),
    "metrics as tensors": ("return {\"eval_loss\": loss / count}", "return {\"eval_loss\": torch.tensor(loss / count)}"),
    "groups from generators": ("", "\ndef parameter_groups(config, model):\n    yield {'params': model.parameters()}\n"),
    "a sampler of one's own": (LOAD, "return torch.utils.data.Subset(Regression(config, 80, seed=0), range(60))"),
}  # fmt: skip
PLAIN = "n_samples: int = 60"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make(tmp_path_factory.mktemp("wrong") / "project", REGRESSION)
    text = (folder / "task.py").read_text()
    text = re.sub(
        r"n_samples: int = \d+", PLAIN, re.sub(r"n_eval_samples: int = \d+", "n_eval_samples: int = 12", text)
    )
    (folder / "task.py").write_text(text)
    return folder


def changed(project: Path, folder: Path, old: str, new: str) -> Path:
    """A project whose task.py has something else in one place, or more at its end."""
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (project / "task.py").read_text()
    assert not old or old in text, old
    (folder / "task.py").write_text(text.replace(old, new) if old else text + new)
    return folder


def test_what_is_wrong_is_named(project: Path, tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(len(REFUSED))]
    made = [changed(project, at, old, new) for at, (old, new, _) in zip(folders, REFUSED.values(), strict=True)]
    runs = [run(each, tmp_path / f"{each.name}-out", 1, 4, n_steps=0, n_epochs=1) for each in made]
    codes = many(runs, tmp_path)
    for (name, (_, _, words)), each, code in zip(REFUSED.items(), runs, codes, strict=True):
        shown = said(Path(each["output"]))
        assert words in shown, (name, shown[-800:])
        assert code == [1], name


def test_what_is_unusual_trains_alike(project: Path, tmp_path: Path) -> None:
    """Also with two ranks, and with gradients that an evaluation leaves as they are."""
    cases = {"plain": (PLAIN, PLAIN), **RIGHT}
    made = [changed(project, tmp_path / str(i), *case) for i, case in enumerate(cases.values())]
    runs = [run(each, tmp_path / f"{each.name}-out", 2, 4, n_steps=0, n_epochs=2) for each in made]
    codes = many(runs, tmp_path)
    losses = []
    for name, each, code in zip(cases, runs, codes, strict=True):
        assert code == [0, 0], (name, said(Path(each["output"])))
        losses.append([row["loss"] for row in records(Path(each["output"])) if "loss" in row])
    assert {len(each) for each in losses} == {16}
    *same, _groups, _sampler = losses  # these have other weight decays, and other data
    assert all(each == pytest.approx(losses[0], rel=1e-6) for each in same)


def test_a_hook_that_nobody_calls_is_named(project: Path, tmp_path: Path) -> None:
    more = "\ndef parameters_groups(config, model):\n    return []\n\n\ndef metrics(outputs):\n    return {}\n"
    more += "\n\ndef after_updates(x):\n    return x\n\n\ndef helper(x):\n    return after_updates(x)\n"
    folder = changed(project, tmp_path / "named", "", more)
    assert many([run(folder, tmp_path / "out", 1, 8, n_steps=1)], tmp_path) == [[0]]
    shown = said(tmp_path / "out")
    assert "task.py: parameters_groups is not used; the hook is called parameter_groups" in shown
    assert "task.py: metrics is not used; it needs evaluation_outputs" in shown
    assert "after_updates" not in shown


def test_ranks_with_different_data_do_not_train(project: Path, tmp_path: Path) -> None:
    """They cut different orders: some samples were used twice, others never, without a word."""
    by_rank = "import os\n    return Regression(config, 60 - int(os.environ['RANK']), seed=0)"
    folder = changed(project, tmp_path / "uneven", LOAD, by_rank)
    assert many([run(folder, tmp_path / "out", 2, 4)], tmp_path) == [[1, 1]]
    assert "samples of the training data on each rank: 60, 59; all ranks must have the same" in said(tmp_path / "out")


def test_what_a_hook_draws_is_alike_on_all_ranks(project: Path, tmp_path: Path) -> None:
    """Noise on the weights differed from rank to rank, and the weights with it."""
    noise = "\ndef after_update(config, model, update):\n    for p in model.parameters():\n        p.add_(torch.randn_like(p))\n"
    noise += '    torch.save(model.state_dict(), f\'{config.output_dir}/{__import__("os").environ["RANK"]}.pt\')\n'
    folder = changed(project, tmp_path / "noisy", "", noise)
    assert many([run(folder, tmp_path / "out", 2, 4, n_steps=2)], tmp_path) == [[0, 0]], said(tmp_path / "out")
    import torch

    one, two = (torch.load(tmp_path / "out" / f"{rank}.pt") for rank in range(2))
    for name, weight in one.items():
        assert torch.equal(weight, two[name]), name


def test_data_that_a_task_shuffles_is_alike_on_all_ranks(project: Path, tmp_path: Path) -> None:
    """Each rank shuffled, or split off its evaluation data, in another way; and a resumed run did so again."""
    shuffled = (
        "import os, random, numpy\n    order = [*range(60)]\n    random.shuffle(order)\n"
        "    order = [int(i) for i in numpy.random.permutation(order)]\n"
        "    (Path(__file__).parent / os.environ['RANK']).write_text(str(order))\n"
        "    return torch.utils.data.Subset(Regression(config, 60, seed=0), order)"
    )
    folder = changed(project, tmp_path / "shuffled", LOAD, shuffled)
    assert many([run(folder, tmp_path / "out", 2, 4, n_steps=1)], tmp_path) == [[0, 0]], said(tmp_path / "out")
    one, two = ((folder / rank).read_text() for rank in "01")
    assert one == two


def test_weights_that_are_tied_are_saved(project: Path, tmp_path: Path) -> None:
    """safetensors refuses tensors that share memory, after the whole training."""
    tie = "self.head = nn.Linear(config.hidden_size, 1)\n        self.more = self.head"
    folder = changed(project, tmp_path / "tied", "self.head = nn.Linear(config.hidden_size, 1)", tie)
    assert many([run(folder, tmp_path / "out", 1, 8, n_steps=1)], tmp_path) == [[0]], said(tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert saved["more.weight"].tolist() == saved["head.weight"].tolist()
