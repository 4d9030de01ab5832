"""The Python interface: run, resume, load."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from pagefl.core.algorithm import Algorithm
from pagefl.core.errors import UserError
from pagefl.experiments import own_code
from pagefl.experiments import spec as specs
from pagefl.experiments import verify as certificates
from pagefl.experiments.spec import RunSpec
from pagefl.experiments.tasks import TASKS
from pagefl.game.certificate import Trial
from pagefl.game.players import PLAYERS
from pagefl.game.protocol import Players
from pagefl.game.rewards import DemandRatio
from pagefl.reports import html, verdict
from pagefl.reports.html import Reported, last_clients
from pagefl.reports.notebook import CellProgress, Run, in_notebook
from pagefl.runtime import binding, checkpoint, demand, halves, record
from pagefl.runtime.by_class import by_class, classes_of
from pagefl.runtime.devices import check_simulated
from pagefl.runtime.directory import SPEC, RunDirectory, last_facts
from pagefl.runtime.halves import Say
from pagefl.runtime.hostile import check_not_attacked
from pagefl.runtime.loop import play
from pagefl.runtime.metrics import Metric
from pagefl.runtime.own_files import check_own_files
from pagefl.runtime.run import Observe
from pagefl.runtime.simulation import one_numeric_mode, simulate
from pagefl.runtime.task import Task

Kind = TypeVar("Kind")


class Own(NamedTuple):
    """The user's own objects; None where a name is given instead."""

    task: Task | None = None
    algorithm: Algorithm | None = None
    players: Players | None = None


def run(
    spec: str | Path | RunSpec | None = None,
    *,
    task: str | dict[str, Any] | Task | None = None,
    algorithm: str | dict[str, Any] | Algorithm | None = None,
    players: str | dict[str, Any] | Players | None = None,
    out: str | Path | None = None,
    observe: Observe = lambda record: None,
    say: Say = lambda message: None,
    metrics: Sequence[Metric] = (),
    **settings: Any,
) -> Run:
    """Run a spec file, a RunSpec, or the settings given here. Write to the directory `out`, if it is given.

    >>> run = pagefl.run(task="digits", algorithm="page", rounds=20, out="runs/first")
    >>> run.history[["round", "global_accuracy", "local_accuracy"]]
    >>> run.plot("plane")

    `task`, `algorithm` and `players`: a name, a table such as {"name": "fedprox", "mu": 0.1}, or your own
    object. Algorithms and players can also be named as "module:Class". `clients=50` is short for the task's
    setting. `observe` is called with the record of every round, `say` with messages. `metrics` are
    numbers of your own beside accuracy. `RunSpec` lists all settings.
    """
    own = Own(
        _own("task", task, Task), _own("algorithm", algorithm, Algorithm), _own("players", players, Players)
    )
    if own.task is not None and own.task.name in TASKS:  # its spec would be that of another task
        raise UserError(
            f"task = {own.task.name!r}: a task of pagefl has this name; give your own another, as in "
            'pagefl.Task("mine", …)'
        )
    raw = _given(spec, {"task": task, "algorithm": algorithm, "players": players, **settings})
    return launch(specs.resolve(raw, *own), own, out, observe, say, metrics)


def _own(field: str, given: object, kind: type[Kind]) -> Kind | None:
    """The user's own object; None if a name or a table is given."""
    if isinstance(given, kind) or given is None:
        return given
    if isinstance(given, type):
        raise UserError(
            f"{field} = {given.__name__}: this is a class; expected an object, such as {given.__name__}(…)"
        )
    if not isinstance(given, str | dict):
        found = type(given).__name__
        raise UserError(
            f"{field} is a {found}; expected a name, a table with a name and settings, or a "
            f"pagefl.{kind.__name__}"
        )
    return None


def _given(spec: str | Path | RunSpec | None, settings: dict[str, Any]) -> specs.Raw:
    """The spec, overridden by the given settings. The user's own objects bring their settings with them."""
    if not isinstance(spec, str | Path | RunSpec | None):
        raise UserError(
            f"spec is a {type(spec).__name__}; expected the path of a TOML file or a pagefl.RunSpec"
        )
    raw = {} if spec is None else spec.model_dump() if isinstance(spec, RunSpec) else specs.read(Path(spec))
    for name, value in settings.items():
        if value is not None:
            own = isinstance(value, Task | Algorithm | Players)
            specs.put(raw, "task.clients" if name == "clients" else name, {} if own else value)
    return raw


def launch(
    spec: RunSpec,
    own: Own = Own(),  # noqa: B008 (nothing can change it)
    out: str | Path | None = None,
    observe: Observe = lambda record: None,
    say: Say = lambda message: None,
    metrics: Sequence[Metric] = (),
) -> Run:
    """Run a resolved spec, with the user's own objects."""
    directory = None if out is None else RunDirectory(Path(out), spec.toml(), fresh=True)
    return _play(spec, own, directory, observe, say, metrics)


def resume(
    directory: str | Path | Run,
    *,
    task: Task | None = None,
    algorithm: str | Algorithm | None = None,
    players: str | Players | None = None,
    rounds: int | None = None,
    restart: bool = False,
    executor: str | None = None,
    address: str | None = None,
    observe: Observe = lambda record: None,
    say: Say = lambda message: None,
    metrics: Sequence[Metric] = (),
) -> Run:
    """Continue from the last checkpoint to the last round of the spec, or to `rounds`.

    `directory`: of the run, or what `run` returned when it was interrupted.

    It goes on with local workers, unless `executor` and `address` name a cluster.

    If the run used the user's own task, algorithm, players or metrics, give these again. If
    records or checkpoints are damaged, this raises an error and changes nothing. `restart=True` moves them to
    a folder in the directory and starts from round 1.
    """
    if isinstance(directory, Run):
        before = directory.own or Own()
        task, algorithm, players = (
            task or before.task,
            algorithm or before.algorithm,
            players or before.players,
        )
        if directory.directory is None:
            raise UserError(
                "resume: this run has no directory; give `out=…` to `pagefl.run` to resume it later"
            )
    path = Path(directory.directory or "") if isinstance(directory, Run) else Path(directory)
    own = Own(
        _own("task", task, Task), _own("algorithm", algorithm, Algorithm), _own("players", players, Players)
    )
    spec = spec_of(
        path,
        own,
        rounds,
        restart=restart,
        algorithm=algorithm,
        players=players,
        executor=executor,
        address=address,
    )
    return _play(spec, own, RunDirectory(path, spec.toml(), restart=restart), observe, say, metrics)


def load(directory: str | Path, *, task: Task | None = None) -> Run:
    """The records and models of a run directory. The run need not be finished."""
    path = Path(directory)
    raw = _raw_spec(path)
    state: dict[str, Tensor] = {}
    if facts := record.newest_facts(path):
        state, facts = checkpoint.read(path / checkpoint.NAME)

    def module() -> nn.Module:
        return (task or specs.make_task(raw["task"], raw["seed"])).fresh_module(raw["seed"])

    name = f"{RunSpec.model_construct(**raw).label} on {raw['task']['name']}"
    rounds, clients = record.vouched_by(facts, path)
    over, classes = _is_over(facts, raw), classes_of(facts)
    return Run(rounds, clients, state, module, path, over, name=name, planned=raw["rounds"], classes=classes)


def tip(directory: Path, ratio: str) -> DemandRatio:
    """Ask a running run for another demand ratio, from its next round on."""
    raw = _raw_spec(directory)
    name = str(raw["players"].get("name"))
    if name in PLAYERS and not PLAYERS[name].uses_demand:
        raise UserError(
            f"bias: players = {name!r} do not learn from rewards, so that demand changes nothing for them"
        )
    if _is_over(record.newest_facts(directory), raw):
        raise UserError(
            f"bias: the run in {directory} is over; `pagefl resume {directory} --rounds N` lets it go on"
        )
    return demand.tip(directory, ratio)


def _is_over(facts: Mapping[str, Any] | None, raw: specs.Raw) -> bool:
    """Whether the run has ended. Version 0.1.0 did not record `over`."""
    if not facts:
        return False
    return bool(facts.get("over", facts["round"] >= raw["rounds"] or facts.get("equilibrium") is not None))


def environment(kind: str = "aec", spec: str | Path | None = None, **settings: Any) -> Any:
    """The game as an environment: "aec" or "parallel" (PettingZoo), "client 3" or "server" (Gymnasium).

    `settings` are as for `run`. `players` play the sides that the environment does not expose. Needs the
    extra `rl`.
    """
    try:
        from pagefl.game import pettingzoo
    except ModuleNotFoundError as error:
        raise UserError(
            f"environment needs {error.name}, which is not installed; `pip install pagefl[rl]` brings it"
        ) from None

    first = specs.resolve(_given(spec, settings))
    if first.privacy.epsilon:
        raise UserError(
            f"privacy.epsilon = {first.privacy.epsilon:g}: an environment shows agents what single clients "
            "did; expected 0"
        )
    check_not_attacked(first, "an environment")
    check_simulated(first, "an environment")

    def make(seed: int) -> Any:
        own = first.model_copy(update={"seed": seed})
        simulation = simulate(own.make_task(), own.make_algorithm(), own)

        def work_alone(jobs: list[Any]) -> list[object]:
            with one_numeric_mode():
                return [simulation.work(job) for job in jobs]

        clients, server = simulation.clients, simulation.server
        simulation.block.run = server.run_jobs = work_alone
        return clients, server, halves.setup_of(own, clients.size), halves.terms_of(own)

    seed, ranges = first.seed, certificates.ranges_of(first)
    views = {"aec": pettingzoo.FederatedAEC, "parallel": pettingzoo.FederatedParallel}
    if kind in views:
        return views[kind](make, ranges, seed)
    return pettingzoo.SingleSide(make, ranges, kind, first.make_players(), seed)


def verify(
    directory: Path,
    trial: Trial | None = None,
    say: Say = lambda message: None,
    *,
    algorithm: str | None = None,
    players: str | None = None,
) -> dict[str, Any]:
    """The equilibrium certificate of a run: how much each player could have gained by one other move.

    `algorithm` and `players`: the names of the user's own ones, as module:Class.
    """
    return certificates.verify(
        directory, spec_of(directory, algorithm=algorithm, players=players), trial or Trial(), say
    )


def report(
    runs: str | Path | Run | Sequence[str | Path | Run],
    out: str | Path = "report.html",
    *,
    say: Say = lambda message: None,
) -> Path:
    """Write one page for one or several runs: their directories, or what `run` returned. Returns its path.

    `say` is called with a sentence on who ended best, for each of the two accuracies.
    """
    sources = [runs] if isinstance(runs, str | Path | Run) else [*runs]
    if not sources:
        raise UserError("report: no run is given; expected run directories, or what `pagefl.run` returned")
    shown = [_reported(source, f"run {number}") for number, source in enumerate(sources, 1)]
    for sentence in verdict.sentences(shown):
        say(sentence)
    title = shown[0].name if len(shown) == 1 else f"{len(shown)} runs"
    html.write_report(Path(out), title, shown)
    return Path(out)


def _reported(source: str | Path | Run, name: str) -> Reported:
    if isinstance(source, Run):
        if source.directory is None:
            raw = source.settings.model_dump() if isinstance(source.settings, RunSpec) else None
            called = f"{name}: {source.name}"
            classes = by_class(source.client_rounds, source.classes)
            last = last_clients(source.client_rounds)
            return Reported(called, source.rounds, raw, last, by_class=classes)
        source = source.directory
    path, raw = Path(source), _raw_spec(Path(source))
    facts = record.newest_facts(path)
    rounds, clients = record.vouched_by(facts, path)
    classes = by_class(clients, classes_of(facts))
    return Reported(str(source), rounds, raw, last_clients(clients), _made(path, facts), classes)


def _made(path: Path, facts: Mapping[str, Any] | None) -> dict[str, str]:
    """When the run last saved its state, and with which version of pagefl."""
    if facts is None:
        return {}
    saved = datetime.fromtimestamp((path / checkpoint.NAME).stat().st_mtime, UTC)
    code = {name: str(facts[name]) for name in ("version", "commit") if facts.get(name)}
    return {"date": f"{saved:%Y-%m-%d %H:%M} UTC", **code}


def _play(
    spec: RunSpec,
    own: Own,
    directory: RunDirectory | None,
    observe: Observe,
    say: Say,
    metrics: Sequence[Metric],
) -> Run:
    for sentence in spec.without_effect():
        say(sentence)
    task, algorithm = own.task or spec.make_task(), own.algorithm or spec.make_algorithm()
    name = f"{spec.label} on {spec.task['name']}"
    if in_notebook():
        observe = _both(observe, CellProgress(spec.rounds).observe)
    players = own.players or spec.make_players()
    played = play(task, algorithm, spec, players, directory, observe, say, metrics)
    result = Run(**{**vars(played), "name": name}, own=own)
    if directory is not None:
        shown = Reported(
            name,
            result.rounds,
            spec.model_dump(),
            last_clients(result.client_rounds),
            _made(directory.path, record.newest_facts(directory.path)),
            by_class(result.client_rounds, result.classes),
        )
        html.write_report(directory.path / "report.html", name, [shown])
    return result


def _both(first: Observe, second: Observe) -> Observe:
    def observe(entry: record.Record) -> None:
        first(entry)
        second(entry)

    return observe


def spec_of(
    path: Path,
    own: Own = Own(),  # noqa: B008 (nothing can change it)
    rounds: int | str | None = None,
    *,
    restart: bool = False,
    algorithm: object = None,
    players: object = None,
    executor: str | None = None,
    address: str | None = None,
) -> RunSpec:
    """The complete spec of a run directory.

    `restart`: accept it even if it differs from the spec of the checkpoint. `algorithm`, `players`,
    `executor` and `address`: what the user gave. A name in the directory alone is not enough to import code,
    and an address in it not enough to connect to.
    """
    raw = _raw_spec(path, restart=restart)
    for kind, given, object_ in (("algorithm", algorithm, own.algorithm), ("players", players, own.players)):
        if object_ is None:
            own_code.check_named(kind, raw[kind].get("name"), given, str(path))
            if isinstance(given, str) and given != raw[kind].get("name"):
                raise UserError(
                    f"{kind} = {given!r}: the run in {path} was made with {raw[kind].get('name')!r}"
                )
    given_by_user = {"rounds": rounds, "executor": executor or "local", "address": address or ""}
    for name, value in given_by_user.items():
        if value is not None:
            specs.override(raw, f"{name}={value}")
    return specs.resolve(raw, *own)


# Settings that every complete spec contains, and their types.
WRITTEN = {"rounds": int, "seed": int, "task": dict, "algorithm": dict, "players": dict}


def _raw_spec(path: Path, *, restart: bool = False) -> specs.Raw:
    check_own_files(path)
    if not (path / SPEC).is_file():
        raise UserError(
            f"{path} is not a run directory (it has no {SPEC}); expected one that `pagefl run` made"
        )
    raw = specs.read(path / SPEC)
    for name, kind in WRITTEN.items():
        if not isinstance(raw.get(name), kind):
            raise UserError(
                f"{path / SPEC}: `{name}` is missing or wrong, so it is not what the run wrote; restore "
                "the file"
            )
    if not restart and (facts := last_facts(path)):
        binding.check_settings(raw, facts, path / SPEC)
    return raw
