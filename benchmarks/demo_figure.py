"""The README's figure, from the runs of `make demo`: `python benchmarks/demo_figure.py [FOLDER]`."""

import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import pagefl
from pagefl.reports.palette import colours

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "runs/demo"
LABELS = {"fixed": "FedAvg, lr as given", "page": "PAGE", "page-shared": "page-shared"}
METHODS = {"fixed": "fedavg", "page": "page", "page-shared": "fedavg+page-shared"}
HUES = colours([*METHODS.values()])

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.5, 3.5), layout="constrained")
for players, label in LABELS.items():
    history, colour = pagefl.load(f"{FOLDER}/{players}").history, HUES[METHODS[players]]
    shared, own, last = 100 * history.global_accuracy, 100 * history.local_accuracy, history.iloc[-1]
    left.plot(history["round"], shared, color=colour, label=label)
    left.plot(history["round"], own, "--", color=colour, linewidth=1)
    middle.plot(shared, own, color=colour, alpha=0.5)
    size = {"fixed": 8, "page": 13, "page-shared": 8}[players]  # two ends lie on one another
    middle.plot(100 * last.global_accuracy, 100 * last.local_accuracy, "o", color=colour, markersize=size)
    right.plot(history["round"], history.mean_lr * history.mean_epochs, color=colour)
left.set(xlabel="round", ylabel="accuracy, %", ylim=(0, 100), title="Shared model (—) and clients' own (- -)")
left.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.04))
middle.set(xlabel="global accuracy, %", ylabel="local accuracy, %", xlim=(0, 103), ylim=(0, 103))
middle.set_title("Both at once: up and right is better")
right.set(xlabel="round", ylabel="learning rate × epochs", yscale="log", title="What clients choose")
for axes in (left, middle, right):
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(11)
figure.savefig("docs/figures/demo.png", dpi=130)
