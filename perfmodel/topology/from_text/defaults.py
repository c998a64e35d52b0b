"""What a host usually is where its text leaves it open: layout, CPUs, switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.gpu_text import NamedGpu
from perfmodel.topology.from_text.intra_text import IntraText
from perfmodel.topology.from_text.layouts import Board, HostParts
from perfmodel.topology.from_text.network_text import NetworkText
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts


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
    if layout == "nvswitch":
        return max(gpus, 16 if part.form == "sxm3" else 8)
    if layout == "cube":
        return 8
    if layout == "mesh":
        return max(gpus, 8 if part.amd else 4)
    return gpus + gpus % 2 if layout == "bridge" else gpus


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
    faults = list(_capacity_faults(part, gpus, layout, intra))
    if faults:
        raise InputError(faults)
    cpu = intra.cpu or part.cpu
    notes = [] if intra.cpu else [f"assumption: CPUs of the kind {cpu}, usual with this GPU"]
    board = part.on_board and whole > 1 and part.c2c is None
    domains = whole if intra.own_domains else intra.domains or usual_domains(part, whole, cpu)
    if intra.domains is None and not intra.own_domains:
        notes.append(f"assumption: {domains} NUMA domain{'s' if domains > 1 else ''}")
    crowded = not board and part.c2c is None and _lacks_slots(cpu, whole, domains)
    switches = board or crowded if intra.switches is None else intra.switches
    if intra.switches is None and not board and whole > 1 and part.c2c is None:
        notes.append(
            f"assumption: two GPUs behind each PCIe switch, as {cpu} CPUs have too few lanes"
            if crowded
            else "assumption: each GPU straight under a CPU, no PCIe switch"
        )
    if part.amd:
        notes.append(_RCCL)
    if p2p is None and part.geforce and whole > 1:
        notes.append("assumption: the driver keeps GeForce GPUs from copying over PCIe")
    nvlink, lanes = _generation(part, intra), intra.lanes or part.lanes
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
    ), tuple(notes)


_RCCL = (
    "assumption: RCCL is taken for the NCCL that it is made from, with rings over all xGMI links "
    "and RCCL's own rates and latency of these; all-reduces of MI300X took 91 us of 105 predicted "
    "(8 MiB on 8 GPUs, crickett-hpe/hpc-ai-envs pull request 30), and 11.2 ms of 13.8 (2 GiB on "
    "16, ROCm/rccl pull request 2078)"
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
) -> Iterator[Fault]:
    name = part.spelled.upper()
    unlinked = part.nvlink is None and not (intra.generation and intra.lanes)
    if layout != "pcie" and unlinked:
        yield Fault("intra", f"NVLink between {name}", f"PCIe: {name} has no NVLink")
    if layout == "cube" and gpus > 8:
        yield Fault("gpus", f"{gpus} in a hybrid cube mesh", "2 to 8")
    if layout == "mesh" and gpus - 1 > max(1, intra.lanes or part.lanes):
        yield Fault("gpus", f"{gpus}, all joined to all", f"at most {part.lanes + 1} of {name}")


def usual_domains(part: GpuConnector, gpus: int, cpu: str) -> int:
    """NUMA domains of a host, as is usual; two where one CPU lacks lanes for the cards."""
    if not part.on_board and part.c2c is None and _lacks_slots(cpu, gpus, 1):
        return 2
    if gpus <= 2 or (gpus <= 4 and not part.on_board):
        return 1
    return 4 if cpu == "epyc" and part.on_board and gpus == 8 else 2
