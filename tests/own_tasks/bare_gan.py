"""The GAN in task.py, trained by a bare loop over whole batches: what its losses and weights must come to.

Arguments: updates, and samples of each. The working directory is the project's folder.
"""

import json
import os
import sys

import torch

sys.path.insert(0, os.getcwd())

import task
from batches import keyed_seed


def main() -> None:
    updates, size = map(int, sys.argv[1:])
    config, seed = task.TaskConfig(), 42
    torch.manual_seed(seed)
    data = task.load_train_data(config)
    torch.manual_seed(seed)
    model = task.build_model(config)
    critic = torch.optim.Adam(model.critic.parameters(), lr=4e-3, betas=(0.5, 0.99))
    generator = torch.optim.SGD(model.generator.parameters(), lr=1e-2, momentum=0.9)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(keyed_seed(seed, 0)))
    losses = []
    for update in range(updates):
        indices = order[update * size : (update + 1) * size].tolist()
        samples = [data.augment(data[i], torch.Generator().manual_seed(keyed_seed(seed, 0, i))) for i in indices]
        points, noise = (torch.stack(part) for part in zip(*samples, strict=True))
        softplus = torch.nn.functional.softplus
        fake = model.generator(noise)
        of_critic = (softplus(model.critic(fake.detach())) + softplus(-model.critic(points))).mean()
        critic.zero_grad()
        of_critic.backward()
        torch.nn.utils.clip_grad_norm_(model.critic.parameters(), 1.0)
        critic.step()
        of_generator = softplus(-model.critic(model.generator(noise))).mean()
        generator.zero_grad()
        of_generator.backward()
        torch.nn.utils.clip_grad_norm_(model.generator.parameters(), 1.0)
        generator.step()
        with torch.no_grad():
            for average, weight in zip(model.average.parameters(), model.generator.parameters(), strict=True):
                average.lerp_(weight, 1 - config.decay)
        losses.append([of_critic.item(), of_generator.item()])
    weights = {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}
    print(json.dumps({"losses": losses, "weights": weights}))


if __name__ == "__main__":
    main()
