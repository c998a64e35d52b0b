"""From a recorded sweep's words to the machine, the settings and the collective to predict.

A host as a template has it, or put together from words, with what the words correct in it.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from perfmodel.collectives.catalog import ALGORITHMS
from perfmodel.errors import PerfmodelError
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.from_text import log_text as words
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.from_text.match_template import Wanted, fitting
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.spec import NodeSpec, expand_pattern
from perfmodel.validate.sweeps.read import Sweep
from perfmodel.validate.sweeps.settings_text import assignments, settings_of

FRAME_BYTES = {"roce": 82, "infiniband": 26}
"""Bytes around the payload of one packet. RoCE v2: preamble 8, Ethernet 14 + 4, gap 12 (IEEE
802.3), IP 20, UDP 8, base transport header 12, ICRC 4; InfiniBand: LRH 8, BTH 12, ICRC 4, VCRC 2
(InfiniBand Architecture Specification, volume 1)."""


@dataclass(frozen=True, slots=True)
class Host:
    """A node to build, and what was assumed of it."""

    node: NodeSpec
    assumptions: tuple[str, ...]


def host_for(wanted: Wanted) -> Host:
    """Take the template that fits, or describe a node of the same parts.

    Raises
    ------
    InputError
        Nothing known has these parts.
    """
    facts = fitting(wanted)
    if facts is not None:
        return _corrected(Host(load_node(facts.name), (f"machine: template {facts.name}",)), wanted)
    return _corrected(_described(wanted), wanted)


def _described(wanted: Wanted) -> Host:
    """Put a node together from words."""
    found = describe(
        wanted.gpu_text,
        gpus=wanted.gpus,
        intra=wanted.intra_text,
        network=_network(wanted),
        nics=None if wanted.nics is None else round(wanted.nics),
        nic_Gbps=wanted.nic_Gbps,
    )
    return Host(found.node, found.assumptions)


def _network(wanted: Wanted) -> str | None:
    """The kind of network, and whether the words put its NIC under another CPU than the GPUs."""
    words = wanted.network_text.lower()
    across = re.search(r"(?:across|other|remote|between) (?:the )?(?:cpu )?sockets?", words)
    if wanted.network and across:
        return f"{wanted.network} across sockets"
    return wanted.network or wanted.network_text or None


# ---------------------------------------------------------------- what the words correct


def _corrected(host: Host, wanted: Wanted) -> Host:
    """Take GPUDirect away, or account for a small MTU, where the words say so."""
    node, notes = host.node, list(host.assumptions)
    if wanted.gpudirect is not None and wanted.gpudirect != node.gpudirect_rdma:
        node = node.model_copy(update={"gpudirect_rdma": wanted.gpudirect})
        notes.append(f"GPUDirect RDMA is {'on' if wanted.gpudirect else 'off'}, as stated")
    if wanted.peer_access is not None and wanted.peer_access != node.gpu_p2p:
        node = node.model_copy(update={"gpu_p2p": wanted.peer_access})
        notes.append(f"P2P over PCIe is {'on' if wanted.peer_access else 'off'}, as stated")
    if wanted.mtu_bytes is not None and wanted.network in {"roce", "infiniband"}:
        share = wanted.mtu_bytes / (wanted.mtu_bytes + FRAME_BYTES[wanted.network])
        node = _with_efficiency(node, share)
        notes.append(f"MTU {wanted.mtu_bytes}: {100 * share:.0f} % of the wire is payload")
    return Host(node, tuple(notes))


def _with_efficiency(node: NodeSpec, share: float) -> NodeSpec:
    """Give the ports of NICs another share of payload."""
    ports = {device.port for device in node.nodes if device.kind == "nic"}
    links = {
        name: link.model_copy(update={"efficiency": min(share, link.efficiency)})
        if name in ports
        else link
        for name, link in node.links.items()
    }
    return node.model_copy(update={"links": links})


MOST_RANKS = 2**17
"""Clusters of 100,000 GPUs are what perfmodel is made for; a typing error must not fill memory."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What to predict.

    Parameters
    ----------
    topology : Topology
        Its ranks are those of the run.
    settings : LibrarySettings
    op : str
    assumptions : tuple of str
        What the words left open and how it was filled; what could not be carried over.
    unstated : tuple of str
        Hardware that the table does not state and that the time depends on.
    hardware : str
        Runs with the same text here are of the same hardware, whatever the number of nodes.
    node : NodeSpec
        Template of a host, with nominal rates.
    """

    topology: Topology
    settings: LibrarySettings
    op: str
    assumptions: tuple[str, ...]
    unstated: tuple[str, ...]
    hardware: str
    node: NodeSpec


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Why a sweep cannot be predicted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Hosts as the network sees them, and the GPUs of each that take part."""

    hosts: int
    gpus: int
    assumptions: tuple[str, ...] = ()


def match(sweep: Sweep, folder: Path | str = ".") -> Matched | Unmatched:
    """Find the machine that a sweep was recorded on.

    Parameters
    ----------
    sweep : Sweep
    folder : path
        Where a YAML file named in the column ``topology`` lies.
    """
    if sweep.collective not in ALGORITHMS:
        return Unmatched(f"the collective {sweep.collective!r} is not modelled")
    if sweep.nranks < 2:
        return Unmatched("a single rank communicates with nobody")
    if sweep.nranks > MOST_RANKS:
        return Unmatched(f"{sweep.nranks:,} ranks; at most {MOST_RANKS:,} are predicted")
    try:
        return _matched(sweep, Path(folder))
    except PerfmodelError as error:
        return Unmatched(short(error))


def short(error: Exception, most: int = 220) -> str:
    """Return an error as one line of bearable length."""
    line = str(error).replace("\n", "; ")
    return line if len(line) <= most else line[: most - 4].rsplit(" ", 1)[0] + " ..."


def _matched(sweep: Sweep, folder: Path) -> Matched | Unmatched:
    layout = _layout(sweep)
    gpu = words.gpu_words(sweep.gpu)
    if sweep.topology:
        host = Host(_named(sweep.topology, folder), ())
    elif gpu is None and words.says_nothing(sweep.gpu):
        return Unmatched("the GPU is not stated")
    else:
        host = host_for(_wanted(sweep, gpu or words.UNKNOWN_GPU, layout))
    topology = built(host.node, layout, _text(sweep))
    nvlink = any(host.node.links[edge.link].kind == "nvlink" for edge in host.node.edges)
    settings, remarks = settings_of(
        sweep.nccl_version, sweep.proc_model, _text(sweep), sweep.gpus_per_node, nvlink=nvlink
    )
    unstated = () if sweep.topology else _unstated(sweep, gpu, layout)
    open_ = tuple(f"not stated: {what}" for what in unstated)
    other = words.other_gpus(sweep.gpu)
    if other:
        open_ += (f"all GPUs taken as the first that is named, none as {other}",)
    notes = (*open_, *layout.assumptions, *host.assumptions, *remarks)
    hardware = _hardware(host.node, layout, topology)
    return Matched(topology, settings, sweep.collective, notes, unstated, hardware, host.node)


def _named(name: str, folder: Path) -> NodeSpec:
    beside = folder / name
    return load_node(str(beside) if beside.is_file() else name)


def _text(sweep: Sweep) -> str:
    return f"{sweep.intra_node}; {sweep.inter_node}; {sweep.env_and_algo}; {sweep.proc_model}"


# ---------------------------------------------------------------- hosts


def _layout(sweep: Sweep) -> Layout:
    """Trays of one NVLink domain are one host to NCCL's search, as far as bandwidth goes."""
    domain = words.domain_words(f"{sweep.intra_node}; {sweep.inter_node}; {sweep.gpu}")
    if domain is None or sweep.nodes == 1:
        return Layout(sweep.nodes, sweep.gpus_per_node)
    racks = words.racks_words(sweep.inter_node) or -(-sweep.nranks // domain)
    if sweep.nranks % racks or sweep.nranks // racks > domain:
        racks = -(-sweep.nranks // domain)
        while sweep.nranks % racks:
            racks += 1
    each = sweep.nranks // racks
    plural = "domain" if racks == 1 else "domains"
    return Layout(racks, each, (f"{racks} NVLink {plural} of {domain} GPUs, {each} used in each",))


def _wanted(sweep: Sweep, gpu: words.GpuWords, layout: Layout) -> Wanted:
    """Everything about one host that the words tell."""
    network, text = None, ""
    nics, rate = sweep.nic_count, sweep.nic_Gbps
    if layout.hosts > 1:
        network, _ = words.network_kind(sweep.inter_node, assignments(_text(sweep)))
        text = "" if words.says_nothing(sweep.inter_node) else sweep.inter_node
        in_words = words.nic_words(sweep.inter_node)
        nics = in_words[0] if nics is None else nics
        rate = in_words[1] if rate is None else rate
        network = network or (None if text else "infiniband")
    if layout.hosts != sweep.nodes and nics is not None:  # trays of a domain bring their NICs
        nics = None
    used = words.used_gpus(_text(sweep))
    stated = re.search(r"(\d+)[- ]gpu nodes?", sweep.gpu.lower())
    gpus = max(layout.gpus, max(used, default=0) + 1, int(stated[1]) if stated else 0)
    return Wanted(
        gpu=gpu,
        gpus=gpus,
        intra=words.intra_kind(sweep.intra_node, gpu, gpus),
        peer_access=words.peer_access(_text(sweep)),
        network=network,
        nics=nics,
        nic_Gbps=rate,
        words=f"{sweep.gpu}; {_text(sweep)}; {sweep.note}",
        gpu_text=sweep.gpu,
        intra_text=sweep.intra_node,
        network_text=text,
        gpudirect=words.gpudirect(_text(sweep)),
        mtu_bytes=words.mtu_words(_text(sweep)),
    )


def built(node: NodeSpec, layout: Layout, text: str) -> Topology:
    """Build the cluster; NICs enough for every GPU stand on rails of their own."""
    count = {kind: sum(len(expand_pattern(d.id)) for d in node.nodes if d.kind == kind)
             for kind in ("gpu", "nic")}  # fmt: skip
    fabric = "rail-optimised" if count["nic"] >= count["gpu"] > 1 else "one-switch"
    used = words.used_gpus(text)
    chosen = len(used) == layout.gpus and max(used, default=0) < count["gpu"]
    topology = build_topology(
        node,
        hosts=layout.hosts,
        fabric=fabric if layout.hosts > 1 else None,
        gpus_per_host=None if chosen else layout.gpus,
    )
    if not chosen:
        return topology
    ranks = tuple(
        topology.ranks[host * count["gpu"] + gpu] for host in range(layout.hosts) for gpu in used
    )
    return dataclasses.replace(topology, ranks=ranks)


# ---------------------------------------------------------------- what is known


def _unstated(sweep: Sweep, gpu: words.GpuWords | None, layout: Layout) -> tuple[str, ...]:
    found = []
    if gpu is None or "not stated" in sweep.gpu.lower():
        found.append("the GPU")
    if gpu and layout.gpus > 1 and not words.intra_kind(sweep.intra_node, gpu, layout.gpus):
        found.append("links between the GPUs of a host")
    if layout.hosts > 1:
        env = assignments(_text(sweep))
        if words.network_kind(sweep.inter_node, env)[0] is None:
            found.append("the kind of network")
        in_words = words.nic_words(sweep.inter_node)
        if sweep.nic_count is None and in_words[0] is None:
            found.append("NICs per host")
        if sweep.nic_Gbps is None and in_words[1] is None:
            found.append("the rate of a NIC")
    return tuple(found)


def _hardware(node: NodeSpec, layout: Layout, topology: Topology) -> str:
    """Name what runs of the same hardware share: GPU, links of a host, network; not the scale."""
    gpu = words.gpu_words(node.gpu)
    family = node.gpu if gpu is None else " ".join(filter(None, (gpu.family, gpu.form)))
    shape = sorted({(e.link, e.lanes) for e in node.edges if node.links[e.link].kind == "nvlink"})
    kinds = ", ".join(f"{lanes} x {link}" for link, lanes in shape) or (
        "PCIe" if layout.gpus > 1 else "one GPU per host"
    )
    if layout.hosts == 1:
        return f"{family}, {kinds}, one host"
    ports = [
        node.links[d.port]
        for d in node.nodes
        if d.kind == "nic" and d.port
        for _ in expand_pattern(d.id)
    ]
    rate = sum(port.bandwidth for port in ports) * 8e-9
    return f"{family}, {kinds}, {topology.network} {rate:.0f} Gbit/s per host"
