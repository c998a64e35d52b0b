"""Errors of predicted kernels and steps, with whole GPUs left out of every fit.

    python -m reports.kernels.left_out            # prints the tables, minutes
    python -m reports.kernels.left_out --write    # and keeps the spread for intervals

Constants of matrix products are refitted without each GPU in turn; "seen" is a GPU whose own
efficiency is measured, "unseen" takes the mean efficiency of the other GPUs. Of whole steps, the
two fitted rates of convolutional networks are refitted without each GPU, and without each model
(`reports.kernels.steps`). Logarithms of predicted
over measured time; spreads are the width of the middle 80 %, as standard deviations of a normal.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import KernelConstants, kernel_constants
from reports.kernels.float8 import float8_errors
from reports.kernels.records import (
    DATA,
    Record,
    attention_records,
    gpus,
    kernel_s,
    memory_records,
    product_records,
)
from reports.kernels.steps import (
    CAP,
    STEPS,
    StepRecord,
    Widths,
    errors_without,
    print_coverage,
    step_records,
    widths,
)

SPREAD = DATA.parents[2] / "perfmodel" / "workload" / "kernels" / "spread.yaml"

FEW = 4
"""Rows of one GPU below which they tell no spread."""
NORMAL_80 = 2.563
"""Width of the middle 80 % of a normal distribution; standard deviations."""

Errors = dict[tuple[str, str, str], list[float]]
"""Logarithms of predicted over measured by kind, GPU, and "seen" or "unseen"."""


def log_error(record: Record, gpu: Gpu, constants: KernelConstants | None = None) -> float:
    """Logarithm of predicted over measured time of a kernel."""
    return math.log(kernel_s(record, gpu, constants) * 1e6 / float(record.cells["time_us"]))


def cost(errors: Iterable[float]) -> float:
    """Mean error of rows, each capped."""
    return statistics.fmean(min(abs(error), CAP) for error in errors)


def descend(
    objective: Callable[[KernelConstants], float],
    start: KernelConstants,
    section: str,
    names: Sequence[str],
) -> KernelConstants:
    """Fit constants one after the other, in factors."""
    best, best_cost = start, objective(start)
    for name in names:
        old = getattr(best, section)
        for factor in STEPS:
            changed = replace(old, **{name: getattr(old, name) * factor})
            tried = replace(best, **{section: changed})
            if (tried_cost := objective(tried)) < best_cost:
                best, best_cost = tried, tried_cost
    return best


def product_errors() -> Errors:
    """Matrix products, each GPU's predicted by constants fitted without it."""
    records, errors = product_records(), Errors()
    by_gpu = {name: [record for record in records if record.gpu == name] for name in gpus(records)}
    for name, own in by_gpu.items():
        others = {other: rows[::4] for other, rows in by_gpu.items() if other != name}

        def objective(constants: KernelConstants, others=others) -> float:  # type: ignore[no-untyped-def]
            return statistics.fmean(
                cost(log_error(row, load_gpu(other), constants) for row in rows)
                for other, rows in others.items()
            )

        fitted = descend(
            objective, kernel_constants(), "product", ("ramp_s", "prologue_bytes", "tile_edge")
        )
        gpu = load_gpu(name)
        for record in own:
            errors.setdefault((record.kind, name, "seen"), []).append(
                log_error(record, gpu, fitted)
            )
            stranger = _with_mean_efficiency(gpu, record.cells["precision"], by_gpu)
            errors.setdefault((record.kind, name, "unseen"), []).append(
                log_error(record, stranger, fitted)
            )
    return errors


def _with_mean_efficiency(gpu: Gpu, precision: str, others: Iterable[str]) -> Gpu:
    """Return the GPU with the mean efficiency of other GPUs that were measured."""
    values = [
        load_gpu(name).matmul_efficiency[precision]
        for name in others
        if name != gpu.name and precision in load_gpu(name).matmul_efficiency
    ]
    return replace(
        gpu, matmul_efficiency={**gpu.matmul_efficiency, precision: statistics.fmean(values)}
    )


def other_errors() -> Errors:
    """Attention and memory-bound kernels, by the shipped constants."""
    errors = Errors()
    for record in (*attention_records(), *memory_records()):
        errors.setdefault((record.kind, record.gpu, "seen"), []).append(
            log_error(record, load_gpu(record.gpu))
        )
    return errors


def step_errors(records: Sequence[StepRecord], errors_: Sequence[float]) -> Errors:
    """Whole steps by kind and GPU."""
    errors = Errors()
    for record, error in zip(records, errors_, strict=True):
        kind = f"step {record.family} {record.precision}"
        errors.setdefault((kind, record.gpu, "seen"), []).append(error)
    return errors


def spread(errors: Sequence[float]) -> tuple[float, float, float, float]:
    """Median, median size, 90th percentile of size, and standard deviation."""
    values = np.array(errors)
    low, high = np.quantile(values, [0.1, 0.9])
    return (
        float(np.median(values)),
        float(np.median(abs(values))),
        float(np.quantile(abs(values), 0.9)),
        float((high - low) / NORMAL_80),
    )


def print_table(title: str, groups: dict[str, list[float]]) -> None:
    """Print one row per group."""
    print(f"\n{title:40} rows    bias  median   90 %  spread")
    for name, values in sorted(groups.items()):
        bias, median, most, sd = spread(values)
        print(f"{name:40} {len(values):4} {bias:+7.1%} {median:7.1%} {most:6.1%} {sd:7.3f}")


def by_kind(errors: Errors) -> dict[tuple[str, str], list[list[float]]]:
    """Errors of a kind, by GPU."""
    pooled: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for (kind, _, seen), values in errors.items():
        pooled[kind, seen].append(values)
    return pooled


def spread_of_kind(gpus_: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Median over GPUs, each weighing the same, and standard deviation within and between GPUs."""
    medians = [statistics.median(values) for values in gpus_]
    widths = [spread(values)[3] for values in gpus_ if len(values) >= FEW]
    within = math.sqrt(statistics.fmean(width**2 for width in widths)) if widths else 0.0
    between = statistics.pstdev(medians) if len(medians) > 1 else 0.0
    return statistics.median(medians), math.hypot(within, between)


def write(pooled: dict[tuple[str, str], list[list[float]]], steps: Widths) -> None:
    """Keep the spread by kind beside the constants."""
    lines = [Path(SPREAD).read_text(encoding="utf-8").split("kinds:")[0] + "kinds:"]
    kinds = sorted({kind for kind, _ in pooled})
    for kind in kinds:
        entries = []
        for seen in ("seen", "unseen"):
            if (kind, seen) in pooled:
                bias, sd = spread_of_kind(pooled[kind, seen])
                entries.append(f"{seen}: {{bias: {bias:.3f}, log_sd: {sd:.3f}}}")
        lines.append(f"  {kind}: {{{', '.join(entries)}}}")
    lines.append("steps:")
    lines += [f"  {family}: {half:.3f}" for family, half in steps.families.items()]
    lines.append(f"  unseen: {steps.unseen:.3f}")
    own = ", ".join(f"{name}: {half:.3f}" for name, half in steps.generations.items())
    lines.append(f"  transformer_generations: {{{own}}}")
    lines.append(f"  seen_generations: [{', '.join(steps.seen)}]")
    Path(SPREAD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Print the tables, and write the spread if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {SPREAD.name}")
    options = parser.parse_args()
    records = step_records()
    without_gpu = errors_without(records, lambda record: record.gpu)
    kernels = product_errors() | float8_errors() | other_errors()
    errors = kernels | step_errors(records, without_gpu)
    print_table(
        "kind, GPU", {f"{kind}, {gpu}, {seen}": rows for (kind, gpu, seen), rows in errors.items()}
    )
    without_model = errors_without(records, lambda record: record.model)
    for title, errors_, key in (
        ("steps by table", without_gpu, lambda record: record.table),
        ("steps by model, left out", without_model, lambda record: record.model),
    ):
        groups: dict[str, list[float]] = defaultdict(list)
        for record, error in zip(records, errors_, strict=True):
            groups[key(record)].append(error)
        print_table(title, groups)
    pooled = by_kind(errors)
    print(f"\n{'kind':40} GPUs    bias  spread within and between GPUs")
    for (kind, seen), values in sorted(pooled.items()):
        bias, sd = spread_of_kind(values)
        print(f"{kind + ', ' + seen:40} {len(values):4} {bias:+7.1%} {sd:7.3f}")
    print_coverage(records, without_gpu)
    if options.write:
        write(pooled, widths(records, without_gpu))


if __name__ == "__main__":
    main()
