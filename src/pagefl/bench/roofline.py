"""The least work of a round of logistic regression, at the speed of torch's matmul and copy on all cores."""

from time import perf_counter

import torch

from pagefl.data.synthetic import CLASSES, FEATURES
from pagefl.runtime.settings import Settings
from pagefl.runtime.task import Task

from .clock import fastest
from .flops import sgemm


def roofline(task: Task, settings: Settings, seconds: float) -> dict[str, float]:
    """`seconds`: what a round took."""
    data, row = task.data, (FEATURES + 1) * CLASSES
    seen = settings.epochs * len(data.train.x)
    steps = settings.epochs * int((-(-data.train.sizes // settings.batch_size)).sum())
    judged = len(data.test.x) + len(data.game.x) + len(data.server_test.x)
    flops = row * (4 * seen + 5 * steps + 2 * judged)  # forward and backward; norm, decay and step; forward
    moved = 4 * (FEATURES + 1) * (seen + judged) + 8 * row * len(data.train)  # examples; rows in and out
    b, c = torch.ones(2**25), torch.ones(2**25)
    peak_flops = sgemm(perf_counter)
    peak_bytes = 8 * 2**25 / fastest(lambda: b.copy_(c), perf_counter)
    bound = max(flops / peak_flops, moved / peak_bytes)
    return {
        "mflop": flops / 1e6,
        "mbyte": moved / 1e6,
        "peak_gflops": peak_flops / 1e9,
        "peak_gbytes": peak_bytes / 1e9,
        "gflops": flops / seconds / 1e9,
        "seconds_at_peak": bound,
        "share_of_peak": bound / seconds,
    }
