"""Where two curves part."""

import math

import pytest

from trainwiz.record.divergence import divergence, relative


def curve(*losses: float, **more: float) -> list[dict[str, float]]:
    return [
        {"update": i, "loss": loss, "seconds_per_update": i * 7.0, **more} for i, loss in enumerate(losses, start=1)
    ]


@pytest.mark.parametrize(
    ("before", "after", "verdict", "parted_at", "largest"),
    [
        (curve(3.0, 2.0, 1.0), curve(3.0, 2.0, 1.0), "equal", None, 0),
        (curve(3.0, 2.0, 1.0), curve(3.0, 2.0), "equal", None, 0),
        (curve(3.0, 2.0), curve(3.0, 2.0 + 1e-6), "alike", None, 5e-7),
        (curve(3.0, 2.0, 1.0), curve(3.0, 2.1, 1.0), "diverged", 2, 0.1 / 2.1),
        (curve(3.0, 2.0), curve(3.0, 0.0), "diverged", 2, 1),
        (curve(3.0, math.nan), curve(3.0, math.nan), "equal", None, 0),
        (curve(3.0, 2.0), curve(3.0, math.nan), "diverged", 2, math.inf),
        (curve(3.0, math.nan), curve(3.0, math.inf), "diverged", 2, math.inf),
        (curve(3.0, math.inf), curve(3.0, math.inf), "equal", None, 0),
        (curve(3.0, -math.inf), curve(3.0, math.inf), "diverged", 2, math.inf),
        (curve(), curve(3.0), "nothing", None, 0),
        (curve(3.0, grad_norm_pre_clip=1.0), curve(3.0, grad_norm_pre_clip=2.0), "diverged", 1, 0.5),
        (curve(3.0, eval_loss=1.0), curve(3.0, eval_loss=1.5), "diverged", 1, 1 / 3),
    ],
)
def test_the_verdict(before, after, verdict, parted_at, largest) -> None:  # type: ignore[no-untyped-def]
    found = divergence(before, after, 1e-5)
    assert (found.verdict, found.parted_at) == (verdict, parted_at)
    assert found.largest == pytest.approx(largest)


def test_updates_that_were_trained_twice_count_once_and_speeds_not_at_all() -> None:
    again = [*curve(3.0, 2.5), {"update": 2, "loss": 2.0, "seconds_per_update": 99.0}]
    found = divergence(curve(3.0, 2.0), again, 0)
    assert (found.verdict, found.updates, found.values, found.equal) == ("equal", 2, 2, 2)


def test_records_that_are_none_are_left_out() -> None:
    damaged = [{"update": True, "loss": 1.0}, {"update": 1, "loss": "x"}, {"loss": 4.0}, {"update": 2, "loss": True}]
    assert divergence(damaged, damaged, 0).verdict == "nothing"


def test_what_is_infinite_is_null_in_json() -> None:
    found = divergence(curve(3.0), curve(math.inf), 1e-5).to_dict()
    assert (found["verdict"], found["largest"], found["after"], found["before"]) == ("diverged", None, None, 3.0)
    assert relative(math.inf, math.inf) == 0
    assert relative(math.inf, -math.inf) == math.inf


def test_an_integer_that_no_float_holds_is_infinite() -> None:
    found = divergence(curve(1.0), [{"update": 1, "loss": 10**400}], 1e-5)
    assert (found.verdict, found.after) == ("diverged", math.inf)
    found = divergence(curve(1.0), [{"update": 1, "loss": -(10**400)}], 1e-5)
    assert (found.verdict, found.after) == ("diverged", -math.inf)


def test_what_is_no_number_is_shown_as_that() -> None:
    found = divergence(curve(1.0), curve(math.nan), 1e-5)
    assert found.after is not None
    assert math.isnan(found.after)
