"""Node templates from parts: boards with NVLink, cards in slots, CPUs, memory and NICs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.topology.from_text.network_text import NetworkText
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
class Board:
    """How the GPUs of a host are joined by NVLink.

    Parameters
    ----------
    gpus : int
    layout : Layout
    nvlink : str or None
        Name of the NVLink among the parts.
    lanes : int
        NVLinks of one GPU.
    lane_Bps : float, optional
        Raw rate of each, where it is not that of the part; bytes per second.
    """

    gpus: int
    layout: Layout
    nvlink: str | None
    lanes: int
    lane_Bps: float | None = None


@dataclass(frozen=True, slots=True)
class HostParts:
    """What a host is made of.

    Parameters
    ----------
    gpu : str
        Name in the table of GPUs.
    part : GpuConnector
    board : Board
    cpu : str
        Kind of CPU.
    domains : int
        CPUs (NUMA domains).
    pcie : str
        Link of the GPUs.
    switches : bool
        Whether PCIe switches stand between GPUs and CPUs.
    p2p : bool
        Whether GPUs copy to each other over PCIe.
    network : NetworkText, optional
        Its NICs, whose number and rate are settled; None: it has none.
    crowded : bool
        Whether the CPUs have too few lanes for all GPUs.
    """

    gpu: str
    part: GpuConnector
    board: Board
    cpu: str
    domains: int
    pcie: str
    switches: bool
    p2p: bool
    network: NetworkText | None
    crowded: bool = False

    @property
    def nics(self) -> int:
        """NICs of the host."""
        return (self.network.nics or 0) if self.network else 0

    @property
    def across(self) -> bool:
        """Whether the NICs are under another CPU than the GPUs."""
        return self.network is not None and self.network.across


def draft_host(host: HostParts) -> Draft:
    """Put a host together as a node template."""
    network, gpus = host.network, host.board.gpus
    name, wires = f"{gpus} x {host.gpu}", ""
    if network is not None:
        wires = f", {host.nics} x {(network.nic_Bps or 0) * 8e-9:g} Gbit/s {network.kind}"
    draft = Draft(host.gpu, f"{name}{wires} (described)", f"{name.replace(' ', '')}-described")
    draft.add(pattern("gpu", gpus), "gpu")
    join_gpus(draft, host.board)
    domains = 2 if host.across else min(host.domains, gpus)
    holders = _plug_gpus(draft, host, domains)
    reads = not host.part.geforce
    if network is not None:
        _plug_nics(draft, host, network, [f"cpu{domains - 1}"] if host.across else holders)
        reads = reads_gpus(host.part, network.kind or "")
    draft.add_host_memory(host.cpu, range(domains))
    draft.extra = {"gpu_p2p": host.p2p, "gpudirect_rdma": reads}
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
    used, gpus, c2c = 1 if host.across else domains, host.board.gpus, host.part.c2c
    link = draft.link(c2c or host.pcie, stock_link(c2c or host.pcie))
    switches = _switch_count(host, used) if host.switches and c2c is None else 0
    if switches:
        draft.add(pattern("pcie", switches), "pcie_switch")
    draft.add(pattern("cpu", domains), "cpu")
    kind, places = ("pcie", switches) if switches else ("cpu", used)
    for at, group in enumerate(_shares(gpus, places)):
        draft.join(pattern("gpu", len(group), group[0]), f"{kind}{at}", link)
    for cpu, group in enumerate(_shares(switches, used)):
        draft.join(pattern("pcie", len(group), group[0]), f"cpu{cpu}", link)
    if host.crowded:  # the lanes that switches spare are for NICs
        kind, places = "cpu", used
    return [f"{kind}{at}" for at in range(places)]


def _switch_count(host: HostParts, cpus: int) -> int:
    """PCIe switches of a host: one per GPU of a Hopper board with a NIC each, else one per two.

    Assumption, as in the layouts of DGX-1, DGX A100 and DGX H100; cards share one per CPU where
    switches are stated, and two share one where the CPUs have too few lanes for all.
    """
    gpus = host.board.gpus
    if not host.part.on_board:
        return -(-gpus // 2) if host.crowded else cpus
    single = host.part.sm >= 90 and (host.network is None or host.nics >= gpus)
    return max(cpus, gpus if single else -(-gpus // 2))


def _plug_nics(draft: Draft, host: HostParts, network: NetworkText, places: Sequence[str]) -> None:
    """Plug NICs evenly into some places."""
    link = max(host.pcie, hardware_parts().cpus[host.cpu].pcie)
    draft.link(link, stock_link(link))
    kind = network.kind or ""
    name = draft.link(kind, port(kind, network.nic_Bps or 0, network.rate_source))
    draft.add(pattern("nic", host.nics), "nic", port=name)
    for nic in range(host.nics):
        draft.join(f"nic{nic}", places[nic * len(places) // host.nics], link)


def _shares(items: int, into: int) -> list[range]:
    """Split a row of items into equal neighbours."""
    edges = [round(i * items / into) for i in range(into + 1)]
    return [range(a, b) for a, b in pairwise(edges) if b > a]
