"""What benchmarks count: CPU time and floating-point operations."""

import multiprocessing
from time import process_time

import pytest
import torch
from torch import nn

from pagefl.bench import clock, flops
from pagefl.bench.workloads import LOGISTIC
from pagefl.core.flops import of_example
from pagefl.experiments.builders import synthetic
from pagefl.models.lstm import lstm
from pagefl.runtime.settings import Settings

BUSY = 0.05  # CPU seconds


def work_until_told(pipe):
    while process_time() < BUSY:
        pass
    pipe.send(process_time())
    pipe.recv()


def test_cpu_time_counts_children_that_still_run():
    ours, theirs = multiprocessing.Pipe()
    _, before = clock.now()
    child = multiprocessing.get_context("fork").Process(target=work_until_told, args=(theirs,))
    child.start()
    used = ours.recv()
    _, while_it_runs = clock.now()
    ours.send("enough")
    child.join()
    assert while_it_runs - before >= used >= BUSY


def test_a_child_that_has_ended_has_no_clock():
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    assert clock._cpu_seconds(child.pid) == 0.0


class Counted(nn.Module):
    """3 pixels in a row, padded by one: of 9 products 7 are with a pixel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, (1, 3), padding=(0, 1), bias=False)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


def test_products_with_padding_are_not_counted():
    conv, head = 2 * 7, 2 * 3 * 2
    found = of_example(Counted(), torch.zeros(1, 1, 1, 3))
    assert found.evaluation == conv + head
    assert found.training == 2 * conv + 3 * head  # nobody needs the gradient of the pixels


def loops(module, side):
    """Multiply-adds of a square convolution's forward, pixel by pixel."""
    (size, _), (stride, _), (padding, _) = module.kernel_size, module.stride, module.padding
    line = sum(
        0 <= start + tap < side
        for start in range(-padding, side + padding - size + 1, stride)
        for tap in range(size)
    )
    return line**2 * module.in_channels * module.out_channels


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(7, 2, 3), (3, 1, 1), (3, 2, 1), (1, 2, 0), (5, 1, 0)]
)
def test_convolutions_are_counted_as_loops_would_do_them(size, stride, padding):
    conv = nn.Conv2d(3, 4, size, stride, padding, bias=False)
    found = of_example(conv, torch.zeros(1, 3, 8, 8))
    assert found == (2 * found.evaluation, 2 * loops(conv, 8))


def test_lstm_is_counted():
    """Two layers of 80 steps: four gates each, of the input and of the hidden state."""
    gates = 4 * 100 * (8 + 100) + 4 * 100 * (100 + 100)
    assert of_example(lstm(), torch.zeros(1, 80, dtype=torch.uint8)).evaluation == 2 * (80 * gates + 100 * 80)


def test_a_round_is_training_and_evaluation():
    task, settings = synthetic(0, 4), Settings(**LOGISTIC)
    forward = 2 * 30 * 30
    expected = 2 * forward * 5 * 4 * 210 + forward * 4 * (90 + 75)
    assert flops.of_round(task.fresh_module(0), task.data, settings) == expected
