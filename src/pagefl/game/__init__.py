"""Federated learning as a game: clients choose lr and epochs, the server chooses weights."""
