"""The batch equation against brute force: what holds, what cannot, and which equations are nearest."""

from itertools import product

import pytest

from trainwiz.batch import Batch, Conflict, solve

WORLDS = (1, 2, 3, 8)
MEMBERS = (None, 1, 2, 3, 4, 8)
REALS = (None, *range(1, 50), 96, 100)


def holds(batch: Batch) -> bool:
    return batch.real == batch.micro * batch.accumulation * batch.world and min(batch.micro, batch.accumulation) >= 1


def possible(real: int, micro: int | None, accumulation: int | None, world: int) -> bool:
    micros = [micro] if micro else range(1, real + 1)
    accumulations = [accumulation] if accumulation else range(1, real + 1)
    return any(m * a * world == real for m, a in product(micros, accumulations))


@pytest.mark.parametrize("world", WORLDS)
def test_whatever_can_hold_is_found_and_nothing_else(world: int) -> None:
    conflicts = 0
    for real, micro, accumulation in product(REALS, MEMBERS, MEMBERS):
        given = {"real": real, "micro": micro, "accumulation": accumulation}
        solved = solve(world=world, **given)
        can = real is None or possible(real, micro, accumulation, world)
        assert isinstance(solved, Batch) == can, given
        if isinstance(solved, Conflict):
            conflicts += 1
            assert solved.nearest
            assert all(map(holds, solved.nearest)), given
            assert {batch.world for batch in solved.nearest} == {world}
        else:
            assert holds(solved), given
            assert solved.world == world
            assert all(getattr(solved, name) == value for name, value in given.items() if value is not None)
    assert conflicts > 100


def test_alone_the_real_batch_is_cut_into_the_largest_micro_batches_that_are_preferred() -> None:
    for real, preferred in product(range(2, 80, 2), (1, 4, 8)):
        solved = solve(world=2, real=real, preferred_micro=preferred)
        assert isinstance(solved, Batch)
        assert solved.micro == max(m for m in range(1, preferred + 1) if real % (2 * m) == 0)


def test_the_other_micro_batch_is_the_nearest_that_divides() -> None:
    conflicts = 0
    for per_rank, micro in product(range(1, 60), range(1, 12)):
        solved = solve(world=3, real=3 * per_rank, micro=micro)
        if isinstance(solved, Conflict):
            conflicts += 1
            divisors = [m for m in range(1, per_rank + 1) if per_rank % m == 0]
            assert solved.nearest[-1].micro == min(divisors, key=lambda m: (abs(m - micro), m))
    assert conflicts > 300


def test_without_a_real_batch_there_is_one_preferred_micro_batch_per_rank() -> None:
    assert str(solve(world=4, preferred_micro=8)) == "32 = 8 × 1 × 4"
    assert str(solve(world=4, preferred_micro=8, accumulation=3)) == "96 = 8 × 3 × 4"
    assert str(solve(world=4, micro=2)) == "8 = 2 × 1 × 4"
    assert str(solve(world=1, real=18)) == "18 = 6 × 3 × 1", "at most 8 unless another number is preferred"


@pytest.mark.parametrize(
    ("given", "key", "message", "nearest"),
    [
        (
            {"real": 100, "micro": 8, "world": 4},
            "batch.real_batch_size",
            (
                "100 is not divisible by 8 × 4 = 32; nearest: 96 (accumulation 3) or 128 (accumulation 4), "
                "or micro-batch 5 (accumulation 5)"
            ),
            ["96 = 8 × 3 × 4", "128 = 8 × 4 × 4", "100 = 5 × 5 × 4"],
        ),
        (
            {"real": 60, "micro": 4, "world": 6},
            "batch.real_batch_size",
            (
                "60 is not divisible by 4 × 6 = 24; nearest: 48 (accumulation 2) or 72 (accumulation 3), "
                "or micro-batch 5 (accumulation 2)"
            ),
            ["48 = 4 × 2 × 6", "72 = 4 × 3 × 6", "60 = 5 × 2 × 6"],
        ),
        (
            # Of two micro-batches that are equally near, the smaller one.
            {"real": 48, "micro": 5, "world": 2},
            "batch.real_batch_size",
            (
                "48 is not divisible by 5 × 2 = 10; nearest: 40 (accumulation 4) or 50 (accumulation 5), "
                "or micro-batch 4 (accumulation 6)"
            ),
            ["40 = 5 × 4 × 2", "50 = 5 × 5 × 2", "48 = 4 × 6 × 2"],
        ),
        (
            {"real": 28, "micro": 8, "world": 4},
            "batch.real_batch_size",
            ("28 is not divisible by 8 × 4 = 32; nearest: 32 (accumulation 1), or micro-batch 7 (accumulation 1)"),
            ["32 = 8 × 1 × 4", "28 = 7 × 1 × 4"],
        ),
        (
            {"real": 33, "micro": 8, "world": 2},
            "batch.real_batch_size",
            (
                "33 is not divisible by 8 × 2 = 16; nearest: 32 (accumulation 2) or 48 (accumulation 3); "
                "no micro-batch fits, because 33 is not divisible by 2 ranks"
            ),
            ["32 = 8 × 2 × 2", "48 = 8 × 3 × 2"],
        ),
        (
            {"real": 30, "world": 4},
            "batch.real_batch_size",
            "30 is not divisible by 4 ranks; nearest: 28 or 32",
            ["28 = 7 × 1 × 4", "32 = 8 × 1 × 4"],
        ),
        (
            {"real": 3, "world": 4},
            "batch.real_batch_size",
            "3 is not divisible by 4 ranks; nearest: 4",
            ["4 = 1 × 1 × 4"],
        ),
        (
            {"real": 100, "accumulation": 3, "world": 4},
            "batch.real_batch_size",
            "100 is not divisible by accumulation 3 × 4 ranks = 12; nearest: 96 (micro-batch 8) or 108 (micro-batch 9)",
            ["96 = 8 × 3 × 4", "108 = 9 × 3 × 4"],
        ),
        (
            {"real": 5, "accumulation": 3, "world": 4},
            "batch.real_batch_size",
            "5 is not divisible by accumulation 3 × 4 ranks = 12; nearest: 12 (micro-batch 1)",
            ["12 = 1 × 3 × 4"],
        ),
        (
            {"real": 64, "micro": 4, "accumulation": 2, "world": 4},
            "batch.gradient_accumulation_steps",
            "4 × 2 × 4 = 32, not 64; accumulation 4 gives 64, or keep accumulation 2 for a real batch of 32",
            ["64 = 4 × 4 × 4", "32 = 4 × 2 × 4"],
        ),
        (
            {"real": 65, "micro": 4, "accumulation": 2, "world": 4},
            "batch.real_batch_size",
            (
                "65 is not divisible by 4 × 4 = 16; nearest: 64 (accumulation 4) or 80 (accumulation 5); "
                "no micro-batch fits, because 65 is not divisible by 4 ranks"
            ),
            ["64 = 4 × 4 × 4", "80 = 4 × 5 × 4"],
        ),
    ],
)
def test_a_conflict_names_the_key_the_arithmetic_and_what_is_nearest(
    given: dict[str, int], key: str, message: str, nearest: list[str]
) -> None:
    solved = solve(**given)
    assert isinstance(solved, Conflict)
    assert (solved.key, str(solved.message)) == (key, message)
    assert list(map(str, solved.nearest)) == nearest
