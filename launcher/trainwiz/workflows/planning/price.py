"""The price of a GPU-hour: typed once with --price, kept among the user's settings for GPUs of that name."""

from __future__ import annotations

from trainwiz.errors import TrainwizError
from trainwiz.estimate.gpus import gpu_model
from trainwiz.language import t, text
from trainwiz.machine import Machine
from trainwiz.store import prices
from trainwiz.ui import console
from trainwiz.workflows.planning import quantity
from trainwiz.workflows.planning.request import PlanRequest

_FORGET = "none"


def of(request: PlanRequest, machine: Machine) -> float | None:
    """The price that was typed, now or before; None without one. Raises `UsageError`."""
    name = _name(machine)
    if not request.price:
        return prices.of(name)
    price = None if request.price == _FORGET else quantity.money(request.price, "--price")
    try:
        prices.keep(name, price)
    except TrainwizError as error:
        console.talk(t("the price was not saved: {problem}", problem=text(error.message)), style="warning")
    return price


def tell(request: PlanRequest, machine: Machine, price: float | None) -> None:
    """Below the rows: where the price comes from that nobody typed now."""
    if price is not None and not request.price:
        console.talk(
            t(
                "cost: {price} per hour of one {gpu}, as you entered it before; --price none forgets it",
                price=f"{price:g}",
                gpu=_name(machine),
            ),
            style="dim",
        )


def cost(machine: Machine, ranks: int, seconds: float | None) -> float | None:
    """What a training costs at the price that is kept; None where either is unknown."""
    price = prices.of(_name(machine)) if machine.gpus else None
    return None if price is None or seconds is None else price * ranks * seconds / 3600


def _name(machine: Machine) -> str:
    name = machine.gpus[0].name
    model = gpu_model(name)
    return model.name if model else name
