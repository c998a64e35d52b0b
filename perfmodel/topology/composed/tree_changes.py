"""PCIe of a composed host: slots, switches, CPUs and their memory."""

from __future__ import annotations

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files import validate_document
from perfmodel.topology.composed.host_parts import PartedHost, spread_evenly
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.from_text.template_builder import (
    Draft,
    dram,
    number_pattern,
    same_link,
    stock_link,
)
from perfmodel.topology.templates.spec import EdgeSpec, LinkSpec


def change_slots(host: PartedHost, slot: tuple[int, int], cpu: str | None) -> PartedHost:
    """Give the GPUs of a host other slots, and their switches links of that generation.

    Those to CPUs are of the generation of the CPUs where that is older. `slot`: generation and
    lanes. `cpu`: kind of CPU, as stated. Raises `InputError`: a generation that the GPU does not
    have, or a GPU without a slot.
    """
    generation, lanes = slot
    newest = int(host.part.pcie.removeprefix("pcie"))
    if host.part.c2c is not None:
        raise InputError(
            Fault(
                "pcie",
                f"gen{generation}",
                "nothing: its GPUs are joined to their CPUs by NVLink-C2C",
            )
        )
    if generation > newest:
        raise InputError(
            Fault("pcie", f"gen{generation}", f"at most gen{newest}, as {host.node.gpu} has")
        )
    own = [edge for _, edge in _slots_of(host, host.names("gpu"))]
    switches = host.names("pcie_switch")
    uplinks = [edge for _, edge in _slots_of(host, switches, ("cpu", "pcie_switch"))]
    host = _with_slot(host, own, generation, lanes)
    kind = hardware_parts().cpus.get(
        (cpu or "").lower(), hardware_parts().cpus[_kind_of_cpus(host)]
    )
    return _with_slot(host, uplinks, min(generation, int(kind.pcie.removeprefix("pcie"))), 16)


def _slots_of(
    host: PartedHost, names: tuple[str, ...], kinds: tuple[str, ...] = ("pcie_switch", "cpu")
) -> list[tuple[str, EdgeSpec]]:
    links = host.node.links
    return [
        (place, edge)
        for name in names
        for place, edge in host.neighbours(name, kinds)
        if links[edge.link].kind == "pcie"
    ]


def _with_slot(host: PartedHost, edges: list[EdgeSpec], generation: int, lanes: int) -> PartedHost:
    draft = Draft(host.node.gpu, "", "")
    name = draft.add_pcie(generation, lanes)
    spec = validate_document(LinkSpec, draft.links[name])
    changed = [
        edge
        for edge in edges
        if host.node.links[edge.link].bandwidth * edge.lanes != spec.bandwidth
    ]
    return host if not changed else host.relinked(name, spec, changed).with_node(staging=None)


def limit_slots(host: PartedHost) -> PartedHost:
    """Let GPUs that were put into newer slots be as slow as they are."""
    newest = int(host.part.pcie.removeprefix("pcie"))
    most_Bps = hardware_parts().links[host.part.pcie].bandwidth
    own = [edge for _, edge in _slots_of(host, host.names("gpu"))]
    newer = [edge for edge in own if host.node.links[edge.link].bandwidth * edge.lanes > most_Bps]
    if not newer:
        return host
    note = f"assumption: {host.node.gpu} at gen{newest}, the newest PCIe that it has"
    return _with_slot(host, newer, newest, 16).noting(note)


# ---------------------------------------------------------------- switches and CPUs


def change_tree(
    host: PartedHost,
    *,
    switches: int | None,
    domains: int | None,
    sockets: int | None,
    cpu: str | None,
) -> PartedHost:
    """Put GPUs and NICs under other switches and CPUs, evenly; None: as before.

    `domains`: NUMA domains of all sockets. `cpu`: kind of CPU.
    Raises `InputError`: a kind of CPU that is not known, or parts that the GPUs cannot be under.
    """
    kinds, c2c, gpus = hardware_parts().cpus, host.part.c2c, host.names("gpu")
    old_switches, old_domains = host.names("pcie_switch"), host.names("cpu")
    count = min(len(old_switches), len(gpus)) if switches is None else switches
    numa = domains or sockets or len(old_domains)
    gpu_links = {edge.link for gpu in gpus for _, edge in host.neighbours(gpu, _ABOVE)}
    cases = (
        (
            cpu is not None and cpu.lower() not in kinds,
            ("cpu", repr(cpu), allowed_names(kinds, cpu)),
        ),
        (
            c2c is not None and bool(switches),
            (
                "pcie_switches",
                str(switches),
                "0: its GPUs are joined to their CPUs by NVLink-C2C",
            ),
        ),
        (
            count > len(gpus),
            ("pcie_switches", str(count), f"at most {len(gpus)}, one for each GPU"),
        ),
        (
            not gpu_links,
            ("sockets", f"{host.node.name}", "a host whose GPUs are under CPUs"),
        ),
    )
    faults = [Fault(*fault) for refused, fault in cases if refused]
    if faults:
        raise InputError(faults)
    moved = numa != len(old_domains) and (numa != len(gpus) or numa > _MOST_OF_A_HOST)
    if c2c is not None and (moved or cpu not in {None, host.part.cpu}):
        allowed = "nothing: each CPU is on one module with its GPUs, by NVLink-C2C"
        field = "cpu" if cpu else "sockets" if sockets else "numa_domains"
        raise InputError(Fault(field, cpu or str(numa), allowed))
    per_socket = max(1, numa // (sockets or _usual_sockets(host, numa)))
    if count == len(old_switches) and numa == len(old_domains) and cpu is None:
        return host
    kind = cpu.lower() if cpu else _kind_of_cpus(host)
    if cpu is None:
        host = host.noting(f"assumption: CPUs of the kind {kind}, usual with this GPU")
    nic_links = {
        nic: edge.link for nic in host.names("nic") for _, edge in host.neighbours(nic, _ABOVE)
    }
    bare = host.without((*old_switches, *old_domains, *host.names("memory"))).pruned()
    return bare.plus(_tree(host, bare, (count, numa, per_socket), kind, gpu_links, nic_links))


_ABOVE = ("pcie_switch", "cpu")
_MOST_OF_A_HOST = 8
"""GPUs of one host; CPUs of a rack are not all joined."""


def _tree(
    host: PartedHost,
    bare: PartedHost,
    counts: tuple[int, int, int],
    kind: str,
    gpu_links: set[str],
    nic_links: dict[str, str],
) -> Draft:
    switches, domains, per_socket = counts
    draft = Draft(host.node.gpu, "", "")
    draft.links |= {
        name: same_link(host.node.links[name]) for name in (*gpu_links, *nic_links.values())
    }
    cpus = [f"cpu{at}" for at in range(domains)]
    draft.add(number_pattern("cpu", range(domains)), "cpu")
    gpu_link = min(gpu_links)
    places = cpus
    if switches:
        places = [f"pcie{at}" for at in range(switches)]
        draft.add(number_pattern("pcie", range(switches)), "pcie_switch")
        uplink_name = min(host.part.pcie, hardware_parts().cpus[kind].pcie)
        uplink = draft.link(uplink_name, stock_link(uplink_name))
        for place, cpu in zip(places, spread_evenly(switches, cpus), strict=True):
            draft.join(place, cpu, uplink)
    gpus, nics = bare.names("gpu"), bare.names("nic")
    for gpu, place in zip(gpus, spread_evenly(len(gpus), places), strict=True):
        draft.join(gpu, place, gpu_link)
    for nic, place in zip(nics, spread_evenly(len(nics), places), strict=True):
        draft.join(nic, place, nic_links[nic])
    draft.add_host_memory(kind, range(domains), per_socket)
    return draft


def _kind_of_cpus(host: PartedHost) -> str:
    """Kind of CPU whose link between sockets the host has, or the usual one with its GPU."""
    cpus, links = hardware_parts().cpus, host.node.links
    between = [spec.bandwidth for spec in links.values() if spec.kind == "upi"]
    own = cpus[host.part.cpu].between in between
    others = (
        name for name, cpu in cpus.items() if cpu.between in between and cpu.pcie >= host.part.pcie
    )
    return host.part.cpu if own else next(others, host.part.cpu)


def _usual_sockets(host: PartedHost, domains: int) -> int:
    """Sockets that NUMA domains are of, where no field says: two, or one for each superchip."""
    return domains if host.part.c2c else min(2, domains)


def with_memory(host: PartedHost) -> PartedHost:
    """Give each CPU its memory where the template has none: copies go through it."""
    if host.names("memory") or not host.names("cpu"):
        return host
    kind, cpus = _kind_of_cpus(host), host.names("cpu")
    draft = Draft(host.node.gpu, "", "")
    draft.link("dram", dram(kind, len(cpus) // _usual_sockets(host, len(cpus))))
    for at, cpu in enumerate(cpus):
        draft.add(f"mem{at}", "memory")
        draft.join(f"mem{at}", cpu, "dram")
    note = f"assumption: memory of CPUs of the kind {kind}, through which copies go"
    return host.plus(draft).noting(note)
