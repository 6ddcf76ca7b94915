"""The script that this project was imported from. Its functions and classes become members of this module."""

import ast
import sys
from pathlib import Path

SCRIPT = "own.py"
"""Its path, relative to this folder."""
NAMES: tuple[str, ...] = ()
"""If importing the script would train: the definitions that are run, besides its imports. Empty: all."""


def wanted(statement: ast.stmt) -> bool:
    """Return whether a statement of the script is run."""
    if isinstance(statement, ast.Expr) and "get_ipython" in ast.unparse(statement):
        return False  # a command of a notebook
    if not NAMES or isinstance(statement, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return statement.name in NAMES
    plain = isinstance(statement, (ast.Assign, ast.AnnAssign))
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return plain and any(node.id in NAMES for node in stored)


file = Path(__file__).resolve().parent / SCRIPT
if file != Path(__file__).resolve():
    sys.path.append(str(file.parent))  # for the modules beside it
    __file__ = str(file)
    module = ast.parse(file.read_text(encoding="utf-8"), str(file))
    module.body = [statement for statement in module.body if wanted(statement)]
    # It becomes this module, so that data workers find its classes.
    exec(compile(module, str(file), "exec"))
