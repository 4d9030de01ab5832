"""Imports only go down."""

import ast
import re
from pathlib import Path

import pytest

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.experiments.paper import TABLES
from pagefl.experiments.tasks import TASKS

SOURCE = Path(pagefl.__file__).parent
BASE = {"core", "devices", "algorithms", "agents", "game", "data", "models", "trust"}
RUNS = {*BASE, "runtime", "experiments"}
LOWER = {  # what each layer may import, beside itself
    "core": set(),
    "agents": set(),
    "devices": {"core"},
    "algorithms": {"core"},
    "game": {"core", "agents", "devices"},
    "data": {"core"},
    "models": {"core"},
    "trust": {"core"},
    "runtime": BASE,
    "experiments": {*BASE, "runtime"},
    "bench": RUNS,
    "deploy": RUNS,
    "reports": RUNS,
    "console": {*RUNS, "deploy", "reports", "comparing"},
    "cli": {*RUNS, "bench", "deploy", "reports", "console", "api", "comparing"}
    - {"agents", "devices", "models"},
}


def imports(source: str, package: tuple[str, ...] = ()) -> set[str]:
    """Dotted names that a source text imports, absolutely, or relatively to its package."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ["pagefl", *package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def imports_of(path: Path) -> set[str]:
    return imports(path.read_text(), path.relative_to(SOURCE).parent.parts)


def upward(names: set[str], layer: str) -> set[str]:
    """Layers among these imports that a layer may not know."""
    return {name.split(".")[1] for name in names if name.startswith("pagefl.")} - LOWER[layer] - {layer}


def test_imports_go_down():
    for layer in LOWER:
        for path in (SOURCE / layer).rglob("*.py"):
            assert not upward(imports_of(path), layer), path


@pytest.mark.parametrize(
    ("package", "planted", "found"),
    [
        (("core",), "from pagefl.game.protocol import Players", {"game"}),
        (("core", "training"), "from ...game import rewards", {"game"}),
        (("core",), "from pagefl.core.training.options import Options", set()),
        (("game", "players"), "import pagefl.runtime.simulation", {"runtime"}),
        (("game", "players"), "from ..protocol import Setup", set()),
        (("runtime",), "from pagefl.deploy import node", {"deploy"}),
        (("experiments",), "from pagefl.bench.workloads import WORKLOADS", {"bench"}),
        (("deploy",), "from pagefl.reports import html", {"reports"}),
    ],
)
def test_an_upward_import_is_seen(package, planted, found):
    assert upward(imports(planted, package), package[0]) == found


def test_every_layer_has_a_place():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} <= set(LOWER)


ENGLISH = {"local"}  # a word before it is an algorithm; its class and its module count all the same


def algorithms_named(source: str, package: tuple[str, ...] = ()) -> set[str]:
    """Algorithms that a source text names: in an import, as a variable, class or attribute, or as a string of
    its own.
    """
    words = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word))
            ):
                words.add(word)
            case ast.ClassDef(name=word) | ast.FunctionDef(name=word):
                words.add(word)
            # a name or a path, no sentence
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.:/-]+", text):
                words |= set(re.split(r"[.:/-]", text))
    dotted = imports(source, package)
    words |= {word for name in dotted for word in name.split(".")}
    classes = {kind.__name__: name for name, kind in ALGORITHMS.items()}
    modules = {kind.__module__: name for name, kind in ALGORITHMS.items()}
    return (
        (words & (ALGORITHMS.keys() - ENGLISH))
        | {name for word, name in classes.items() if word in words}
        | {
            name
            for module, name in modules.items()
            if any(f"{found}.".startswith(f"{module}.") for found in dotted)
        }
    )


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from pagefl.algorithms.fedavg import FedAvg", {"fedavg"}),
        ("from pagefl.algorithms.fedavg import FedAvg as Plain", {"fedavg"}),
        ("from pagefl.algorithms import FedAvg as Plain", {"fedavg"}),
        ("from pagefl.algorithms import fedprox", {"fedprox"}),
        ("import pagefl.algorithms.ditto", {"ditto"}),
        ("import pagefl.algorithms.local as own", {"local"}),
        ("from pagefl.algorithms import local", {"local"}),
        ("from ..algorithms.local import LocalOnly", {"local"}),
        ("from ..algorithms import scaffold as rule", {"scaffold"}),
        ("import pagefl\npagefl.algorithms.FedRod()", {"fedrod"}),
        ("isinstance(algorithm, PFedMe)", {"pfedme"}),
        ("def fedala(): ...", {"fedala"}),
        ("run(algorithm='feddyn')", {"feddyn"}),
        ("load('pagefl.algorithms.fedrecon:FedRecon')", {"fedrecon"}),
        ("run(ditto=1)", {"ditto"}),
        (
            '"""As FedAvg does, and fedprox."""\nfrom pagefl.algorithms import ALGORITHMS\nlocal = "local"',
            set(),
        ),
    ],
)
def test_the_reader_sees_every_way_to_name_an_algorithm(source, named):
    assert algorithms_named(source, ("game",)) == named


def test_no_algorithm_is_named_outside_its_file():
    """P1. The registry and the settings table are the only lists of names."""
    allowed = {
        SOURCE / "algorithms",
        SOURCE / "experiments" / "defaults.py",
        SOURCE / "experiments" / "paper.py",
    }
    for path in SOURCE.rglob("*.py"):
        if not allowed & {path, path.parent}:
            assert not algorithms_named(path.read_text(), path.relative_to(SOURCE).parent.parts), path


def texts(path: Path) -> set[str]:
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}


def test_a_task_is_named_in_its_entry_only():
    """So that a new task is one entry, its builder and its data.

    The tables of the paper choose among tasks.
    """
    allowed = {SOURCE / "experiments" / f"{name}.py" for name in ("tasks", "builders", "paper")}
    allowed |= set((SOURCE / "data").iterdir())
    default = {"synthetic"}  # of a spec
    for path in set(SOURCE.rglob("*.py")) - allowed:
        assert not texts(path) & (TASKS.keys() - default), path


def test_a_table_is_named_in_its_entry_only():
    """So that a new table is one entry. Table 5 has no runs: it is a benchmark. Privacy has settings, too."""
    for path in set(SOURCE.rglob("*.py")) - {SOURCE / "experiments" / "paper.py"}:
        assert not texts(path) & (TABLES.keys() - {"table5", "privacy"}), path


def test_benchmarks_import_what_is_there():
    for path in (SOURCE.parents[1] / "benchmarks").glob("*.py"):
        for name in imports(path.read_text()):
            if name.startswith("pagefl."):
                module, _, attribute = name.rpartition(".")
                exec(f"from {module} import {attribute}")
