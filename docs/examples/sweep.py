"""Two methods, three seeds: which differences are more than chance?"""

import tempfile

import pagefl

with tempfile.TemporaryDirectory() as folder:
    runs = pagefl.sweep(
        sweep={"algorithm": ["fedavg", "fedavgm"], "seed": [0, 1, 2]},
        task="digits",
        rounds=8,
        epochs=1,
        out=folder,
        jobs=1,
    )
    print(runs[["method", "seed", "global_last", "local_last"]])
    table = pagefl.compare(folder)
print(table[["method", "global_last_mean", "global_difference", "global_low", "global_high"]].T)
