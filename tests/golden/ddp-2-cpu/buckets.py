"""A layout of DDP's reduction buckets that is fixed before the first update of every start."""

from __future__ import annotations

from torch import nn


def settle_buckets(model: nn.Module) -> None:
    """Make DDP fix the layout of its buckets before the first update, and not after it.

    DDP does so once it has seen a backward pass. More than two ranks add a gradient in an order that depends on its
    place in a bucket, so the first update after a resume would round differently from the same update of an
    undisturbed training. This pass shows DDP the parameters in reverse, which is about their order in training.
    """
    engine = next((part for part in model.modules() if isinstance(part, nn.parallel.DistributedDataParallel)), None)
    if engine is None:
        return
    for _ in range(2):  # the second pass makes gradients views of the buckets in their new layout
        engine.reducer._rebuild_buckets()  # as DDP's forward pass does, and the next line
        engine.reducer.prepare_for_backward([])
        sum(parameter.sum() for parameter in engine.parameters() if parameter.requires_grad).backward()
    engine.zero_grad(set_to_none=False)
