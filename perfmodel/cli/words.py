"""Options that several commands share, and flags that carry units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Literal

import typer

from perfmodel.errors import Fault, InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Fidelity = Annotated[
    Literal["flow", "message"] | None,
    typer.Option(help="flow: rates on links; message: every send (up to some hundred GPUs)."),
]
Nodes = Annotated[
    int, typer.Option("--nodes", min=1, metavar="N", help="How many of these machines.")
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", min=1, metavar="G", help="Default: all of them.")
]
Fabric = Annotated[
    str | None, typer.Option("--fabric", metavar="F", help="Network between them, by name.")
]

ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="P", help="Measured numbers, by name or file (perfmodel calibrate)."
    ),
]


def quantities(
    parse: Callable[[object, str], float], flags: Mapping[str, str | None]
) -> dict[str, float]:
    """Read flags with units, all faults at once; flags that are None are left out.

    Raises
    ------
    InputError
        A unit that is missing or unknown, or a value that is not above zero; names the flag.
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


def renamed(error: InputError, flags: Mapping[str, str]) -> InputError:
    """Say faults of a function's parameters in terms of the flags that set them."""
    return InputError(replace(f, field=flags.get(f.field, f.field)) for f in error.faults)
