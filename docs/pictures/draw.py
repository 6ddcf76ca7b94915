"""Draw trainwiz at work, light and dark: `python docs/pictures/draw.py [NAME…]`.

Terminals become SVG, pages PNG. Each picture is made by running what it shows: on a machine without a GPU, in about
five minutes, with tmux and Chromium.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image
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
BORDER = {"light": "#d0d7de", "dark": "rgba(255,255,255,0.35)"}
SCENES = {
    "plan": ["plan --model Qwen/Qwen2.5-7B-Instruct --task sft --gpus 8xH100"],
}
"""Commands by the name of their picture, where that is all they print."""
WIZARD = "trainwiz init my-chat --task sft --model Qwen/Qwen2.5-7B-Instruct --machine 4xA100-80GB"
ANSWERS = (("chats.jsonl", "Adapter"), ("", "GPUs"), ("", "Strategy"), ("", "Length"), ("", "The plan"))
"""What is typed, and the question that follows."""
PLAN_PAGE = "plan --model Qwen/Qwen2.5-7B-Instruct --task sft --gpus 8xH100 --html page.html"
LITTLE_MEMORY_KIB = 3_600_000
"""Of address space: too little for a micro-batch of 256, and enough for one of 128."""
ANY_PORT = "--set machine.main_process_port=0"
PAGE_WIDTH = 1100
_CUT_OFF = 200
"""What the browser's frame may take of a window: nothing is drawn there."""
_SECONDS = 600


def environment() -> dict[str, str]:
    """English, no network, and a `trainwiz` that is this one."""
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    found = {**os.environ, "PATH": os.pathsep.join(paths), "TRAINWIZ_LANG": "en", "HF_HUB_OFFLINE": "1"}
    return found | {"COLUMNS": str(COLUMNS), "COLORTERM": "truecolor"}


def output(command: str, folder: str) -> str:
    """What a command prints, as a person at a terminal of this width would read it."""
    done = subprocess.run(
        [sys.executable, "-m", "trainwiz", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment(),
        check=False,
    )
    return done.stdout.replace(folder, ".")


def typed(lines: Sequence[tuple[str, str]], folder: str, rows: int) -> str:
    """What a terminal shows, with its colors, after each line was typed and the words behind it were shown."""

    def tmux(*words: str) -> str:
        command = ["tmux", "-L", f"trainwiz-{os.getpid()}", "-f", "/dev/null", *words]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=environment(), check=False
        ).stdout

    shell = "env -u COLUMNS PS1='\\[\\e[1m\\]$ ' PS0='\\e[0m' bash --norc --noprofile"
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(rows), shell)
    try:
        time.sleep(1)
        for line, words in lines:
            tmux("send-keys", "-l", line)
            tmux("send-keys", "Enter")
            _wait(lambda: " ".join(tmux("capture-pane", "-p").split()), words)
        time.sleep(1)
        shown = tmux("capture-pane", "-e", "-p").replace(folder, ".").rstrip()
        shown = shown.replace(os.path.realpath(sys.prefix), ".venv")
        return re.sub(r"\n[^\n]*\$(\x1b\[\d*m)*$", "", shown)  # without the next prompt
    finally:
        tmux("kill-server")


def _wait(shown: Callable[[], str], words: str) -> None:
    until = time.monotonic() + _SECONDS
    while words not in shown():
        if time.monotonic() > until:
            raise SystemExit(f"the terminal did not show: {words}")
        time.sleep(0.2)


def draw(name: str, text: str) -> None:
    """Write the picture for both backgrounds. Its identifiers are those of the name, so that a diff is small."""
    for kind, theme in THEMES.items():
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
        console.print(Text.from_ansi(text), soft_wrap=True)
        svg = console.export_svg(title="trainwiz", theme=theme, unique_id=f"{name}-{kind}")
        # The font would come from another server; every terminal has one.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        (HERE / f"{name}-{kind}.svg").write_text(svg.replace("rgba(255,255,255,0.35)", BORDER[kind]))


def draw_page(name: str, page: Path, height: int) -> None:
    """Photograph the top of a page as readers of light and of dark pages see it."""
    browser = next((found for each in ("chromium", "google-chrome") if (found := shutil.which(each))), "chromium")
    for kind, scheme in (("light", 1), ("dark", 0)):
        shot = HERE / f"{name}-{kind}.png"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                f"--user-data-dir={page.parent / 'browser'}",
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--window-size={PAGE_WIDTH},{height + _CUT_OFF}",
                f"--screenshot={shot}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )
        with Image.open(shot) as whole:
            top = whole.crop((0, 0, PAGE_WIDTH, height))
        top.save(shot, optimize=True)


def draw_wizard(folder: str) -> None:
    """Enter, from the first question to the review."""
    turns = [
        f'{{"messages": [{{"role": "user", "content": "What is {n} + 1?"}}, '
        f'{{"role": "assistant", "content": "{n + 1}"}}]}}\n'
        for n in range(2000)
    ]
    Path(folder, "chats.jsonl").write_text("".join(turns))
    shown = typed([(f"clear; {WIZARD}", "Conversations"), *ANSWERS], folder, 40)
    draw("wizard", f"\x1b[1m$ {WIZARD}\x1b[0m\n{shown}")


def draw_launch(folder: str) -> None:
    """A training from its start to its end, and the top of its report."""
    output(f"init my-project --defaults --yes {ANY_PORT}", folder)
    shown = typed([("clear; trainwiz launch my-project", "newest checkpoint:")], folder, 60)
    draw("launch", f"\x1b[1m$ trainwiz launch my-project\x1b[0m\n{shown}")
    output("report my-project --output report.html", folder)
    draw_page("report", Path(folder, "report.html"), 715)


def draw_card(folder: str) -> None:
    """A training that needs more memory than there is, and what is said of it."""
    batch = "--set batch.real_batch_size=512 --set batch.per_device_batch_size=256"
    output(f"init my-project --defaults --yes {ANY_PORT} {batch}", folder)
    limited = f"clear; (ulimit -v {LITTLE_MEMORY_KIB}; trainwiz launch my-project)"
    lines = typed([(limited, "all files of this run")], folder, 150).splitlines()
    first = next(n for n, line in enumerate(lines) if "failed after" in line)
    draw("card", "\n".join(["\x1b[1m$ trainwiz launch my-project\x1b[0m", "…", *lines[first:]]))


def draw_plan_page(folder: str) -> None:
    """What fits, as a page."""
    output(PLAN_PAGE, folder)
    draw_page("plan-page", Path(folder, "page.html"), 900)


def draw_plan(folder: str) -> None:
    """What fits, on a terminal."""
    commands = SCENES["plan"]
    draw("plan", "\n".join(f"\x1b[1m$ trainwiz {each}\x1b[0m\n{output(each, folder)}" for each in commands))


PICTURES = {
    "plan": draw_plan,
    "plan-page": draw_plan_page,
    "wizard": draw_wizard,
    "launch": draw_launch,
    "card": draw_card,
}


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](folder)


if __name__ == "__main__":
    main()
