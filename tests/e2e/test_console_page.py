"""The console in a real browser: a run is started, watched, tipped, stopped, resumed and compared; without a
mouse, in the dark, on a phone's width; and it asks nobody else for anything.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

import pagefl

CHROMIUM = Path("/usr/bin/chromium")
NOT_BLANK = """canvas => {
  const blank = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height});
  return canvas.toDataURL() !== blank.toDataURL();
}"""
PATIENCE = 300_000  # ms; a busy machine is slow, and only a page that never gets there fails
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}: apt-get install chromium"),
    pytest.mark.xdist_group("console"),
]
HOSTILE = """<img src=x onerror=alert(1)><script>alert(2)<∕script> & "q" 'n' %2e%2e #?$name"""
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        settings = {"clients": 4, "rounds": 4, "epochs": 1, "workers": 1, "seed": seed}
        pagefl.run(task="synthetic", out=root / f"done/{seed}", **settings)
    pagefl.run(task="synthetic", out=root / "timed", devices={"name": "phones"}, **settings)
    shutil.copytree(root / "done/1", root / "extended")
    hostile = root / HOSTILE
    hostile.mkdir()
    text = (root / "done/0/spec.toml").read_text().replace('name = "synthetic"', f"name = '''{HOSTILE}'''")
    (hostile / "spec.toml").write_text(text)
    (hostile / "problem.txt").write_text(HOSTILE)
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pagefl", "console", str(root), "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        while server.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


class Visit:
    """A page that is open, and everything it complained about or asked others for."""

    def __init__(self, browser: Browser, address: str, path: str, **context: Any) -> None:
        self.complaints: list[str] = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self._asked(request.url, address))
        self.page.goto(address + path)

    def _asked(self, url: str, address: str) -> None:
        if not url.startswith(f"{address}/"):
            self.complaints.append(f"asked {url}")

    def close(self) -> None:
        assert self.complaints == []
        self.page.context.close()


def wait_until(page: Page, condition: Callable[[], object]) -> None:
    for _ in range(PATIENCE // 100):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("the page does not come to look as expected")


def text_of(page: Page, selector: str) -> str:
    return page.text_content(selector) or ""


def records(path: Path) -> list[dict[str, Any]]:
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def drawn(page: Page, title: str) -> str:
    """The picture of a chart, as text."""
    found: str = canvas_of(page, title).evaluate("canvas => canvas.toDataURL()")
    return found


def looked_at(page: Page, title: str) -> str:
    """The same of a chart that is drawn when it comes into view."""
    canvas_of(page, title).scroll_into_view_if_needed()
    wait_until(page, lambda: canvas_of(page, title).evaluate(NOT_BLANK))
    return drawn(page, title)


def canvas_of(page: Page, title: str) -> Locator:
    figure = page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))
    return figure.locator(".chart canvas")


def test_a_run_is_started_watched_tipped_stopped_resumed_and_extended(browser, address, root):
    visit = Visit(browser, address, "/start", viewport={"width": 1200, "height": 900})
    page, path = visit.page, root / "live"
    page.wait_for_selector("#go:not([disabled])")
    page.select_option("#field-algorithm", "page")
    page.fill("[name=name]", "live")
    page.fill("[name='task.clients']", "-4")
    page.wait_for_selector("[name='task.clients'][aria-invalid=true]")
    described = page.get_attribute("[name='task.clients']", "aria-describedby") or ""
    assert "task.clients = -4" in text_of(page, f"[id='{described.split()[1]}']")
    assert page.is_disabled("#go")
    page.fill("[name='task.clients']", "4")
    page.fill("[name=rounds]", "200000")
    page.fill("[name=epochs]", "1")
    page.get_by_text("All other settings").click()
    page.fill("[name=workers]", "1")
    page.wait_for_selector("#go:not([disabled])")
    page.keyboard.press("Enter")

    page.wait_for_url("**/runs/live")
    wait_until(page, lambda: text_of(page, ".badge") == "running")
    wait_until(page, lambda: int((re.findall(r"round (\d+) of", text_of(page, "#reached")) or [0])[0]) > 5)
    before = drawn(page, "Accuracy")
    wait_until(page, lambda: drawn(page, "Accuracy") != before)
    wait_until(page, lambda: "differ from the defaults" in text_of(page, "#settings summary"))

    page.focus("#slider")
    for _ in range(3):  # from 1:1 over 2:1 and 5:1
        page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#slider", "aria-valuetext") == "10:1, our shared model counts 10 times"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_until(page, lambda: "10:1 holds since round" in text_of(page, "#demand-state"))
    asked = json.loads((path / "bias.jsonl").read_text())
    assert asked["bias"] == "10:1"
    for record in records(path):
        assert record["bias"] == ("1:1" if record["round"] < asked["round"] else "10:1")
    assert f"since round {asked['round']}." in text_of(page, "#demand-state")

    page.click("#stop")
    wait_until(page, lambda: text_of(page, ".badge") == "interrupted")
    reached = len(records(path))
    page.wait_for_selector("#resume:not([disabled])")
    page.click("#resume")
    wait_until(page, lambda: text_of(page, ".badge") == "running" and len(records(path)) > reached)
    page.click("#stop")
    wait_until(page, lambda: text_of(page, ".badge") == "interrupted")
    found = records(path)
    assert [record["round"] for record in found] == [*range(1, len(found) + 1)]
    assert found[-1]["bias"] == "10:1"  # a resume repeats what was asked for
    visit.close()

    visit = Visit(browser, address, "/runs/extended")
    page = visit.page
    page.wait_for_selector("#extend-button:not([disabled])")
    page.fill("#rounds", "6")
    page.focus("#rounds")
    page.keyboard.press("Enter")
    wait_until(page, lambda: len(records(root / "extended")) == 6 and text_of(page, ".badge") == "finished")
    visit.close()


def test_runs_are_filtered_sorted_and_compared_by_keyboard(browser, address):
    visit = Visit(browser, address, "/", viewport={"width": 1200, "height": 900})
    page = visit.page
    page.wait_for_selector("tbody tr")
    page.focus("#filter")
    page.keyboard.type("done synthetic")
    wait_until(page, lambda: page.locator("tbody tr").count() == 2)
    page.focus("thead button >> nth=0")
    page.keyboard.press("Enter")
    assert page.locator("tbody th").all_text_contents() == ["done/0", "done/1"]
    page.keyboard.press("Enter")
    assert page.get_attribute("thead th[aria-sort]", "aria-sort") == "descending"
    assert page.locator("tbody th").all_text_contents() == ["done/1", "done/0"]
    for place in (0, 1):
        page.focus(f"tbody tr >> nth={place} >> input")
        page.keyboard.press("Space")
    page.focus("#compare")
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?run=*")
    page.wait_for_selector("#tables table")
    page.wait_for_selector("#legend a")
    assert page.locator("#tables tbody").first.inner_text().split()[-1] == "2"  # two seeds of one method
    assert page.locator("#legend a").all_text_contents() == ["done/1", "done/0"]
    chart = page.locator(".chart").first
    chart.focus()
    page.keyboard.press("Home")
    first = text_of(page, "#spoken")
    page.keyboard.press("End")
    assert first.startswith("round 1,")
    assert re.match(r"round \d, done/1: by run 0\.\d+", text_of(page, "#spoken"))
    visit.close()


def test_a_run_with_a_clock_is_drawn_by_the_hour_and_by_class(browser, address, root):
    visit = Visit(browser, address, "/runs/timed")
    page, hours = visit.page, visit.page.get_by_role("button", name="hours", exact=True)
    hours.wait_for()
    by_round = drawn(page, "Accuracy")
    hours.click()
    wait_until(page, lambda: drawn(page, "Accuracy") != by_round)
    assert hours.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="rounds", exact=True).click()
    wait_until(page, lambda: drawn(page, "Accuracy") == by_round)
    table = page.locator("figure", has=page.get_by_role("heading", name="Clients by class of device"))
    wait_until(page, lambda: table.locator("tbody th").count() > 0)
    kinds = pagefl.load(root / "timed").classes
    assert table.locator("tbody th").all_text_contents() == [*kinds.names]
    sizes = [row.split()[0] for row in table.locator("tbody td:nth-child(2)").all_text_contents()]
    assert sizes == [str(size) for size in kinds.sizes]
    by_round = looked_at(page, "Seconds by class")
    hours.click()
    wait_until(page, lambda: looked_at(page, "Seconds by class") != by_round)
    page.goto(f"{address}/runs/extended")
    assert not hours.is_visible()
    assert page.get_by_role("heading", name="Clients by class of device").count() == 0
    visit.close()


def test_every_control_is_reached_by_tab_and_has_a_name(browser, address):
    visit = Visit(browser, address, "/runs/done/0", viewport={"width": 1200, "height": 900})
    page = visit.page
    page.wait_for_selector(".chart >> nth=5")
    page.wait_for_selector("#settings table", state="attached")
    reached: set[str] = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            str(page.evaluate("document.activeElement.id || document.activeElement.className || 'none'"))
        )
    assert {"skip", "brand", "theme", "rounds", "extend-button", "chart", "metric"} <= reached
    page.locator(".wide .chart").focus()
    page.keyboard.press("ArrowLeft")
    assert re.match(r"client 0, round \d: ", text_of(page, "#spoken"))
    for path in ("/", "/runs/done/0", "/compare?run=done%2F0&run=done%2F1", "/start"):
        page.goto(address + path)
        page.wait_for_selector("tbody tr, #go:not([disabled])", state="attached")
        told = page.locator("body").aria_snapshot()
        nameless = re.findall(
            r"- (?:button|link|textbox|searchbox|slider|checkbox|combobox|spinbutton|img)(?=[\s:\[]*$)",
            told,
            re.M,
        )
        assert nameless == [], told
    visit.close()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
def test_pages_fit_in_light_and_dark(browser, address, width, scheme):
    paths = (
        "/",
        "/runs/timed",
        f"/runs/{quote(HOSTILE, safe='')}",
        "/compare?run=done%2F0&run=done%2F1",
        "/start",
    )
    for path in paths:
        visit = Visit(browser, address, path, viewport={"width": width, "height": 900}, color_scheme=scheme)
        visit.page.wait_for_selector("tbody tr, #go:not([disabled]), .badge", state="attached")
        visit.page.wait_for_timeout(700)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, path
        page_colour = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", page_colour)[0]) < 60) == (scheme == "dark")
        visit.close()


def test_the_other_colours_can_be_chosen_and_are_kept(browser, address):
    visit = Visit(browser, address, "/", color_scheme="light")
    page = visit.page

    def lightness() -> int:
        return int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])

    assert lightness() > 200
    page.click("#theme")
    assert lightness() < 60
    page.reload()
    assert lightness() < 60
    visit.close()


def test_hostile_names_are_shown_as_they_are(browser, address):
    visit = Visit(browser, address, "/")
    page = visit.page
    page.get_by_role("link", name=HOSTILE, exact=True).click()
    wait_until(page, lambda: text_of(page, ".badge") == "failed")
    assert text_of(page, "h1") == HOSTILE
    assert HOSTILE in text_of(page, "#facts")
    assert text_of(page, "#problem") == HOSTILE
    assert page.query_selector_all("main img, main script") == []
    visit.close()
