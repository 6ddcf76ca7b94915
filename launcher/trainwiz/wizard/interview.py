"""Asks the table of questions: defaults, help, the way back, and answers dropped when they become illegal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainwiz import columns
from trainwiz.decide.earlier_answers import carry
from trainwiz.errors import PlanError
from trainwiz.language import t, text
from trainwiz.message import Message, say
from trainwiz.questions import ADVANCED, BASIC, Question, Values, question_for
from trainwiz.wizard import first_row
from trainwiz.wizard.terminal import Action, Asked, Reply, size
from trainwiz.wizard.trail import Trail

if TYPE_CHECKING:
    from trainwiz.decide import Decided, Method, Option
    from trainwiz.plan import Plan

REVIEW = "review"
# docs/decisions/wizard.md: Columns are asked for only where their names say nothing
_OF_COLUMNS = ("data.columns", "data.image_column", "data.text_column", "data.label_column")
"""Asked right after the data, where the names of its columns do not say what they hold."""
_FIRST_KEYS = [q.key for q in BASIC]
_BEHIND_DATA = _FIRST_KEYS.index("data.train") + 1
# docs/decisions/wizard.md: Who starts the machines is asked where a scheduler is at hand
_SCHEDULER, _DEVICES = "cluster.kind", "machine.num_processes"
"""Where jobs can be submitted, the first is asked."""
_SPARED = ("strategy.kind", "batch.real_batch_size", "schedule.n_steps")
"""For each question about columns or a scheduler, the next of these is in the review only: at most eight Enters."""
_FIRST = (*_FIRST_KEYS[:_BEHIND_DATA], *_OF_COLUMNS, _SCHEDULER, *_FIRST_KEYS[_BEHIND_DATA:])
_ORDER = (*_FIRST, *(q.key for q in ADVANCED if q.key not in _FIRST), REVIEW)
_FOR_A_JOB = tuple(
    step for key in _ORDER if key != _DEVICES for step in ([key, _DEVICES] if key == _SCHEDULER else [key])
)
"""What its machines can hold decides about the adapter, which is then asked after them."""
_ABOUT_MEMORY = (
    *("strategy.kind", "batch.real_batch_size", "batch.per_device_batch_size", "batch.sequence_length"),
    *("model.adapter", "model.activation_checkpointing", "precision.mixed_precision"),
)
"""Questions that show what each answer needs of memory."""
_QUESTIONS: Mapping[str, Question] = {q.key: q for q in (*BASIC, *ADVANCED)}


# docs/decisions/wizard.md: Enter accepts a default without pinning it
@dataclass(kw_only=True)
class Interview:
    """A user's way through the questions, back and forth."""

    decide: Callable[[Mapping[str, Any]], Decided]
    """Completes answers to a plan. May wait for the machine, so that it is not called before the first question."""
    objections: Callable[[Plan], Sequence[tuple[str, Message]]]
    """What is wrong with a plan, by key."""
    save: Callable[[Mapping[str, Any], str], None]
    """Keeps the answers and the next step."""
    ask: Callable[[Asked, Callable[[], None] | None], Reply]
    """Asks once; calls the function when the question is on the screen."""
    talk: Callable[[Message | str], None]
    """Prints a line between questions."""
    gauge: Callable[[Plan], str] | None = None
    """What a plan needs of memory, in one line; empty where nobody knows."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Answers of the command line, by key; not asked."""
    answers: dict[str, Any] = field(default_factory=dict)
    """The person's answers, by key; kept when the person goes back."""
    submits: Callable[[], bool] = lambda: False
    """Whether jobs can be submitted from here to machines that this one does not seem to be one of."""
    heard: Callable[[Question, str, Values], str] = lambda _question, typed, _values: typed
    """What to read in place of what was typed."""
    shown: Callable[[], None] | None = None
    """Called when the first question is on the screen."""
    trail: Trail = field(default_factory=Trail)
    """Where each question stands on the terminal, so that the way back can erase it."""
    _told: Sequence[str] = ()
    """The last message about the data's first row."""

    def run(self, step: str = _ORDER[0], *, until: str = REVIEW) -> None:
        """Ask from one step on, up to the review or another step."""
        if not self._is_next(step):
            step = self._neighbor(step, back=False)
        while step != until:
            self.save(self.answers, step)
            if self.answer(_QUESTIONS[step]) is Action.BACK:
                step, self._told = self._neighbor(step, back=True), ()
                self.trail.back_to(step)
            else:
                if step in ("data.train", *_OF_COLUMNS):
                    self._tell_first_row()
                step = self._neighbor(step, back=False)
        self.save(self.answers, step)

    def answer(self, question: Question) -> Action | None:
        """Ask one question until its answer is legal; `Action.BACK` if the person wants to go back instead."""
        at = ""
        self.trail.begin(question.key)
        while True:
            asked, values = self._asked(question)
            reply = self.put(replace(asked, at=at))
            at = reply.at
            if reply.action is Action.HELP:
                self.talk(wrapped(Message(question.help)))
            elif reply.action is Action.BACK:
                return Action.BACK
            else:
                typed = reply.value or (asked.default if asked.proposed else "")
                accepted = not typed or (asked.choices and typed == asked.default and not asked.proposed)
                if accepted or self._accept(question, typed, values):
                    return None

    def put(self, asked: Asked) -> Reply:
        """Ask once."""
        shown, self.shown = self.shown, None
        reply = self.ask(asked, shown)
        self.trail.answered(reply.rows)
        return reply

    def go_back(self) -> None:
        """From the review to the step before it, and on from there."""
        step = self._neighbor(REVIEW, back=True)
        self.trail.back_to(step)
        self.run(step)

    def change(self, key: str) -> None:
        """Ask one question again, and then those of the columns that go with it."""
        self.answer(question_for(key))
        decided = self.decided()
        behind = {"data.train": decided.outlook.guessed, "data.text_column": {"data.label_column"}}
        for column in _OF_COLUMNS:
            if column in behind.get(key, ()) and question_for(column).when(_values(decided)):
                self.answer(question_for(column))

    def decided(self) -> Decided:
        """The plan as the answers make it."""
        return self.decide({**self.answers, **self.fixed})

    def _asked(self, question: Question) -> tuple[Asked, Mapping[str, Any]]:
        if question.first and not self.answers and not self.fixed:
            default, reason = question.first
            return _shown_as(question, default, reason, {}, {}), {}
        decided = self.decided()
        values = _values(decided)
        sizes = decided.sizes(question.key)
        # Of a length, the one that is given: updates or epochs.
        keys = (question.key, *reversed(question.sets))
        source = decided.sources[next((key for key in keys if values[key] is not None), question.key)]
        reason = say("found {what}", what=source.reason) if source.kind == "found" else source.reason
        asked = _shown_as(question, question.show(values), reason, values, sizes)
        if decided.outlook.columns and question.of_columns(values):
            asked = _of_columns(asked, decided.outlook.columns)
        if found := decided.outlook.proposed.get(question.key):
            asked = replace(asked, default=found, reason=t("guessed from the first row"), proposed=True)
        if self.gauge and question.key in _ABOUT_MEMORY:
            asked = replace(asked, gauge=lambda typed: self._gauged(question, typed, values))
        return asked, values

    def _gauged(self, question: Question, typed: str, values: Mapping[str, Any]) -> str:
        """The gauge for an answer that is not given yet; empty for one that is wrong or not complete."""
        from trainwiz.plan import parse_value

        texts = question.read(typed, values)
        if isinstance(texts, Message) or self.gauge is None:
            return ""
        given = {k: v for k, v in {**self.answers, **self.fixed}.items() if k not in question.sets}
        try:
            new = {key: parse_value(key, value) for key, value in texts.items()}
            given |= new
            return self.gauge(self.decide({**given, **self._held(question, given, values)}).plan)
        except PlanError:
            return ""

    def _accept(self, question: Question, typed: str, values: Mapping[str, Any]) -> bool:
        from trainwiz.plan import parse_value

        texts = question.read(self.heard(question, typed, values), values)
        if isinstance(texts, Message):
            return self._reject([texts])
        new: dict[str, Any] = {}
        problems: list[Message] = []
        for key, value in texts.items():
            try:
                new[key] = parse_value(key, value)
            except PlanError as error:
                problems += error.problems
        if problems:
            return self._reject(problems)
        return self._fit(question, new, values)

    def _fit(self, question: Question, new: Mapping[str, Any], values: Values) -> bool:
        """Take the new answer if the earlier ones allow it; drop later ones that it makes illegal."""
        # An answer of the command line is asked about only if the person wants to change it.
        self.fixed = {k: v for k, v in self.fixed.items() if k not in {*question.sets, *new}}
        settled = {*question.sets, *new}
        kept: dict[str, Any] = {}
        for earlier in self._before(question):
            kept |= {k: self.answers[k] for k in earlier.sets if k in self.answers and k not in question.sets}
            settled |= set(earlier.sets)
        kept |= new
        kept |= self._held(question, {**kept, **self.fixed}, values)
        try:
            decided = self.decide({**kept, **self.fixed})
        except PlanError as error:
            return self._reject(error.problems)
        against = [problem for key, problem in self.objections(decided.plan) if key in question.sets]
        if against:
            return self._reject(against)
        later = {k: v for k, v in self.answers.items() if k not in settled}
        carried, dropped = carry({**kept, **self.fixed}, later, self.decide)
        for lost in dropped:
            self.talk(
                t(
                    "{key}: your earlier answer {value} is no longer valid; the question is asked again",
                    key=lost.key,
                    value=lost.value,
                )
            )
            for problem in lost.problems:
                self.talk(wrapped(problem, "    "))
        self.answers = {**kept, **carried}
        return True

    # docs/decisions/wizard.md: Enter accepts a default without pinning it
    def _held(self, question: Question, given: Mapping[str, Any], values: Values) -> Mapping[str, Any]:
        """Choices that were accepted with Enter and would change with this later answer."""
        earlier = [each for each in self._before(question) if each.choices and self._applies(each.key, values)]
        keys = {key for each in earlier for key in each.sets} - given.keys()
        try:
            after = _values(self.decide(given)) if keys else {}
            held = {key: values[key] for key in keys if after[key] != values[key]}
            if held:
                self.decide({**given, **held})
        except PlanError:
            return {}
        return held

    def _tell_first_row(self) -> None:
        """Say what is read from the first row of own data, unless it was said."""
        lines = first_row.lines(self.decided())
        if lines != self._told:
            self._told = lines
            for line in lines:
                self.talk(line)

    @property
    def _order(self) -> tuple[str, ...]:
        return _FOR_A_JOB if self.submits() else _ORDER

    def _neighbor(self, step: str, *, back: bool) -> str:
        decided = self.decided()
        values, guessed = _values(decided), decided.outlook.guessed
        order = self._order
        at = order.index(step)
        ahead = reversed(order[:at]) if back else iter(order[at + 1 :])
        return next((s for s in ahead if self._applies(s, values, guessed)), step)

    def _is_next(self, step: str) -> bool:
        """Whether an interview can begin there; the first question needs no plan."""
        if not (self.answers or self.fixed):
            return self._applies(step, {})
        decided = self.decided()
        return self._applies(step, _values(decided), decided.outlook.guessed)

    def _applies(self, step: str, values: Values, guessed: frozenset[str] = frozenset()) -> bool:
        if step == REVIEW:
            return True
        question = _QUESTIONS[step]
        asked = step in guessed if question.gate == "advanced" else question.asked(values)
        if step == _SCHEDULER:
            asked = self.submits()
        if step in _SPARED:
            asked = asked and step not in self._spared(values, guessed)
        return asked and self._open(step, values)

    # docs/decisions/wizard.md: Columns are asked for only where their names say nothing
    def _spared(self, values: Values, guessed: frozenset[str]) -> Sequence[str]:
        """Questions that are left to the review, since others are asked in their place."""
        columns_asked = [
            key for key in _OF_COLUMNS if (key in guessed or key in self.answers) and self._open(key, values)
        ]
        usual = [key for key in _SPARED if _QUESTIONS[key].asked(values) and _QUESTIONS[key].when(values)]
        return usual[: len(columns_asked) + self.submits()]

    def _open(self, key: str, values: Values) -> bool:
        """Whether a question has a meaning for this plan, and the command line did not answer it."""
        question = _QUESTIONS[key]
        return question.when(values) and not set(question.sets) & self.fixed.keys()

    def _before(self, question: Question) -> Iterator[Question]:
        order = self._order
        for step in order[: order.index(question.key)]:
            if step in _QUESTIONS:
                yield _QUESTIONS[step]

    def _reject(self, problems: Sequence[Message]) -> bool:
        for problem in problems:
            self.talk(wrapped(problem, "  ✗ "))
        return False


def _values(decided: Decided) -> Values:
    # Needed from the second question on; the first one does not wait for pydantic.
    from trainwiz.plan import flat

    return flat(decided.plan)


def wrapped(words: Message | str, mark: str = "  ") -> str:
    """Words in lines that fit the terminal."""
    room = min(size().columns, 100)
    return "\n".join(columns.wrap(text(words), room, first=mark, rest=" " * len(mark)))


def _shown_as(question: Question, default: str, reason: Message, values: Values, sizes: Mapping[str, Any]) -> Asked:
    width = max((len(c.value) for c in question.choices), default=0)
    # A narrow terminal cuts lines at their end, so what decides comes first.
    shown = {c.value: text(_size(sizes[c.value])) if c.value in sizes else "" for c in question.choices}
    column = max(map(columns.width, shown.values()), default=0)
    lines = []
    for choice in question.choices:
        needed = columns.pad(shown[choice.value], column) + "  " if column else ""
        lines.append((choice.value, f"{choice.value:<{width}}  {needed}{text(choice.label)}"))
    prompt = text(question.prompt_for(values))
    return Asked(prompt=prompt, default=default, reason=text(reason), choices=tuple(lines), paths=question.paths)


def _of_columns(asked: Asked, columns_of_data: Sequence[tuple[str, str]]) -> Asked:
    """The question with the data's columns as its choices, the default one included where it is none of them."""
    width = max(columns.width(name) for name, _ in columns_of_data)
    lines = [(name, f"{columns.pad(name, width)}  {value}") for name, value in columns_of_data]
    if asked.default not in dict(lines):
        lines.insert(0, (asked.default, t("{name}: not in the first row", name=asked.default)))
    return replace(asked, choices=tuple(lines))


def _size(option: Option | Method) -> Message:
    if option.fits is False:
        return say("at least {size} per rank: does not fit", size=option.shown)
    if option.planned:
        return say("{size} per rank", size=option.shown)
    return say("at least {size} per rank", size=option.shown)
