"""Apply the ``what_if`` section: to the machine, to layer times, to events and other jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, Protocol
from perfmodel.scenario import Scenario
from perfmodel.scenario.sections.variants import INFINITE_FACTOR, WhatIf
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.topology.model import Gpu, Topology
from perfmodel.workload.model import LayerTimes, scale_times

BETWEEN_NODES = frozenset({"ethernet", "infiniband"})
"""Kinds of link between nodes; all others lie inside them."""

BANDWIDTHS_INSIDE: Mapping[str, str] = {
    "nvlink": "nvlink_bandwidth",
    "pcie": "pcie_bandwidth",
    "upi": "cpu_bandwidth",
    "c2c": "cpu_bandwidth",
    "memory": "memory_bandwidth",
}
"""Field of each kind of link inside nodes."""


def what_if_of(scenario: Scenario) -> WhatIf:
    """Return the what-if of a scenario; by default one that changes nothing."""
    return scenario.what_if or WhatIf()


def apply_what_if(what_if: WhatIf, machine: Machine) -> Machine:
    """Scale links of a machine and times of its library.

    Links keep their kinds and routes. Of a message's time, bytes / bandwidth + latency, the first
    term is divided by the bandwidth's factor and the second multiplied by the latency's. Limits of
    the library itself (rate of a channel, rate of reductions) are scaled by `library_rates`. On
    another network the library chooses its algorithms anew. Inside nodes it keeps the channels of
    the original links: NCCL's search knows the rates of existing GPUs only.
    """
    library = _scale_library(what_if, machine.library)
    network = _scale_links(
        machine.topology,
        dict.fromkeys(BETWEEN_NODES, (what_if.network_bandwidth, what_if.network_latency)),
    )
    topology = _scale_inside(what_if, network)
    if topology is machine.topology and library is machine.library:
        return machine
    changed = replace(machine, topology=topology, library=library)
    decides_on = replace(machine, topology=network)
    return changed if topology is network else replace(changed, decides_on=decides_on)


def scale_layer_times(what_if: WhatIf, times: LayerTimes) -> LayerTimes:
    """Scale the times of layers: on the device, and of their launches on the host."""
    faster, source = what_if.compute, f"{times.source}, {_as_fast(what_if.compute)}"
    return times if faster == 1 else scale_times(times, 1 / faster, source)


def peak_of(scenario: Scenario, gpu: Gpu) -> float | None:
    """Peak rate of a GPU at the precision asked for, as fast as it is made; None: without bound."""
    peak = gpu.peak_flops.get(scenario.compute.precision)
    faster = what_if_of(scenario).compute
    return None if peak is None or faster == INFINITE_FACTOR else peak * faster


def filter_disturbances(
    what_if: WhatIf, disturbances: Sequence[Disturbance]
) -> tuple[Disturbance, ...]:
    """Return the disturbances that the what-if does not switch off."""

    def is_kept(disturbance: Disturbance) -> bool:
        if disturbance.background_job is not None:
            return what_if.jobs
        happens = what_if.events and (what_if.jitter or disturbance.jitter is None)
        return happens or disturbance.gpu is not None  # other GPUs are hardware, not an event

    return tuple(filter(is_kept, disturbances))


# ---------------------------------------------------------------- links and library


def _scale_inside(what_if: WhatIf, topology: Topology) -> Topology:
    """Scale the links inside nodes, and copies through the hosts' memories."""
    every = what_if.node_bandwidth
    own = {kind: getattr(what_if, name) for kind, name in BANDWIDTHS_INSIDE.items()}
    inside = {  # "infinite" is the most
        kind: min(every * by, max(INFINITE_FACTOR, every, by)) for kind, by in own.items()
    }
    links = {kind: (faster, what_if.node_latency) for kind, faster in inside.items()}
    scaled, copies = _scale_links(topology, links), inside["memory"]
    staged_Bps = scaled.staging_Bps and scaled.staging_Bps * copies
    return scaled if copies == 1 else replace(scaled, staging_Bps=staged_Bps)


def _scale_links(topology: Topology, factors: Mapping[str, tuple[float, float]]) -> Topology:
    """Scale bandwidth and latency of links by the factors of their kind."""
    old = topology.arcs
    changed = {kind: factors[kind] for kind in old.kinds.present() & factors.keys()}
    if all(pair == (1, 1) for pair in changed.values()):
        return topology
    faster, longer = (
        old.kinds.values({kind: pair[at] for kind, pair in changed.items()}, 1.0) for at in (0, 1)
    )
    rates_Bps, delays_s = old.bandwidth_Bps * faster, old.latency_s * longer
    # built so from the start: routing and NCCL's search see the scaled rates, too
    return replace(
        topology, built=replace(old, bandwidth_Bps=rates_Bps, latency_s=delays_s), changed=None
    )


def _scale_library(what_if: WhatIf, library: CommLibrary) -> CommLibrary:
    network, node, launch = what_if.network_latency, what_if.node_latency, what_if.launch
    faster = what_if.library_rates
    if network == node == launch == faster == 1:
        return library

    def scale_protocol(protocol: Protocol) -> Protocol:
        step = protocol.step
        step_s = {hop: getattr(step, hop) * node for hop in ("nvlink", "pcie", "memory")}
        return protocol.model_copy(
            update={
                "launch": protocol.launch * launch,
                "unevenness": protocol.unevenness * launch,
                "each_peer": protocol.each_peer * launch,
                "copy_rate": protocol.copy_rate / launch if protocol.copy_rate and launch else None,
                "step": step.model_copy(update={"network": step.network * network, **step_s}),
                "host_step": protocol.host_step / faster,
                **{  # at which the protocol itself stops
                    name: getattr(protocol, name) * faster
                    for name in ("network_rate", "max_rate", "reduce_rate")
                    if getattr(protocol, name) is not None
                },
            }
        )

    def scale_all(protocols: Mapping[str, Protocol]) -> dict[str, Protocol]:
        return {name: scale_protocol(protocol) for name, protocol in protocols.items()}

    return library.model_copy(
        update={
            "protocols": scale_all(library.protocols),
            "by_algorithm": {name: scale_all(each) for name, each in library.by_algorithm.items()},
        }
    )


# ---------------------------------------------------------------- text


def describe_what_if(what_if: WhatIf) -> tuple[str, ...]:
    """Describe the changes of a what-if in one sentence; none if it changes nothing."""
    parts = [_describe_change(name, value) for name, value in what_if.changes.items()]
    choice = (
        "; the library chooses its algorithms anew on such a network"
        if "network_bandwidth" in what_if.changes
        else ""
    )
    return (f"What if: {', '.join(parts)}{choice}.",) if parts else ()


def _as_fast(factor: float) -> str:
    return "infinitely fast" if factor >= INFINITE_FACTOR else f"{factor:g} times as fast"


def _describe_change(name: str, factor: float) -> str:
    """Describe the value of a field: a rate, a time, or what there is none of."""
    if name in _RATES:
        return f"{_RATES[name]} {_as_fast(factor)}"
    if name in _TIMES and factor:
        return f"{_TIMES[name]} {factor:g} times as long"
    return f"no {_TIMES.get(name) or _SWITCHES[name]}"


_RATES = {
    "network_bandwidth": "links between nodes",
    "node_bandwidth": "links inside nodes",
    "nvlink_bandwidth": "NVLinks",
    "pcie_bandwidth": "PCIe links",
    "cpu_bandwidth": "links of CPUs",
    "memory_bandwidth": "the hosts' memories",
    "library_rates": "the library's own rates",
    "compute": "compute",
}
_TIMES = {
    "network_latency": "latency between nodes",
    "node_latency": "latency inside nodes",
    "launch": "start of collectives",
}
_SWITCHES = {
    "communication": "time for communication",
    "jitter": "jitter",
    "events": "events",
    "jobs": "other jobs",
}
"""What the fields of a what-if are about: rates, times, and what they switch off."""
