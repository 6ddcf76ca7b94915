"""The script that this project was imported from. Its functions and classes are those of this module."""

import sys
from pathlib import Path

SCRIPT = "own.py"
"""Its path, from this folder."""

file = Path(__file__).resolve().parent / SCRIPT
if file != Path(__file__).resolve():
    sys.path.append(str(file.parent))  # for the modules beside it
    __file__ = str(file)
    # It becomes this module, so that data workers find its classes.
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"))
