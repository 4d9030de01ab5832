"""An HTML report of one or several runs. The page is self-contained, small, and loads nothing."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pagefl.experiments import differences
from pagefl.experiments.spec import Raw, RunSpec, dump
from pagefl.runtime import numbers
from pagefl.runtime.by_class import ByClass
from pagefl.runtime.numbers import Numbers
from pagefl.runtime.record import Record

from . import charts, classes, palette
from .charts import Drawn, Shown
from .quantities import of_classes
from .svg import DASHES
from .words import best, count, decimal, duration

HERE = Path(__file__).parent
NO_MADE: Mapping[str, str] = {}
MOST_SETTINGS = 12  # that differ; more are told by the settings in full
LONGEST = 80  # characters of a setting's value


class Reported(NamedTuple):
    """A run, as it is handed to a report."""

    name: str
    rounds: Sequence[Record]
    spec: Raw | None = None
    clients: Sequence[float] = ()  # local accuracy of each client in the last recorded round
    made: Mapping[str, str] = NO_MADE  # date, version and commit
    by_class: ByClass | None = None  # where clients have devices

    @property
    def method(self) -> str:
        """Runs of one method have one colour. Without a spec, the name says which method it is."""
        if self.spec is None:
            return self.group.partition(" on ")[0]
        return RunSpec.model_construct(**self.spec).label

    @property
    def group(self) -> str:
        """The seeds of a method form a group."""
        return re.sub(r", seed \d+$", "", self.name)


def last_clients(client_rounds: Sequence[Record]) -> list[float]:
    return numbers.of_clients(client_rounds[-1]) if client_rounds else []


def write_report(path: Path, title: str, runs: Sequence[Reported], note: str = "") -> None:
    """Write the page.

    Records may come from someone else. `numbers` takes only numbers from them, and all other text is escaped.
    """
    page = _page(title, runs, note)
    aside = path.with_name(f"{path.name}.aside")
    aside.unlink(missing_ok=True)  # it may be a symbolic link
    try:
        aside.write_text(page, encoding="utf-8", errors="backslashreplace")  # a path may not be Unicode
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _page(title: str, runs: Sequence[Reported], note: str) -> str:
    script, *styles = ((HERE / name).read_text() for name in ("page.js", "page.css", "chart.css"))
    policy = (
        f"default-src 'none'; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"  # the last two: not in default-src
    )
    rounds = {run.name: numbers.of_rounds(run.rounds, run.name) for run in runs}
    shown = _shown(runs, rounds)
    drawn = [*(charts.of_run(shown[0]) if len(shown) == 1 else charts.of_runs(shown))]
    figures = [_figure(number, chart, shown) for number, chart in enumerate(drawn)]
    if found := [(run.name, run.by_class) for run in runs if run.by_class]:
        figures.append(classes.figure(found))
        for chart in _class_charts(runs, shown):
            figures.append(_figure(len(drawn), chart, shown))
            drawn.append(chart)
    if any(run.clients for run in runs):
        figures.append(_clients(runs, shown))
    data = {
        "charts": [{"x": chart.x, "labels": chart.labels} for chart in drawn],
        "runs": [{"name": run.name, "key": run.key, "columns": _used(run, drawn)} for run in shown],
    }
    safe = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title>
<style>{"".join(styles)}</style></head>
<body><main><h1>{escape(title)}</h1>
{_top(runs)}
{_cards(rounds[runs[0].name]) if len(runs) == 1 else _table(runs, rounds, shown)}
{_settings(runs)}
{_legend(runs, shown) if len(runs) > 1 else ""}
<div class="charts">{"".join(figures) or "No rounds yet."}</div><p id="spoken" aria-live="polite"></p>
<details><summary>The settings in full</summary><pre tabindex="0">{escape(_text(runs, note))}</pre></details>
</main>
<script type="application/json" id="data">{safe}</script>
<script>{script}</script>
</body></html>
"""


def _shown(runs: Sequence[Reported], rounds: Mapping[str, Sequence[Numbers]]) -> list[Shown]:
    """Runs of a group have one colour and one key."""
    methods: dict[str, str] = {}
    for run in runs:
        named = run.method in methods.values() and run.group not in methods
        methods.setdefault(run.group, f"{run.method}, {run.group}" if named else run.method)
    colours = palette.colours([*methods.values()])
    groups = [*methods]
    found = []
    for run in runs:
        columns = charts.columns(rounds[run.name], len(runs))
        if run.by_class and len(runs) == 1:
            columns |= charts.of_classes(run.by_class, columns["round"])
        key = f"run {groups.index(run.group)}"
        found.append(Shown(run.name, key, colours[methods[run.group]], columns))
    return found


def _used(run: Shown, drawn: Sequence[Drawn]) -> dict[str, Any]:
    names = {"round", *(chart.x for chart in drawn), *(column for chart in drawn for column in chart.labels)}
    return {name: values for name, values in run.columns.items() if name in names}


def _top(runs: Sequence[Reported]) -> str:
    """What was run, when, and with which version: what all runs share, or what each of them has."""

    def told(of: Callable[[Reported], object]) -> str:
        values = dict.fromkeys(str(of(run)) for run in runs if of(run) not in (None, ""))
        return ", ".join(values)[:LONGEST]

    def setting(name: str, entry: str = "") -> Callable[[Reported], object]:
        def of(run: Reported) -> object:
            value: Any = (run.spec or {}).get(name)
            return value.get(entry) if entry and isinstance(value, dict) else value

        return of

    facts = {
        "Task": told(setting("task", "name")),
        "Method": told(lambda run: run.method if run.spec else None),
        "Seed": told(setting("seed")),
        "Date": told(lambda run: run.made.get("date")),
        "pagefl": told(lambda run: run.made.get("version")),
        "Commit": told(lambda run: run.made.get("commit", "")[:12]),
    }
    cells = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)
    return f'<dl class="top">{"".join(cells)}</dl>'


def _settings(runs: Sequence[Reported]) -> str:
    """The settings that differ: of one run from the defaults, of several from one another."""
    if not runs or any(run.spec is None for run in runs):
        return ""
    specs = [run.spec or {} for run in runs]
    if len(runs) == 1:
        found = {name: [value] for name, value in differences.from_defaults(specs[0]).items()}
        title, heads = "Settings that differ from the defaults", ["value"]
    else:
        found = differences.between(specs)
        title, heads = "Settings in which the runs differ", [run.name for run in runs]
    if not found:
        return ""
    left = len(found) - MOST_SETTINGS
    rows = ""
    for name, values in [*found.items()][:MOST_SETTINGS]:
        cells = "".join(f"<td>{escape(_value(value))}</td>" for value in values)
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("setting", *heads))
    more = f"<p>and {left} more, see the settings in full</p>" if left > 0 else ""
    return f"""<details open><summary>{title}</summary>
<div class="scroll" tabindex="0" role="region" aria-label="{title}">
<table class="settings"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}</details>"""


def _value(value: object) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _text(runs: Sequence[Reported], note: str) -> str:
    parts = [f"# {run.name}\n{dump(run.spec)}" for run in runs if run.spec]
    return "\n\n".join([*([note] if note else []), *parts])


def _figure(number: int, chart: Drawn, shown: Sequence[Shown]) -> str:
    told = (
        f"{run.name}, {label}: {decimal(run.columns[column][-1])}"
        for run in shown
        for column, label in chart.labels.items()
        if run.columns[column]
    )
    label = f"{chart.title} by round; the arrow keys read the rounds. At the end: {'; '.join(told)}"
    legend = "".join(_switch(*switch) for switch in chart.switches)
    return f"""<figure><h2>{escape(chart.title)}</h2><figcaption>{chart.about}</figcaption>
<div class="legend">{legend}</div>
<div class="chart" id="chart{number}" tabindex="0" role="application" aria-roledescription="chart"
aria-label="{escape(label)}">{chart.body}</div></figure>
"""


def _class_charts(runs: Sequence[Reported], shown: Sequence[Shown]) -> Iterator[Drawn]:
    """Of a single run: a line for each class."""
    if len(runs) == 1 and (found := runs[0].by_class):
        yield from charts.of_run(shown[0], of_classes(found.classes.names))


def _clients(runs: Sequence[Reported], shown: Sequence[Shown]) -> str:
    body = charts.clients(shown, [run.clients for run in runs])
    height = 60 + max(34, 90 // len(runs)) * len(runs)
    return f"""<figure class="wide"><h2>The clients</h2>
<figcaption>Each client's local accuracy in the last recorded round: a dot each, with quartiles.</figcaption>
<div class="chart rows" id="clients" style="height:{height}px" role="img"
aria-label="Local accuracy of each client, by run">{body}</div></figure>
"""


def _switch(key: str, label: str, colour: str, dash: str = "solid") -> str:
    """A button of a legend: it hides a line, or all lines of a run."""
    dashes = f";stroke-dasharray:{DASHES[dash]}" if DASHES[dash] else ""
    path = f'<path d="M1 5h24" style="stroke:{colour}{dashes}"/>'
    return (
        f'<button type="button" data-key="{escape(key)}" aria-pressed="true">'
        f'<svg width="26" height="10" aria-hidden="true">{path}</svg>{escape(label)}</button>'
    )


def _facts(rounds: Sequence[Numbers]) -> list[tuple[str, str, str]]:
    last = rounds[-1] if rounds else dict.fromkeys(numbers.RANGES)
    seconds = sum(record["seconds"] or 0 for record in rounds)
    accuracy = last["global_accuracy"]
    chance = accuracy is not None and charts.at_chance(accuracy, last["global_chance"])
    worst, personal = (decimal(last[f"{kind}_worst10"]) for kind in ("local", "personal"))
    return [
        (
            "Global accuracy",
            decimal(accuracy),
            "no better than chance" if chance else f"best {best(rounds, 'global_accuracy')}",
        ),
        ("Local accuracy", decimal(last["local_accuracy"]), f"worst tenth {worst}"),
        ("Personal accuracy", decimal(last["personal_accuracy"]), f"worst tenth {personal}"),
        ("Gradients", count(last["gradients"]), "examples, in training"),
        ("Rounds", str(last["round"] or 0), f"{last['participants'] or 0} clients in each"),
        ("Time", duration(seconds), f"{seconds / max(len(rounds), 1):.3g} s per round"),
    ]


def _cards(rounds: Sequence[Numbers]) -> str:
    cards = (
        f"<div><dt>{name}</dt><dd>{_fact(value, note)}</dd></div>" for name, value, note in _facts(rounds)
    )
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _fact(value: str, note: str) -> str:
    return f"<b>{escape(value)}</b>{escape(note)}"


def _table(runs: Sequence[Reported], rounds: Mapping[str, Sequence[Numbers]], shown: Sequence[Shown]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Run", *(fact[0] for fact in _facts([]))))
    rows = ""
    for run, mark in zip(runs, shown, strict=True):
        cells = "".join(f"<td>{_fact(value, note)}</td>" for _, value, note in _facts(rounds[run.name]))
        path = f'<path d="M5 5h0" style="stroke:{mark.colour}"/>'
        spot = f'<svg width="14" height="10" aria-hidden="true">{path}</svg>'
        rows += f'<tr><th scope="row">{spot}{escape(run.name)}</th>{cells}</tr>'
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="The runs in numbers">
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"""


def _legend(runs: Sequence[Reported], shown: Sequence[Shown]) -> str:
    """The buttons that hide runs. The seeds of a method go together."""
    groups = {mark.key: (run.group, mark.colour) for run, mark in zip(runs, shown, strict=True)}
    buttons = "".join(_switch(key, name, colour) for key, (name, colour) in groups.items())
    return f'<div class="legend runs">{buttons}</div>'
