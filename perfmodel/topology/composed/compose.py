"""A composed host as a node template: what it extends or is made of, then what differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from perfmodel.errors import Fault, changed_faults, raise_faults, refuse_if
from perfmodel.files import attempt, collect_faults
from perfmodel.memo import applying
from perfmodel.scenario.sections.cluster import NodeSection
from perfmodel.topology.composed.gpu_changes import (
    change_count,
    change_gpu,
    change_nvlink,
    change_power,
    nvlink_words,
    read_gpus,
)
from perfmodel.topology.composed.nic_changes import STATED, StatedNics, change_nics, read_nics
from perfmodel.topology.composed.tree_changes import (
    PartedHost,
    change_slots,
    change_tree,
    limit_slots,
    used_only,
    with_memory,
)
from perfmodel.topology.from_text.describe import Described, describe
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.network_text import read_slot
from perfmodel.topology.templates.spec import HostMemorySpec, NodeSpec, NvmeSpec


def compose(section: NodeSection, base: NodeSpec | None) -> NodeSpec:
    """Put a host together.

    Parameters
    ----------
    section : NodeSection
        The fields, as a scenario or a file states them.
    base : NodeSpec, optional
        What it extends; None: a host of its own, put together as is usual with its GPUs.

    Raises
    ------
    InputError
        Every field that cannot be read; then the first number that the host cannot have.
    """
    faults: list[Fault] = []
    field, stated = ("nic", section.nic) if section.nics is None else ("nics", section.nics)
    gpus = attempt(faults, lambda: read_gpus(section.gpus, section.gpu, base.gpu if base else None))
    nics = attempt(faults, lambda: None if stated is None else read_nics(stated, field))
    slot = attempt(
        faults, lambda: None if section.pcie is None else read_slot(section.pcie, "pcie")
    )
    raise_faults(faults)
    count, named = gpus or (None, None)
    if base is not None:
        start = PartedHost(base, read_gpu(base.gpu).part, base.assumed)
    else:
        assert named is not None
        start = _described(section, count or 1, named, nics)
    return _finished(start, _changed(start, section, named, count, slot, (nics, field)), section)


def _changed(
    host: PartedHost,
    section: NodeSection,
    named: NamedGpu | None,
    count: int | None,
    slot: tuple[int, int] | None,
    nics: tuple[StatedNics | None, str],
) -> PartedHost:
    """Apply each stated field to a host; faults of all of them at once."""
    faults: list[Fault] = []
    stated_links = section.nvlink is not None or section.nvswitch is not None
    tree = {
        "switches": section.pcie_switches,
        "domains": section.numa_domains,
        "sockets": section.sockets,
        "cpu": section.cpu,
    }

    def apply(change: Callable[..., PartedHost], *values: Any, **more: Any) -> None:
        nonlocal host
        with collect_faults(faults):
            host = change(host, *values, **more)

    if named is not None:
        apply(change_gpu, named, relink=not stated_links)
        host = host if slot else limit_slots(host)
    if count is not None:
        apply(change_count, count)
    if any(value is not None for value in tree.values()):
        apply(change_tree, **tree)
    if slot is not None:
        apply(change_slots, slot, section.cpu)
    if stated_links:
        apply(change_nvlink, section.nvlink, switch=section.nvswitch)
    if section.power_limit is not None:
        apply(change_power, section.power_limit)
    host = _with_storage(host, section)
    if nics[0] is not None:
        apply(change_nics, nics[0], section.sockets, nics[1])
    apply(_change_access, section)
    raise_faults(faults)
    return host


def _with_storage(host: PartedHost, section: NodeSection) -> PartedHost:
    """Give the host the memory and the drives that the scenario states."""
    stored = {
        "host_memory": section.host_memory
        and HostMemorySpec.model_construct(capacity=section.host_memory, source=STATED),
        "nvme": section.nvme
        and NvmeSpec.model_construct(**section.nvme.model_dump(), source=STATED),
    }
    return host.with_node(**{name: spec for name, spec in stored.items() if spec is not None})


def _change_access(host: PartedHost, section: NodeSection) -> PartedHost:
    """Let GPUs and NICs reach each other, or not; copies then go through memory, which is added."""
    if section.p2p is not None and section.p2p != host.node.gpu_p2p:
        host = host.with_node(gpu_p2p=section.p2p, staging=None)
    if section.gpudirect is not None:
        ports = {host.node.links[spec.port].network_kind for spec in host.node.nodes if spec.port}
        refuse_if(not ports, "gpudirect", "no NIC", "nothing, or a NIC beside it")
        refuse_if(
            section.gpudirect and "tcp" in ports,
            "gpudirect",
            "on",
            "off with NICs of kind tcp: sockets copy from host memory",
        )
        host = host.with_node(gpudirect_rdma=section.gpudirect)
    node = host.node
    staged = not node.gpu_p2p or (host.names("nic") and not node.gpudirect_rdma)
    return with_memory(host) if staged else host


def _finished(start: PartedHost, host: PartedHost, section: NodeSection) -> NodeSpec:
    """Name a host after what it is; a host that no field changed keeps its name."""
    node = host.node
    if node == start.node and section.extends is not None:
        return node if section.name is None else node.model_copy(update={"name": section.name})
    stated = section.model_dump(exclude_unset=True)
    own = ("name", "extends", "perfmodel", "kind", "description")
    fields = "; ".join(f"{key} {_in_words(key, stated[key])}" for key in stated if key not in own)
    extended = section.extends is not None
    composed = str(section.gpus).replace(" ", "") + "-composed"
    name = section.name or (f"{start.node.name}-changed" if extended else composed)
    description = getattr(section, "description", "") or (
        f"{start.node.description}; with {fields}" if extended else f"Composed: {fields}"
    )
    return used_only(node).model_copy(
        update={
            "name": name,
            "description": description,
            "assumed": tuple(dict.fromkeys(host.notes)),
        }
    )


def _in_words(key: str, value: Any) -> str:
    if key == "power_limit":
        return f"{value:g} W"
    if key == "host_memory":
        return f"{value * 1e-9:g} GB"
    if key == "nvme":
        return f"{value['read'] * 1e-9:g} GB/s read, {value['write'] * 1e-9:g} GB/s written"
    if isinstance(value, dict):
        stated = {key: each for key, each in value.items() if each is not None}
        if "rate" in stated:
            stated["rate"] = f"{stated['rate'] * 8e-9:g} Gbit/s"
        return " ".join(str(each) for each in stated.values())
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------- a host of its own


def _described(
    section: NodeSection, count: int, named: NamedGpu, nics: StatedNics | None
) -> PartedHost:
    """The host that is usual with these GPUs, or the template that it is."""
    fields = {"gpu": "gpus", "intra": "nvlink", "network": "nics", "nic_Gbps": "nics.rate"}
    with changed_faults(lambda f: Fault(fields.get(f.field, f.field), f.found, f.allowed)):
        described = _describe(named, count, _intra_words(section), nics)
    settled = re.compile("|".join(["$^", *_settled_notes(section, nics)]))
    notes = [
        note
        for note in described.assumptions
        if note.startswith("assumption") and not settled.search(note)
    ]
    notes += applying(
        (
            described.template is None,
            "assumption: latencies and efficiencies of links as usual for their kind",
        )
    )
    return PartedHost(described.node, read_gpu(described.node.gpu).part, tuple(notes))


def _settled_notes(section: NodeSection, nics: StatedNics | None) -> Iterator[str]:
    """Patterns of notes on what a field states, so that nothing is assumed of it."""
    rows = (
        (section.cpu, "CPUs of the kind"),
        (section.sockets, "NUMA domain"),
        (section.numa_domains, "NUMA domain"),
        (section.pcie_switches, "PCIe switch"),
        (section.nvlink, "joined by"),
        (section.nvswitch, "joined by"),
        ((nics and nics.places_them) or None, "NICs? per host"),
        (nics and nics.rate_Bps, "NICs of"),
    )
    return (pattern for stated, pattern in rows if stated is not None)


def _describe(named: NamedGpu, count: int, intra: str, nics: StatedNics | None) -> Described:
    """A template for all that is stated, or for the host alone, or a host of usual parts."""
    if nics is None:
        return describe(named.name, gpus=count, intra=intra)
    rate_Gbps = None if nics.rate_Bps is None else nics.rate_Bps * 8e-9
    whole = describe(
        named.name,
        gpus=count,
        intra=intra,
        network=nics.kind or "tcp",
        nics=nics.count,
        nic_Gbps=rate_Gbps,
    )
    if whole.template is not None:
        return whole
    bare = describe(named.name, gpus=count, intra=intra)
    return bare if bare.template is not None else whole


def _intra_words(section: NodeSection) -> str:
    """What joins the GPUs, in the words that descriptions have."""
    texts = (
        "" if section.nvlink is None else nvlink_words(section.nvlink),
        "NVSwitch" if section.nvswitch else "",
        "" if section.pcie is None else f"PCIe {section.pcie.lower().replace('pcie', '')}",
        {None: "", True: "P2P enabled", False: "no P2P"}[section.p2p],
    )
    return "; ".join(text for text in texts if text) or "none"
