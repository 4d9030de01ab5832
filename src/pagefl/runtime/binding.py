"""Binds checkpoints to the settings and data they were made with. Continuing with others is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pagefl.core import layout
from pagefl.core.errors import UserError
from pagefl.core.examples import Examples
from pagefl.core.training import loss
from pagefl.core.training.model import Model

from .checkpoint import digest
from .machine import code
from .settings import NO_MATTER, Settings
from .workers import Say

MAY_CHANGE = {*NO_MATTER, "rounds", "stages_every", "personal"}  # between one start of a run and the next
NAMED = 3  # settings named in an error


def facts_of(
    settings: Settings, data: Mapping[str, Examples], module: nn.Module, model: Model
) -> dict[str, Any]:
    """What a checkpoint records of settings, data, and how models are held and trained."""
    how = {"rows": layout.VERSION, "arithmetic": model.arithmetic, **loss.facts_of(model.loss)}
    return {"spec": _plain(settings.model_dump()), "data": _fingerprints(data, module), **how, **code()}


def check(now: Mapping[str, Any], facts: Mapping[str, Any], spec: Path, say: Say) -> None:
    """Raise if settings or data differ from the checkpoint's. `now`: the current `facts_of`.

    Checkpoints of version 0.1.0 record neither.
    """
    if "spec" in facts and facts.get("rows", 1) != now["rows"]:
        raise UserError(
            f"{spec.parent}: the checkpoint holds models in the order of another version of pagefl; "
            "start a new run"
        )
    if (made := facts.get("arithmetic")) != now["arithmetic"]:
        say(
            f"the run was trained with {made}, and goes on with {now['arithmetic']}: "
            "its last digits will differ"
        )
    check_settings(now["spec"], facts, spec)
    loss.check_same(now, facts)
    made = facts.get("data", now["data"])
    if changed := [name for name in {**made, **now["data"]} if made.get(name) != now["data"].get(name)]:
        raise UserError(
            f"the data differ from those that the checkpoint was made with ({', '.join(changed)}); "
            "resume with the same data, or start a new run"
        )


def check_settings(now: Mapping[str, Any], facts: Mapping[str, Any], spec: Path) -> None:
    """Raise if settings differ from the checkpoint's. `now`: a complete spec.

    Of settings that did not exist when the checkpoint was made, `LATER` count as their defaults. Others are
    not compared.
    """
    made, found = _flat(facts.get("spec", {})), _flat(_plain(now))
    if missing := [name for name in made if name not in found and _table(name) not in NO_MATTER]:
        raise UserError(
            f"{spec}: {_some(missing)} is missing, so it is not the complete spec of this run; restore "
            "the file"
        )
    made, found = ({**_flat(Settings.of_before()), **values} for values in (made, found))
    if changed := [name for name in made if _table(name) not in MAY_CHANGE and found[name] != made[name]]:
        new, old = (
            _some([f"{name} = {json.dumps(values[name])}" for name in changed]) for values in (found, made)
        )
        raise UserError(
            f"{spec}: {new}, but the checkpoint was made with {old}; restore the file, or start a new run"
        )


def _fingerprints(data: Mapping[str, Examples], module: nn.Module) -> dict[str, str]:
    """A hash for each role, and one for the module's fixed weights. The checkpoint holds the trained ones."""
    distinct = {
        id(own.x): (role, own) for role, own in reversed(list(data.items()))
    }  # without a hold-out, two roles share their data
    found = {
        role: digest({"x": own.x.cpu(), "y": own.y.cpu(), "starts": own.starts.cpu()})
        for role, own in distinct.values()
    }
    fixed = {
        name: value for name, value in module.state_dict(keep_vars=True).items() if not value.requires_grad
    }
    return {
        **found,
        "the model's fixed weights": digest({name: value.detach().cpu() for name, value in fixed.items()}),
    }


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON returns them: tuples become lists."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten tables: entry `mu` of table `algorithm` becomes `algorithm.mu`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= (
            {f"{name}.{own}": entry for own, entry in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return flat


def _table(name: str) -> str:
    return name.partition(".")[0]


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + f" and {len(names) - NAMED} more" * (len(names) > NAMED)
