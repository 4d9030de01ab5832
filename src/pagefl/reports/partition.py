"""A heat map of how much of each class each client owns."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pagefl.core.errors import UserError

FEW = 240  # most cells that show their count
LADDER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def heat_map(counts: npt.NDArray[np.int64], path: Path | str, title: str) -> Path:
    """Draw `counts` [clients, classes]. Colours are shares of the client's samples; white is none."""
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"path = {path}: expected a name that ends with .png or .svg")
    clients, classes = counts.shape
    sizes = counts.sum(axis=1)
    shares = (counts / np.maximum(sizes, 1)[:, None]).T
    most = max(float(shares.max()), LADDER[0])
    width, height = np.clip(0.5 * clients + 2, 5.5, 10.0), np.clip(0.28 * classes + 1.5, 3.0, 6.5)
    figure = Figure(figsize=(width, height), layout="constrained")
    above, axes = figure.subplots(2, 1, sharex=True, height_ratios=(0.4, height - 0.9))

    above.stairs(sizes, np.arange(clients + 1) - 0.5, fill=True, color="#9aa7b4")  # shares hide sizes
    above.set_ylim(0, max(1, sizes.max()))
    above.set_yticks([0, sizes.max()])
    above.tick_params(axis="x", bottom=False)
    above.spines[["top", "right"]].set_visible(False)
    above.set_ylabel("samples", rotation=0, ha="right", va="center")
    above.set_title(title, loc="left", size=11)

    norm = PowerNorm(0.5, 0.0, most)  # square root: keeps small shares distinguishable
    cells = np.ma.masked_equal(shares, 0.0)
    # With a thousand clients a cell is one pixel wide. Smoothing would blur it into its neighbours.
    image = axes.imshow(
        cells, cmap="YlGnBu", norm=norm, aspect="auto", origin="lower", interpolation="nearest"
    )
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    for axis, count in ((axes.xaxis, clients), (axes.yaxis, classes)):
        axis.set_major_locator(MaxNLocator(min(count, 10), integer=True))
    if counts.size <= FEW:
        for (c, i), share in np.ndenumerate(shares):
            colour = "white" if norm(share) > 0.6 else "black"
            axes.text(i, c, str(counts[i, c]), ha="center", va="center", size=8, color=colour)
    ticks = [0.0, *(step for step in LADDER if 0.02 * most <= step <= most)]
    bar = figure.colorbar(image, ax=axes, label="share of the client's samples", pad=0.02)
    bar.set_ticks(ticks, labels=[f"{100 * tick:g} %" for tick in ticks])
    figure.savefig(path, dpi=150)
    return path
