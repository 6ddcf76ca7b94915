"""Which function a call means where several modules of a project define one of this name."""

import ast

import pytest

from trainwiz import script
from trainwiz.script import Part
from trainwiz.script.outline import Outline


def module(name: str, text: str) -> Part:
    return script.part(name, f"{name}.py", text, Outline(ast.parse(text)))


ONE, TWO = "def save(x):\n    return 'one'\n", "def save(x):\n    return 'two'\n\ndef here():\n    save(2)\n"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("import one\none.save(1)", "one"),
        ("import two\ntwo.save(1)", "two"),
        ("import two as t\nt.save(1)", "two"),
        ("from one import save\nsave(1)", "one"),
        ("from two import save as s\ns(1)", "two"),
        ("import three\nthree.save(1)", None),
        ("import one, two\nthing.save(1)", None),
        ("from one import save\ndef save(x):\n    return 'mine'\nsave(1)", "mine"),
    ],
)
def test_the_function_of_a_call(text: str, meant: str | None) -> None:
    read = script.read("train.py", text, [module("one", ONE), module("two", TWO)])
    call = next(node for node in ast.walk(read.parts[-1].module) if isinstance(node, ast.Call))
    function = read.names.function("save", call)
    assert (function and ast.unparse(function.body[-1])) == (meant and f"return '{meant}'")


def test_a_module_calls_its_own_function_first() -> None:
    read = script.read("train.py", "import two", [module("one", ONE), module("two", TWO)])
    call = next(node for node in ast.walk(read.parts[1].module) if isinstance(node, ast.Call))
    function = read.names.function("save", call)
    assert function is not None
    assert ast.unparse(function.body[-1]) == "return 'two'"
