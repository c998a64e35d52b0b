"""The machine and the layers as ``what_if:`` imagines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, Protocol
from perfmodel.scenario import Scenario
from perfmodel.scenario.sections.what_if import INFINITE, WhatIf
from perfmodel.studies.run.resolve.events import Disturbance
from perfmodel.topology.model import Arcs, Topology
from perfmodel.workload.model import LayerTimes

BETWEEN_NODES = frozenset({"ethernet", "infiniband"})
"""Kinds of link between nodes; all others lie inside them."""


def imagined_of(scenario: Scenario) -> WhatIf:
    """Return what a scenario imagines; by default nothing."""
    return scenario.what_if or WhatIf()


def imagined(what_if: WhatIf, machine: Machine) -> Machine:
    """Return the machine with other links and other times of its library.

    Links keep their kinds and ways. A step of bytes / bandwidth + latency has its first part
    divided by the bandwidth's factor and its second multiplied by the latency's; what limits the
    library itself (rates of a channel, what it adds to received gradients) stays. It chooses anew
    on another network, as on a machine that was built so, but keeps the channels that it found
    inside nodes: no GPU has links of such rates, and NCCL's search knows those that there are.
    """
    library = _with_times(what_if, machine.library)
    network = _with_links(
        machine.topology, BETWEEN_NODES, what_if.network_bandwidth, what_if.network_latency
    )
    inside = frozenset(network.arcs.kinds) - BETWEEN_NODES
    topology = _with_links(network, inside, what_if.node_bandwidth, what_if.node_latency)
    if topology is machine.topology and library is machine.library:
        return machine
    found = replace(machine, topology=topology, library=library)
    if topology is network:
        return found
    return replace(found, decides_on=replace(machine, topology=network))


def imagined_times(what_if: WhatIf, times: LayerTimes) -> LayerTimes:
    """Return layers that take less or more time, on the device and to start."""
    faster = what_if.compute
    if faster == 1:
        return times
    return replace(
        times,
        forward_s=times.forward_s / faster,
        backward_s=times.backward_s / faster,
        optimizer_s=times.optimizer_s / faster,
        launch_s=times.launch_s / faster,
        copy_Bps=times.copy_Bps * faster,
        source=f"{times.source}, {_times(faster)} as fast",
    )


def imagined_incidents(
    what_if: WhatIf, happening: Sequence[Disturbance]
) -> tuple[Disturbance, ...]:
    """Return what still happens."""

    def stays(one: Disturbance) -> bool:
        if one.beside is not None:
            return what_if.jobs
        if one.gpu is not None:  # another GPU is there, whatever happens
            return True
        return what_if.events and (what_if.jitter or one.jitter is None)

    return tuple(one for one in happening if stays(one))


# ---------------------------------------------------------------- links and library


def _with_links(
    topology: Topology, kinds: frozenset[str], faster: float, longer: float
) -> Topology:
    """The topology with other numbers on all links of some kinds."""
    if faster == longer == 1:
        return topology
    old = topology.arcs
    chosen = np.array([kind in kinds for kind in old.kinds], dtype=bool)
    arcs = Arcs(
        old.names,
        old.kinds,
        old.bandwidth_Bps * np.where(chosen, faster, 1.0),
        old.latency_s * np.where(chosen, longer, 1.0),
    )
    # The graph holds the same numbers: routing and NCCL's search read them there.
    graph = topology.graph.copy()
    rates_Bps, delays_s = arcs.bandwidth_Bps.tolist(), arcs.latency_s.tolist()
    for _, _, data in graph.edges(data=True):
        data["bandwidth_Bps"], data["latency_s"] = rates_Bps[data["index"]], delays_s[data["index"]]
    copied_Bps = topology.staging_Bps
    if copied_Bps is not None and not kinds & BETWEEN_NODES:  # through the host's memory
        copied_Bps *= faster
    changed = replace(topology, graph=graph, staging_Bps=copied_Bps)
    vars(changed)["arcs"] = arcs  # the cached property, without reading the graph back
    return changed


def _with_times(what_if: WhatIf, library: CommLibrary) -> CommLibrary:
    network, node, launch = what_if.network_latency, what_if.node_latency, what_if.launch
    if network == node == launch == 1:
        return library

    def imagined_protocol(protocol: Protocol) -> Protocol:
        step = protocol.step
        waits = {
            "network": step.network * network,
            **{hop: getattr(step, hop) * node for hop in ("nvlink", "pcie", "memory")},
        }
        return protocol.model_copy(
            update={
                "launch": protocol.launch * launch,
                "unevenness": protocol.unevenness * launch,
                "step": step.model_copy(update=waits),
            }
        )

    def all_of(protocols: Mapping[str, Protocol]) -> dict[str, Protocol]:
        return {name: imagined_protocol(protocol) for name, protocol in protocols.items()}

    by_algorithm = {name: all_of(each) for name, each in library.by_algorithm.items()}
    return library.model_copy(
        update={"protocols": all_of(library.protocols), "by_algorithm": by_algorithm}
    )


# ---------------------------------------------------------------- in words


def said(what_if: WhatIf) -> tuple[str, ...]:
    """Say what is imagined, in sentences; nothing where nothing is."""
    parts = [_WORDS[name](value) for name, value in what_if.changes.items()]
    if not parts:
        return ()
    anew = "network_bandwidth" in what_if.changes
    chosen = "; the library chooses its algorithms anew on such a network" if anew else ""
    return (f"What if: {', '.join(parts)}{chosen}.",)


def _times(factor: float) -> str:
    return "infinitely" if factor >= INFINITE else f"{factor:g} times"


def _fast(what: str) -> Callable[[float], str]:
    return lambda factor: f"{what} {_times(factor)} as fast".replace("infinitely as", "infinitely")


def _long(what: str) -> Callable[[float], str]:
    return lambda factor: f"{what} {factor:g} times as long" if factor else f"no {what}"


def _absent(what: str) -> Callable[[float], str]:
    return lambda _: f"no {what}"


_WORDS: Mapping[str, Callable[[float], str]] = {
    "network_bandwidth": _fast("links between nodes"),
    "network_latency": _long("latency between nodes"),
    "node_bandwidth": _fast("links inside nodes"),
    "node_latency": _long("latency inside nodes"),
    "launch": _long("start of collectives"),
    "communication": _absent("time for communication"),
    "compute": _fast("compute"),
    "jitter": _absent("jitter"),
    "events": _absent("events"),
    "jobs": _absent("other jobs"),
}
"""What each field says, in words."""
