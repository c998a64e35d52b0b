"""Measure kernels, steps and largest batches on this machine's GPU, and write them down.

    python -m reports.experiments.one_gpu.run --out DIR [--seconds 400]

Needs PyTorch, transformers and torchvision, nothing of perfmodel. What does not fit into the time
is left out, the last cases first.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reports.experiments.one_gpu import kernels, steps

HERE = Path(__file__).parent

STEPS = {"steps": "cases", "optimizers": "optimizers", "hybrids": "hybrids"}
"""Files that are written of steps, and the table of cases of each."""

VERSIONS_OF = (
    *("torch", "transformers", "torchvision", "bitsandbytes", "pytorch_optimizer"),
    *("mamba_ssm", "causal_conv1d", "fla"),
)
"""Packages whose versions are written down. Hybrids need the last three: else torch runs them."""


def read_cases(name: str = "cases") -> list[dict[str, str]]:
    """Read a table of cases."""
    with (HERE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as they come, so that a run that is cut off leaves what it had."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()


def search_largest(
    fits: Callable[[int], bool], start: int, parts: int | None = None, deadline_s: float = math.inf
) -> int:
    """Return the largest number that fits, by doubling and halving; 0: none does.

    `parts`: known to one in so many of it is enough; None: to one. `deadline_s`: of the monotonic
    clock, from which on what is known has to do.
    """
    low, high = 0, start
    while time.monotonic() < deadline_s and fits(high):
        low, high = high, 2 * high
    while time.monotonic() < deadline_s and high - low > (max(1, low // parts) if parts else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def find_largest_batch(torch: Any, cells: Mapping[str, str], deadline_s: float) -> int:
    """Largest batch whose second step fits, to one in sixteen."""
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def two_steps(batch: int) -> None:
        step = steps.make_step(torch, {**cells, "batch": str(batch)}, device)
        for _ in range(2):
            step(lambda: None)
        torch.cuda.synchronize()

    def fits(batch: int) -> bool:
        try:
            two_steps(batch)
        except torch.OutOfMemoryError:
            return False
        finally:
            steps.release(torch)
        return True

    return search_largest(fits, int(cells["batch"]), 16, deadline_s)


def main() -> None:
    """Run what the time allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--only", choices=("kernels", *STEPS, "batches"), nargs="*")
    arguments = parser.parse_args()
    import torch

    out, deadline_s = arguments.out, time.monotonic() + arguments.seconds
    wanted = arguments.only or ("kernels", *STEPS, "batches")
    out.mkdir(parents=True, exist_ok=True)
    (out / "machine.json").write_text(json.dumps(describe(torch), indent=1) + "\n", "utf-8")
    if "kernels" in wanted and torch.cuda.is_available():
        write_rows(out / "kernels.csv", kernels.COLUMNS, kernels.measure_kernels(torch))
    for name in (name for name in STEPS if name in wanted):
        cases = read_cases(STEPS[name])
        write_rows(
            out / f"{name}.csv", (*cases[0], *steps.COLUMNS), _measured(torch, cases, deadline_s)
        )
    if "batches" in wanted and torch.cuda.is_available():
        limits = read_cases("limits")
        found = (
            {**cells, "largest_batch": find_largest_batch(torch, cells, deadline_s)}
            for cells in limits
            if time.monotonic() < deadline_s
        )
        write_rows(out / "largest_batches.csv", (*limits[0], "largest_batch"), found)


def _measured(torch: Any, cases: Iterable[dict[str, str]], deadline_s: float) -> Any:
    for cells in cases:
        if time.monotonic() > deadline_s:
            return
        time.monotonic()
        measure = partial(steps.measure_case, torch, cells, 1.0)
        try:
            found = measure()
        except Exception as error:  # noqa: BLE001  (one case must not end the others)
            found = {"outcome": f"failed: {str(error).splitlines()[0][:80]}"}
        yield {**cells, **found}


def describe(torch: Any) -> dict[str, object]:
    """Describe GPU, CPU and versions."""
    import importlib.metadata

    versions = {
        name: importlib.metadata.version(name)
        for name in VERSIONS_OF
        if any(importlib.metadata.packages_distributions().get(name, ()))
    }
    cpu = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    gpu: dict[str, object] = {}
    if torch.cuda.is_available():
        own = torch.cuda.get_device_properties(0)
        gpu = {
            "gpu": own.name,
            "gpu_bytes": own.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return {**gpu, "cpu": cpu, "python": platform.python_version(), "versions": versions}


if __name__ == "__main__":
    main()
