"""An HTML report of one or several runs. The page is self-contained and loads nothing."""

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from math import ceil
from pathlib import Path
from typing import Any

from pagefl.runtime import numbers
from pagefl.runtime.numbers import Numbers
from pagefl.runtime.record import Record

from .progress import best, decimal, duration

FEWEST, MOST, MOST_OF_ALL = 250, 2000, 10_000  # points per run, and of all runs together
MOST_CLIENTS = 100_000  # dots of all runs together
HERE = Path(__file__).parent


def _line(
    column: str, label: str, hue: int, style: str = "solid", *, band: str | None = None, right: bool = False
) -> dict[str, Any]:
    """A line of a chart.

    `band`: column to draw as a band around the line. `right`: use the second axis. With several runs, colours
    distinguish runs and dashes distinguish lines.
    """
    return {"column": column, "label": label, "hue": hue, "style": style, "band": band, "right": right}


def _chart(
    title: str,
    about: str,
    *lines: dict[str, Any],
    axis: str = "linear",
    right: str | None = None,
    x: str = "round",
) -> dict[str, Any]:
    return {"title": title, "about": about, "axis": axis, "right": right, "x": x, "lines": lines}


CHARTS = [
    _chart(
        "Accuracy",
        "The shared model on the server's test; the clients' own models on their own tests, averaged. "
        "Personal: after the personal step.",
        _line("global_accuracy", "global", 0),
        _line("local_accuracy", "local", 1),
        _line("local_accuracy_before", "local before training", 1, "dash"),
        _line("personal_accuracy", "personal", 2, "dot"),
    ),
    _chart(
        "Accuracy and rewards",
        "Rewards are one over the loss, on the logarithmic axis to the right; that of the clients is "
        "their mean.",
        _line("global_accuracy", "global", 0),
        _line("local_accuracy", "local", 1, "dash"),
        _line("reward_server", "server's reward", 2, "dot", right=True),
        _line("reward_clients", "clients' reward", 3, "dashdot", right=True),
        right="log",
    ),
    _chart(
        "Personalisation and generalisation",
        "Each run's way through the plane of global and local accuracy: up and to the right is better on "
        "both. "
        "Dots are the ends; the grey line joins those that no other run beats on both.",
        _line("local_accuracy", "local over global", 0),
        x="global_accuracy",
    ),
    _chart(
        "Learning rates and epochs",
        "What the clients chose, or were given: mean lr, and on the axis to the right mean local epochs.",
        _line("mean_lr", "lr", 2),
        _line("mean_epochs", "epochs", 3, "dash", right=True),
        axis="log",
        right="linear",
    ),
    _chart(
        "Weights",
        "The largest and the smallest weight that the server gave an upload.",
        _line("largest_weight", "largest", 4),
        _line("smallest_weight", "smallest", 5, "dash"),
        axis="log",
    ),
    _chart(
        "Agents' losses",
        "Of learning players: the critics' mean squared Bellman error, the clients' mean and, to the "
        "right, the server's.",
        _line("agents.clients_critic", "clients' critics", 2),
        _line("agents.server_critic", "server's critic", 3, "dash", right=True),
        axis="log",
        right="log",
    ),
    _chart(
        "Spread over the clients",
        "Local accuracy: its mean, one standard deviation around it (up to three runs), and the worst "
        "tenth's.",
        _line("local_accuracy", "mean", 1, band="local_std"),
        _line("local_worst10", "worst tenth", 3, "dash"),
    ),
    _chart(
        "Loss",
        "On the server's test, on the clients' own tests, and on what they train on.",
        _line("global_loss", "global", 0),
        _line("local_loss", "local", 1),
        _line("train_loss", "training", 2, "dash"),
    ),
]


Clients = dict[str, list[float]]  # by run: local accuracy of each client in the last recorded round


def write_report(
    path: Path, title: str, runs: dict[str, list[Record]], spec_text: str, clients: Clients | None = None
) -> None:
    """Write the page.

    Records may come from someone else. `numbers` takes only numbers from them, and all other text is escaped.
    """
    page = _page(
        title,
        {name: numbers.of_rounds(rounds, name) for name, rounds in runs.items()},
        spec_text,
        clients or {},
    )
    aside = path.with_name(f"{path.name}.aside")
    aside.unlink(missing_ok=True)  # it may be a symbolic link
    try:
        aside.write_text(page, encoding="utf-8", errors="backslashreplace")  # a path may not be Unicode
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _page(title: str, runs: dict[str, list[Numbers]], spec_text: str, clients: Clients) -> str:
    from plotly.offline import get_plotlyjs  # slow to import, and needed only here

    plotly, own = scripts = [get_plotlyjs(), (HERE / "page.js").read_text()]
    style = (HERE / "page.css").read_text()
    allowed = " ".join(
        f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"  # not covered by default-src
    )
    charts = [chart for chart in CHARTS if any(_drawn(chart, rounds) for rounds in runs.values())]
    most = min(MOST, max(FEWEST, MOST_OF_ALL // max(len(runs), 1)))
    data = {
        "charts": charts,
        "runs": [{"name": name, **_columns(rounds, most)} for name, rounds in runs.items()],
        "clients": [_thinned(clients.get(name, []), max(1, MOST_CLIENTS // len(runs))) for name in runs],
    }
    figures = "".join(_figure(number, chart, runs) for number, chart in enumerate(charts)) or "No rounds yet."
    if any(clients.values()):
        figures += DISTRIBUTION
    safe = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title>
<style>{style}</style></head>
<body><main><h1>{escape(title)}</h1>
{_cards(*runs.values()) if len(runs) == 1 else _table(runs)}
<div class="charts">{figures}</div><p id="spoken" aria-live="polite"></p>
<details><summary>The settings in full</summary><pre tabindex="0">{escape(spec_text)}</pre></details></main>
<script type="application/json" id="data">{safe}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{own}</script>
</body></html>
"""


DISTRIBUTION = """<figure><h2>The clients</h2>
<figcaption>Each client's local accuracy in the last recorded round: a dot each, with quartiles.</figcaption>
<div class="chart" id="clients" role="img" aria-label="Local accuracy of each client, by run"></div>
</figure>
"""


def last_clients(client_rounds: list[Record]) -> list[float]:
    return numbers.of_clients(client_rounds[-1]) if client_rounds else []


def _drawn(chart: dict[str, Any], rounds: list[Numbers]) -> bool:
    """Whether there is anything to draw. Empty charts are left out."""
    return any(record[line["column"]] is not None for line in chart["lines"] for record in rounds)


def _columns(rounds: list[Numbers], most: int) -> dict[str, list[float | None]]:
    """The columns that charts draw, with five digits. Long runs are thinned to about `most` rounds.

    Of a run whose accuracies were measured in some rounds only, these are drawn.
    """
    lines = [line for chart in CHARTS for line in chart["lines"]]
    judged = [record for record in rounds if record["global_accuracy"] is not None]
    rounds = judged if 0 < 2 * len(judged) <= len(rounds) + 1 else rounds
    kept = rounds[: -1 : max(1, ceil(len(rounds) / most))] + rounds[-1:]
    names = {"round", *(line["column"] for line in lines), *(line["band"] for line in lines if line["band"])}
    return {name: [_short(record[name]) for record in kept] for name in sorted(names)}


def _thinned(values: list[float], most: int) -> list[float | None]:
    """At most about `most` clients, evenly spaced by rank, so that quartiles and extremes are kept."""
    if len(values) > most:
        ordered = sorted(values)
        values = ordered[: -1 : ceil(len(values) / most)] + ordered[-1:]
    return [_short(value) for value in values]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _figure(number: int, chart: dict[str, Any], runs: dict[str, list[Numbers]]) -> str:
    ends = ((name, rounds[-1]) for name, rounds in runs.items() if rounds)
    told = (
        f"{name}, {line['label']}: {decimal(last[line['column']])}"
        for name, last in ends
        for line in chart["lines"]
    )
    label = escape(
        f"{chart['title']} by round; the arrow keys read the rounds. At the end: {'; '.join(told)}"
    )
    return f"""<figure><h2>{chart["title"]}</h2><figcaption>{chart["about"]}</figcaption>
<div class="chart" id="chart{number}" tabindex="0" role="application" aria-roledescription="chart"
aria-label="{label}">
</div></figure>
"""


def _facts(rounds: list[Numbers]) -> list[tuple[str, str, str]]:
    last = rounds[-1] if rounds else dict.fromkeys(numbers.RANGES)
    seconds = sum(record["seconds"] or 0 for record in rounds)
    return [
        ("Global accuracy", decimal(last["global_accuracy"]), f"best {best(rounds, 'global_accuracy')}"),
        ("Local accuracy", decimal(last["local_accuracy"]), f"best {best(rounds, 'local_accuracy')}"),
        *_personal(last),
        ("Rounds", str(last["round"] or 0), f"{last['participants'] or 0} clients in each"),
        ("Time", duration(seconds), f"{seconds / max(len(rounds), 1):.3g} s per round"),
    ]


def _personal(last: Numbers) -> list[tuple[str, str, str]]:
    """Also of a run without a personal step, if others in the table have one."""
    worst = f"worst tenth {decimal(last['personal_worst10'])}"
    return [("Personal accuracy", decimal(last["personal_accuracy"]), worst)]


def _cards(rounds: list[Numbers]) -> str:
    cards = (
        f"<div><dt>{name}</dt><dd>{_fact(value, note)}</dd></div>" for name, value, note in _facts(rounds)
    )
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _fact(value: str, note: str) -> str:
    return f"<b>{escape(value)}</b>{escape(note)}"


def _table(runs: dict[str, list[Numbers]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Run", *(fact[0] for fact in _facts([]))))
    rows = ""
    for name, rounds in runs.items():
        cells = "".join(f"<td>{_fact(value, note)}</td>" for _, value, note in _facts(rounds))
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="The runs in numbers">
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"""
