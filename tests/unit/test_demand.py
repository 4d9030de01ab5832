"""Demand that is tipped while a run goes on: what is asked for is taken up, or refused in a sentence; nothing
stops a run.
"""

import pytest
from federations import task

import pagefl
from pagefl import api

PAGE = {"name": "page", "warm_up": 1}


@pytest.mark.parametrize("content", [b"garbage", b"\xff\xfe", b"", b"1:0", b"1:1" * 10**6, None])
def test_a_bad_request_is_put_aside_and_the_run_goes_on(content, tmp_path):
    out = tmp_path / "run"

    def ask(entry) -> None:
        if entry["round"] == 1:
            (out / "bias.request").mkdir() if content is None else (out / "bias.request").write_bytes(content)

    said: list[str] = []
    run = pagefl.run(task=task(), players=PAGE, rounds=3, out=out, observe=ask, say=said.append)
    assert [entry["bias"] for entry in run.rounds] == ["1:1"] * 3
    (line,) = [line for line in said if "bias.request.refused" in line]
    assert len(line) < 500
    assert (out / "bias.request.refused").exists()
    assert not (out / "bias.request").exists()


@pytest.mark.parametrize(
    "content", [b"garbage\n", b"[]\n", b'{"round": "x", "bias": "1:1"}\n', b'{"round": 1, "bias": 3}\n']
)
def test_garbage_among_the_shifts_is_refused(content, tmp_path):
    out = tmp_path / "run"
    pagefl.run(task=task(), players=PAGE, rounds=3, out=out)
    (out / "bias.jsonl").write_bytes(content)
    with pytest.raises(pagefl.UserError, match=r"bias\.jsonl: line 1 is not a shift of demand"):
        pagefl.resume(out, task=task(), rounds=5)
    assert (out / "bias.jsonl").read_bytes() == content


def test_a_changed_shift_is_refused(tmp_path):
    out = tmp_path / "run"
    pagefl.run(
        task=task(),
        players=PAGE,
        rounds=3,
        out=out,
        observe=lambda entry: (out / "bias.request").write_text("10:1"),
    )
    (out / "bias.jsonl").write_text((out / "bias.jsonl").read_text().replace("10:1", "90:1"))
    with pytest.raises(pagefl.UserError, match=r"bias\.jsonl is not as it was written"):
        pagefl.resume(out, task=task(), rounds=5)


def test_a_torn_shift_does_not_spoil_the_next(tmp_path):
    out = tmp_path / "run"
    pagefl.run(task=task(), players=PAGE, rounds=3, out=out)
    (out / "bias.jsonl").write_bytes(b'{"round": 3, "bi')
    (out / "bias.request").write_text("10:1")
    run = pagefl.resume(out, task=task(), rounds=5)
    assert [entry["bias"] for entry in run.rounds] == ["1:1", "1:1", "1:1", "10:1", "10:1"]
    assert (out / "bias.jsonl").read_text() == '{"round": 4, "bias": "10:1"}\n'


@pytest.mark.parametrize("players", ["fixed", "random", "schedule", "cosine", "fedex", "dapfl"])
def test_players_that_rewards_do_not_move_cannot_be_tipped(players, tmp_path):
    """Whether rewards move them is not taken from their word: with another demand they play the very same
    game.
    """
    fair, tipped = (pagefl.run(task=task(), players=players, rounds=4, bias=bias) for bias in ("1:1", "10:1"))
    assert fair.client_rounds == tipped.client_rounds
    pagefl.run(task=task(), players=players, rounds=4, out=tmp_path / "run")
    with pytest.raises(pagefl.UserError, match=f"players = '{players}' do not learn from rewards"):
        api.tip(tmp_path / "run", "10:1")
    assert not (tmp_path / "run" / "bias.request").exists()


def test_a_finished_run_cannot_be_tipped(tmp_path):
    out = tmp_path / "run"
    tip = lambda entry: api.tip(out, "10:1") if entry["round"] == 1 else None  # noqa: E731
    assert pagefl.run(task=task(), players=PAGE, rounds=3, out=out, observe=tip).rounds[1]["bias"] == "10:1"
    with pytest.raises(pagefl.UserError, match=r"is over; `pagefl resume .* --rounds N` lets it go on"):
        api.tip(out, "1:10")
    assert not (out / "bias.request").exists()
