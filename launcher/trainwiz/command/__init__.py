"""Plan → what to start: argv, environment and ranks. Nothing is started here.

On one machine the ranks are started directly, with the environment that `accelerate launch` would set and the one
that torch.distributed asks for. Several machines, and configurations that trainwiz did not write and does not fully
understand, go through torchrun and `accelerate launch`.
"""

from trainwiz.command.by_hand import equivalents, line
from trainwiz.command.debugger import debugged, port_of
from trainwiz.command.foreign import DIRECT_TYPES, for_accelerate_config
from trainwiz.command.plans import for_plan
from trainwiz.command.types import Command, Rank

__all__ = [
    "DIRECT_TYPES",
    "Command",
    "Rank",
    "debugged",
    "equivalents",
    "for_accelerate_config",
    "for_plan",
    "line",
    "port_of",
]
