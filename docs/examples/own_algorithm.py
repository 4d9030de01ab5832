"""FedAvg whose server moves only a part of the way: both halves of an algorithm in one class."""

from dataclasses import dataclass

import pagefl


@dataclass(frozen=True)
class Slow(pagefl.Algorithm):
    part: float = 0.5

    def aggregate(self, server, uploads, weights, share):
        mean = uploads.sum("model", weights)
        return {"model": server["model"] + self.part * (mean - server["model"])}


for part in (0.5, 1.0):
    print(pagefl.run(task="digits", algorithm=Slow(part=part), rounds=10, epochs=2))
