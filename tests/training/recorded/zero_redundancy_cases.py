"""DistributedDataParallel with ZeroRedundancyOptimizer, for `run_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.training.recorded.toy import Net, train


def case(*, views: bool) -> None:
    """Train with the parameters of each rank in one buffer, or each by itself."""
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=views, lr=1e-3
    )
    train(model, optimizer, steps=3)


CASES: dict[str, Callable[[], None]] = {
    "each parameter": partial(case, views=False),
    "bucket views": partial(case, views=True),
}
