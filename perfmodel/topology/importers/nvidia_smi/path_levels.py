"""From a matrix of path types to a graph of switches and CPUs that has them.

PIX: below one switch. PXB: below switches that another switch joins. PHB and NODE: one NUMA domain
(between its host bridges, for NODE; NCCL counts both as PHB). SYS: two NUMA domains. Where NVLink
hides how two GPUs meet over PCIe, the NICs beside them or their NUMA domains show it; else it is as
usual.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts, reads_gpus, usual_nics
from perfmodel.topology.from_text.template_builder import (
    Draft,
    nvlink,
    pattern,
    stock_link,
)
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.importers.nvidia_smi.path_matrix import Matrix, clusters_of, domains_of
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.spec import NodeSpec

_DRIVERS = (
    (r"efa|rdmap", "efa"),
    (r"hfi1|opa", "omni-path"),
    (r"bnxt|irdma|mlx5_bond|roce", "roce"),
    (r"mlx|ibp|^ib", "infiniband"),
    (r"^(eth|en)", "tcp"),
)
"""Kind of network by the name of a NIC's driver, as nvidia-smi shows it."""


@dataclass
class _HostDraft:
    """Draft of a host; `names` are those of the template by those of the matrix."""

    draft: Draft
    part: GpuConnector
    matrix: Matrix
    names: dict[str, str]
    notes: list[str]

    def join(self, src: str, dst: str, link: str, device: str = "", lanes: int = 0) -> None:
        """Add an edge, with the line of the device's row."""
        line = self.matrix.lines.get(device)
        comment = "" if line is None else f"line {line}, {device}"
        self.draft.join(src, dst, link, comment, lanes=lanes)


def template_from_matrix(
    matrix: Matrix, file: str, *, kind: str, title: str, gpu: str | None, template: str | None
) -> ImportedTopology:
    """Make a template that has the paths of a matrix.

    Raises `InputError`: no model of GPU, or one that has no NVLinks where the matrix has.
    """
    node = load_node(template) if template is not None else None
    named, notes = _gpu(matrix, file, gpu, node)
    _check_template(matrix, node, file)
    rows = dict(enumerate(matrix.gpus))
    names = {name: f"gpu{at}" for at, name in rows.items()}
    names |= {name: f"nic{at}" for at, name in enumerate(matrix.nics)}
    nics = f", {len(matrix.nics)} NICs" if matrix.nics else ""
    draft = Draft(named.name, f"{len(rows)} x {named.name}{nics} (imported)", plain_name(file))
    host = _HostDraft(draft, named.part, matrix, names, [*matrix.notes, *notes])
    draft.add(pattern("gpu", len(rows)), "gpu")
    _add_nvlinks(host, file)
    _add_pcie(host)
    networks = _add_ports(host, node)
    draft.extra = {
        "gpu_p2p": not named.part.geforce,
        "gpudirect_rdma": all(reads_gpus(named.part, network) for network in networks),
    }
    return ImportedTopology(
        kind, draft.document(), title, tuple(dict.fromkeys(host.notes)), {"edges": draft.comments}
    )


def _check_template(matrix: Matrix, node: NodeSpec | None, file: str) -> None:
    """A table without NVLinks is not one of a machine that has them."""
    joins = node is not None and any(link.kind == "nvlink" for link in node.links.values())
    bonded = any(cell.startswith("NV") for cell in matrix.cells.values())
    if joins and len(matrix.gpus) > 1 and not bonded and node is not None:
        path = matrix.cells.get((matrix.gpus[0], matrix.gpus[1]), "nothing")
        problem = f"{path} between GPUs, and no NVLinks"
        allowed = f"NV#, as {node.name} (--template) has NVLinks; else --gpu NAME alone"
        place = matrix.lines.get(matrix.gpus[0])
        raise InputError(Fault(f"row of {matrix.gpus[0]}", problem, allowed, file, place))


def _gpu(
    matrix: Matrix, file: str, gpu: str | None, node: NodeSpec | None
) -> tuple[NamedGpu, list[str]]:
    nvlinks = " ".join(cell for cell in matrix.cells.values() if cell.startswith("NV"))
    text = gpu or matrix.gpu or (node.gpu if node is not None else None)
    if text is not None:
        named = read_gpu(text, "nvlink" if nvlinks else "pcie")
        for other, field in ((matrix.gpu, "the file"), (node and node.gpu, "--template")):
            if other and read_gpu(other).part.spelled != named.part.spelled:
                raise InputError(
                    Fault(
                        "gpu",
                        f"{text!r}, where {field} has {other!r}",
                        "one and the same model",
                        file,
                    )
                )
        return named, [note.removeprefix("assumption: ") for note in named.assumptions]
    try:
        named = read_gpu(Path(file).stem, "nvlink" if nvlinks else "pcie")
    except InputError:
        raise InputError(
            Fault(
                "gpu",
                "a table, which does not name the model of the GPUs",
                "--gpu NAME (such as 'A100-SXM4-80GB') or --template NAME",
                file,
            )
        ) from None
    return named, [f"GPUs are {named.name}, by the name of the file"]


# ---------------------------------------------------------------- NVLink


def _add_nvlinks(host: _HostDraft, file: str) -> None:
    matrix, part = host.matrix, host.part
    lanes = {
        (a, b): int(cell[2:])
        for (a, b), cell in matrix.cells.items()
        if cell.startswith("NV") and host.names[a] != host.names[b]
    }
    lanes = {pair: count for pair, count in lanes.items() if count}
    if not lanes:
        return
    if part.nvlink is None:
        cell = f"NV{next(iter(lanes.values()))}"
        raise InputError(
            Fault(
                "gpu",
                f"{part.spelled.upper()}, which has no NVLink",
                f"a GPU that has, because the table says {cell}",
                file,
            )
        )
    totals = {a: sum(n for (x, _), n in lanes.items() if x == a) for a in matrix.gpus}
    most = max(lanes.values())
    switched = max(totals.values()) > part.lanes or (
        part.on_board and part.sm >= 80 and most == part.lanes
    )
    _check_lanes(lanes, host, file, switched=switched)
    name = host.draft.link(part.nvlink, nvlink(part.nvlink, switched=switched))
    if switched:
        host.draft.add("nvs", "nvswitch")
        host.notes.append(
            f"an NVSwitch, because {most} NVLinks to each of several GPUs are more"
            f" than the {part.lanes} of one"
        )
        for gpu in matrix.gpus:
            own = max((n for (a, _), n in lanes.items() if a == gpu), default=0)
            if own:
                host.join(host.names[gpu], "nvs", name, gpu, own)
            else:
                host.notes.append(
                    f"{gpu} has no NVLinks, as its row says, though others have"
                    f" {most}: where they are only down, mend the row"
                )
        return
    for (a, b), count in lanes.items():
        if matrix.gpus.index(a) < matrix.gpus.index(b):
            host.join(host.names[a], host.names[b], name, a, count)


def _check_lanes(
    lanes: Mapping[tuple[str, str], int], host: _HostDraft, file: str, *, switched: bool
) -> None:
    """No GPU has more NVLinks than its model, and a switch joins all that hang on it alike."""
    part, matrix = host.part, host.matrix
    model = part.spelled.upper()
    for (gpu, other), number in lanes.items():
        place = matrix.lines.get(gpu)
        if number > part.lanes:
            raise InputError(
                Fault(
                    f"row of {gpu}",
                    f"NV{number}",
                    f"at most NV{part.lanes}, all NVLinks of one {model}",
                    file,
                    place,
                )
            )
        if switched and number != max(lanes.values()):
            problem = f"NV{number} to {other}, and NV{max(lanes.values())} between others"
            raise InputError(
                Fault(
                    f"row of {gpu}",
                    problem,
                    f"{part.lanes} NVLinks of a {model} in all, or as many to each by a switch",
                    file,
                    place,
                )
            )
    linked = sorted({gpu for gpu, _ in lanes}, key=matrix.gpus.index)
    apart = [(a, b) for a in linked for b in linked if a != b and (a, b) not in lanes]
    if switched and apart:
        (a, b), number = apart[0], max(lanes.values())
        problem = f"{matrix.cells.get((a, b), 'nothing')} to {b}, and NV{number} to others"
        allowed = "NV# to all GPUs that a switch joins"
        raise InputError(Fault(f"row of {a}", problem, allowed, file, matrix.lines.get(a)))


# ---------------------------------------------------------------- PCIe


def _add_pcie(host: _HostDraft) -> None:
    matrix, draft = host.matrix, host.draft
    domains = domains_of(matrix, host.part, host.notes)
    trees = [clusters_of(matrix, domain) for domain in domains]
    count = sum(_switches(tree) for tree in trees)
    if count:
        draft.add(pattern("pcie", count), "pcie_switch")
    draft.add(pattern("cpu", len(domains)), "cpu")
    free = iter(range(count))
    for cpu, tree in enumerate(trees):
        for cluster in tree:
            above = f"cpu{cpu}"
            if len(cluster) > 1:
                above = _switch(host, above, next(free))
            for leaf in cluster:
                alone = len(leaf) == 1 and len(cluster) == 1
                under = above if alone else _switch(host, above, next(free))
                for device in leaf:
                    host.join(host.names[device], under, _link(host, device), device)
    cpu_kind = host.part.cpu
    host.notes.append(f"CPUs of the kind {cpu_kind}, usual with this GPU")
    draft.add_host_memory(cpu_kind, range(len(domains)))


def _switch(host: _HostDraft, above: str, number: int) -> str:
    host.join(f"pcie{number}", above, _stock(host, int(host.part.pcie[-1]), 16))
    return f"pcie{number}"


def _switches(tree: Sequence[Sequence[Sequence[str]]]) -> int:
    return sum(
        (len(cluster) > 1) + sum(len(leaf) > 1 or len(cluster) > 1 for leaf in cluster)
        for cluster in tree
    )


def _link(host: _HostDraft, device: str) -> str:
    """PCIe link of a device: as it says, else of the GPU's generation, or the CPUs' for NICs."""
    if device in host.matrix.gpus and host.part.c2c is not None:
        return host.draft.link(host.part.c2c, stock_link(host.part.c2c))
    width = host.matrix.pcie.get(device)
    if width is not None:
        return _stock(host, *width)
    if device in host.matrix.gpus:
        host.notes.append(f"PCIe of generation {host.part.pcie[-1]} with 16 lanes to each GPU")
        return _stock(host, int(host.part.pcie[-1]), 16)
    generation = max(int(hardware_parts().cpus[host.part.cpu].pcie[-1]), int(host.part.pcie[-1]))
    host.notes.append(f"PCIe of generation {generation} with 16 lanes to each NIC")
    return _stock(host, generation, 16)


def _stock(host: _HostDraft, generation: int, lanes: int) -> str:
    return host.draft.add_pcie(min(max(generation, 1), 6), lanes)


# ---------------------------------------------------------------- NICs


def _add_ports(host: _HostDraft, node: NodeSpec | None) -> list[str]:
    """Add the NICs; returns the kinds of their networks."""
    networks, ports = [], []
    for nic in host.matrix.nics:
        network, Bps, source, note = _network(host, nic, node)
        if note:
            host.notes.append(note)
        ports.append(host.draft.add_port(network, Bps, source))
        networks.append(network)
    host.draft.add_nics(ports)
    extra = len(ports) - len(host.matrix.gpus)
    if extra > 0 and len(host.matrix.gpus) > 1:
        host.notes.append(
            f"all {len(ports)} NICs carry training, {extra} more than GPUs: take those for storage"
            " and management out of the table"
        )
    return networks


def _network(host: _HostDraft, nic: str, node: NodeSpec | None) -> tuple[str, float, str, str]:
    """Kind of network, rate, its source, and what was assumed."""
    if nic in host.matrix.ports:
        return (*host.matrix.ports[nic], "")
    for device in node.nodes if node is not None else ():
        if device.port and node is not None:
            link = node.links[device.port]
            note = f"NICs as in {node.name}"
            return link.network_kind, link.bandwidth, f"assumption: {note}", note
    driver = host.matrix.legend.get(nic, nic)
    kind: str = next((k for word, k in _DRIVERS if re.search(word, driver)), "infiniband")
    _, usual_Bps = usual_nics(kind, host.part.spelled)
    name_pattern = re.sub(r"\d+$", "*", driver)
    rate = f"{usual_Bps * 8e-9:g} Gbit/s {kind}"
    note = f"NICs of {rate}, usual for this GPU (by the name {name_pattern})"
    return kind, usual_Bps, f"assumption: {note}", note
