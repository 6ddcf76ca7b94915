"""Losses that divide by labels, weights or a mask: the project counts what they divide by, or says that it cannot."""

from __future__ import annotations

import ast
import textwrap

import pytest

from trainwiz.adoption import own_code
from trainwiz.script import read
from trainwiz.script.means import Mean
from trainwiz.script.pieces import pieces

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
PAD = 0
class MaskedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.MSELoss(reduction="none")
    def forward(self, predicted, wanted, mask):
        loss = (self.each(predicted, wanted) * mask.float()).sum()
        number = mask.float().sum()
        return loss / number
class SumLoss(nn.Module):
    def forward(self, predicted, wanted):
        return (predicted - wanted).abs().sum()
def masked_mean(values, mask, least=1):
    return (values * mask).sum() / max(mask.sum(), 1)
weights = torch.tensor([1.0, 2.0])
model = nn.Linear(4, 2)
loader = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8).long()), batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labeled = nn.CrossEntropyLoss(ignore_index=PAD)
weighed = nn.CrossEntropyLoss(weight=weights)
usual = nn.CrossEntropyLoss()
masked = MaskedLoss()
summed = SumLoss()
for x, y, m in loader:
"""
STEP = """
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COUNTED = {
    "loss = (F.mse_loss(model(x), y, reduction='none') * m).sum() / m.sum()": "m.sum()",
    "loss = (F.mse_loss(model(x), y, reduction='none') * m).sum() / m.sum().clamp(min=1)": "m.sum()",
    "loss = (F.mse_loss(model(x), y, reduction='none') * m).sum() / (m.sum() + 1e-8)": "m.sum()",
    "loss = torch.sum((model(x) - y) ** 2 * m).div(torch.clamp(m.sum(), min=1))": "m.sum()",
    "n = m.sum()\nloss = ((model(x) - y) ** 2 * m).sum()\nloss /= n": "m.sum()",
    "loss = labeled(model(x[:, :-1]).reshape(-1, 2), y[:, 1:].reshape(-1))": (
        "counted_labels(y[:, 1:].reshape(-1), ignored=own.PAD)"
    ),
    "loss = F.cross_entropy(model(x), y, weights)": "counted_labels(y, weight=own.weights)",
    "loss = weighed(model(x), y)": "counted_labels(y, weight=own.weights)",
    "loss = usual(model(x), y)": "counted_labels(y)",
    "loss = masked(model(x), y, m)": "over(None, None, m)",
    "loss = masked_mean((model(x) - y) ** 2, m)": "over(None, m)",
    "known = y != -1\nloss = F.mse_loss(model(x)[known], y[known])": "counted_numbers(known)",
    "each = (model(x) - y) ** 2\nloss = each[m > 0].mean()": "counted_numbers(m > 0)",
    "loss = torch.masked_select((model(x) - y) ** 2, m).mean()": "counted_numbers(m)",
}
NOT_COUNTED = {
    "a weight that the model gives": "w = model(x).detach()\nloss = ((model(x) - y) * w).sum() / w.sum()",
    "labels that are drawn": "y = y[torch.randperm(4)]\nloss = labeled(model(x), y)",
    "two means over different things": "out = model(x)\nloss = masked(out, y, m) + F.mse_loss(out, y)",
    "a mask that the loop changes in part": "m[0] = 0\nloss = ((model(x) - y) * m).sum() / m.sum()",
}
OF_SAMPLES = (
    "loss = F.mse_loss(model(x), y)",
    "loss = ((model(x) - y) ** 2).sum() / len(x)",
    "loss = ((model(x) - y) ** 2).sum() / x.size(0)",
    "loss = (((model(x) - y) ** 2 * m).sum(1) / m.sum(1)).mean()",
    "y = y[torch.randperm(4)]\nloss = usual(model(x), y)",
    "out = model(x)\nloss = usual(out, y) + usual(out, m)",
    "loss = summed(model(x), y)",
)


def mean_of(loss: str) -> Mean | None:
    return pieces(read("x.py", HEAD + textwrap.indent(loss, "    ") + STEP)).mean


def left_of(loss: str) -> dict[str, str]:
    script = read("x.py", HEAD + textwrap.indent(loss, "    ") + STEP)
    return {one.path: str(one.why) for one in own_code.left(script, pieces(script), as_code=True)}


@pytest.mark.parametrize("loss", COUNTED)
def test_what_a_mean_divides_by_is_counted(loss: str) -> None:
    mean = mean_of(loss)
    assert mean
    assert mean.over
    assert mean.over.expression == COUNTED[loss]
    for line in (*mean.over.inner, mean.over.expression):
        assert "model" not in {node.id for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Name)}
    assert "count" not in left_of(loss)


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_what_cannot_be_counted_is_named(name: str) -> None:
    mean = mean_of(NOT_COUNTED[name])
    assert mean
    assert mean.over is None
    assert "the loss divides by numbers that differ between micro-batches" in left_of(NOT_COUNTED[name])["count"]


@pytest.mark.parametrize("loss", OF_SAMPLES)
def test_a_mean_over_samples_is_left_as_it_is(loss: str) -> None:
    assert mean_of(loss) is None
    assert "count" not in left_of(loss)


PASSED = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader
from data import Rows, Net
def train_epoch(net, loader, criterion, optimizer, device):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = net(x)
        loss = criterion(out.view(-1, 7), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
def main():
    device = torch.device("cuda")
    rows = Rows("a.txt")
    pad = rows.vocabulary["<pad>"]
    net = Net().to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=pad).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(3):
        train_epoch(net, DataLoader(rows, batch_size=3), criterion, optimizer, device)
main()
"""


def test_a_loss_that_is_passed_to_the_loop_is_followed_to_what_makes_it() -> None:
    """The call that passes it was taken for a statement that changes it, and the loss for one made from the model."""
    found = pieces(read("x.py", PASSED))
    assert found.loss.taken
    assert found.loss.taken.outer[-1] == "criterion = nn.CrossEntropyLoss(ignore_index=pad).to(device)"
    assert found.mean
    assert found.mean.over
    assert found.mean.over.expression == "counted_labels(y.view(-1), ignored=pad)"
    assert found.mean.over.outer == ('rows = Rows("a.txt")', 'pad = rows.vocabulary["<pad>"]')
    assert found.mean.over.from_outside == ("pad",)
    summed = PASSED.replace("ignore_index=pad", 'reduction="sum"')
    assert pieces(read("x.py", summed)).sums is not None


def test_a_loss_of_ones_own_is_read_and_not_taken_for_a_mean_by_its_name() -> None:
    """Its class ends in Loss, as torch's do, and its forward sums."""
    script = read("x.py", HEAD + "    loss = summed(model(x), y)" + STEP)
    assert pieces(script).sums is not None
    assert pieces(read("x.py", HEAD + "    loss = masked(model(x), y, m)" + STEP)).sums is None


DIVIDED = (
    "loss = F.mse_loss(model(x), y)\nloss = loss / accumulation",
    "loss = F.mse_loss(model(x), y)\nif update_freq > 1:\n    loss = loss / update_freq",
    "loss = F.mse_loss(model(x), y)\nloss /= update_freq",
    "error = F.mse_loss(model(x), y)\nloss = error / update_freq",
    "loss = F.mse_loss(model(x), y) / update_freq",
)


@pytest.mark.parametrize("loss", DIVIDED)
def test_a_loss_is_not_divided_twice_by_the_number_of_micro_batches(loss: str) -> None:
    """On a condition, or under another name, the division stayed in the project's loss, whose loop divides, too."""
    step = """
    loss.backward()
    if (i + 1) % update_freq == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    head = HEAD.replace(
        "for x, y, m in loader:", "update_freq = accumulation = 4\nfor i, (x, y, m) in enumerate(loader):"
    )
    taken = pieces(read("x.py", head + textwrap.indent(loss, "    ") + step)).loss.taken
    assert taken
    assert "/" not in "".join((*taken.inner, taken.expression))
    assert "F.mse_loss(model(x), y)" in "".join((*taken.inner, taken.expression))


MODULE = """
import torch, lightning as L
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
class Net(L.LightningModule):
    def __init__(self, pad, weights=None, loss=None, sizes={}):
        super().__init__()
        self.save_hyperparameters()
        self.pad = pad
        self.given = loss
        self.body = nn.Linear(4, 5)
        self.labeled = nn.CrossEntropyLoss(ignore_index=pad)
        self.weighed = nn.CrossEntropyLoss(ignore_index=self.hparams.pad, weight=weights)
        self.make()
    def make(self):
        self.apart = nn.NLLLoss(ignore_index=self.hparams.pad)
    def step(self, batch, name="train"):
        x, y = batch
        return self.apart(self.body(x), y), name
    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.body(x)
        BODY
        return loss
    def on_train_epoch_end(self):
        self.pad = self.pad + 1
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
loader = DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8).long()), batch_size=4)
if __name__ == "__main__":
    L.Trainer(max_epochs=2).fit(Net(0, loss=nn.CrossEntropyLoss(ignore_index=2)), loader)
"""
OF_MODULE = {
    "loss = self.labeled(out, y)": "counted_labels(y, ignored=of_module('labeled.ignore_index'))",
    "loss = self.weighed(out.view(-1, 5), y.view(-1))": (
        "counted_labels(y.view(-1), ignored=of_module('weighed.ignore_index'), weight=of_module('weighed.weight'))"
    ),
    "loss, _ = self.step(batch)": "over(batch)",
    "loss = self.given(out, y)": "counted_labels(y, ignored=2)",
    "loss = F.cross_entropy(out, y, ignore_index=self.hparams['pad'])": (
        "counted_labels(y, ignored=of_module('hparams')['pad'])"
    ),
    "loss = F.cross_entropy(out, y, ignore_index=self.hparams.sizes.get('pad', 0))": (
        "counted_labels(y, ignored=of_module('hparams.sizes').get('pad', 0))"
    ),
    "m = y != self.hparams.pad; loss = (F.mse_loss(out, y, reduction='none') * m).sum() / m.sum()": "m.sum()",
}


@pytest.mark.parametrize("loss", OF_MODULE)
def test_what_a_module_is_made_with_counts(loss: str) -> None:
    """A parameter of `__init__` was named but not counted, and a loss that is passed to it not even named."""
    mean = pieces(read("x.py", MODULE.replace("BODY", loss))).mean
    assert mean
    assert mean.over
    assert mean.over.expression == OF_MODULE[loss]


def test_what_the_training_may_change_in_a_module_is_not_counted() -> None:
    text = MODULE.replace("BODY", "loss = F.cross_entropy(out, y, ignore_index=self.pad)")
    mean = pieces(read("x.py", text)).mean
    assert mean
    assert mean.over is None


INSIDE = """
import torch, lightning as L
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, T5ForConditionalGeneration
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.writer = AutoModelForCausalLM.from_pretrained("org/writer")
        self.answers = T5ForConditionalGeneration.from_pretrained("org/answers")
        self.judge = AutoModelForSequenceClassification.from_pretrained("org/judge")
    def forward(self, ids, mask, labels):
        return self.writer(input_ids=ids, attention_mask=mask, labels=labels)
    def answered(self, **inputs):
        found = self.answers(**inputs)
        return found
    def loss_of(self, batch):
        found = self.answers(**batch)
        return found.loss
    def training_step(self, batch, batch_idx):
        ids, mask, labels = batch
        BODY
        return {"loss": loss}
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
if __name__ == "__main__":
    L.Trainer(max_epochs=2).fit(Net(), DataLoader(list(range(8)), batch_size=4))
"""
OF_MODEL = {
    "loss = self.writer(ids, labels=labels).loss": "counted_labels((labels)[..., 1:])",
    "loss = self.writer(ids, labels=labels)[0]": "counted_labels((labels)[..., 1:])",
    "out = self.answers(input_ids=ids, labels=labels.long()); loss = out['loss']": "counted_labels(labels.long())",
    "loss = self.loss_of(batch)": "over(batch)",
    "out = self(ids, mask, labels); loss = out.loss": "over(None, None, labels)",
    "out = self(ids=ids, labels=labels, mask=None); loss = out[0]": "over(ids=None, labels=labels, mask=None)",
    "out = self(**batch); loss = out.loss": 'counted_labels(batch["labels"][..., 1:])',
    "out = self.answered(**batch); loss = out.loss": 'counted_labels(batch["labels"])',
    "out = self.judge(ids, labels=labels); loss = out.loss": None,
    "loss = self.judge(ids, labels=labels).loss": None,
}


@pytest.mark.parametrize("loss", OF_MODEL)
def test_labels_are_counted_where_a_module_holds_the_model_that_computes_the_loss(loss: str) -> None:
    """It was taken for a mean over samples: wrong where their numbers of labels differ."""
    mean = pieces(read("x.py", INSIDE.replace("BODY", loss))).mean
    assert (mean and mean.over and mean.over.expression) == OF_MODEL[loss]
    if mean and mean.over and "loss_of" in loss:
        assert 'return counted_labels(batch["labels"])' in mean.over.inner[0]


def test_labels_are_counted_where_forward_returns_the_loss() -> None:
    text = INSIDE.replace("attention_mask=mask, labels=labels)", "attention_mask=mask, labels=labels)[0]")
    mean = pieces(read("x.py", text.replace("BODY", "loss = self(ids, mask, labels)"))).mean
    assert mean
    assert mean.over
    assert mean.over.expression == "over(None, None, labels)"
    assert "return counted_labels((labels)[..., 1:])" in mean.over.inner[0]
