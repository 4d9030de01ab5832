"""Handwritten digits, which come with pagefl: 1797 images of 8×8 pixels, as in scikit-learn's `load_digits`.

Alpaydin, Kaynak: Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998,
doi.org/10.24432/C50P49, CC BY 4.0. These are its test images, stored
in another format.
"""

from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagefl.core.errors import UserError

from .federated import FederatedData
from .partition import label_skew

PIXELS, CLASSES = 64, 10
BRIGHTEST = 16
FEWEST = 8  # images of a client: at least one each for training, test and the server


class Digits(NamedTuple):
    x: Tensor  # [1797, 64], from 0 to 1
    y: Tensor  # [1797]


def read() -> Digits:
    with (files("pagefl.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as found:
        x, y = found["x"].reshape(-1, PIXELS), found["y"]
    return Digits(torch.from_numpy(x).float() / BRIGHTEST, torch.from_numpy(y).long())


def federation(clients: int, delta: float, seed: int) -> FederatedData:
    x, y = read()
    if clients * FEWEST > len(y):
        raise UserError(
            f"task.clients = {clients}: {len(y)} images leave fewer than {FEWEST} for each; expected at most "
            f"{len(y) // FEWEST}"
        )
    dealt = label_skew(y.numpy(), clients, delta, seed)
    own = [torch.from_numpy(dealt.client(i)) for i in range(clients)]
    return FederatedData.split([(x[mine], y[mine]) for mine in own], test=0.24, server=0.2, seed=seed)
