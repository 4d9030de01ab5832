"""Devices and simulated time in whole runs."""

import numpy as np
import pytest
import torch
from federations import QUICK, Federation, task

import pagefl
from pagefl.algorithms import ALGORITHMS
from pagefl.algorithms.fedavg import FedAvg
from pagefl.core.errors import UserError
from pagefl.core.flops import of_training
from pagefl.core.participants import drawn
from pagefl.data.synthetic import SyntheticSource, synthetic
from pagefl.devices import costs, table
from pagefl.devices.fleet import Equal, Phones
from pagefl.devices.selection import Oort
from pagefl.models.logistic import logistic
from pagefl.runtime import checkpoint
from pagefl.runtime.loop import play
from pagefl.runtime.settings import DevicesSettings, Settings
from pagefl.runtime.simulation import one_numeric_mode, simulate

OPTIONS = {"task": {"name": "synthetic", "clients": 8}, "rounds": 6, "epochs": 2, "workers": 1, "seed": 3}
PHONES = {"name": "phones", "reference": 1e5, "hours": 24.0}  # computing takes seconds, as for a larger model
BUFFER = {**PHONES, "barrier": "first", "over": 1.6, "late": "buffer"}


def run(**settings):
    return pagefl.run(**{**OPTIONS, **settings})


def trained(run):
    return {name: value for name, value in run.state.items() if not name.startswith("flight.")}


def assert_same(one, other):
    one, other = trained(one), trained(other)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def usual():
    return run(participation=0.5)


def test_who_waits_for_equal_devices_trains_as_without_time(usual):
    timed = run(participation=0.5, devices={"name": "equal"})
    assert_same(usual, timed)
    new = {"clock", "device_seconds", "energy", "late"}
    assert set(timed.history.columns) - set(usual.history.columns) == new
    assert not new & set(usual.history.columns)
    shared = [name for name in usual.history.columns if name != "seconds"]
    assert usual.history[shared].equals(timed.history[shared])


def test_a_buffer_without_delays_is_fedavg(usual):
    buffered = run(participation=0.5, devices={"name": "equal", "barrier": "first", "late": "buffer"})
    assert_same(usual, buffered)
    assert not buffered.history[["late", "stale"]].to_numpy().any()


def test_seconds_bytes_and_joules_are_those_of_the_formula():
    found = run(devices={**PHONES, "reference": 0.0}, algorithm="ditto", rounds=2)
    sizes = synthetic(8, 3).train.sizes.numpy()
    devices = Phones(3, 1.0, 24.0).of(np.arange(8))
    model = 4 * (30 * 30 + 30)  # bytes of the logistic model
    seconds = devices.seconds * sizes * (2 + 20) + model / devices.up + model / devices.down
    own = found.clients[found.clients["round"] == 1]
    assert own.seconds.to_numpy() == pytest.approx(seconds)
    first = found.history.iloc[0]
    assert first.clock == pytest.approx(seconds.max())
    assert first.device_seconds == pytest.approx(seconds.sum())
    joules = devices.watts * devices.seconds * sizes * 22 + model * (costs.JOULES_UP + costs.JOULES_DOWN)
    assert first.energy == pytest.approx(joules.sum())
    assert first.bytes_up == first.bytes_down == 8 * model


@pytest.mark.parametrize("late", ["drop", "buffer"])
def test_a_run_that_is_killed_goes_on_with_the_same_bits(late, tmp_path, monkeypatch):
    """While uploads are under way."""
    settings = {"devices": {**BUFFER, "late": late}, "participation": 0.4, "algorithm": "scaffold"}
    settings |= {"checkpoint_seconds": 0.0, "rounds": 9}
    whole = run(**settings)
    save, under_way = checkpoint.save, []

    def killed(directory, tensors, facts):
        save(directory, tensors, facts)
        if facts["round"] == 4:
            under_way.append(len(tensors["flight.clients"]))
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        run(**settings, out=tmp_path / "run")
    monkeypatch.undo()
    resumed = pagefl.resume(tmp_path / "run")
    assert under_way[0] > 0
    assert whole.state.keys() == resumed.state.keys()
    assert all(torch.equal(whole.state[name], resumed.state[name]) for name in whole.state)
    columns = [name for name in whole.history.columns if name != "seconds"]
    assert whole.history[columns].equals(resumed.history[columns])
    assert whole.history.late.sum() > 0


def test_workers_do_not_change_anything():
    settings = {"devices": BUFFER, "participation": 0.4, "players": "random"}
    one, two = run(**settings), run(**settings, workers=2)
    assert_same(one, two)
    assert one.history.clock.tolist() == two.history.clock.tolist()


def test_late_uploads_count_less_the_later_they_are(csv):
    """By hand: of two clients, one needs 1 second for a round, and the other one 2.5."""
    two = pagefl.Task("two", lambda: logistic(30, 30), synthetic(2, 3))
    settings = Settings(rounds=4, seed=3, epochs=2, participation=0.5, workers=1)
    per_example = [wanted / (2 * size) for wanted, size in zip((1.0, 2.5), two.data.train.sizes, strict=True)]
    path = csv("seconds,up,down\n" + "".join(f"{own!r},1e15,1e15\n" for own in map(float, per_example)))
    own = {"name": str(path), "barrier": "first", "over": 2.0, "late": "buffer"}
    found = play(two, FedAvg(), settings.model_copy(update={"devices": DevicesSettings(**own)}))
    assert found.history.clock.to_numpy() == pytest.approx([1, 2, 2.5, 3])
    assert found.history.stale.tolist() == [0, 0, 1, 1]
    assert found.history.late.tolist() == [1, 0, 1, 1]
    plain = simulate(two, FedAvg(), settings)

    def upload(client, round, sent):
        plain.clients.receive({"model": sent})
        plain.clients.train(round, np.array([client]), np.array([settings.lr]), np.array([2]))
        return plain.server.uploads["model"][client].clone()

    with one_numeric_mode():
        first = plain.server.model_row.clone()
        slow = upload(1, 1, first) - first
        one = upload(0, 1, first)
        two = upload(0, 2, one)
        three = two + slow / 3**0.5
        four = three + (upload(0, 3, two) - two) / 2**0.5
    assert torch.allclose(found.state["server.model"], four, rtol=1e-6, atol=1e-7)


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "devices.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_table_of_devices(csv):
    path = csv("class,seconds,up,down,from,hours\nold,0.5,1e3,2e3,22,8\nnew,0.1,1e4,2e4,0,24\n")
    found = table.read(path, 2)
    assert found.classes == ("new", "old")
    devices = found.of(np.array([1, 0]))
    assert devices.seconds.tolist() == [0.1, 0.5]
    assert devices.kind.tolist() == [0, 1]
    assert found.sleeps
    for hour, available in ((21, False), (22, True), (29, True), (31, False)):
        assert devices.available(3600.0 * hour).tolist() == [True, available]
    assert devices.wait(3600.0 * 20).tolist() == [0, 7200]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column seconds is missing"),
        ("seconds,up\n1,1\n1,1\n", "column down is missing"),
        ("seconds,up,down,speed\n1,1,1,1\n1,1,1,1\n", "no column 'speed'"),
        ("seconds,up,down,up\n1,1,1,1\n1,1,1,1\n", "twice"),
        ("seconds,up,down\n1,1,1\n", "1 devices, and the federation has 2"),
        ("seconds,up,down\n1,1,1\n1,1\n", "row 3 has 2 fields"),
        ("seconds,up,down\n1,1,1\n-1,1,1\n", "row 3: seconds = '-1'"),
        ("seconds,up,down\n1,1,1\nnan,1,1\n", "row 3: seconds = 'nan'"),
        ("seconds,up,down\n1,1,1\n1,0,1\n", "row 3: up = '0'"),
        ("seconds,up,down,hours\n1,1,1,25\n1,1,1,1\n", "row 2: hours = '25'"),
        ('seconds,up,down\n1,1,1\n"1,1,1\n', "not a valid CSV"),
        ("seconds,up,down\n1,1,1\n" + "9" * 200_000 + ",1,1\n", "not a valid CSV"),
        (b"seconds,up,down\n\xff\xfe,1,1\n", "not text in UTF-8"),
        ("seconds,up,down,class\n1,1,1,\n1,1,1,a\n", "class = ''"),
        ("seconds,up,down,class\n1,1,1,\u202e\n1,1,1,a\n", "class = "),
    ],
)
def test_a_table_that_is_wrong_is_one_sentence(csv, text, said):
    with pytest.raises(UserError, match=said) as error:
        table.read(csv(text), 2)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        table.read(tmp_path / "none.csv", 2)
    with pytest.raises(UserError, match="directory"):
        table.read(tmp_path, 2)


def test_a_run_does_not_go_on_with_other_devices(csv, tmp_path):
    path = csv("seconds,up,down\n" + "1,1000,1000\n" * 8)
    run(devices={"name": str(path)}, out=tmp_path / "run", rounds=2)
    csv("seconds,up,down\n" + "2,1000,1000\n" * 8)
    with pytest.raises(UserError, match="devices are not those"):
        pagefl.resume(tmp_path / "run", rounds=3)


def test_phones_are_drawn_one_by_one():
    """From the named distributions, and the same whoever else is asked for."""
    many = Phones(0).of(np.arange(4000))
    few = Phones(0).of(np.array([5, 3999, 17]))
    assert all((every[[5, 3999, 17]] == some).all() for every, some in zip(many, few, strict=True))
    logs = np.log(many.seconds / 0.005)
    assert (logs.mean(), logs.std()) == pytest.approx((1.0, 0.6), abs=0.03)
    assert np.bincount(many.kind) / 4000 == pytest.approx([1 / 3] * 3, abs=0.03)
    assert many.available(0.0).mean() == pytest.approx(0.5, abs=0.03)
    assert np.median(many.seconds) == pytest.approx(Equal().of(np.array([0])).seconds[0], rel=0.05)


def test_who_is_not_free_is_not_drawn():
    free = np.arange(3, 100_000, 7)
    found = drawn(0, 4, 100_000, 50, lambda who: np.isin(who, free))
    assert len(found) == 50
    assert np.isin(found, free).all()
    assert drawn(0, 4, 20, 50, lambda who: who < 3).tolist() == [0, 1, 2]
    assert (np.diff(drawn(0, 4, 1000, 300)) > 0).all()


@pytest.mark.slow
def test_a_million_phones():
    many = pagefl.Task("many", lambda: logistic(30, 30), SyntheticSource(1_000_000, 3))
    settings = {"task": many, "participation": 1e-5, "personal": {"when": "never"}, "rounds": 2}
    found = run(**settings, devices={**PHONES, "hours": 8.0, "barrier": "first", "over": 1.5})
    assert found.history.participants.tolist() == [10, 10]
    assert (found.history.late > 0).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"devices": {"over": 2.0}}, "no simulated time while devices.name = none"),
        ({"devices": {"name": "phones", "barrier": "deadline"}}, "deadline needs one"),
        ({"devices": {"name": "phones", "over": 2.0}}, "barrier = first alone"),
        ({"devices": {"name": "phones", "late": "buffer"}}, "expected deadline or first"),
        ({"devices": BUFFER, "algorithm": "fednova"}, "looks at each client's `length`"),
        ({"devices": BUFFER, "players": "page"}, "looks at single uploads"),
        ({"devices": BUFFER, "reward": "weighted-local"}, "expected aggregate"),
        (
            {"devices": PHONES | {"barrier": "first"}, "privacy": {"epsilon": 8.0, "noise": 4.0}},
            "expected wait",
        ),
        ({"devices": PHONES | {"hours": 9.0}, "privacy": {"epsilon": 8.0, "noise": 4.0}}, "not by the hour"),
        ({"devices": PHONES, "players": "scaled", "privacy": {"epsilon": 8.0, "noise": 4.0}}, "players"),
        ({"devices": {"name": "watches.csv"}}, "cannot be read"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(settings, said):
    with pytest.raises(UserError, match=said) as error:
        run(**settings)
    assert "\n" not in str(error.value)


def test_a_module_that_cannot_be_counted_costs_by_its_weights():
    class ByValue(torch.nn.Linear):
        def forward(self, x):
            assert float(x.sum()) == 0.0
            return super().forward(x)

    assert of_training(ByValue(3, 2), torch.zeros(1, 3)) == 6 * 8
    assert of_training(torch.nn.Linear(3, 2, bias=False), torch.zeros(1, 3)) == 2 * 2 * 6


def test_partial_work_is_never_late():
    """Nor is it less than what fits."""
    devices = {**PHONES, "barrier": "deadline", "deadline": 1.0}
    fixed, partial = (run(devices=devices, players=kind, epochs=8) for kind in ("fixed", "partial"))
    assert fixed.history.late.sum() > 0
    own = partial.clients.dropna(subset=["seconds"])
    one_more = own.seconds + own.seconds / own.epochs
    assert ((own.seconds <= 1) | (own.epochs == 1)).all()
    assert ((one_more > 0.97) | (own.epochs == 8)).all()
    assert partial.history.late.sum() == 0
    assert partial.history.clock.iloc[-1] <= 6


def test_scaled_epochs_take_about_as_long_for_everybody():
    fixed, scaled = (run(devices=PHONES, players=kind, epochs=10) for kind in ("fixed", "scaled"))
    spread = [own.clients.seconds.max() / own.clients.seconds.min() for own in (fixed, scaled)]
    assert spread[1] < spread[0] / 1.5
    assert scaled.clients.epochs.between(1, 20).all()


def test_players_of_time_play_as_fixed_without_it(usual):
    for kind in ("partial", "scaled"):
        said = []
        found = run(participation=0.5, players=kind, say=said.append)
        assert_same(usual, found)
        assert any("play as fixed" in line for line in said)


def test_oort_draws_those_that_are_of_use_and_fast():
    """By hand: uses count from 0 to 1; who is four times slower than is preferred, for a sixteenth."""
    oort = Oort(0, 4)
    everybody = np.arange(4)
    seconds, losses = np.array([1.0, 1.0, 1.0, 4.0]), np.array([2.0, 1.0, 2.0, 2.0])
    oort.learn(1, everybody, seconds, losses, np.full(4, 10.0))
    values = oort._values(1, everybody)
    assert values == pytest.approx([1, 0, 1, 1 / 16], abs=1e-8)
    drawn = np.concatenate([oort.draw(round, 1, lambda who: who < 4) for round in range(1, 400)])
    assert set(drawn.tolist()) == {0, 2}  # within 95 % of the best
    assert np.bincount(drawn)[[0, 2]] / 399 == pytest.approx([0.5, 0.5], abs=0.1)


def test_oort_explores_first_and_goes_on_after_a_kill(tmp_path):
    settings = {"devices": {**PHONES, "select": "oort"}, "participation": 0.25, "rounds": 8}
    whole = run(**settings)
    took = whole.clients[whole.clients.trained]
    assert took[took["round"] <= 4].client.nunique() >= 6
    run(**{**settings, "rounds": 4}, out=tmp_path / "run")
    resumed = pagefl.resume(tmp_path / "run", rounds=8)
    assert all(torch.equal(whole.state[name], resumed.state[name]) for name in whole.state)


# gradients of an example in an epoch, and beside that in a round, where a client has seen the shared model
EVALUATED = {
    "ditto": (1, 3),
    "pfedme": (2, 0),
    "apfl": (2, 0),
    "perfedavg": (2, 1),
    "local": (1, 0),
    "fedavg": (1, 0),
    "scaffold": (1, 0),
}


@pytest.mark.parametrize("algorithm", EVALUATED)
def test_gradients_are_counted_for_each_client(algorithm):
    """By its own examples and epochs, whoever trains beside it."""
    made = ALGORITHMS[algorithm](**QUICK.get(algorithm, {}))
    small = task()
    federation = Federation.of_task(small, made, Settings(**small.settings))
    sizes, epochs = small.data.train.sizes.numpy(), np.array([1, 4, 2, 1, 3])
    found = federation.train(1, np.arange(5), np.full(5, 0.1), epochs)
    each, once = EVALUATED[algorithm]
    assert found.evaluated.tolist() == (sizes * (each * epochs + once)).tolist()
    assert found.gradients == found.evaluated.sum()
