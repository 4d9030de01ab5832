"""Bad command lines: exit code 2, one sentence on stderr, nothing on stdout, nothing written.

And a few good ones.
"""

import os
import sys
from pathlib import Path

import pytest

from pagefl import cli

LONG = "x" * 5000
BAD = [
    # the program itself
    ("nonsense", "No such command 'nonsense'"),
    ("--nonsense", "No such option"),
    ("runn", "No such command 'runn'"),
    ("--version=3", "does not take a value"),
    # spec files
    ("run missing.toml", "spec = missing.toml: there is no such file"),
    ("run folder", "folder is a directory; expected a regular file"),
    ("run broken.toml", "spec = broken.toml: not valid TOML"),
    ("run binary.toml", "spec = binary.toml: not valid TOML"),
    ("run deep.toml", "nested too deeply"),
    ("run digits.toml", "4300 digits"),
    ("run sweep.toml", "sweep: a run has no grid of settings; `pagefl sweep FILE` runs one"),
    ("run nameless.toml", "task = 7: expected a name"),
    ("run pipe", "pipe is a pipe, a device or a socket; expected a regular file"),
    ("run /dev/zero", "/dev/zero is a pipe, a device or a socket"),
    ("run huge.toml", "huge.toml has 2000000 bytes; expected at most 1000000"),
    ("run spec.toml spec.toml", "unexpected extra argument"),
    (f"run {LONG}.toml", "cannot be read: File name too long"),
    # settings
    ("run --rounds many", "rounds = 'many'"),
    ("run --rounds 1.5", "rounds = 1.5: it should be a valid integer"),
    ("run --rounds 0", "rounds = 0"),
    (
        "run --rounds 1000000000000000000",
        "rounds = 1000000000000000000: it should be less than or equal to 1000000000",
    ),
    ("run --epochs 1000000000000", "epochs = 1000000000000: it should be less than or equal to 1000000000"),
    ("run --clients -3", "task.clients = -3"),
    ("run --clients", "requires an argument"),
    (["run", "--clients", ""], "task.clients = ''"),
    ("run --seed 99999999999999999999", "seed = 99999999999999999999"),
    ("run --lr nan", "lr = nan: it should be a finite number"),
    ("run --lr 0", "lr = 0"),
    ("run --lr 1e400", "lr = inf"),
    ("run --participation 2", "participation = 2"),
    ("run --workers 100000", "workers = 100000: it should be less than or equal to 1024"),
    ("run --set optimiser=adam", "optimiser = 'adam': it should be 'sgd' or 'deltasgd'"),
    ("run --set optimiser=deltasgd --set momentum=0.9", "it should go with momentum = 0, not 0.9"),
    ("run --no-such-option", "No such option"),
    (["run", "--task", ""], "task = '': expected a name; `pagefl list tasks`"),
    (["run", "--algorithm", ""], "algorithm = '': expected a name; `pagefl list algorithms`"),
    (["run", "--players", ""], "players = '': expected a name; `pagefl list players`"),
    ("run --task nothing", "task = 'nothing': there is no such task"),
    ("run --task 7", "task = 7: expected a name"),
    ("run --algorithm fedavgg", "did you mean fedavg?"),
    (["run", "--algorithm", "[/b]"], "algorithm = '[/b]': there is no such algorithm"),
    ("run --players nobody", "players = 'nobody': there is no such players"),
    (
        "run --algorithm page --players fixed",
        "players = 'fixed': algorithm = 'page' means fedavg with players page",
    ),
    (
        "run --algorithm dapfl --players page",
        "players = 'page': algorithm = 'dapfl' means fedavg with players dapfl",
    ),
    (
        "run --players random --set players.lr_min=1",
        "players.lr_min = 1.0: it should be less than players.lr_max = 0.1",
    ),
    # --set
    ("run --set lr", "--set lr: expected NAME=VALUE"),
    ("run --set =3", "--set =3: expected NAME=VALUE"),
    (
        "run --set lr.x=1",
        "lr.x = 1: lr is not a table; tables are task, algorithm, players, personal, privacy, deploy, "
        "defence, attack and devices",
    ),
    ("run --set task.name.x=1", "--set task.name.x=1: expected NAME=VALUE"),
    ("run --set deploy=3 --set deploy.fewest=1", "deploy.fewest = 1: deploy is not a table"),
    (
        "run --set deploy.nothing=3",
        "deploy.nothing = 3: there is no such setting; expected one of deadline, patience",
    ),
    ("run --set algorithm.mu=1", "algorithm.mu = 1: there is no such setting"),
    ("run --set nothing=1", "nothing = 1: there is no such setting"),
    (["run", "--set", "lr=1\nrounds=3"], r"lr = '1\nrounds=3'"),
    (["run", "--set", "lr=" + "9" * 5000], "lr = '9999"),
    (["run", "--set", "lr=0x" + "f" * 5000], "lr = a int too long to show"),
    (["run", "--set", "lr=" + "[" * 5000], "lr = '[[["),
    (["run", "--set", f"{LONG}=1"], "there is no such setting"),
    (["run", "--set", "bias=0:1"], "bias = '0:1'"),
    (["run", "--set", "bias=[[1, '1:1'], [1, '2:1']]"], "one ratio for each round"),
    (["run", "--set", "deploy.tells=['loss', 'loss']"], "it should name each only once"),
    (["run", "--set", "freeze=['p', 'p']"], "it should name each only once"),
    # devices
    ("run --set device=cuda", "device = 'cuda': "),
    ("run --set device=cuda:7", "device = 'cuda:7': "),
    ("run --set device=mps", "device = 'mps': "),
    ("run --set device=xpu", "device = 'xpu': "),
    ("run --set device=meta", "device = 'meta': "),
    ("run --set device=warp", "device = 'warp': "),
    ("run --set device=cpu:3", "device = 'cpu:3': there is one CPU"),
    ("run --set device=", "device = '': "),
    ("run --set device=7", "device = 7: it should be a valid string"),
    # what does not fit
    (
        "run --clients 99999999999",
        "99999999999 clients, of whom 99999999999 take part in a round need about ",
    ),
    (
        "run --clients 2 --epochs 1000000000",
        "epochs = 1000000000: 42000000000 batches for each of 2 clients need about 2.016 TB",
    ),
    ("run --clients 9 --set task.theta=1e6", "their examples need about"),
    (
        "run --task synthetic-mlp --set task.hidden=1000000000000",
        "the weights of one model need about 244 TB of memory, and ",
    ),
    # directories
    ("run --out spec.toml --rounds 1", "out = spec.toml: this is a file"),
    ("run --out folder --rounds 1", "out = folder: the directory is not empty"),
    ("run --out /proc/nowhere/run --rounds 1 --clients 2", "nowhere"),
    ("run --track wandb", "--track wandb"),
    ("resume", "Missing argument"),
    ("resume missing", "missing is not a run directory"),
    ("resume folder", "folder is not a run directory"),
    ("resume spec.toml", "spec.toml is not a run directory"),
    ("report", "Missing argument"),
    ("report folder", "folder is not a run directory"),
    ("bias folder 10:1", "folder is not a run directory"),
    ("bias folder", "Missing argument"),
    ("verify folder", "folder is not a run directory"),
    ("verify folder --horizon 0", "'--horizon'"),
    # catalogues
    ("list things", "list things"),
    ("list", "Missing argument"),
    ("show nothing", "show nothing: there is no such task"),
    (["show", "[/b]"], "show [/b]: there is no such task"),
    # many runs
    ("sweep", "Missing argument"),
    ("sweep missing.toml", "spec = missing.toml: there is no such file"),
    ("sweep spec.toml", "sweep: "),
    ("sweep pipe", "pipe is a pipe"),
    ("sweep sweep.toml --jobs -1", "'--jobs'"),
    ("compare", "Missing argument"),
    ("compare folder", "compare: "),
    ("reproduce table9", "table9"),
    ("reproduce table1 --scale huge", "--scale huge"),
    ("reproduce table1 --scale smoke --task synthetic --part 3/2", "--part 3/2"),
    # data
    ("data nonsense", "No such command 'nonsense'"),
    ("data check nothing", "data nothing: there is no such task"),
    ("data check cifar100 --root missing", "cifar100: there is no missing/"),
    ("data prepare shakespeare --root missing", "shakespeare: there is no missing/"),
    ("data show nothing", "task = 'nothing': there is no such task"),
    ("data show synthetic --clients 0", "'--clients'"),
    ("data show synthetic --clients 99999999999", "are fetched one client at a time"),
    ("data show synthetic --set x", "--set task.x"),
    ("data show synthetic --clients 3 --out map.xyz", "map.xyz"),
    # deployments
    ("deploy nonsense", "No such command 'nonsense'"),
    ("deploy app missing.toml", "spec = missing.toml: there is no such file"),
    ("deploy app spec.toml --out folder", "out = folder: the folder is not empty"),
    (["deploy", "app", "spec.toml", "--run", "\udcff"], r"run = \udcff: expected a path in UTF-8"),
    ("deploy data pipe", "pipe is a pipe"),
    ("deploy keys --nodes 0", "'--nodes'"),
    ("deploy keys --nodes 99999999999", "'--nodes'"),
    ("deploy keys --host é", "--host é"),
    ("deploy keys --out folder", "out = folder: the folder is not empty"),
    ("deploy local missing.toml", "spec = missing.toml: there is no such file"),
    ("deploy local own.toml", "task = 'mine': `pagefl list tasks` does not name it, and a deployment runs"),
    ("deploy app own.toml", "a task or a loss of your own runs by pagefl.run, also with executor = ray"),
    ("deploy data own.toml", "task = 'mine'"),
    ("deploy local spec.toml --nodes 0", "'--nodes'"),
    (
        "deploy local spec.toml --nodes 99999999",
        "--nodes 99999999: their processes need about 50 PB of memory",
    ),
    # measuring
    ("bench nonsense", "No such command 'nonsense'"),
    ("bench engine --nonsense", "No such option"),
]


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("here")
    (tmp_path / "spec.toml").write_text("rounds = 1\n")
    (tmp_path / "sweep.toml").write_text("[sweep]\nseed = [0]\n")
    (tmp_path / "nameless.toml").write_text("[task]\nname = 7\n")
    (tmp_path / "own.toml").write_text('task = "mine"')
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.toml").write_text("lr = " + "[" * 5000)
    (tmp_path / "digits.toml").write_text("lr = " + "9" * 5000)
    (tmp_path / "huge.toml").write_text("#" * 2_000_000)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    return tmp_path


def command(words: str | list[str], monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", ["pagefl", *(words.split() if isinstance(words, str) else words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


@pytest.mark.parametrize(
    ("words", "expected"), BAD, ids=lambda value: str(value)[:60].encode("ascii", "replace").decode()
)
def test_one_sentence(words, expected, place, monkeypatch, capsys):
    before = sorted(place.rglob("*"))
    assert command(words, monkeypatch) == 2
    out, err = capsys.readouterr()
    *others, sentence = err.splitlines()
    assert sentence.startswith("pagefl: ")
    assert expected in sentence
    assert len(sentence) < 1000
    assert len(others) <= 1  # a run says where it would go
    assert "Traceback" not in err
    assert not out
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("words", ["", "data", "deploy", "bench", "--help", "run --help"])
def test_help(words, monkeypatch, capsys):
    assert command(words, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "Usage:" in out
    assert not err


def test_version(monkeypatch, capsys):
    from importlib.metadata import version

    assert command("--version", monkeypatch) == 0
    assert capsys.readouterr().out == f"pagefl {version('pagefl')}\n"


@pytest.mark.parametrize("name", ["x/[/b]", "[bold]x", ":smile:", 'a "b" é😀', "a\nb"])
def test_a_path_is_printed_as_it_is(name, place, monkeypatch, capsys):
    """Rich would take brackets for its markup, and :smile: for an emoji."""
    assert (
        command(
            ["run", "--clients", "2", "--rounds", "1", "--epochs", "1", "--workers", "1", "--out", name],
            monkeypatch,
        )
        == 0
    )
    assert f"report: {name}/report.html" in capsys.readouterr().err
    assert (Path(name) / "report.html").exists()


def test_a_bug_prints_a_short_traceback_without_values(monkeypatch, capsys):
    from pagefl.cli import catalogue

    def broken(depth=0):
        secret = "a value"
        if depth < 100:
            broken(depth + 1)
        raise KeyError(secret.upper())

    monkeypatch.setattr(catalogue, "_catalogue", broken)
    assert command("list tasks", monkeypatch) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) < 25
    assert "a value" not in err.replace('secret = "a value"', "")
    assert err.splitlines()[-1].startswith("pagefl: this is a bug in pagefl: KeyError")


def test_what_changes_nothing_is_said(place, monkeypatch, capsys):
    assert (
        command(
            "run --clients 2 --rounds 1 --epochs 1 --workers 1 --set bias=10:1 --set freeze=['p']",
            monkeypatch,
        )
        == 0
    )
    err = capsys.readouterr().err
    assert "bias = '10:1': players fixed do not learn from it; it changes nothing" in err
    assert "freeze = ['p']: fixed players change no factor; it changes nothing" in err


def test_momentum_and_decay_of_a_command(place, monkeypatch, capsys):
    words = (
        "run --task synthetic --clients 2 --rounds 2 --epochs 1 --set momentum=0.9 --set lr_decay=0.5 --out r"
    )
    assert command(words, monkeypatch) == 0
    spec = (place / "r" / "spec.toml").read_text()
    assert "momentum = 0.9\n" in spec
    assert "lr_decay = 0.5\n" in spec
    capsys.readouterr()


def test_a_task_is_shown_with_its_path(place, monkeypatch, capsys):
    """Where its data are; without them there is nothing to try."""
    monkeypatch.delenv("PAGEFL_DATA", raising=False)
    assert command("show synthetic", monkeypatch) == 0
    assert "path: fused\n" in capsys.readouterr().out
    assert command("show cifar100", monkeypatch) == 0
    assert "path:" not in capsys.readouterr().out


def test_lists_show_whole_sentences():
    """A title ends where its paragraph does, not where its first line does."""
    from pagefl.cli import catalogue

    for entries in catalogue._catalogue().values():
        for name, about in entries.items():
            assert catalogue._title(about).endswith("."), name
    wrapped = type("Wrapped", (), {"__doc__": "One sentence\n    on two lines.\n\n    mu: a setting\n"})
    assert catalogue._title(wrapped) == "One sentence on two lines."
