"""Options that several commands share, and what their values mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perfmodel.errors import Fault, InputError
from perfmodel.units import MOST_NODES, MOST_PARTS

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.library.settings import LibrarySettings

ProtocolName = Annotated[
    Literal["auto", "ll", "ll128", "simple"], typer.Option(help="Of NCCL, as NCCL_PROTO.")
]
Environment = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="NCCL's environment; may be given repeatedly."),
]
NcclVersion = Annotated[
    str | None,
    typer.Option(metavar="VERSION", help="2.0 to 2.30, such as 2.23.4; default: the newest."),
]
OneProcess = Annotated[
    bool, typer.Option("--one-process", help="One process drives all GPUs of a host.")
]


def check_algorithm(library: str, algorithm: str) -> None:
    """Refuse NCCL's own algorithms for MPI and Gloo; `plain` may try any."""
    from perfmodel.collectives.catalog import NCCL_ONLY

    if library in {"gloo", "mpi"} and algorithm.replace("-", "_") in NCCL_ONLY:
        allowed = f"one that --library {library} has; only nccl has this one"
        raise InputError(Fault("--algorithm", repr(algorithm), allowed))


def library_settings(
    library: str, protocol: str, env: list[str], version: str | None, *, one_process: bool
) -> LibrarySettings:
    """Return what the flags tell the library.

    Raises `InputError`: a variable or value that NCCL does not know, or NCCL's flags for another
        library.
    """
    from perfmodel.library.settings import environment_of, settings_of

    flags = {
        "--protocol": protocol if protocol != "auto" else None,
        "--env": env[0] if env else None,
        "--nccl-version": version,
        "--one-process": "given" if one_process else None,
    }
    others = {flag: value for flag, value in flags.items() if value is not None}
    if library != "nccl" and others:
        allowed = f"nothing with --library {library}, only with nccl"
        raise InputError(Fault(flag, repr(value), allowed) for flag, value in others.items())
    variables = environment_of(env)
    if protocol != "auto":
        if variables.get("NCCL_PROTO", protocol).lower() != protocol:
            clash = f"--env NCCL_PROTO={variables['NCCL_PROTO']}"
            raise InputError(Fault("--protocol", repr(protocol), f"the same as in {clash}"))
        variables["NCCL_PROTO"] = protocol
    return settings_of(
        version=version, env=variables, one_process=one_process, fields=("--nccl-version", "--env")
    )


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
    typer.Option("-j", "--jobs", metavar="N", help="Processes; default: all physical cores."),
]
BackendOption = Annotated[
    str, typer.Option(metavar="loky|dask|ray", help="Processes of this machine, or a cluster.")
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Of the cluster, such as tcp://10.0.0.5:8786."),
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


def load_profile(name: str | None) -> Profile | None:
    """Read the profile that ``--profile`` names; None where there is none."""
    if name is None:
        return None

    from perfmodel.calibrate import read_profile

    with flags_as_fields({"profile": "--profile"}):
        return read_profile(name)


def parse_quantities(
    parse: Callable[[object, str], float], flags: Mapping[str, str | None]
) -> dict[str, float]:
    """Read flags with units, all faults at once; flags that are None are left out.

    Raises `InputError`: a unit that is missing or unknown, or a value that is not above zero; names
        the flag.
    """
    values: dict[str, float] = {}
    faults: list[Fault] = []
    for flag, text in flags.items():
        if text is None:
            continue
        try:
            values[flag] = parse(text, flag)
        except InputError as error:
            faults += error.faults
        else:
            if values[flag] <= 0:
                faults.append(Fault(flag, repr(text), "more than zero"))
    if faults:
        raise InputError(faults)
    return values


@contextmanager
def flags_as_fields(flags: Mapping[str, str]) -> Iterator[None]:
    """Report faults of a function's parameters under the flags that set them."""
    try:
        yield
    except InputError as error:
        faults = [replace(f, field=flags.get(f.field, f.field)) for f in error.faults]
        raise InputError(faults) from None
