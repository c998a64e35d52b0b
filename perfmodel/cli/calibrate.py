"""``perfmodel calibrate``: measurements become a profile; ``validate``: records and predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfmodel.cli.output import (
    FabricOption,
    GpusPerNodeOption,
    JsonOption,
    ProfileOption,
    check_outputs,
    flags_as_fields,
    load_profile,
    print_answer,
    print_json,
    print_notes,
    print_table,
    print_text,
    progress_bar,
)
from perfmodel.errors import Fault, allowed_names, failed, raise_faults, refuse_if
from perfmodel.memo import T

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.calibrate.profile import Fit
    from perfmodel.calibrate.readers import MeasurementFile as Found
    from perfmodel.calibrate.transfer.inputs import MachineRequest
    from perfmodel.measure.job import Measurement


MACHINE_FLAGS = {
    "topology": "--topology",
    "hosts": "--nodes",
    "nodes": "--nodes",
    "gpus_per_host": "--gpus-per-node",
    "fabric": "--fabric",
    "kind": "--fabric",
}


MeasuredNodes = Annotated[
    int | None,
    typer.Option("--nodes", min=1, metavar="N", help="Machines; default: as the file says."),
]
OpOfTables = Annotated[
    str | None,
    typer.Option("--op", metavar="OP", help="Collective of tables that do not name theirs."),
]


def calibrate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="What 'perfmodel measure', nccl-tests, rccl-tests, nvbandwidth or "
            "p2pBandwidthLatencyTest wrote; any mix.",
        ),
    ],
    topology: Annotated[
        str, typer.Option("--topology", metavar="T", help="Machine that was measured.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PROFILE", help="Write the profile here.")
    ],
    nodes: MeasuredNodes = None,
    gpus_per_node: GpusPerNodeOption = None,
    fabric: FabricOption = None,
    op: OpOfTables = None,
    library: Annotated[
        Literal["nccl", "gloo", "plain"] | None,
        typer.Option(help="Communication library; default: the one that was measured."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of the profile; default: that of its file."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.html", help="Draw the residuals here.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the numbers of a machine from what was measured on it.

    Prints every number with its 80 % interval, how far the fit is from each measured time, and what
    these measurements cannot tell. Several files of the same measurement, each from processes
    started afresh, also show how much one run differs from the next. From sweeps of nccl-tests and
    the like come factors that hold for other numbers of nodes and GPUs as well. 'perfmodel
    collective --profile' and 'perfmodel run --profile' then predict with it.
    """
    from perfmodel.calibrate import write_profile
    from perfmodel.calibrate.transfer.inputs import MachineRequest

    check_outputs({"-o": output, "--plot": plot}, {str(path): path for path in files})
    request = MachineRequest(topology, nodes, gpus_per_node, fabric)
    contents = _read(files, op, request.ranks)
    measured = [content.measurement for content in contents if content.measurement is not None]
    flags = (files, request, library, name or output.stem)
    profile = (
        _profile_from_measurements(measured, *flags)
        if len(measured) == len(contents)
        else _profile_from_sweeps(contents, *flags)
    )
    write_profile(profile, output)
    if json:
        print_json(profile.model_dump(mode="json"))
    else:
        for fit in profile.fits:
            if fit.gpu:
                _print_factors(fit)
            else:
                _print_numbers(fit, profile.library)
    print_notes(f"wrote {output}")
    if plot is not None:
        from perfmodel.report.validation import write_residuals

        print_notes(f"wrote {write_residuals(profile, plot)}")


@flags_as_fields(MACHINE_FLAGS)
def _profile_from_sweeps(
    contents: list[Found],
    files: list[Path],
    request: MachineRequest,
    library: str | None,
    name: str,
) -> Profile:
    """Factors from sweeps and matrices of any tool."""
    from perfmodel.calibrate.transfer.inputs import profile_of

    refuse_if(
        library not in {None, "nccl"},
        "--library",
        repr(library),
        "'nccl', which these files were measured with",
    )
    profile = profile_of(contents, request, name=name, paths=files)
    print_notes(*(f"Note: {note}." for fit in profile.fits for note in fit.notes))
    return profile


def _profile_from_measurements(
    measurements: list[Measurement],
    files: list[Path],
    request: MachineRequest,
    library: str | None,
    name: str,
) -> Profile:
    """Numbers from what 'perfmodel measure' wrote."""
    from perfmodel.calibrate import doubts, fit, source_of
    from perfmodel.library.model import load_library
    from perfmodel.topology.templates.build import build_topology

    names = [str(path) for path in files]
    with flags_as_fields(MACHINE_FLAGS):
        machine = build_topology(
            request.topology,
            hosts=request.nodes or 1,
            fabric=request.fabric,
            gpus_per_host=request.gpus_per_node,
        )
    profile = fit(
        measurements,
        machine,
        load_library(library or measurements[0].backend),
        name=name,
        sources=[source_of(m, path) for m, path in zip(measurements, files, strict=True)],
        files=names,
    )
    sizes = {row.nbytes for measurement in measurements for row in measurement.rows}
    refuse_if(
        not any(block.values for block in profile.fits),
        "FILE",
        f"{len(sizes)} sizes in all",
        "measurements at more sizes: these determine no number at all",
    )
    print_notes(*(f"Note: {doubt}." for doubt in doubts(measurements, machine, names)))
    return profile


def _read(files: list[Path], op: str | None, ranks: int | None) -> list[Found]:
    """Read files of any kind; each may be given once, and measure collectives or links."""
    from perfmodel.calibrate.readers import read_files
    from perfmodel.collectives.catalog import ALGORITHMS
    from perfmodel.files import attempt

    is_unknown = op is not None and op not in ALGORITHMS
    faults = failed((is_unknown, "--op", repr(op), allowed_names(ALGORITHMS, op)))
    contents = attempt(faults, partial(read_files, files, op=op, ranks=ranks)) or []
    faults += [
        Fault(
            "backend", "'device'", "backend 'gloo' or 'nccl': collectives between ranks", str(path)
        )
        for path, content in zip(files, contents, strict=False)
        if content.measurement is not None and content.measurement.backend == "device"
    ]
    raise_faults(faults)
    anonymous = [replace(content, file="") for content in contents]
    raise_faults(
        Fault("FILE", "a measurement given before", "each once", str(path))
        for at, path in enumerate(files)
        if anonymous[at] in anonymous[:at]
    )
    return contents


TransferOption = Annotated[
    bool,
    typer.Option(
        "--transfer/--no-transfer",
        help="Also predict each sweep from the others of the same hardware.",
    ),
]


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder with META.csv (or nccl_sweeps/META.csv) and the times of each sweep, with "
            "steps.csv, or with both; default: the recorded sweeps that ship with perfmodel.",
        ),
    ] = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Write the report here (page, Markdown, JSON, CSV).",
        ),
    ] = None,
    transfer: TransferOption = True,
    json: JsonOption = False,
) -> None:
    """Compare predictions with recorded sweeps of collectives and recorded training steps.

    Each sweep is matched to a machine by the words of META.csv (or by its column topology) and
    predicted from datasheets, and from other sweeps of the same hardware. What cannot be matched
    is listed with the reason.

    Each row of steps.csv names a scenario, and what was measured: step_s, peak_GB, or both. Other
    columns are fields of the scenario, as for --set (cluster.nodes).
    """
    check_outputs({"-o": output and output / "validation.html"})

    from perfmodel.report.validation import validation_lines, write_validation
    from perfmodel.validate.run import to_json
    from perfmodel.validate.run import validate as compare

    print_answer(
        compare_records(compare, data, profile, transfer=transfer),
        json=json,
        to_json=to_json,
        lines=validation_lines,
        write=write_validation,
        folder=output,
    )


def compare_records(
    compare: Callable[..., T], data: Path | None, profile: str | None, **options: bool
) -> T:
    """Compare records with predictions on all cores, with a bar for people who wait.

    `compare`: `perfmodel.validate.run.validate`, or a function that takes more `options`.
    """
    from perfmodel.studies.sweep.executor import count_cores

    with progress_bar("predicting sweeps") as progress:
        return compare(
            data,
            profile=load_profile(profile),
            processes=count_cores(),
            progress=progress,
            **options,
        )


# ---------------------------------------------------------------- on the terminal


def _print_numbers(fit: Fit, library: str) -> None:
    def shortened(value: str) -> str:
        """Write a value of a profile for people: ``"3.371 GB/s"``."""
        number, space, unit = value.partition(" ")
        return f"{float(number):.4g}{space}{unit}"

    subjects = {"library": f"{library}'s own collective", "schedule": "our schedule"}
    print_text(
        f"{subjects[fit.rows]}, measured on {', '.join(map(str, fit.ranks))} ranks, "
        f"{'1 run' if fit.runs == 1 else f'{fit.runs} runs'}"
    )
    print_table(
        ("number", "of", ">chunks beyond", ">value", ">80 % from", ">to"),
        [
            (v.parameter, v.where, v.beyond, *map(shortened, (v.value, *v.interval)))
            for v in fit.values
        ],
    )
    _print_residuals(fit)
    if (spread := fit.run_spread) is not None:
        print_text(
            f"another run: times {100 * spread.times:.0f} %, rates {100 * spread.rates:.0f} % "
            f"up or down (one standard deviation; {spread.source.partition(':')[0]}); within a "
            f"run single sizes scatter by {100 * fit.scatter:.0f} %"
        )
    for lost in fit.undetermined:
        print_text(
            f"cannot tell {lost.parameter} of {lost.where}: {lost.reason}; kept: {lost.kept}"
        )
    print_text("")


def _print_factors(fit: Fit) -> None:
    from perfmodel.calibrate.parameters import MEANINGS

    print_text(f"{fit.gpu}, {len(fit.points)} times of {len(fit.files)} runs")
    print_table(
        ("number", "of", ">now", ">factor", ">80 % from", ">to", ">settled"),
        [
            (
                MEANINGS[v.parameter],
                v.where or "all",
                v.now,
                f"{v.si:.3f}",
                f"{v.low:.3f}",
                f"{v.high:.3f}",
                f"{100 * v.told:.0f} %",
            )
            for v in fit.values
        ],
    )
    for value in fit.values:
        if value.reason:
            print_text(f"cannot tell {value.key} by itself: {value.reason}")
    if not fit.points:  # matrices of links alone: no collective was timed
        return
    print_text(
        f"with what these leave, by size: absolute error of these times, median "
        f"{100 * fit.median_abs:.1f} %, 90th percentile {100 * fit.p90_abs:.1f} %"
    )


def _print_residuals(fit: Fit) -> None:
    from statistics import geometric_mean

    from perfmodel.units import format_bytes, format_time

    measured_s = {
        key: geometric_mean(point.measured_s for point in points)
        for key, points in fit.by_size.items()
    }
    print_text("")
    print_table(
        ("collective", ">ranks", ">size", ">measured", ">fitted", ">error"),
        [
            (
                key[0],
                str(key[1]),
                format_bytes(key[2]),
                format_time(measured_s[key]),
                format_time(points[0].fitted_s),
                f"{100 * (points[0].fitted_s / measured_s[key] - 1):+.1f} %",
            )
            for key, points in fit.by_size.items()
        ],
    )
    print_text(
        f"absolute error: median {100 * fit.median_abs:.1f} %, 90th percentile "
        f"{100 * fit.p90_abs:.1f} %"
    )
