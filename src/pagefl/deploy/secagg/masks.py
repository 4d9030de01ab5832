"""Numbers as whole numbers modulo 2^32, and masks of such numbers."""

from base64 import urlsafe_b64decode

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from pagefl.core.arrays import Floats

Words = npt.NDArray[np.uint32]  # added modulo 2^32
LARGEST_SUM = 2**32 - 1
BYTES = 4


def levels(clients: int) -> int:
    """As many steps as fit, so that the sum of all clients stays below the modulus."""
    return LARGEST_SUM // clients


def quantised(values: Floats, limit: float, clients: int) -> Words:
    """Values from -limit to limit, as whole numbers from 0 on."""
    return np.rint((values + limit) * (levels(clients) / (2 * limit))).astype(np.uint32)


def real(total: Words, limit: float, clients: int, summands: int) -> Floats:
    """What a sum of quantised values stands for. `clients`: that it was planned for."""
    return np.asarray(total * (2 * limit / levels(clients)) - summands * limit)


def mask(seed: bytes, count: int) -> Words:
    """Words that look random to who does not know the seed of 32 bytes: AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(BYTES * count)), "<u4").astype(np.uint32)


def pairwise(own: int, private: bytes, other: int, public: bytes, count: int) -> Words:
    """The mask that client `own` adds for client `other`. The two cancel each other out."""
    shared = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(public))
    words = mask(urlsafe_b64decode(shared), count)
    return words if own > other else np.negative(words)
