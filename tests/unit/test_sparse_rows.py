"""Rows of clients that have taken part: as a plain dictionary has them, also after a crash at any moment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefl.core.errors import UserError
from pagefl.core.sparse_rows import SparseRows

CLIENTS = 8
FIRST = {"row": torch.tensor([1.0, 2.0, 3.0]), "seen": torch.tensor([7], dtype=torch.int64)}
actions = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.sets(st.integers(0, CLIENTS - 1), min_size=1)),
        st.just(("save", None)),
        st.just(("crash", None)),
        st.just(("crash and lose the last checkpoint", None)),
    ),
    max_size=30,
)


def read(store: SparseRows) -> list[tuple[list[float], int]]:
    into = {name: torch.zeros(CLIENTS, *value.shape, dtype=value.dtype) for name, value in FIRST.items()}
    store.read(torch.arange(CLIENTS).numpy(), into)
    return [(into["row"][i].tolist(), int(into["seen"][i])) for i in range(CLIENTS)]


def read_again(store: SparseRows, state: dict[str, torch.Tensor]) -> None:
    store.load(state)
    read(store)


@settings(max_examples=60, deadline=None)
@given(actions=actions)
def test_rows_are_those_of_the_checkpoint(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("store") / "clients.rows"
    store, held = SparseRows(CLIENTS, FIRST, path), [([1.0, 2.0, 3.0], 7)] * CLIENTS
    copies = {name: value.clone() for name, value in store.state().items()}
    checkpoints = [(copies, list(held))] * 2
    for number, (action, who) in enumerate(actions, 1):
        if action == "train":
            numbers = torch.tensor(sorted(who)).numpy()
            new = {
                "row": torch.full([len(numbers), 3], float(number)),
                "seen": torch.tensor([[number]] * len(numbers)),
            }
            store.write(numbers, torch.arange(len(numbers)).numpy(), new)
            for client in who:
                held[client] = ([float(number)] * 3, number)
        elif action == "save":
            copies = {name: value.clone() for name, value in store.state().items()}
            checkpoints = [checkpoints[1], (copies, list(held))]
            store.saved()
        else:
            last = 1 if action == "crash" else 0
            checkpoints = [checkpoints[last], checkpoints[last]]
            store, held = SparseRows(CLIENTS, FIRST, path), list(checkpoints[1][1])
            store.load(checkpoints[1][0])
        assert read(store) == held


def test_places_are_used_again(tmp_path):
    path = tmp_path / "clients.rows"
    store = SparseRows(CLIENTS, FIRST, path)
    rows = {"row": torch.zeros(2, 3), "seen": torch.zeros(2, 1, dtype=torch.int64)}
    for _ in range(50):
        store.write(torch.tensor([1, 5]).numpy(), torch.arange(2).numpy(), rows)
        store.state()
        store.saved()
    assert path.stat().st_size <= 4 * 2 * store.width


@pytest.mark.parametrize("damage", ["a changed byte", "cut off"])
def test_damage_is_named(tmp_path, damage):
    path = tmp_path / "clients.rows"
    store = SparseRows(CLIENTS, FIRST, path)
    rows = {"row": torch.ones(1, 3), "seen": torch.ones(1, 1, dtype=torch.int64)}
    store.write(torch.tensor([3]).numpy(), torch.tensor([0]).numpy(), rows)
    state = store.state()
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(bytes(content) if damage == "a changed byte" else bytes(content[:10]))
    again = SparseRows(CLIENTS, FIRST, path)
    with pytest.raises(UserError, match=r"clients.rows.*(client 3|shorter)"):
        read_again(again, state)
