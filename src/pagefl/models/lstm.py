"""Next-character prediction for Shakespeare's plays: an embedding, a two-layer LSTM and a linear head.

Caldas et al., LEAF: A Benchmark for Federated Settings. 2018.
"""

from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    def __init__(self, characters: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Character indices [batch, length] -> logits [batch, characters]."""
        states, _ = self.lstm(self.embedding(x.int()))
        logits: Tensor = self.head(states[:, -1])
        return logits


def lstm(characters: int = 80, embedding: int = 8, hidden: int = 100, layers: int = 2) -> nn.Module:
    return CharacterLSTM(characters, embedding, hidden, layers)
