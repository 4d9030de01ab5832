"""Specs that nobody would write: each must become a RunSpec that survives being written down, or one
sentence.

    python benchmarks/mutate_specs.py --count 30000

Three kinds, in turn: the text of a spec file, the dict that Python's interface takes, and the arguments of
--set. A mutant that raises anything but UserError, a sentence of two lines or of a kilobyte, and a spec that
is read back differently are failures.
"""

import argparse
import datetime
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pagefl import UserError
from pagefl.core.errors import shown
from pagefl.experiments import spec as specs

# a spec is mutated: most of them only once, or all would be refused for their first
HOW_OFTEN = (1, 1, 1, 2, 4)
LONGEST = 1000  # letters of a sentence: the names of all settings are among them
BASES: list[dict[str, Any]] = [
    {},
    {"algorithm": "page", "rounds": 40},
    {
        "task": {"name": "synthetic-mlp", "clients": 4, "hidden": 8},
        "algorithm": {"name": "ditto", "lam": 0.1},
        "lr": 0.05,
    },
    {"task": "cifar100-small", "algorithm": "scaffold", "players": {"name": "page-shared"}, "holdout": 0.1},
    {
        "players": "random",
        "freeze": ["p"],
        "bias": [[0, "1:1"], [5, "10:1"]],
        "deploy": {"deadline": 5.0, "tells": ["loss"]},
    },
]
COMPLETE = [specs.resolve(base).model_dump() for base in BASES]
TEXTS = [specs.dump(settings) for settings in BASES + COMPLETE]
NAMES = [*COMPLETE[0], "sweep", "name", "mu", "lam", "clients", "hidden", "lr_min", "temperature", "deadline"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# fmt: off
VALUES: list[Any] = [
    *(1, 2, 20, 0.01, 0.2, 1.0, "auto", "rows", "cpu", "local", "random", "synthetic", "clean"),
    *("2:3", ["loss"], ["eta"]),
    *(None, True, False, 0, -1, 10**30, -(10**30), 10**18, 2**63, 16**5000, 0.0, -0.0, 1e-320, 1e308, 1 + 2j),
    *(float("nan"), float("inf"), -float("inf"), "", " ", "page", "fedavg", "fixed", "10:1", "1:1", "nan"),
    *("\udcff", "a\nb", "x" * 5000, "[/b]", ":smile:", "é😀", "\0", [], [[]], [0], ["p", "p"], ["p"], {}),
    *([[0, "1:1"], [0, "2:1"]], [[True, "1:1"]], [[-1, "1:1"]], [[0, 1]], {"name": 5}, {"name": ""}),
    {"name": []},
    *({"name": {}}, {"name": "page"}, {"name": None}, {"x": {"y": 1}}, {5: 6}, {None: 1}, (1, 2)),
    *({1, 2}, b"bytes"),
    *(datetime.date(2020, 1, 1), datetime.time(), object(), int, len, nested(500), nested(5000)),
    list(range(100_000)),
]
LITERALS = [
    *("2", "20", "0.01", "0.2", "1.0", "rows", "'auto'", "'local'", "'random'", "synthetic"),
    *("'2:3'", "['loss']", "['eta']"),
    *("", "1", "-1", "0", "1.5", "1e400", "-inf", "nan", "true", "''", '""', '"page"', "'fixed'"),
    *("[]", "[[]]", "{}"),
    *("{name = 5}", "{name = []}", "{name = 'page'}", "1979-05-27", "07:32:00"),
    *("1979-05-27T07:32:00Z", "'''", '"""'),
    *("9" * 5000, "0x" + "f" * 5000, "[" * 3000, "[" * 300 + "]" * 300, "{a=" * 2000, "x" * 3000),
    *('"\\ud800"', '"\\u0000"'),
    *("1\nrounds = 3", "[1, 'a']", "# x", "[[0, '10:1']]", "[[0, 1]]", "['p', 'p']"),
    *("['loss', 'loss']", "cpu"),
    *("é😀", "\0", "\r", "1_000", "1__0", "=", "."),
]
LINES = [
    *("[task]", "[[task]]", "[task.name]", "[sweep]", "[deploy]", "[a.b.c]", "task = 3"),
    *("a." * 2000 + "b = 1", "'' = 1"),
    *("[lr]", "lr.x = 1", "task.name.x = 1", "algorithm = 'page'", "players = 'fixed'"),
    *("[[algorithm]]", "= 1", "\ufeff", "\0"),
]
# fmt: on


def similar(draw: random.Random, value: Any) -> Any:
    """Of the same type, and often still allowed."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([value + 1, value * 2, value - 1, draw.randrange(10**6)])
    if isinstance(value, float):
        return draw.choice([value / 3, value * 1.1, 10 ** draw.uniform(-320, 3), 1 / 3])
    return draw.choice(VALUES)


def similar_setting(draw: random.Random) -> tuple[str, Any]:
    """The name and a value of a setting, or of a table's as in `task.clients`."""
    settings = draw.choice(COMPLETE)
    name = draw.choice([*settings])
    if isinstance(settings[name], dict):
        inside = draw.choice([*settings[name]])
        return f"{name}.{inside}", similar(draw, settings[name][inside])
    return name, similar(draw, settings[name])


def of_text(draw: random.Random) -> Callable[[], specs.RunSpec]:
    content = draw.choice(TEXTS)
    for _ in range(draw.choice(HOW_OFTEN)):
        lines = content.split("\n")
        place = draw.randrange(len(lines))
        kind = draw.randrange(8)
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(draw.randrange(len(lines)), lines[place])
        elif kind == 2:
            lines.insert(place, draw.choice(LINES))
        elif kind == 3:
            lines[place] = re.sub(
                r"\b\d+$", lambda number: str(similar(draw, int(number[0][:9]))), lines[place]
            )
            lines[place] = re.sub(
                r"\b\d+\.\d+$", lambda number: str(similar(draw, float(number[0]))), lines[place]
            )
        elif kind == 4:
            lines[place] = f"{lines[place].partition('=')[0] or draw.choice(NAMES)} = {draw.choice(LITERALS)}"
        elif kind == 5:
            lines.append(f"{draw.choice(NAMES)} = {draw.choice(LITERALS)}")
        elif kind == 6:
            cut = draw.randrange(len(content) + 1)
            lines = [
                content[:cut]
                + draw.choice([*"[]{}\"'=.,#\\\n\0\ufeff", ""])
                + content[cut + draw.randrange(3) :]
            ]
        else:
            lines[place] = f"{draw.choice(NAMES)}.{lines[place]}"
        content = "\n".join(lines)
    encoded = bytearray(content.encode("utf-8", "surrogatepass"))
    for _ in range(draw.choice([0] * 8 + [1, 5])):
        if encoded:
            encoded[draw.randrange(len(encoded))] = draw.randrange(256)
    return lambda: specs.resolve(specs.parse(bytes(encoded), "spec"))


def of_dict(draw: random.Random) -> Callable[[], specs.RunSpec]:
    raw: dict[Any, Any] = dict(draw.choice(BASES))
    for _ in range(draw.choice(HOW_OFTEN)):
        value = draw.choice(VALUES)
        kind = draw.randrange(6)
        if draw.random() < 0.4:
            name, value = similar_setting(draw)
            # where an earlier mutation has put something else in place of the table
            with suppress(UserError):
                specs.put(raw, name, value)
        elif kind == 0:
            raw[draw.choice(["", "x" * 5000, "a\nb", 5, None, (1, 2), "\udcff", "sweep", "model_config"])] = (
                value
            )
        elif kind in (1, 2):
            raw[draw.choice(NAMES)] = value
        else:
            table = draw.choice(["task", "algorithm", "players", "deploy"])
            inside = raw.get(table)
            inside = (
                {"name": inside}
                if isinstance(inside, str)
                else dict(inside)
                if isinstance(inside, dict)
                else {}
            )
            raw[table] = {**inside, draw.choice([*NAMES, "x" * 5000, 5, "a\nb"]): value}
    return lambda: specs.resolve(raw)


def of_set(draw: random.Random) -> Callable[[], specs.RunSpec]:
    assignments = []
    for _ in range(draw.choice(HOW_OFTEN)):
        if draw.random() < 0.4:
            name, value = similar_setting(draw)
            assignments.append(f"{name}={shown(value)}")
            continue
        name = draw.choice([*NAMES, "", " ", "a\nb", "x" * 3000])
        if draw.random() < 0.5:
            table = draw.choice(["task", "algorithm", "players", "deploy", "lr", "sweep", "", "task.name"])
            name = f"{table}.{name}"
        assignments.append(name + draw.choice(["=", "=", "=", "=", "", "==", " = "]) + draw.choice(LITERALS))

    def attempt() -> specs.RunSpec:
        raw = dict(draw.choice(BASES))
        for assignment in assignments:
            specs.override(raw, assignment)
        return specs.resolve(raw)

    return attempt


def problem(attempt: Callable[[], specs.RunSpec]) -> tuple[str, str]:
    """How it ended, and what is wrong with that."""
    try:
        spec = attempt()
        again = specs.of_text(spec.toml())
    except UserError as error:
        sentence = str(error)
        bad = not sentence or len(sentence) > LONGEST or not sentence.isprintable()
        return ("bad sentence", sentence) if bad else ("refused", "")
    except BaseException:
        return "traceback", traceback.format_exc(limit=-4, chain=False)
    return ("accepted", "") if again == spec else ("changed", f"{spec!r}\n{again!r}")


def mutate(count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """How many ended how, and the first failures."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for number in range(count):
        make = (of_text, of_dict, of_set)[number % 3]
        ended, wrong = problem(make(random.Random(f"{seed} {number}")))  # noqa: S311 (mutants are no secrets)
        counts[ended] += 1
        if wrong and len(failures) < 10:
            failures.append(f"mutant {number}, {make.__name__}: {ended}: {wrong[:2000]}")
    return counts, failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts, failures = mutate(given.count, given.seed)
    print("\n".join(failures))
    print(
        f"{given.count} mutants: " + ", ".join(f"{number} {ended}" for ended, number in counts.most_common())
    )
    sys.exit(bool(failures))
