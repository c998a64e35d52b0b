"""Predict what `run` measures: steps with their intervals, memory, and largest batches.

python -m reports.experiments.one_gpu.predict --out DIR [--node "1x H100 SXM"]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from perfmodel.scenario import Scenario, make_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.version import __version__
from reports.experiments.one_gpu.modules import CONFIGS
from reports.experiments.one_gpu.run import STEPS, read_cases, search_largest, write_rows

COLUMNS = (
    *("version", "step_s", "low_s", "high_s", "forward_s", "backward_s", "optimizer_s"),
    *("allocated_bytes", "allocated_low_bytes", "allocated_high_bytes", "fits"),
)


def scenario_of(cells: Mapping[str, str], node: str, batch: int | None = None) -> Scenario:
    """Return the scenario of a case on a node."""
    length, in_bf16 = cells["sequence_length"], cells["dtype"] == "bf16"
    config = CONFIGS / f"{cells['model']}.json"
    named = {"config": str(config)} if config.exists() else {"name": cells["model"]}
    model: dict[str, object] = {**named, "dtype": cells["dtype"]}
    compute: dict[str, object] = {
        **{name: cells[name] for name in ("precision", "optimizer", "optimizer_kernels")},
        **{name: cells[name] == "1" for name in ("channels_last", "fused_attention", "compiled")},
        "recompute": cells["recompute"],
        "master_weights": not in_bf16,
    }
    return make_scenario(
        {
            "perfmodel": 1,
            "model": model | ({"sequence_length": int(length)} if length else {}),
            "compute": compute,
            "cluster": {"node": node},
            "training": {"batch_per_gpu": batch or int(cells["batch"])},
            "strategy": {"kind": "ddp"},
        }
    )


def predict_case(cells: Mapping[str, str], node: str) -> dict[str, object]:
    """Predict a step, its parts and its memory."""
    point = run_scenario(scenario_of(cells, node)).points[-1]
    low_s, high_s = point.interval_s
    parts_s = {
        f"{name}_s": point.breakdown_s[name] for name in ("forward", "backward", "optimizer")
    }
    return {
        "version": __version__,
        "step_s": point.step_time_s,
        "low_s": low_s,
        "high_s": high_s,
        **parts_s,
        "allocated_bytes": round(point.memory.total_bytes),
        "allocated_low_bytes": round(point.memory.low_bytes),
        "allocated_high_bytes": round(point.memory.high_bytes),
        "fits": int(point.memory.fits),
    }


def largest_batch(cells: Mapping[str, str], node: str) -> int:
    """Return the largest batch that is said to fit."""

    def fits(batch: int) -> bool:
        return bool(run_scenario(scenario_of(cells, node, batch)).points[-1].memory.fits)

    return search_largest(fits, int(cells["batch"]))


def main() -> None:
    """Predict all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--node", default="1x H100 SXM")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, table in STEPS.items():
        cases = read_cases(table)
        write_rows(
            arguments.out / f"{name}.csv",
            (*cases[0], *COLUMNS),
            ({**cells, **predict_case(cells, arguments.node)} for cells in cases),
        )
    limits = read_cases("limits")
    write_rows(
        arguments.out / "largest_batches.csv",
        (*limits[0], "largest_batch"),
        ({**cells, "largest_batch": largest_batch(cells, arguments.node)} for cells in limits),
    )


if __name__ == "__main__":
    main()
