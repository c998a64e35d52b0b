"""How busy a sweep keeps two cores (``pytest -m benchmarks``); no time is asserted.

1,000 variants of some ten ms each, from the command line: imports, reading, two worker processes
and the store are part of it. `extra_info` holds the best of three runs: CPU time of all processes
over twice the wall time. On a machine that does other work, too, it says little.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmarks
VARIANTS, WORKERS = 1000, 2


def busy(store: Path) -> tuple[float, float]:
    """Share of the cores that one sweep keeps busy, and variants per second."""
    flags = [
        "scale=null",
        "model.name=resnet18",
        "cluster.nodes=2",
        "strategy.bucket_cap=25 MiB",
        f"sweep={{grid: {{seed: {list(range(VARIANTS))}}}}}",
    ]
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from perfmodel.cli import main; main()",
            "sweep",
            "bucket-size-slow-ethernet",
            *(word for flag in flags for word in ("--set", flag)),
            "-j",
            str(WORKERS),
            "--store",
            str(store),
            "--json",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s / (WORKERS * wall_s), VARIANTS / wall_s


@pytest.mark.skipif((os.cpu_count() or 1) < WORKERS, reason="needs two cores")
def test_two_cores_are_busy(benchmark, tmp_path: Path) -> None:
    runs: list[tuple[float, float]] = []

    def once() -> None:
        runs.append(busy(tmp_path / f"{len(runs)}.sqlite"))

    benchmark.pedantic(once, rounds=3)
    share, per_s = max(runs)
    benchmark.extra_info["share of two cores busy"] = round(share, 3)
    benchmark.extra_info["variants per second"] = round(per_s, 1)
