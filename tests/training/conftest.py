"""What the tests of strategies share: layer times, and a tiny executor to read a plan by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.workload.model import LayerTimes, Workload

collect_ignore = ["ddp/ddp_on_gloo.py"]
"""A program that a test starts; it needs torch, which the test may have to do without."""


@pytest.fixture
def times_of() -> Callable[..., LayerTimes]:
    """Make layer times: the same for each layer unless said otherwise."""

    def make(workload: Workload, **changed: Any) -> LayerTimes:
        layers = len(workload.layers)
        given: dict[str, Any] = {
            "forward_s": np.full(layers, 1e-3),
            "backward_s": np.full(layers, 2e-3),
            "forward_kernels": np.full(layers, 3),
            "backward_kernels": np.full(layers, 6),
            "launch_s": 0.0,
            "optimizer_s": 1e-3,
            "optimizer_kernels": 10,
            "copy_Bps": 1e12,
            "source": "test",
        }
        return LayerTimes(**(given | changed))

    return make


@pytest.fixture
def run_plan() -> Callable[..., list[tuple[float, float]]]:
    """Run a plan of one class whose streams have one worker: (start, end) of each task."""

    def run(
        plan: StepPlan, collective_s: Callable[[Collective], float] = lambda _: 0.0
    ) -> list[tuple[float, float]]:
        free: dict[str, float] = {}
        spans: list[tuple[float, float]] = []
        for task in plan.tasks:
            start = max([free.get(task.stream, 0.0), *(spans[other][1] for other in task.after)])
            work = task.work
            lasts = collective_s(work) if isinstance(work, Collective) else work.duration_s
            spans.append((start, start + lasts))
            free[task.stream] = start + lasts
        return spans

    return run
