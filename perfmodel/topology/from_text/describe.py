"""A host from words: "A100-SXM4-80GB", 8 of them, "NVLink3 NVSwitch", "InfiniBand HDR".

Machines that have a template get it; others are put together from ``parts.yaml``. Whatever the
words leave open is filled with what is usual, and said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.errors import Fault, InputError
from perfmodel.files import validate_document
from perfmodel.topology.from_text.defaults import reads_gpus, usual_host, usual_layout
from perfmodel.topology.from_text.gpu_text import Joined, NamedGpu, gpu_in, joined_in
from perfmodel.topology.from_text.layouts import Network, drafted
from perfmodel.topology.from_text.match_template import machine_that_fits
from perfmodel.topology.from_text.network_text import Networked, network_in
from perfmodel.topology.from_text.parts import GpuConnector, MachinePart, hardware_parts, usual_nics
from perfmodel.topology.from_text.template_builder import port
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.gpus import gpu_names, load_gpu
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec

_USUAL_RATE = "assumption: the usual rate for this GPU and kind of network"
RACK_GPUS = 72
"""GPUs that NVLink joins in one rack (NVIDIA GB200 and GB300 NVL72)."""


@dataclass(frozen=True, slots=True)
class Described:
    """A host that was put together from words.

    Parameters
    ----------
    node : NodeSpec
        May hold more GPUs than were asked for, where the machine has them: use the first.
    assumptions : tuple of str
        What the words left open and how it was filled.
    template : str or None
        Name of the shipped template it is; None where it was put together.
    trays : int
        How many of the described hosts the node stands for: 18 where NVLink joins a rack.
    """

    node: NodeSpec
    assumptions: tuple[str, ...]
    template: str | None = None
    trays: int = 1

    def spread(self, hosts: int, gpus: int) -> tuple[int, int]:
        """Return how many nodes, and GPUs of each, stand for so many hosts of so many GPUs."""
        nodes = -(-hosts // self.trays)
        return nodes, -(-hosts * gpus // nodes)


def describe(
    gpu: str,
    *,
    gpus: int,
    intra: str,
    network: str | None = None,
    nics: int | None = None,
    nic_Gbps: float | None = None,
) -> Described:
    """Put a host together from words.

    Parameters
    ----------
    gpu : str
        In any usual spelling: "A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "RTX 4090", "H100 PCIe";
        or a name of the table of GPUs, a user's own included.
    gpus : int
        GPUs of one host.
    intra : str
        What joins them: "NVLink3 NVSwitch", "NVLink2 hybrid cube mesh", "NVLink bridge",
        "PCIe4 x16, two sockets", "none". Numbers count: "NVSwitch, 36 x 100 GB/s".
    network : str, optional
        What joins hosts: "InfiniBand HDR", "RoCE v2 25 GbE", "AWS EFA (p4d.24xlarge)"; None: none.
    nics : int, optional
        NICs of one host; None: as the words say, or as usual.
    nic_Gbps : float, optional
        Rate of each; gigabits per second; None: as the words say, or as usual.

    Raises
    ------
    InputError
        What is not known, and what is; every fault.
    """
    faults: list[Fault] = []
    if gpus < 1:
        faults.append(Fault("gpus", str(gpus), "one or more"))
    if nics is not None and nics < 1:
        faults.append(Fault("nics", str(nics), "one or more"))
    if nic_Gbps is not None and not 0 < nic_Gbps < 1e5:
        faults.append(Fault("nic_Gbps", str(nic_Gbps), "more than zero, in gigabits per second"))
    named, net = None, None
    try:
        named = _gpu(gpu, intra)
    except InputError as error:
        faults += error.faults
    try:
        net = network_in(network)
    except InputError as error:
        faults += error.faults
    if faults or named is None or net is None:
        raise InputError(faults)
    words = " ".join((gpu, intra, network or "")).lower()
    given = replace(
        net,
        nics=nics or net.nics,
        nic_Bps=nic_Gbps * 1e9 / 8 if nic_Gbps else net.nic_Bps,
        rate_source="as described" if nic_Gbps else net.rate_source,
    )
    return _settled(named, gpus, joined_in(intra), given, words)


def _gpu(gpu: str, intra: str) -> NamedGpu:
    """A GPU that is known, or one of the user's own table, plugged in like its generation."""
    if gpu not in hardware_parts().gpus and gpu in gpu_names():
        generation = load_gpu(gpu).generation
        alike = {name: part for name, part in hardware_parts().gpus.items() if part.form != "pcie"}
        for name, part in alike.items():
            if load_gpu(name).generation == generation:
                return NamedGpu(gpu, part, (f"assumption: {gpu} is plugged in like {name}",))
    return gpu_in(gpu, intra)


def _settled(named: NamedGpu, gpus: int, joined: Joined, net: Networked, words: str) -> Described:
    layout, notes = usual_layout(named, gpus, joined)
    if named.part.form == "superchip" and layout == "nvswitch":
        return _rack(named, net, (*named.assumptions, *notes))
    machine = machine_that_fits(named, gpus, layout, joined, net, words)
    if machine is not None:
        return _from_template(machine, named, gpus, net, (*named.assumptions, *notes))
    network, more = _network(named.part, net)
    host, filled = usual_host(named, gpus, layout, joined, network)
    return Described(drafted(host).node(), (*named.assumptions, *notes, *more, *filled))


# ---------------------------------------------------------------- the network


def _network(part: GpuConnector, net: Networked) -> tuple[Network | None, tuple[str, ...]]:
    """NICs of a host, and what was assumed."""
    if net.kind is None:
        return None, ()
    usual, usual_Bps = usual_nics(net.kind, part.spelled)
    notes = list(net.assumptions)
    if not part.on_board:
        usual = min(usual, 1)
    nics, nic_Bps = net.nics or usual, net.nic_Bps or usual_Bps
    if part.on_board and nics > 8 and nics % 8 == 0:
        by = "aws-ofi-nccl" if net.kind == "efa" else "NCCL_IB_MERGE_NICS"
        notes.append(f"assumption: {nics // 8} devices beside a GPU are one adapter ({by})")
        nics, nic_Bps = 8, nic_Bps * nics // 8
    if net.nics is None:
        notes.append(f"assumption: {nics} NIC{'s' if nics > 1 else ''} per host, as usual")
    if net.nic_Bps is None:
        notes.append(f"assumption: NICs of {nic_Bps * 8e-9:g} Gbit/s, as usual")
    return Network(
        kind=net.kind,
        nics=nics,
        nic_Bps=nic_Bps,
        source=net.rate_source or _USUAL_RATE,
        mtu=net.mtu,
        gpudirect=reads_gpus(part, net.kind) if net.gpudirect is None else net.gpudirect,
        across=net.across,
    ), tuple(notes)


# ---------------------------------------------------------------- machines with a template


def _from_template(
    machine: MachinePart, named: NamedGpu, gpus: int, net: Networked, notes: tuple[str, ...]
) -> Described:
    node = load_node(machine.template)
    said = list(notes)
    if node.gpu != named.name:
        node = node.model_copy(update={"gpu": named.name})
    if net.kind is not None and (net.nics is None or net.nic_Bps is None):
        nic = f"{machine.nics} x {machine.nic * 8e-9:g} Gbit/s"
        said.append(f"assumption: NICs of {machine.template}: {nic}")
    said.append(f"assumption: the rest as in the template {machine.template}")
    if gpus < machine.gpus:
        said.append(f"assumption: the first {gpus} of {machine.gpus} GPUs")
    return Described(node, tuple(said), machine.template)


def _rack(named: NamedGpu, net: Networked, notes: tuple[str, ...]) -> Described:
    """An NVLink rack: one node of 72 GPUs, whose trays are the hosts that were described."""
    node = load_node("gb200-nvl72").model_copy(update={"gpu": named.name})
    said = [*notes, "assumption: a rack of 18 trays of 4 GPUs, all joined by NVLink"]
    if net.kind is not None:
        nic_Bps = net.nic_Bps or usual_nics(net.kind, named.part.spelled)[1]
        if net.nic_Bps is None:
            said.append(f"assumption: NICs of {nic_Bps * 8e-9:g} Gbit/s, one per GPU")
        node = _rewired(node, net.kind, net, nic_Bps)
    return Described(node, tuple(said), "gb200-nvl72", trays=RACK_GPUS // 4)


def _rewired(node: NodeSpec, kind: str, net: Networked, nic_Bps: float) -> NodeSpec:
    """The same node with other ports on its NICs."""
    names = {device.port for device in node.nodes if device.kind == "nic"}
    fresh = validate_document(
        LinkSpec, port(kind, nic_Bps, net.rate_source or _USUAL_RATE, net.mtu)
    )
    links = {name: fresh if name in names else link for name, link in node.links.items()}
    return node.model_copy(
        update={"links": links, "sources": {**hardware_parts().sources, **node.sources}}
    )
