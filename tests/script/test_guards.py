"""Conditions around a node: which of them decide that it is reached, and which hold on some ranks only."""

from __future__ import annotations

import ast

import pytest

from trainwiz import script
from trainwiz.script import ranks
from trainwiz.script.tree import Guard

GUARDS = {
    "if a:\n    use()": ["a"],
    "if a:\n    pass\nelse:\n    use()": ["not a"],
    "if use():\n    pass": [],
    "if a:\n    if b:\n        use()": ["b", "a"],
    "if a:\n    pass\nelif b:\n    use()": ["b", "not a"],
    "x = use() if a else 1": ["a"],
    "x = 1 if a else use()": ["not a"],
    "x = 1 if use() else 2": [],
    "a and use()": ["a"],
    "a or use()": ["not a"],
    "a and b and use()": ["a", "b"],
    "use() and a": [],
    "def f():\n    if a:\n        return\n    use()": ["not a"],
    "def f():\n    if a:\n        x = 1\n    use()": [],
    "def f():\n    if a:\n        return\n    else:\n        x = 1\n    use()": [],
    "def f():\n    use()\n    if a:\n        return": [],
    "def f():\n    if a:\n        sys.exit(1)\n    use()": ["not a"],
    "def f():\n    if a:\n        os._exit(1)\n    use()": ["not a"],
    "def f():\n    if a:\n        print(1)\n    use()": [],
    "for i in x:\n    if a:\n        continue\n    use()": ["not a"],
    "for i in x:\n    if a:\n        break\n    use()": ["not a"],
    "if a:\n    raise E\nuse()": ["not a"],
    "for i in x:\n    if a:\n        continue\nuse()": [],
    "if a:\n    def f():\n        use()": [],
    "if a:\n    f = lambda: use()": [],
    "try:\n    if a:\n        raise E\nfinally:\n    use()": [],
    "try:\n    pass\nfinally:\n    if a:\n        raise E\n    use()": ["not a"],
    "while a:\n    use()": [],
}


def said(guards: list[Guard]) -> list[str]:
    return [ast.unparse(g.test) if g.positive else f"not {ast.unparse(g.test)}" for g in guards]


@pytest.mark.parametrize(("text", "expected"), GUARDS.items())
def test_guards(text: str, expected: list[str]) -> None:
    read = script.read("train.py", text)
    (use,) = read.called("use")
    assert said(read.tree.guards(use.node)) == expected


def test_guards_within_a_loop() -> None:
    read = script.read("train.py", "if a:\n    for i in x:\n        if b:\n            use()\n")
    (use,) = read.called("use")
    (loop,) = read.tree.loops(use.node)
    assert said(read.tree.guards(use.node, within=loop)) == ["b"]


LOOPS = {
    "for i in x:\n    use()": 1,
    "for i in use():\n    pass": 0,
    "for i in x:\n    pass\nelse:\n    use()": 0,
    "while use():\n    pass": 0,
    "while a:\n    use()": 1,
    "for i in x:\n    for j in y:\n        use()": 2,
    "for i in x:\n    for j in use():\n        pass": 1,
    "for i in x:\n    def f():\n        use()": 0,
    "for i in x:\n    class A:\n        a = use()": 0,
    "[use() for i in x]": 0,
}


@pytest.mark.parametrize(("text", "expected"), LOOPS.items())
def test_loops(text: str, expected: int) -> None:
    read = script.read("train.py", text)
    assert len(read.tree.loops(read.called("use")[0].node)) == expected


EXCLUSIVE = {
    "if a:\n    one()\nelse:\n    two()": True,
    "if a:\n    one()\n    two()": False,
    "if a:\n    one()\ntwo()": False,
    "if a:\n    one()\nelif b:\n    x = 1\nelse:\n    two()": True,
    "if one():\n    x = 1\nelse:\n    two()": True,
    "if one():\n    two()": False,
    "x = one() if a else two()": True,
    "x = [one(), two()] if a else 0": False,
    "if a:\n    if b:\n        one()\n    else:\n        two()": True,
    "if a:\n    if b:\n        one()\n    if b:\n        two()": False,
}


@pytest.mark.parametrize(("text", "expected"), EXCLUSIVE.items())
def test_exclusive(text: str, expected: bool) -> None:
    read = script.read("train.py", text)
    one, two = read.called("one")[0].node, read.called("two")[0].node
    assert read.tree.exclusive(one, two) is expected
    assert read.tree.exclusive(two, one) is expected


SINGLE = {
    "if rank == 0:\n    use()": True,
    "if rank != 0:\n    use()": True,
    "if rank > 0:\n    use()": True,
    "if rank < 1:\n    use()": True,
    "if rank >= 0:\n    use()": False,
    "if rank in (0, 1):\n    use()": True,
    "if 0 < rank < 3:\n    use()": False,
    "if not rank:\n    use()": True,
    "if rank:\n    use()": False,
    "if not is_main_process():\n    use()": True,
    "if self.is_world_process_zero():\n    use()": True,
    "if args.local_rank in [-1, 0]:\n    use()": True,
    "if step == 0:\n    use()": False,
    "if rank == 0 and step:\n    use()": True,
    "if rank == 0 or step:\n    use()": False,
    "if rank == 0 or rank == 1:\n    use()": True,
    "if not (rank == 0 or step):\n    use()": True,
    "if not (rank == 0 and step):\n    use()": False,
    "if rank == 0 and step:\n    pass\nelse:\n    use()": False,
    "if rank == 0 or step:\n    pass\nelse:\n    use()": True,
    "main = rank == 0\nif main:\n    use()": True,
    "main = rank == 0\nif not main:\n    use()": True,
    "main = rank == 0\nmain = step\nif main:\n    use()": False,
    "main = find(rank == 0)\nif main:\n    use()": False,
    "main = main or rank == 0\nif main:\n    use()": False,
    "chief = accelerator.is_main_process\nif chief:\n    use()": True,
    "if int(os.environ['RANK']) == 0:\n    use()": True,
    "if os.environ['LOCAL_RANK'] == '0':\n    use()": True,
    "if int(os.environ.get('SLURM_PROCID', 0)) == 0:\n    use()": True,
    "if os.environ['WORLD_SIZE'] == '1':\n    use()": False,
    "if dist.get_rank() == 0:\n    use()": True,
    "if dist.get_world_size() == 1:\n    use()": False,
    "@rank_zero_only\ndef f():\n    use()": True,
    "@accelerator.on_process(process_index=1)\ndef f():\n    use()": True,
    "@cache\ndef f():\n    use()": False,
    "def f():\n    use()\nif rank == 0:\n    f()": True,
    "def f():\n    use()\nf()\nif rank == 0:\n    f()": False,
    "def f():\n    use()": False,
    "def f():\n    use()\nif rank == 0:\n    other.f()": False,
    "class A:\n    def f(self):\n        use()\n    def g(self):\n        if rank == 0:\n            self.f()": True,
    "class A:\n    def f(self):\n        use()\n    def g(self):\n        if rank == 0:\n            self.b.f()": False,
    "def f():\n    use()\ndef g():\n    f()\nif rank == 0:\n    g()": True,
    "def f():\n    use()\ndef f():\n    use()\nif rank == 0:\n    f()": False,
}


@pytest.mark.parametrize(("text", "expected"), SINGLE.items())
def test_what_only_some_ranks_reach(text: str, expected: bool) -> None:
    read = script.read("train.py", text)
    assert read.ranks.is_single(read.called("use")[0].node) is expected


# docs/decisions/files.md: Lint walks a text once, and modules are shared
def test_every_name_that_tells_ranks_apart_has_a_stem() -> None:
    names = {*ranks.MAIN, *ranks.RANKS, *ranks._RANK_CALLS, *ranks._DECORATORS, "RANK", "LOCAL_RANK", "SLURM_PROCID"}
    names.add("log_writer")
    assert [name for name in names if not any(stem in name.lower() for stem in ranks.STEMS)] == []
    without = [s for s in ranks.STEMS if not any(s in name.lower() for name in names)]
    assert without == []
