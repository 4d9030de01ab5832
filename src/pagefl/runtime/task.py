"""Task: a model and the data of a federation, under a name."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypeVar

from torch import nn

from pagefl.core import rng, summary
from pagefl.core.errors import UserError
from pagefl.core.examples import Splits
from pagefl.core.training.loss import Loss
from pagefl.data.source import ClientSource

from .settings import Settings

Made = TypeVar("Made")
EXPECTED = "a pagefl.FederatedData or a pagefl.ClientSource"


class Task:
    def __init__(
        self,
        name: str,
        module: nn.Module | Callable[[], nn.Module],
        data: Splits | ClientSource | Callable[[], Splits | ClientSource],
        settings: Mapping[str, float | int] | None = None,
        loss: Loss | None = None,
    ) -> None:
        """A model and the data of a federation.

        `module`: an nn.Module, whose weights are the initial ones, or a function that makes one. `data`: a
        FederatedData, a ClientSource for more clients than fit into memory, or a function that makes one. The
        function is called when the data are needed: a node has its own data and needs only the model.
        `settings`: lr, epochs and others that suit the task. `loss`: instead of the cross entropy, a function
        of the logits [examples, classes] and the labels [examples] that returns the loss of each example.
        """
        if not isinstance(name, str) or not name.isprintable() or not name.strip():
            raise UserError(f"task name = {name!r}: must be one line of text")
        self.name, self.module, self._data, self.settings = name, module, data, dict(settings or {})
        self._expect("module", module, nn.Module, "an nn.Module, or a function that makes one")
        self._expect("data", data, Splits | ClientSource, f"{EXPECTED}, or a function that makes one")
        self.loss = loss
        if loss is not None and not callable(loss):
            raise UserError(
                f"task {name}: loss is a {type(loss).__name__}; expected a function of logits and labels"
            )
        for setting in self.settings:
            if setting not in Settings.model_fields:
                close = get_close_matches(str(setting), Settings.model_fields, 1)
                meant = f"; did you mean {close[0]}?" if close else ""
                raise UserError(
                    f"task {name}: there is no setting {setting!r}{meant}; see pagefl.RunSpec for all "
                    "settings"
                )

    @cached_property
    def _made_data(self) -> Splits | ClientSource:
        if isinstance(self._data, Splits | ClientSource):
            return self._data
        return self._made("data", self._data, Splits | ClientSource, EXPECTED)

    @property
    def data(self) -> Splits:
        """All clients' data."""
        if isinstance(self._made_data, Splits):
            return self._made_data
        raise UserError(
            f"task {self.name}: the examples of its {self._made_data.clients} clients are fetched one client "
            "at a time, which only a run with executor = local can do"
        )

    @property
    def source(self) -> ClientSource | None:
        """Where clients' data are fetched from, if they are not in memory."""
        return self._made_data if isinstance(self._made_data, ClientSource) else None

    def fresh_module(self, seed: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return deepcopy(self.module)
        with rng.torch_stream(seed, "initial model"):
            return self._made("module", self.module, nn.Module, "an nn.Module")

    def _expect(self, field: str, given: object, kind: Any, expected: str) -> None:
        if not isinstance(given, kind) and (not callable(given) or isinstance(given, nn.Module)):
            raise UserError(f"task {self.name}: {field} is a {type(given).__name__}; expected {expected}")

    def _made(self, field: str, make: Callable[[], Made], kind: Any, expected: str) -> Made:
        try:
            made = make()
        except UserError:
            raise
        except Exception as error:  # a user's own function may raise anything
            words = " ".join(str(error).split())
            raise UserError(f"task {self.name}: {field}() failed: {type(error).__name__}: {words}") from error
        if not isinstance(made, kind):
            raise UserError(
                f"task {self.name}: {field}() returned a {type(made).__name__}; expected {expected}"
            )
        return made

    def __repr__(self) -> str:
        return summary.line(self, self.name, self._facts)

    def _repr_html_(self) -> str:
        return summary.html(self, self.name, self._facts)

    @property
    def _facts(self) -> list[str]:
        """Facts about the task. They neither build its model nor read its data."""
        model = getattr(self.module, "__name__", type(self.module).__name__)
        if isinstance(self.module, nn.Module):
            model = (
                f"{type(self.module).__name__} with "
                f"{sum(p.numel() for p in self.module.parameters())} parameters"
            )
        known = isinstance(self._data, Splits | ClientSource) or "_made_data" in self.__dict__
        data = ["data not read yet"]
        if known and self.source is not None:
            data = [f"{self.source.clients} clients, fetched when they are needed"]
        elif known:
            data = [f"{len(self.data.train)} clients", *self.data.facts]
        own = [] if self.loss is None else ["a loss of its own"]
        return [model, *data, *own, *(f"{name} = {value}" for name, value in self.settings.items())]
