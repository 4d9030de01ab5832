"""The two sentences that a report of several runs ends with."""

from pagefl.reports.html import Reported
from pagefl.reports.verdict import sentences


def run(name: str, shared: float | None, own: float, gradients: float = 1000) -> Reported:
    end = {"round": 9, "global_accuracy": shared, "local_accuracy": own, "gradients": gradients}
    return Reported(name, [{"round": 1}, end])


def test_who_won_on_which_axis():
    runs = [run("fixed", 0.5, 0.6), run("page", 0.9, 0.7, 64_000), run("shared", 0.894, 0.95, 1_230_000)]
    assert sentences(runs) == [
        "On the shared model (global accuracy), page won 40 points (90.0%) and shared won 39 points "
        "(89.4%) over fixed (50.0%).",
        "On the clients' own models (local accuracy), shared won 35 points (95.0%) over fixed (60.0%), "
        "for these gradient evaluations: fixed 1000, page 64,000, shared 1.23 million.",
    ]


def test_nothing_won_is_said_too():
    first, second = sentences([run("fixed", 0.9, 0.9, 0), run("page", 0.905, 0.5, 0)])
    assert first.endswith("nothing ends more than a point above fixed (90.0%); level with it: page.")
    assert second.endswith("nothing ends more than a point above fixed (90.0%).")


def test_one_run_or_no_accuracy_is_no_comparison():
    assert sentences([run("fixed", 0.9, 0.9)]) == []
    assert sentences([run("fixed", 0.9, 0.9), run("page", None, 0.5), Reported("begun", [])]) == []
