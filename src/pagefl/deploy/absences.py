"""Clients that are connected and do not answer. They must not cost every round the whole deadline."""

ROUNDS = 2  # without an answer, after which a client is left out
LONGEST = 64  # rounds for which one is left out at once


class Absences:
    """A client that did not answer in two rounds is left out of the next one.

    Then it is asked again. Each time it does not answer, it is left out for twice as many rounds.
    """

    def __init__(self) -> None:
        self.missed: dict[int, int] = {}  # by client: rounds in a row without an answer
        self.until: dict[int, int] = {}  # by client: the first round in which it is asked again

    def left_out(self, client: int, round: int) -> bool:
        return round < self.until.get(client, 0)

    def note(self, client: int, round: int) -> int | None:
        """It did not answer. Returns the round in which it is asked again, if it is left out now."""
        missed = self.missed[client] = self.missed.get(client, 0) + 1
        if missed >= ROUNDS:
            self.until[client] = round + 1 + min(2 ** (missed - ROUNDS), LONGEST)
        return self.until.get(client)

    def heard(self, client: int) -> None:
        self.missed.pop(client, None)
        self.until.pop(client, None)
