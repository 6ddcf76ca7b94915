"""Run by Colossal-AI's own interpreter, on the stand-in for a GPU: what Gemini makes of two backward passes.

Prints, without and with enable_gradient_accumulation, what a weight seems to be after each of them, and how far the
update moves it. The gradients are 3 and 1, and the step is g / (g + 1).
"""

import json
import os
import sys

import claimed
import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin
from colossalai.nn.optimizer import FusedAdam

port = claimed.port()
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=port, backend="gloo", verbose=False)


def weights_seen(accumulates: bool) -> list[float]:
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = FusedAdam(model.parameters(), lr=1.0, betas=(0.0, 0.0), eps=1.0)
    booster = Booster(plugin=GeminiPlugin(precision="bf16", enable_gradient_accumulation=accumulates))
    model, optimizer, *_ = booster.boost(model, optimizer)
    seen = []

    def look() -> None:
        with torch.no_grad():
            seen.append(round(model(torch.ones(1, 4, dtype=torch.bfloat16)).mean().item() / 4, 2))

    for gradient in (3.0, 1.0):
        booster.backward(model(torch.full((1, 4), gradient, dtype=torch.bfloat16)).sum().float(), optimizer)
        look()
    optimizer.step()
    look()
    return seen


said = {"tw734_gradients_take_the_place_of_weights": [weights_seen(accumulates) for accumulates in (False, True)]}
sys.stderr.flush()
print("\n" + json.dumps(said), flush=True)
os._exit(0)  # the groups of two plugins complain of each other at exit
