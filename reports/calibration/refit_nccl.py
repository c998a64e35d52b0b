"""Fit the NCCL model to the recorded sweeps, and again without each family of machines.

    python -m reports.calibration.refit_nccl [--rounds N] [--write]

Fits every number of perfmodel/library/nccl.yaml whose source is "fitted" to the sweeps that ship
and that count (trust 3 or more, hardware stated), as `reports.validation.refit.fit` says; then
leaves each family of machines out in turn, from the slopes at the whole fit, and predicts the
sweeps of that family. Prints the errors of both; with --write also writes nccl.yaml, the numbers
without each family (reports/validation/refit/left_out.yaml), with which `reports.validation`
predicts in the mode "left out", and fitted.yaml. Then remake perfmodel/library/nccl/spread.yaml:
`python -m reports.validation --spread perfmodel/library/nccl/spread.yaml`.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfmodel.library import model
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.validate import read
from perfmodel.validate.match import Matched, match
from perfmodel.validate.run import shipped_folder
from perfmodel.validate.scores import weighted_quantile
from reports.validation.refit.fit import fit, refitted
from reports.validation.refit.numbers import FILE, FittedNumber, LeftOut, changes, fitted_numbers
from reports.validation.refit.slopes import Observed, observe

LARGE_BYTES = 256 * 1024

FITTED_FILE = FILE.with_name("fitted.yaml")

LIBRARY_FILE = Path(model.__file__).with_name("nccl.yaml")


def counted_sweeps(library: CommLibrary) -> list[Observed]:
    """Sweeps that ship and that count, thinned."""
    home = read.sweeps_folder(shipped_folder())
    observed = []
    for sweep in read.read_sweeps(home):
        matched = match(sweep, home)
        if isinstance(matched, Matched) and sweep.trust >= 3 and not matched.unstated:
            observed.append(observe(sweep, matched, library))
    return observed


Errors = Mapping[str, tuple[Observed, np.ndarray]]
"""By sweep: predicted over measured times, less one."""


def errors_of(sweeps: Sequence[Observed], libraries: Mapping[str, CommLibrary]) -> Errors:
    """Predict each sweep with the library of its family."""
    return {
        sweep.id: (sweep, np.expm1(sweep.predict(libraries[sweep.family]) - sweep.log_s))
        for sweep in sweeps
    }


def summary(errors: Errors, *, large: bool) -> str:
    """Median and 90th percentile of the absolute errors, each table weighing the same."""
    values, tables = [], []
    for sweep, error in errors.values():
        chosen = (np.array(sweep.nbytes) >= LARGE_BYTES) == large
        values.append(np.abs(error[chosen]))
        tables += [sweep.table] * int(chosen.sum())
    if not tables:
        return "-"
    _, at, counts = np.unique(tables, return_inverse=True, return_counts=True)
    joined = np.concatenate(values)
    parts = [weighted_quantile(joined, 1 / counts[at], share) for share in (0.5, 0.9)]
    return f"{parts[0]:6.1%} {parts[1]:6.1%}"


def print_table(fitted: Errors, left: Errors) -> None:
    """Print errors by family: fitted on and left out, from 256 KiB on and below."""
    families = sorted({sweep.family for sweep, _ in left.values()})
    print(
        f"{'family left out':44s} {'left out: large':>16s} {'small':>14s}"
        f" {'fitted: large':>16s} {'small':>14s}"
    )
    for family in [*families, ""]:
        rows = [
            {name: pair for name, pair in errors.items() if family in {"", pair[0].family}}
            for errors in (left, fitted)
        ]
        cells = [summary(own, large=large) for own in rows for large in (True, False)]
        print(f"{family or 'all':44s} " + " ".join(f"{cell:>15s}" for cell in cells))


def write_library(numbers: Sequence[FittedNumber]) -> None:
    """Put the fitted numbers into nccl.yaml, and leave the rest of it as it is."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 400
    document = yaml.load(LIBRARY_FILE.read_text())
    for number in numbers:
        node = document
        for key in number.place[:-1]:
            node = node[key]
        node[number.place[-1]] = written(number)
    text = io.StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(document, text)
    LIBRARY_FILE.write_text(text.getvalue())


def written(number: FittedNumber) -> str | float:
    """Number as nccl.yaml has it."""
    if number.kind == "time":
        return f"{number.value * 1e6:.3g} us"
    if number.kind == "rate":
        return f"{number.value / 1e9:.3g} GB/s"
    return float(f"{number.value:.3g}")


def write_left_out(table: LeftOut) -> None:
    """Write the numbers without each family."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    yaml.default_flow_style = None
    text = io.StringIO()
    text.write(
        "# Fitted numbers of perfmodel/library/nccl.yaml (SI, by place) without each family of\n"
        "# machines, where they change. Made by reports/calibration/refit_nccl.py; do not edit.\n"
    )
    yaml.dump(table.model_dump(mode="json"), text)
    FILE.write_text(text.getvalue())


def write_fitted(names: Sequence[str]) -> None:
    """List the sweeps of the fit as the first entry of fitted.yaml."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 400
    document = yaml.load(FITTED_FILE.read_text())
    document["fitted_on"][0]["sweeps"] = list(names)
    text = io.StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(document, text)
    FITTED_FILE.write_text(text.getvalue())


def main(arguments: Sequence[str]) -> None:
    """Fit, leave out, print and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    library = load_library("nccl")
    sweeps = counted_sweeps(library)
    print(f"{len(sweeps)} sweeps of {len({sweep.table for sweep in sweeps})} tables")
    whole, slopes = fit(library, sweeps, rounds=options.rounds, progress=print)
    families = sorted({sweep.family for sweep in sweeps})
    without = {family: refitted(whole, slopes, family) for family in families}
    fitted = errors_of(sweeps, dict.fromkeys(families, whole))
    print_table(fitted, errors_of(sweeps, without))
    if not options.write:
        return
    numbers = fitted_numbers(whole)
    source = f"reports/calibration/refit_nccl.py, {len(sweeps)} recorded sweeps"
    table = {family: changes(numbers, fitted_numbers(each)) for family, each in without.items()}
    write_library(numbers)
    write_left_out(LeftOut(source=source, families=table))
    write_fitted([sweep.id for sweep in sweeps])


if __name__ == "__main__":
    main(sys.argv[1:])
