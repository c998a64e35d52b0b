"""Whether the explorer's note holds: its estimates beside simulations at random places.

    python -m reports.explorer.measure

Of five unlike scenarios it makes the quick grid of ``perfmodel run --explore``, draws 200 places at
which sliders may stand, and simulates each. It takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from perfmodel.report.explorer.axes import design_of
from perfmodel.report.explorer.grid import (
    Grid,
    InterpolationCheck,
    check_estimates,
    draw_places,
    explore,
    simulate_places,
    value_at,
)
from perfmodel.report.explorer.section import by_sliders_moved
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run import run_scenario

SCENARIOS = (
    "bert-large-v100-25g",
    "llama2-7b-fsdp-h100",
    "gpt2-xl-pcie-p2p",
    "vgg16-schedulers-25g",
    "local-sgd-1g",
)
PLACES = 200
SEED = 2026


def measure(scenario: Scenario, places: int) -> dict[str, object]:
    """Say what the note of a scenario states, and what holds at random places."""
    began_s, result = time.monotonic(), run_scenario(scenario)
    design = design_of(scenario, result)
    grid = explore(scenario, result, design)
    took_s = time.monotonic() - began_s
    drawn = list(draw_places(design, [len(design.axes)], places, SEED))
    rows, _ = simulate_places(scenario, design.axes, drawn)
    checks = list(check_estimates(grid, drawn, rows))
    unlike = [
        (value_at(grid, place, "memory_bytes") or 0.0) < grid.room_bytes
        for place, row in zip(drawn, rows, strict=True)
        if row is not None and not row["fits"]
    ]
    return {
        "scenario": scenario.name,
        "simulated": len(design.points),
        "grid_s": round(took_s),
        "stated_few": _worst(by_sliders_moved(grid)[0]),
        "stated_more": _worst(by_sliders_moved(grid)[1]),
        "places": len(checks),
        "median": round(median(check.error for check in checks), 4),
        "nine_in_ten": round(sorted(check.error for check in checks)[int(0.9 * len(checks))], 4),
        "worst": _worst(checks),
        "within_stated": round(share_within(grid, checks), 3),
        "do_not_fit": len(unlike),
        "shown_as_fitting": sum(unlike),
    }


def share_within(grid: Grid, checks: Sequence[InterpolationCheck]) -> float:
    """Share of places at which an estimate is no farther off than the note states."""
    few, more = map(_worst, by_sliders_moved(grid))
    held = [check.error <= (few if check.moved <= 2 else more) for check in checks]
    return sum(held) / len(held)


def _worst(checks: Sequence[InterpolationCheck]) -> float:
    return round(max((check.error for check in checks), default=0.0), 4)


def main() -> None:
    """Measure all scenarios, and write the table."""
    names = sys.argv[1:] or SCENARIOS
    with (Path(__file__).parent / "estimates.csv").open("w", newline="") as file:
        for number, name in enumerate(names):
            row = measure(load_scenario(name), PLACES)
            table = csv.DictWriter(file, row, lineterminator="\n")
            if not number:
                table.writeheader()
            table.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
