"""Run by Colossal-AI's own interpreter: what its plugins stop with. Prints one JSON object."""

import json
import os
import sys

import claimed
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin, HybridParallelPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.zero.gemini.gemini_ddp import GeminiDDP
from colossalai.zero.gemini.gemini_optimizer import GeminiOptimizer

port = str(claimed.port())
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.distributed.init_process_group("gloo")
MODEL = torch.nn.Linear(2, 2)


def boosted(precision):
    Booster(plugin=TorchDDPPlugin(), mixed_precision=precision).boost(MODEL, torch.optim.SGD(MODEL.parameters(), lr=1))


CLAIMS = {
    "731_gemini_fp32": lambda: GeminiPlugin(precision="fp32"),
    "731_low_level_zero_fp8": lambda: LowLevelZeroPlugin(stage=1, precision="fp8"),
    "731_booster_bf16": lambda: boosted("bf16"),
    "731_booster_none": lambda: boosted(None),
    "732_low_level_zero_3": lambda: LowLevelZeroPlugin(stage=3),
    "732_hybrid_3": lambda: HybridParallelPlugin(tp_size=1, pp_size=1, zero_stage=3),
    "732_hybrid_2": lambda: HybridParallelPlugin(tp_size=1, pp_size=1, zero_stage=2),
    # The check comes before the module is looked into.
    "733_gemini_adamw": lambda: GeminiOptimizer(
        torch.optim.AdamW(MODEL.parameters()), object.__new__(GeminiDDP), verbose=False
    ),
}
results = {}
for name, claim in CLAIMS.items():
    try:
        claim()
        results[name] = ""
    except Exception as error:
        results[name] = f"{type(error).__name__}: {error}"
sys.stderr.flush()
print("\n" + json.dumps(results))
