"""What expressions of a script come to: a value where every path gives the same one, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from trainwiz import script
from trainwiz.script.values import Value

UNKNOWN = object()
PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"


def value_of(text: str) -> Value | None:
    """The value of what the last `use(…)` of a program is given."""
    read = script.read("train.py", text)
    return read.values.of(read.called("use")[-1].node.args[0])


ARITHMETIC = {
    "3": 3,
    "-3": -3,
    "-'a'": UNKNOWN,
    "+3": UNKNOWN,
    "2 + 3": 5,
    "7 - 3": 4,
    "4 * 8": 32,
    "7 / 2": 3.5,
    "7 // 2": 3,
    "7 % 4": 3,
    "2 ** 10": 1024,
    "10 ** 15": 10**15,
    "10 ** 16": UNKNOWN,
    "11 ** 2": UNKNOWN,
    "10 ** -15": 10**-15,
    "10 ** -16": UNKNOWN,
    "10 ** 15 + 1": UNKNOWN,
    "10 ** 15 - 1": 10**15 - 1,
    "1 / 0": UNKNOWN,
    "8 >> 1": UNKNOWN,
    "1 + 'a'": UNKNOWN,
    "'a' + 'b'": UNKNOWN,
    "True + 1": UNKNOWN,
    "1 + other": UNKNOWN,
    "other + 1": UNKNOWN,
    "int('7')": 7,
    "int(3.9)": 3,
    "int('x')": UNKNOWN,
    "int(other)": UNKNOWN,
    "int('7', 8)": UNKNOWN,
    "float(3)": 3.0,
    "str(3)": "3",
    "bool(0)": False,
    "round(3.4)": UNKNOWN,
    "1 if test else 1": 1,
    "1 if test else 2": UNKNOWN,
    "1 if test else 1.0": UNKNOWN,
    "1 if test else True": UNKNOWN,
    "1 if test else other": UNKNOWN,
    "None": None,
    "b'x'": UNKNOWN,
    "[1]": UNKNOWN,
    "{'lr': 3}['lr']": 3,
    "{'lr': 3}['wd']": UNKNOWN,
    "{'lr': 3}[0]": UNKNOWN,
    "{**rest, 'lr': 3}['lr']": UNKNOWN,
    "{'lr': 3}.get('lr')": 3,
    "{'lr': 3}.get('lr', 4)": 3,
    "{'lr': 3}.get('wd', 4)": 4,
    "{'lr': 3}.get('wd')": UNKNOWN,
    "{'lr': 3}.get()": UNKNOWN,
    "{'lr': 3}.pop('lr')": UNKNOWN,
    "dict(lr=3)['lr']": 3,
    "dict(rest, lr=3)['lr']": UNKNOWN,
    "dict(**rest, lr=3)['lr']": UNKNOWN,
    "list(lr=3)['lr']": UNKNOWN,
}


@pytest.mark.parametrize(("expression", "expected"), ARITHMETIC.items())
def test_expressions(expression: str, expected: Any) -> None:
    same(value_of(f"use({expression})\n"), expected)


def same(found: Value | None, expected: Any) -> None:
    if expected is UNKNOWN:
        assert found is None
    else:
        assert found is not None
        assert (found.value, type(found.value)) == (expected, type(expected))


NAMES = {
    "the last one above counts": ("lr = 1\nlr = 2\nuse(lr)\nlr = 3", 2),
    "one on the same line counts": ("lr = 1; use(lr)", 1),
    "under a condition, both may hold": ("lr = 1\nif test:\n    lr = 2\nuse(lr)", UNKNOWN),
    "under a condition, both are the same": ("lr = 2\nif test:\n    lr = 2\nuse(lr)", 2),
    "a with-block always runs": ("lr = 1\nwith block:\n    lr = 2\nuse(lr)", 2),
    "in a loop, a later one may hold": ("lr = 1\nfor i in rows:\n    use(lr)\n    lr = 2", UNKNOWN),
    "before all of them, any may hold": ("use(lr)\nlr = 1", 1),
    "after a loop, either may hold": ("lr = 1\nfor i in rows:\n    lr = 2\nuse(lr)", UNKNOWN),
    "unpacked one by one": ("lr, wd = 1, 2\nuse(wd)", 2),
    "unpacked from something": ("lr, wd = pair\nuse(wd)", UNKNOWN),
    "added to in a loop": ("n = 1\nfor i in rows:\n    n += 2\nuse(n)", UNKNOWN),
    "through another name": ("one = 1\ntwo = one\nuse(two)", 1),
    "in a circle": ("one = two\ntwo = one\nuse(one)", UNKNOWN),
    "of itself": ("one = one\nuse(one)", UNKNOWN),
    "added to": ("n = 1\nn += 2\nuse(n)", 3),
    "of the module, in a function": ("lr = 1\ndef train():\n    use(lr)", 1),
    "of the function": ("lr = 1\ndef train():\n    lr = 2\n    use(lr)", 2),
    "of several functions": ("def one():\n    lr = 1\ndef two():\n    use(lr)", UNKNOWN),
    "annotated": ("lr: float = 1.5\nuse(lr)", 1.5),
    "by a walrus": ("if (n := 4) > 2:\n    use(n)", 4),
    "imported": ("from settings import lr\nuse(lr)", UNKNOWN),
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    text, expected = NAMES[name]
    same(value_of(text), expected)


PARAMETERS = {
    "by position": ("def f(a, b):\n    use(b)\nf(1, 2)", 2),
    "by name": ("def f(a, b):\n    use(b)\nf(1, b=2)", 2),
    "by default": ("def f(a, b=3):\n    use(b)\nf(1)", 3),
    "by default of the first": ("def f(a=1, b=3):\n    use(a)\nf()", 1),
    "by default where nobody calls": ("def f(a, b=3):\n    use(b)", 3),
    "keyword only": ("def f(*, a=1, b=3):\n    use(b)\nf(a=2)", 3),
    "positional only": ("def f(a, b=3, /):\n    use(b)\nf(1)", 3),
    "two callers who differ": ("def f(a):\n    use(a)\nf(1)\nf(2)", UNKNOWN),
    "two callers who agree": ("def f(a):\n    use(a)\nf(1)\nf(a=1)", 1),
    "not given": ("def f(a):\n    use(a)\nf()", UNKNOWN),
    "unpacked arguments": ("def f(a=1):\n    use(a)\nf(*rest)", UNKNOWN),
    "unpacked names": ("def f(a=1):\n    use(a)\nf(**rest)", UNKNOWN),
    "handed on as a value": ("def f(a=1):\n    use(a)\nf(1)\nlaunch(f)", UNKNOWN),
    "decorated": ("@wrap\ndef f(a=1):\n    use(a)\nf(1)", UNKNOWN),
    "of a method": ("class A:\n    def f(self, a=1):\n        use(a)", UNKNOWN),
    "of a function in a function": ("def g():\n    def f(a=1):\n        use(a)\n    f(1)", UNKNOWN),
    "of one of two functions": ("def f(a=1):\n    use(a)\ndef f(a=1):\n    use(a)", UNKNOWN),
    "seen from a function inside": ("def f(a):\n    def g():\n        use(a)\n    g()\nf(4)", 4),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    text, expected = PARAMETERS[name]
    same(value_of(text), expected)


FIELDS = {
    "annotated": ("class C:\n    lr: float = 0.5\nuse(C().lr)", 0.5),
    "of an object": ("class C:\n    lr: float = 0.5\nc = C()\nuse(c.lr)", 0.5),
    "of the class": ("class C:\n    lr = 0.5\nuse(C.lr)", 0.5),
    "given": ("class C:\n    lr: float = 0.5\nc = C(lr=0.25)\nuse(c.lr)", 0.25),
    "another is given": ("class C:\n    lr: float = 0.5\n    wd: float = 0.0\nc = C(wd=0.25)\nuse(c.lr)", 0.5),
    "given by position": ("class C:\n    lr: float = 0.5\nc = C(0.25)\nuse(c.lr)", UNKNOWN),
    "unpacked": ("class C:\n    lr: float = 0.5\nc = C(**rest)\nuse(c.lr)", UNKNOWN),
    "without a default": ("class C:\n    lr: float\nc = C()\nuse(c.lr)", UNKNOWN),
    "two targets": ("class C:\n    lr = wd = 0.5\nc = C()\nuse(c.lr)", UNKNOWN),
    "field(default=)": ("class C:\n    lr: float = field(default=0.5)\nc = C()\nuse(c.lr)", 0.5),
    "Field(0.5)": ("class C:\n    lr: float = Field(0.5)\nc = C()\nuse(c.lr)", 0.5),
    "field(default_factory=)": ("class C:\n    lr: float = field(default_factory=f)\nc = C()\nuse(c.lr)", UNKNOWN),
    "set later": ("class C:\n    lr: float = 0.5\nc = C()\nc.lr = 0.25\nuse(c.lr)", 0.25),
    "of two classes": (
        "class C:\n    lr = 1\nclass D:\n    lr = 2\nif test:\n    c = C()\nelse:\n    c = D()\nuse(c.lr)",
        UNKNOWN,
    ),
    "an item that is written to": ("c = {'lr': 1}\nc['lr'] = 2\nuse(c['lr'])", UNKNOWN),
    "another item is written to": ("c = {'lr': 1}\nc['wd'] = 2\nuse(c['lr'])", 1),
    "through two names": ("c = {'lr': 1}\nd = c\nuse(d['lr'])", 1),
    "one of two dictionaries": ("c = {'lr': 1} if test else {'lr': 2}\nuse(c['lr'])", UNKNOWN),
    "one of two lacks it": ("c = {'lr': 1} if test else {}\nuse(c['lr'])", UNKNOWN),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_and_items(name: str) -> None:
    text, expected = FIELDS[name]
    same(value_of(text), expected)


OPTIONS = {
    "a default": ("'--lr', default=0.5", "lr", 0.5),
    "the long word names it": ("'-l', '--lr', default=0.5", "lr", 0.5),
    "the first long word names it": ("'--lr', '--learning_rate', default=0.5", "lr", 0.5),
    "a short word alone names it": ("'-l', default=0.5", "l", 0.5),
    "dashes become underscores": ("'--weight-decay', default=0.5", "weight_decay", 0.5),
    "dest names it": ("'--lr', dest='rate', default=0.5", "rate", 0.5),
    "the type is applied": ("'--lr', type=float, default='0.5'", "lr", 0.5),
    "the type does not touch numbers": ("'--lr', type=float, default=1", "lr", 1),
    "a type of somebody's own": ("'--lr', type=positive, default='1'", "lr", "1"),
    "a type that refuses": ("'--lr', type=int, default='x'", "lr", UNKNOWN),
    "none without default": ("'--lr'", "lr", None),
    "a flag": ("'--fast', action='store_true'", "fast", False),
    "required": ("'--lr', required=True", "lr", UNKNOWN),
    "positional": ("'lr'", "lr", UNKNOWN),
    "positional with default": ("'lr', nargs='?', default=3", "lr", 3),
    "another option": ("'--wd', default=0.5", "lr", UNKNOWN),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_command_line(name: str) -> None:
    declared, attribute, expected = OPTIONS[name]
    text = f"{PARSER}parser.add_argument({declared})\nargs = parser.parse_args()\nuse(args.{attribute})"
    same(value_of(text), expected)


def test_an_options_word_is_kept() -> None:
    declared = f"{PARSER}parser.add_argument('-l', '--lr', default=2)\nargs = parser.parse_args()\n"
    for expression in ("args.lr", "-args.lr", "args.lr * 2", "2 * args.lr", "float(args.lr)"):
        found = value_of(f"{declared}use({expression})")
        assert found is not None
        assert found.option == "--lr", expression
    assert value_of(f"{declared}lr = 2\nuse(lr)").option == ""  # type: ignore[union-attr]


NAMESPACES = {
    "args = parse()": 2,
    "args = get_args()": 2,
    "args = load_config()": UNKNOWN,
    "args, rest = parser.parse_known_args()": 2,
    "args, rest = parser.load()": UNKNOWN,
    "": 2,  # a parameter or a global of the usual name
    "args = parse()\nargs.lr = 3": 3,
}


@pytest.mark.parametrize(("made", "expected"), NAMESPACES.items())
def test_what_holds_the_options(made: str, expected: Any) -> None:
    same(value_of(f"{PARSER}parser.add_argument('--lr', default=2)\n{made}\nuse(args.lr)"), expected)


@pytest.mark.parametrize(
    ("name", "expected"), {"args": 2, "opt": 2, "hparams": 2, "self.args": 2, "model": UNKNOWN}.items()
)
def test_namespaces_by_their_names(name: str, expected: Any) -> None:
    same(value_of(f"{PARSER}parser.add_argument('--lr', default=2)\nuse({name}.lr)"), expected)


def test_an_option_that_is_declared_twice_is_unknown() -> None:
    twice = "parser.add_argument('--lr', default=2)\n" * 2
    assert value_of(f"{PARSER}{twice}args = parse()\nuse(args.lr)") is None


def test_a_chain_of_names_ends() -> None:
    def chain(n: int) -> str:
        return "".join(f"a{i} = a{i + 1}\n" for i in range(n)) + f"a{n} = 1\nuse(a0)"

    same(value_of(chain(3)), 1)
    assert value_of(chain(60)) is None
