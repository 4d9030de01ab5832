"""The README's figure, from the runs of `make demo`."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import pagefl

runs = {name: pagefl.load(f"runs/demo/{name}").history for name in ("fedavg", "page")}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for (name, history), colour in zip(runs.items(), ("#3b82f6", "#e8710a"), strict=True):
    label = {"fedavg": "FedAvg", "page": "PAGE"}[name]
    left.plot(history["round"], history.global_accuracy, color=colour, label=f"{label}, global")
    left.plot(history["round"], history.local_accuracy, color=colour, ls="--", lw=1, label=f"{label}, local")
left.set(xlabel="round", title="Accuracy")
left.legend(frameon=False, fontsize=9)
page = runs["page"]
right.plot(page["round"], page.mean_lr, color="#14a06f")
right.set(xlabel="round", yscale="log", title="What PAGE's clients choose, on average")
right.set_ylabel("learning rate", color="#14a06f")
epochs = right.twinx()
epochs.plot(page["round"], page.mean_epochs, color="#a35cf0", ls="--")
epochs.set_ylabel("local epochs", color="#a35cf0")
epochs.set_ylim(1, 20)
for axes in (left, right, epochs):
    axes.spines["top"].set_visible(False)
left.spines["right"].set_visible(False)
figure.savefig("docs/figures/demo.png", dpi=130)
