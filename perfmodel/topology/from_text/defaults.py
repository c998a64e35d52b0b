"""What a host usually is where words leave it open: layout, CPUs, switches."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.gpu_text import Joined, NamedGpu
from perfmodel.topology.from_text.layouts import Board, HostParts, Network
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts


def usual_layout(named: NamedGpu, gpus: int, joined: Joined) -> tuple[Layout, tuple[str, ...]]:
    """How GPUs are joined, and what was assumed."""
    part = named.part
    if joined.layout is not None:
        return joined.layout, ()
    if not part.on_board:
        linked = joined.nvlink and part.lanes
        return ("bridge", ()) if linked else ("pcie", ())
    if gpus == 1 and not joined.nvlink:
        return "pcie", ()
    if part.form == "superchip":
        usual: Layout = "mesh" if part.spelled == "gh200" and gpus <= 4 else "nvswitch"
    elif part.form == "sxm3":
        usual = "nvswitch"
    elif gpus <= 4:
        usual = "mesh"
    else:
        usual = "cube" if part.form == "sxm2" and gpus <= 8 else "nvswitch"
    told = {"nvswitch": "NVSwitch", "cube": "a hybrid cube mesh", "mesh": "NVLink, all to all"}
    return usual, (f"assumption: {gpus} {part.spelled.upper()} joined by {told[usual]}",)


def _whole(part: GpuConnector, gpus: int, layout: Layout) -> int:
    """GPUs of the whole machine, of which some may be used."""
    if layout == "nvswitch":
        return max(gpus, 16 if part.form == "sxm3" else 8)
    if layout == "cube":
        return 8
    if layout == "mesh":
        return max(gpus, 4)
    return gpus + gpus % 2 if layout == "bridge" else gpus


def usual_host(
    named: NamedGpu, gpus: int, layout: Layout, joined: Joined, network: Network | None
) -> tuple[HostParts, tuple[str, ...]]:
    """Put the parts of a host together."""
    part = named.part
    whole = _whole(part, gpus, layout)
    notes = list(_capacity_faults(part, gpus, layout, joined))
    if notes:
        raise InputError(notes)
    cpu = joined.cpu or part.cpu
    said = [] if joined.cpu else [f"assumption: CPUs of the kind {cpu}, usual with this GPU"]
    board = part.on_board and whole > 1 and part.c2c is None
    switches = board if joined.switches is None else joined.switches
    if joined.switches is None and not board and whole > 1 and part.c2c is None:
        said.append("assumption: each GPU straight under a CPU, no PCIe switch")
    domains = whole if joined.own_domains else joined.domains or usual_domains(part, whole, cpu)
    if joined.domains is None and not joined.own_domains:
        said.append(f"assumption: {domains} NUMA domain{'s' if domains > 1 else ''}")
    p2p = joined.p2p if joined.p2p is not None else not part.geforce
    if joined.p2p is None and part.geforce and whole > 1:
        said.append("assumption: the driver keeps GeForce GPUs from copying over PCIe")
    nvlink, lanes = _generation(part, joined), joined.lanes or part.lanes
    return HostParts(
        gpu=named.name,
        part=part,
        board=Board(whole, layout, nvlink, lanes, _typed(nvlink, joined.lane_Bps)),
        cpu=cpu,
        domains=domains,
        pcie=min(joined.pcie or part.pcie, part.pcie),
        switches=switches,
        p2p=p2p,
        network=network,
    ), tuple(said)


def _generation(part: GpuConnector, joined: Joined) -> str | None:
    """Name of the NVLink: the GPU's own, unless another generation is named and known."""
    said = f"nvlink{joined.generation}"
    if joined.generation is None or said not in hardware_parts().links:
        return part.nvlink
    return part.nvlink if part.nvlink and part.nvlink.startswith(said) else said


def _typed(nvlink: str | None, lane_Bps: float | None) -> float | None:
    """Rate of a link where it is not that of its generation, one way or both ways together."""
    if lane_Bps is None or nvlink is None:
        return None
    stock_Bps = hardware_parts().links[nvlink].bandwidth
    return None if lane_Bps in {stock_Bps, 2 * stock_Bps} else lane_Bps


def _capacity_faults(
    part: GpuConnector, gpus: int, layout: Layout, joined: Joined
) -> Iterator[Fault]:
    name = part.spelled.upper()
    unlinked = part.nvlink is None and not (joined.generation and joined.lanes)
    if layout != "pcie" and unlinked:
        yield Fault("intra", f"NVLink between {name}", f"PCIe: {name} has no NVLink")
    if layout == "cube" and gpus > 8:
        yield Fault("gpus", f"{gpus} in a hybrid cube mesh", "2 to 8")
    if layout == "mesh" and gpus - 1 > max(1, joined.lanes or part.lanes):
        yield Fault("gpus", f"{gpus}, all joined to all", f"at most {part.lanes + 1} of {name}")


def usual_domains(part: GpuConnector, gpus: int, cpu: str) -> int:
    """NUMA domains of a host, as is usual."""
    if gpus <= 2 or (gpus <= 4 and not part.on_board):
        return 1
    return 4 if cpu == "epyc" and part.on_board and gpus == 8 else 2


def reads_gpus(part: GpuConnector, network: str) -> bool:
    """Whether NICs read GPU memory, if the path allows it.

    Source of the rules: sockets copy (NCCL's net_socket); NVIDIA's GPUDirect RDMA documentation
    excludes GeForce; AWS offers GPUDirect over EFA from P4d on.
    """
    if part.geforce or network == "tcp":
        return False
    return part.sm >= 80 and part.on_board if network == "efa" else True
