"""Two federations of your own data: one of NumPy arrays, one of a Dataset that is dealt to clients."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import pagefl

# Every client brings its own arrays. A fifth of them is given to the server.
chance = np.random.default_rng(0)
clients = []
for i in range(8):
    x = chance.normal(size=(100, 12)).astype("float32")
    clients.append((x, (x[:, 0] + 0.3 * i * x[:, 1] > 0).astype(int)))
data = pagefl.FederatedData.split(clients, test=0.25, server=0.2)
task = pagefl.Task("arrays", module=lambda: nn.Linear(12, 2), data=data, settings={"lr": 0.1, "epochs": 2})
print(pagefl.run(task=task, algorithm="ditto", rounds=5))

# One Dataset, dealt to six clients so that each sees some classes more often than others.
x = torch.randn(1200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
y = (4 * (x[:, 0, 0, 0] > 0) + 2 * (x[:, 0, 0, 1] > 0) + (x[:, 0, 0, 2] > 0)).long()
pool = TensorDataset(x, y)
dealt = pagefl.data.partition.label_skew(y.numpy(), clients=6, delta=0.5, seed=0)
parts = [Subset(pool, dealt.client(i).tolist()) for i in range(6)]


def network():  # a function: its weights are drawn from the run's seed
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 8))


task = pagefl.Task("images", module=network, data=pagefl.FederatedData.split(parts), settings={"lr": 0.05})
print(pagefl.run(task=task, algorithm="fedavg", rounds=3, epochs=2))
