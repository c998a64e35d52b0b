"""What commands print: answers to stdout, everything else to stderr; and checks of output files.

Options that several commands share, and what their values mean.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perfmodel.errors import Fault, InputError, changed_faults, failed, raise_faults, refuse_if
from perfmodel.escape import printable
from perfmodel.memo import T
from perfmodel.units import MOST_NODES, MOST_PARTS

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.library.settings import LibrarySettings
    from perfmodel.measure.job import Progress
    from perfmodel.report.common.document import Block
    from perfmodel.scenario import Scenario


SHOW_PROGRESS_AFTER_S = 1.0


def print_json(document: object) -> None:
    """Print one JSON document and nothing else."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_answer(
    answer: T,
    *,
    json: bool,
    to_json: Callable[[T], object],
    lines: Callable[[T], Iterable[Block]],
    notes: Callable[[T], Iterable[str]] | None = None,
    write: Callable[[T, Path], Path] | None = None,
    folder: Path | None = None,
) -> None:
    """Print an answer as one JSON document, or for people, with remarks; write its report.

    `notes`: remarks for people.
    `write`, `folder`: what writes the report, and where ``-o`` says; nothing without a folder.
    """
    if json:
        print_json(to_json(answer))
    else:
        print_blocks(lines(answer))
        print_notes(*(notes(answer) if notes is not None else ()))
    if write is not None and folder is not None:
        print_written(write(answer, folder))


def print_written(page: Path) -> None:
    """Say which page of a report was written, and what is missing beside it."""
    print_notes(f"wrote {page}")
    if importlib.util.find_spec("xlsxwriter") is None:
        print_notes("no result.xlsx beside it: pip install 'perfmodel[xlsx]'")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns whose header starts with ``>`` are set to the right."""
    from perfmodel.report.common.document import Table

    print_blocks([Table(header, rows)])


def print_listing(
    document: object, header: Sequence[str], rows: Sequence[Sequence[str]], *, json: bool
) -> None:
    """Print a list as one JSON document, or as a table for people."""
    if json:
        print_json(document)
    else:
        print_table(header, rows)


def print_blocks(blocks: Iterable[Block]) -> None:
    """Print paragraphs and tables of a report."""
    from perfmodel.report.common.plain_text import plain_lines, render_terminal

    text = "".join(f"{line}\n" for line in plain_lines(blocks))
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(
            width=shutil.get_terminal_size().columns, highlight=False, file=sys.stdout
        )
        with console.capture() as captured:
            render_terminal(blocks, console)
        text = captured.get()
    # No-break spaces keep numbers and units together on a page; here they would defeat grep.
    lines = text.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    typer.echo("\n".join(line.rstrip() for line in lines))


def print_text(text: str) -> None:
    """Print lines to stdout; what a terminal would obey is escaped."""
    typer.echo(printable(text, lines=True))


def print_notes(*texts: str) -> None:
    """Print remarks to stderr, each on one line; what a terminal would obey is escaped."""
    for text in texts:
        typer.echo(printable(text, lines=True), err=True)


def read_question(name: str, overrides: Sequence[str] | None) -> Scenario:
    """Read a scenario with what ``--set`` changes; remark on what else that took along or left."""
    from perfmodel.scenario import load_scenario

    scenario = load_scenario(name, overrides or ())
    print_notes(*scenario.origin.notes)
    return scenario


@contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
    """Give a `Progress` whose bar appears after a second; None if there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    began_s, bar = time.monotonic(), RichProgress(console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None)

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - began_s >= SHOW_PROGRESS_AFTER_S:
            bar.start()  # nothing happens where it has begun

    try:
        yield update
    finally:
        bar.stop()


def find_output_fault(flag: str, path: Path) -> Fault | None:
    """Say why a file cannot be written; None if it can. Missing folders may be made."""
    name = repr(str(path))
    try:
        if path.is_dir():
            return Fault(flag, f"{name} (a folder)", "a file")
        if path.exists() and not path.is_file():
            return Fault(flag, f"{name} (a device or pipe)", "a file")
        folder = next(filter(Path.exists, path.parents), path.parent)
        # Only trying tells: rights do not, on a file system that is full or cannot be written.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            return None
    except OSError as error:
        return Fault(flag, f"{name} ({error.strerror or error})", "a place that can be written")


def check_outputs(
    files: Mapping[str, Path | None], inputs: Mapping[str, Path | None] | None = None
) -> None:
    """Refuse before any work what could not be written afterwards, or would destroy another file.

    `files`: by flag.
    `inputs`: files that must stay as they are, by what they are.
    Raises `InputError`: names each flag whose file cannot be written.
    """
    outputs = {flag: path for flag, path in files.items() if path is not None}
    faults = [find_output_fault(flag, path) for flag, path in outputs.items()]
    used = {name: path for name, path in (inputs or {}).items() if path is not None}
    for flag, path in outputs.items():
        same = next((name for name, other in used.items() if _is_same_file(path, other)), None)
        faults += failed(
            (
                same is not None,
                flag,
                repr(str(path)),
                f"another file than that of {same}, which it would replace",
            )
        )
        used[flag] = path
    raise_faults(fault for fault in faults if fault is not None)


def check_report_folder(
    folder: Path | None,
    names: Iterable[str],
    scenarios: Iterable[Scenario],
    profile: str | None = None,
    *,
    store: Path | None = None,
) -> None:
    """Refuse before any work a folder of ``-o`` that cannot take a report.

    `names`: of the files that will be written there.
    `scenarios`, `profile`, `store`: none of their files may be one of them, also by links.
    Raises `InputError`: a file in place of the folder, a folder in place of a file, a place that
        cannot be written, or an input file that would be replaced.
    """
    if folder is None:
        return
    place = repr(str(folder))
    try:
        refuse_if(
            folder.exists() and not folder.is_dir(),
            "-o",
            f"{place} (a file)",
            "a folder, new or not",
        )
    except OSError as error:  # a name that is too long
        raise InputError(
            Fault("-o", f"{place} ({error.strerror or error})", "a place that can be written")
        ) from None
    inputs = {
        **{f"{role} ({path})": path for role, path in _list_inputs(scenarios)},
        **({} if profile is None else {"--profile": Path(profile)}),
        **({} if store is None else {"--store": store}),
    }
    files = [folder / name for name in names]
    faults = [
        *(find_output_fault("-o", path) for path in files),
        *(
            Fault("-o", place, f"another folder, as {path.name} would replace {role}")
            for path in files
            for role, other in inputs.items()
            if _is_same_file(path, other)
        ),
    ]
    raise_faults(fault for fault in faults if fault is not None)


def _list_inputs(scenarios: Iterable[Scenario]) -> Iterator[tuple[str, Path]]:
    from perfmodel.studies.sweep.run import list_files

    for scenario in scenarios:
        if scenario.origin.file is not None:
            yield "the scenario", Path(scenario.origin.file)
        yield from list_files(scenario)


def _is_same_file(path: Path, other: Path) -> bool:
    """Whether two names are of one file, also by links."""
    try:
        if path.exists() and other.exists():
            return path.samefile(other)
        return path.resolve() == other.resolve()
    except (OSError, ValueError):  # a name too long, or with a zero byte, is no file
        return False


Environment = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="NCCL's environment; may be given repeatedly."),
]
NcclVersion = Annotated[
    str | None,
    typer.Option(metavar="VERSION", help="2.0 to 2.30, such as 2.23.4; default: the newest."),
]


def check_algorithm(library: str, algorithm: str) -> None:
    """Refuse NCCL's own algorithms for MPI and Gloo; `plain` may try any."""
    from perfmodel.collectives.catalog import NCCL_ONLY

    refuse_if(
        library in {"gloo", "mpi"} and algorithm.replace("-", "_") in NCCL_ONLY,
        "--algorithm",
        repr(algorithm),
        f"one that --library {library} has; only nccl has this one",
    )


def library_settings(
    library: str, protocol: str, env: list[str], version: str | None, *, one_process: bool
) -> LibrarySettings:
    """Return what the flags tell the library.

    Raises `InputError`: a variable or value that NCCL does not know, or NCCL's flags for another
        library.
    """
    from perfmodel.library.settings import environment_of, settings_of

    raise_faults(
        Fault(flag, repr(value), f"nothing with --library {library}, only with nccl")
        for flag, value in {
            "--protocol": protocol if protocol != "auto" else None,
            "--env": env[0] if env else None,
            "--nccl-version": version,
            "--one-process": "given" if one_process else None,
        }.items()
        if value is not None and library != "nccl"
    )
    variables = environment_of(env)
    if protocol != "auto":
        stated = variables.setdefault("NCCL_PROTO", protocol)
        refuse_if(
            stated.lower() != protocol,
            "--protocol",
            repr(protocol),
            f"the same as in --env NCCL_PROTO={stated}",
        )
        variables["NCCL_PROTO"] = protocol
    return settings_of(
        version=version, env=variables, one_process=one_process, fields=("--nccl-version", "--env")
    )


ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
FidelityOption = Annotated[
    Literal["flow", "message", "reference"] | None,
    typer.Option(
        help="flow: rates on links; message: every send (up to some hundred GPUs); reference: the "
        "same in plain SimPy (some ten GPUs)."
    ),
]
NodesOption = Annotated[
    int,
    typer.Option("--nodes", min=1, max=MOST_NODES, metavar="N", help="How many of these machines."),
]
GpusPerNodeOption = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-node", min=1, max=MOST_PARTS, metavar="G", help="Default: all of them."
    ),
]
FabricOption = Annotated[
    str | None, typer.Option("--fabric", metavar="F", help="Network between them, by name.")
]

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="P", help="Measured numbers, by name or file (perfmodel calibrate)."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Replace one field; may be repeated."),
]
JobsOption = Annotated[
    int | None,
    typer.Option("-j", "--jobs", metavar="N", help="Processes; default: up to all physical cores."),
]
BackendOption = Annotated[
    str, typer.Option(metavar="loky|dask|ray", help="Processes of this machine, or a cluster.")
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Of the cluster: dask's tcp://10.0.0.5:8786, ray's 10.0.0.5:6379."
    ),
]

BeginOption = Annotated[str, typer.Option("-b", "--begin", metavar="SIZE", help="Smallest size.")]
EndOption = Annotated[str, typer.Option("-e", "--end", metavar="SIZE", help="Largest size.")]
FactorOption = Annotated[float, typer.Option("-f", "--factor", metavar="X", help="Between sizes.")]
TopologyArgument = Annotated[
    str, typer.Argument(metavar="TOPOLOGY", help="Name (see 'perfmodel topology list') or file.")
]


def scenario_argument(text: str) -> Any:
    """Describe the scenario that a command takes."""
    return typer.Argument(metavar="SCENARIO", help=text)


def output_option(metavar: str, text: str) -> Any:
    """Describe what a command writes with ``-o``."""
    return typer.Option("-o", "--output", metavar=metavar, help=text)


@contextmanager
def flags_as_fields(flags: Mapping[str, str]) -> Iterator[None]:
    """Report faults of a function's parameters under the flags that set them; also decorates."""
    with changed_faults(lambda fault: replace(fault, field=flags.get(fault.field, fault.field))):
        yield


@flags_as_fields({"profile": "--profile"})
def load_profile(name: str | None) -> Profile | None:
    """Read the profile that ``--profile`` names; None where there is none."""
    if name is None:
        return None

    from perfmodel.calibrate import read_profile

    return read_profile(name)


def parse_quantities(
    parse: Callable[[object, str], float], flags: Mapping[str, str | None]
) -> dict[str, float]:
    """Read flags with units, all faults at once; flags that are None are left out.

    Raises `InputError`: a unit that is missing or unknown, or a value that is not above zero; names
        the flag.
    """
    from perfmodel.files import collect_faults

    values: dict[str, float] = {}
    faults: list[Fault] = []
    for flag, text in flags.items():
        with collect_faults(faults):
            refuse_if(
                text is not None and values.setdefault(flag, parse(text, flag)) <= 0,
                flag,
                repr(text),
                "more than zero",
            )
    raise_faults(faults)
    return values
