"""One question on the terminal: a list to choose from, or a line to type into. The only user of questionary.

Everything goes to stderr: stdout is for results.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import questionary
from prompt_toolkit.application import Application, get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Always, Condition, is_done
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Layout, VerticalAlign, Window
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.screen import Screen
from prompt_toolkit.output import create_output
from prompt_toolkit.styles import Style, merge_styles
from questionary.prompts.common import InquirerControl

from trainwiz import columns
from trainwiz.language import t
from trainwiz.wizard.terminal import Action, Asked, Reply, plain, size

_ROWS_FOR_THE_REST = 9
"""Lines of the terminal for the question, its help and the hint."""
_GAP = re.compile(" {2,}")
_POINTER = 3
"""Columns before each line of a list."""
_FOR_TYPING = 12
"""Columns that should be left for typing beside a question."""
_STYLE = Style([("answer", "fg:ansigreen bold"), ("hint", "fg:ansibrightblack"), ("whole", "italic")])
"""Colors of the terminal's own: questionary's orange can hardly be read on a light one."""


def ask(asked: Asked, shown: Callable[[], None] | None = None) -> Reply:
    """Ask once. `shown` is called as soon as the question is on the screen.

    Raises `KeyboardInterrupt` on Ctrl-C, and on Ctrl-D or a lost terminal.
    """
    question = _list(asked) if asked.choices else _line(asked)
    lines = _add_below(question.application, asked)
    if shown:
        _once_rendered(question.application, shown)
    try:
        # Its own handler of SIGINT loses a Ctrl-C that comes while the terminal is not raw yet: asyncio's does not.
        reply = question.application.run(handle_sigint=False)
    except EOFError:
        raise KeyboardInterrupt from None
    found = reply if isinstance(reply, Reply) else Reply(value=str(reply))
    return replace(found, rows=0 if question.application.erase_when_done else lines.drawn)


def erase(rows: int) -> None:
    """Erase so many lines of the terminal above the cursor, which is at the beginning of one."""
    output = _stderr()
    output.cursor_up(rows)
    output.erase_down()
    output.flush()


class _Lines(HSplit):
    """A question with what is below it."""

    drawn = 0
    """Lines that it took when it was drawn last."""

    def write_to_screen(self, screen: Screen, *rest: Any, **named: Any) -> None:
        """Draw it."""
        super().write_to_screen(screen, *rest, **named)
        self.drawn = screen.height


def _line(asked: Asked) -> questionary.Question:
    bindings = KeyBindings()
    _add_actions(bindings, lambda: "", typing=True)

    @bindings.add("enter", eager=True)
    def _(event: KeyPressEvent) -> None:
        buffer = event.app.current_buffer
        typed = plain(buffer.text.strip())
        if not typed:
            buffer.text = asked.default
        event.app.exit(result=Reply(value=typed), style="class:accepted")

    default = _behind(asked.prompt, _default(asked), max(20, _room() - _FOR_TYPING))
    completion: dict[str, Any] = {"completer": _Paths(), "complete_while_typing": False} if asked.paths else {}
    return questionary.text(
        _prompt(asked), qmark=">", instruction=default, key_bindings=bindings, output=_stderr(), **completion
    )


class _Paths(Completer):
    """Completes the last of several paths with commas between."""

    def __init__(self) -> None:
        self._one = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Those of the path before the cursor."""
        path = document.text_before_cursor.rpartition(",")[2].lstrip()
        return self._one.get_completions(Document(path), complete_event)


def _list(asked: Asked) -> questionary.Question:
    lines = dict(asked.choices)
    question = questionary.select(
        _prompt(asked),
        choices=[questionary.Choice(_cut(line, _room() - _POINTER), value=value) for value, line in asked.choices],
        default=next((value for value in (asked.at, asked.default) if value in lines), None),
        qmark=">",
        pointer="»",
        instruction=_behind(asked.prompt, _default(asked), _room()),
        output=_stderr(),
        use_search_filter=asked.search,
        use_jk_keys=not asked.search,
    )
    bindings: Any = question.application.key_bindings
    _add_moves(bindings)
    if asked.search:
        control = _control(question.application)
        control.__class__ = _Searched
        searched = {}
        for value, line in asked.choices:
            name, about = asked.words.get(value, (value, ""))
            searched[value] = name.lower(), f"{name} {line} {about}".lower()
        cast(_Searched, control).words = searched
        _add_search(bindings)
    if asked.at_once:
        bindings.add("c-w", eager=True)(lambda event: _choose(event, asked.at_once))
    _add_actions(bindings, lambda: str(_control(question.application).get_pointed_at().value), typing=False)

    def choose(event: KeyPressEvent) -> None:
        control = _control(event.app)
        chosen = control.get_pointed_at()
        if control.search_filter and not control.found_in_search:
            return  # all lines are shown, and nobody pointed at this one
        # The whole line stays on the screen, without the spaces that align it with the others.
        chosen.title = _behind(asked.prompt, _GAP.sub("  ", lines[str(chosen.value)]), _room())
        _choose(event, str(chosen.value))

    bindings.add("enter", eager=True)(choose)
    return question


class _Searched(InquirerControl):
    """A list whose lines are found by more words than they show. The list that `select` makes becomes one."""

    words: Mapping[str, tuple[str, str]]
    """In lower case, by value: the name of each line, and all that it is found by."""

    @property
    def filtered_choices(self) -> list[questionary.Choice]:
        """The lines with all typed words, first those named so, the shortest name first; without any, all lines."""
        typed = plain(self.search_filter or "").lower().split()
        if not typed:
            return list(self.choices)

        def rank(choice: questionary.Choice) -> tuple[bool, int]:
            name, _ = self.words[str(choice.value)]
            named = all(word in name for word in typed)
            return not named, len(name) if named else 0

        found = [each for each in self.choices if all(word in self.words[str(each.value)][1] for word in typed)]
        self.found_in_search = bool(found)
        return sorted(found, key=rank) or list(self.choices)


def _choose(event: KeyPressEvent, value: str) -> None:
    _control(event.app).is_answered = True
    event.app.exit(result=value)


def _add_moves(bindings: KeyBindings) -> None:
    """Home, End and pages; the list does not turn around at its ends."""

    def move(event: KeyPressEvent, step: int) -> None:
        control = _control(event.app)
        control.pointed_at = max(0, min(control.choice_count - 1, control.pointed_at + step))

    page, all_lines = _list_rows() - 1, 10**6
    for key, step in (("pageup", -page), ("pagedown", page), ("home", -all_lines), ("end", all_lines)):
        bindings.add(key, eager=True)(lambda event, step=step: move(event, step))


def _add_search(bindings: KeyBindings) -> None:
    """Letters that are not on an American keyboard count as well."""

    @bindings.add(Keys.Any)
    def _(event: KeyPressEvent) -> None:
        for character in event.data:
            if character.isprintable():
                _control(event.app).add_search_character(character)  # type: ignore[arg-type]


def _prompt(asked: Asked) -> str:
    return "\n".join(columns.wrap(asked.prompt, _room(), first="> ", rest="  ")).removeprefix("> ")


def _behind(prompt: str, words: str, room: int) -> str:
    """Words on the line of the prompt if both fit, otherwise on lines of their own below it."""
    if columns.width(f"> {prompt} {words}") < room:
        return words
    return "\n" + "\n".join(columns.wrap(words, room, first="  ", rest="  "))


def _cut(line: str, room: int) -> str:
    return line if columns.width(line) < room else f"{columns.cut(line, room - 2)}…"


def _room() -> int:
    return max(20, size().columns)


def _add_actions(bindings: KeyBindings, at: Callable[[], str], *, typing: bool) -> None:
    # Within a text, ? and < are ordinary characters.
    empty = Condition(lambda: not typing or not get_app().current_buffer.text)

    def leave(event: KeyPressEvent, action: Action) -> None:
        event.app.erase_when_done = True
        event.app.exit(result=Reply(action=action, at=at()))

    # ？, ＜ and 《 are what a Chinese keyboard gives for the same keys.
    for key in ("?", "？"):
        bindings.add(key, filter=empty, eager=True)(lambda event: leave(event, Action.HELP))
    for key in ("<", "＜", "《"):
        bindings.add(key, filter=empty, eager=True)(lambda event: leave(event, Action.BACK))
    bindings.add("c-b", eager=True)(lambda event: leave(event, Action.BACK))


def _hint(asked: Asked) -> str:
    if asked.search:
        return t("Enter changes the line · typing searches · Ctrl-W writes the project · ? explains · < goes back")
    return t("Enter accepts · ? explains · < goes back · Ctrl-C quits and keeps the answers")


def _add_below(app: Application[Any], asked: Asked) -> _Lines:
    """Below the question: the whole of a line that was cut, the hint, and the gauge, drawn anew with each key."""
    # Otherwise the question takes the whole screen, with the hint far below it and the help scrolled away above it.
    for window in app.layout.find_all_windows():
        window.dont_extend_height = Always()
        if isinstance(window.content, InquirerControl):
            window.height = Dimension(max=_list_rows())
    hint = columns.wrap(_hint(asked), _room(), first="  ", rest="  ")
    rows = [_below("hint", lambda: hint, len(hint))]
    if whole := _whole_lines(asked):
        pointed_at = lambda: whole[str(_control(app).get_pointed_at().value)]  # noqa: E731
        rows.insert(0, _below("whole", pointed_at, max(map(len, whole.values()))))
    if asked.gauge:
        rows.append(_below("gauge", functools.partial(_gauge_lines, app, asked, functools.cache(asked.gauge)), 2))
    lines = _Lines([app.layout.container, *rows], align=VerticalAlign.TOP)
    app.layout = Layout(lines, focused_element=app.layout.current_window)
    app.style = merge_styles([app.style or Style([]), _STYLE])
    return lines


def _below(style: str, lines: Callable[[], list[str]], most: int) -> ConditionalContainer:
    """So many lines that are there until the answer is."""
    control = FormattedTextControl(lambda: [(f"class:{style}", "\n".join(lines()[:most]))])
    return ConditionalContainer(Window(control, height=most, dont_extend_height=True), filter=~is_done)


def _whole_lines(asked: Asked) -> dict[str, list[str]]:
    """What each line of the list says last, of those that are cut; empty where none is."""
    room = _room()
    said = {value: _GAP.split(line)[-1] for value, line in asked.choices if _cut(line, room - _POINTER) != line}
    whole = {value: columns.wrap(words, room, first="   ", rest="   ") for value, words in said.items()}
    return {value: whole.get(value, []) for value, _ in asked.choices} if whole else {}


def _gauge_lines(app: Application[Any], asked: Asked, gauge: Callable[[str], str]) -> list[str]:
    if asked.choices:
        value = str(_control(app).get_pointed_at().value)
    else:
        value = plain(app.current_buffer.text.strip()) or asked.default
    return columns.wrap(gauge(value), _room(), first="  ", rest="  ")


def _list_rows() -> int:
    return max(3, size().lines - _ROWS_FOR_THE_REST)


def _once_rendered(app: Application[Any], shown: Callable[[], None]) -> None:
    def first(_: Any) -> None:
        app.after_render -= first
        shown()

    app.after_render += first


def _control(app: Application[Any]) -> InquirerControl:
    return next(c for c in app.layout.find_all_controls() if isinstance(c, InquirerControl))


def _default(asked: Asked) -> str:
    return t("[{default}: {reason}]", default=asked.default, reason=asked.reason) if asked.reason else " "


def _stderr() -> Any:
    return create_output(stdout=sys.stderr)
