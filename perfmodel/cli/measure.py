"""``perfmodel measure``: run a schedule for real and write down how long it took."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfmodel.cli.output import (
    BeginOption,
    EndOption,
    FactorOption,
    JsonOption,
    check_outputs,
    flags_as_fields,
    output_option,
    parse_quantities,
    print_blocks,
    print_json,
    print_notes,
    progress_bar,
)
from perfmodel.errors import refuse_if

if TYPE_CHECKING:
    from perfmodel.measure.job import Measurement, MeasurementJob
    from perfmodel.report.common.document import Column


def measure(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="Such as ring.")],
    backend: Annotated[
        Literal["gloo", "nccl", "device"],
        typer.Option(help="gloo: processes; nccl: GPUs; device: streams and probes on one GPU."),
    ] = "gloo",
    ranks: Annotated[int, typer.Option(min=2, max=512, metavar="N", help="How many ranks.")] = 4,
    collective: Annotated[str, typer.Option(metavar="OP", help="Which collective.")] = "all_reduce",
    smallest: BeginOption = "1 KiB",
    largest: EndOption = "64 MiB",
    factor: FactorOption = 4,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="Data type.")] = "float32",
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time for repeats, all sizes together.")
    ] = "30 s",
    repeats: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, metavar="N", help="Of each size, instead of a budget."),
    ] = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="End a run in which no rank advances for so long.")
    ] = "60 s",
    topology: Annotated[
        str | None, typer.Option(metavar="T", help="Template that describes this machine.")
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, max=1000, metavar="K", help="Start anew so often; a file each.")
    ] = 1,
    output: Annotated[Path | None, output_option("FILE", "Write it here (JSON).")] = None,
    json: JsonOption = False,
) -> None:
    """Run an algorithm's rounds for real, beside the library's own collective.

    Between processes over gloo or GPUs over NCCL, started here or by torchrun; the data are
    checked first. Backend device runs virtual ranks on one GPU and asks it for the speed of
    copies, sums, launches and host transfers. Needs PyTorch: pip install 'perfmodel[torch]'.
    """
    from perfmodel.cli.collective import sizes_between
    from perfmodel.measure.job import MeasurementJob
    from perfmodel.topology.templates.build import load_node
    from perfmodel.units import parse_time

    times = parse_quantities(parse_time, {"--budget": budget, "--timeout": timeout})
    with flags_as_fields({"topology": "--topology"}):
        name = None if topology is None else load_node(topology).name
    outputs = _outputs(output, runs)
    job = MeasurementJob(
        backend,
        algorithm.replace("-", "_"),
        collective.replace("-", "_"),
        ranks,
        tuple(sizes_between(smallest, largest, factor)),
        dtype=dtype,
        budget_s=times["--budget"],
        repeats=repeats,
        timeout_s=times["--timeout"],
        topology=name,
    )
    brief = f"{factor:g}"
    flags = {
        "-b": smallest,
        "-e": largest,
        "-f": brief if float(brief) == factor else repr(factor),
        "--budget" if repeats is None else "--repeats": budget if repeats is None else f"{repeats}",
        "--timeout": timeout,
    }
    if topology is not None:
        place = Path(topology)
        flags["--topology"] = place.name if place.is_absolute() else topology
    job = replace(job, command=_command(job, flags))
    documents = [
        measurement.model_dump()
        for number in range(1, runs + 1)
        if (measurement := _measure_once(job, number, runs, outputs, quiet=json)) is not None
    ]
    if json and documents:
        print_json(documents[0] if runs == 1 else {"runs": documents})


def _command(job: MeasurementJob, flags: Mapping[str, str]) -> str:
    """The command that measures the same again, without folders of this machine."""
    own = {
        "--backend": job.backend,
        "--ranks": f"{job.ranks}",
        "--collective": job.collective,
        "--dtype": job.dtype,
    }
    words = (word for flag in (own | dict(flags)).items() for word in flag)
    return shlex.join(["perfmodel", "measure", job.algorithm, *words])


def _measure_once(
    job: MeasurementJob, number: int, runs: int, outputs: Sequence[Path], *, quiet: bool
) -> Measurement | None:
    """One start; its file is written before the next one. None: another rank of torchrun's."""
    from perfmodel.measure.run import measure as execute

    which = "" if runs == 1 else f", run {number} of {runs}"
    flags = {"op": "--collective", "algorithm": "ALGORITHM", "sizes": "-e"}
    with (
        progress_bar(f"measuring {job.algorithm} on {job.backend}{which}") as progress,
        flags_as_fields(flags),
    ):
        measurement = execute(job, progress)
    if measurement is None:
        return None
    if not quiet:
        _print_rows(measurement)
    if outputs:
        from perfmodel.files import write_json

        write_json(outputs[number - 1], measurement.model_dump())
        print_notes(f"wrote {outputs[number - 1]}")
    return measurement


def _outputs(output: Path | None, runs: int) -> list[Path]:
    """The file of each run: `output`, or with several runs one each, numbered before the suffix.

    Finds out before the run, not after it, that a place cannot be written.
    """
    from perfmodel.measure.run import under_torchrun

    refuse_if(
        runs > 1 and under_torchrun(),
        "--runs",
        str(runs),
        "1 under torchrun, whose processes cannot start anew: start it again instead",
    )
    if output is None:
        return []
    check_outputs({"-o": output})  # a folder has no name to number
    numbers = (
        [f"-{number:0{len(str(runs))}}" for number in range(1, runs + 1)] if runs > 1 else [""]
    )
    paths = [output.with_stem(f"{output.stem}{number}") for number in numbers]
    for path in paths:
        check_outputs({"-o": path})
        refuse_if(
            not path.parent.is_dir(), "-o", f"{str(path)!r}", "a file in a folder that exists"
        )
    return paths


def _print_rows(measurement: Measurement) -> None:
    from perfmodel.report.common.document import tabulate
    from perfmodel.units import format_bandwidth, format_time

    columns: list[Column | None] = [
        ("what", lambda row: row.what),
        ("setting", lambda row: row.setting)
        if any(row.setting for row in measurement.rows)
        else None,
        (">bytes", lambda row: f"{row.nbytes:,}"),
        (">repeats", lambda row: f"{row.repeats}"),
        (">median", lambda row: format_time(row.median_s)),
        (">middle half", lambda row: f"{format_time(row.p25_s)} ... {format_time(row.p75_s)}"),
        (
            ">algbw",
            lambda row: (
                format_bandwidth(row.nbytes / row.median_s)
                if row.nbytes and row.what != "overlap"
                else ""
            ),
        ),
    ]
    print_blocks([tabulate(measurement.rows, columns)])
    load = measurement.machine.get("other_work", "0 %")
    if int(load.split()[0]) >= 5:
        print_notes(f"Other work kept {load} busy meanwhile; on a quiet machine times are shorter.")
    if measurement.note:
        print_notes(measurement.note)
