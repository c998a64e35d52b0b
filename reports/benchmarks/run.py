"""Measure how fast perfmodel is, and write benchmarks.csv and README.md beside this file.

    python reports/benchmarks/run.py

About two minutes. Times are CPU seconds of one core, the best of several runs, but for the
clusters, which are wall seconds of a process of their own.
"""

from __future__ import annotations

import csv
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import measures  # noqa: E402  (found by the line above)
from benchmarks.growth import Growth  # noqa: E402
from benchmarks.growths import growths  # noqa: E402
from benchmarks.measures import Measured  # noqa: E402
from perfmodel import __version__  # noqa: E402

GROUPS = (
    measures.imports,
    measures.eight_gpus,
    measures.clusters,
    measures.heterogeneous,
    measures.large_collectives,
    measures.sends,
    measures.flows,
)


def main() -> int:
    """Measure everything and write it down."""
    begun = perf_counter()
    rows: list[Measured] = []
    for group in GROUPS:
        for row in group():
            rows.append(row)
            print(f"{row.what}: {row.reached:.4g} {row.unit} ({row.target})", flush=True)  # noqa: T201
    fits = []
    for what, wanted, fit in growths():
        fits.append((what, wanted, fit))
        print(f"growth with {what}: {fit}", flush=True)  # noqa: T201
    machine = _machine()
    _write_csv(rows, fits, machine)
    text = _markdown(rows, fits, machine)
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(f"{perf_counter() - begun:.0f} s in all")  # noqa: T201
    return 0


def _machine() -> str:
    """Say what this was measured on."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores"


def _write_csv(
    rows: Sequence[Measured], fits: Sequence[tuple[str, str, Growth]], machine: str
) -> None:
    with (HERE / "benchmarks.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(("what", "target", "reached", "unit", "met", "note", "machine"))
        for row in rows:
            out.writerow(
                (
                    row.what.strip(),
                    row.target,
                    f"{row.reached:.6g}",
                    row.unit,
                    _met(row.met),
                    row.note,
                    machine,
                )
            )
        for what, wanted, fit in fits:
            points = "; ".join(
                f"{size:g}: {cost:.3g} s" for size, cost in zip(fit.sizes, fit.costs_s, strict=True)
            )
            met = _met(_holds(wanted, fit))
            out.writerow(
                (f"growth with {what}", wanted, str(fit), "exponent", met, points, machine)
            )


def _met(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "no"


def _holds(wanted: str, fit: Growth) -> bool | None:
    """Whether an exponent is 1 or less, give or take its interval and at most a tenth."""
    return fit.exponent <= 1 + min(fit.half_width, 0.1) if wanted else None


def _markdown(
    rows: Sequence[Measured], fits: Sequence[tuple[str, str, Growth]], machine: str
) -> str:
    day = datetime.now(tz=UTC).date().isoformat()
    lines = [
        "# Benchmarks",
        "",
        f"Made by `python reports/benchmarks/run.py` on {day}: perfmodel {__version__}, Python",
        f"{platform.python_version()}, NumPy {version('numpy')}; {machine}. CPU seconds of one",
        "core, best of several; clusters: wall seconds of a process of their own, without imports.",
        "",
        "| what | target | reached | met | note |",
        "|---|--:|--:|---|---|",
    ]
    lines += [
        f"| {r.what} | {r.target} | {r.reached:.3g} {r.unit} | {_met(r.met)} | {r.note} |"
        for r in rows
    ]
    lines += [
        "",
        "## Growth",
        "",
        "Cost ~ size ^ exponent, fitted to the logarithms, with the 95 % interval of the exponent.",
        "",
        "| with | wanted | exponent | from | to |",
        "|---|--:|--:|--:|--:|",
    ]
    for what, wanted, fit in fits:
        ends = (f"{fit.sizes[i]:g}: {fit.costs_s[i] * 1e3:.3g} ms" for i in (0, -1))
        lines.append(f"| {what} | {wanted} | {fit} | {' | '.join(ends)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
