"""Windows of micro-batches that a script counts by hand: their size, how early they end, what is left over."""

from __future__ import annotations

import ast

import pytest

from trainwiz import script

LOOP = """
optimizer = torch.optim.SGD(p)
for {head}:
    loss = model(batch)
    loss.backward()
    if {test}:
        optimizer.step()
"""
# The head of the loop, the condition of the update: size, micro-batches too early, and whether the rest counts.
WINDOWS = {
    ("i, batch in enumerate(loader)", "(i + 1) % n == 0"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "(1 + i) % n == 0"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "i % n == 0"): ("n", -1, False),
    ("i, batch in enumerate(loader)", "(i + 2) % n == 0"): ("n", 1, False),
    ("i, batch in enumerate(loader)", "(i - 1) % n == 0"): ("n", -2, False),
    ("i, batch in enumerate(loader)", "(1 - i) % n == 0"): ("n", None, False),
    ("i, batch in enumerate(loader)", "i % n == n - 1"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "i % 4 == 3"): ("4", 0, False),
    ("i, batch in enumerate(loader)", "i % 4 == 2"): ("4", 1, False),
    ("i, batch in enumerate(loader)", "i % 4 == n - 1"): ("4", None, False),
    ("i, batch in enumerate(loader)", "i % n == m - 1"): ("n", None, False),
    ("i, batch in enumerate(loader, 1)", "i % n == 0"): ("n", 0, False),
    ("i, batch in enumerate(loader, start=1)", "i % n == 0"): ("n", 0, False),
    ("i, batch in enumerate(loader, start)", "i % n == 0"): ("n", None, False),
    ("i, batch in tqdm(enumerate(loader))", "(i + 1) % n == 0"): ("n", 0, False),
    ("i, batch in enumerate(tqdm(loader))", "(i + 1) % n == 0"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "(k + 1) % n == 0"): ("n", None, False),
    ("batch in loader", "(i + 1) % n == 0"): ("n", None, False),
    ("i in range(10)", "(i + 1) % n == 0"): ("n", None, True),
    ("i, batch in enumerate(loader)", "not (i + 1) % n"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "not (i + 1) % n != 0"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "(i + 1) % n == 0 or last"): ("n", 0, True),
    ("i, batch in enumerate(loader)", "(i + 1) % n == 0 and ready"): ("n", 0, False),
    ("i, batch in enumerate(loader)", "not ((i + 1) % n and not last)"): None,
    ("i, batch in enumerate(loader)", "(i + 1) % n != 0"): None,
    ("i, batch in enumerate(loader)", "(i + 1) % n"): None,
    ("i, batch in enumerate(loader)", "(i + 1) % n > 0"): None,
    ("i, batch in enumerate(loader)", "(i + 1) % 1 == 0"): None,
    ("i, batch in enumerate(loader)", "(i + 1) % True == 0"): ("True", 0, False),
    ("i, batch in enumerate(loader)", "(i + 1) // n == 0"): None,
    ("i, batch in enumerate(loader)", "ready"): None,
}


@pytest.mark.parametrize(("head", "test"), WINDOWS)
def test_windows(head: str, test: str) -> None:
    found = script.read("train.py", LOOP.format(head=head, test=test)).training.windows
    expected = WINDOWS[head, test]
    assert [(ast.unparse(w.size), w.early, w.tail) for w in found][:1] == ([expected] if expected else [])


REST = {
    "optimizer.step()": True,
    "if rest:\n    optimizer.step()": True,
    "optimizer.zero_grad()": True,
    "scheduler.step()": False,
    "optimizer.state_dict()": False,
    "for p in loader:\n    optimizer.step()": True,
    "def later():\n    optimizer.step()": True,
    "print(1)": False,
}


@pytest.mark.parametrize(("after", "expected"), REST.items())
def test_the_rest_of_an_epoch(after: str, expected: bool) -> None:
    text = LOOP.format(head="i, batch in enumerate(loader)", test="(i + 1) % n == 0") + after
    (window,) = script.read("train.py", text).training.windows
    assert window.tail is expected


def test_a_backward_pass_under_the_same_condition_is_no_window() -> None:
    text = "for i, batch in enumerate(loader):\n    if i % 5 == 0:\n        loss.backward()\n        optimizer.step()\n"
    assert script.read("train.py", text).training.windows == []


def test_a_named_condition() -> None:
    text = LOOP.format(head="i, batch in enumerate(loader)", test="due").replace(
        "    loss.backward()", "    due = (i + 1) % n == 0\n    loss.backward()"
    )
    (window,) = script.read("train.py", text).training.windows
    assert (ast.unparse(window.size), window.early) == ("n", 0)


BACKWARDS = {
    "loss.backward()": "Tensor",
    "(loss / 2).backward()": "Tensor",
    "loss.backward(gradient)": None,
    "backward(loss)": None,
    "scaler.scale(loss).backward()": "GradScaler",
    "scaler.scale().backward()": None,
    "accelerator.backward(loss)": "Accelerator",
    "accelerator.backward()": None,
    "engine.backward(loss)": "DeepSpeedEngine",
    "wrapped.backward(loss)": "DeepSpeedEngine",
    "other.backward(loss)": None,
    "optimizer.backward(loss)": "Optimizer",
    "fabric.backward()": "Tensor",  # Fabric's takes the loss
    "self.backward()": None,
    "super.backward()": None,
    "scheduler.backward()": None,
}


@pytest.mark.parametrize(("call", "by"), BACKWARDS.items())
def test_backward_passes(call: str, by: str | None) -> None:
    head = "import accelerate, deepspeed\n_, wrapped = 1, 2\nwrapped, _, _, _ = deepspeed.initialize()\n"
    assert [b.by for b in script.read("train.py", head + call).training.backwards] == ([by] if by else [])
