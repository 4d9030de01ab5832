"""Client-level differential privacy: whoever sees the models cannot tell whether a client took part."""
