"""``perfmodel collective``, ``topology show|check`` and ``verify``: hardware and schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perfmodel.cli.library_words import (
    Environment,
    NcclVersion,
    OneProcess,
    ProtocolName,
    check_algorithm,
    library_settings,
)
from perfmodel.cli.output import note, print_json, print_table, progress_bar
from perfmodel.cli.words import (
    Fabric,
    Fidelity,
    GpusPerNode,
    Json,
    Nodes,
    ProfileName,
    quantities,
    renamed,
)
from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    from perfmodel.topology.model import Topology

COLLECTIVE_EXAMPLES = (
    "perfmodel collective dgx-a100",
    "perfmodel collective dgx-a100 --nodes 4 --fabric rail-optimised -b '1 MiB' -e '1 GiB' --json",
    "perfmodel collective dgx-h100 --env NCCL_ALGO=Ring --protocol simple --nccl-version 2.21.5",
)
SHOW_EXAMPLES = (
    "perfmodel topology show dgx-a100",
    "perfmodel topology show dgx-a100 --nodes 4 --fabric rail-optimised -o cluster.html",
)
CHECK_EXAMPLES = ("perfmodel topology check my-node.yaml",)
VERIFY_EXAMPLES = (
    "perfmodel verify ring --ranks 2..17",
    "perfmodel verify tree --ranks 64",
)

_FLAGS = {
    "topology": "TOPOLOGY",
    "hosts": "--nodes",
    "gpus_per_host": "--gpus-per-node",
    "fabric": "--fabric",
    "algorithm": "--algorithm",
    "op": "--op",
    "profile": "--profile",
    "rows": "--profile-rows",
    "fidelity": "--fidelity",
    "kind": "--fabric",
    "env.NCCL_ALGO": "--env NCCL_ALGO",
    "env.NCCL_PROTO": "--protocol or --env NCCL_PROTO",
}
_MOST_SIZES = 10_000


def _built(topology: str, nodes: int, gpus_per_node: int | None, fabric: str | None) -> Topology:
    from perfmodel.topology.build import build  # noqa: PLC0415  (imports stay out of --help)

    try:
        return build(topology, hosts=nodes, fabric=fabric, gpus_per_host=gpus_per_node)
    except InputError as error:
        raise renamed(error, _FLAGS) from None


def show(
    topology: Annotated[
        str,
        typer.Argument(metavar="TOPOLOGY", help="Name (see 'perfmodel topology list') or file."),
    ],
    nodes: Nodes = 1,
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.html", help="Draw it here.")
    ] = None,
) -> None:
    """Summarise a machine or a cluster.

    Devices, links, path types as nvidia-smi topo -m names them, and the source of each number.
    """
    machine = _built(topology, nodes, gpus_per_node, fabric)

    from perfmodel.topology.show import summary  # noqa: PLC0415  (imports stay out of --help)

    typer.echo("\n".join(summary(machine)).rstrip())
    typer.echo("\nwhere the numbers come from")
    for name, source in machine.sources.items():
        typer.echo(f"  {name}: {source}")
    if output is not None:
        from perfmodel.report.topology_figure import write_topology  # noqa: PLC0415

        note(f"wrote {write_topology(machine, output)}")


def check(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY", help="Name or file of a node, a fabric or a table of GPUs."
        ),
    ],
    nodes: Nodes = 1,
    fabric: Fabric = None,
) -> None:
    """Find faults in a hardware description.

    Unknown kinds, links to missing devices, unreachable GPUs, bandwidth of zero, and every fault
    of the file's shape, with lines.
    """
    from perfmodel.files import find_file  # noqa: PLC0415  (imports stay out of --help)
    from perfmodel.topology.check import check as find_faults  # noqa: PLC0415

    faults = find_faults(find_file(topology, "topologies", field="TOPOLOGY"))
    if not faults and (nodes > 1 or fabric is not None):
        faults = find_faults(_built(topology, nodes, None, fabric))
    if faults:
        raise InputError(faults)
    typer.echo(f"{topology}: no faults")


def collective(
    topology: Annotated[
        str,
        typer.Argument(metavar="TOPOLOGY", help="Name (see 'perfmodel topology list') or file."),
    ],
    op: Annotated[
        Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"],
        typer.Option(help="Which collective."),
    ] = "all_reduce",
    nodes: Nodes = 1,
    gpus_per_node: GpusPerNode = None,
    fabric: Fabric = None,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="auto (the library's own), ring, tree, ...")
    ] = "auto",
    library: Annotated[
        Literal["nccl", "gloo", "mpi", "plain"], typer.Option(help="Communication library.")
    ] = "nccl",
    protocol: ProtocolName = "auto",
    env: Environment = None,
    nccl_version: NcclVersion = None,
    one_process: OneProcess = False,
    profile: ProfileName = None,
    rows: Annotated[
        Literal["library", "schedule"] | None,
        typer.Option(
            "--profile-rows",
            help="Whose measured numbers: the library's own collective or perfmodel's schedule.",
        ),
    ] = None,
    smallest: Annotated[
        str, typer.Option("-b", "--begin", metavar="SIZE", help="Smallest size.")
    ] = "8 B",
    largest: Annotated[
        str, typer.Option("-e", "--end", metavar="SIZE", help="Largest size.")
    ] = "8 GiB",
    factor: Annotated[float, typer.Option("-f", "--factor", help="Between sizes.")] = 2,
    fidelity: Fidelity = None,
    json: Json = False,
) -> None:
    """Print what nccl-tests would on a machine.

    Size, time, algbw (bytes over time) and busbw (what a link carries; see nccl-tests'
    doc/PERFORMANCE.md).
    """
    sizes = sizes_between(smallest, largest, factor)
    check_algorithm(library, algorithm)
    settings = library_settings(library, protocol, env or [], nccl_version, one_process=one_process)
    for text in settings.notes():
        note(text)
    machine = _built(topology, nodes, gpus_per_node, fabric)

    from perfmodel.calibrate import read_profile  # noqa: PLC0415  (imports stay out of --help)
    from perfmodel.study import collective_rows  # noqa: PLC0415

    if profile is None and rows is not None:
        raise InputError(Fault("--profile-rows", repr(rows), "nothing without --profile"))
    with progress_bar("simulating") as progress:
        try:
            measured = None if profile is None else read_profile(profile)
            times = collective_rows(
                machine,
                op=op,
                sizes=sizes,
                algorithm=algorithm,
                library=library,
                settings=settings,
                profile=measured,
                profile_rows=rows,
                fidelity=fidelity or "flow",
                progress=progress,
            )
        except InputError as error:
            raise renamed(error, _FLAGS) from None
    if json:
        print_json({"rows": times})
        return
    _print_times(times)


def _print_times(times: list[dict[str, Any]]) -> None:
    """Print rows of `collective_rows` as a table."""
    from perfmodel.units import format_bandwidth, format_time  # noqa: PLC0415

    print_table(
        (">bytes", ">time", ">algbw", ">busbw", "algorithm", "protocol", ">80 % interval"),
        [
            (
                f"{row['nbytes']:,}",
                format_time(row["time_s"]),
                format_bandwidth(row["algbw_Bps"]),
                format_bandwidth(row["busbw_Bps"]),
                str(row["algorithm"]),
                str(row["protocol"]),
                "not measured"
                if row["interval_s"] is None
                else " to ".join(format_time(end) for end in row["interval_s"]),
            )
            for row in times
        ],
    )


def sizes_between(smallest: str, largest: str, factor: float) -> list[int]:
    """Sizes from the smallest to the largest, each `factor` times the one before; whole bytes.

    Examples
    --------
    >>> sizes_between("8 B", "1 KiB", 4)
    [8, 32, 128, 512]

    Raises
    ------
    InputError
        A size without unit, a largest below the smallest, or a factor of 1 or less.
    """
    from perfmodel.units import parse_bytes  # noqa: PLC0415  (imports stay out of --help)

    sizes = quantities(parse_bytes, {"-b": smallest, "-e": largest})
    first, last = sizes["-b"], sizes["-e"]
    if last < first:
        raise InputError(Fault("-e", repr(largest), f"at least {smallest!r}, as -b says"))
    if not 1.01 <= factor <= 1e6:
        raise InputError(Fault("-f", repr(factor), "a factor from 1.01 to 1000000"))
    found: list[int] = []
    while first <= last * (1 + 1e-12) and len(found) < _MOST_SIZES:
        found.append(max(1, round(first)))
        first *= factor
    return list(dict.fromkeys(found))


def verify(
    algorithm: Annotated[
        str, typer.Argument(metavar="ALGORITHM", help="ring, tree, halving_doubling, ...")
    ],
    ranks: Annotated[
        str, typer.Option(metavar="N or N..M", help="Numbers of ranks to check.")
    ] = "2..17",
    orders: Annotated[int, typer.Option(min=1, help="Random legal orders per schedule.")] = 3,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json: Json = False,
) -> None:
    """Check that a collective leaves the right data behind.

    NumPy moves real arrays along the schedule in random legal orders. Exit code 1 if a rank ends
    with wrong data; the message names rank and chunk.
    """
    counts = ranks_between(ranks)

    from dataclasses import asdict  # noqa: PLC0415  (imports stay out of --help)

    from perfmodel.collectives.verify_table import verify_table  # noqa: PLC0415

    with progress_bar(f"verifying {algorithm}") as progress:
        try:
            rows = verify_table(algorithm, counts, orders=orders, seed=seed, progress=progress)
        except InputError as error:
            raise renamed(error, {"algorithm": "ALGORITHM", "ranks": "--ranks"}) from None
    if json:
        print_json({"verified": [asdict(row) for row in rows]})
        return
    headers = ("collective", ">ranks", ">steps", ">sends", ">bytes per rank / S", ">sizes tried")
    print_table(
        headers,
        [
            (
                row.op,
                str(row.ranks),
                str(row.steps),
                str(row.sends),
                f"{row.bytes_per_rank_over_nbytes:.4g}",
                str(len(row.sizes)),
            )
            for row in rows
        ],
    )
    each = "1 random order" if orders == 1 else f"{orders} random orders"
    typer.echo(f"{algorithm}: data right on {ranks} ranks, {each} each")


def ranks_between(text: str) -> range:
    """Read ``8`` or ``2..17``.

    Raises
    ------
    InputError
        Not whole numbers, below 2, or the wrong way round.
    """
    first, _, last = text.partition("..")
    if (text.isascii() and first.isdecimal() and (last.isdecimal() or ".." not in text)) and len(
        text
    ) <= 12:
        found = range(int(first), int(last or first) + 1)
        if found and found[0] >= 2 and found[-1] <= 512:
            return found
    raise InputError(Fault("--ranks", repr(text), "a number or a range such as 2..17, 2 to 512"))
