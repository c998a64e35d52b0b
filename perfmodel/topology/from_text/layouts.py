"""A host from parts: boards with NVLink, cards in slots, CPUs, memory and NICs.

What its text leaves open is as usual: the layout of NVLinks, CPUs, switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.memo import first_applying
from perfmodel.topology.from_text.gpu_text import NamedGpu
from perfmodel.topology.from_text.network_text import IntraText, NetworkText
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import (
    Draft,
    nvlink,
    pattern,
    port,
    rate,
    stock_link,
)
from perfmodel.topology.templates.spec import NodeSpec, device_names, pairs

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
    draft.extra |= {"gpu_p2p": host.p2p, "gpudirect_rdma": reads}
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
    for at, end, lanes in (
        *((at, "nvs", lanes) for at, lanes in switched.items()),
        *((a, f"gpu{b}", lanes) for (a, b), lanes in between.items()),
    ):
        draft.join(f"gpu{at}", end, link, comments.get(at, ""), lanes=lanes)


def _pairs(board: Board) -> list[tuple[int, int, int]]:
    """Pairs of GPUs with NVLinks between them, and how many."""
    if board.layout == "cube":
        return [(a, b, lanes if board.lanes >= 6 else 1) for a, b, lanes in CUBE]
    if board.layout == "mesh":
        each = max(1, board.lanes // max(1, board.gpus - 1))
        return [(a, b, each) for a, b in combinations(range(board.gpus), 2)]
    return [(a, a + 1, board.lanes) for a in range(0, board.gpus - 1, 2)]  # bridges


# ---------------------------------------------------------------- PCIe


def _plug_gpus(draft: Draft, host: HostParts, domains: int) -> list[str]:
    """Plug GPUs under CPUs; returns the switches or CPUs that NICs are plugged into."""
    used, gpus, c2c = 1 if host.across else domains, host.board.gpus, host.part.c2c
    if host.switches and not host.part.on_board:  # a switch of two cards is under one CPU
        used = min(used, -(-gpus // 2))
    link = draft.link(c2c or host.pcie, stock_link(c2c or host.pcie))
    switches = _switch_count(host, used) if host.switches and c2c is None else 0
    if switches:
        draft.add(pattern("pcie", switches), "pcie_switch")
    draft.add(pattern("cpu", domains), "cpu")
    kind, places = ("pcie", switches) if switches else ("cpu", used)
    for at, group in enumerate(shares(gpus, places)):
        draft.join(pattern("gpu", len(group), group[0]), f"{kind}{at}", link)
    for cpu, group in enumerate(shares(switches, used)):
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
    name = draft.link(kind, port(kind, network.nic_Bps or 0, network.rate_source, host.gpu))
    draft.add(pattern("nic", host.nics), "nic", port=name)
    for nic in range(host.nics):
        draft.join(f"nic{nic}", places[nic * len(places) // host.nics], link)


def shares(items: int, into: int) -> list[range]:
    """Split a row of items into equal neighbours."""
    edges = [round(i * items / into) for i in range(into + 1)]
    return [range(a, b) for a, b in pairwise(edges) if b > a]


def layout_of(node: NodeSpec, gpu: GpuConnector) -> Layout:
    """How NVLinks join the GPUs of a template.

    `gpu`: how its GPU is plugged in.
    """
    links = [edge for edge in node.edges if node.links[edge.link].kind == "nvlink"]
    joined = {frozenset(ends) for edge in links for ends in pairs(edge)}
    gpus, switches = (set(device_names(node, kind)) for kind in ("gpu", "nvswitch"))
    return first_applying(
        (switches.intersection(chain.from_iterable(joined)), "nvswitch"),
        ((len(gpus) > 2 or gpu.amd) and len(joined) == len(gpus) * (len(gpus) - 1) // 2, "mesh"),
        (not joined, "pcie"),
        (len(joined) <= len(gpus) // 2, "bridge"),
        (len(gpus) == 8, "cube"),
        (True, "mesh"),
    )


def usual_layout(named: NamedGpu, gpus: int, intra: IntraText) -> tuple[Layout, tuple[str, ...]]:
    """How GPUs are joined, and what was assumed."""
    part = named.part
    if intra.layout is not None:
        return intra.layout, ()
    if not part.on_board:
        return "bridge" if intra.nvlink and part.lanes else "pcie", ()
    if not intra.nvlink and (gpus == 1 or part.nvlink is None):  # None: a data sheet without links
        return "pcie", ()
    if part.amd:
        return "mesh", ()
    of_form: Mapping[str, Layout] = {"superchip": "nvswitch", "sxm3": "nvswitch"}
    few: Layout = (
        "mesh" if gpus <= 4 else "cube" if part.form == "sxm2" and gpus <= 8 else "nvswitch"
    )
    usual = few if part.spelled == "gh200" else of_form.get(part.form, few)
    shapes = {"nvswitch": "NVSwitch", "cube": "a hybrid cube mesh", "mesh": "NVLink, all to all"}
    return usual, (f"assumption: {gpus} {part.spelled.upper()} joined by {shapes[usual]}",)


def _gpus_of_machine(part: GpuConnector, gpus: int, layout: Layout) -> int:
    """GPUs of the whole machine, of which some may be used."""
    least = {"nvswitch": 16 if part.form == "sxm3" else 8, "cube": 8, "mesh": 8 if part.amd else 4}
    return max(gpus + (gpus % 2 if layout == "bridge" else 0), least.get(layout, 0))


def usual_host(
    named: NamedGpu,
    gpus: int,
    layout: Layout,
    intra: IntraText,
    network: NetworkText | None,
    *,
    p2p: bool | None,
) -> tuple[HostParts, tuple[str, ...]]:
    """Choose the parts of a host: as stated, else as usual; returns what was assumed too."""
    part = named.part
    whole = _gpus_of_machine(part, gpus, layout)
    lanes = intra.lanes_of_gpu(layout, whole) or part.lanes
    if layout == "mesh" and lanes != part.lanes:  # which joins the stated GPUs, not a whole board
        whole, lanes = gpus, intra.lanes_of_gpu(layout, gpus) or part.lanes
    raise_faults(_capacity_faults(part, gpus, layout, intra))
    cpu = intra.cpu or part.cpu
    board = part.on_board and whole > 1 and part.c2c is None
    domains = whole if intra.own_domains else intra.domains or usual_domains(part, whole, cpu)
    alone = not board and part.c2c is None and intra.switches is None  # cards, as is usual
    crowded = alone and _lacks_slots(cpu, whole, domains)
    switches = board or crowded if intra.switches is None else intra.switches
    straight, several = "each GPU straight under a CPU, no PCIe switch", whole > 1
    shared = f"two GPUs behind each PCIe switch, as {cpu} CPUs have too few lanes"
    notes = (
        (not intra.cpu, f"CPUs of the kind {cpu}, usual with this GPU"),
        (
            intra.domains is None and not intra.own_domains,
            f"{domains} NUMA domain{'s' if domains > 1 else ''}",
        ),
        (alone and several, shared if crowded else straight),
        (part.amd, _RCCL),
        (
            p2p is None and part.geforce and several,
            "the driver keeps GeForce GPUs from copying over PCIe",
        ),
    )
    nvlink = _generation(part, intra)
    return HostParts(
        gpu=named.name,
        part=part,
        board=Board(
            whole, layout, nvlink, lanes, stated_rate(nvlink, intra.lane_Bps or part.lane_Bps)
        ),
        cpu=cpu,
        domains=domains,
        pcie=min(intra.pcie or part.pcie, part.pcie),
        switches=switches,
        p2p=not part.geforce if p2p is None else p2p,
        network=network,
        crowded=crowded,
    ), tuple(f"assumption: {note}" for applies, note in notes if applies)


_RCCL = (
    "RCCL is taken for the NCCL that it is made from, with rings over all xGMI links, and with"
    " RCCL's own rates and latencies of these, estimates and sizes by which it chooses"
)


def _lacks_slots(cpu: str, gpus: int, domains: int) -> bool:
    """Whether a CPU has fewer lanes than its GPUs, with sixteen each."""
    slots = hardware_parts().cpus[cpu].slots
    return slots is not None and gpus > slots * domains


def _generation(part: GpuConnector, intra: IntraText) -> str | None:
    """Name of the NVLink: the GPU's own, unless another generation is named and known."""
    stated = f"nvlink{intra.generation}"
    if intra.generation is None or stated not in hardware_parts().links:
        return part.nvlink
    return part.nvlink if part.nvlink and part.nvlink.startswith(stated) else stated


def stated_rate(nvlink: str | None, lane_Bps: float | None) -> float | None:
    """Rate of a link where it is not that of its generation, one direction or both together."""
    if lane_Bps is None or nvlink is None:
        return None
    stock_Bps = hardware_parts().links[nvlink].bandwidth
    return None if lane_Bps in {stock_Bps, 2 * stock_Bps} else lane_Bps


def _capacity_faults(
    part: GpuConnector, gpus: int, layout: Layout, intra: IntraText
) -> list[Fault]:
    name, each = part.spelled.upper(), intra.shared_lanes or 1
    lanes = intra.lanes or part.lanes or intra.shared_lanes or 0
    return failed(
        (
            layout != "pcie" and part.nvlink is None and not (intra.generation and lanes),
            "intra",
            f"NVLink between {name}",
            f"PCIe: {name} has no NVLink",
        ),
        (layout == "cube" and gpus > 8, "gpus", f"{gpus} in a hybrid cube mesh", "2 to 8"),
        (
            layout == "mesh" and (gpus - 1) * each > max(1, lanes),
            "gpus",
            f"{gpus}, each two joined by {each} NVLink{'s' * (each > 1)}",
            f"at most {max(1, lanes) // each + 1} of {name}",
        ),
    )


def usual_domains(part: GpuConnector, gpus: int, cpu: str) -> int:
    """NUMA domains of a host, as is usual; two where one CPU lacks lanes for the cards."""
    return first_applying(
        (not part.on_board and part.c2c is None and _lacks_slots(cpu, gpus, 1), 2),
        (gpus <= 2 or (gpus <= 4 and not part.on_board), 1),
        (cpu == "epyc" and part.on_board and gpus == 8, 4),
        (True, 2),
    )
