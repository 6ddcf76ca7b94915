"""When to evaluate, which update was best, and when to stop because nothing improves.

All ranks have the same metrics, so they decide alike. What was best so far is part of each checkpoint: a resumed
training decides as an uninterrupted one would.
"""

from __future__ import annotations

# feature: best
import math

# end: best
from collections.abc import Callable

# feature: gathered
from typing import TYPE_CHECKING, Any

# end: gathered
# feature: summed
from typing import TYPE_CHECKING

# end: summed

# feature: gathered
import torch
import torch.distributed as dist
from torch import Tensor, nn

import task

# end: gathered
# feature: ema
from average import averaged

# end: ema
# feature: gathered
from batches import Agreement, RealBatches, load_batches

# end: gathered
from batches import Stopped
from checkpoints import Checkpoints
from metrics import Metrics

# feature: gathered
# feature: gathers_anew
from resharding import gather_anew

# end: gathers_anew
# end: gathered
if TYPE_CHECKING:
    from train import Config


class Evaluation:
    """The evaluations of one training. `checkpoints.kept` holds what a resumed training must know about them."""

    # feature: ema
    optimizer: object
    """Its state holds the averages of the weights, which are evaluated."""
    # end: ema

    def __init__(
        self,
        config: Config,
        measure: Callable[[], dict[str, float]],
        checkpoints: Checkpoints,
        metrics: Metrics,
        total: int,
    ) -> None:
        self.config, self.measure, self.metrics, self.total = config, measure, metrics, total
        self.every = config.evaluation_steps or -(-checkpoints.samples // config.real_batch_size)  # an epoch
        self.stopped = False  # whether the ranks were asked to stop during an evaluation; a resume does it again
        self.kept = checkpoints.kept
        self.kept.setdefault("evaluated", 0)  # the last update after which the model was evaluated
        # feature: best
        metric = f"{config.best_mode} {config.best_metric}"
        if self.kept.get("metric") != metric:  # also after a resume with another metric
            # The best value, the update that it was measured after (0: none yet), and the evaluations since then.
            self.kept.update(metric=metric, best=None, best_update=0, waited=0)
        # end: best

    # feature: best
    @property
    def best_update(self) -> int:
        """The update after which the metric was best."""
        return int(self.kept["best_update"])

    @property
    def ended(self) -> bool:
        """Whether the training ends early: nothing improved in `patience` evaluations."""
        return 0 < self.config.patience <= self.kept["waited"]

    # end: best
    def due(self, update: int, stop: bool) -> bool:
        """Whether to evaluate after this update. A stop does not wait for an evaluation; `catch_up` does it later."""
        return not stop and (update == self.total or update % self.every == 0)

    def catch_up(self, start: int) -> None:
        """Do the evaluation that was due when the training was stopped."""
        if start > self.kept["evaluated"] and self.due(start, stop=False):
            self.run(start)

    def run(self, update: int) -> bool:
        """Evaluate after this update. Return whether it must be saved: it is the best one, or the training ends."""
        try:
            # feature: last_weights
            record = self.measure()
            # end: last_weights
            # feature: ema
            with averaged(self.optimizer):
                record = self.measure()
            # end: ema
        except Stopped:
            self.stopped = True
            return True
        self.kept["evaluated"] = update
        needed = False
        # feature: best
        needed = self.compare(update, record)
        record["best_update"] = self.best_update
        # end: best
        self.metrics.write({"update": update, **record})
        return needed

    # feature: best
    def compare(self, update: int, record: dict[str, float]) -> bool:
        """Note whether this update is the best so far. Return whether it is, or whether the training ends with it."""
        name = self.config.best_metric
        if name not in record:
            raise SystemExit(f"best_metric {name} is not among the metrics of the evaluation: {', '.join(record)}")
        better = self.is_better(record[name])
        if better:
            self.kept.update(best=record[name], best_update=update, waited=0)
        else:
            self.kept["waited"] += 1
        if self.ended and self.metrics.is_main:
            print(
                f"update {update}: {name} has not improved in {self.kept['waited']} evaluations, so the training ends; "
                f"the best was {self.kept['best']} after update {self.best_update}",
                flush=True,
            )
        return better or self.ended

    def is_better(self, value: float) -> bool:
        """Whether a value is better than the best so far. A value that is not finite never is."""
        if not math.isfinite(value) or self.kept["best"] is None:
            return math.isfinite(value)
        return value < self.kept["best"] if self.config.best_mode == "min" else value > self.kept["best"]

    # end: best


# feature: gathered
@torch.no_grad()
def measure_outputs(
    config: Config, agreement: Agreement, model: nn.Module, data: Any, device: torch.device
) -> dict[str, float]:
    """Return the task's metrics from its outputs for the whole evaluation set; each sample counts once."""
    batches = RealBatches(config, len(data), agreement.rank, 0, -(-len(data) // config.real_batch_size))
    outputs = []
    model.eval()
    for batch, _ in agreement.unless_stopped(load_batches(config, data, batches)):
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        outputs.append(task.evaluation_outputs(model, batch))
    model.train()
    # feature: gathers_anew
    gather_anew(model)
    # end: gathers_anew
    return task.evaluation_metrics(in_order(outputs, len(data)))


def in_order(outputs: list[Tensor], samples: int) -> Tensor:
    """Return the outputs for all samples (samples, …), from those of each rank's micro-batches.

    `RealBatches` cuts each real batch into (accumulation, world, micro) and pads the last one at its end. Joined like
    that, the samples have the same order for any split, and everything after the last one is padding.
    """
    mine = torch.stack(outputs)
    ranks = [mine]
    if dist.is_initialized():
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, mine)
    return torch.stack(ranks, dim=1).flatten(0, 2)[:samples].cpu()


# end: gathered
