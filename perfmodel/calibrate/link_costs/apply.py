"""From a profile and a machine to the machine as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.profile import Fit, Parameter, ParameterName, Profile, Rows
from perfmodel.calibrate.transfer.apply import transferred
from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, WireSegment
from perfmodel.topology.model import Arcs, Topology

Values = Mapping[Parameter, float]
"""A number for each parameter; seconds or bytes per second."""


def apply(profile: Profile, machine: Machine, *, rows: Rows | None = None) -> Machine:
    """Return the machine with measured numbers in place of datasheet ones.

    Bandwidths go to the links of their kind (all of them scaled alike), times to the protocols of
    the library. What the profile does not determine stays as it is. The topology's sources and
    assumptions say which numbers are measured.

    Parameters
    ----------
    profile : Profile
    machine : Machine
        Of the template and the library that were measured; any size.
    rows : {"library", "schedule"}, optional
        Whose numbers: the library's own collective (default, if measured) or our schedule's.

    Raises
    ------
    InputError
        A profile of another template or library, or with names that the machine lacks; all faults.
    """
    if profile.transfer is not None and rows is None:
        return transferred(profile, profile.transfer, machine)
    fit = profile.fit_of(rows)
    values = {value.key: value.si for value in fit.values}
    faults = [*_strangers(profile, machine), *_unknown(profile, values, machine)]
    if faults:
        raise InputError(faults)
    changed = with_values(machine, values)
    return replace(changed, topology=_with_sources(changed.topology, profile, fit))


def with_values(machine: Machine, values: Values) -> Machine:
    """Return the machine with some of its numbers replaced."""
    topology = machine.topology
    if any(key.name == "bandwidth" for key in values):
        topology = with_bandwidths(topology, values)
        graph = topology.graph.copy()
        for _, _, data in graph.edges(data=True):
            data["bandwidth_Bps"] = float(topology.arcs.bandwidth_Bps[data["index"]])
        topology = _keeping_arcs(topology, replace(topology, graph=graph))
    return replace(machine, topology=topology, library=with_times(machine.library, values))


def with_bandwidths(topology: Topology, values: Values) -> Topology:
    """Return the topology with other `arcs`, for timing alone; its graph is the old one's."""
    old = topology.arcs
    changed = replace(topology)
    arcs = Arcs(old.names, old.kinds, bandwidths(topology, values), old.latency_s)
    vars(changed)["arcs"] = arcs  # the cached property, without reading the graph back
    return changed


def bandwidths(topology: Topology, values: Values) -> FloatArray:
    """Bandwidth of each link: all of a kind scaled so that the narrowest gets the measured rate.

    Where a rate depends on the size of chunks a link has the best one; the library's wire segments
    hold what slower chunks lack.

    Returns
    -------
    ndarray of float, shape (arcs,)
        Bytes per second.
    """
    found = topology.arcs.bandwidth_Bps.copy()
    for kind, rates in _rates(values).items():
        chosen = np.array([k == kind for k in topology.arcs.kinds])
        found[chosen] *= max(rates.values()) / found[chosen].min()
    return found


def _rates(values: Values) -> dict[str, dict[float, float]]:
    """Bandwidths by kind of link and by the size beyond which they hold, which rises."""
    found: dict[str, dict[float, float]] = {}
    for key in sorted(values, key=lambda key: key.beyond_bytes):
        if key.name == "bandwidth":
            found.setdefault(key.where, {})[key.beyond_bytes] = values[key]
    return found


FIELDS: Mapping[ParameterName, str] = {
    "launch": "launch", "reduce": "reduce_rate", "rank_rate": "max_rate", "host_step": "host_step",
}  # fmt: skip
"""Where a protocol keeps what is one number for all kinds of hop."""


def with_times(library: CommLibrary, values: Values) -> CommLibrary:
    """Replace times, rates and wire segments of protocols."""
    segmented = [rates for rates in _rates(values).values() if len(rates) > 1]
    protocols = {}
    for name, protocol in library.protocols.items():
        own = {key: si for key, si in values.items() if key.where.partition("/")[0] == name}
        update: dict[str, object] = {
            FIELDS[key.name]: si for key, si in own.items() if key.name in FIELDS
        }
        step = {key.where.partition("/")[2]: si for key, si in own.items() if key.name == "step"}
        if step:
            update["step"] = protocol.step.model_copy(update=step)
        for rates in segmented:
            update |= _segments(protocol.wire_efficiency, rates)
        protocols[name] = protocol.model_copy(update=update) if update else protocol
    return library.model_copy(update={"protocols": protocols})


def _segments(efficiency: float, rates: Mapping[float, float]) -> dict[str, object]:
    """Fields of a protocol whose long chunks travel at other rates than short ones."""
    best = max(rates.values())
    first, *others = (efficiency * rate / best for rate in rates.values())
    # The sizes are numbers already, where the contract reads text with a unit.
    segments = tuple(
        WireSegment.model_construct(beyond=beyond, efficiency=part)
        for beyond, part in zip(list(rates)[1:], others, strict=True)
    )
    return {"wire_efficiency": first, "wire_segments": segments}


# ---------------------------------------------------------------- what may be wrong


def _strangers(profile: Profile, machine: Machine) -> list[Fault]:
    faults = []
    if profile.topology != machine.topology.template:
        allowed = f"a profile of {machine.topology.template!r}"
        faults.append(Fault("profile", f"{profile.name!r}, made for {profile.topology!r}", allowed))
    if profile.library != machine.library.name:
        allowed = f"a profile of library {machine.library.name!r}"
        found = f"{profile.name!r}, made for library {profile.library!r}"
        faults.append(Fault("profile", found, allowed))
    return faults


def _unknown(profile: Profile, values: Values, machine: Machine) -> list[Fault]:
    """Values that name a protocol, a hop or a kind of link that there is not."""
    protocols, hops = machine.library.protocols, ("nvlink", "pcie", "network", "memory")
    steps = {f"{protocol}/{hop}" for protocol in protocols for hop in hops}
    places = {
        "launch": set(protocols), "reduce": set(protocols), "step": steps,
        "rank_rate": set(protocols), "host_step": set(protocols),
        "bandwidth": set(machine.topology.arcs.kinds),
    }  # fmt: skip
    return [
        Fault("profile", f"{profile.name!r}, {key.name} of {key.where!r}",
              allowed_names(places[key.name], key.where))
        for key in values if key.where not in places[key.name]
    ]  # fmt: skip


# ---------------------------------------------------------------- what the report says


def _with_sources(topology: Topology, profile: Profile, fit: Fit) -> Topology:
    names = ", ".join(source.file for source in profile.source)
    what = "the library's own collective" if fit.rows == "library" else "perfmodel's schedule"
    ranks = " and ".join(str(count) for count in fit.ranks)
    origin = f"profile {profile.name} of {profile.date}, {what} on {ranks} ranks ({names})"
    measured = {
        f"measured {value.key}": f"{value.value}, 80 % interval {value.interval[0]} to "
        f"{value.interval[1]}: {origin}"
        for value in fit.values
    }
    told = ", ".join(f"{value.key} {value.value}" for value in fit.values)
    kept = "".join(
        f" Not determined, datasheet kept: {lost.parameter} of {lost.where} ({lost.reason})."
        for lost in fit.undetermined
    )
    sentence = f"Measured by {origin}: {told}. Every other number is from datasheets.{kept}"
    return _keeping_arcs(
        topology,
        replace(
            topology,
            sources={**topology.sources, **measured},
            assumptions=(*topology.assumptions, sentence),
        ),
    )


def _keeping_arcs(old: Topology, new: Topology) -> Topology:
    vars(new)["arcs"] = old.arcs
    return new
