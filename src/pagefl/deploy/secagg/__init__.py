"""Secure aggregation by SecAgg+ (Bell et al., CCS 2020): the server learns a sum of uploads, and no upload.

The four stages, the keys, the shares and their encryption are Flower's. Two things are not: its masks come
from a generator with a 32-bit seed, which a server can try out, and its clients may be asked for both secrets
of one neighbour, which together take off its masks.

The server is trusted to follow the protocol: it passes on the clients' public keys.
"""
