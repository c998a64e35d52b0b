"""``perfmodel verify``: whether an algorithm leaves the right data on every rank."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.options import JsonOption, flags_as_fields
from perfmodel.cli.output import print_json, print_table, print_text, progress_bar
from perfmodel.errors import Fault, InputError

VERIFY_EXAMPLES = (
    "perfmodel verify ring --ranks 2..17",
    "perfmodel verify tree --ranks 64",
)


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

    flags = {"algorithm": "ALGORITHM", "ranks": "--ranks"}
    with progress_bar(f"verifying {algorithm}") as progress, flags_as_fields(flags):
        rows = verify_table(algorithm, counts, orders=orders, seed=seed, progress=progress)
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
    print_text(f"{algorithm}: data right on {ranks} ranks, {each} each")


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
