"""torch's own LSTM, one client after the other, against one cell stacked over all clients: gradients of a
round's step.

    python benchmarks/lstm_cell.py

The engine trains LSTMs row by row because of what this measures. One thread, alternating, medians.
"""

from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from pagefl.core.training.descent import Batch
from pagefl.core.training.model import Model, RowModel
from pagefl.models.lstm import lstm
from pagefl.runtime.workers import keep_memory, one_thread

TURNS = 7


class StackedCell(Model):
    """The same model with its recurrence written out: every step one batched product for all rows."""

    path, chunk = "cell", 10

    def _forward(self, views: dict[str, Tensor], x: Tensor) -> Tensor:
        rows = torch.arange(len(x))[:, None, None]
        inputs = views["embedding.weight"][rows, x.long()]  # [n, batch, length, features]
        for layer in range(2):
            by_input, by_state = (views[f"lstm.weight_{kind}_l{layer}"].mT for kind in ("ih", "hh"))
            bias = (views[f"lstm.bias_ih_l{layer}"] + views[f"lstm.bias_hh_l{layer}"])[:, None]
            n, batch, length, _ = inputs.shape
            gates = (inputs.reshape(n, batch * length, -1) @ by_input + bias).view(n, batch, length, -1)
            hidden = cell = torch.zeros(n, batch, by_state.shape[1])
            outputs = []
            for t in range(length):
                now, forget, new, out = (gates[:, :, t] + hidden @ by_state).chunk(4, -1)
                cell = forget.sigmoid() * cell + now.sigmoid() * new.tanh()
                hidden = out.sigmoid() * cell.tanh()
                outputs.append(hidden)
            inputs = torch.stack(outputs, 2)
        return torch.baddbmm(views["head.bias"][:, None], inputs[:, :, -1], views["head.weight"].mT)

    def logits(self, rows: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._forward(self.layout.views(rows), x)

    def gradient(self, rows: Tensor, batch: Batch, columns: slice | None = None) -> Tensor:
        leaves, wanted = self._leaves(rows, columns)
        logits = self._forward(leaves, batch.x)
        loss = (
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="sum")
            / batch.y.shape[1]
        )
        gradients = torch.autograd.grad(loss, [leaves[name] for name in wanted])
        return torch.cat([g.reshape(len(rows), -1) for g in gradients], 1)


def main() -> None:
    one_thread()
    keep_memory()
    for clients, size in ((10, 50), (10, 32), (20, 32)):
        module = lstm()
        native, cell = RowModel(module), StackedCell(module)
        rows = native.layout.row(module).expand(clients, -1) + 0.01 * torch.randn(
            clients, native.layout.width
        )
        x, y = torch.randint(80, (clients, size, 80), dtype=torch.uint8), torch.randint(80, (clients, size))
        batch = Batch(x, y, torch.full((clients, size), 1 / size))
        torch.testing.assert_close(
            native.gradient(rows, batch), cell.gradient(rows, batch), rtol=1e-3, atol=1e-5
        )
        times: dict[str, list[float]] = {"native": [], "stacked": []}
        for _ in range(TURNS):
            for name, model in (("native", native), ("stacked", cell)):
                start = perf_counter()
                model.gradient(rows, batch)
                times[name].append(perf_counter() - start)
        native_ms, stacked_ms = (1e3 * median(times[name]) for name in times)
        print(
            f"{clients} clients, batch {size}: native {native_ms:.0f} ms, stacked cell {stacked_ms:.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
