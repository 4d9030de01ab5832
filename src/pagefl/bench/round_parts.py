"""`pagefl bench table5, agents`: the parts of a round, and what agents take of it."""

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

from rich.table import Table

from pagefl.core.algorithm import Algorithm
from pagefl.experiments.builders import synthetic
from pagefl.game.game import Game
from pagefl.game.players.page import Page
from pagefl.game.players.shared import PageShared
from pagefl.game.protocol import Players
from pagefl.runtime.demand import Demand
from pagefl.runtime.halves import Say
from pagefl.runtime.rounds import Rounds
from pagefl.runtime.settings import Settings
from pagefl.runtime.simulation import one_numeric_mode, simulate

from . import machine_load
from .workloads import LOGISTIC

PUBLISHED = {"training": 1.45e-4, "aggregation": 1.93e-6, "client agents": 6.84e-5, "server agent": 7.38e-5}


def table5(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """The paper's Table 5: the parts of a round of PAGE on Synthetic, on one core.

    Also in milliseconds per byte of all clients' models.
    """
    results, watch = {}, machine_load.Watch()
    for clients in (4,) if quick else (100, 1000):
        say(f"{clients} clients …")
        # The warm-up is one minibatch of the replay memory, so that agents learn in the timed rounds.
        results[str(clients)] = _split(clients, Page(warm_up=32), warm=33, quick=quick)
    return {"players": "page", "load": watch.stop()._asdict(), "clients": results}


def agents(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Time that agents take in a round: one agent per client, or one policy that all clients share."""
    kinds: dict[str, tuple[Players, int]] = {
        "page": (Page(warm_up=32), 33),
        "page-shared": (PageShared(), 3),
    }
    results: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    watch = machine_load.Watch()
    for clients in (4,) if quick else (100, 1000, 10_000):
        for kind, (players, warm) in kinds.items():
            say(f"{kind}, {clients} clients …")
            results[kind][str(clients)] = _split(clients, players, warm, quick)
    return {"load": watch.stop()._asdict(), "players": results}


def agents_table(result: dict[str, Any]) -> Table:
    columns = ("players", "clients", "round", "client agents", "server agent", "agents' share")
    made = Table(*columns, title="Synthetic, one core", caption=machine_load.caption(result))
    for kind, by_size in result["players"].items():
        for clients, r in by_size.items():
            parts = [r["share"][part] * r["seconds_per_round"] for part in ("client agents", "server agent")]
            cells = [f"{1000 * seconds:.1f} ms" for seconds in (r["seconds_per_round"], *parts)]
            made.add_row(kind, clients, *cells, f"{r['agents_share']:.1%}")
    return made


def _split(clients: int, players: Players, warm: int, quick: bool) -> dict[str, Any]:
    timed = 1 if quick or clients > 1000 else 20 if clients <= 100 else 5
    # Only the first rounds are played. In these, agents explore and learn.
    settings = Settings(**{**LOGISTIC, "rounds": 1000, "workers": 1})
    spent: dict[str, float] = defaultdict(float)
    running: list[str] = []

    def clock(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*words: Any, **options: Any) -> Any:
            start = perf_counter()
            running.append(part)
            try:
                return call(*words, **options)
            finally:
                running.pop()
                spent[part] += perf_counter() - start
                if running:  # an evaluation inside an agent's call is not the agent's time
                    spent[running[-1]] -= perf_counter() - start

        return timed_call

    with one_numeric_mode():
        simulation = simulate(synthetic(0, clients), Algorithm(), settings)
        follower, leaders = simulation.game(players)
        rounds = Rounds(Game(follower, leaders), settings, Demand([], None))
        for _ in range(warm):
            rounds.play()
        for part, owner, name in (
            ("training", simulation.block.model, "descend"),
            ("evaluation", simulation.block.model, "score"),
            ("evaluation", simulation.block.model, "accuracies"),
            ("client agents", leaders.policy, "observe"),
            ("client agents", leaders.policy, "act"),
            ("client agents", leaders.policy, "reward"),
            ("client agents", follower.policy, "update"),
            ("server agent", follower.policy, "observe"),
            ("server agent", follower.policy, "act"),
            ("server agent", follower.policy, "reward"),
            ("aggregation", simulation.server, "aggregate"),
        ):
            setattr(owner, name, clock(part, getattr(owner, name)))
        start = perf_counter()
        epochs = sum(rounds.play()[0]["mean_epochs"] for _ in range(timed)) / timed
        total = perf_counter() - start
    spent["the rest"] = total - sum(spent.values())
    size = simulation.block.storage.personal.nbytes
    return {
        "seconds_per_round": total / timed,
        "mean_epochs": epochs,
        "share": {part: seconds / total for part, seconds in spent.items()},
        "ms_per_byte": {part: 1000 * seconds / timed / size for part, seconds in spent.items()},
        "agents_share": (spent["client agents"] + spent["server agent"]) / total,
    }


def table5_table(result: dict[str, Any]) -> Table:
    columns = [
        f"N = {clients}{what}" for clients in result["clients"] for what in (", share", ", ms per byte")
    ]
    columns = ["part of a round", *columns, "the paper's ms per byte"]
    made = Table(*columns, title="PAGE on Synthetic, one core", caption=machine_load.caption(result))
    for part in next(iter(result["clients"].values()))["share"]:
        cells = [
            cell
            for r in result["clients"].values()
            for cell in (f"{r['share'][part]:.1%}", f"{r['ms_per_byte'][part]:.2e}")
        ]
        made.add_row(part, *cells, f"{PUBLISHED[part]:.2e}" if part in PUBLISHED else "–")
    return made
