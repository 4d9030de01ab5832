"""The report in a real browser: it draws, it asks the network for nothing, and it can be used without a
mouse.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from pagefl.reports import html
from pagefl.reports.html import Reported, last_clients
from pagefl.runtime import numbers

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 300_000  # ms; a busy machine is slow, and only a page that never gets there fails
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]

HOSTILE = (
    """</script><script>alert(1)</script><b>bold</b> <a href="https://evil.example">%{x}</a> & "quotes" """
)


def write_report(
    path: Path,
    title: str,
    runs: dict[str, list[dict[str, Any]]],
    note: str,
    clients: dict[str, list[float]] | None = None,
) -> None:
    shown = [Reported(name, rounds, clients=(clients or {}).get(name, ())) for name, rounds in runs.items()]
    html.write_report(path, title, shown, note)


METRICS = ("accuracy", "accuracy_before", "loss", "std", "worst10")


def fake_rounds(count: int, ceiling: float) -> list[dict[str, Any]]:
    def record(number: int) -> dict[str, Any]:
        learnt = ceiling * (1 - math.exp(-number / 15))
        local = dict(zip(METRICS, (learnt, 0.8 * learnt, 1.2 - learnt, 0.1, 0.7 * learnt), strict=True))
        return {
            "round": number,
            "global_accuracy": 0.9 * learnt,
            "global_loss": None if number == 7 else 3 - 2 * learnt,
            **{f"local_{name}": value for name, value in local.items()},
            "train_loss": 1.1 - learnt,
            "participants": 20,
            "mean_lr": 0.1 / number,
            "mean_epochs": 20 - number / 10,
            "largest_weight": 0.1 + learnt / 10,
            "smallest_weight": 0.05 - learnt / 30,
            "reward_server": 1 / (3 - 2 * learnt),
            "reward_clients": None if number == 9 else 1 / (1.1 - learnt),
            "seconds": 0.1,
        }

    return [record(number) for number in range(1, count + 1)]


ONE = {"fedavg": fake_rounds(60, 0.9)}
SEVERAL = {"page": fake_rounds(60, 0.95), HOSTILE: fake_rounds(30, 0.8), "not begun": []}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-sync",
        "--no-first-run",
    ]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=quiet, timeout=PATIENCE)
        yield browser
        browser.close()


class Visit:
    """A page that is open, and everything it complained about or asked for."""

    def __init__(self, browser: Browser, path: Path, **context: Any) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.places: list[str] = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("framenavigated", lambda frame: self.places.append(frame.url))
        self.page.goto(path.as_uri())

    def drawn(self, chart: int) -> list[str]:
        """The d of every line of a run that can be seen."""
        return self.page.eval_on_selector_all(
            f"#chart{chart} path.line:not(.thin)",
            "paths => paths.filter(path => path.checkVisibility()).map(path => path.getAttribute('d'))",
        )


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE // 100):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("the page does not come to look as expected")


LINES_OF_ONE, LINES_OF_SEVERAL = [3, 1, 2, 3, 2, 1, 1, 2], [2] * 11


@pytest.mark.parametrize(  # every pair of runs, width and scheme
    ("runs", "lines", "width", "scheme"),
    [
        pytest.param(ONE, LINES_OF_ONE, 1200, "light", id="one-1200-light"),
        pytest.param(ONE, LINES_OF_ONE, 400, "dark", id="one-400-dark"),
        pytest.param(SEVERAL, LINES_OF_SEVERAL, 1200, "dark", id="several-1200-dark"),
        pytest.param(SEVERAL, LINES_OF_SEVERAL, 400, "light", id="several-400-light"),
    ],
)
def test_page_draws_all_charts_without_network_or_complaint(
    browser: Browser,
    tmp_path: Path,
    runs: dict[str, list[dict[str, Any]]],
    lines: list[int],
    width: int,
    scheme: str,
) -> None:
    path = tmp_path / "report.html"
    write_report(path, f"A report {HOSTILE}", runs, f'note = "{HOSTILE}"')
    visit = Visit(browser, path, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert [len(visit.drawn(chart)) for chart in range(len(lines))] == lines
    assert visit.page.locator(".chart").count() == len(lines)
    assert all(
        line.count("L") + 1 == len(rounds)
        for line, rounds in zip(visit.drawn(0), runs.values(), strict=False)
    )
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.requests == [path.as_uri()]
    assert visit.errors == []
    labels = visit.page.eval_on_selector_all(".chart", "charts => charts.map(chart => chart.ariaLabel)")
    assert all("by round" in label and "At the end: " in label for label in labels)


def test_dark_mode_is_followed_while_the_page_is_open(browser: Browser, tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", "a title", ONE, "")
    visit = Visit(browser, tmp_path / "report.html", color_scheme="light")

    def looks() -> tuple[list[float], list[float], list[float]]:
        def channels(selector: str, style: str) -> list[float]:
            colour = visit.page.eval_on_selector(selector, f"element => getComputedStyle(element)['{style}']")
            return [float(value) for value in colour.strip("rgba()").split(",")[:3]]

        return (
            channels("body", "background-color"),
            channels("figure", "background-color"),
            channels("#chart0 .plot .x", "color"),
        )

    page, chart, ticks = looks()
    assert min(page + chart) > 200 > 120 > max(ticks)
    visit.page.emulate_media(color_scheme="dark")

    def dark() -> bool:
        page, chart, ticks = looks()
        return max(page + chart) < 60 < 120 < min(ticks)

    wait_until(visit.page, dark)
    assert visit.errors == []


def test_hostile_names_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", HOSTILE, SEVERAL, HOSTILE)
    visit = Visit(browser, tmp_path / "report.html")
    assert visit.page.text_content("h1") == HOSTILE
    assert HOSTILE in (visit.page.text_content(".runs") or "")
    visit.page.focus("#chart0")
    visit.page.keyboard.press("ArrowRight")
    hover = visit.page.text_content("#chart0 .tip") or ""
    assert HOSTILE[:20] in hover
    assert "%{x}</a> &" in hover
    assert visit.page.query_selector_all("a, b b, b i, td + script") == []
    assert visit.errors == []


LEAVE = (
    '"><meta http-equiv="refresh" content="0;url=https://evil.example/"><base href="https://evil.example/">'
)
STRANGE: list[Any] = [  # what a stranger's records may hold in place of a number
    LEAVE,
    HOSTILE,
    "<img src=x onerror=alert(3)><svg onload=alert(4)><form action=https://evil.example><input autofocus "
    "onfocus=alert(5)>",
    "javascript:alert(6)",
    {"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}},
    [LEAVE] * 1000,
    "0.5",
    True,
    None,
    10**400,
    *(1e308, -1e308, 3e38, -3e38, 1e-308, 5e-324, 0.5, 1e-30, -1.0, 7.0, math.nan, math.inf),
]


def strange_rounds() -> list[dict[str, Any]]:
    """Every strange value in every field, in one round or another; in the last round, LEAVE in all fields."""
    columns = [column for column in numbers.RANGES if column != "round"]
    rounds: list[dict[str, Any]] = []
    for number in range(1, len(STRANGE) + 2):
        record: dict[str, Any] = {
            "round": number,
            "agents": {},
            "payoffs": {},
            "__proto__": {"polluted": 1},
            LEAVE: LEAVE,
        }
        for place, column in enumerate(columns):
            table, _, name = column.rpartition(".")
            at = 0 if number > len(STRANGE) else (number + place) % len(STRANGE)
            (record[table] if table else record)[name] = STRANGE[at]
        rounds.append(record)
    return rounds


@pytest.mark.slow
@pytest.mark.parametrize("others", [[], ["b"]])
def test_strange_records_run_nothing_and_lead_nowhere(
    browser: Browser, tmp_path: Path, others: list[str]
) -> None:
    runs = {f"a {LEAVE}": strange_rounds(), **{name: strange_rounds() for name in others}}
    clients = dict.fromkeys(runs, last_clients([{"local_accuracy": [*STRANGE, 0.5]}]))
    path = tmp_path / "report.html"
    write_report(path, LEAVE, runs, LEAVE, clients)
    visit = Visit(browser, path)
    assert visit.page.locator("#clients .client").count() == len(runs)
    visit.page.hover("#chart1 .plot")
    visit.page.focus("#chart0")
    visit.page.keyboard.press("ArrowRight")
    visit.page.keyboard.press("End")
    visit.page.wait_for_timeout(300)
    assert visit.places == visit.requests == [path.as_uri()]
    assert visit.errors == []
    assert (
        visit.page.query_selector_all("base, form, iframe, object, embed, img, link, a, [onerror], [onload]")
        == []
    )
    assert visit.page.evaluate("({}).polluted === undefined")
    metas = visit.page.eval_on_selector_all(
        "meta[http-equiv]", "found => found.map(meta => [meta.httpEquiv, meta.content])"
    )
    assert [name for name, _ in metas] == ["Content-Security-Policy"]
    assert metas[0][1].startswith("default-src 'none'; script-src 'sha256-")
    assert metas[0][1].endswith("base-uri 'none'; form-action 'none'")


def test_rounds_far_apart_do_not_hang_the_page(browser: Browser, tmp_path: Path) -> None:
    rounds = fake_rounds(3, 0.9)
    rounds[-1]["round"] = numbers.MOST
    write_report(tmp_path / "report.html", "a title", {"run": rounds}, "")
    visit = Visit(browser, tmp_path / "report.html")
    assert len(visit.page.query_selector_all("#chart0 .plot .x")) < 20
    assert visit.errors == []


def test_keyboard_reads_rounds_hides_lines_and_opens_the_settings(browser: Browser, tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", "a title", ONE, "rounds = 60")
    visit = Visit(browser, tmp_path / "report.html")
    page = visit.page
    page.focus(".legend button")  # the first switch of the first chart's legend: global
    page.keyboard.press("Space")
    assert page.get_attribute("button:focus", "aria-pressed") == "false"
    assert [len(visit.drawn(chart)) for chart in range(8)] == [2, 1, 2, 3, 2, 1, 1, 2]
    page.keyboard.press("Enter")
    assert [len(visit.drawn(chart)) for chart in range(8)] == LINES_OF_ONE
    page.focus("#chart0")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expected = ONE["fedavg"][58]["local_accuracy"]
    assert f"round 59: global {0.9 * expected:.5g}, local {expected:.5g}" in (
        page.text_content("#spoken") or ""
    )
    page.focus("summary")
    page.keyboard.press("Enter")
    assert page.is_visible("text=rounds = 60")
    assert visit.errors == []


def test_a_whole_table_of_runs_fits_on_a_page(browser: Browser, tmp_path: Path) -> None:
    """Eleven methods, three seeds, a thousand rounds, a hundred clients each; methods can be chosen."""
    runs = {f"method {i // 3}, seed {i % 3}": fake_rounds(1000, 0.6 + i / 100) for i in range(33)}
    for rounds in runs.values():
        for entry in rounds:
            entry["agents"] = {"clients_critic": 1 / entry["round"], "server_critic": 2 / entry["round"]}
    clients = {name: [0.5 + j / 250 for j in range(100)] for name in runs}
    path = tmp_path / "report.html"
    write_report(path, "a table", runs, "", clients)
    assert path.stat().st_size < 2.5e6
    visit = Visit(browser, path, viewport={"width": 1200, "height": 900})
    assert visit.page.locator("#clients .client").count() == 33
    assert len(visit.drawn(0)) == 33
    visit.page.click(".runs button >> nth=5")
    assert len(visit.drawn(0)) == 30  # a method goes with its seeds
    assert visit.errors == []


def test_the_pointer_reads_the_nearest_round_and_run(browser: Browser, tmp_path: Path) -> None:
    runs = {"page": fake_rounds(60, 0.95), "fedavg": fake_rounds(60, 0.5)}
    write_report(tmp_path / "report.html", "a title", runs, "")
    visit = Visit(browser, tmp_path / "report.html", viewport={"width": 1200, "height": 900})
    page = visit.page
    box = page.locator("#chart0 .plot").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
    values = {name: rounds[-1]["global_accuracy"] for name, rounds in runs.items()}
    told = page.text_content("#chart0 .tip") or ""
    assert told == "round 60" + "".join(f"{name}  {value:.4g}" for name, value in values.items())
    page.mouse.move(0, 0)
    assert not page.is_visible("#chart0 .tip")
    page.locator("#chart2").scroll_into_view_if_needed()  # the plane
    end = page.locator("#chart2 .dot >> nth=1").bounding_box()
    assert end
    page.mouse.move(end["x"] + end["width"] / 2, end["y"] + end["height"] / 2)
    assert (page.text_content("#chart2 .tip") or "").startswith("fedavg, round 60global")
    assert visit.errors == []
