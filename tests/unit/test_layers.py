"""Imports only go down."""

import ast
from pathlib import Path

import pagefl

SOURCE = Path(pagefl.__file__).parent
LOWER = {  # what each layer may import, beside itself
    "core": set(),
    "agents": set(),
    "algorithms": {"core"},
    "game": {"core", "agents"},
    "data": {"core"},
    "models": {"core"},
    "runtime": {"core", "algorithms", "agents", "game", "data", "models"},
    "experiments": {"core", "algorithms", "agents", "game", "data", "models", "runtime"},
    "deploy": {"core", "algorithms", "agents", "game", "data", "models", "runtime", "experiments"},
    "report": {"core", "algorithms", "agents", "game", "data", "models", "runtime", "experiments"},
    "cli": {"core", "algorithms", "game", "data", "runtime", "experiments", "deploy", "report", "api", "comparing"},
}


def imported(path: Path) -> set[str]:
    """Layers that a file imports, absolutely or relatively."""
    package = path.relative_to(SOURCE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["pagefl", *package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("pagefl.")}
    return found


def test_imports_go_down():
    assert imported(SOURCE / "runtime" / "run.py") > {"core", "runtime"}  # the reader itself can see
    for layer, lower in LOWER.items():
        for path in (SOURCE / layer).rglob("*.py"):
            assert imported(path) <= lower | {layer}, path


def test_every_layer_has_a_place():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} <= set(LOWER)


def test_no_algorithm_is_named_outside_its_file():
    """P1. The registry and the settings table are the only lists of names."""
    from pagefl.algorithms import ALGORITHMS

    allowed = {SOURCE / "algorithms", SOURCE / "experiments" / "settings.py", SOURCE / "experiments" / "paper.py"}
    own = {"local"}  # an English word too
    for path in SOURCE.rglob("*.py"):
        if allowed & {path, path.parent}:
            continue
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        named = strings & (set(ALGORITHMS) - own)
        assert named <= {"fedavg"} if path.name in ("spec.py", "cli.py") else not named, (path, named)
