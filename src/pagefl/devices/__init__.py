"""Devices: how fast clients compute and transfer, when they are available, and whom a round waits for."""
