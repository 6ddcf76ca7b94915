"""What the manual of the rules on scripts says of DeepSpeed, tried on one rank at ZeRO 2. Prints one JSON object."""

import json
import os
import warnings

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}


def moved(*, clip: bool) -> float:
    """How far a weight moves in a step with gradient 8 and learning rate 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    engine.backward(engine(torch.tensor([[8.0]])).sum())
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    engine.step()
    return -round(model.weight.item(), 3)


def no_sync() -> str:
    model = nn.Linear(1, 1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=CONFIG)
    try:
        with engine.no_sync():
            return "entered"
    except AssertionError as error:
        return str(error)


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    answers = {
        "tw711_torch_clips_nothing_under_deepspeed": [moved(clip=True), moved(clip=False)],
        "tw729_no_sync_is_refused": no_sync(),
    }
    print(json.dumps(answers))
    torch.distributed.destroy_process_group()
