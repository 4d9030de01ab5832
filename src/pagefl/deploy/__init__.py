"""Deployment: the same algorithms and players on real nodes, through Flower."""
