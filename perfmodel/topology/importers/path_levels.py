"""From a matrix of path types to a graph of switches and CPUs that has them.

PIX: below one switch. PXB: below switches that another switch joins. PHB and NODE: one NUMA domain
(between its host bridges, for NODE; NCCL counts both as PHB). SYS: two NUMA domains. Where NVLink
hides how two GPUs meet over PCIe, the NICs beside them or their NUMA domains show it; else it is as
usual.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from pathlib import Path
from typing import Any, TypeVar

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.memo import applying
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.layouts import shares, usual_domains, wire_nvlinks
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts, reads_gpus, usual_nics
from perfmodel.topology.from_text.template_builder import Draft, pattern, stock_link
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.spec import NodeSpec, nic_ports


@dataclass(frozen=True, slots=True)
class Matrix:
    """Devices of one host and the path type between each two."""

    devices: tuple[str, ...]
    """As the tool names them, GPUs first."""
    cells: dict[tuple[str, str], str]
    """One of "NV2", "PIX", "PXB", "PHB", "NODE", "SYS"; both directions."""
    numa: dict[str, str] = field(default_factory=dict)
    """NUMA domain of a GPU, where the table says."""
    legend: dict[str, str] = field(default_factory=dict)
    """Names of NICs."""
    lines: dict[str, int] = field(default_factory=dict)
    """Line of a device's row."""
    gpu: str | None = None
    """Model, where the text says."""
    notes: tuple[str, ...] = ()
    """What was odd."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, in order."""
        return tuple(name for name in self.devices if re.fullmatch(r"GPU\d+", name))

    @property
    def nics(self) -> tuple[str, ...]:
        """All else: NICs."""
        return tuple(name for name in self.devices if name not in self.gpus)


_Name = TypeVar("_Name", bound=Hashable)
_ONE_DOMAIN = {"PIX", "PXB", "PHB", "NODE"}


def domains_of(matrix: Matrix, part: GpuConnector, notes: list[str]) -> list[list[str]]:
    """Devices of each NUMA domain; `notes` gets what was assumed."""
    pairs = [pair for pair, cell in matrix.cells.items() if cell in _ONE_DOMAIN]
    same = [
        (a, b)
        for a, own in matrix.numa.items()
        for b, other in matrix.numa.items()
        if a < b and own == other and matrix.cells.get((a, b)) not in {"DIS", "N/A"}
    ]
    if (pairs or matrix.numa or "SYS" in matrix.cells.values()) or len(matrix.devices) == 1:
        domains = _components(matrix.devices, [*pairs, *same])
        merged = domains if matrix.numa else _merge_domains(domains, matrix)
        few = "as few NUMA domains as the table allows, where NVLink hides them"
        notes += [
            *applying((len(merged) < len(domains), few)),
            *_nearer_than_stated(matrix, merged),
        ]
        return merged
    gpus = list(matrix.gpus)
    count = len(gpus) if part.c2c else usual_domains(part, len(gpus), part.cpu)
    notes.append(f"{count} NUMA domains, usual for this GPU: NVLink hides the rest")
    domains = [[gpus[at] for at in share] for share in shares(len(gpus), count)]
    domains[0] += matrix.nics
    return domains


def _nearer_than_stated(matrix: Matrix, domains: Sequence[Sequence[str]]) -> Iterator[str]:
    """Say which devices are taken to be nearer to each other than their cells have it."""
    near = (pair for domain in domains for pair in combinations(domain, 2))
    if pairs := [pair for pair in near if matrix.cells.get(pair) == "SYS"]:
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        yield (
            f"{' to '.join(pairs[0])}{more} are joined in one NUMA domain (PHB), as other cells or "
            "CPU affinity have it, though the table says SYS (a virtual machine hides how)"
        )


def _merge_domains(groups: Sequence[list[str]], matrix: Matrix) -> list[list[str]]:
    """Put groups that NVLink joins on one domain, unless SYS stands between any two devices."""
    domains: list[list[str]] = []
    for group in groups:
        for domain in domains:
            between = {matrix.cells.get((a, b), "") for a in domain for b in group}
            if "SYS" not in between and any(cell.startswith("NV") for cell in between):
                domain.extend(group)
                break
        else:
            domains.append(list(group))
    return domains


def clusters_of(matrix: Matrix, domain: Sequence[str]) -> list[list[list[str]]]:
    """Clusters of a domain: groups that one more switch joins; each a list of devices."""
    inside = set(domain)
    leaves = _components(
        domain, [p for p, cell in matrix.cells.items() if cell == "PIX" and set(p) <= inside]
    )
    leaf_of = {name: at for at, leaf in enumerate(leaves) for name in leaf}
    joined = [
        (leaf_of[a], leaf_of[b])
        for (a, b), cell in matrix.cells.items()
        if cell == "PXB" and {a, b} <= inside
    ]
    return [[leaves[at] for at in cluster] for cluster in _components(range(len(leaves)), joined)]


def _components(items: Iterable[_Name], pairs: Iterable[tuple[_Name, _Name]]) -> list[list[_Name]]:
    """Groups of items that pairs join, in the order of their first items."""
    import networkx as nx

    graph: nx.Graph[Any] = nx.Graph()
    place = {item: at for at, item in enumerate(items)}
    graph.add_nodes_from(place)
    graph.add_edges_from(pairs)
    return [sorted(group, key=place.__getitem__) for group in nx.connected_components(graph)]


_DRIVERS = (
    (r"efa|rdmap", "efa"),
    (r"hfi1|opa", "omni-path"),
    (r"bnxt|irdma|mlx5_bond|roce", "roce"),
    (r"mlx|ibp|^ib", "infiniband"),
    (r"^(eth|en)", "tcp"),
    (r"", "infiniband"),
)
"""Kind of network by the name of a NIC's driver, as nvidia-smi shows it; the first that fits."""


@dataclass
class _HostDraft:
    """Draft of a host; `names` are those of the template by those of the matrix."""

    draft: Draft
    part: GpuConnector
    matrix: Matrix
    file: str
    names: dict[str, str]
    notes: list[str]

    def comment(self, device: str) -> str:
        """Return the line of the row of a device, where there is one."""
        line = self.matrix.lines.get(device)
        return "" if line is None else f"line {line}, {device}"

    def refuse_row(self, fails: object, gpu: str, found: str, allowed: str) -> None:
        """Raise InputError where a check of the row of a GPU fails."""
        refuse_if(fails, f"row of {gpu}", found, allowed, self.file, self.matrix.lines.get(gpu))


def template_from_matrix(
    matrix: Matrix, file: str, *, gpu: str | None, template: str | None
) -> ImportedTopology:
    """Make a template that has the paths of a matrix.

    Raises `InputError`: no model of GPU, or one that has no NVLinks where the matrix has.
    """
    node = load_node(template) if template is not None else None
    named, notes = _gpu(matrix, file, gpu, node)
    names = {name: f"gpu{at}" for at, name in enumerate(matrix.gpus)}
    names |= {name: f"nic{at}" for at, name in enumerate(matrix.nics)}
    nics = f", {len(matrix.nics)} NICs" if matrix.nics else ""
    draft = Draft(
        named.name, f"{len(matrix.gpus)} x {named.name}{nics} (imported)", plain_name(file)
    )
    host = _HostDraft(draft, named.part, matrix, file, names, [*matrix.notes, *notes])
    _check_template(host, node)
    draft.add(pattern("gpu", len(matrix.gpus)), "gpu")
    _add_nvlinks(host)
    _add_pcie(host)
    networks = _add_ports(host, node)
    draft.extra |= {
        "gpu_p2p": not named.part.geforce,
        "gpudirect_rdma": all(reads_gpus(named.part, network) for network in networks),
    }
    title = f"Imported from {Path(file).name}, nvidia-smi topo -m."
    said = tuple(dict.fromkeys(host.notes))
    return ImportedTopology("topo-matrix", draft.document(), title, said, {"edges": draft.comments})


def _check_template(host: _HostDraft, node: NodeSpec | None) -> None:
    """A table without NVLinks is not one of a machine that has them."""
    cells, gpus = host.matrix.cells, host.matrix.gpus
    joins = node is not None and any(link.kind == "nvlink" for link in node.links.values())
    bonded = any(cell.startswith("NV") for cell in cells.values())
    if joins and len(gpus) > 1 and node is not None:
        host.refuse_row(
            not bonded,
            gpus[0],
            f"{cells.get((gpus[0], gpus[1]), 'nothing')} between GPUs, and no NVLinks",
            f"NV#, as {node.name} (--template) has NVLinks; else --gpu NAME alone",
        )


def _gpu(
    matrix: Matrix, file: str, gpu: str | None, node: NodeSpec | None
) -> tuple[NamedGpu, list[str]]:
    intra = "nvlink" if any(cell.startswith("NV") for cell in matrix.cells.values()) else "pcie"
    text = gpu or matrix.gpu or (node.gpu if node is not None else None)
    if text is not None:
        named = read_gpu(text, intra)
        for other, field in ((matrix.gpu, "the file"), (node and node.gpu, "--template")):
            refuse_if(
                other and read_gpu(other).part.spelled != named.part.spelled,
                "gpu",
                f"{text!r}, where {field} has {other!r}",
                "one and the same model",
                file,
            )
        return named, [note.removeprefix("assumption: ") for note in named.assumptions]
    try:
        named = read_gpu(Path(file).stem, intra)
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


def _add_nvlinks(host: _HostDraft) -> None:
    gpus, part = host.matrix.gpus, host.part
    lanes = {
        pair: int(cell[2:])
        for pair, cell in host.matrix.cells.items()
        if cell.startswith("NV") and int(cell[2:])
    }
    if not lanes:
        return
    if part.nvlink is None:
        raise InputError(
            Fault(
                "gpu",
                f"{part.spelled.upper()}, which has no NVLink",
                f"a GPU that has, because the table says NV{next(iter(lanes.values()))}",
                host.file,
            )
        )
    totals = {gpu: sum(n for (a, _), n in lanes.items() if a == gpu) for gpu in gpus}
    most = max(lanes.values())
    switched = max(totals.values()) > part.lanes or (
        part.on_board and part.sm >= 80 and most == part.lanes
    )
    _check_lanes(lanes, host, switched=switched)
    number = {gpu: at for at, gpu in enumerate(gpus)}
    to_switch, between = {}, {}
    if switched:
        linked = {a: lanes_of for (a, _), lanes_of in lanes.items()}
        to_switch = {number[gpu]: linked[gpu] for gpu in gpus if gpu in linked}
        host.notes.append(
            f"an NVSwitch, because {most} NVLinks to each of several GPUs are more"
            f" than the {part.lanes} of one"
        )
        host.notes += [
            f"{gpu} has no NVLinks, as its row says, though others have"
            f" {most}: where they are only down, mend the row"
            for gpu in gpus
            if number[gpu] not in to_switch
        ]
    else:
        ends = ((number[a], number[b], count) for (a, b), count in lanes.items())
        between = {(a, b): count for a, b, count in ends if a < b}
    comments = {at: host.comment(gpu) for gpu, at in number.items()}
    wire_nvlinks(host.draft, part.nvlink, to_switch, between, comments)


def _check_lanes(lanes: Mapping[tuple[str, str], int], host: _HostDraft, *, switched: bool) -> None:
    """No GPU has more NVLinks than its model, and a switch joins all that hang on it alike.

    `lanes`: NVLinks between two GPUs, by their names in the matrix.
    """
    part, most = host.part, max(lanes.values())
    model = part.spelled.upper()
    for (gpu, other), number in lanes.items():
        host.refuse_row(
            number > part.lanes,
            gpu,
            f"NV{number}",
            f"at most NV{part.lanes}, all NVLinks of one {model}",
        )
        host.refuse_row(
            switched and number != most,
            gpu,
            f"NV{number} to {other}, and NV{most} between others",
            f"{part.lanes} NVLinks of a {model} in all, or as many to each by a switch",
        )
    linked = sorted({gpu for gpu, _ in lanes}, key=host.matrix.gpus.index)
    apart = [(a, b) for a in linked for b in linked if a != b and (a, b) not in lanes]
    for a, b in apart:
        host.refuse_row(
            switched,
            a,
            f"{host.matrix.cells.get((a, b), 'nothing')} to {b}, and NV{most} to others",
            "NV# to all GPUs that a switch joins",
        )


# ---------------------------------------------------------------- PCIe


def _add_pcie(host: _HostDraft) -> None:
    draft, free, own = host.draft, count(), int(host.part.pcie[-1])
    domains = domains_of(host.matrix, host.part, host.notes)

    def new_switch(above: str) -> str:
        name = f"pcie{next(free)}"
        draft.join(name, above, draft.add_pcie(own, 16))
        return name

    for cpu, domain in enumerate(domains):
        for cluster in clusters_of(host.matrix, domain):
            above = new_switch(f"cpu{cpu}") if len(cluster) > 1 else f"cpu{cpu}"
            for leaf in cluster:
                under = above if len(leaf) == len(cluster) == 1 else new_switch(above)
                for device in leaf:
                    draft.join(host.names[device], under, _link(host, device), host.comment(device))
    if switches := next(free):
        draft.add(pattern("pcie", switches), "pcie_switch")
    draft.add(pattern("cpu", len(domains)), "cpu")
    host.notes.append(f"CPUs of the kind {host.part.cpu}, usual with this GPU")
    draft.add_host_memory(host.part.cpu, range(len(domains)))


def _link(host: _HostDraft, device: str) -> str:
    """PCIe link of a device: of the GPU's generation, or for NICs the CPUs' where that is newer."""
    is_gpu, c2c = device in host.matrix.gpus, host.part.c2c
    if is_gpu and c2c is not None:
        return host.draft.link(c2c, stock_link(c2c))
    own, of_cpu = int(host.part.pcie[-1]), int(hardware_parts().cpus[host.part.cpu].pcie[-1])
    generation, end = (own, "GPU") if is_gpu else (max(own, of_cpu), "NIC")
    host.notes.append(f"PCIe of generation {generation} with 16 lanes to each {end}")
    return host.draft.add_pcie(generation, 16)


# ---------------------------------------------------------------- NICs


def _add_ports(host: _HostDraft, node: NodeSpec | None) -> list[str]:
    """Add the NICs; returns the kinds of their networks."""
    networks = [_network(host, nic, node) for nic in host.matrix.nics]
    ports = [host.draft.add_port(network, Bps, source) for network, Bps, source in networks]
    host.draft.add_nics(ports)
    extra = len(ports) - len(host.matrix.gpus)
    if extra > 0 and len(host.matrix.gpus) > 1:
        cells, gpus = host.matrix.cells, host.matrix.gpus
        paths = {nic: {cells[gpu, nic] for gpu in gpus} for nic in host.matrix.nics}
        apart = [nic for nic, path in paths.items() if path <= {"NODE", "SYS"}]
        named = f" (far from all GPUs: {', '.join(apart)})" if 0 < len(apart) <= extra else ""
        host.notes.append(
            f"all {len(ports)} NICs carry training, {extra} more than GPUs: take those for storage"
            f" and management out of the table{named}"
        )
    return [network for network, _, _ in networks]


def _network(host: _HostDraft, nic: str, node: NodeSpec | None) -> tuple[str, float, str]:
    """Kind of network, rate and its source."""
    port = next(iter(nic_ports(node) if node is not None else ()), None)
    if port is not None and node is not None:
        kind: str = port.network_kind
        Bps, note = port.bandwidth, f"NICs as in {node.name}"
    else:
        driver = host.matrix.legend.get(nic, nic)
        kind = next(kind for word, kind in _DRIVERS if re.search(word, driver))
        _, Bps = usual_nics(kind, host.part.spelled)
        name = re.sub(r"\d+$", "*", driver)
        note = f"NICs of {Bps * 8e-9:g} Gbit/s {kind}, usual for this GPU (by the name {name})"
    host.notes.append(note)
    return kind, Bps, f"assumption: {note}"
