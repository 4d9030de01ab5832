"""The helper process: answers questions that need the whole package. One line of JSON in, one line out."""

import json
import os
import select
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pagefl.algorithms import ALGORITHMS
from pagefl.core.errors import UserError
from pagefl.experiments import defaults, describe, own_code
from pagefl.experiments import spec as specs
from pagefl.experiments.tasks import TASKS
from pagefl.game.players import PLAYERS
from pagefl.runtime.own_files import SPEC

IDLE = 120.0  # seconds without a question after which it ends
KINDS: dict[str, Mapping[str, object]] = {"task": TASKS, "algorithm": ALGORITHMS, "players": PLAYERS}


def form() -> dict[str, Any]:
    """Every setting, for a form: grouped as in docs/settings.md."""
    return {
        "names": {
            "task": list(TASKS),
            "algorithm": [*ALGORITHMS, *defaults.NICKNAMES],
            "players": list(PLAYERS),
        },
        "groups": {group: [one._asdict() for one in found] for group, found in describe.every().items()},
    }


def check(fields: dict[str, str], text: str) -> dict[str, Any]:
    """Complete the settings of a form, or a spec's text with them on top.

    `problem`: what is wrong, with the setting that it is about. `given`: the spec to run.
    """
    try:
        raw = specs.parse(text.encode(errors="surrogatepass"), "spec")
        for name, value in fields.items():
            specs.override(raw, f"{name}={value}")
        for kind in own_code.KINDS:
            if own_code.is_own(name_in(raw, kind)):
                raise UserError(
                    f"{kind} = {name_in(raw, kind)!r}: the console starts no code of your own; "
                    "start it with `pagefl run`, and watch it here"
                )
        spec = specs.resolve(raw)
    except UserError as error:
        return {"problem": str(error), "field": field_of(str(error))}
    given = {name: value for name, value in raw.items() if value != {}}
    return {
        "problem": None,
        "said": spec.without_effect(),
        "settings": flat(spec.model_dump()),
        "given": specs.dump(given),
    }


def settings(path: str) -> dict[str, Any]:
    """The settings of a run, their usual values, and what they mean."""
    spec = specs.recorded(Path(path) / SPEC)
    names = {kind: getattr(spec, kind)["name"] for kind in KINDS}
    meanings = {one.name: one.meaning for group in _groups(names) for one in group}
    try:
        known = {kind: name for kind, name in names.items() if name in KINDS[kind]}
        usual = flat(specs.resolve(dict(known)).model_dump())
    except UserError:
        usual = {}
    rows = [
        {
            "name": name,
            "value": value,
            "usual": usual.get(name),
            "differs": name in usual and usual[name] != value,
            "meaning": meanings.get(name, ""),
        }
        for name, value in flat(spec.model_dump()).items()
    ]
    players = PLAYERS.get(names["players"])
    return {"rows": rows, "uses_demand": players is None or players.uses_demand}


def compare(paths: list[str], names: list[str]) -> dict[str, Any]:
    """The tables of `pagefl compare`, what was left out, and the runs' colours."""
    from pagefl import comparing  # pandas is large, and needed only here
    from pagefl.reports import tables

    said: list[str] = []
    found = comparing.compare(paths, say=said.append)
    shorter = dict(zip(paths, names, strict=True))
    made = [one for one in tables.of_summary(found) if one.rows]
    for path, name in sorted(shorter.items(), key=lambda pair: -len(pair[0])):
        said = [sentence.replace(path, name) for sentence in said]
    return {
        "tables": [{"title": one.title, "columns": one.columns, "rows": one.rows} for one in made],
        "said": said,
        "colours": colours(paths, names),
    }


def colours(paths: list[str], names: list[str]) -> dict[str, str]:
    """A method's runs on a task have its colour of reports and tables; runs of one method alone, one each."""
    from pagefl.reports import palette

    made = [specs.recorded(Path(path) / SPEC) for path in paths]
    several = len({spec.task["name"] for spec in made}) > 1
    shown = [f"{spec.label}, {spec.task['name']}" if several else spec.label for spec in made]
    if len(set(shown)) == 1:
        shown = [f"{label}, {name}" for label, name in zip(shown, names, strict=True)]
    found = palette.colours(shown)
    return {name: found[label] for name, label in zip(names, shown, strict=True)}


def name_in(raw: specs.Raw, kind: str) -> object:
    table = raw.get(kind)
    return table.get("name") if isinstance(table, dict) else table


def field_of(sentence: str) -> str | None:
    """The setting that an error is about: its sentence starts with it."""
    name = sentence.partition(" = ")[0].partition(" is missing")[0].partition(":")[0]
    return name if name and " " not in name else None


def flat(raw: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by their full names, as they are written in a spec."""
    found: dict[str, str] = {}
    for name, value in raw.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = _written(value)
    return found


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value)  # JSON has no inf


def _groups(names: dict[str, str]) -> list[list[describe.Setting]]:
    """Those that every run has, whose titles are one word, and those of a task, an algorithm and players."""
    own = [f"{kind} {name}" for kind, name in names.items()]
    return [found for group, found in describe.every().items() if " " not in group or group in own]


QUESTIONS: dict[str, Callable[..., Any]] = {
    "form": form,
    "check": check,
    "settings": settings,
    "compare": compare,
}


def answer(line: bytes) -> dict[str, Any]:
    asked = json.loads(line)
    try:
        return {"answer": QUESTIONS[asked.pop("question")](**asked)}
    except (UserError, OSError) as error:
        return {"problem": str(error)}
    except Exception as error:  # the next question must find us alive
        return {"problem": f"{type(error).__name__}: {error}"}


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer
    with suppress(BrokenPipeError), answers:  # nobody is left to read
        while select.select([sys.stdin], [], [], IDLE)[0] and (line := sys.stdin.buffer.readline()):
            answers.write(json.dumps(answer(line), allow_nan=False).encode() + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
