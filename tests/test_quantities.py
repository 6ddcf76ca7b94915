"""Bytes and seconds as people read them."""

import pytest

from trainwiz.quantities import clock_time, gib, size


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (99 * 1024, "99.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1 << 20, "1.0 MiB"),
        (79.6 * 2**30, "79.6 GiB"),
        (100 << 30, "100 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_fits(count: float, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (2**29, "0.50"), (2**30, "1.0"), (12.34 * 2**30, "12.3"), (3 * 2**20, "0.0029"), (90_000, "0.000084")],
)
def test_small_numbers_of_gib_have_two_decimals(count: float, shown: str) -> None:
    assert gib(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_seconds_are_shown_as_a_clock(seconds: float, shown: str) -> None:
    assert clock_time(seconds) == shown
