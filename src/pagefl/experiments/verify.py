"""The certificate of a run: how much any one player could have gained by one other move."""

from pathlib import Path
from typing import Any

import numpy as np

from pagefl.core.errors import UserError
from pagefl.game.certificate import OWN_STEP, Finding, Trial, bellman_residual, certify_game
from pagefl.game.clock import Clock
from pagefl.game.follower import Timekeeper
from pagefl.game.game import Game
from pagefl.game.ranges import Ranges
from pagefl.runtime import binding, checkpoint, numbers, record
from pagefl.runtime.demand import Demand
from pagefl.runtime.directory import SPEC, stages_of
from pagefl.runtime.halves import Say
from pagefl.runtime.hostile import check_not_attacked
from pagefl.runtime.rounds import Rounds
from pagefl.runtime.simulation import one_numeric_mode, simulate

from .spec import RunSpec
from .tasks import players_of


def ranges_of(spec: RunSpec) -> Ranges:
    """The ranges of moves: those of the players, or the paper's if players have none."""
    given: dict[str, Any] = {
        name: spec.players[name]
        for name in ("lr_min", "lr_max", "epochs_max", "temperature")
        if name in spec.players
    }
    if "span" in spec.players:
        given |= {"lr_min": spec.lr / spec.players["span"], "lr_max": spec.lr * spec.players["span"]}
    usual: dict[str, Any] = {
        **players_of(spec.task["name"], {"lr": spec.lr, "epochs": spec.epochs})["random"]
    }
    return Ranges(**{**usual, **given})


def _check_clock(clock: Timekeeper | None) -> None:
    if isinstance(clock, Clock) and (clock.barrier.kind != "wait" or clock.fleet.sleeps or clock.selection):
        raise UserError(
            "devices: a certificate replays rounds in which every upload counts, whatever the time; expected "
            "devices.barrier = wait, and devices that are always available"
        )


def verify(directory: Path, spec: RunSpec, trial: Trial, say: Say) -> dict[str, Any]:
    """Compute the certificate from every stage that the run has kept, and from its end."""
    if spec.privacy.epsilon:
        raise UserError(
            f"privacy.epsilon = {spec.privacy.epsilon:g}: a certificate replays rounds without noise, which "
            "no budget pays for; expected a run without privacy"
        )
    stages, rounds_played = stages_of(directory), record.read(directory)[0]
    if not rounds_played:
        raise UserError(
            f"{directory} has no round to start from; let it run for longer, or `pagefl resume` it"
        )
    check_not_attacked(spec, "a certificate")
    ranges = ranges_of(spec)
    findings: list[Finding] = []
    with one_numeric_mode():
        task = spec.make_task()
        simulation = simulate(task, spec.make_algorithm(), spec, say)
        follower, leaders = simulation.game(spec.make_players())
        _check_clock(follower.clock)
        bound = binding.facts_of(spec, simulation.data, task.fresh_module(spec.seed), simulation.server.model)
        demand = Demand(spec.shifts(), directory)
        rounds = Rounds(Game(follower, leaders), spec, demand, simulation.models)
        with simulation.with_workers(say):
            for path in stages:
                tensors, facts = checkpoint.read(path)
                binding.check(bound, facts, directory / SPEC, say)
                rounds.restore(tensors, facts)
                say(f"stage {facts['round']}: replaying {trial.horizon} rounds with one move changed")
                asked = demand.known(facts["round"] + 1)
                findings += certify_game(follower, leaders, facts["round"], asked, ranges, spec.gamma, trial)
    history = numbers.of_rounds(rounds_played, str(directory))
    residuals = {}
    for who in ("server", "clients"):
        rewards, payoffs = (
            np.array([entry[column] for entry in history], np.float64)
            for column in (f"reward_{who}", f"payoffs.{who}")
        )
        residuals[who] = record.finite(bellman_residual(rewards, payoffs, spec.gamma))
    moving = {f.player for f in findings if f.player != "server" and not f.player.endswith(OWN_STEP)}
    return {
        "run": spec.label,
        "epsilon": max(finding.epsilon for finding in findings),
        "epsilon_server": max(f.epsilon for f in findings if f.player == "server"),
        "epsilon_clients": max(f.epsilon for f in findings if f.player in moving),
        "epsilon_personal": max((f.epsilon for f in findings if f.player.endswith(OWN_STEP)), default=None),
        "bellman_residual": residuals,
        "horizon": trial.horizon,
        "findings": [{**f._asdict(), "move": None if f.player == "server" else f.move} for f in findings],
    }
