"""The Gaussian mechanism: what a server may know of a round's uploads.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018. Sums are
divided by how many participants are expected, and all uploads weigh the same: how many took part, and how
many examples they have, are secrets too.
"""

from collections.abc import Iterator
from typing import NoReturn

import torch
from torch import Tensor

from pagefl.core.algorithm import Algorithm, State
from pagefl.core.errors import UserError
from pagefl.core.uploaded import Uploaded

from .clipping import Norm, clipped_sums
from .randomness import Randomness

COUNT = "count of uploads within the norm"  # beside the arrays of an upload, something that noise is added to


class Released(Uploaded):
    """A noisy mean for each array, and nothing else. It was drawn once: asking twice tells nothing new.

    To an algorithm it looks like one upload whose weight is one.
    """

    def __init__(self, means: State, share: float, algorithm: str) -> None:
        self.means, self.share, self.algorithm = means, share, algorithm

    def sum(self, name: str, weights: Tensor) -> Tensor:
        return self.means[name] * weights.sum().to(self.means[name])

    def mean(self, name: str) -> Tensor:
        return self.means[name]

    def counted(self, weights: Tensor, share: float) -> tuple[Tensor, float]:
        return weights.new_ones(1), self.share

    def __getitem__(self, name: str) -> NoReturn:
        raise UserError(
            f"privacy.epsilon: the server half of {self.algorithm} looks at each client's `{name}`, and with "
            "privacy it gets noisy sums alone; choose another algorithm, or epsilon = 0"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)


class Mechanism:
    """A `Treatment`: clips uploads, adds them up, and adds noise."""

    def __init__(self, algorithm: Algorithm, norm: Norm, share: float, randomness: Randomness) -> None:
        """`share`: probability with which a client takes part."""
        self.algorithm, self.norm, self.share, self.randomness = algorithm, norm, share, randomness
        self.clipped_at = float(norm.value)  # in the last round

    def __call__(self, uploads: Uploaded, origin: State, round: int) -> Released:
        norm = self.norm
        clip = self.clipped_at = float(norm.value)
        none = {name: uploads.source.rows(name, uploads.ids[:0]) for name in uploads.source.names}
        shapes = {name: rows.shape[1:] for name, rows in none.items()}
        total, within = clipped_sums(uploads, shapes, origin, clip)
        means = {}
        for name, part in total.items():
            noise = torch.from_numpy(self.randomness.normals(round, name, part.numel())).view(part.shape)
            mean = (part + norm.noise * clip * noise) / norm.expected
            means[name] = (mean + origin[name].cpu().double() if name in origin else mean).to(none[name])
        norm.follow(within, len(uploads.ids), float(self.randomness.normals(round, COUNT, 1)[0]))
        return Released(means, self.share, type(self.algorithm).__name__)
