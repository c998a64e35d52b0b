"""Numbers of a model that a recorded step leaves to be worked out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.traces.rebuild.scenario_files import _copy_rate


def test_copies_into_buckets_take_a_kernel_and_their_bytes_at_the_rate() -> None:
    gpu = replace(load_gpu("a100-sxm4-80gb"), kernel_overhead_s=5e-6)
    gradient = SimpleNamespace(elements=1_000_000, dtype="fp32")
    trace: Any = SimpleNamespace(fsdp=False, gradients=[gradient] * 4)
    profile: Any = SimpleNamespace(copied_in_s=np.array([0.0, 2 * 25e-6, 2 * 25e-6]))
    assert _copy_rate(trace, profile, gpu) == pytest.approx(4e6 / 20e-6)
