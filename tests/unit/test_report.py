import json
import math
import re
import sys
import threading
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pagefl.core.errors import UserError, printable
from pagefl.experiments import spec as specs
from pagefl.experiments import sweep
from pagefl.experiments.scales import Block
from pagefl.reports import axis, charts, figures, html, palette, progress, svg
from pagefl.runtime import numbers

HOSTILE = """</script><script>alert(1)</script><!-- "'><img src=https://evil.example/x onerror=alert(2)>"""


def fake_rounds(count: int) -> list[dict[str, Any]]:
    """A run that learns: accuracy climbs towards 0.9, the loss falls."""
    rounds = []
    for number in range(1, count + 1):
        learnt = 1 - math.exp(-number / 20)
        record = {
            "round": number,
            "global_accuracy": 0.8 * learnt,
            "global_loss": 3 - 2 * learnt,
            "local_accuracy": 0.9 * learnt,
            "local_accuracy_before": 0.75 * learnt,
            "local_loss": 1 - 0.6 * learnt,
            "local_std": 0.12,
            "local_worst10": 0.6 * learnt,
            "train_loss": 0.9 - 0.6 * learnt,
            "participants": 100,
            "reward_server": 1 / (3 - 2 * learnt),
            "reward_clients": 900 * learnt,
            "payoffs": {"server": 1.0, "clients": 2.0},
            "seconds": 0.25,
        }
        rounds.append(record)
    return rounds


class Page(HTMLParser):
    """What a browser sees: elements with their attributes, text by the element it stands in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.text[self.open] = self.text.get(self.open, "") + data


def reported(
    runs: dict[str, list[dict[str, Any]]], clients: dict[str, list[float]] | None = None
) -> list[html.Reported]:
    return [
        html.Reported(name, rounds, clients=(clients or {}).get(name, ())) for name, rounds in runs.items()
    ]


def written(
    tmp_path: Path, runs: dict[str, list[dict[str, Any]]], title: str = "a title", spec: str = "rounds = 3"
) -> Page:
    html.write_report(tmp_path / "report.html", title, reported(runs), spec)
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("names", [["fedavg"], ["fedavg", "local", "page"]])
def test_page_refers_to_nothing_outside_itself(tmp_path: Path, names: list[str]) -> None:
    page = written(tmp_path, {name: fake_rounds(5) for name in names})
    assert "link" not in {tag for tag, _ in page.elements}
    assert not [
        attributes
        for _, attributes in page.elements
        if attributes.keys() & {"src", "href", "srcset", "action"}
    ]
    assert not re.search(r"url\(|@import|https?:", page.text["style"])
    policy = next(attributes["content"] for _, attributes in page.elements if attributes.get("http-equiv"))
    assert (policy or "").startswith("default-src 'none'")
    assert "http" not in (policy or "")


@pytest.mark.parametrize("others", [[], ["local"]])
def test_hostile_names_and_spec_stay_text(tmp_path: Path, others: list[str]) -> None:
    harmless = written(tmp_path, {name: fake_rounds(5) for name in ["fedavg", *others]})
    hostile = written(
        tmp_path, {name: fake_rounds(5) for name in [HOSTILE, *others]}, title=HOSTILE, spec=HOSTILE
    )
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    assert [list(attributes) for _, attributes in hostile.elements] == [
        list(attributes) for _, attributes in harmless.elements
    ]
    assert json.loads(hostile.text["data"])["runs"][0]["name"] == HOSTILE
    assert HOSTILE in hostile.text["pre"]
    assert HOSTILE in hostile.text["h1"]


STRANGE = [  # what a stranger's file may hold in place of a number
    HOSTILE,
    "0.5",
    "\x1b]0;title\x07",
    {"__proto__": {"x": HOSTILE}},
    [0.5] * 1000,
    True,
    10**400,
    1e308,
    -1e308,
    math.nan,
    math.inf,
    None,
    "missing",
]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("others", [[], ["local"]])
def test_strange_records_become_numbers_or_nothing(tmp_path: Path, value: object, others: list[str]) -> None:
    """Of a run directory that somebody sent: no field adds markup, and none ends in a traceback."""
    strange = fake_rounds(5)
    for column in numbers.RANGES:
        table, _, name = column.rpartition(".")
        for record in strange:
            target = record.setdefault(table, {}) if table else record
            if column != "round" and value == "missing":
                target.pop(name, None)
            elif column != "round":
                target[name] = value
    strange[-1] |= {"__proto__": HOSTILE, HOSTILE: HOSTILE}
    nothing = [{"round": number} for number in range(1, 6)]
    expected = written(tmp_path, dict.fromkeys(["fedavg", *others], nothing))
    page = written(tmp_path, dict.fromkeys(["fedavg", *others], strange))
    assert page.elements == expected.elements
    assert page.text == expected.text


@pytest.mark.parametrize(
    "record", [HOSTILE, 7, None, [1], {}, *({"round": value} for value in [*STRANGE, -1, 0.5, 10**10])]
)
def test_a_record_without_a_round_is_refused_in_one_sentence(tmp_path: Path, record: Any) -> None:
    with pytest.raises(UserError, match=r"^fedavg: line 2 of rounds.jsonl has no round number; .*$"):
        html.write_report(tmp_path / "report.html", "a title", reported({"fedavg": [{"round": 1}, record]}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("record", "known"),
    [
        ({"local_accuracy": [0.5, None, HOSTILE, 1e308, True, math.nan, [0.1], 10**400, 0.25]}, [0.5, 0.25]),
        ({"local_accuracy": HOSTILE}, []),
        ({"local_accuracy": {"0": 1}}, []),
        ({}, []),
        ([], []),
        (HOSTILE, []),
    ],
)
def test_strange_clients_are_left_out(record: Any, known: list[float]) -> None:
    assert html.last_clients([record]) == known


def test_more_clients_than_a_page_can_draw_are_thinned(tmp_path: Path) -> None:
    many = [((i * 7919) % 1_000_003) / 1_000_003 for i in range(1_000_003)]
    runs = reported({"run": fake_rounds(2)}, {"run": many})
    html.write_report(tmp_path / "report.html", "a title", runs)
    assert (tmp_path / "report.html").stat().st_size < 200_000
    drawn = svg.thinned(many, charts.MOST_CLIENTS)
    assert len(drawn) <= charts.MOST_CLIENTS + 1
    assert (drawn[0], drawn[-1]) == (min(many), max(many))
    assert drawn[len(drawn) // 4] == pytest.approx(0.25, abs=1e-3)


def test_a_link_beside_the_page_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "report.html.aside").symlink_to("precious")
    (tmp_path / "report.html").symlink_to("precious")
    html.write_report(tmp_path / "report.html", "a title", reported({"run": fake_rounds(2)}))
    assert (tmp_path / "precious").read_text() == "precious"
    assert "a title" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_name_that_is_not_unicode(tmp_path: Path) -> None:
    html.write_report(
        tmp_path / "report.html",
        "runs/\udcff",
        reported({"runs/\udcff": fake_rounds(2), "b": []}),
        "# runs/\udcff",
    )
    assert "runs/\\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_none_survives(tmp_path: Path) -> None:
    rounds = fake_rounds(4)
    rounds[1] |= {"global_loss": None, "reward_clients": None}
    rounds[3] |= {"global_accuracy": None, "local_accuracy": None}
    run = json.loads(written(tmp_path, {"fedavg": rounds}).text["data"])["runs"][0]["columns"]
    assert run["global_loss"][1] is None
    assert run["global_accuracy"][3] is None
    assert run["global_loss"][0] == pytest.approx(rounds[0]["global_loss"], rel=1e-4)


@pytest.mark.parametrize("runs", [{}, {"not begun": []}, {"not begun": [], "begun": fake_rounds(1)}])
def test_a_run_without_rounds_has_a_page_too(tmp_path: Path, runs: dict[str, list[dict[str, Any]]]) -> None:
    assert len(json.loads(written(tmp_path, runs).text["data"])["runs"]) == len(runs)


def test_headline_tells_last_and_best(tmp_path: Path) -> None:
    rounds = fake_rounds(4)
    rounds[1]["global_accuracy"] = 0.95
    page = written(tmp_path, {"fedavg": rounds})
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<b>{rounds[-1]['global_accuracy']:.4f}</b>best 0.9500 in round 2" in text
    assert "<b>1.0 s</b>0.25 s per round" in text
    assert [tag for tag, _ in page.elements].count("figure") == 5  # what there is no number for is not drawn
    assert (tmp_path / "report.html").stat().st_size < 50_000


def test_long_runs_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    drawn = json.loads(written(tmp_path, {"long": fake_rounds(5001)}).text["data"])["runs"][0]["columns"][
        "round"
    ]
    assert len(drawn) <= charts.MOST + 1
    assert (drawn[0], drawn[-1]) == (1, 5001)


def test_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "report.html"
    page.write_text("the page before")

    def full(self: Path, *args: object, **kwargs: object) -> int:
        self.write_bytes(b"<!doctype ht")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            html.write_report(page, "a title", reported({"fedavg": fake_rounds(2)}))
    assert page.read_text() == "the page before"
    assert list(tmp_path.iterdir()) == [page]
    html.write_report(page, "a title", reported({"fedavg": fake_rounds(2)}))
    assert "a title" in page.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values", [(0.1, 0.9), (3.0, 3.0), (1e-30, 3e38), (0.5, None), (1.0, 1000.0), (2.0, 2.5)]
)
def test_an_axis_shows_every_value_and_some_ticks(values: tuple[float | None, ...], log: bool) -> None:
    made = axis.fit("an axis", values, log=log)
    places = [made.at(value) for value in values if value is not None]
    assert all(0 <= place <= axis.LONG for place in places)
    assert 1 <= len(made.ticks) <= 12
    assert all(made.low <= tick <= made.high for tick in made.ticks)
    assert made.at(None) is None


def test_places_on_a_logarithmic_axis() -> None:
    made = axis.Axis("lr", 0.01, 100.0, True, [])
    assert [made.at(value) for value in (0.01, 0.1, 1, 10, 100, 0, -1)] == [
        0,
        250,
        500,
        750,
        1000,
        None,
        None,
    ]
    assert [axis.label(tick) for tick in (0.5, 20, 1e-7, 5e6, 0)] == ["0.5", "20", "10⁻⁷", "5·10⁶", "0"]


def test_lines_have_gaps_dots_and_bands() -> None:
    x, y = axis.Axis("round", 0, 10, False, []), axis.Axis("accuracy", 0, 1, False, [])
    line = svg.Line([0, 5, 10, 10], [0.0, None, 1.0, 0.5], "#123456", "a")
    band = ([-0.1, None, 0.9, 0.4], [0.1, 0.1, 1.1, 0.6])
    body = svg.chart(x, y, [line, line._replace(bridges=True, band=band)])
    paths = re.findall(r' d="([^"]*)"', body)
    assert paths[1] == "M0 1000L1000 100L1000 600L1000 400L1000 0L0 900Z"  # the band ends at the frame
    assert paths[2] == "M0 1000M1000 0L1000 500"
    assert paths[3] == "M0 1000h0"  # a lonely point
    assert paths[4] == "M0 1000L1000 0L1000 500"
    assert paths[5] == "M0 1000h0M1000 0h0M1000 500h0"


def test_the_ends_of_runs_do_not_hide_one_another() -> None:
    x = axis.Axis("", 0, 1, False, [])
    dots = [
        svg.Dot(0.5, 0.5, "#111111", "a"),
        svg.Dot(0.5, 0.5, "#222222", "b"),
        svg.Dot(0.9, 0.5, "#333333", "c"),
    ]
    sizes = [int(size) for size in re.findall(r"stroke-width:(\d+)", svg.chart(x, x, [], dots))]
    assert sizes[0] > sizes[1] == sizes[2]


def test_the_pareto_front() -> None:
    points = [(0.1, 0.9), (0.5, 0.5), (0.4, 0.4), (0.9, 0.1), (0.5, 0.5), (0.9, 0.05)]
    assert svg.front(points) == [(0.1, 0.9), (0.5, 0.5), (0.9, 0.1)]


def test_runs_at_chance_are_rings_and_not_on_the_front(tmp_path: Path) -> None:
    good, poor = fake_rounds(30), fake_rounds(30)
    for record in good + poor:
        record["global_chance"] = 0.1
    for record in poor:
        record |= {"global_accuracy": 0.105, "local_accuracy": 0.99}
    written(tmp_path, {"fedavg": good, "local": poor, "page": good})
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('class="dot hole"') == 1
    assert "a ring is a shared model no better than chance" in text
    assert "no better than chance</td>" in text
    written(tmp_path, {"fedavg": good, "local": poor})
    assert "the grey line" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_method_has_one_colour_everywhere() -> None:
    known = palette.colours(palette.KNOWN)
    assert len(set(known.values())) == len(palette.KNOWN)
    for method, colour in known.items():
        assert palette.colours([method]) == {method: colour}
        assert palette.colours([f"{method}, lr = 0.1"])[f"{method}, lr = 0.1"] == colour
    some = palette.colours(["my own", "fedprox", "fedprox, mu = 1.0", *(f"own {i}" for i in range(20))])
    assert some["fedprox"] == known["fedprox"]
    assert len(set(some.values())) == len(some)


def test_the_top_says_what_was_run(tmp_path: Path) -> None:
    specs_of = [
        specs.resolve({"seed": seed, "algorithm": name, "lr": 0.3}).model_dump()
        for seed, name in ((3, "fedavg"), (4, "fedprox"))
    ]
    made = {"date": "2026-11-18", "version": "9.8.7", "commit": "0123456789abcdef"}
    runs = [html.Reported(f"run {i}", fake_rounds(3), spec, made=made) for i, spec in enumerate(specs_of)]
    html.write_report(tmp_path / "one.html", "a title", runs[:1])
    html.write_report(tmp_path / "two.html", "a title", runs)
    one, two = ((tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("one", "two"))
    for text in (
        "<dd>synthetic</dd>",
        "<dd>3</dd>",
        "<dd>2026-11-18</dd>",
        "<dd>9.8.7</dd>",
        "<dd>0123456789ab</dd>",
    ):
        assert text in one
    assert '<th scope="row">lr</th><td>0.3</td>' in one
    assert '<th scope="row">algorithm.name</th><td>fedavg</td><td>fedprox</td>' in two
    assert '<th scope="row">lr</th>' not in two
    assert "algorithm.mu</th>" not in two  # only one of them has it


def test_curves_leave_out_what_is_no_number(tmp_path: Path) -> None:
    spec = specs.resolve({"rounds": 4})
    rounds = fake_rounds(4)
    for record, value in zip(rounds, [None, HOSTILE, math.nan, 1e308], strict=True):
        record |= {"reward_clients": value, "local_accuracy": value}
    found = [sweep.Found(sweep.name_of(spec), spec, rounds, tmp_path)]
    figure = figures.curves([Block("a title", "synthetic", {"fedavg": [spec]}, {})], found)
    lines = {str(line.get_label()): line.get_ydata() for axes in figure.axes for line in axes.get_lines()}
    assert np.isnan(lines["local accuracy"]).all()
    assert np.isnan(lines["clients' reward"]).all()
    assert list(lines["global accuracy"]) == [record["global_accuracy"] for record in rounds]
    figures.save(figure, tmp_path / "curves")


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    spec = specs.resolve({"rounds": 4})
    found = [sweep.Found(sweep.name_of(spec), spec, fake_rounds(4), tmp_path)]
    block = Block("a title", "synthetic", {"fedavg": [spec]}, {})
    first, second = (
        [path.read_bytes() for path in figures.save(figures.curves([block], found), tmp_path / "x")]
        for _ in range(2)
    )
    assert first == second


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""  # stdout is for results
    return captured.err.splitlines()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_plain_progress_has_first_last_and_a_line_every_five_seconds(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    threads = threading.active_count()
    with progress.Progress("fedavg on synthetic", rounds=50) as shown:
        shown.say("compiling the [kernels] …")
        for record in fake_rounds(50):
            clock[0] += 0.25
            shown.observe(record)
    assert threading.active_count() == threads
    assert lines_of(capsys) == [
        "fedavg on synthetic",
        "compiling the [kernels] …",
        "round  1/50  global 0.0390  local 0.0439  4.0 rounds/s  12 s left",
        "round 21/50  global 0.5200  local 0.5851  4.0 rounds/s  7.2 s left",
        "round 41/50  global 0.6970  local 0.7841  4.0 rounds/s  2.2 s left",
        "round 50/50  global 0.7343  local 0.8261  4.0 rounds/s",
    ]


def test_plain_progress_of_a_resumed_slow_and_stopped_run(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with progress.Progress("resumed", rounds=300, start=30) as shown:
        for record in fake_rounds(34)[30:]:
            clock[0] += 4.0
            shown.observe(record | {"seconds": 4.0, "global_accuracy": None})
    assert lines_of(capsys) == [
        "resumed",
        "round  31/300  global –  local 0.7090  4.0 s/round  18 min left",
        "round  33/300  global –  local 0.7272  4.0 s/round  18 min left",
        "round  34/300  global –  local 0.7356  4.0 s/round  18 min left",  # told as it stopped
    ]


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal, threads = Terminal(), threading.active_count()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.Progress("fedavg", rounds=1000) as shown:
        for record in fake_rounds(1000):
            clock[0] += 0.01
            shown.observe(record)
            assert threading.active_count() == threads  # a fork must not meet a thread
    refreshes = terminal.getvalue().count("round ")
    assert 10 / progress.BAR_SECONDS * 0.8 < refreshes < 10 / progress.BAR_SECONDS * 1.2
    assert "1000/1000" in terminal.getvalue()
    assert "━" in terminal.getvalue()


ESCAPES = "\x1b]0;title\x07 \x1b[2J\r\x9b31m \u202egnp.exe"


@pytest.mark.parametrize("terminal", [True, False])
def test_control_characters_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], terminal: bool
) -> None:
    class Screen(StringIO):
        def isatty(self) -> bool:
            return terminal

    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.Progress(f"runs/{ESCAPES}", rounds=2) as shown:
        shown.say(f"client 3 says {ESCAPES}")
    told = screen.getvalue()
    assert "\x07" not in told
    assert "\x1b]" not in told
    assert "\x1b[2J" not in told
    assert "\x9b" not in told
    assert "\u202e" not in told
    assert r"runs/\x1b]0;title\x07 \x1b[2J\r\x9b31m \u202egnp.exe" in told
    assert r"client 3 says \x1b]0;title" in told


def test_a_sentence_is_one_line_of_printable_characters() -> None:
    sentence = str(UserError(f"name = {ESCAPES}:\nno\u2028such\x85file \udcff – übermäßig 漢字 🙂"))
    assert sentence.isprintable()
    assert sentence.endswith(r":\nno\u2028such\x85file \udcff – übermäßig 漢字 🙂")
    assert printable(sentence) == sentence


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: repr(value)[:20])
def test_summary_of_strange_records(value: object) -> None:
    """`pagefl resume` on a run directory that somebody sent."""
    told = StringIO()
    strange = [dict.fromkeys(record, value) | {"round": record["round"]} for record in fake_rounds(3)]
    progress.summary(strange, Console(file=told, width=80))
    assert re.search(r"global accuracy +– +–", told.getvalue())
    assert all(line.isprintable() for line in told.getvalue().splitlines())
    with pytest.raises(UserError, match="no round number"):
        progress.summary([{"round": value}], Console(file=told))


def test_summary() -> None:
    rounds = fake_rounds(4)
    rounds[1]["global_accuracy"], rounds[3]["local_std"] = 0.95, None
    told = StringIO()
    progress.summary(rounds, Console(file=told, width=80))
    for row in (
        r"round 4 +best",
        r"global accuracy +0\.1450 +0\.9500 in round 2",
        r"local accuracy +0\.1631 +0\.1631 in round 4",
        r"before training +0\.1360",
        r"worst tenth +0\.1088",
        r"std over clients +–",
        r"time +1\.0 s +0\.25 s per round",
    ):
        assert re.search(row, told.getvalue())
    progress.summary([], Console(file=told))
    assert "no rounds yet" in told.getvalue()


def test_runs_with_a_clock_are_drawn_by_the_hour_too():
    timed = [{**record, "clock": 1800.0 * record["round"]} for record in fake_rounds(6)]
    known = [numbers.of_rounds(rounds, "run") for rounds in (timed, fake_rounds(6))]
    one, other = (
        charts.Shown(name, name, "#000", charts.columns(rounds, 2))
        for name, rounds in zip("ab", known, strict=True)
    )
    assert one.columns["hours"] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert "hours" not in other.columns
    by_hour = [chart for chart in charts.of_runs([one, other]) if chart.x == "hours"]
    assert [chart.title for chart in by_hour] == ["Global accuracy by the hour", "Local accuracy by the hour"]
    assert all(">hours<" in chart.body for chart in by_hour)
    assert [chart.title for chart in charts.of_run(one) if chart.x == "hours"] == ["Accuracy by the hour"]
    assert not [chart for chart in charts.of_run(other) if chart.x == "hours"]
