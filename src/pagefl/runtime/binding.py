"""What a checkpoint is bound to: the settings and the data that it was made with. Going on with others is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pagefl.core.errors import UserError
from pagefl.core.examples import Examples

from .checkpoint import digest
from .settings import NO_MATTER, Settings

MAY_CHANGE = {*NO_MATTER, "rounds", "stages_every"}  # from one start of a run to the next
NAMED = 3  # settings in a sentence


def facts_of(settings: Settings, data: Mapping[str, Examples], module: nn.Module) -> dict[str, Any]:
    """For a checkpoint's facts."""
    return {"spec": _plain(settings.model_dump()), "data": _fingerprints(data, module)}


def check(now: Mapping[str, Any], facts: Mapping[str, Any], spec: Path) -> None:
    """`now`: what `facts_of` says today. Checkpoints of version 0.1.0 are bound to nothing."""
    check_settings(now["spec"], facts, spec)
    made = facts.get("data", now["data"])
    if changed := [name for name in {**made, **now["data"]} if made.get(name) != now["data"].get(name)]:
        raise UserError(
            f"the data differ from those that the checkpoint was made with ({', '.join(changed)}); "
            "resume with the same data, or start a new run"
        )


def check_settings(now: Mapping[str, Any], facts: Mapping[str, Any], spec: Path) -> None:
    """`now`: a complete spec. Settings that are younger than the checkpoint are not its business."""
    made, found = _flat(facts.get("spec", {})), _flat(_plain(now))
    if missing := [name for name in made if name not in found and _table(name) not in NO_MATTER]:
        raise UserError(f"{spec}: {_some(missing)} is missing, so it is not the complete spec of this run; restore the file")
    if changed := [name for name in made if _table(name) not in MAY_CHANGE and found[name] != made[name]]:
        new, old = (_some([f"{name} = {json.dumps(values[name])}" for name in changed]) for values in (found, made))
        raise UserError(f"{spec}: {new}, but the checkpoint was made with {old}; restore the file, or start a new run")


def _fingerprints(data: Mapping[str, Examples], module: nn.Module) -> dict[str, str]:
    """By role; and of the module what is not trained, as the rest is in the checkpoint itself."""
    distinct = {
        id(own.x): (role, own) for role, own in reversed(list(data.items()))
    }  # without a hold-out, two roles have the same
    found = {role: digest({"x": own.x.cpu(), "y": own.y.cpu(), "starts": own.starts.cpu()}) for role, own in distinct.values()}
    fixed = {name: value for name, value in module.state_dict(keep_vars=True).items() if not value.requires_grad}
    return {**found, "the model's fixed weights": digest({name: value.detach().cpu() for name, value in fixed.items()})}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, so that a tuple is a list."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`algorithm.mu` is an entry of the table `algorithm`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{own}": entry for own, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _table(name: str) -> str:
    return name.partition(".")[0]


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + f" and {len(names) - NAMED} more" * (len(names) > NAMED)
