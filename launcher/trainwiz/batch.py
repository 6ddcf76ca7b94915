"""The batch equation: real_batch_size = per_device_batch_size × gradient_accumulation_steps × num_processes.

Check it, solve it from any of its members, and name the nearest valid answers where it does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import Message, say


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch equation that holds."""

    real: int
    micro: int
    accumulation: int
    world: int

    def __str__(self) -> str:
        return f"{self.real} = {self.micro} × {self.accumulation} × {self.world}"


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Given values that cannot all hold: which key is off, why, and the nearest equations that do hold."""

    key: str
    message: Message
    nearest: tuple[Batch, ...] = ()


def solve(
    *,
    world: int,
    real: int | None = None,
    micro: int | None = None,
    accumulation: int | None = None,
    preferred_micro: int = 8,
) -> Batch | Conflict:
    """The equation completed from the members that are given, all ≥ 1.

    With the real batch alone, the micro-batch is the largest one not above `preferred_micro` that divides it.
    Given all members, they are checked. A conflict blames the member that the others contradict.
    """
    if real is None:
        micro = micro or preferred_micro
        accumulation = accumulation or 1
        return Batch(real=micro * accumulation * world, micro=micro, accumulation=accumulation, world=world)
    if micro is not None and accumulation is not None:
        return _checked(real, micro, accumulation, world)
    if micro is not None:
        return _accumulation_for(real, micro, world)
    if accumulation is not None:
        return _micro_for(real, accumulation, world)
    if real % world:
        return _indivisible_by_world(real, world, preferred_micro)
    micro = _largest_divisor(real // world, preferred_micro)
    return Batch(real=real, micro=micro, accumulation=real // world // micro, world=world)


def _checked(real: int, micro: int, accumulation: int, world: int) -> Batch | Conflict:
    product = micro * accumulation * world
    if product == real:
        return Batch(real=real, micro=micro, accumulation=accumulation, world=world)
    with_product = Batch(real=product, micro=micro, accumulation=accumulation, world=world)
    if real % (micro * world):
        wrong = _accumulation_for(real, micro, world)
        assert isinstance(wrong, Conflict)
        return wrong
    right = Batch(real=real, micro=micro, accumulation=real // (micro * world), world=world)
    return Conflict(
        key="batch.gradient_accumulation_steps",
        message=say(
            "{micro} × {accumulation} × {world} = {product}, not {real}; "
            "accumulation {right} gives {real}, or keep accumulation {accumulation} for a real batch of {product}",
            micro=micro,
            accumulation=accumulation,
            world=world,
            product=product,
            real=real,
            right=right.accumulation,
        ),
        nearest=(right, with_product),
    )


def _accumulation_for(real: int, micro: int, world: int) -> Batch | Conflict:
    step = micro * world
    if real % step == 0:
        return Batch(real=real, micro=micro, accumulation=real // step, world=world)
    nearest = _around(real, micro, world)
    if real % world:
        return Conflict(key="batch.real_batch_size", message=_no_micro(real, micro, world, nearest), nearest=nearest)
    other = _nearest_divisor(real // world, micro)
    fitting = Batch(real=real, micro=other, accumulation=real // world // other, world=world)
    return Conflict(
        key="batch.real_batch_size",
        message=say(
            "{real} is not divisible by {micro} × {world} = {step}; nearest: {nearest}, "
            "or micro-batch {other} (accumulation {steps})",
            real=real,
            micro=micro,
            world=world,
            step=step,
            nearest=_listed(nearest),
            other=fitting.micro,
            steps=fitting.accumulation,
        ),
        nearest=(*nearest, fitting),
    )


def _micro_for(real: int, accumulation: int, world: int) -> Batch | Conflict:
    step = accumulation * world
    if real % step == 0:
        return Batch(real=real, micro=real // step, accumulation=accumulation, world=world)
    low = real // step
    nearest = tuple(Batch(real=m * step, micro=m, accumulation=accumulation, world=world) for m in (low, low + 1) if m)
    return Conflict(
        key="batch.real_batch_size",
        message=say(
            "{real} is not divisible by accumulation {accumulation} × {world} ranks = {step}; nearest: {nearest}",
            real=real,
            accumulation=accumulation,
            world=world,
            step=step,
            nearest=_either(*(say("{real} (micro-batch {micro})", real=b.real, micro=b.micro) for b in nearest)),
        ),
        nearest=nearest,
    )


def _indivisible_by_world(real: int, world: int, preferred_micro: int) -> Conflict:
    low = real // world
    nearest = tuple(
        Batch(real=n * world, micro=m, accumulation=n // m, world=world)
        for n in (low, low + 1)
        if n
        for m in [_largest_divisor(n, preferred_micro)]
    )
    return Conflict(
        key="batch.real_batch_size",
        message=say(
            "{real} is not divisible by {world} ranks; nearest: {nearest}",
            real=real,
            world=world,
            nearest=_either(*(say("{real}", real=b.real) for b in nearest)),
        ),
        nearest=nearest,
    )


def _no_micro(real: int, micro: int, world: int, nearest: tuple[Batch, ...]) -> Message:
    return say(
        "{real} is not divisible by {micro} × {world} = {step}; nearest: {nearest}; no micro-batch fits, because "
        "{real} is not divisible by {world} ranks",
        real=real,
        micro=micro,
        world=world,
        step=micro * world,
        nearest=_listed(nearest),
    )


def _around(real: int, micro: int, world: int) -> tuple[Batch, ...]:
    low = real // (micro * world)
    return tuple(Batch(real=micro * a * world, micro=micro, accumulation=a, world=world) for a in (low, low + 1) if a)


def _listed(batches: tuple[Batch, ...]) -> Message:
    return _either(*(say("{real} (accumulation {steps})", real=b.real, steps=b.accumulation) for b in batches))


def _either(*choices: Message) -> Message:
    return choices[0] if len(choices) == 1 else say("{one} or {other}", one=choices[0], other=choices[1])


def _largest_divisor(n: int, limit: int) -> int:
    return next(d for d in range(min(n, limit), 0, -1) if n % d == 0)


def _nearest_divisor(n: int, to: int) -> int:
    """The divisor of n nearest to `to`; of two equally near ones the smaller, which needs less memory."""
    divisors = {d for k in range(1, int(n**0.5) + 1) if n % k == 0 for d in (k, n // k)}
    return min(divisors, key=lambda d: (abs(d - to), d))
