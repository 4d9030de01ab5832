"""Runs in notebooks: plots, the small table and picture, progress, and a run that goes on after a stop."""

import os
import signal
import sys
import types
from typing import Any

import matplotlib as mpl
import pytest
import torch
from federations import task

import pagefl
from pagefl.reports import notebook

mpl.use("Agg")


@pytest.fixture(scope="module")
def run() -> Any:
    return pagefl.run(task=task(personal="end"), players="random", rounds=4)


def test_accuracy_is_drawn_by_round(run):
    axes = run.plot()
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["global", "local", "personal"]
    assert list(lines["global"].get_xdata()) == [1, 2, 3, 4]
    assert list(lines["local"].get_ydata()) == [record["local_accuracy"] for record in run.rounds]
    assert list(lines["personal"].get_xdata()) == [4]
    assert axes.get_xlabel() == "round"
    assert run.plot("plane", axes) is axes


def test_the_plane_ends_in_a_dot_and_moves_are_a_product(run):
    plane, moves = run.plot("plane"), run.plot("moves", label="random")
    (x,), (y,) = plane.get_lines()[-1].get_data()
    assert (x, y) == tuple(run.rounds[-1][f"{side}_accuracy"] for side in ("global", "local"))
    expected = [record["mean_lr"] * record["mean_epochs"] for record in run.rounds]
    assert list(moves.get_lines()[0].get_ydata()) == pytest.approx(expected)
    assert moves.get_legend_handles_labels()[1] == ["random"]
    assert moves.get_yscale() == "log"


def test_other_plots_are_refused(run):
    with pytest.raises(pagefl.UserError, match="kind = 'loss'; expected one of accuracy, plane, moves"):
        run.plot("loss")


def test_a_run_shows_a_table_and_a_picture(run):
    shown = run._repr_html_()
    assert f"<td>{run.rounds[-1]['local_accuracy']:.4f}</td>" in shown
    assert shown.count('<path class="line"') == 4
    assert "4 of 4 rounds" in shown
    assert "<script" not in shown


def test_a_report_of_runs_in_memory(run, tmp_path):
    page = pagefl.report([run, run], tmp_path / "both.html")
    assert page == tmp_path / "both.html"
    assert "run 2: " in page.read_text()
    with pytest.raises(pagefl.UserError, match="report: no run is given"):
        pagefl.report([])


class Shown:
    """What a notebook's front end would show."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def display(self, bundle: dict[str, str], **_: Any) -> "Shown":
        self.texts.append(bundle["text/plain"])
        assert "<progress" in bundle["text/html"]
        return self

    update = display


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Shown:
    shown = Shown()

    class ZMQInteractiveShell: ...

    python = types.ModuleType("IPython")
    python.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    display = types.ModuleType("IPython.display")
    display.display = shown.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_progress_below_a_cell(cell, monkeypatch):
    monkeypatch.setattr(notebook, "SECONDS", 0.0)
    played = pagefl.run(task=task(), rounds=3)
    assert cell.texts[0] == "starting …"
    assert [text.split(",")[0] for text in cell.texts[1:]] == [f"round {i} of 3" for i in (1, 2, 3)]
    assert f"global {played.rounds[-1]['global_accuracy']:.4f}" in cell.texts[-1]


def test_no_progress_elsewhere(capsys):
    assert not notebook.in_notebook()
    pagefl.run(task=task(), rounds=1)
    assert capsys.readouterr() == ("", "")


def test_an_interrupted_run_goes_on(tmp_path):
    """As a notebook's stop button does it. The result is that of a run without the stop."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = pagefl.run(task=task(), rounds=5, out=tmp_path / "run", observe=stop)
    assert not stopped.over
    assert len(stopped.rounds) == 2
    resumed = pagefl.resume(stopped)  # the task is the user's own, and known from before
    whole = pagefl.run(task=task(), rounds=5)
    assert torch.equal(resumed.state["server.model"], whole.state["server.model"])
    with pytest.raises(pagefl.UserError, match="resume: this run has no directory"):
        pagefl.resume(whole)
