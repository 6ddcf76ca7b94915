"""The batch equation: real_batch_size = per_device_batch_size × gradient_accumulation_steps × num_processes.

Check it, solve it from any of its members, and name the nearest valid answers where it does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import Message, say


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch equation that holds."""

    micro: int
    """Samples that one rank takes through one forward and backward."""
    accumulation: int
    """Micro-batches per rank and update."""
    world: int
    """Ranks over all machines."""

    @property
    def real(self) -> int:
        """Samples of one update."""
        return self.micro * self.accumulation * self.world

    @property
    def arguments(self) -> tuple[str, ...]:
        """As the generated script takes it."""
        split = {"per_device_batch_size": self.micro, "gradient_accumulation_steps": self.accumulation}
        return tuple(word for name, value in split.items() for word in (f"--{name}", str(value)))

    def halved(self) -> Batch | None:
        """The same real batch in micro-batches half as big; None where they cannot be halved."""
        if self.micro % 2:
            return None
        return Batch(micro=self.micro // 2, accumulation=self.accumulation * 2, world=self.world)

    def over(self, world: int) -> Batch | None:
        """The same real batch over this many ranks, in micro-batches no larger; None if it does not divide."""
        return None if self.real % world else _split(self.real // world, world, self.micro)

    def __str__(self) -> str:
        return f"{self.real} = {self.micro} × {self.accumulation} × {self.world}"


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Given values that cannot all hold: which key is off, why, and the nearest equations that do hold."""

    key: str
    """The key of the plan that is off."""
    message: Message
    """Why it cannot hold."""
    nearest: tuple[Batch, ...] = ()
    """Batches for which the equation holds, the nearest first."""


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
        return Batch(micro=micro or preferred_micro, accumulation=accumulation or 1, world=world)
    if micro is not None and accumulation is not None:
        return _checked(real, Batch(micro=micro, accumulation=accumulation, world=world))
    if micro is not None:
        return _accumulation_for(real, micro, world)
    if accumulation is not None:
        return _micro_for(real, accumulation, world)
    if real % world:
        return _indivisible_by_world(real, world, preferred_micro)
    return _split(real // world, world, preferred_micro)


def _checked(real: int, given: Batch) -> Batch | Conflict:
    if given.real == real:
        return given
    right = _accumulation_for(real, given.micro, given.world)
    if isinstance(right, Conflict):
        return right
    return Conflict(
        key="batch.gradient_accumulation_steps",
        message=say(
            "{micro} × {accumulation} × {world} = {product}, not {real}; "
            "accumulation {right} gives {real}, or keep accumulation {accumulation} for a real batch of {product}",
            micro=given.micro,
            accumulation=given.accumulation,
            world=given.world,
            product=given.real,
            real=real,
            right=right.accumulation,
        ),
        nearest=(right, given),
    )


def _accumulation_for(real: int, micro: int, world: int) -> Batch | Conflict:
    step = micro * world
    if real % step == 0:
        return Batch(micro=micro, accumulation=real // step, world=world)
    nearest = _around(real, micro, world)
    if real % world:
        return Conflict(key="batch.real_batch_size", message=_no_micro(real, micro, world, nearest), nearest=nearest)
    other = _nearest_divisor(real // world, micro)
    fitting = Batch(micro=other, accumulation=real // world // other, world=world)
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
        return Batch(micro=real // step, accumulation=accumulation, world=world)
    low = real // step
    nearest = tuple(Batch(micro=m, accumulation=accumulation, world=world) for m in (low, low + 1) if m)
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
    nearest = tuple(_split(per_rank, world, preferred_micro) for per_rank in (low, low + 1) if per_rank)
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
    return tuple(Batch(micro=micro, accumulation=a, world=world) for a in (low, low + 1) if a)


def _listed(batches: tuple[Batch, ...]) -> Message:
    return _either(*(say("{real} (accumulation {steps})", real=b.real, steps=b.accumulation) for b in batches))


def _either(*choices: Message) -> Message:
    return choices[0] if len(choices) == 1 else say("{one} or {other}", one=choices[0], other=choices[1])


def _split(per_rank: int, world: int, limit: int) -> Batch:
    """This many samples per rank and update, in the largest micro-batch up to the limit that divides them."""
    micro = next(d for d in range(min(per_rank, limit), 0, -1) if per_rank % d == 0)
    return Batch(micro=micro, accumulation=per_rank // micro, world=world)


def _nearest_divisor(n: int, to: int) -> int:
    """The divisor of n nearest to `to`; the smaller of two equally near ones, which needs less memory."""
    divisors = {d for k in range(1, int(n**0.5) + 1) if n % k == 0 for d in (k, n // k)}
    return min(divisors, key=lambda d: (abs(d - to), d))
