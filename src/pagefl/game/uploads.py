"""Uploads: what a server's policy can find out about a round's uploads before it weighs them."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pagefl.core.arrays import Floats, Integers
from pagefl.core.server import ServerHalf


class Uploads:
    """`sizes` is told by the clients. All else is computed on demand, on one split of the server's data."""

    def __init__(
        self,
        half: ServerHalf,
        round: int,
        clients: Integers,
        sizes: Floats,
        role: str = "game",
        seconds: Floats | None = None,
    ) -> None:
        """`seconds`: that each took, where time is simulated."""
        self.half, self.round, self.clients, self.sizes, self.role = half, round, clients, sizes, role
        self.seconds = np.full(len(clients), np.nan) if seconds is None else seconds

    @cached_property
    def accuracy(self) -> Floats:
        """Of the models that the uploads stand for."""
        return self.half.evaluate_uploads(self.round, self.clients, self.role)

    @property
    def known_accuracy(self) -> Floats | None:
        """`accuracy`, if somebody has asked for it."""
        return vars(self).get("accuracy")

    @cached_property
    def rows(self) -> Tensor:
        """The models that the uploads stand for, [n, columns]."""
        return self.half.candidates(self.clients)

    @cached_property
    def moves(self) -> tuple[Floats, Floats]:
        """How far each has moved from the shared model, and the cosine of its move and the mean move."""
        sent = self.half.sent["model"]
        mean = self.rows.mean(0) - sent[0]
        norm, along = torch.empty(2, len(self.clients), dtype=torch.float64)
        for i, row in enumerate(self.rows):  # one by one: a hundred large models are not held twice
            norm[i], along[i] = (row - sent[0]).norm(), (row - sent[0]) @ mean
        return norm.numpy(), (along / (norm * mean.double().norm()).clamp(min=1e-12)).numpy()

    @property
    def norms(self) -> Floats:
        """How far each has moved from the shared model."""
        return self._effects[:, 0]

    @property
    def falls(self) -> Floats:
        """By how much each lowers the shared model's loss, to first order."""
        return self._effects[:, 1]

    @cached_property
    def _effects(self) -> Floats:
        return self.half.effects(self.round, self.clients, self.role)

    def lengths(self, name: str) -> Floats:
        """How far one array of each upload is from that of an untrained upload."""
        return self.half.lengths(self.round, self.clients, name)

    def best_length(self, weights: Floats) -> float:
        """The length at which the step to these uploads' average would lower the loss most, relative to its
        own, by the slopes at both of its ends. Infinite where the loss falls as steeply at the end."""
        sent = self.half.sent["model"][0]
        model = self.half.aggregated(self.round, self.clients, weights)["model"]
        first, last = (float(self.half.gradient(row, self.role) @ (model - sent)) for row in (sent, model))
        return first / (first - last) if last > first else np.inf

    def slope(self, weights: Floats) -> Floats:
        """By how much the shared model's loss would rise with each weight, if these were the weights."""
        model = self.half.aggregated(self.round, self.clients, weights)["model"]
        return (self.rows @ self.half.gradient(model, self.role)).double().numpy()
