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


def test_the_use_of_gpus_is_a_median_and_a_maximum() -> None:
    records = [
        {"update": 1, "mfu": 0.1, "data_wait_share": 0.9, "gpu_memory_peak_bytes": 5},
        {"update": 2, "mfu": 0.4, "data_wait_share": 0.0, "gpu_memory_peak_bytes": 9},
        {"update": 3, "mfu": 0.5, "data_wait_share": 0.2, "gpu_memory_peak_bytes": 8},
    ]
    assert metrics.use(records) == metrics.Use(mfu=0.45, data_wait=0.1, gpu_peak_bytes=9)
    assert metrics.use(records, window=1) == metrics.Use(mfu=0.5, data_wait=0.2, gpu_peak_bytes=9)
    assert metrics.use([{"update": 1, "mfu": "x"}]) == metrics.Use(mfu=None, data_wait=None, gpu_peak_bytes=None)


def test_speed_is_a_median_without_the_first_update() -> None:
    records = [{"update": i, "tokens_per_second": v} for i, v in enumerate([1, 100, 101, 5000])]
    assert metrics.speed(records) == 101
    assert metrics.speed(records[:1]) == 1
    assert metrics.speed(records, window=1) == 5000
    assert metrics.speed([]) is None


def test_the_last_finite_value() -> None:
    assert metrics.last([{"update": 1, "loss": 2.0}, {"update": 2, "loss": math.inf}], "loss") == 2.0
    assert metrics.last([{"update": 1, "loss": 2.0}], "eval_loss") is None


def test_a_few_points_are_thinned_to_first_lowest_highest_and_last() -> None:
    points: list[metrics.Point] = [(float(u), float(y)) for u, y in enumerate([5, 9, 1, 5, 5, 2, 8, 5, 6])]
    assert thinned(points, 8) == [(0, 5), (1, 9), (2, 1), (5, 2), (6, 8), (8, 6)]


def test_thinning_keeps_spikes_gaps_and_ends() -> None:
    points: list[metrics.Point] = [(i, math.sin(i / 500)) for i in range(10_000)]
    points[4321], points[7001] = (4321, 50.0), (7001, None)
    kept = thinned(points, 400)
    assert 200 < len(kept) <= 402
    assert {(4321, 50.0), (7001, None), points[0], points[-1]} <= set(kept)
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


@pytest.mark.parametrize("low", [-1.7e308, -1e200, 0.0, 1e308])
@pytest.mark.parametrize("high", [1e200, 1.7e308, 10**400])
def test_numbers_at_the_end_of_floats_have_an_axis(low: float, high: float) -> None:
    for made in (scale.scale([low, high], marks=6, whole=True), scale.scale([low, high])):
        assert 2 <= len(made.marks) <= 12
        assert 0 <= made.place(min(low, high)) <= made.place(max(low, high)) <= 1
    assert "<svg" in chart.svg([("loss", [(low, 1.0), (high, low)])], label="", across="")


def test_updates_are_marked_at_whole_numbers() -> None:
    assert all(m == int(m) for m in scale.scale([1, 3], marks=9, whole=True).marks)


def test_a_constant_is_in_the_middle_of_its_axis() -> None:
    assert [scale.scale([value]).place(value) for value in (3.0, -3.0, 0.0)] == [0.5, 0.5, 0.5]
    assert scale.scale([8.0]).marks == (4.0, 6.0, 8.0, 10.0, 12.0)


def test_the_axis_ends_at_marks() -> None:
    made = scale.scale([1, 39], marks=5)
    assert (made.low, made.high, made.marks) == (0, 40, (0, 10, 20, 30, 40))
    assert [made.place(value) for value in (0, 10, 40)] == [0, 0.25, 1]
    assert scale.scale([0, 5], marks=1).marks == (0, 5)


@pytest.mark.parametrize(
    ("largest", "label"),
    [
        (9_000, "9000"),
        (10_000, "10k"),
        (900_000, "900k"),
        (1_000_000, "1M"),
        (1_000_000_000, "1G"),
        (10_000_000_000, "1e+10"),
        (0.001, "0.001"),
        (0.0009, "0.0009"),
        (0.00009, "9e-05"),
    ],
)
def test_the_unit_of_a_label_is_that_of_the_largest_mark(largest: float, label: str) -> None:
    assert scale.label(largest, 10.0 ** math.floor(math.log10(largest)), largest) == label


def test_a_label_has_no_more_than_six_digits_after_the_point() -> None:
    assert scale.label(1.00000025, 0.00000025, 1.000001) == "1.000000"
    assert scale.label(1.125, 0.125, 2) == "1.125"


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


PEAKS: list[metrics.Point] = [(0, 0.0), (1, 10.0), (2, None), (4, 10.0), (6, 0.0)]


def test_a_curve_rises_falls_and_has_a_gap() -> None:
    assert curve.draw(PEAKS, 25, 6, braille=False) == [
        "10 +   *         *",
        "   |   *          **",
        " 5 +  *             *",
        "   | *               *",
        "   | *                **",
        " 0 +*                   *",
        "   +---------------------",
        "    0                   6",
    ]
    assert curve.draw(PEAKS, 25, 6) == [
        "10 ┤   ⡸         ⠈⢆",
        "   │  ⢀⠇           ⢣",
        " 5 ┤  ⡜             ⠱⡀",
        "   │ ⢰⠁              ⠑⡄",
        "   │ ⡇                ⠈⢆",
        " 0 ┤⡸                  ⠈⢢",
        "   └─────────────────────",
        "    0                   6",
    ]


def test_updates_in_one_column_are_averaged() -> None:
    points: list[metrics.Point] = [(u, 10.0 if u % 2 else 0.0) for u in range(1000)]
    lines = curve.draw(points, 16, 3, braille=False)
    assert lines[:3] == ["10 +", "   |************", " 0 +"]


def test_a_single_update_is_a_dot() -> None:
    lines = [line.rstrip() for line in curve.draw([(3, 5.0)], 14, 3, braille=False)]
    assert lines == ["10 +", " 5 +*", " 0 +", "   +----------", "    3"]


@pytest.mark.parametrize(("height", "marks"), [(2, 2), (4, 2), (8, 5), (30, 11)])
def test_a_taller_drawing_has_more_marks(height: int, marks: int) -> None:
    lines = curve.draw(FALLING, 30, height, braille=False)
    assert sum(" +" in line for line in lines[:height]) == marks


def test_the_smallest_drawing_has_two_lines_and_eight_columns() -> None:
    assert len(curve.draw(FALLING, 12, 2)) == 4
    assert curve.draw(FALLING, 11, 2) == curve.draw(FALLING, 12, 1) == []


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


def test_a_chart_is_drawn_to_scale() -> None:
    """40 updates are 392 pixels across, a loss of 10 is 198 pixels down."""
    points = ((0.0, 0.0), (10.0, 10.0), (20.0, 5.0), (30.0, None), (40.0, 10.0))
    root = drawing([("loss", points)], marks=[0.0, 20.0, 40.0, 41.0])
    ns = "{http://www.w3.org/2000/svg}"
    paths = [(p.get("class"), p.get("d")) for p in root.iter(f"{ns}path")]
    assert [d for kind, d in paths if kind == "curve"] == ["M54.0 210.0L152.0 12.0L250.0 111.0M446.0 12.0"]
    assert [d for kind, d in paths if kind == "grid"] == [f"M54 {y}H446" for y in (210.0, 160.5, 111.0, 61.5, 12.0)]
    assert [d for kind, d in paths if kind == "mark"] == ["M54.0 12V210", "M250.0 12V210", "M446.0 12V210"]
    assert [d for kind, d in paths if kind == "axis"] == [
        *(f"M{x}.0 210v4" for x in (54, 152, 250, 348, 446)),
        "M54 210H446",
    ]
    texts = [(t.text, t.get("x"), t.get("y")) for t in root.iter(f"{ns}text")]
    assert texts == [
        ("0", "47", "210.0"),
        ("2.5", "47", "160.5"),
        ("5.0", "47", "111.0"),
        ("7.5", "47", "61.5"),
        ("10.0", "47", "12.0"),
        ("0", "54.0", "227"),
        ("10", "152.0", "227"),
        ("20", "250.0", "227"),
        ("30", "348.0", "227"),
        ("40", "446.0", "227"),
        ("update", "250", "245"),
    ]
    dots = [(c.get("cx"), c.get("cy")) for c in root.iter(f"{ns}circle")]
    assert dots == [("54.0", "210.0"), ("152.0", "12.0"), ("250.0", "111.0"), ("446.0", "12.0")]


@pytest.mark.parametrize(("count", "dots"), [(12, 12), (13, 0)])
def test_few_points_have_dots(count: int, dots: int) -> None:
    made = drawing([("x", tuple((float(u), float(u)) for u in range(count)))])
    assert len(list(made.iter("{http://www.w3.org/2000/svg}circle"))) == dots


@pytest.mark.parametrize(
    ("count", "every", "noisy"), [(200, 2, False), (201, 2, True), (300, 18, True), (300, 22, False)]
)
def test_a_curve_is_noise_where_it_has_many_points_and_turns(count: int, every: int, noisy: bool) -> None:
    """A zigzag of this period turns twice in it: 1 of 9 points is a turn with a period of 18, 1 of 11 with 22."""
    points = tuple((float(u), abs(u % every - every / 2)) for u in range(count))
    made = chart.svg([("x", points)], label="x", across="x")
    assert ("noise" in made) is noisy
    assert made.count('class="curve"') == 1


def test_a_trend_has_100_points() -> None:
    points = tuple((float(u), float(u % 2)) for u in range(400))
    made = chart.svg([("x", points)], label="x", across="x")
    trend_only = made[made.index('class="curve"') :]
    assert trend_only.count("M") + trend_only.count("L") == 100


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
        (run(outcome={"exit_code": 1, "lost_machines": {"1": "silent"}}), State.FAILED, "machine 1 was lost: silent"),
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
        (Recorded(name="x"), State.UNKNOWN, "no record of the launch"),
        (
            run(alive=None, hostname="node7"),
            State.UNKNOWN,
            "started on node7: only that machine knows whether it is still running",
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


@pytest.mark.parametrize(
    ("arguments", "total"),
    [
        (["--n_steps", "5"], 5),
        (["--n_steps=5", "--n_steps", "7"], 7),
        (["--n_steps", "x", "5"], None),
        (["x", "--n_steps"], None),
        ([], None),
    ],
)
def test_the_planned_updates_of_a_script_that_was_told_them(arguments: list[str], total: int | None) -> None:
    assert summary(run(arguments=arguments), 0).total == total


def test_a_signal_without_a_number_is_not_guessed() -> None:
    assert str(why(run(outcome={"exit_code": 1, "interrupted": True}))) == "stopped by ?; exit code 1"


def test_a_checkpoint_belongs_to_the_newest_launch_that_had_begun() -> None:
    first, second = run("a"), run("b", started="2026-11-20T11:00:00+0000")
    saved = ((1, BEGAN - 10), (2, BEGAN + 3598), (3, BEGAN + 3599))
    lineage = [dataclasses.replace(first, checkpoints=saved), second]
    owners = {str(e.what): e.run for e in timeline.events(lineage, 0) if "checkpoint" in str(e.what)}
    # The clock of a file system may be a second behind.
    assert owners == {"checkpoint of update 1": "a", "checkpoint of update 2": "a", "checkpoint of update 3": "b"}


def test_a_run_of_unknown_beginning_has_no_events_but_its_checkpoints() -> None:
    unknown = dataclasses.replace(run("a", started="yesterday", outcome={"exit_code": 1}), checkpoints=((5, BEGAN),))
    told = [(e.at, e.run, str(e.what)) for e in timeline.events([unknown, run("b")], BEGAN + 9)]
    assert told == [(BEGAN, "b", "launched"), (BEGAN, "b", "checkpoint of update 5")]
    (stretch,) = timeline.stretches([unknown], BEGAN)
    assert (stretch.first, stretch.last, stretch.began) == (None, None, None)
    assert timeline.resumed_at([run("a"), run("b"), run("c", range(3, 5))]) == [3]


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


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (["a.py", "b"], {"[0]": "a.py", "[1]": "b"}),
        (["--lr", "1", "x"], {"--lr": "1", "[0]": "x"}),
        (["--flag", "--lr=1=2"], {"--flag": True, "--lr": "1=2"}),
        (["-n", "2"], {"[0]": "-n", "[1]": "2"}),
        (["--output_dir=runs/a", "--flag"], {"--flag": True}),
    ],
)
def test_arguments_are_compared_by_option_or_position(argv: list[str], given: dict[str, object]) -> None:
    found = differences(run(argv=[]), run(argv=argv))
    assert {d.key: d.after for d in found if d.section == "arguments"} == given


def test_results_are_compared_to_one_digit() -> None:
    before, after = (run(outcome={"exit_code": 0, "seconds": s, "peak_rank_bytes": None}) for s in (12.34, 12.31))
    assert differences(before, after) == ()
    changed = differences(before, run(outcome={"exit_code": 0, "seconds": 12.36}))
    assert [(d.key, d.before, d.after) for d in changed] == [("seconds", 12.3, 12.4)]


def test_nested_values_by_dotted_key() -> None:
    assert flat({"a": {"b": [{"c": 1}, {"c": 2}]}, "d": [1, 2], "e": {}}) == {"a.b.0.c": 1, "a.b.1.c": 2, "d": [1, 2]}


@pytest.mark.parametrize("low", [2.83e300, -1.36e307, 8.78e-321, 0.0, 5e-324, 6.2e98])
@pytest.mark.parametrize("share", [0.0, 1e-16, 1e-12, 0.3])
def test_a_curve_of_any_numbers_is_drawn(low: float, share: float) -> None:
    rows = curve.draw([(1.0, low), (2.0, low * (1 + share)), (3.0, low)], 60, 10)
    assert len(rows) == 12
    assert any("\u2800" < character < "\u28ff" for row in rows for character in row)
