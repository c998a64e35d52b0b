"""``perfmodel topology import|discover``: from what other tools say to our own YAML."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import flags_as_fields
from perfmodel.cli.output import check_outputs, find_output_fault, print_note, print_text
from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    from perfmodel.topology.importers import ImportedTopology


IMPORT_EXAMPLES = (
    "perfmodel topology import nccl-topo.xml -o my-node.yaml",
    "perfmodel topology import topo-m.txt --gpu A100-SXM4-80GB -o my-node.yaml",
    "perfmodel topology import ibnetdiscover.txt -o my-fabric.yaml",
)
DISCOVER_EXAMPLES = ("perfmodel topology discover -o my-node.yaml",)

_FLAGS = {"gpu": "--gpu", "template": "--template", "topology": "--template", "graph": "--graph"}
_KINDS = {
    "nccl-topology": "an NCCL topology",
    "topo-matrix": "nvidia-smi topo -m",
    "ibnetdiscover": "ibnetdiscover",
    "nvml": "NVML",
}

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.yaml", help="Write it here; else print it."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What another tool wrote; its content tells.")
    ],
    output: Output = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model of the GPUs, if the file does not say."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Machine from which the rest is completed."),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="NCCL_GRAPH_DUMP_FILE of the machine: its channels."),
    ] = None,
    force: Force = False,
) -> None:
    """Turn a file of another tool into a topology.

    NCCL topology XML (NCCL_TOPO_DUMP_FILE or a provider's), nvidia-smi topo -m, or ibnetdiscover
    (a fabric). What the file leaves open is completed, and said.
    """
    _check_output(output, force=force)
    inputs = {"FILE": file, "--graph": graph, "--template": template}
    check_outputs(
        {"-o": output}, {name: Path(path) if path else None for name, path in inputs.items()}
    )

    from perfmodel.topology.importers import import_file

    with _faults_of(file):
        with flags_as_fields(_FLAGS):
            imported = import_file(
                Path(file), gpu=gpu, template=template, graph=None if graph is None else Path(graph)
            )
        _write(imported, output)


def discover(output: Output = None, force: Force = False) -> None:
    """Describe this machine: GPUs and NVLinks by NVML, NICs by sysfs.

    Needs an NVIDIA driver and nvidia-ml-py (extra nvml).
    """
    _check_output(output, force=force)

    from perfmodel.topology.importers.nvml import discover as read_devices

    _write(read_devices(), output)


@contextmanager
def _faults_of(file: str) -> Iterator[None]:
    """Say of faults in the topology that was made which file it was made from."""
    try:
        yield
    except InputError as error:
        raise InputError(
            fault
            if fault.file is not None or fault.field.startswith("-")
            else replace(fault, file=file, field=f"{fault.field} of the topology made from it")
            for fault in error.faults
        ) from None


def _check_output(output: Path | None, *, force: bool) -> None:
    if output is None:
        return
    fault = find_output_fault("-o", output)
    if fault is None and output.exists() and not force:
        fault = Fault("-o", f"{str(output)!r}, which exists", "a new file, or --force beside it")
    if fault is not None:
        raise InputError(fault)


def _write(imported: ImportedTopology, output: Path | None) -> None:
    """Check what was read, say what was assumed, and write it."""
    from perfmodel.files import write_atomically
    from perfmodel.topology.templates.check import check

    if imported.is_fabric:
        imported.fabric()
    else:
        faults = check(imported.node())
        if faults:
            raise InputError(faults)
    print_note(f"{_KINDS[imported.kind]}: {imported.document['description']}")
    for text in imported.notes:
        print_note(f"assumed: {text}")
    if output is None:
        print_text(imported.text().rstrip("\n"))
        return
    write_atomically(output, imported.text())
    print_note(f"wrote {output}")
