"""Node templates from parts: boards with NVLink, cards in slots, CPUs, memory and NICs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import (
    Draft,
    nvlink,
    pattern,
    port,
    rate,
    stock_link,
)

CUBE = (
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
)
"""Hybrid cube mesh of the DGX-1: pairs and NVLinks of each (nvidia-smi topo -m of
pytorch/pytorch benchmarks/distributed/ddp/README.md). P100 has one NVLink where V100 has two."""


@dataclass(frozen=True, slots=True)
class Network:
    """NICs of a host."""

    kind: str
    """Kind of network (`NetworkKind`)."""
    nics: int
    nic_Bps: float
    """Raw rate of each; bytes per second."""
    source: str
    """Where that rate comes from."""
    across: bool = False
    """Under another CPU than the GPUs."""


@dataclass(frozen=True, slots=True)
class Board:
    """How the GPUs of a host are joined by NVLink."""

    gpus: int
    layout: Layout
    nvlink: str | None
    """Name of the NVLink among the parts."""
    lanes: int
    """NVLinks of one GPU."""
    lane_Bps: float | None = None
    """Raw rate of each, where it is not that of the part; bytes per second."""


@dataclass(frozen=True, slots=True)
class HostParts:
    """What a host is made of."""

    gpu: str
    """Name in the table of GPUs."""
    part: GpuConnector
    board: Board
    cpu: str
    domains: int
    """CPUs (NUMA domains)."""
    pcie: str
    """Link of the GPUs."""
    switches: bool
    """Whether PCIe switches stand between GPUs and CPUs."""
    p2p: bool
    network: Network | None
    crowded: bool = False
    """Whether the CPUs have too few lanes for all GPUs."""

    @property
    def gpus(self) -> int:
        """GPUs of the host."""
        return self.board.gpus


def draft_host(host: HostParts) -> Draft:
    """Put a host together as a node template."""
    network = host.network
    name = f"{host.gpus} x {host.gpu}"
    wires = (
        f", {network.nics} x {network.nic_Bps * 8e-9:g} Gbit/s {network.kind}" if network else ""
    )
    draft = Draft(host.gpu, f"{name}{wires} (described)", f"{name.replace(' ', '')}-described")
    draft.add(pattern("gpu", host.gpus), "gpu")
    join_gpus(draft, host.board)
    domains = min(host.domains, host.gpus) if not (network and network.across) else 2
    groups = _plug_gpus(draft, host, domains)
    if network is not None:
        _plug_nics(draft, host, network, groups, domains)
    draft.add_host_memory(host.cpu, range(domains))
    draft.extra = {
        "gpu_p2p": host.p2p,
        "gpudirect_rdma": reads_gpus(host.part, network.kind) if network else not host.part.geforce,
    }
    return draft


# ---------------------------------------------------------------- NVLink


def join_gpus(draft: Draft, board: Board) -> None:
    """Add the NVLinks of a host to its draft, and the switch where there is one."""
    if board.layout == "pcie" or board.nvlink is None:
        return
    source = "as described, per link and direction"
    override = {"bandwidth": rate(board.lane_Bps), "source": source} if board.lane_Bps else {}
    switched = board.layout == "nvswitch"
    name = draft.link(board.nvlink, nvlink(board.nvlink, switched=switched, **override))
    if switched:
        draft.add("nvs", "nvswitch")
        draft.join(pattern("gpu", board.gpus), "nvs", name, lanes=board.lanes)
        return
    for a, b, lanes in _pairs(board):
        draft.join(f"gpu{a}", f"gpu{b}", name, lanes=lanes)


def wire_nvlinks(
    draft: Draft,
    link: str,
    switched: Mapping[int, int],
    between: Mapping[tuple[int, int], int],
    comments: Mapping[int, str],
) -> None:
    """Add counted NVLinks of GPUs: to a switch, and to each other.

    `link`: name of the NVLink among the parts. `comments`: what to say of the links of a GPU.
    """
    if switched or between:
        draft.link(link, nvlink(link, switched=bool(switched)))
    if switched:
        draft.add("nvs", "nvswitch")
    joined = [(at, "nvs", lanes) for at, lanes in switched.items()]
    joined += [(a, f"gpu{b}", lanes) for (a, b), lanes in between.items()]
    for at, end, lanes in joined:
        draft.join(f"gpu{at}", end, link, comments.get(at, ""), lanes=lanes)


def _pairs(board: Board) -> Iterator[tuple[int, int, int]]:
    """Pairs of GPUs with NVLinks between them, and how many."""
    if board.layout == "cube":
        for a, b, lanes in CUBE:
            yield a, b, lanes if board.lanes >= 6 else 1
    elif board.layout == "mesh":
        each = max(1, board.lanes // max(1, board.gpus - 1))
        yield from ((a, b, each) for a in range(board.gpus) for b in range(a + 1, board.gpus))
    else:  # bridges
        yield from ((a, a + 1, board.lanes) for a in range(0, board.gpus - 1, 2))


# ---------------------------------------------------------------- PCIe


def _plug_gpus(draft: Draft, host: HostParts, domains: int) -> list[str]:
    """Plug GPUs under CPUs; returns the switches or CPUs that NICs are plugged into."""
    used = 1 if host.network and host.network.across else domains
    if host.part.c2c is not None:
        draft.link(host.part.c2c, stock_link(host.part.c2c))
        draft.add(pattern("cpu", domains), "cpu")
        for cpu, group in enumerate(_shares(host.gpus, used)):
            draft.join(pattern("gpu", len(group), group[0]), f"cpu{cpu}", host.part.c2c)
        return [f"cpu{i}" for i in range(used)]
    draft.link(host.pcie, stock_link(host.pcie))
    if not host.switches:
        draft.add(pattern("cpu", domains), "cpu")
        for cpu, group in enumerate(_shares(host.gpus, used)):
            draft.join(pattern("gpu", len(group), group[0]), f"cpu{cpu}", host.pcie)
        return [f"cpu{i}" for i in range(used)]
    count = _switch_count(host, used)
    draft.add(pattern("pcie", count), "pcie_switch")
    draft.add(pattern("cpu", domains), "cpu")
    for switch, group in enumerate(_shares(host.gpus, count)):
        draft.join(pattern("gpu", len(group), group[0]), f"pcie{switch}", host.pcie)
    for cpu, group in enumerate(_shares(count, used)):
        draft.join(pattern("pcie", len(group), group[0]), f"cpu{cpu}", host.pcie)
    if host.crowded:  # the lanes that switches spare are for NICs
        return [f"cpu{i}" for i in range(used)]
    return [f"pcie{i}" for i in range(count)]


def _switch_count(host: HostParts, cpus: int) -> int:
    """PCIe switches of a host: one per GPU of a Hopper board with a NIC each, else one per two.

    Assumption, as in the layouts of DGX-1, DGX A100 and DGX H100; cards share one per CPU where
    switches are stated, and two share one where the CPUs have too few lanes for all.
    """
    if not host.part.on_board:
        return -(-host.gpus // 2) if host.crowded else cpus
    nics = host.network.nics if host.network else host.gpus
    single = host.part.sm >= 90 and nics >= host.gpus
    return max(cpus, host.gpus if single else -(-host.gpus // 2))


def _plug_nics(
    draft: Draft, host: HostParts, network: Network, groups: Sequence[str], domains: int
) -> None:
    """Plug NICs evenly beside the GPUs, or under the last CPU where they are across."""
    link = max(host.pcie, hardware_parts().cpus[host.cpu].pcie)
    draft.link(link, stock_link(link))
    name = draft.link(network.kind, port(network.kind, network.nic_Bps, network.source))
    draft.add(pattern("nic", network.nics), "nic", port=name)
    places = [f"cpu{domains - 1}"] if network.across else groups
    for nic in range(network.nics):
        draft.join(f"nic{nic}", places[nic * len(places) // network.nics], link)


def _shares(items: int, into: int) -> list[range]:
    """Split a row of items into equal neighbours."""
    edges = [round(i * items / into) for i in range(into + 1)]
    return [range(a, b) for a, b in pairwise(edges) if b > a]
