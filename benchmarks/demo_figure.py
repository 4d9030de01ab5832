"""The README's figure, from the runs of `make demo`."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import pagefl

KINDS = {  # players, their label and colour
    "page-shared": ("page-shared", "#14a06f"),
    "page": ("PAGE", "#e8710a"),
    "fixed": ("FedAvg, lr as given", "#3b82f6"),
}
runs = {name: pagefl.load(f"runs/demo/{name}").history for name in KINDS}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, (label, colour) in KINDS.items():
    history = runs[name]
    left.plot(history["round"], 100 * history.global_accuracy, color=colour, label=label)
    last = history.iloc[-1]
    left.plot(
        last["round"] + 1.5, 100 * last.personal_accuracy, "o", color=colour, mfc="white", clip_on=False
    )
    right.plot(history["round"], history.mean_lr * history.mean_epochs, color=colour, label=label)
left.set(xlabel="round", ylim=(0, 100), title="Accuracy, %: shared model; ○ clients' own at the end")
left.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.1))
right.set(xlabel="round", yscale="log", title="What clients choose: learning rate × epochs, mean")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig("docs/figures/demo.png", dpi=130)
