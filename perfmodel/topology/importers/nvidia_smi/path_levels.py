"""From a matrix of path types to a graph of switches and CPUs that has them.

PIX: below one switch. PXB: below switches that another switch joins. PHB and NODE: one NUMA domain
(between its host bridges, for NODE; NCCL counts both as PHB). SYS: two NUMA domains. Where NVLink
hides how two GPUs meet over PCIe, the NICs beside them, their NUMA domains, or what is usual say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts, reads_gpus, usual_nics
from perfmodel.topology.from_text.template_builder import (
    Draft,
    between_cpus,
    dram,
    nvlink,
    pattern,
    port,
    stock_link,
)
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.importers.nvidia_smi.path_matrix import Matrix, clusters_of, domains_of
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.spec import NodeSpec

_DRIVERS = (
    (r"efa|rdmap", "efa"), (r"hfi1|opa", "omni-path"), (r"bnxt|irdma|mlx5_bond|roce", "roce"),
    (r"mlx|ibp|^ib", "infiniband"), (r"^(eth|en)", "tcp"),
)  # fmt: skip
"""Kind of network by the name of a NIC's driver, as nvidia-smi shows it."""

_MOST_NVLINKS = 18
"""Of any GPU yet: H100, H200 and B200 (NVIDIA's data sheets); a typing error shows."""


@dataclass
class _Making:
    """A host in the making; `names` are those of the template by those of the matrix."""

    draft: Draft
    part: GpuConnector
    matrix: Matrix
    names: dict[str, str]
    notes: list[str]
    beside: dict[int, str] = field(default_factory=dict)

    def join(self, src: str, dst: str, link: str, device: str = "", lanes: int = 0) -> None:
        line = self.matrix.lines.get(device)
        if line is not None:
            self.beside[len(self.draft.edges)] = f"line {line}, {device}"
        self.draft.join(src, dst, link, **({"lanes": lanes} if lanes else {}))


def drafted_from(
    matrix: Matrix, file: str, *, kind: str, title: str, gpu: str | None, template: str | None
) -> ImportedTopology:
    """Make a template that has the paths of a matrix.

    Raises
    ------
    InputError
        No model of GPU, or one that has no NVLinks where the matrix has.
    """
    node = load_node(template) if template is not None else None
    named, notes = _gpu(matrix, file, gpu, node)
    rows = dict(enumerate(matrix.gpus))
    names = {name: f"gpu{at}" for at, name in rows.items()}
    names |= {name: f"nic{at}" for at, name in enumerate(matrix.nics)}
    nics = f", {len(matrix.nics)} NICs" if matrix.nics else ""
    draft = Draft(named.name, f"{len(rows)} x {named.name}{nics} (imported)", plain_name(file))
    making = _Making(draft, named.part, matrix, names, [*matrix.notes, *notes])
    draft.add(pattern("gpu", len(rows)), "gpu")
    _add_nvlinks(making, file)
    _add_pcie(making)
    networks = _add_ports(making, node)
    draft.extra = {
        "gpu_p2p": not named.part.geforce,
        "gpudirect_rdma": all(reads_gpus(named.part, network) for network in networks),
    }
    return ImportedTopology(kind, draft.document(), title, tuple(dict.fromkeys(making.notes)),
                    {"edges": making.beside})  # fmt: skip


def _gpu(
    matrix: Matrix, file: str, gpu: str | None, node: NodeSpec | None
) -> tuple[NamedGpu, list[str]]:
    joined = " ".join(cell for cell in matrix.cells.values() if cell.startswith("NV"))
    said = gpu or matrix.gpu or (node.gpu if node is not None else None)
    if said is not None:
        named = read_gpu(said, "nvlink" if joined else "pcie")
        return named, [note.removeprefix("assumption: ") for note in named.assumptions]
    try:
        named = read_gpu(Path(file).stem, "nvlink" if joined else "pcie")
    except InputError:
        allowed = "--gpu NAME (such as 'A100-SXM4-80GB') or --template NAME"
        raise InputError(
            Fault("gpu", "a table, which does not name the model of the GPUs", allowed, file)
        ) from None
    return named, [f"GPUs are {named.name}, by the name of the file"]


# ---------------------------------------------------------------- NVLink


def _add_nvlinks(making: _Making, file: str) -> None:
    matrix, part = making.matrix, making.part
    lanes = {
        (a, b): int(cell[2:])
        for (a, b), cell in matrix.cells.items()
        if cell.startswith("NV") and making.names[a] != making.names[b]
    }
    lanes = {pair: count for pair, count in lanes.items() if count}
    if not lanes:
        return
    if part.nvlink is None:
        cell = f"NV{next(iter(lanes.values()))}"
        raise InputError(Fault("gpu", f"{part.spelled.upper()}, which has no NVLink",
                               f"a GPU that has, because the table says {cell}", file))  # fmt: skip
    _check_lanes(max(lanes, key=lanes.__getitem__), lanes, making, file)
    totals = {a: sum(n for (x, _), n in lanes.items() if x == a) for a in matrix.gpus}
    most = max(lanes.values())
    switched = max(totals.values()) > part.lanes or (
        part.on_board and part.sm >= 80 and most == part.lanes
    )
    name = making.draft.link(part.nvlink, nvlink(part.nvlink, switched=switched))
    if switched:
        making.draft.add("nvs", "nvswitch")
        making.notes.append(f"an NVSwitch, because {most} NVLinks to each of several GPUs are more"
                            f" than the {part.lanes} of one")  # fmt: skip
        for gpu in matrix.gpus:
            own = max((n for (a, _), n in lanes.items() if a == gpu), default=0)
            if own:
                making.join(making.names[gpu], "nvs", name, gpu, own)
        return
    for (a, b), count in lanes.items():
        if matrix.gpus.index(a) < matrix.gpus.index(b):
            making.join(making.names[a], making.names[b], name, a, count)


def _check_lanes(
    pair: tuple[str, str], lanes: Mapping[tuple[str, str], int], making: _Making, file: str
) -> None:
    """No two GPUs have more NVLinks between them than one GPU has."""
    part, at = making.part, making.matrix.lines.get(pair[0])
    if lanes[pair] > max(part.lanes, _MOST_NVLINKS):
        raise InputError(
            Fault(f"row of {pair[0]}", f"NV{lanes[pair]}",
                  f"at most NV{max(part.lanes, _MOST_NVLINKS)}", file, at)
        )  # fmt: skip


# ---------------------------------------------------------------- PCIe


def _add_pcie(making: _Making) -> None:
    matrix, draft = making.matrix, making.draft
    domains = domains_of(matrix, making.part, making.notes)
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
                above = _switch(making, above, next(free))
            for leaf in cluster:
                alone = len(leaf) == 1 and len(cluster) == 1
                under = above if alone else _switch(making, above, next(free))
                for device in leaf:
                    making.join(making.names[device], under, _link(making, device), device)
    cpu_kind = making.part.cpu
    making.notes.append(f"CPUs of the kind {cpu_kind}, usual with this GPU")
    if len(domains) > 1:
        name, link = between_cpus(cpu_kind)
        cpus = pattern("cpu", len(domains))
        draft.join(cpus, cpus, draft.link(name, link), pattern="all")
    draft.link("dram", dram(cpu_kind, max(1, len(domains) // 2)))
    draft.add(pattern("mem", len(domains)), "memory")
    draft.join(pattern("mem", len(domains)), pattern("cpu", len(domains)), "dram")


def _switch(making: _Making, above: str, number: int) -> str:
    making.join(f"pcie{number}", above, _stock(making, int(making.part.pcie[-1]), 16))
    return f"pcie{number}"


def _switches(tree: Sequence[Sequence[Sequence[str]]]) -> int:
    return sum(
        (len(cluster) > 1) + sum(len(leaf) > 1 or len(cluster) > 1 for leaf in cluster)
        for cluster in tree
    )


def _link(making: _Making, device: str) -> str:
    """PCIe link of a device: as it says, else of the GPU's generation, or the CPUs' for NICs."""
    if device in making.matrix.gpus and making.part.c2c is not None:
        return making.draft.link(making.part.c2c, stock_link(making.part.c2c))
    known = making.matrix.pcie.get(device)
    if known is not None:
        return _stock(making, *known)
    if device in making.matrix.gpus:
        making.notes.append(f"PCIe of generation {making.part.pcie[-1]} with 16 lanes to each GPU")
        return _stock(making, int(making.part.pcie[-1]), 16)
    cpu = hardware_parts().cpus[making.part.cpu]
    generation = max(int(cpu.pcie[-1]), int(making.part.pcie[-1]))
    making.notes.append(f"PCIe of generation {generation} with 16 lanes to each NIC")
    return _stock(making, generation, 16)


def _stock(making: _Making, generation: int, lanes: int) -> str:
    generation = min(max(generation, 1), 6)
    name = f"pcie{generation}" if lanes == 16 else f"pcie{generation}-x{lanes}"
    whole = hardware_parts().links[f"pcie{generation}"].bandwidth
    more = {} if lanes == 16 else {"bandwidth": f"{whole * lanes / 16 / 1e9:.6g} GB/s"}
    return making.draft.link(name, stock_link(f"pcie{generation}", **more))


# ---------------------------------------------------------------- NICs


def _add_ports(making: _Making, node: NodeSpec | None) -> list[str]:
    """Add the NICs; returns the kinds of their networks."""
    networks, ports = [], []
    for nic in making.matrix.nics:
        network, Bps, source, note = _network(making, nic, node)
        if note:
            making.notes.append(note)
        wanted = port(network, Bps, source)
        name, at = network, 2
        while name in making.draft.links and (
            making.draft.links[name]["bandwidth"] != wanted["bandwidth"]
        ):
            name, at = f"{network}-{at}", at + 1
        ports.append(making.draft.link(name, wanted))
        networks.append(network)
    making.draft.add_nics(ports)
    return networks


def _network(making: _Making, nic: str, node: NodeSpec | None) -> tuple[str, float, str, str]:
    """Kind of network, rate, its source, and what was assumed."""
    if nic in making.matrix.ports:
        return (*making.matrix.ports[nic], "")
    for device in node.nodes if node is not None else ():
        if device.port and node is not None:
            link = node.links[device.port]
            its = link.network or ("infiniband" if link.kind == "infiniband" else "roce")
            note = f"NICs as in {node.name}"
            return its, link.bandwidth, f"assumption: {note}", note
    driver = making.matrix.legend.get(nic, nic)
    kind: str = next((k for word, k in _DRIVERS if re.search(word, driver)), "infiniband")
    _, usual_Bps = usual_nics(kind, making.part.spelled)
    shown = re.sub(r"\d+$", "*", driver)
    note = f"NICs of {usual_Bps * 8e-9:g} Gbit/s {kind}, usual for this GPU (by the name {shown})"
    return kind, usual_Bps, f"assumption: {note}", note
