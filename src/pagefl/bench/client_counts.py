"""`pagefl bench clients`: seconds per round and peak memory of ever larger federations, with one cohort."""

import multiprocessing
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from rich.table import Table

from pagefl.algorithms import ALGORITHMS
from pagefl.experiments.builders import synthetic
from pagefl.experiments.defaults import DEFAULT_ALGORITHM
from pagefl.experiments.tasks import SYNTHETIC
from pagefl.game.players import PLAYERS
from pagefl.runtime.halves import Say
from pagefl.runtime.loop import play
from pagefl.runtime.machine import machine
from pagefl.runtime.settings import Settings

from . import machine_load
from .engine import MET
from .peak_memory import PeakMemory

COHORT = 1000
CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
PLAYED = ("fixed", "page-shared")
TURNS, ROUNDS = 2, 4  # the first round of a turn is not timed
SLOWER, MEMORY = 1.5, 3000.0  # bars: times the smallest federation's seconds, and MB


def clients(quick: bool = False, say: Say = lambda message: None) -> dict[str, Any]:
    """Every federation plays in a process of its own, in turn. The smallest is in memory as a whole."""
    watch = machine_load.Watch()
    cohort, counts = (10, (10, 20_000)) if quick else (COHORT, CLIENTS)
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {
        (players, count): [] for players in PLAYED for count in counts
    }
    for turn in range(1 if quick else TURNS):
        for players, count in cells:
            say(f"{count} clients, {players}, turn {turn + 1} …")
            cells[players, count].append(_in_a_process(players, count, cohort))
    load = watch.stop()
    found: list[dict[str, Any]] = []
    for (players, count), turns in cells.items():
        seconds = median(second for turn in turns for second in turn["seconds"])
        smallest = next((cell["seconds"] for cell in found if cell["players"] == players), seconds)
        memory = max(turn["memory_mb"] for turn in turns)
        good = seconds <= SLOWER * smallest and memory <= MEMORY
        found.append(
            {
                "players": players,
                "clients": count,
                "seconds": seconds,
                "ratio": seconds / smallest,
                "memory_mb": memory,
                "met": good if load.quiet and not quick else None,
            }
        )
    return {"quick": quick, "machine": machine(), "load": load._asdict(), "cohort": cohort, "cells": found}


def _in_a_process(players: str, count: int, cohort: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(theirs, players, count, cohort))
    process.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    finally:
        process.join()
    return found


def _play(told: Connection, players: str, count: int, cohort: int) -> None:
    peak = PeakMemory()
    own = {**SYNTHETIC, "rounds": ROUNDS, "participation": cohort / count, "personal": {"when": "never"}}
    settings = Settings.model_validate(own)
    run = play(synthetic(0, count), ALGORITHMS[DEFAULT_ALGORITHM](), settings, PLAYERS[players]())
    peak.stop()
    told.send({"seconds": [entry["seconds"] for entry in run.rounds[1:]], "memory_mb": peak.mb})


def table(result: dict[str, Any]) -> Table:
    facts = result["machine"]
    size = "toy sizes, " if result["quick"] else ""
    made = Table(
        *("players", "clients", "seconds per round", "times the smallest", "peak MB", "met"),
        title=f"{size}{facts['cpu']}, torch {facts['torch']}: a cohort of {result['cohort']}",
        caption=f"Medians. Bars: {SLOWER:g} times, {MEMORY:g} MB.\n{machine_load.caption(result)}",
    )
    for cell in result["cells"]:
        made.add_row(
            cell["players"],
            f"{cell['clients']:,}",
            f"{cell['seconds']:.2f}",
            f"{cell['ratio']:.2f}",
            f"{cell['memory_mb']:.0f}",
            MET[cell["met"]],
        )
    return made
