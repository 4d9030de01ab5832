"""Hostile clients: what they upload, and what a server can do about it."""
