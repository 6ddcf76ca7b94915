"""DeepSpeed's engine without anything above it: it accumulates, clips, steps and saves."""

import deepspeed
import torch
import torch.distributed as dist
from tqdm import tqdm

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def main(model, data, folder):
    deepspeed.init_distributed()
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=CONFIG
    )
    path, state = engine.load_checkpoint(folder)
    start = state["update"] if path else 0
    for _ in range(start, 3):
        for batch in tqdm(loader, disable=dist.get_rank() != 0):
            loss = engine(batch.to(engine.device)).mean()
            engine.backward(loss)
            engine.step()
            if engine.is_gradient_accumulation_boundary() and engine.global_steps % 10 == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if dist.get_rank() == 0:
                    print(engine.global_steps, mean.item() / dist.get_world_size())
        engine.save_checkpoint(folder, client_state={"update": engine.global_steps})
    with torch.no_grad():
        for batch in loader:
            engine(batch.to(engine.device))
