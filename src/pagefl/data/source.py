"""ClientSource: a federation whose clients' examples are made or read one client at a time."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np

from pagefl.core import summary
from pagefl.core.arrays import Integers
from pagefl.core.errors import UserError, shortened
from pagefl.core.examples import ClientData, Examples, ServerData

from .federated import Given, in_blocks, server_halves
from .pairs import agree, read

FEDERATION, SERVER = "federation.json", "server.npz"
IN_A_FOLDER = 1000  # clients' files


class ClientSource:
    """A federation of any number of clients. Only those of a round are held in memory.

    A subclass sets `clients` and answers two questions. Answers must always be the same, in every process:

        class Sensors(pagefl.ClientSource):
            clients = 1_000_000

            def client(self, number):
                chance = np.random.default_rng(number)
                x = chance.normal(number % 7, 1.0, (30, 4)).astype("float32")
                y = (x.sum(1) > 4 * (number % 7)).astype(int)
                return (x[:20], y[:20]), (x[20:], y[20:])

            def server(self):
                parts = [self.client(number)[1] for number in range(100)]
                return tuple(np.concatenate(side) for side in zip(*parts))

        task = pagefl.Task("sensors", torch.nn.Linear(4, 2), Sensors())
        pagefl.run(task=task, participation=0.001, rounds=20)
    """

    clients: int  # how many there are; their numbers are 0 to clients - 1
    seed: int = 0  # of the draw of the server's two halves

    def client(self, number: int) -> tuple[Given, Given]:
        """A client's examples (x, y) for training, and those for testing."""
        raise TypeError(f"{type(self).__name__} has no method `client`")

    def server(self) -> Given:
        """The server's examples (x, y). One half is for the game, the other half only evaluates."""
        raise TypeError(f"{type(self).__name__} has no method `server`")

    def fetch(self, numbers: Integers) -> ClientData:
        """The examples of these clients, one client after the other."""
        return ClientData.joined([self._checked(number) for number in numbers.tolist()])

    def _checked(self, number: int) -> ClientData:
        """What `client` answers."""
        try:
            given = self.client(number)
        except UserError:
            raise
        except Exception as error:  # a user's own method may raise anything
            words = shortened(" ".join(str(error).split()))
            raise UserError(f"client {number}: client() failed: {type(error).__name__}: {words}") from error
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise UserError(
                f"client {number}: client() returned a {type(given).__name__}; expected its training and its "
                "test examples, each (x, y)"
            )
        train, test = (
            read(f"client {number} ({role})", own) for role, own in zip(("train", "test"), given, strict=True)
        )
        agree([(f"client {number} (train)", train[0]), (f"client {number} (test)", test[0])])
        agree([("server", self.of_server.game.x), (f"client {number} (train)", train[0])])
        return ClientData(Examples.of_one(*train), Examples.of_one(*test))

    @cached_property
    def of_server(self) -> ServerData:
        x, y = read("server", self.server())
        if len(y) < 2:
            raise UserError("server: there is 1 example; expected at least two")
        game, judge = server_halves(len(y), self.seed)
        return ServerData(in_blocks(x[game], y[game]), in_blocks(x[judge], y[judge]))

    def check(self) -> None:
        """Raise unless there is a number of clients."""
        count = getattr(self, "clients", None)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(
                f"{type(self).__name__}.clients = {count!r}: must be the number of clients, at least 1"
            )

    def __repr__(self) -> str:
        return summary.line(self, f"{getattr(self, 'clients', 0)} clients", ["examples are fetched"])


class FolderSource(ClientSource):
    """Clients in a folder of NumPy files, one for each.

    `federation.json` holds {"clients": N}. `server.npz` has the arrays x and y. Client 12345 is in
    `12/12345.npz`, which has x, y, test_x and test_y. Nothing in these files is ever executed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            found = json.loads((self.folder / FEDERATION).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f'{self.folder / FEDERATION}: {shortened(str(error))}; expected {{"clients": N}}'
            ) from None
        count = found.get("clients") if isinstance(found, dict) else None
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f'{self.folder / FEDERATION}: expected {{"clients": N}}, with N at least 1')
        self.clients = count

    def client(self, number: int) -> tuple[Given, Given]:
        name = self.folder / str(number // IN_A_FOLDER) / f"{number}.npz"
        x, y, test_x, test_y = _arrays(name, "x", "y", "test_x", "test_y")
        return (x, y), (test_x, test_y)

    def server(self) -> Given:
        return _arrays(self.folder / SERVER, "x", "y")


def _arrays(path: Path, *names: str) -> tuple[np.ndarray, ...]:
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        with np.load(path, allow_pickle=False) as found:
            return tuple(found[name] for name in names)
    except KeyError as error:
        raise UserError(f"{path} has no array {error}; expected {', '.join(names)}") from None
    except Exception as error:  # a damaged file can make NumPy raise anything
        raise UserError(f"{path} cannot be read: {shortened(str(error))}") from None
