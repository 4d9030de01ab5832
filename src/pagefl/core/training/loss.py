"""A loss of the user's own: a function of logits and labels, instead of the cross entropy."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pagefl.core.errors import UserError, shown

Loss = Callable[[Tensor, Tensor], Tensor]  # logits [..., classes] and labels [...] -> losses [...]
CLOSE = 1e-3  # relative: further apart are two losses, and not two machines' rounding


class OwnLoss:
    """The function gets the logits [examples, classes] and the labels [examples] of any examples, and returns
    the loss of each."""

    def __init__(self, function: Loss, like: Tensor) -> None:
        """`like`: some logits. Raise unless the function is a loss per example."""
        self.function = function
        self.facts = self._check(like)  # some of its answers: checkpoints belong to them

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.function(logits.flatten(0, -2), y.flatten()).view(y.shape)

    def _check(self, like: Tensor) -> list[float]:
        """The losses of one example of each class."""
        classes = like.shape[-1]
        y = torch.arange(classes, device=like.device)
        logits = torch.cos(torch.arange(classes * classes).view(classes, classes) * 0.7).to(like) * 3
        logits.requires_grad_()
        try:
            losses, again = self.function(logits, y), self.function(logits, y)
            alone = self.function(logits[:1], y[:1])
        except Exception as error:  # a user's own function may raise anything
            words = " ".join(str(error).split())
            raise UserError(f"loss() failed: {type(error).__name__}: {words}") from error
        if not isinstance(losses, Tensor) or losses.shape != y.shape:
            found = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else shown(losses)
            raise UserError(
                f"loss() returned {found} for {classes} examples; expected the loss of each, "
                f'[{classes}], which torch\'s own losses return with reduction="none"'
            )
        if not losses.requires_grad:
            raise UserError("loss() has no gradient; expected torch operations on the logits")
        if not bool((losses.isfinite() & (losses >= 0)).all()):
            raise UserError(
                f"loss() returned {losses.min().item():g}; expected finite losses of at least 0, since "
                "rewards are one over the loss"
            )
        if not torch.equal(losses, again) or not torch.allclose(losses[:1], alone, rtol=CLOSE):
            raise UserError(
                "loss() returned another loss for the same example; expected one that depends on its "
                "logits and label alone"
            )
        answers: list[float] = losses.tolist()
        return answers


def facts_of(loss: Loss) -> dict[str, Any]:
    """What a checkpoint records of a loss. Nothing of the cross entropy."""
    return {"loss": loss.facts} if isinstance(loss, OwnLoss) else {}


def check_same(now: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Raise if a checkpoint belongs to another loss. `now`, `made`: what `facts_of` says."""
    ours, theirs = now.get("loss"), made.get("loss")
    if ours is None and theirs is None:
        return
    if theirs is None:
        raise UserError(
            "loss: the checkpoint was made with the cross entropy; resume with the same task without a loss, "
            "or start a new run"
        )
    if ours is None:
        raise UserError(
            "loss: the checkpoint was made with a loss of the task's own; give it again, as in "
            "pagefl.Task(…, loss=function), or start a new run"
        )
    if len(ours) != len(theirs) or not all(map(_close, ours, theirs)):
        raise UserError(
            "loss: the task's function returns other losses than the one that the checkpoint was made with; "
            "resume with the same function, or start a new run"
        )


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-9)
