"""Import a file of any kind that is known by its content."""

from __future__ import annotations

from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.importers.detect import kind_of, read_content
from perfmodel.topology.importers.ibnetdiscover import read_fabric
from perfmodel.topology.importers.imported import ImportedTopology
from perfmodel.topology.importers.nccl_xml.graph_dump import with_graph
from perfmodel.topology.importers.nccl_xml.read import read_nccl
from perfmodel.topology.importers.nvidia_smi.matrix import read_matrix


def import_file(
    path: Path,
    *,
    gpu: str | None = None,
    template: str | None = None,
    graph: Path | None = None,
) -> ImportedTopology:
    """Read a description of hardware that some other tool wrote.

    Parameters
    ----------
    path : Path
        An NCCL topology XML, the text of ``nvidia-smi topo -m`` or of ``ibnetdiscover``; its
        kind is found from the content.
    gpu : str, optional
        Model of the GPUs, where the file does not say; any usual spelling.
    template : str, optional
        Template (name or path) from which the rest is completed.
    graph : Path, optional
        An ``NCCL_GRAPH_DUMP_FILE`` of the same machine: its channels are kept.

    Raises
    ------
    InputError
        Another kind of file (the message says which), or one that is wrong; every fault.
    """
    text = read_content(path)
    kind = kind_of(text, str(path))
    if kind == "nccl-graph":
        raise InputError(
            Fault(
                "file",
                "an NCCL graph (channels): it does not say what joins the devices",
                "a topology (NCCL_TOPO_DUMP_FILE), with this beside it as --graph",
                str(path),
            )
        )
    if kind == "ibnetdiscover":
        _refuse_options(gpu, template, graph)
        return read_fabric(text, str(path))
    read = read_nccl if kind == "nccl-topology" else read_matrix
    imported = read(text, str(path), gpu=gpu, template=template)
    return imported if graph is None else with_graph(imported, graph)


def _refuse_options(gpu: str | None, template: str | None, graph: Path | None) -> None:
    options = {"gpu": gpu, "template": template, "graph": graph}
    faults = [
        Fault(name, repr(str(value)), "nothing: a fabric has no GPUs")
        for name, value in options.items()
        if value is not None
    ]
    if faults:
        raise InputError(faults)
