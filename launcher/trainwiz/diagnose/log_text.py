"""A log as lines, without colors and control characters, each with its rank if it has a prefix that names one."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

LAST_LINES = 12
_LONGEST_LINE = 8000
"""Characters; patterns of causes take time that grows with the square of a line's length."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
# What editors, web pages and chats make of quotation marks and colons
_TYPESET = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "\xa0": " "})
_WIDE_COLON = re.compile(r"(?<=\w)：\s?")
_ESCAPED = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#39|#x27);")
_TAG = re.compile(r"</?(?:span|pre|div|code|a|p|b|br|hr|font)\b[^>\n]{0,500}>")
_DOUBLED = re.compile(r"^((?!Syntax)\w+(?:Error|Exception))\1: : ?")
"""The name of an exception that two ranks wrote at once."""
_BEGINS_TAGGED = re.compile(r"\s*</?(?:span|pre|div|code|a|p|b|br|hr|font)\b[^>\n]{0,500}>")
_TAGGED_SHARE = 0.2
"""Of the lines of a page: many have a tag at their beginning, where a program writes a time or a word."""
_LINK = re.compile(r"\[([^\]\s]+)\]\((?:https?|file|vscode[\w-]*):[^)\s]*\)")
"""What an editor makes of paths and line numbers in the output of a notebook."""
_MARKED = re.compile(r"^(?:`{1,3}|\*\*) ?(?P<inner>[^`*]+)(?:`{1,3}|\*\*)$")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# torch's excepthook and accelerate: `[rank3]: `; torchrun --tee and pods: `[default3]:`, `[trainer3]:`
_BRACKETED = re.compile(r"^(?:\S+: )?\[(?:rank|[A-Za-z_]*[A-Za-z_])(\d{1,9})\]:\s?")
# Ray's `(RayTrainWorker pid=7, ip=10.0.0.2) `, accelerate test's `stderr: `, a quotation's `> `, mpirun's
# `[1,3]<stderr>:`, pytest's `E       `
_QUOTED = re.compile(
    r"^(?:\([\w.:<>-]+ pid=\d+(?:, ip=[\d.]+)?\) ?|std(?:err|out): ?|> ?|\[\d+,(\d{1,9})\]<std(?:err|out)>: ?|"
    r"E {3,}(?=[\w.]*(?:Error|Exception): ))+"
)
# srun --label: ` 3: `
_LABELED = re.compile(r"^\s{0,4}(\d{1,5}):\s?")
# What collectors put before each line: containers and clouds a time, compose a service, kubectl a pod, pdsh a host.
_COLLECTED = (
    re.compile(  # what Python's logging and hydra put there by default: a time, a name, a level
        r"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*\]?(?: ?[-|:]? ?\[?[\w.]+\]?){0,2} ?[-|:]? ?"
        r"\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?(?: ?[-|:] ?| )"
    ),
    re.compile(
        r"^(?:time=)?\"?\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?\"?"
        r"(?: std(?:err|out) [FP])? ?"
    ),
    re.compile(r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.,]+ \[[\w./]+:\d+\] ?"),
    re.compile(r"^[\w.-]+ +\| ?"),
    re.compile(r"^\[pod/[\w./-]+\] ?"),
    re.compile(r"^(?=[\w.-]*\d)([a-z0-9][\w.-]+): (?:\1: )?"),
)
_JSON_KEYS = ("log", "message", "msg", "textPayload")
"""Under which docker and collectors (fluentd, Cloud Logging, structlog) keep the line itself."""
_JSON_AMONG = 20
_LONGEST_JSON = 4 * _LONGEST_LINE
_TRACEBACK = re.compile(r"^\s*(?:\+ Exception Group )?Traceback \(most recent call last\)")
# rich's tracebacks stand in a box, with the lines around each call.
_BOXED = (
    (re.compile(r"^╭─+ Traceback \(most recent call last\) ─+╮$"), "Traceback (most recent call last):"),
    (re.compile(r"^(?:│ )?(\S.*?):(\d+) in ([\w<>]+)\s*│?$"), r'  File "\1", line \2, in \3'),
    (re.compile(r"^(?:│ )?(\S.*?):(\d+) in\s*│?$"), r'  File "\1", line \2, in ?'),
    (re.compile(r"^│ +❱ *\d+ │[│ ]*(.*?)│?$"), r"    \1"),
    (re.compile(r"^(?:│.*|╰─+╯)$"), ""),
)
_BEGUN_BOX = re.compile(r"^(?:│ )?(?!│)\S.*?:\d+ in(?: [\w<>]+)?\s+│$")
# A traceback that is printed after a progress bar begins in the middle of a line.
_BEGINNING = re.compile(r"(?<=[^\s:─])\s*((?:\[rank\d+\]: )?Traceback \(most recent call last\))")
# torchrun's report quotes the traceback that a rank recorded, two columns further to the right.
_RECORDED = re.compile(r"^  traceback : (Traceback \(most recent call last\):)$")
# The card of `trainwiz launch`, in any language: lines that it quotes, cause and evidence, and the remedy.
_CARD_QUOTES, _CARD_ADVISES, _CARD_LINES = "  | ", "→ ", 60
# tqdm does not end the line of its bar, and what is printed next follows on the same line.
_BAR = re.compile(r"(\| *[\d.]+\w?/[\d.]+\w? \[[^\]\r\n]{0,300}\])(?=[^\s\r])")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"<]+)", line (?P<line>\d+), in (?P<function>.+)$')
_INSTALLED = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?P<package>\w+)|[/\\]lib[/\\]python\d\.\d+[/\\]|^[A-Z]:.*\\[Ll]ib\\"
)
# A traceback that is indented as a whole, and a call without its indentation
_INDENTED = re.compile(r"^(\s+)(Traceback \(most recent call last\):|(?<=\s{3})File \"[^\"<]+\", line \d+, in )")
_FLAT_CALL = re.compile(r"^File \"[^\"]+\", line \d+, in ")
# Chats and forms drop the ends of lines.
_JOINED = re.compile(r"Traceback \(most recent call last\): File \"|File \"[^\"]+\", line \d+, in .+ File \"")
_JOINED_CALL = re.compile(r" (File \"[^\"]+\", line \d+, in )")
# A traceback that another program quotes as a string: torchrun's error files, DataLoaders before torch 1.2
_QUOTED_LINES = re.compile(r"Traceback \(most recent call last\):(?=\\n)")
_ESCAPES = {"\\n": "\r", "\\'": "'", '\\"': '"'}
_ESCAPE = re.compile(r"\\[n'\"]")
_JOINED_ERROR = re.compile(r",? ((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )")
_POINTERS = re.compile(r"[\s^~]+")
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
# The end of a traceback: `package.module.SomeError: words`, or a bare `KeyboardInterrupt`.
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Full|Refused|NotFound\w*)"
    r"|UsageError|Malformed|Unsupported)(?:: .*|:?$)"
)
# Any other class may be raised, too; the last line of a traceback names it.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: .*|:?$)")
_IGNORED = re.compile(r"Exception ignored (?:in|while|on)\b")
_CALLS = 2
"""Calls at the end of a log that are a traceback though nothing announces them; in a short text, one is enough."""
_PASTED = 4
"""Lines that are looked at for an exception without its traceback."""
_SHORT = 16
_EXCERPT = 60
"""Lines; whoever keeps so few of a log keeps them for the failure that their first or their last ones name."""
_FOOT = 6
_HEAD = 2
"""Lines; a text as short as `_SHORT` may begin with the failure, whose message continues over several lines."""
_PASTED_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .*|:$)")
_SYNTAX = re.compile(r"\W{0,4}(?:SyntaxError\W{0,4}){1,9}")
"""Two ranks often write it at the same time."""
# A question that quotes the exception: `after an hour it says KeyError: 'labels'`
_NAME = r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)"
_NAMED_IN_WORDS = (
    # What a question marks as code ends with the mark; one after a space begins code of the message itself.
    re.compile(rf"`({_NAME}: [^`]{{3,}}[^`\s])(?:`|$)"),
    re.compile(rf"(?<![A-Za-z0-9_.])({_NAME}: .{{4,}})"),
)
_RAISED_IN_WORDS = re.compile(rf"(?<![A-Za-z0-9_.])(?P<exception>{_NAME})\([rf]{{0,2}}([\"'])(?P<words>.{{8,}})\2\)")
"""A question that quotes the line of code which raises."""
# Python's own words name their exception, also where the sentence around them does not.
_IMPLIED = tuple(
    (exception, re.compile(words))
    for exception, words in (
        (
            "TypeError",
            r"(?<![\w.])((?:[\w.]+\.)?\w+\(\) (?:got an unexpected keyword argument '\w+'|missing \d+ required .+))",
        ),
        ("AttributeError", r"((?:'[\w.]+' object|module '[\w.]+'|type object '[\w.]+') has no attribute '\w+')"),
        ("ModuleNotFoundError", r"(?<!: )(No module named '[\w.]+')"),
        ("ImportError", r"(cannot import name '\w+' from '[\w.]+')"),
        ("ConnectionError", r"(\('Connection aborted\.', .+\))"),
        ("OSError", r"^(\[(?:Errno|WinError) \d+\] .+)$"),
        ("AssertionError", r"(?<![\w-])assert (\S.*\S)[\s,:`'\"]+AssertionError\b"),
    )
)
_BARE_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*Error$")
_PROGRESS = re.compile(r"(?<!\d)\d{1,3}%\|[^|]*\| *[\d.]+\w?/[\d.]+\w? \[[^\]]{0,300}\] *$")
_FINISHED = re.compile(
    r"\*{5} \w+ metrics \*{5}$|\{.*'train_runtime': |\s+train_runtime\s+=|"
    r"\[[\d-]+ [\d:,.]+\] \[INFO\] \[launch\.py:\d+:main\] Process \d+ exits successfully|"
    r"I\d{4} .*worker group successfully finished\."
)
"""What a Trainer, DeepSpeed's launcher and torchrun say of a good end."""
# wandb's debug.log and debug-internal.log: `MainThread:7 [wandb_setup.py:_flush():67] `
_TRACKERS = re.compile(
    r"(?:.{0,60}\s)?[\w-]+:\d+ +\[(?:wandb_\w+|handler|sender|internal\w*|datastore|writer)\.py:\w+\(\):\d+\] "
)
_JOURNAL = 8
"""Lines at the beginning that tell a journal."""
_LAUNCHERS_OWN = re.compile(
    r"ChildFailedError|UnexpectedStatusException|AlgorithmError: |subprocess\.CalledProcessError|^CalledProcessError: |"
    r"ProcessExitedException|SignalException|"
    r"^RuntimeError: '.*' failed with returncode \d+|^RuntimeError: Step \d+ exited with non-zero status \d+"
)
# What libraries still say while a program ends.
_ASIDE = re.compile(
    r"\[[WIE]\d* ?[\d:.]* |wandb: |Set the environment variable HYDRA_FULL_ERROR|(?:INFO|WARNING|ERROR) [\d-]+ "
)
_TERMINAL = 72
"""Columns; a shorter line was not broken by a terminal."""
_OPEN = "*+/=,(["
"""After which a sentence or a formula cannot end."""
_UNNAMED = ("keyword argument", "No module named", "has no attribute", "missing 1 required positional argument")
"""Words of Python that name something next."""
_BROKEN = 3
"""Lines on which the words of an exception may go on."""
_STARTS = re.compile(r"[\[=*{]|[EWI]\d{4} |\d{4}-|\s*Traceback|During|The above|(?:INFO|WARNING|ERROR|DEBUG)\b|\s*def ")
RAISES = re.compile(r"raise (?P<exception>[\w.]+)\([rf]{0,2}([\"'])(?P<words>(?:(?!\2).){4,})")
"""A line of code that raises an exception with literal words."""
CHECKS = re.compile(r"(?<![\w-])assert (?P<condition>.{3,})")
_LAUNCHERS_LINE = re.compile(
    r"The following values were not passed to `accelerate launch`|\s+`--\w+` was set to |To avoid this warning pass in "
    r"values|\s*Traceback |\[[\d-]+ [\d:,.]+\] \[\w+\] \[launch\.py|"
    r"\[.*\] exits with return code = |[WEI]\d{4} .*torch/distributed/|srun: |slurmstepd: |[=-]+$|"
    r"  (?:time|host|rank|exitcode|error_file|traceback) +: |(?:Failures|Root Cause .*):$|\[\d+\]:$|\S+ FAILED$|"
    r"  <NO_OTHER_FAILURES>|(?:ERROR|WARNING):torch\.distributed\.elastic"
)


@dataclass(frozen=True)
class Frame:
    """One call in a traceback."""

    function: str
    """The name of the function, `<module>` at the top of a file."""
    place: str
    """`file:line`, without folders."""
    package: str | None
    """The installed package that the file belongs to, empty for Python's own; None: it is not installed."""
    source: str
    """The line of code; empty: the log does not show it."""


@dataclass(frozen=True)
class Line:
    """One line of a log."""

    number: int
    """In the file, from 1."""
    rank: int | None
    """The rank that wrote it; None: it does not say."""
    text: str
    """Without the prefix that names the rank."""


def read(text: str, *, first: int = 1) -> tuple[Line, ...]:
    """The lines of a log; `first` is the number of its first line."""
    raw: Sequence[str] = _ANSI.sub("", text).split("\n")
    raw = _collected(raw)
    labeled, page = _is_labeled(raw), _page(raw)
    lines = []
    boxed: set[int | None] = set()
    for number, words in enumerate(raw, start=first):
        # A progress bar redraws its line; each drawing becomes a line of its own, with the same number.
        for part in _BAR.sub(r"\1\r", _BEGINNING.sub(r"\r\1", _unjoined(words))).split("\r"):
            quoted = _QUOTED.match(cleaned := _plain(_CONTROL.sub("", part[:_LONGEST_LINE]), page).rstrip())
            cleaned = cleaned[quoted.end() :] if quoted else cleaned
            match = _BRACKETED.match(cleaned) or (_LABELED.match(cleaned) if labeled else None)
            rank = int(quoted[1]) if quoted and quoted[1] else None
            while match:  # torchrun --tee puts its prefix before that of the rank's own traceback
                rank, cleaned = int(match[1]), cleaned[match.end() :]
                match = _BRACKETED.match(cleaned)
            lines.append(Line(number, rank, _unboxed(cleaned, rank, boxed)))
    return tuple(line for line in _straightened(_without_report(_without_cards(lines))) if line.text)


def _unjoined(words: str) -> str:
    """A traceback that was pasted as one line, or is quoted as a string, as its lines."""
    if quoted := _QUOTED_LINES.search(words):
        before, after = words[: quoted.start()], words[quoted.start() :]
        return f"{before.rstrip(chr(39) + chr(34))}\r{_ESCAPE.sub(lambda found: _ESCAPES[found[0]], after)}"
    if not _JOINED.search(words):
        return words
    return _JOINED_ERROR.sub(r"\r\1", _JOINED_CALL.sub(r"\r  \1", words))


@dataclass(frozen=True)
class _Page:
    """What a web page made of a log. A program's own lines may hold tags and escapes, too, and stay as they are."""

    tagged: bool
    escaped: bool


def _page(raw: Sequence[str]) -> _Page:
    said = [line for line in raw if line.strip()]
    tagged = sum(bool(_BEGINS_TAGGED.match(line)) for line in said)
    calls = [line for line in said if 'File "' in line or "File &quot;" in line]
    return _Page(
        tagged=tagged >= _TAGGED_SHARE * max(1, len(said)),
        escaped=not calls or any(_ESCAPED.search(line) for line in calls),
    )


def _plain(words: str, page: _Page) -> str:
    """The words as a program prints them: pages escape them, editors replace their quotation marks, chats mark them."""
    if page.tagged:
        words = _TAG.sub("", words)
    if page.escaped and "&" in words and _ESCAPED.search(words):
        words = html.unescape(words)
    if not words.isascii():
        words = _WIDE_COLON.sub(": ", words.translate(_TYPESET))
    if "](" in words:
        words = _LINK.sub(r"\1", words)
    words = _DOUBLED.sub(r"\1: ", words)
    marked = _MARKED.match(words)
    if marked:
        return marked["inner"]
    return words.strip("`") if words.count("`") == 1 else words  # code of several lines begins or ends here


# docs/decisions/diagnosis.md: Calls that an exception ends are a traceback, with or without its first line
def _straightened(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, with tracebacks at the left edge: quotations indent them as a whole, pages drop their indentation."""
    margins: dict[int | None, str] = {}
    flat: set[int | None] = set()
    for line in lines:
        text, rank = line.text, line.rank
        margin = margins.get(rank, "")
        if text and not text.startswith(margin):
            margin = margins[rank] = ""
        if begins := _INDENTED.match(text):
            margin = margins[rank] = begins[1] if begins[2].startswith("T") else begins[1][2:]
        text = text[len(margin) :]
        if _FLAT_CALL.match(text):
            text = f"  {text}"
            flat.add(rank)
        elif rank in flat and text:
            flat.discard(rank)
            if not text.startswith((" ", "\t")) and not _EXCEPTION.match(text) and not _CHAINED.match(text):
                text = f"    {text}"
        yield line if text is line.text else replace(line, text=text)


def _collected(raw: Sequence[str]) -> Sequence[str]:
    """The lines without what a collector put around each: JSON, or words before the frames of a traceback."""
    raw = _unwrapped(raw)
    for prefix in _COLLECTED:
        starts = ((line, prefix.match(line)) for line in raw if '  File "' in line)
        rests = (_BRACKETED.sub("", line[found.end() :]) for line, found in starts if found)
        if any(rest.lstrip().startswith('File "') for rest in rests):
            raw = [prefix.sub("", line, count=1) for line in raw]
    return raw


def _unwrapped(raw: Sequence[str]) -> Sequence[str]:
    """The lines that docker and collectors of logs keep as JSON, one object a line; a script's own JSON stays."""
    if not any(line.startswith("{") for line in raw[:_JSON_AMONG]):
        return raw
    texts = [_wrapped_text(line) for line in raw]
    said = [text for line, text in zip(raw, texts, strict=True) if line.strip()]
    if sum(text is not None for text in said) < 0.9 * len(said):
        return raw
    # A text of several lines keeps the number of its object.
    return [line if text is None else text.replace("\n", "\r") for line, text in zip(raw, texts, strict=True)]


def _wrapped_text(line: str) -> str | None:
    """What a line of JSON holds of a log's line; None if it is none."""
    if not line.startswith("{") or len(line) > _LONGEST_JSON:
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = (values.get(key) for key in _JSON_KEYS)
    return next((text.rstrip("\r\n") for text in found if isinstance(text, str)), None)


def _without_cards(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines, of a card of `trainwiz launch` only those that it quotes: the others explain them already."""
    ends = -1
    for i, line in enumerate(lines):
        if line.text.startswith(_CARD_QUOTES) and i > ends:
            ahead = range(i, min(i + _CARD_LINES, len(lines)))
            ends = next((n for n in ahead if lines[n].text.startswith(_CARD_ADVISES)), ends)
        if i > ends:
            yield line
        elif line.text.startswith(_CARD_QUOTES):
            yield replace(line, text=line.text[len(_CARD_QUOTES) :])


def _without_report(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, with a traceback that torchrun's report quotes as Python prints it."""
    quoted = False
    for line in lines:
        begins = _RECORDED.match(line.text)
        quoted = bool(begins) or (quoted and line.text.startswith("  ") and not _LAUNCHERS_LINE.match(line.text))
        yield replace(line, text=begins[1] if begins else line.text[2:]) if quoted else line


def _unboxed(line: str, rank: int | None, boxed: set[int | None]) -> str:
    """The line as Python prints it, if it belongs to the box of a traceback; `boxed` holds the ranks in one."""
    if line.startswith("╭"):
        boxed.discard(rank)
        if _BOXED[0][0].match(line):
            boxed.add(rank)
    if _BEGUN_BOX.match(line):  # the head of the box was not pasted
        boxed.add(rank)
    if rank not in boxed or not (line.startswith(("╭", "│", "╰")) or line.endswith("│")):
        return line
    if line.startswith("╰"):
        boxed.discard(rank)
    found = (match.expand(plain).rstrip() for pattern, plain in _BOXED if (match := pattern.match(line)))
    return next(found, line)


def without_ignored(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines without what Python ignored while it ended, unless no other exception is there."""
    ignored: set[int] = set()
    own = False
    for start, end in _blocks(lines):
        if start and _IGNORED.match(lines[start - 1].text):
            raised = (i for i in range(start + 1, end) if not lines[i].text.startswith((" ", "\t")))
            ignored |= set(range(start - 1, next(raised, end - 1) + 1))
        else:
            own = True
    kept = [line for i, line in enumerate(lines) if i not in ignored]
    # The traceback of a rank may have been pasted without its first line.
    return kept if own or any(line.rank is not None and _PASTED_ERROR.match(line.text) for line in kept) else lines


def bare_exception(lines: Sequence[Line]) -> Line | None:
    """The line that names an exception at the end of a log that has no traceback, such as one that was pasted."""
    others = (_LAUNCHERS_LINE.match, _ASIDE.match, _LAUNCHERS_OWN.search)
    ranks = [line for line in lines if not any(found(line.text) for found in others)]
    said = [line for line in ranks[-_PASTED:] if _PASTED_ERROR.match(line.text)]
    if not said and any(line.text.startswith('  File "') for line in ranks[-2 * _PASTED :]):
        said = [line for line in ranks[-_PASTED:] if _BARE_ERROR.match(line.text)]
    said = said or [line for line in _ends(ranks) if _PASTED_ERROR.match(line.text)]
    if not said and any(_LAUNCHERS_LINE.match(line.text) for line in lines[-2 * _PASTED :]):
        said = [line for line in ranks if _PASTED_ERROR.match(line.text)]
        # TensorFlow and some handlers of logs indent the exception itself.
        bare = (replace(line, text=line.text.lstrip()) for line in ranks)
        said = said or [line for line in bare if _PASTED_ERROR.match(line.text)]
    if not said and len(lines) <= _SHORT:
        said = [
            line for line in ranks[:_HEAD] if _PASTED_ERROR.match(line.text) and line.text.endswith((",", "(", "["))
        ]
    if not said and len(lines) <= _PASTED:
        said = list(_named(ranks))
    if not said and len(lines) <= _SHORT:
        said = list(_implied(ranks[-_PASTED:]))
    if not said and is_cut(lines):  # a question's title, before a traceback that was cut
        before = lines[: _starts(lines)[-1]]
        titles = [*before[:_HEAD], *before[-_PASTED:]]
        said = list(_named(titles))
        said = said or list(_implied(titles))
    if not said and len(lines) <= _EXCERPT and not is_finished(lines):
        said = list(_quoted(ranks))
    return said[-1] if said else None


# docs/decisions/diagnosis.md: A short text is read from its title
def _quoted(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines that name an exception in the middle of their words, and no source code or warning."""
    ends = [*lines[:_HEAD], *lines[max(_HEAD, len(lines) - _FOOT) :]]
    told = [line for line in ends if not line.text.startswith("    ") and "Warning: " not in line.text]
    yield from list(_named(told)) or _implied(told)


def _named(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines that name an exception somewhere in their words, or quote the code that raises it."""
    for line in lines:
        if named := next((found for pattern in _NAMED_IN_WORDS if (found := pattern.search(line.text))), None):
            yield replace(line, text=named[1])
        elif not line.text.startswith((" ", "\t")) and (raised := _RAISED_IN_WORDS.search(line.text)):
            yield replace(line, text=f"{raised['exception']}: {raised['words']}")


def ends_bare(lines: Sequence[Line]) -> bool:
    """Whether lines without a traceback end with the name of an exception, as those of a wrong syntax do."""
    ranks = [line.text for line in lines[-_EXCERPT:] if not _LAUNCHERS_LINE.match(line.text)]
    return any(_PASTED_ERROR.match(words) or _SYNTAX.match(words) for words in ranks[-_PASTED:])


def _implied(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines that quote what only one exception says, with its name before the words."""
    for line in lines:
        found = ((exception, pattern.search(line.text)) for exception, pattern in _IMPLIED)
        said = next((f"{exception}: {match[1]}" for exception, match in found if match), "")
        if said:
            yield replace(line, text=said)


def _ends(lines: Sequence[Line]) -> list[Line]:
    """The last lines of each rank, in the order of the log."""
    own: dict[int, list[Line]] = {}
    for line in lines:
        if line.rank is not None:
            own.setdefault(line.rank, []).append(line)
    return sorted((line for said in own.values() for line in said[-_PASTED:]), key=lambda line: line.number)


def words_of(exception: Line, lines: Sequence[Line]) -> str:
    """The words of an exception, with those that follow on its next lines: after a colon, or where a terminal broke."""
    said = exception.text
    after = [line for line in lines if line.number > exception.number and line.rank == exception.rank]
    for line in after[:_BROKEN]:
        goes_on = said.endswith((":", *_UNNAMED)) or (
            len(said) >= _TERMINAL and (said[-1].isalnum() or said[-1] in _OPEN)
        )
        if not goes_on or _STARTS.match(line.text) or _LAUNCHERS_LINE.match(line.text) or is_progress(line.text):
            break
        said += f" {line.text.strip()}"
    return said


def last_words(lines: Sequence[Line]) -> tuple[str, ...]:
    """The end of the last traceback, except launchers' own, with the lines after it; without one, the last lines."""
    blocks = tuple(tracebacks(lines))
    if blocks:
        start, end = blocks[-1]
        shown = [line.text for line in lines[start:end]]
        shown += [line.text for line in lines[end : end + 3] if not _LAUNCHERS_LINE.match(line.text)]
    else:
        shown = [line.text for line in lines[: _launcher_report(lines)]]
    return tuple([words for words in shown if not _POINTERS.fullmatch(words)][-LAST_LINES:])


def last_of_script(lines: Sequence[Line]) -> str:
    """The last line that was not written by a launcher; empty if there is none."""
    own = lines[: _launcher_report(lines)]
    words = (line.text for line in reversed(own) if not _LAUNCHERS_LINE.match(line.text))
    return next((said for said in words if not is_progress(said)), "")


def is_progress(words: str) -> bool:
    """Whether the line is a progress bar's, which says nothing of how a program ended."""
    return bool(_PROGRESS.search(words))


def is_finished(lines: Sequence[Line]) -> bool:
    """Whether a Trainer of transformers says here that it came to its end."""
    return any(_FINISHED.match(line.text) for line in lines)


def is_trackers(lines: Sequence[Line]) -> bool:
    """Whether wandb wrote the whole log, of its own affairs: what it survived is no failure of the training."""
    first = [line.text for line in lines if line.text.strip() and not line.text.startswith("#")][:_JOURNAL]
    return len(first) == _JOURNAL and sum(bool(_TRACKERS.match(words)) for words in first) > _JOURNAL // 2


def exception(lines: Sequence[Line]) -> Line | None:
    """The line that names the exception with which the rank ended."""
    for start, end in reversed(tuple(tracebacks(lines))):
        for line in reversed(lines[start:end]):
            if _EXCEPTION.match(line.text):
                return line
        heads = [i for i in range(start, end) if _TRACEBACK.match(lines[i].text)]
        if not heads:  # calls alone, cut before the exception
            continue
        last = heads[-1]
        raised = next((line for line in lines[last + 1 : end] if not line.text.startswith((" ", "\t", "|"))), None)
        if raised and _RAISED.match(raised.text):
            return raised
    return None


def cut_notebook(lines: Sequence[Line]) -> str:
    """The exception that a notebook names at the head of a traceback which ends before its words; else empty."""
    heads = [i for i, line in enumerate(lines) if _BARE_ERROR.match(line.text)]
    i = heads[-1] if heads else len(lines)
    begins = i + 1 < len(lines) and _TRACEBACK.match(lines[i + 1].text)
    words = f"{lines[i].text}:" if begins else ""
    return "" if not begins or any(line.text.startswith(words) for line in lines[i + 2 :]) else lines[i].text


def is_cut(lines: Sequence[Line]) -> bool:
    """Whether the lines end inside of a traceback, before its exception."""
    blocks = tuple(tracebacks(lines))
    return bool(blocks) and blocks[-1][1] == len(lines) and exception(lines[slice(*blocks[-1])]) is None


def cut_call(lines: Sequence[Line]) -> Frame | None:
    """The last call of a traceback that ends the lines before its exception."""
    if not is_cut(lines):
        return None
    return next(reversed(frames(lines[slice(*tuple(tracebacks(lines))[-1])])), None)


def cut_raise(lines: Sequence[Line]) -> Line | None:
    """What the last line of code raises with literal words, or checks, in a traceback cut before its exception."""
    cut = cut_call(lines)
    if cut is None:
        return None
    if raised := RAISES.match(cut.source):
        return replace(lines[-1], text=f"{raised['exception']}: {raised['words']}")
    ends = [line.text.strip() for line in lines[-_BROKEN:]]
    return next((replace(lines[-1], text=words) for words in reversed(ends) if CHECKS.match(words)), None)


def checked_in_title(lines: Sequence[Line]) -> str:
    """The condition of an assertion that is named above a traceback which ends before its exception; else empty."""
    before = lines[: _starts(lines)[-1]][:_HEAD] if is_cut(lines) else ()
    found = (CHECKS.search(line.text) for line in before if not line.text.startswith(" "))
    return next((check["condition"] for check in found if check), "")


def ends_with_exception(lines: Sequence[Line]) -> bool:
    """Whether the rank raised and wrote little after the traceback."""
    ends = [end for _, end in tracebacks(lines)]
    return bool(ends) and len(lines) - ends[-1] < LAST_LINES and exception(lines) is not None


def frames(lines: Sequence[Line]) -> list[Frame]:
    """The calls in the last traceback that shows any, the outermost first; without a traceback, those in all lines."""
    blocks = [*reversed(tuple(tracebacks(lines))), (0, len(lines))]
    found = ([frame for i in range(start, end) if (frame := _frame(lines, i, end))] for start, end in blocks)
    return next((some for some in found if some), [])


def _frame(lines: Sequence[Line], i: int, end: int) -> Frame | None:
    match = _FRAME.match(lines[i].text)
    if match is None:
        return None
    installed = _INSTALLED.search(match["file"])
    name = match["file"].replace("\\", "/").rpartition("/")[2]
    code = lines[i + 1].text if i + 1 < end else ""
    return Frame(
        function=match["function"],
        place=f"{name}:{match['line']}",
        package=(installed["package"] or "") if installed else None,
        source=code.strip() if code.startswith("    ") else "",
    )


def tracebacks(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """First index, and the one after the last, of each traceback. Chained ones are one; launchers' are left out."""
    for start, end in _blocks(lines):
        if not any(_LAUNCHERS_OWN.search(line.text) for line in lines[max(start, end - 2) : end]):
            yield start, end


def _blocks(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    starts = _starts(lines)
    begun: int | None = None
    for n, start in enumerate(starts):
        limit = starts[n + 1] if n + 1 < len(starts) else len(lines)
        end = _end(lines, start, limit)
        begun = start if begun is None else begun
        is_last = n + 1 == len(starts)  # an excerpt may end before the exception that this one led to
        if not is_last and any(_CHAINED.match(line.text) for line in lines[end:limit][:3]):
            continue
        yield begun, end
        begun = None


# docs/decisions/diagnosis.md: Calls that an exception ends are a traceback, with or without its first line
def _starts(lines: Sequence[Line]) -> list[int]:
    """Where tracebacks begin; one may have been pasted without its first line, and then begins with a call."""
    starts: list[int] = []
    calls: int | None = None
    headed = False
    for i, line in enumerate(lines):
        if _TRACEBACK.match(line.text):
            starts.append(i)
            headed, calls = True, None
        elif not line.text.startswith((" ", "\t", "|")):
            if calls is not None and (_PASTED_ERROR.match(line.text) or _BARE_ERROR.match(line.text)):
                starts.append(calls)
            headed, calls = False, None
        elif not headed and calls is None and _FRAME.match(line.text):
            calls = i
    enough = _CALLS if len(lines) > _SHORT else 1
    if calls is not None and sum(line.text.startswith('  File "') for line in lines[calls:]) >= enough:
        starts.append(calls)  # cut before its exception
    return starts


def is_launchers(exception: Line) -> bool:
    """Whether a launcher raised it because of its worker."""
    return bool(_LAUNCHERS_OWN.search(exception.text))


def _launcher_report(lines: Sequence[Line]) -> int:
    """The index at which a launcher begins to report its worker's end."""
    return next((start for start, end in _blocks(lines) if _LAUNCHERS_OWN.search(lines[end - 1].text)), len(lines))


def _end(lines: Sequence[Line], start: int, limit: int) -> int:
    """The index after the exception that ends the traceback: the first line that is not indented, with what follows."""
    for i in range(start + 1, limit):
        if not lines[i].text.startswith((" ", "\t", "|")):
            end = i + 1
            # An exception may have several lines. A line that begins with a bracket, a date or a level is a log's.
            while end < limit and not re.match(
                r"[\[=*]|[EWI]\d{4} |\d{4}-|Traceback|During|The above", lines[end].text
            ):
                end += 1
            return end
    return limit


def _is_labeled(raw: Sequence[str]) -> bool:
    said = [line for line in raw if line.strip()]
    return len(said) > 1 and sum(bool(_LABELED.match(line)) for line in said) > 0.9 * len(said)
