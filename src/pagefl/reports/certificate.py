"""The equilibrium certificate as a table and as a figure."""

import json
from pathlib import Path
from typing import Any

import matplotlib
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def table(result: dict[str, Any]) -> Table:
    budgets = any(finding["used"] is not None for finding in result["findings"])
    page = Table(
        "stage",
        "player",
        "pay-off",
        "largest gain",
        "by",
        "tried",
        *(("too dear", "budget used", "its price") if budgets else ()),
        title=f"{result['run']}: epsilon by one move changed",
    )
    for finding in result["findings"]:
        move = "other weights" if finding["player"] == "server" else finding["move"]
        by = move if isinstance(move, str) else _told(move) if move else ""
        gain = f"{100 * finding['epsilon']:.2f} %"
        page.add_row(
            str(finding["stage"]),
            finding["player"],
            f"{finding['payoff']:.4g}",
            gain,
            by if finding["epsilon"] else "",
            str(finding["tried"]),
            *(_budget(finding) if budgets else ()),
        )
    return page


def _budget(finding: dict[str, Any]) -> tuple[str, str, str]:
    """Deviations that it could not pay for, what it used itself, and its shadow price if the budget binds."""
    if finding["used"] is None:
        return "", "", ""
    price = f"{finding['multiplier']:.3g}" if finding["multiplier"] > 0 else "does not bind"
    return str(finding["barred"]), f"{100 * finding['used']:.0f} %", price


def _told(move: list[float]) -> str:
    lr, epochs = move
    return f"lr {lr:.3g}, {epochs:.0f} epochs" if epochs else "no step"


def write(directory: Path, result: dict[str, Any]) -> Path:
    """Write certificate.json and certificate.png. Returns the path of the figure."""
    (directory / "certificate.json").write_text(json.dumps(result, indent=1))
    stages = sorted({finding["stage"] for finding in result["findings"]})
    players = sorted(
        {finding["player"] for finding in result["findings"]},
        key=lambda name: (name == "server", len(name), name),
    )
    figure, axes = plt.subplots(
        figsize=(max(6.0, 0.25 * len(players) * len(stages) + 3), 3.6), layout="constrained"
    )
    width = 0.8 / len(stages)
    for s, stage in enumerate(stages):
        gains = {f["player"]: 100 * f["epsilon"] for f in result["findings"] if f["stage"] == stage}
        places = [i + (s - (len(stages) - 1) / 2) * width for i in range(len(players))]
        axes.bar(places, [gains.get(player, 0.0) for player in players], width, label=f"from round {stage}")
    axes.set_xticks(range(len(players)), players, rotation=30, ha="right")
    axes.set_ylabel("largest gain, % of pay-off")
    axes.set_title(f"{result['run']}: what one other move would have gained", loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path = directory / "certificate.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
