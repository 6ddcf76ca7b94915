"""What engines say in different words, in those of the engine that a script uses: for remedies."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from trainwiz.script.edits import main_rank
from trainwiz.script.tree import written

if TYPE_CHECKING:
    from trainwiz.script import Script

_RANK = "torch.distributed.get_rank()"


def main_process(script: Script, node: ast.AST) -> str:
    """The condition of the main process: as the script itself puts it near a node, else as its engine does."""
    if known := main_rank(script, node):
        return known
    if _has_accelerator(script):
        return "accelerator.is_main_process"
    if script.engines.lightning and not script.engines.fabric:
        return "trainer.is_global_zero"
    if script.called("Trainer.train"):
        return "trainer.is_world_process_zero()"
    return f"{_RANK} == 0"


def main_process_first(script: Script, *, by_trainer: bool) -> str:
    """The context in which the main process goes first; empty where the engine has none."""
    if by_trainer:
        return "training_args.main_process_first()"
    return "accelerator.main_process_first()" if _has_accelerator(script) else ""


def silent_elsewhere(script: Script) -> str:
    """The argument of a progress bar that only one process shows."""
    return "disable=not accelerator.is_local_main_process" if _has_accelerator(script) else f"disable={_RANK} != 0"


def sum_over_ranks(script: Script) -> str:
    """What adds a tensor up over all ranks."""
    return "accelerator.reduce" if _has_accelerator(script) else "torch.distributed.all_reduce"


def own_device(script: Script) -> str:
    """The device of this process."""
    return "accelerator.device" if _has_accelerator(script) else 'torch.device("cuda", int(os.environ["LOCAL_RANK"]))'


def unwrapped(script: Script, name: str) -> str:
    """The module inside a wrapper of this name."""
    return f"accelerator.unwrap_model({name})" if _has_accelerator(script) else f"{name}.module"


def without_deepspeed(script: Script, node: ast.AST) -> bool:
    """Whether this is reached only where DeepSpeed does not train: in the `else` of `if use_deepspeed:`."""
    for guard in script.tree.guards(node):
        text = written(guard.test).lower()
        parts = text.split(" and ")
        if all("deepspeed" in part for part in parts) and text.startswith("not ") == guard.positive:
            return True
    return False


def _has_accelerator(script: Script) -> bool:
    """Whether there is an Accelerator; many scripts only take a context manager from accelerate."""
    others = script.engines.deepspeed or script.engines.ddp or script.engines.fsdp
    return script.engines.accelerate and (bool(script.makers("Accelerator")) or not others)
