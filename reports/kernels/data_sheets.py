"""Errors of recorded kernels and steps with each shipped GPU taken for a new one.

    python -m reports.kernels.data_sheets      # prints the tables, a minute

Of each GPU only the numbers of its data sheet are kept; the rest is estimated from the others as
for a user's own GPU (`perfmodel.topology.templates.gpus`), GPUs of the same kind left out.
The half widths at the end stand in ``perfmodel/workload/compute_spread.yaml``.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from perfmodel.errors import InputError
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates import gpus as table
from perfmodel.topology.templates.gpus import ESTIMATED, complete
from reports.kernels.left_out import log_error, spread
from reports.kernels.records import Record, product_records
from reports.kernels.steps import StepRecord, quantile, step_records, table_weights
from reports.validation.trainings import step_times

_ENTRY = table._entry


def as_new(name: str) -> tuple[Gpu, Mapping[str, str]]:
    """The GPU as it would be if its data sheet were all that is known."""
    sources = _ENTRY(name)[1]
    kind = sources.get("matmul_efficiency")
    others = [
        other
        for other in table.measured_gpus()
        if other.name != name and _ENTRY(other.name)[1].get("matmul_efficiency") != kind
    ]
    spec = table.gpu_spec(name).model_copy(update=dict.fromkeys(ESTIMATED))
    spec, estimated = complete(name, spec, others)
    fresh = table.gpu_of(name, spec, efficiency_assumed=True, estimated=tuple(estimated))
    return fresh, {**sources, **estimated}


@contextmanager
def taken_for_new(name: str) -> Iterator[None]:
    """Let the table of GPUs know no more of one than its data sheet."""
    fresh = as_new(name)
    _forget()
    with patch.object(table, "_entry", lambda other: fresh if other == name else _ENTRY(other)):
        yield
    _forget()


def _forget() -> None:
    """Clear what is kept of machines and of times by GPU."""
    for function in vars(step_times).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def is_known(name: str) -> bool:
    """Whether others have the generation of a GPU, so that a user's would not be refused."""
    try:
        as_new(name)
    except InputError:
        return False
    return True


def step_errors(records: list[StepRecord]) -> tuple[list[float], list[float]]:
    """Logarithms of predicted over measured time, as it ships and as new."""
    shipped, fresh = [], []
    for record in records:
        shipped.append(record.error())
        with taken_for_new(record.gpu):
            fresh.append(record.error())
    return shipped, fresh


def product_errors(records: list[Record]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """The same of matrix products, by precision and GPU."""
    errors: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        if not is_known(record.gpu):
            continue
        gpu, fresh = _ENTRY(record.gpu)[0], as_new(record.gpu)[0]
        errors[record.kind, record.gpu].append((log_error(record, gpu), log_error(record, fresh)))
    return errors


def main() -> None:
    """Print the tables."""
    print(f"{'products':40} rows  shipped   as new   (median of log predicted over measured)")
    for (kind, gpu), rows in sorted(product_errors(product_records()[::3]).items()):
        old, new = (statistics.median(values) for values in zip(*rows, strict=True))
        print(f"{kind + ', ' + gpu:40} {len(rows):4} {old:+8.3f} {new:+8.3f}")
    records = [record for record in step_records() if is_known(record.gpu)]
    shipped, fresh = step_errors(records)
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record, pair in zip(records, zip(shipped, fresh, strict=True), strict=True):
        groups[f"{record.family} {record.precision}, {record.gpu}"].append(pair)
    print(f"\n{'steps':40} rows  shipped   as new")
    for name, rows in sorted(groups.items()):
        old, new = (statistics.median(values) for values in zip(*rows, strict=True))
        print(f"{name:40} {len(rows):4} {old:+8.3f} {new:+8.3f}")
    print("\nerrors of steps: median, median size, 90th percentile of size, standard deviation")
    print("shipped", *(f"{value:+.3f}" for value in spread(shipped)))
    print("as new ", *(f"{value:+.3f}" for value in spread(fresh)))
    moves = [new - old for old, new in zip(shipped, fresh, strict=True)]
    weights = gpu_weights(records)
    for title, errors in (("shipped", shipped), ("as new", fresh), ("moved", moves)):
        sizes = [abs(error) for error in errors]
        by_table = quantile(sizes, table_weights(records))
        by_gpu = quantile(sizes, weights)
        print(f"80 % within, tables equal / GPUs equal: {title:8} {by_table:.3f} {by_gpu:.3f}")
    deviation = math.sqrt(statistics.fmean(move**2 for move in moves))
    print(f"root mean square of what moved: {deviation:.3f}")


def gpu_weights(records: list[StepRecord]) -> list[float]:
    """Weights that make GPUs count the same."""
    counts = {gpu: sum(r.gpu == gpu for r in records) for gpu in {r.gpu for r in records}}
    return [1.0 / counts[record.gpu] for record in records]


if __name__ == "__main__":
    main()
