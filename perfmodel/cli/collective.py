"""``perfmodel collective`` and ``verify``: a collective by size, and its data checked."""

from __future__ import annotations

from itertools import accumulate, repeat, takewhile
from operator import mul
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfmodel.cli.output import (
    BeginOption,
    EndOption,
    Environment,
    FabricOption,
    FactorOption,
    FidelityOption,
    GpusPerNodeOption,
    JsonOption,
    NcclVersion,
    NodesOption,
    ProfileOption,
    TopologyArgument,
    check_algorithm,
    check_report_folder,
    flags_as_fields,
    library_settings,
    load_profile,
    output_option,
    parse_quantities,
    print_blocks,
    print_json,
    print_notes,
    print_table,
    print_text,
    print_written,
    progress_bar,
)
from perfmodel.cli.topology import FLAGS, build_cluster
from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.training.plan.step_plan import Op

_MOST_SIZES = 10_000


def collective(
    topology: TopologyArgument,
    op: Annotated[
        Op, typer.Option(help="Which collective; send_recv: each rank sends to the next.")
    ] = "all_reduce",
    nodes: NodesOption = 1,
    gpus_per_node: GpusPerNodeOption = None,
    fabric: FabricOption = None,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="auto (the library's own), ring, tree, ...")
    ] = "auto",
    library: Annotated[
        Literal["nccl", "gloo", "mpi", "plain"], typer.Option(help="Communication library.")
    ] = "nccl",
    protocol: Annotated[
        Literal["auto", "ll", "ll128", "simple"], typer.Option(help="Of NCCL, as NCCL_PROTO.")
    ] = "auto",
    env: Environment = None,
    nccl_version: NcclVersion = None,
    one_process: Annotated[
        bool, typer.Option("--one-process", help="One process drives all GPUs of a host.")
    ] = False,
    profile: ProfileOption = None,
    rows: Annotated[
        Literal["library", "schedule"] | None,
        typer.Option(
            "--profile-rows",
            help="Whose measured numbers: the library's own collective or perfmodel's schedule.",
        ),
    ] = None,
    smallest: BeginOption = "8 B",
    largest: EndOption = "8 GiB",
    factor: FactorOption = 2,
    fidelity: FidelityOption = None,
    output: Annotated[Path | None, output_option("DIR", "Write collective.html here.")] = None,
    json: JsonOption = False,
) -> None:
    """Print what nccl-tests would on a machine.

    Size, time, algbw (bytes over time) and busbw (what a link carries; see nccl-tests'
    doc/PERFORMANCE.md). With -o it writes collective.html (one file, works
    offline), collective.csv and collective.json.
    """
    sizes = sizes_between(smallest, largest, factor)
    if output is not None:
        from perfmodel.report.collective import FILES

        check_report_folder(output, FILES, (), profile)
    check_algorithm(library, algorithm)
    settings = library_settings(library, protocol, env or [], nccl_version, one_process=one_process)
    print_notes(*settings.notes())
    machine = build_cluster(topology, nodes, gpus_per_node, fabric)

    from perfmodel.studies.run.collective import collective_answer

    refuse_if(
        profile is None and rows is not None,
        "--profile-rows",
        repr(rows),
        "nothing without --profile",
    )
    measured = load_profile(profile)
    with progress_bar("simulating") as progress, flags_as_fields(FLAGS):
        times, notes = collective_answer(
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
    if json:
        print_json({"rows": times, "notes": list(notes)})
    else:
        from perfmodel.report.collective import times_table

        print_blocks([times_table(times)])
        print_notes(*notes)
    if output is not None:
        from perfmodel.report.collective import write_collective
        from perfmodel.report.common.document import count_ranks

        title = f"{op} over {count_ranks(machine)} of {machine.name}, {library}"
        title += "" if algorithm == "auto" else f", {algorithm}"
        print_written(write_collective(title, times, notes, output))


def sizes_between(smallest: str, largest: str, factor: float) -> list[int]:
    """Sizes from the smallest to the largest, each `factor` times the one before; whole bytes.

    Raises `InputError`: a size without unit, a largest below the smallest, or a factor of 1 or
        less.

    Examples
    --------
    >>> sizes_between("8 B", "1 KiB", 4)
    [8, 32, 128, 512]
    """
    from perfmodel.units import parse_bytes

    sizes = parse_quantities(parse_bytes, {"-b": smallest, "-e": largest})
    first, last = sizes["-b"], sizes["-e"]
    refuse_if(last < first, "-e", repr(largest), f"at least {smallest!r}, as -b says")
    refuse_if(not 1.01 <= factor <= 1e6, "-f", repr(factor), "a factor from 1.01 to 1000000")
    ladder = accumulate(repeat(factor, _MOST_SIZES - 1), mul, initial=first)
    within = takewhile(lambda size: size <= last * (1 + 1e-12), ladder)
    return list(dict.fromkeys(max(1, round(size)) for size in within))


def verify(
    algorithm: Annotated[
        str, typer.Argument(metavar="ALGORITHM", help="ring, tree, halving_doubling, ...")
    ],
    ranks: Annotated[
        str, typer.Option(metavar="N or N..M", help="Numbers of ranks to check.")
    ] = "2..17",
    orders: Annotated[
        int, typer.Option(min=1, metavar="N", help="Random legal orders per schedule.")
    ] = 3,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Other orders for each; the same for the same.")
    ] = 0,
    json: JsonOption = False,
) -> None:
    """Check that a collective leaves the right data behind.

    NumPy moves real arrays along the schedule in random legal orders. Exit code 1 if a rank ends
    with wrong data; the message names rank and chunk.
    """
    counts = ranks_between(ranks)

    from dataclasses import asdict

    from perfmodel.collectives.verify_table import verify_table

    with (
        progress_bar(f"verifying {algorithm}") as progress,
        flags_as_fields({"algorithm": "ALGORITHM", "ranks": "--ranks"}),
    ):
        rows = verify_table(algorithm, counts, orders=orders, seed=seed, progress=progress)
    if json:
        print_json({"verified": [asdict(row) for row in rows]})
        return
    print_table(
        ("collective", ">ranks", ">steps", ">sends", ">bytes per rank / S", ">sizes tried"),
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
    checked = len({row.ranks for row in rows})
    those = "" if checked == len(counts) else f" (the {checked} numbers that it allows)"
    print_text(f"{algorithm}: data right on {ranks} ranks{those}, {each} each")


def ranks_between(text: str) -> range:
    """Read ``8`` or ``2..17``.

    Raises `InputError`: not whole numbers, below 2, or the wrong way round.
    """
    first, _, last = text.partition("..")
    if (text.isascii() and first.isdecimal() and (last.isdecimal() or ".." not in text)) and len(
        text
    ) <= 12:
        counts = range(int(first), int(last or first) + 1)
        if counts and counts[0] >= 2 and counts[-1] <= 512:
            return counts
    raise InputError(Fault("--ranks", repr(text), "a number or a range such as 2..17, 2 to 512"))
