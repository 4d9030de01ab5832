"""The strength that does most harm, as ByzFL searches it. Allouah, Guerraoui, Gupta, Pinot, Stephan: ByzFL.
arXiv:2505.24802, 2025."""

from collections.abc import Callable

TRIES, FIRST, SHRINK = 20, 10.0, 0.8
LARGEST = 1000.0  # without a defence, the harm would grow for ever


def strongest(harm: Callable[[float], float]) -> float:
    """Longer and longer steps as long as they do more harm, then shorter and shorter ones."""
    best, most, step, growing = 0.0, harm(0.0), FIRST, True
    for _ in range(TRIES - 1):
        tried = min(best + step, LARGEST)
        done = harm(tried)
        if done > most:
            best, most = tried, done
        else:
            growing = False
        step *= 2 if growing else SHRINK
    return best
