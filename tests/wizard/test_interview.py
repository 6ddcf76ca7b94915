"""The interview and its review, with a scripted person instead of a terminal."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainwiz import language, tasks
from trainwiz.decide import Decided, decide
from trainwiz.message import Message, say
from trainwiz.models import known
from trainwiz.plan import Plan
from trainwiz.project import Amount, DataFacts, ModelFacts
from trainwiz.questions import BASIC, Question
from trainwiz.store import machines
from trainwiz.wizard import REVIEW, Action, Asked, Interview, Reply, Trail, review, summary
from trainwiz.workflows.planning.quantity import machine_named

MACHINE = machines.read(Path(__file__).parents[1] / "machines" / "4xa100-40g.json")


class Person:
    """Answers in order: a text, or an action; remembers what was asked and said."""

    def __init__(self, *replies: str | Action | Reply) -> None:
        self.replies = list(replies)
        self.asked: list[Asked] = []
        self.heard: list[str] = []

    def ask(self, asked: Asked, shown: Callable[[], None] | None) -> Reply:
        self.asked.append(asked)
        if shown:
            shown()
        if not self.replies:
            raise KeyboardInterrupt
        reply = self.replies.pop(0)
        if isinstance(reply, Reply):
            return reply
        return Reply(action=reply) if isinstance(reply, Action) else Reply(value=reply)

    def talk(self, words: Message | str) -> None:
        self.heard.append(str(words))

    @property
    def prompts(self) -> list[str]:
        return [asked.prompt for asked in self.asked]


def reviewed(answers: Mapping[str, Any], *replies: str | Action | Reply) -> Person:
    """A person who has been through the review."""
    person = Person(*replies)
    review(interview(person, answers=dict(answers)))
    return person


def interview(
    person: Person,
    *,
    objections: Callable[[Plan], Sequence[tuple[str, Message]]] = lambda _: (),
    saved: list[tuple[dict[str, Any], str]] | None = None,
    **options: Any,
) -> Interview:
    def here(answers: Mapping[str, Any]) -> Decided:
        return decide(answers, MACHINE)

    def save(answers: Mapping[str, Any], step: str) -> None:
        if saved is not None:
            saved.append((dict(answers), step))

    return Interview(decide=here, objections=objections, save=save, ask=person.ask, talk=person.talk, **options)


def test_enter_accepts_every_default_and_settles_nothing() -> None:
    person = Person(*[""] * 9)
    talk = interview(person)
    talk.run()
    assert talk.answers == {}
    assert len(person.asked) == len(BASIC) - 1, "no adapter for a language model that is trained from the beginning"
    assert all(asked.reason for asked in person.asked)


def test_a_choice_accepted_with_enter_outlives_a_later_answer() -> None:
    """QLoRA would be all weights where somebody chose a strategy, which need 140 GiB of a GPU's 24."""
    machine, _ = machine_named("2x4090")
    model = ModelFacts(name="org/8b", kind="hub", parameters=8_030_000_000)

    def here(answers: Mapping[str, Any]) -> Decided:
        return decide(answers, machine, model=model)

    given = {"task": "sft", "model.name": "org/8b"}
    assert here({**given, "strategy.kind": "ddp"}).plan.model.adapter == "none"
    person = Person("", "", "", "zero2", "")
    gauged: list[Plan] = []
    talk = replace(interview(person, fixed=given), decide=here, gauge=lambda plan: gauged.append(plan) or "")
    talk.run()
    adapter, strategy = (next(a for a in person.asked if a.prompt == prompt) for prompt in ("Adapter", "Strategy"))
    assert adapter.default == "qlora"
    assert talk.decided().plan.model.adapter == "qlora"
    assert talk.answers["model.adapter"] == "qlora"
    assert strategy.gauge
    strategy.gauge("zero3")
    assert gauged[-1].model.adapter == "qlora", "the bar shows the plan that the answer would make"


@pytest.mark.parametrize("task", [task.name for task in tasks.every()])
def test_where_jobs_can_be_submitted_there_are_at_most_eight_enters(task: str) -> None:
    """Seven questions and the review."""
    person = Person(task, *[""] * 9)
    talk = interview(person, submits=lambda: True)
    talk.run()
    assert len(person.asked) <= 7
    assert "Where will it run?" in person.prompts
    assert "Strategy" not in person.prompts


def test_the_machines_of_a_job_decide_about_the_adapter() -> None:
    """Accepted with Enter on the login node, LoRA would be kept where all weights fit."""
    small, _ = machine_named("1x4090")
    large, _ = machine_named("8xH100")
    model = ModelFacts(name="org/7b", kind="hub", parameters=7_620_000_000)
    planned = [small]

    def here(answers: Mapping[str, Any]) -> Decided:
        return decide(answers, planned[-1], model=model)

    def heard(question: Question, typed: str, _values: object) -> str:
        if question.key == "machine.num_processes" and typed == "2x8xH100":
            planned.append(large)
            return "cuda 2x8"
        return typed

    given = {"task": "sft", "model.name": "org/7b"}
    assert here(given).plan.model.adapter != "none"
    person = Person("", "slurm", "2x8xH100", "", "")
    talk = replace(interview(person, fixed=given), decide=here, submits=lambda: True, heard=heard)
    talk.run()
    assert person.prompts[1:4] == [
        "Where will it run?",
        "Machines and GPUs of the job, for example 2x8xH100",
        "Adapter",
    ]
    assert (talk.answers["machine.num_machines"], talk.answers["machine.num_processes"]) == (2, 16)
    assert talk.decided().plan.model.adapter == "none"


def test_a_default_shows_its_reason() -> None:
    person = Person(*[""] * 9)
    interview(person).run()
    gpus = person.asked[3]
    assert (gpus.prompt, gpus.default) == ("GPUs, one rank each", "4")
    assert gpus.reason.startswith("found 4 × A100")


def test_epochs_show_their_own_reason() -> None:
    person = Person(*[""] * 7)
    talk = interview(person, answers={"schedule.n_epochs": 4})
    talk.run()
    assert (person.asked[-1].default, person.asked[-1].reason) == ("4 epochs", "your answer")


def test_the_way_back_erases_what_was_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """From GPUs to Model: the answers to Model and Training data, and what was said between them, leave the screen."""
    answered = [Reply(rows=1), Reply(value="tiny", rows=2), Reply(rows=3)]
    person = Person(*answered, Action.HELP, Action.BACK, Action.BACK, Reply(rows=2), Reply(rows=5), Action.BACK)
    erased: list[int] = []
    trail = Trail(talked=lambda: 4 * len(person.heard), erase=erased.append)
    talk = interview(person, trail=trail)
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    assert person.prompts[-1].startswith("Training data")
    assert person.prompts[-1].startswith("Training data")
    assert erased == [3 + 4, 2, 5]
    monkeypatch.setattr("trainwiz.wizard.trail.size", lambda: os.terminal_size((33, 24)))
    trail.back_to("model.name")
    assert erased == [7, 2, 5], "on a terminal of another width, lines are broken in other places"


def test_the_first_question_needs_neither_machine_nor_plan() -> None:
    def too_early(_: Mapping[str, Any]) -> Decided:
        raise AssertionError("decided before the first question")

    person = Person()
    shown: list[bool] = []
    talk = Interview(
        decide=too_early,
        objections=lambda _: (),
        save=lambda *_: None,
        ask=person.ask,
        talk=person.talk,
        shown=lambda: shown.append(True),
    )
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    assert person.prompts == ["Task"]
    assert shown == [True]


def test_question_mark_explains_and_asks_again() -> None:
    person = Person(Action.HELP, "")
    with pytest.raises(KeyboardInterrupt):
        interview(person).run()
    assert "The training task" in person.heard[0]
    assert person.prompts[:2] == ["Task", "Task"]


def test_help_leaves_the_pointer_where_it_is() -> None:
    person = Person(Reply(action=Action.HELP, at="sft"), "")
    with pytest.raises(KeyboardInterrupt):
        interview(person).run()
    assert [asked.at for asked in person.asked] == ["", "sft", ""]


def test_an_illegal_answer_is_explained_and_asked_again() -> None:
    person = Person("", "", "", "4", "100/8", "96/8", "", "", "")
    talk = interview(person)
    talk.run(until=REVIEW)
    heard = " ".join(" ".join(person.heard).split())
    assert "100 is not divisible by 8 × 4 = 32; nearest: 96 (accumulation 3) or 128 (accumulation 4)" in heard
    assert talk.answers["batch.real_batch_size"] == 96
    assert talk.decided().plan.batch.gradient_accumulation_steps == 3


@pytest.mark.parametrize("wrong", ["x", "0", "-3", "'; import os", "1.5", "1e3"])
def test_wrong_types_are_named_by_key(wrong: str) -> None:
    person = Person("", "", "", "", wrong)
    talk = interview(person)
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    assert any("batch.real_batch_size" in words for words in person.heard)
    assert "batch.real_batch_size" not in talk.answers


def test_back_goes_to_the_question_before_with_the_answer_as_default() -> None:
    person = Person("", "gpt2-124m", Action.BACK, "", "", *[""] * 6)
    talk = interview(person)
    talk.run()
    assert person.asked[3].prompt.startswith("Model")
    assert (person.asked[3].default, person.asked[3].reason) == ("gpt2-124m", "your answer")
    assert talk.answers == {"model.name": "gpt2-124m"}


def test_back_at_the_first_question_stays() -> None:
    person = Person(Action.BACK, "")
    with pytest.raises(KeyboardInterrupt):
        interview(person).run()
    assert person.prompts[:2] == ["Task", "Task"]


def test_later_answers_stay_unless_they_become_illegal() -> None:
    """From the precision question back to the ranks: 3 ranks break the real batch, not the micro-batch."""
    person = Person("", "", "", "4", "64/4", Action.BACK, Action.BACK, "3", "", "fp16", *[""] * 3)
    talk = interview(person)
    talk.run()
    assert any("your earlier answer 64 is no longer valid" in words for words in person.heard)
    assert "batch.real_batch_size" not in talk.answers
    assert talk.answers["batch.per_device_batch_size"] == 4
    assert talk.answers["machine.num_processes"] == 3


def test_a_real_batch_alone_takes_the_micro_batch_back() -> None:
    person = Person("", "", "", "", "64/2", Action.BACK, "32")
    talk = interview(person)
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    assert talk.answers == {"batch.real_batch_size": 32}


def test_the_rules_reject_an_answer_at_its_own_question() -> None:
    def objections(plan: Plan) -> list[tuple[str, Message]]:
        return [("machine.num_processes", say("too many"))] if plan.machine.num_processes > 4 else []

    person = Person("", "", "", "8", "4", "")
    talk = interview(person, objections=objections)
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    assert any("too many" in words for words in person.heard)
    assert talk.answers["machine.num_processes"] == 4


def test_a_model_of_unknown_size_is_named_with_its_size() -> None:
    def objections(plan: Plan) -> list[tuple[str, Message]]:
        unknown = plan.model.name == "org/model" and plan.model.parameters is None
        return [("model.parameters", say("the size is unknown"))] if unknown else []

    person = Person("", "org/model", "org/model 13B", "")
    talk = interview(person, objections=objections)
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    assert any("the size is unknown" in words for words in person.heard)
    assert (talk.answers["model.name"], talk.answers["model.parameters"]) == ("org/model", 13 * 10**9)


def test_what_the_command_line_gave_is_not_asked() -> None:
    person = Person(*[""] * 9)
    talk = interview(person, fixed={"task": "causal_lm", "batch.real_batch_size": 64, "strategy.zero_stage": 2})
    talk.run()
    assert not {"Task", "Strategy", "Real batch, or real batch/micro-batch"} & set(person.prompts)
    assert talk.decided().plan.strategy.label == "zero2"


def test_custom_asks_neither_model_nor_data() -> None:
    person = Person("custom", *[""] * 6)
    interview(person).run(until=REVIEW)
    assert not [p for p in person.prompts if p.startswith(("Model", "Training data"))]


def test_strategies_show_their_bytes_and_what_does_not_fit() -> None:
    person = Person("", "llama-1b", *[""] * 3)
    talk = interview(person)
    with pytest.raises(KeyboardInterrupt):
        talk.run()
    lines = dict(person.asked[5].choices)
    assert "at least 19.5 GiB per rank" in lines["ddp"]
    assert "does not fit" not in lines["ddp"]


@pytest.mark.parametrize("task", [task.name for task in tasks.every()])
def test_no_task_takes_more_than_eight_times_enter(task: str) -> None:
    person = Person(task, *[""] * 7)
    talk = interview(person)
    talk.run()
    review(talk)
    assert set(talk.answers) <= {"task"}
    assert 5 <= len(person.asked) <= 8
    assert "Adapter" not in person.prompts, "the preset has random weights, beside which none is trained"


def test_what_is_trained_shows_its_bytes() -> None:
    person = Person("sft", "Qwen/Qwen2.5-7B", "", *[""] * 5)

    def here(answers: Mapping[str, Any]) -> Decided:
        shape = known("Qwen/Qwen2.5-7B")
        assert shape
        facts = ModelFacts(name="m", kind="hub", parameters=shape.parameters, size_source="table", transformer=shape)
        return decide(answers, MACHINE, model=facts if "model.name" in answers else None)

    talk = interview(person)
    talk.decide = here
    talk.run()
    asked = next(asked for asked in person.asked if asked.prompt == "Adapter")
    shown = dict(asked.choices)
    assert asked.default == "lora"
    assert "at least 25.1 GiB per rank  all weights" in shown["none"]
    assert "8.5 GiB per rank" in shown["qlora"]


def test_answers_are_saved_with_the_step_that_comes_next() -> None:
    saved: list[tuple[dict[str, Any], str]] = []
    person = Person("", "gpt2-124m")
    with pytest.raises(KeyboardInterrupt):
        interview(person, saved=saved).run()
    assert saved[-1] == ({"model.name": "gpt2-124m"}, "data.train")


def test_resumed_answers_go_on_at_their_step() -> None:
    person = Person(*[""] * 9)
    talk = interview(person, answers={"model.name": "gpt2-124m", "machine.num_processes": 2})
    talk.run("batch.real_batch_size")
    assert person.prompts[0] == "Real batch, or real batch/micro-batch"
    assert talk.decided().plan.machine.num_processes == 2


def test_the_review_changes_a_line_and_returns() -> None:
    person = Person("details", "seed", "x", "7", "write")
    talk = interview(person)
    review(talk)
    assert talk.answers == {"seed": 7}
    _, first, *_, last = person.asked
    keys = [key for key, _ in first.choices]
    assert (keys[0], keys[1], keys[-1]) == ("write", "summary", "cluster.kind")
    assert len(set(keys)) == len(keys) > 38
    assert "7" in dict(last.choices)["seed"]
    assert "yours" in dict(last.choices)["seed"]
    assert "found: 4 × A100" in dict(first.choices)["machine.num_processes"]


def test_details_leave_out_what_does_not_matter() -> None:
    """A language model has no adapter, unless somebody answered it; one machine has no address."""
    first, *_ = reviewed({}, "details", "write").asked[1:]
    keys = set(dict(first.choices))
    assert not {key for key in keys if "lora" in key or key == "machine.main_process_ip"}
    assert {"batch.per_device_batch_size", "strategy.kind", "data.packing"} <= keys
    again, *_ = reviewed({"model.lora_rank": 8}, "details", "write").asked[1:]
    assert "model.lora_rank" in dict(again.choices)


def test_the_summary_has_about_ten_lines() -> None:
    answers = {"task": "sft", "model.name": "llama-1b", "schedule.n_epochs": 3}
    (asked,) = reviewed(answers, "write").asked
    assert asked.choices[0][0] == "write"
    assert asked.choices[-1][0] == "details"
    shown = {key: line.split("  ", 1)[1].strip() for key, line in asked.choices[1:-1]}
    assert len(shown) == 12
    assert shown["model.name"] == "llama-1b, 1.1B parameters, random weights"
    assert shown["model.adapter"] == "all weights"
    assert shown["machine.num_processes"].startswith("4 GPUs (4 × A100")
    assert re.fullmatch(r"zero2: [\d.]+ GiB of 40.0 GiB per GPU \[#+\.+\]", shown["strategy.kind"])
    assert re.fullmatch(r"\d+ = \d+ × \d+ × 4, of 2048 tokens each", shown["batch.real_batch_size"])
    assert shown["schedule.n_steps"] == "3 epochs"
    assert "14.3 GiB each" in shown["checkpoint.checkpointing_steps"]
    (asked,) = reviewed({**answers, "strategy.offload_optimizer_device": "cpu"}, "write").asked
    assert dict(asked.choices)["strategy.kind"].endswith("], 18.4 GiB of host memory per machine")


def test_the_summary_foretells_tokens_and_time() -> None:
    (asked,) = reviewed({"model.name": "llama-1b", "schedule.n_steps": 500}, "write").asked
    line = dict(asked.choices)["schedule.n_steps"]
    assert re.search(r"500 updates, at most \d+M tokens, about \d+(\.\d+)? (min|h)", line)
    (custom,) = reviewed({"task": "custom"}, "write").asked
    assert "data.train" not in dict(custom.choices)
    assert "tokens" not in dict(custom.choices)["batch.real_batch_size"]


def test_after_a_change_enter_writes() -> None:
    """In the summary the pointer returns to `write`; in the details it stays, and < leads back to the summary."""
    person = reviewed({}, "schedule.n_steps", "7", "details", "seed", "3", Action.BACK, "write")
    defaults = [asked.default for asked in person.asked if asked.at_once == "write"]
    assert defaults == ["write", "write", "summary", "seed", "details"]


@pytest.mark.parametrize(
    ("number", "shown"), [(7, "7"), (9_999, "9999"), (12_345, "12.3k"), (494_000_000, "494M"), (1_100_000_000, "1.1B")]
)
def test_large_numbers_have_three_digits(number: int, shown: str) -> None:
    assert summary.counted(number) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(40, "40 s"), (720, "12 min"), (12_600, "3.5 h"), (345_600, "4 days")])
def test_times_are_rounded(seconds: float, shown: str) -> None:
    assert summary.duration(seconds) == shown


def test_the_review_explains_the_line_that_is_pointed_at() -> None:
    person = Person(Reply(action=Action.HELP, at="seed"), Reply(action=Action.HELP, at="write"), "write")
    review(interview(person))
    assert "Determines the initial weights" in person.heard[0]
    assert "Nothing is written" in person.heard[1]


def test_back_from_the_review_asks_on() -> None:
    person = Person(Action.BACK, "", "write")
    review(interview(person, answers={"seed": 1}))
    assert "Length in steps or epochs" in person.prompts


@pytest.mark.parametrize("key", ["strategy.kind", "batch.per_device_batch_size", "strategy.zero_stage", "engine"])
def test_every_kind_of_line_can_be_chosen(key: str) -> None:
    person = Person(key, "", "write")
    review(interview(person))
    assert len(person.asked) == 3


def test_the_last_step_is_the_review() -> None:
    saved: list[tuple[dict[str, Any], str]] = []
    person = Person(*[""] * 9)
    interview(person, saved=saved).run()
    assert saved[-1][1] == REVIEW


def test_the_gauge_shows_what_an_answer_would_make_of_the_plan() -> None:
    person = Person(*[""] * 9)
    talk = interview(person, gauge=lambda plan: f"{plan.strategy.label} {plan.batch.per_device_batch_size}")
    talk.run()
    gauged = {asked.prompt: asked.gauge for asked in person.asked if asked.gauge}
    assert {"Strategy", "Task"} & gauged.keys() == {"Strategy"}
    batch = next(gauge for prompt, gauge in gauged.items() if prompt.startswith("Real batch"))
    strategy = gauged["Strategy"]
    assert batch("64/8").endswith(" 8")
    assert batch("64/2").endswith(" 2")
    assert [batch(wrong) for wrong in ("", "64/", "x", "65/8", "0")] == [""] * 5
    assert strategy("zero3").startswith("zero3 ")
    assert strategy("ddp").startswith("ddp ")
    assert talk.answers == {}


def with_data(data: DataFacts, *replies: str | Action, **answers: Any) -> tuple[Person, Mapping[str, Any]]:
    """A person at the review of own data, and the answers in the end."""
    person = Person(*replies)
    given = {"model.name": "gpt2-124m", "data.train": "own.jsonl", **answers}
    asks = replace(interview(person, answers=given), decide=lambda answers: decide(answers, MACHINE, data=data))
    review(asks)
    return person, asks.answers


def rows(first: Mapping[str, Any]) -> DataFacts:
    return DataFacts(name="own.jsonl", kind="file", first=first)


def test_a_wrong_guess_of_a_column_is_corrected_by_choosing_another() -> None:
    first = {"body": "an\nadvertisement", "artikel": "the text itself", "id": 7}
    person, answers = with_data(rows(first), "details", "data.text_column", "artikel", "write", task="causal_lm")
    asked = next(asked for asked in person.asked if asked.prompt == "Column of the texts")
    assert asked.default == "body"
    assert asked.choices == (
        ("body", "body     an advertisement"),
        ("artikel", "artikel  the text itself"),
        ("id", "id       7"),
    )
    assert answers["data.text_column"] == "artikel"


def test_a_usual_name_that_the_data_lacks_is_told() -> None:
    first = {"comment": "good", "a": "1", "b": "2"}
    person, answers = with_data(rows(first), "details", "data.label_column", "b", "write", task="text_classification")
    asked = next(asked for asked in person.asked if asked.prompt == "Column of the labels")
    assert asked.choices[0] == ("label", "label: not in the first row")
    assert answers["data.label_column"] == "b"


def test_columns_that_nobody_has_read_are_typed() -> None:
    person, _ = with_data(rows({}), "details", "data.text_column", "artikel", "write", task="causal_lm")
    assert next(asked for asked in person.asked if asked.prompt == "Column of the texts").choices == ()


def test_the_summary_says_how_long_own_texts_are() -> None:
    amount = Amount(documents=300, different=300, tokens=9000, lengths=(10, 20, 30, 40, 3000))
    data = DataFacts(name="own.jsonl", kind="file", amount=amount)
    person, _ = with_data(data, "write", task="causal_lm", **{"batch.sequence_length": 1024})
    line = dict(person.asked[0].choices)["batch.sequence_length"]
    assert line.split("  ", 1)[1].strip() == "≈ 30 tokens (median), 95 % ≤ 3000, max 3000; 20% exceed 1024"
    person, _ = with_data(data, "write", task="causal_lm", **{"batch.sequence_length": 4096})
    assert dict(person.asked[0].choices)["batch.sequence_length"].endswith("max 3000; all fit into 4096")


def asked_of(data: DataFacts, task: str, *replies: str | Action) -> tuple[Person, Mapping[str, Any]]:
    """A person on the way from the data to the machine, and the answers then."""
    person = Person(*replies)
    given = {"task": task, "model.name": "tiny"}
    talk = replace(interview(person, answers=given), decide=lambda answers: decide(answers, MACHINE, data=data))
    talk.run("data.train", until="machine.num_processes")
    return person, talk.answers


def test_columns_are_shown_on_the_way_and_asked_where_their_names_say_nothing() -> None:
    first = {"Review Text": "slow", "verdict": "3", "id": 7}
    person, answers = asked_of(rows(first), "text_classification", "own.jsonl", "", "verdict")
    assert person.prompts[1:] == ["Column of the texts", "Column of the labels"]
    assert person.heard[:3] == [
        "  The first row, as it is read:",
        "     text   Review Text  slow",
        "     label  label        missing",
    ]
    assert person.heard[-1] == "     label  verdict      3"
    assert answers["data.label_column"] == "verdict"
    assert "data.text_column" not in answers, "accepted with Enter"


@pytest.mark.parametrize(
    ("task", "first", "labels"),
    [
        ("text_classification", {"Nr": "0", "Remark": "slow & long", "Verdict": "C"}, "Verdict"),
        ("text_classification", {"Remark": "slow & long", "Verdict": "C", "Shop": "B", "id": "7"}, "Shop"),
        ("text_regression", {"Remark": "slow & long", "when": "1999", "Wert": "3.5"}, "Wert"),
        ("text_multilabel", {"id": "1", "Remark": "slow & long", "rude": "0", "long": "1"}, "rude,long"),
        ("text_multilabel", {"Remark": "slow & long", "Lang": "de", "Subjects": "a b"}, "Subjects"),
        ("image_classification", {"Photo": "a.png", "Wo": "here", "Was": "cat"}, "Was"),
    ],
)
def test_a_column_of_labels_that_nobody_named_is_proposed(task: str, first: Mapping[str, Any], labels: str) -> None:
    """Enter took a usual name that the data lacks, was refused after the review, and asked again without end."""
    person, answers = asked_of(rows(first), task, "own.csv", "", "")
    asked = next(asked for asked in person.asked if "label" in asked.prompt)
    assert asked.default == labels
    assert asked.proposed
    assert answers["data.label_column"] == labels


def enters(person: Person, given: Mapping[str, Any], data: DataFacts, *, submits: bool = False) -> list[str]:
    """The prompts up to the review, where everything behind the first answers is accepted."""
    talk = interview(person, answers=given, submits=lambda: submits)
    talk.decide = lambda answers: decide(answers, MACHINE, data=data)
    talk.run()
    return person.prompts


@pytest.mark.parametrize(
    ("task", "first", "columns", "spared"),
    [
        ("text_classification", {"text": "slow", "label": "3"}, 0, []),
        ("text_classification", {"Review Text": "slow", "label": "3"}, 1, ["Strategy"]),
        ("text_classification", {"Review Text": "slow", "verdict": "3", "id": 7}, 2, ["Strategy", "Real batch"]),
        ("image_regression", {"Photo": "a.png", "Wert": "3.5"}, 2, ["Strategy", "Real batch"]),
        ("sft", {"问题": "为什么", "回答": "因为"}, 1, ["Strategy"]),
    ],
)
@pytest.mark.parametrize("submits", [False, True])
def test_who_is_asked_about_columns_is_not_asked_more(
    task: str, first: Mapping[str, Any], columns: int, spared: list[str], submits: bool
) -> None:
    """Seven questions and the review at most; what is not asked is in the review."""
    person = Person(task, "", "own.csv", *[""] * 9)
    prompts = enters(person, {}, rows(first), submits=submits)
    assert len(prompts) <= 7
    assert len([prompt for prompt in prompts if "olumn" in prompt]) == columns
    assert not [prompt for prompt in prompts for name in spared if prompt.startswith(name)]
    assert submits or len(prompts) == 7 or task == "sft"


def test_a_question_stays_where_it_was_asked_on_the_way_back() -> None:
    """A column that is answered is no guess any more, and nothing else is asked for that reason."""
    person = Person("text_classification", "", "own.csv", "id", "verdict", *[""] * 9)
    prompts = enters(person, {}, rows({"Review Text": "slow", "verdict": "3", "id": 7}))
    assert len(prompts) == 7
    assert "Strategy" not in prompts


def test_details_are_found_by_the_words_of_questions_and_answers() -> None:
    (asked,) = [each for each in reviewed({}, "details", "write").asked if each.search]
    assert set(asked.words) <= {value for value, _ in asked.choices}
    name, about = asked.words["strategy.kind"]
    assert name == "strategy.kind Strategy"
    assert "communication" in about, "a word of an answer"
    with language.spoken("zh"):
        (asked,) = [each for each in reviewed({}, "details", "write").asked if each.search]
    assert asked.words["optimizer.weight_decay"][0].endswith("权重衰减（weight decay） Weight decay")


def test_the_column_of_the_texts_is_not_the_label_as_well() -> None:
    first = {"Review Text": "slow", "Rating": "3"}
    person, _ = asked_of(rows(first), "text_classification", "own.jsonl", "Rating")
    assert person.heard[-2:] == ["     text   Rating       3", "     label  Review Text  slow"]


def test_well_known_columns_are_shown_and_not_asked() -> None:
    person, _ = asked_of(rows({"text": "slow", "label": 3}), "text_classification", "own.jsonl")
    assert len(person.asked) == 1
    assert person.heard[1:] == ["     text   text   slow", "     label  label  3"]
    talk = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}
    assert asked_of(rows(talk), "sft", "own.jsonl")[0].heard[1:] == ["     user        Why?", "     assistant*  So."]
    assert asked_of(rows({"text": "slow"}), "causal_lm", "embedded")[0].heard == []


def test_a_guess_that_is_not_sure_is_proposed_and_enter_takes_it() -> None:
    person, answers = asked_of(rows({"foo": "Why?", "bar": "So."}), "sft", "own.jsonl", "")
    assert answers["data.columns"] == "prompt=foo,completion=bar"
    assert person.heard[1] == "     foo  Why?"
    assert person.heard[-1] == "     completion  bar  So."
    sure, answers = asked_of(rows({"问题": "为什么", "回答": "因为"}), "sft", "own.jsonl", "")
    assert [asked.default for asked in sure.asked[1:]] == ["prompt=问题,completion=回答"]
    assert "data.columns" not in answers


def test_the_line_of_the_data_also_asks_for_its_columns() -> None:
    person, answers = with_data(
        rows({"foo": "Why?", "bar": "So."}), "data.train", "", "prompt=bar,completion=foo", "write", task="sft"
    )
    assert answers["data.columns"] == "prompt=bar,completion=foo"
    assert "read as prompt=bar,completion=foo" in dict(person.asked[-1].choices)["data.train"]
