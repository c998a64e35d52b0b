"""What is tried: links, models and caps. None of it was used to calibrate the model."""

from __future__ import annotations

from reports.experiments.gloo_ddp.lab import Net
from reports.experiments.gloo_ddp.models import MODELS
from reports.experiments.gloo_ddp.train import Trial

NETS = (
    Net(hosts=2, rate_mbit=300, mtu=9000, delay_us=0),
    Net(hosts=4, rate_mbit=500, mtu=9000, delay_us=0),
    Net(hosts=3, rate_mbit=400, mtu=9000, delay_us=0),
    Net(hosts=4, rate_mbit=400, mtu=32000, delay_us=2000),
    Net(hosts=2, rate_mbit=800, mtu=32000, delay_us=5000),
    Net(hosts=3, rate_mbit=300, mtu=32000, delay_us=5000),
    Net(hosts=8, rate_mbit=200, mtu=9000, delay_us=0),
)
CAPS = ("0.1", "0.25", "0.5", "1", "2", "4", "inf", "def")
BY_HAND = ("1|0.25", "0.25|0.5|1|2")
"""Lists that somebody might try: a large bucket first and small ones after, or growing ones."""
ROUNDS = 2
"""Each trial is run so often, in another order each time."""


def grid(model: str) -> list[Trial]:
    """Caps that everybody could try."""
    trials = [Trial(model, caps) for caps in CAPS]
    return [*trials, *(Trial(model, caps, "by hand") for caps in BY_HAND)]


def two_batches(model: str) -> list[Trial]:
    """Steps of two micro-batches."""
    return [Trial(model, caps, "accumulation", accumulate=2) for caps in ("0.5", "inf")]


ALL_MODELS = tuple(MODELS)
