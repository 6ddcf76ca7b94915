"""Draw what trainwiz prints in a terminal as SVG, light and dark: `python docs/pictures/draw.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 110
LIGHT = TerminalTheme(
    (255, 255, 255),
    (36, 41, 47),
    [
        (36, 41, 47),
        (207, 34, 46),
        (17, 99, 41),
        (149, 86, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (110, 119, 129),
    ],
    [
        (87, 96, 106),
        (164, 14, 38),
        (26, 127, 55),
        (125, 78, 0),
        (33, 139, 255),
        (164, 117, 249),
        (49, 146, 170),
        (140, 149, 159),
    ],
)
THEMES = {"light": LIGHT, "dark": SVG_EXPORT_THEME or DIMMED_MONOKAI}
SCENES = {
    "plan": ["plan --model Qwen/Qwen2.5-7B-Instruct --task sft --gpus 8xH100"],
}
"""Commands by the name of their picture."""


def output(command: str, folder: str) -> str:
    """What a command prints, as a person at a terminal of this width would read it."""
    environ = {**os.environ, "COLUMNS": str(COLUMNS), "TRAINWIZ_LANG": "en", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "trainwiz", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environ,
        check=False,
    )
    return done.stdout.replace(folder, ".")


def draw(name: str, text: str) -> None:
    """Write the picture for both backgrounds. Its identifiers are those of the name, so that a diff is small."""
    for kind, theme in THEMES.items():
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
        console.print(Text.from_ansi(text), soft_wrap=True)
        svg = console.export_svg(title="trainwiz", theme=theme, unique_id=f"{name}-{kind}")
        # The font would come from another server; every terminal has one.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        (HERE / f"{name}-{kind}.svg").write_text(svg)


def main() -> None:
    for name, commands in SCENES.items():
        with tempfile.TemporaryDirectory() as folder:
            draw(name, "\n".join(f"\x1b[1m$ trainwiz {each}\x1b[0m\n{output(each, folder)}" for each in commands))


if __name__ == "__main__":
    main()
