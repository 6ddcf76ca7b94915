"""FSDP2 after forward passes without a backward pass: evaluations, and log-probabilities before the training."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule


def gather_anew(model: nn.Module) -> None:
    """Make FSDP2 gather all weights in the next forward pass.

    What lies outside the layers stays gathered until a backward pass ends. If the weights change before (averages take
    their place only during an evaluation), the next update would compute with those of the evaluation.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            # A head that is called for each chunk of tokens leaves its group in the middle of a forward pass, and
            # before PyTorch 2.13 only a backward pass ends that. Meanwhile `reshard` does nothing.
            getattr(state, "_modules_to_run_forward", set()).clear()
            if state._fsdp_param_group is not None:
                state._fsdp_param_group._to_sharded()
