"""Next-character prediction from the last few characters: an embedding and one hidden layer.

Bengio, Ducharme, Vincent, Jauvin: A Neural Probabilistic Language Model. JMLR 2003.
"""

import torch
from torch import Tensor, nn


class CharacterMlp(nn.Module):
    def __init__(self, characters: int, length: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.body = nn.Linear(length * embedding, hidden)
        self.head = nn.Linear(hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Character indices [batch, length] -> logits [batch, characters]."""
        logits: Tensor = self.head(torch.relu(self.body(self.embedding(x.int()).flatten(1))))
        return logits


def character_mlp(characters: int, length: int, embedding: int = 16, hidden: int = 64) -> nn.Module:
    """`length`: number of characters that predict the next one."""
    return CharacterMlp(characters, length, embedding, hidden)
