"""The machines of a run that goes on after a failure, as one of them is connected with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainwiz.cluster import Place
from trainwiz.command import Command
from trainwiz.network.coordination import Coordinator, Participant


@dataclass(frozen=True, kw_only=True)
class Team:
    """The machines of a run that goes on after a failure."""

    link: Coordinator | Participant
    """Machine 0's side, or that of another machine."""
    command: Callable[[Place, Sequence[str], Sequence[str]], Command]
    """This machine's command for a place, with options for torchrun and arguments for the script."""
    least: int
    """With how many machines it may go on."""
