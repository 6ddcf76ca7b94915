"""What runs left, understood: metrics, curves as text and SVG, states, timelines, differences."""

import dataclasses
import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

import pytest

from trainwiz import language
from trainwiz.record import chart, curve, metrics, scale, timeline
from trainwiz.record.differences import differences, flat
from trainwiz.record.metrics import Series, joined, series, thinned, trend
from trainwiz.record.run import Recorded, State, seconds, state, summary, why

START = "2026-11-20T10:00:00+0000"
BEGAN = 1_795_168_800.0


def run(
    name: str = "2026-11-20_10-00-00-1",
    updates: range = range(0),
    started: str = START,
    alive: bool | None = False,
    outcome: Mapping[str, Any] | None = None,
    **command: Any,
) -> Recorded:
    return Recorded(
        name=name,
        command={"started": started, **command},
        outcome=outcome or {},
        alive=alive,
        records=[{"update": u, "loss": 5 / u, "tokens_per_second": 100.0 * u} for u in updates],
    )


# metrics


def test_a_series_keeps_gaps_and_leaves_out_others() -> None:
    records = [
        {"update": 1, "loss": 2.0},
        {"update": 2, "loss": None},
        {"update": 2, "eval_loss": 9.0},
        {"update": 3, "loss": float("nan")},
        {"update": "4", "loss": 1.0},
        {"loss": 1.0},
        {"update": True, "loss": 1.0},
        {"update": 5, "loss": "x"},
        {"update": 6, "loss": 1},
    ]
    assert series(records, "loss") == ((1, 2.0), (2, None), (3, None), (5, None), (6, 1.0))
    assert metrics.finite_values(records, "loss") == [2.0, 1.0]
    assert series(records, "eval_loss") == ((2, 9.0),)
    assert series([], "loss") == ()


def test_an_update_done_again_counts_as_it_was_done_last() -> None:
    assert series([{"update": 1, "loss": 2}, {"update": 1, "loss": 3}], "loss") == ((1, 3.0),)


def test_runs_that_continue_one_another_are_joined_without_what_was_done_again() -> None:
    first = [{"update": u, "loss": 1} for u in (10, 20, 30)] + [{"update": 20, "eval_loss": 5}]
    second = [{"update": u, "loss": 2} for u in (30, 40)]
    whole = joined([first, [], second])
    assert series(whole, "loss") == ((10, 1), (20, 1), (30, 2), (40, 2))
    assert series(whole, "eval_loss") == ((20, 5),)
    assert joined([]) == []
    # What the earlier run did beyond the checkpoint is gone, also before the later one has come so far again.
    assert [record["update"] for record in joined([first, [{"update": 15, "loss": 2}]])] == [10, 15]


def test_speed_is_a_median_without_the_first_update() -> None:
    records = [{"update": i, "tokens_per_second": v} for i, v in enumerate([1, 100, 101, 5000])]
    assert metrics.speed(records) == 101
    assert metrics.speed(records[:1]) == 1
    assert metrics.speed(records, window=1) == 5000
    assert metrics.speed([]) is None


def test_thinning_keeps_spikes_gaps_and_ends() -> None:
    points: list[metrics.Point] = [(i, math.sin(i / 500)) for i in range(10_000)]
    points[4321], points[7000] = (4321, 50.0), (7000, None)
    kept = thinned(points, 400)
    assert 200 < len(kept) <= 402
    assert {(4321, 50.0), (7000, None), points[0], points[-1]} <= set(kept)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert thinned(points[:400], 400) == points[:400]


def test_a_sample_keeps_evaluations_and_the_newest() -> None:
    records = [{"update": u, "loss": 1} if u % 997 else {"update": u, "eval_loss": 1} for u in range(100_000)]
    kept = metrics.sampled(records, 1000)
    assert len(kept) < 1200
    assert kept[-250:] == records[-250:]
    assert sum("eval_loss" in r for r in kept) == 101
    assert metrics.sampled(records[:1000], 1000) == records[:1000]


def test_a_trend_is_the_mean_of_stretches() -> None:
    assert trend([(0, 1.0), (1, 3.0), (2, None), (3, 5.0), (4, None), (5, None)], 3) == [(0.5, 2.0), (3.0, 5.0)]


# scales


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 10.0], ["0", "2.5", "5.0", "7.5", "10.0"]),
        ([2.1, 7.3], ["2", "3", "4", "5", "6", "7", "8"]),
        ([0.0, 3e-4], ["0", "0.0001", "0.0002", "0.0003"]),
        ([0.0, 3e-7], ["0", "1e-07", "2e-07", "3e-07"]),
        ([115e3, 134e3], ["115k", "120k", "125k", "130k", "135k"]),
        ([0, 2.4e9], ["0", "0.5G", "1.0G", "1.5G", "2.0G", "2.5G"]),
        ([-1.0, 1.0], ["-1.0", "-0.5", "0", "0.5", "1.0"]),
        ([5.0], ["2", "3", "4", "5", "6", "7", "8"]),
        ([], ["0", "0.25", "0.50", "0.75", "1.00"]),
    ],
)
def test_marks_are_round_and_their_labels_short(values: list[float], labels: list[str]) -> None:
    made = scale.scale(values)
    assert [label if label != "0.00" else "0" for label in made.labels] == labels
    assert all(made.low <= v <= made.high for v in values)


@pytest.mark.parametrize("low", [0, 1e-12, 3.3, -7e5, 1e11])
@pytest.mark.parametrize("span", [1e-15, 1e-3, 1, 12345, 1e12])
def test_any_range_has_a_few_marks(low: float, span: float) -> None:
    made = scale.scale([low, low + span])
    assert 2 <= len(made.marks) <= 12
    assert made.low <= low <= low + span <= made.high


def test_updates_are_marked_at_whole_numbers() -> None:
    assert all(m == int(m) for m in scale.scale([1, 3], marks=9, whole=True).marks)


# curves as text

FALLING: list[metrics.Point] = [(u, 10.0 - u) for u in range(11)]


def test_a_falling_curve_in_braille() -> None:
    assert curve.draw(FALLING, 20, 4) == [
        "10 ┤⠑⠢⠤⣀",
        "   │    ⠉⠢⠤⣀",
        "   │        ⠉⠑⠤⢄",
        " 0 ┤            ⠉⠑⠤⢄",
        "   └────────────────",
        "    0             10",
    ]


@pytest.mark.parametrize("braille", [True, False])
@pytest.mark.parametrize(("width", "height"), [(20, 2), (60, 8), (200, 30)])
def test_a_curve_keeps_to_its_size(width: int, height: int, braille: bool) -> None:
    noisy: list[metrics.Point] = [(u, math.sin(u) * 1e4) for u in range(5000)]
    for points in (FALLING, noisy, [(3.0, 5.0)], [(1.0, 2.0), (2.0, None), (3.0, 2.0)]):
        lines = curve.draw(points, width, height, braille=braille)
        assert len(lines) == height + 2
        assert max(map(len, lines)) <= width
        assert braille or all(line.isascii() for line in lines)


def test_a_curve_of_stars_goes_where_the_numbers_go() -> None:
    lines = curve.draw([(0, 0.0), (10, 10.0)], 25, 5, braille=False)
    rows = [line[line.index(c) + 1 :] for line in lines[:5] for c in "+|" if c in line][:5]
    firsts = [row.index("*") for row in rows]
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[-1] == 0


def test_a_gap_is_not_drawn_over() -> None:
    whole = curve.draw([(float(u), 1.0) for u in range(100)], 60, 4)
    torn = curve.draw([(float(u), None if 30 < u < 60 else 1.0) for u in range(100)], 60, 4)
    dots = [sum("⠀" < c <= "⣿" for line in lines for c in line) for lines in (whole, torn)]
    assert dots[1] < 0.8 * dots[0]


def test_nothing_is_drawn_of_nothing_or_in_no_space() -> None:
    assert curve.draw([], 60, 8) == curve.draw([(1, None)], 60, 8) == curve.draw(FALLING, 9, 8) == []


# SVG


def drawing(curves: list[tuple[str, Series]], **options: Any) -> ET.Element:
    return ET.fromstring(chart.svg(curves, label="a & <b>", across="update", **options))


def test_a_chart_is_wellformed_and_holds_every_curve() -> None:
    points = tuple((float(u), None if u == 50 else 1 / (u + 1)) for u in range(100))
    curves = [("<one>", points), ("two", ((10.0, 0.5), (90.0, 0.7)))]
    root = drawing([*curves, ("empty", ((1.0, None),))], marks=[20.0, 1e9])
    ns = "{http://www.w3.org/2000/svg}"
    paths = {p.get("class"): p.get("d") or "" for p in root.iter(f"{ns}path")}
    drawn = [p for p in root.iter(f"{ns}path") if p.get("class") == "curve"]
    assert [p[0].text for p in drawn] == ["<one>", "two"]
    assert (drawn[0].get("d") or "").count("M") == 2, "the gap lifts the pen"
    assert len(list(root.iter(f"{ns}circle"))) == 2
    assert "mark" in paths
    assert root.get("aria-label") == "a & <b>"
    for path in drawn:
        numbers = (path.get("d") or "").replace("M", " ").replace("L", " ").split()
        assert all(0 <= float(x) <= chart.WIDTH for x in numbers[::2])
        assert all(0 <= float(y) <= chart.HEIGHT for y in numbers[1::2])


def test_a_long_curve_stays_small_and_shows_its_trend() -> None:
    points = tuple((float(u), math.sin(u)) for u in range(100_000))
    made = chart.svg([("x", points)], label="x", across="x")
    assert len(made) < 30_000
    assert made.count('<path class="curve noise"') == made.count('<path class="curve"') == 1
    smooth = chart.svg([("x", [(x, x * x) for x, _ in points])], label="x", across="x")
    assert "noise" not in smooth


def test_a_chart_of_nothing_is_nothing() -> None:
    assert chart.svg([("x", ((1.0, None),))], label="x", across="x") == ""


# runs

FULL = {"template": "the disk is full"}
TORN = {"template": "{gone}", "text": "kept"}
SAID = {"template": "rank {rank} failed first with exit code {code}", "values": {"rank": 1, "code": 3}, "text": "t"}


@pytest.mark.parametrize(
    ("recorded", "expected", "reason"),
    [
        (run(outcome={"exit_code": 0}), State.DONE, "training completed"),
        (run(outcome={"exit_code": 3}), State.FAILED, "exit code 3"),
        (
            run(outcome={"exit_code": 3, "diagnosis": {"how": SAID, "known": False, "cause": {"template": "x"}}}),
            State.FAILED,
            "rank 1 failed first with exit code 3",
        ),
        (
            run(outcome={"exit_code": 3, "diagnosis": {"how": SAID, "known": True, "cause": FULL}}),
            State.FAILED,
            "the disk is full",
        ),
        (
            run(outcome={"exit_code": 3, "diagnosis": {"how": SAID, "known": False, "exception": "{E}: x"}}),
            State.FAILED,
            "{E}: x",
        ),
        (run(outcome={"exit_code": 3, "diagnosis": {"how": TORN}}), State.FAILED, "kept"),
        (run(outcome={"exit_code": 3, "diagnosis": "nonsense"}), State.FAILED, "exit code 3"),
        (
            run(outcome={"exit_code": 0, "interrupted": True, "signal": 2}),
            State.STOPPED,
            "stopped by Ctrl-C; it saved and exited cleanly",
        ),
        (
            run(outcome={"exit_code": 143, "interrupted": True, "signal": 15}),
            State.STOPPED,
            "stopped by SIGTERM; exit code 143",
        ),
        (run(alive=True), State.RUNNING, "None"),
        (run(alive=False), State.KILLED, "trainwiz was killed, or the machine went down"),
        (Recorded(name="x"), State.UNKNOWN, "no record of how it was launched"),
        (
            run(alive=None, hostname="node7"),
            State.UNKNOWN,
            "started on node7: whether it is still running is known only there",
        ),
    ],
)
def test_states_and_why(recorded: Recorded, expected: State, reason: str) -> None:
    assert state(recorded) is expected
    assert str(why(recorded)) == reason


def test_a_recorded_reason_is_told_in_the_readers_language() -> None:
    recorded = run(outcome={"exit_code": 3, "diagnosis": {"how": SAID}})
    language.choose(["--lang", "zh"], {})
    try:
        told = why(recorded)
        assert told
        assert "rank 1" in language.text(told)
        assert "failed first" not in language.text(told)
    finally:
        language.choose([], {})


def test_how_long_a_run_took() -> None:
    now = BEGAN + 100
    assert seconds(run(outcome={"exit_code": 0, "seconds": 12.5}), now) == 12.5
    assert seconds(run(alive=True), now) == 100
    assert seconds(dataclasses.replace(run(), touched=BEGAN + 40), now) == 40
    assert seconds(run(), now) is None
    assert seconds(run(started="yesterday"), now) is None


def test_a_run_in_a_line() -> None:
    line = summary(run(updates=range(1, 11), total_updates=20, alive=True, resumed_from="x"), BEGAN + 60)
    assert (line.updates, line.total, line.loss, line.seconds, line.why) == (10, 20, 0.5, 60, None)
    assert (line.state, line.resumed_from) == (State.RUNNING, "x")
    given = run(total_updates=None, arguments=["--n_steps", "5", "--lr", "1", "--n_steps=70", "--n_steps_x=9"])
    assert summary(given, 0).total == 70
    empty = summary(Recorded(name="x"), 0)
    assert (empty.updates, empty.loss, empty.speed, empty.seconds) == (None, None, None, None)


def test_a_timeline_of_a_resumed_run() -> None:
    first = run(
        "a",
        range(1, 7),
        outcome={
            "exit_code": 1,
            "seconds": 50.0,
            "first_update_seconds": 5.0,
            "attempts": [{"ended": "2026-11-20T10:00:40+0000", "update": 4, "exit_code": 137, "then": "again"}, "x", 3],
        },
    )
    second = run("b", range(5, 11), started="2026-11-20T11:00:00+0000", alive=True, resumed_from="a")
    saved = ((4, BEGAN + 30), (8, BEGAN + 3660))
    lineage = [dataclasses.replace(each, checkpoints=saved) for each in (first, second)]
    told = [(e.at - BEGAN, e.run, str(e.what)) for e in timeline.events(lineage, BEGAN + 4000)]
    assert told == [
        (0, "a", "launched"),
        (5, "a", "first training metrics"),
        (30, "a", "checkpoint of update 4"),
        (40, "a", "attempt 1 ended at update 4 with exit code 137; then: again"),
        (50, "a", "exit code 1"),
        (3600, "b", "launched to continue a"),
        (3660, "b", "checkpoint of update 8"),
    ]
    stretches = timeline.stretches(lineage, BEGAN + 4000)
    assert [(s.first, s.last, s.seconds) for s in stretches] == [(1, 6, 50.0), (5, 10, 400.0)]
    assert timeline.resumed_at(lineage) == [5]


# differences


def test_only_what_differs_is_named() -> None:
    common = {"hostname": "h", "versions": {"torch": "2.13", "numpy": "1"}, "machine": {"disk_free_bytes": 1}}
    before = run(
        outcome={"exit_code": 0},
        updates=range(1, 4),
        **common,
        plan={"batch": {"real_batch_size": 8}, "seed": 1},
        argv=["python", "train.py", "--output_dir", "runs/a", "--lr", "1", "--flag"],
    )
    after = run(
        outcome={"exit_code": 1},
        updates=range(1, 6),
        plan={"batch": {"real_batch_size": 16}, "seed": 1},
        argv=["python", "train.py", "--output_dir", "runs/b", "--lr=2"],
        **{**common, "versions": {"torch": "2.14", "numpy": "1"}, "machine": {"disk_free_bytes": 2}},
        inherited={"CUDA_VISIBLE_DEVICES": "0"},
        git={"commit": "abc", "changed": ["x"]},
    )
    found = {(d.section, d.key): (d.before, d.after) for d in differences(before, after)}
    assert found == {
        ("plan", "batch.real_batch_size"): (8, 16),
        ("arguments", "--lr"): ("1", "2"),
        ("arguments", "--flag"): (True, None),
        ("versions", "torch"): ("2.13", "2.14"),
        ("environment", "CUDA_VISIBLE_DEVICES"): (None, "0"),
        ("code", "commit"): (None, "abc"),
        ("result", "state"): ("done", "failed"),
        ("result", "exit_code"): (0, 1),
        ("result", "updates"): (3.0, 5.0),
        ("result", "loss"): (5 / 3, 1.0),
        ("result", "tokens_per_second"): (250.0, 350.0),
    }
    assert differences(before, before) == ()


def test_nested_values_by_dotted_key() -> None:
    assert flat({"a": {"b": [{"c": 1}, {"c": 2}]}, "d": [1, 2], "e": {}}) == {"a.b.0.c": 1, "a.b.1.c": 2, "d": [1, 2]}
