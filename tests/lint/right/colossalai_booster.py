"""Colossal-AI's Booster with LowLevelZero at stage 1: no_sync but for the last micro-batch, all ranks save."""

from contextlib import nullcontext

import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import LowLevelZeroPlugin
from colossalai.cluster import DistCoordinator
from colossalai.nn.optimizer import HybridAdam
from tqdm import tqdm

ACCUMULATION = 4


def main(model, data, folder):
    colossalai.launch_from_torch()
    coordinator = DistCoordinator()
    plugin = LowLevelZeroPlugin(stage=1, precision="bf16", max_norm=1.0)
    booster = Booster(plugin=plugin)
    loader = plugin.prepare_dataloader(data, batch_size=8, shuffle=True, drop_last=True)
    optimizer = HybridAdam(model.parameters(), lr=3e-4)
    model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for i, batch in enumerate(tqdm(loader, disable=not coordinator.is_master())):
            last = (i + 1) % ACCUMULATION == 0 or i + 1 == len(loader)
            with nullcontext() if last else booster.no_sync(model, optimizer):
                loss = model(batch.to(torch.cuda.current_device())).mean() / ACCUMULATION
                booster.backward(loss, optimizer)
            if last:
                optimizer.step()
                optimizer.zero_grad()
        booster.save_model(model, f"{folder}/model", shard=True)
        booster.save_optimizer(optimizer, f"{folder}/optimizer", shard=True)
        coordinator.block_all()
        coordinator.print_on_master(f"epoch {epoch}")
