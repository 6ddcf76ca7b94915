"""The optimizers, one row each: what they keep per parameter, what they need, and their usual settings."""

from __future__ import annotations

from dataclasses import dataclass

from trainwiz.message import Message, say
from trainwiz.vocabulary import OptimizerName


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """One optimizer, as other rooms ask about it."""

    name: OptimizerName
    """The value of `optimizer.name` in a plan."""
    summary: Message
    """One line in the wizard's list."""
    moment_bytes: int
    """What it keeps, in bytes per trained parameter, rounded up; far less than one byte counts as 0."""
    betas: tuple[float, float]
    """The usual beta1 and beta2: the decay of the mean of gradients (of sgd and muon: the momentum), and of squares."""
    epsilon: float = 1e-8
    """What is added to denominators."""
    settings: tuple[str, ...] = ("beta1", "beta2", "epsilon")
    """Those of these three that it has."""
    learning_rate: float | None = None
    """A usual learning rate, whatever the model; None where the model decides."""
    rate_factor: float = 1.0
    """Its learning rate where adamw's would be 1."""
    elementwise: bool = True
    """Each number of a parameter is updated by itself, so that any part of a parameter can be updated alone."""
    decays_vectors: bool = False
    """Biases and norms decay, too, as they do in torch unless a script says otherwise."""
    package: str = ""
    """What it needs beside torch."""
    devices: tuple[str, ...] = ()
    """The devices that it runs on; empty where it runs on all."""
    in_loop: bool = False
    """train.py itself builds it, if no other key of the optimizer is set; optimizers.py builds the others."""
    moves_by_rate: bool = True
    """Each update moves a weight by about the learning rate, whatever the size of its gradient."""


_ALL = (
    Optimizer(
        name="adamw",
        summary=say("Adam with decoupled weight decay; 8 bytes of state per parameter"),
        moment_bytes=8,
        betas=(0.9, 0.95),
        in_loop=True,
    ),
    Optimizer(
        name="sgd",
        summary=say("stochastic gradient descent"),
        moment_bytes=4,
        betas=(0.9, 0.0),
        settings=("beta1",),
        learning_rate=0.1,
        in_loop=True,
        decays_vectors=True,
        moves_by_rate=False,
    ),
    Optimizer(
        name="lion",
        summary=say("the sign of averaged gradients; 4 bytes of state, needs a learning rate 3 to 10 times smaller"),
        moment_bytes=4,
        betas=(0.9, 0.99),
        settings=("beta1", "beta2"),
        rate_factor=0.2,
    ),
    Optimizer(
        name="muon",
        summary=say("orthogonal updates for matrices, AdamW for the rest; about 5 bytes of state"),
        # 4 for matrices, 8 for embeddings, head and vectors, which are an eighth of a usual language model.
        moment_bytes=5,
        betas=(0.95, 0.95),
        elementwise=False,
    ),
    Optimizer(
        name="adafactor",
        summary=say("only moments of rows and columns; almost no state"),
        moment_bytes=0,
        betas=(0.0, 0.0),
        epsilon=1e-3,
        settings=("epsilon",),
        learning_rate=0.01,
        elementwise=False,
        moves_by_rate=False,
    ),
    Optimizer(
        name="adamw_8bit",
        summary=say("AdamW with 8-bit state: 2 bytes per parameter; needs CUDA and bitsandbytes"),
        moment_bytes=2,
        betas=(0.9, 0.95),
        elementwise=False,  # its blocks of 256 numbers have one scale each
        package="bitsandbytes",
        devices=("cuda",),
    ),
    Optimizer(
        name="paged_adamw_8bit",
        summary=say("the same, but moves to host memory when the GPU is full"),
        moment_bytes=2,
        betas=(0.9, 0.95),
        elementwise=False,
        package="bitsandbytes",
        devices=("cuda",),
    ),
)


def every() -> tuple[Optimizer, ...]:
    """All of them, the usual one first."""
    return _ALL


def named(name: str) -> Optimizer:
    """The optimizer of this name."""
    return next(row for row in _ALL if row.name == name)
