"""Settings explain themselves: each has a type, a default and a sentence, and the page about them is up to
date.
"""

from pathlib import Path

import pytest
from rich.console import Console

from pagefl.cli import catalogue, main
from pagefl.experiments import describe
from pagefl.experiments import spec as specs

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_every_setting_has_a_sentence():
    for title, settings in describe.every().items():
        for setting in settings:
            assert len(setting.meaning) > 8, (title, setting.name)
            assert setting.type


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text() == describe.page()


def test_defaults_and_ranges_are_those_of_the_spec():
    own = {setting.name: setting for setting in describe.every()["run"]}
    assert own["participation"] == (
        "participation",
        "number",
        "1.0",
        "> 0, ≤ 1",
        own["participation"].meaning,
    )
    spec = specs.resolve({})
    assert own["gamma"].default == str(spec.gamma)
    assert {name.removeprefix("algorithm.") for name, *_ in describe.every()["algorithm fedala"]} == {
        "eta", "share", "layers", "tolerance"
    }  # fmt: skip


@pytest.fixture
def show(monkeypatch, capsys):
    def shown(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["pagefl", "show", *words])
        monkeypatch.setattr(catalogue, "console", Console(markup=False, emoji=False, width=200))
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    return shown


def test_show_settings(show):
    assert "fraction of clients that train in each round" in show("settings", "participation")
    everything = show("settings")
    assert all(
        f" {name} " in everything for name in ("rounds", "algorithm.mu", "players.explore", "deploy.fewest")
    )


def test_show_page_is_about_page(show):
    told = show("page")
    assert "WWW 2024" in told
    assert "Dap-FL" not in told
    assert "players.temperature" in told


def test_old_names_are_still_accepted():
    assert specs.resolve({"players": {"name": "page-shared", "landing": 0.3}}).players["decay"] == 0.3
