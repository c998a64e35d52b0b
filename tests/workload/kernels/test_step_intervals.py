"""Intervals of whole steps: how they are made of errors, on made-up records."""

from __future__ import annotations

import numpy as np
import pytest

from reports.kernels.steps import StepRecord, coverage, quantile, table_weights, widths

TABLES, ROWS = 300, 4


def records(generations: int = 1) -> list[StepRecord]:
    return [
        StepRecord(
            f"t{table}",
            "g",
            f"gen{table % generations}",
            f"m{table}",
            "transformer",
            "bf16",
            1.0,
            lambda: 1.0,
        )
        for table in range(TABLES)
        for _ in range(ROWS)
    ]


def errors(seed: int, tails: int) -> list[float]:
    """Errors of tables, and of rows in them: of Student's t with so many degrees of freedom."""
    rng = np.random.default_rng(seed)
    shared = np.repeat(0.1 * rng.standard_t(tails, TABLES), ROWS)
    return list(shared + 0.05 * rng.standard_t(tails, TABLES * ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("tails", [2, 30])
def test_eight_of_ten_steps_of_a_table_left_out_lie_inside(tails: int) -> None:
    """Whatever the tails, as widths are shares of errors and no standard deviation."""
    steps = records()
    inside, half = coverage(steps, errors(3, tails), lambda record: record.table)
    assert inside == pytest.approx(0.8, abs=0.05)
    assert half == pytest.approx(widths(steps, errors(3, tails)).families["transformer"], rel=0.05)


def test_every_table_weighs_the_same() -> None:
    """Ninety rows of one table weigh no more than the single rows of nine others."""
    large = [record for record in records() if record.table == "t0"][:1] * 90
    small = [record for record in records()[::ROWS] if record.table != "t0"][:9]
    weights = table_weights([*large, *small])
    assert sum(weights[:90]) == pytest.approx(weights[-1] * 1.0)
    sizes = [0.01] * 90 + [0.5] * 9
    assert quantile(sizes, weights) == 0.5
    assert quantile(sizes, [1.0] * 99) == 0.01


def test_rare_generations_take_the_width_of_generations() -> None:
    """One of four generations is 0.6 off; nine tables are of a common one, that is not."""
    common = [record for record in records() if record.generation == "gen0"][: 9 * ROWS]
    rare = [
        StepRecord(f"r{at}", "g", f"rare{at}", "m", "transformer", "bf16", 1.0, lambda: 1.0)
        for at in range(3)
    ]
    fitted = widths([*common, *rare], [0.02] * len(common) + [0.02, 0.6, 0.3])
    assert fitted.seen == ("gen0",)
    assert fitted.of(common[0]) == fitted.families["transformer"] < fitted.of(rare[0])
    assert fitted.of(rare[0]) == fitted.unseen == 0.6
    assert "convolutional" not in fitted.families
