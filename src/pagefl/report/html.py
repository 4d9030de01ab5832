"""One or several runs as a page that stands alone: what it needs is in it, and it may fetch nothing."""

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from math import ceil
from pathlib import Path
from typing import Any

from pagefl.runtime.record import Record

from .progress import best, decimal, duration

MOST_POINTS = 2000
# A line of a chart: column, label, colour and dash (of several runs, though, each has a colour and each line its own dash),
# and where there is one the column to draw as a band around it.
CHARTS: list[dict[str, Any]] = [
    {
        "title": "Accuracy",
        "about": "The shared model on the server's test; the clients' own models on their own tests, averaged.",
        "axis": "linear",
        "lines": [
            ("global_accuracy", "global", 0, "solid"),
            ("local_accuracy", "local", 1, "solid"),
            ("local_accuracy_before", "local before training", 1, "dash"),
        ],
    },
    {
        "title": "Loss",
        "about": "On the server's test, on the clients' own tests, and on what they train on.",
        "axis": "linear",
        "lines": [
            ("global_loss", "global", 0, "solid"),
            ("local_loss", "local", 1, "solid"),
            ("train_loss", "training", 2, "dash"),
        ],
    },
    {
        "title": "Rewards",
        "about": "One over the loss, on a logarithmic axis; that of the clients is their mean.",
        "axis": "log",
        "lines": [("reward_server", "server", 0, "solid"), ("reward_clients", "clients", 1, "solid")],
    },
    {
        "title": "Spread over the clients",
        "about": "Local accuracy: its mean, one standard deviation around it (up to three runs), and the worst tenth's.",
        "axis": "linear",
        "lines": [("local_accuracy", "mean", 1, "solid", "local_std"), ("local_worst10", "worst tenth", 3, "dash")],
    },
]


def write_report(path: Path, title: str, runs: dict[str, list[Record]], spec_text: str) -> None:
    aside = path.with_name(f"{path.name}.aside")
    try:
        aside.write_text(_page(title, runs, spec_text), encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _page(title: str, runs: dict[str, list[Record]], spec_text: str) -> str:
    from plotly.offline import get_plotlyjs  # slow to import, and needed only here

    scripts = [get_plotlyjs(), SCRIPT]
    allowed = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    charts = CHARTS if any(runs.values()) else []
    data = {"charts": charts, "runs": [{"name": name, **_columns(rounds)} for name, rounds in runs.items()]}
    figures = "".join(_figure(number, chart, runs) for number, chart in enumerate(charts)) or "No rounds yet."
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title><style>{STYLE}</style></head>
<body><main><h1>{escape(title)}</h1>
{_cards(*runs.values()) if len(runs) == 1 else _table(runs)}
<div class="charts">{figures}</div><p id="spoken" aria-live="polite"></p>
<details><summary>The settings in full</summary><pre tabindex="0">{escape(spec_text)}</pre></details></main>
<script type="application/json" id="data">{json.dumps(data, allow_nan=False).replace("<", chr(92) + "u003c")}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body></html>
"""


def _columns(rounds: list[Record]) -> dict[str, list[float | None]]:
    """What the charts draw, five digits each; of a very long run every so many rounds, and the last."""
    lines = [line for chart in CHARTS for line in chart["lines"]]
    kept = rounds[: -1 : max(1, ceil(len(rounds) / MOST_POINTS))] + rounds[-1:]
    names = {"round", *(line[0] for line in lines), *(line[4] for line in lines if len(line) > 4)}
    return {name: [_short(record.get(name)) for record in kept] for name in sorted(names)}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _figure(number: int, chart: dict[str, Any], runs: dict[str, list[Record]]) -> str:
    ends = ((name, rounds[-1]) for name, rounds in runs.items() if rounds)
    told = (f"{name}, {line[1]}: {decimal(last.get(line[0]))}" for name, last in ends for line in chart["lines"])
    label = escape(f"{chart['title']} by round; the arrow keys read the rounds. At the end: {'; '.join(told)}")
    return f"""<figure><h2>{chart["title"]}</h2><figcaption>{chart["about"]}</figcaption>
<div class="chart" id="chart{number}" tabindex="0" role="application" aria-roledescription="chart" aria-label="{label}">
</div></figure>
"""


def _facts(rounds: list[Record]) -> list[tuple[str, str, str]]:
    last = rounds[-1] if rounds else {}
    seconds = sum(record["seconds"] or 0 for record in rounds)
    return [
        ("Global accuracy", decimal(last.get("global_accuracy")), f"best {best(rounds, 'global_accuracy')}"),
        ("Local accuracy", decimal(last.get("local_accuracy")), f"best {best(rounds, 'local_accuracy')}"),
        ("Rounds", str(last.get("round", 0)), f"{last.get('participants', 0)} clients in each"),
        ("Time", duration(seconds), f"{seconds / max(len(rounds), 1):.3g} s per round"),
    ]


def _cards(rounds: list[Record]) -> str:
    cards = (f"<div><dt>{name}</dt><dd><b>{value}</b>{note}</dd></div>" for name, value, note in _facts(rounds))
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _table(runs: dict[str, list[Record]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Run", *(fact[0] for fact in _facts([]))))
    rows = ""
    for name, rounds in runs.items():
        cells = "".join(f"<td><b>{value}</b>{note}</td>" for _, value, note in _facts(rounds))
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="The runs in numbers">
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"""


STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #fff; --ink: #1b1f24; --dim: #59616b; --edge: #e2e5e9; --focus: #2563eb }
@media (prefers-color-scheme: dark) {
  :root { --page: #111317; --card: #191c22; --ink: #e6e8eb; --dim: #9aa3ae; --edge: #2c3139; --focus: #7aa8ff } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: clamp(16px, 3vw, 36px) }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1.2rem; overflow-wrap: anywhere }
h2 { font-size: 1rem; margin: 0 }
.cards, .charts { display: grid; gap: 16px; margin: 0 0 16px }
.cards { grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)) }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)) }
.cards div, figure, .scroll, details {
  background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px }
dt, figcaption, thead th { color: var(--dim); font-size: .85rem; font-weight: 400 }
dd, td { margin: 0; color: var(--dim); font-size: .85rem; font-variant-numeric: tabular-nums; text-wrap: balance }
dd b, td b { display: block; color: var(--ink); font-size: 1rem; font-weight: 600; line-height: 1.3 }
dd b { font-size: 1.7rem }
figure { display: flex; flex-direction: column; margin: 0; min-width: 0 }
.legend { display: flex; flex-wrap: wrap; gap: 4px; margin: 6px 0 0 -6px }
.chart { height: 300px; margin-top: auto; border-radius: 6px; overflow: hidden }
.legend button { display: flex; align-items: center; gap: 6px; max-width: 100%; padding: 2px 6px; border: 0; border-radius: 6px;
  background: none; color: inherit; font: inherit; font-size: .85rem; text-align: left; overflow-wrap: anywhere }
.legend button:hover { background: var(--edge) }
button[aria-pressed=false] { opacity: .5; text-decoration: line-through }
.legend svg { flex: none }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 1px }
.scroll { overflow-x: auto; margin-bottom: 16px; padding: 6px 0 }
table { border-collapse: collapse; width: 100% }
th, td { padding: 6px 16px; text-align: left; vertical-align: top; white-space: nowrap }
tbody tr { border-top: 1px solid var(--edge) }
th:first-child { white-space: normal; min-width: 7rem; overflow-wrap: anywhere }
summary, button { cursor: pointer }
pre { overflow-x: auto; margin: 12px 0 0; font: 13px/1.5 ui-monospace, monospace }
#spoken { position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%) }
"""

SCRIPT = """
const {charts, runs} = JSON.parse(document.getElementById("data").textContent);
const colours = ["#3b82f6", "#e8710a", "#14a06f", "#a35cf0", "#e0457b", "#0e9aa7", "#b08900", "#8a8f98"];
const dashes = {solid: "", dash: "7 4", dot: "2 3"}, several = runs.length > 1, hidden = new Set();
const finger = matchMedia("(pointer: coarse)").matches;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");  // Plotly would read a name as markup
const short = name => name.length > 48 ? name.slice(0, 20) + "…" + name.slice(-27) : name;
const longest = Math.max(...runs.map(run => run.round.length));

function traces(c, r, l) {
  const run = runs[r], [column, label, hue, style, spread] = charts[c].lines[l];
  const color = colours[(several ? r : hue) % colours.length], dash = several ? Object.keys(dashes)[l] : style;
  const name = several ? `${run.name}: ${label}` : label;
  const shared = {x: run.round, visible: !hidden.has(`run ${r}`) && !hidden.has(`line ${c} ${l}`)};
  const mode = run.round.length > 2 ? "lines" : "lines+markers";  // a line of one round would not be seen
  const line = {...shared, y: run[column], line: {width: 2, color, dash}, mode, marker: {size: 6}, name,
    meta: plain(short(name)), hovertemplate: "%{y:.4g}<extra>%{meta}</extra>"};
  if (!spread || runs.length > 3) return [line];  // more bands than three are mud
  const off = sign => line.y.map((y, i) => y === null || run[spread][i] === null ? null : y + sign * run[spread][i]);
  const edge = {...shared, mode: "lines", line: {width: 0, color}, hoverinfo: "skip"};
  return [{...edge, y: off(-1)}, {...edge, y: off(1), fill: "tonexty", fillcolor: color + (several ? "16" : "2a")}, line];
}

function draw(c) {
  const axis = {gridcolor: css("--edge"), linecolor: css("--edge"), zeroline: false, automargin: true};
  const bounds = charts[c].lines[0][0].endsWith("accuracy") ? {clipmin: -0.005, clipmax: 1.005} : {};
  Plotly.react(`chart${c}`, charts[c].lines.flatMap((_, l) => runs.flatMap((_, r) => traces(c, r, l))), {
    font: {family: "system-ui, sans-serif", size: 12, color: css("--dim")},
    paper_bgcolor: css("--card"), plot_bgcolor: css("--card"),
    margin: {l: 8, r: 12, t: finger ? 12 : 26, b: 8}, showlegend: false, uirevision: "as the reader left it",
    xaxis: {...axis, title: {text: "round", font: {size: 12}, standoff: 6}, unifiedhovertitle: {text: "round %{x}"},
      dtick: longest < 8 ? 1 : undefined},  // no half rounds
    yaxis: {...axis, type: charts[c].axis, autorangeoptions: bounds, tickformat: "~g",
      dtick: charts[c].axis === "log" ? "D2" : undefined},  // 1, 2, 5: all nine digits would overlap
    dragmode: finger ? false : "zoom",  // a finger scrolls the page
    hovermode: runs.length > 4 ? "closest" : "x unified",
    hoverlabel: {bgcolor: css("--card"), bordercolor: css("--edge"), font: {color: css("--ink")}, namelength: -1},
    modebar: {bgcolor: "transparent", color: css("--dim"), activecolor: css("--ink")},
  }, {responsive: true, displaylogo: false, displayModeBar: finger ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]});
}
const drawAll = () => charts.forEach((_, c) => draw(c));

function switches(entries) {  // our own legend: Plotly's cannot be reached by keyboard
  const legend = document.createElement("div");
  legend.className = "legend";
  for (const {key, label, color, dash} of entries) {
    const button = document.createElement("button");
    button.innerHTML = `<svg width="26" height="10" aria-hidden="true"><path d="M1 5h24" stroke-width="2.5"/></svg>`;
    button.querySelector("path").style = `stroke: ${color}; stroke-dasharray: ${dashes[dash]}`;
    button.append(label);
    button.dataset.key = key;
    button.ariaPressed = "true";
    button.onclick = () => {
      hidden.delete(key) || hidden.add(key);
      for (const each of document.querySelectorAll(".legend button")) each.ariaPressed = String(!hidden.has(each.dataset.key));
      drawAll();
    };
    legend.append(button);
  }
  return legend;
}

function readByArrows(chart) {
  const rounds = [...new Set(runs.flatMap(run => run.round))].sort((a, b) => a - b);
  let at = -1;
  chart.onkeydown = event => {
    const next = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: rounds.length - 1}[event.key];
    if (next === undefined || !rounds.length) return;
    event.preventDefault();
    at = Math.min(Math.max(next, 0), rounds.length - 1);
    const lines = chart.data.filter(trace => trace.meta && trace.visible);
    const told = lines.map(line => `${line.name} ${line.y[line.x.indexOf(rounds[at])] ?? "none"}`).join(", ");
    document.getElementById("spoken").textContent = `round ${rounds[at]}: ${told}`;
    Plotly.Fx.hover(chart, {xval: rounds[at]});
  };
}

document.querySelectorAll(".chart").forEach((chart, c) => {
  if (several) chart.before(switches(runs.map((run, r) =>
    ({key: `run ${r}`, label: run.name, color: colours[r % colours.length], dash: "solid"}))));
  chart.before(switches(charts[c].lines.map(([, label, hue, dash], l) => ({key: `line ${c} ${l}`, label,
    color: several ? "currentColor" : colours[hue], dash: several ? Object.keys(dashes)[l] : dash}))));
  readByArrows(chart);
});
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
"""
