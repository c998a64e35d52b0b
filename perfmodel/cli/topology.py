"""``perfmodel topology list|show|check|import``: hardware descriptions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import (
    FabricOption,
    ForceOption,
    GpusPerNodeOption,
    JsonOption,
    NodesOption,
    TopologyArgument,
    check_outputs,
    flags_as_fields,
    output_option,
    print_listing,
    print_notes,
    print_text,
)
from perfmodel.errors import Fault, changed_faults, raise_faults, refuse_if

if TYPE_CHECKING:
    from perfmodel.topology.importers import ImportedTopology
    from perfmodel.topology.model import Topology


FLAGS = {
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


def build_cluster(
    topology: str, nodes: int, gpus_per_node: int | None, fabric: str | None
) -> Topology:
    """Build the cluster that the flags describe."""
    from perfmodel.topology import graph_alone
    from perfmodel.topology.graph_files import is_graph_file
    from perfmodel.topology.templates.build import build_topology, with_usual_routing

    if is_graph_file(topology):
        flags = {"--nodes": nodes, "--gpus-per-node": gpus_per_node, "--fabric": fabric}
        return graph_alone(Path(topology), **flags)
    with flags_as_fields(FLAGS):
        return build_topology(
            topology,
            hosts=nodes,
            fabric=with_usual_routing(topology, fabric),
            gpus_per_host=gpus_per_node,
        )


def show(
    topology: TopologyArgument,
    nodes: NodesOption = 1,
    gpus_per_node: GpusPerNodeOption = None,
    fabric: FabricOption = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the host as a file that may be changed.")
    ] = False,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write its NetworkX graph, as node-link JSON."),
    ] = None,
    output: Annotated[Path | None, output_option("FILE.html", "Draw it here.")] = None,
) -> None:
    """Summarise a machine or a cluster.

    Devices, links, path types as nvidia-smi topo -m names them, and the source of each number.
    """
    if yaml:
        from perfmodel.topology.importers.imported import node_text
        from perfmodel.topology.templates.build import load_node

        raise_faults(
            Fault(flag, "beside --yaml", "--yaml alone: it prints one host, with all of its GPUs")
            for flag, on in {
                "--nodes": nodes > 1,
                "--fabric": fabric is not None,
                "--gpus-per-node": gpus_per_node is not None,
                "-o": output is not None,
                "--graph": graph is not None,
            }.items()
            if on
        )
        with flags_as_fields(FLAGS):
            print_text(node_text(load_node(topology)).rstrip())
        return
    check_outputs(
        {"-o": output, "--graph": graph},
        {"TOPOLOGY": Path(topology), "--fabric": Path(fabric) if fabric else None},
    )
    if output is not None:
        from perfmodel.report.topology import check_page_name

        check_page_name(output)
    machine = build_cluster(topology, nodes, gpus_per_node, fabric)

    from perfmodel.report.topology import summary

    sources = (f"  {name}: {source}" for name, source in machine.sources.items())
    print_text("\n".join(summary(machine)).rstrip())
    print_text("\n".join(["\nwhere the numbers come from", *sources]))
    if graph is not None:
        from perfmodel.topology.graph_files import write_graph

        write_graph(machine, graph)
        print_notes(f"wrote {graph}")
    if output is not None:
        from perfmodel.report.topology import write_topology

        print_notes(f"wrote {write_topology(machine, output)}")


def check(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY",
            help="Name or file of a node, a fabric, a table of GPUs, or a graph.",
        ),
    ],
    nodes: NodesOption = 1,
    fabric: FabricOption = None,
) -> None:
    """Find faults in a hardware description.

    Unknown kinds, links to missing devices, unreachable GPUs, bandwidth of zero, and every fault
    of the file's shape, with lines.
    """
    from perfmodel.files import find_file
    from perfmodel.topology.graph_files import is_graph_file
    from perfmodel.topology.templates.build import check as find_faults

    if is_graph_file(topology):
        build_cluster(topology, nodes, None, fabric)  # refuses all that is wrong
    else:
        raise_faults(find_faults(find_file(topology, "topologies", field="TOPOLOGY")))
        if nodes > 1 or fabric is not None:
            raise_faults(find_faults(build_cluster(topology, nodes, None, fabric)))
    print_text(f"{topology}: no faults")


def topologies(json: JsonOption = False) -> None:
    """List the shipped hardware descriptions."""
    from perfmodel.api.names import topology_rows

    descriptions = topology_rows()
    print_listing(
        {"topologies": descriptions},
        ("topology", "kind", "what it is"),
        [tuple(each.values()) for each in descriptions],
        json=json,
    )


_IMPORT_FLAGS = {
    "gpu": "--gpu",
    "template": "--template",
    "topology": "--template",
    "graph": "--graph",
}
_KINDS = {
    "nccl-topology": "an NCCL topology",
    "topo-matrix": "nvidia-smi topo -m",
    "ibnetdiscover": "ibnetdiscover",
}


def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What another tool wrote; its content tells.")
    ],
    output: Annotated[
        Path | None, output_option("FILE.yaml", "Write it here; else print it.")
    ] = None,
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
    force: ForceOption = False,
) -> None:
    """Turn a file of another tool into a topology.

    NCCL topology XML (NCCL_TOPO_DUMP_FILE or a provider's), nvidia-smi topo -m, or ibnetdiscover
    (a fabric). What the file leaves open is completed, and said.
    """
    refuse_if(
        output is not None and output.is_file() and not force,
        "-o",
        f"{str(output)!r}, which exists",
        "a new file, or --force beside it",
    )
    inputs = {"FILE": file, "--graph": graph, "--template": template}
    check_outputs(
        {"-o": output}, {name: Path(path) if path else None for name, path in inputs.items()}
    )

    from perfmodel.topology.importers import import_file

    with _faults_of(file):
        with flags_as_fields(_IMPORT_FLAGS):
            imported = import_file(
                Path(file), gpu=gpu, template=template, graph=None if graph is None else Path(graph)
            )
        _write(imported, output)


def _faults_of(file: str) -> AbstractContextManager[None]:
    """Say of faults in the topology that was made which file it was made from."""
    return changed_faults(
        lambda fault: (
            fault
            if fault.file is not None or fault.field.startswith("-")
            else replace(fault, file=file, field=f"{fault.field} of the topology made from it")
        )
    )


def _write(imported: ImportedTopology, output: Path | None) -> None:
    """Check what was read, say what was assumed, and write it."""
    from perfmodel.files import write_atomically
    from perfmodel.topology.templates.build import check

    if imported.is_fabric:
        imported.fabric()
    else:
        raise_faults(check(imported.node()))
    print_notes(f"{_KINDS[imported.kind]}: {imported.document['description']}")
    print_notes(*(f"assumed: {text}" for text in imported.notes))
    if output is None:
        print_text(imported.text().rstrip("\n"))
        return
    write_atomically(output, imported.text())
    print_notes(f"wrote {output}")
