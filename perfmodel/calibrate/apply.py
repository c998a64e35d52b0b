"""A machine with a profile's numbers in place of datasheet ones.

`Fit`: absolute numbers, for the ranks that were measured. `Transfer`: factors, for any scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.profile import Fit, Parameter, ParameterName, Profile, Rows
from perfmodel.calibrate.transfer.forward_model import scale_bandwidths
from perfmodel.calibrate.transfer.model import SETTLED_SHARE, Transfer, model_of
from perfmodel.calibrate.transfer.parameters import MEANINGS, bandwidth_factors, corrections_of
from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, WireSegment
from perfmodel.topology.model import Topology

Values = Mapping[Parameter, float]
"""A number for each parameter; seconds or bytes per second."""


def apply(profile: Profile, machine: Machine, *, rows: Rows | None = None) -> Machine:
    """Return the machine with measured numbers in place of datasheet ones.

    A transfer multiplies the numbers that its factors are on. From a fit, bandwidths go to the
    links of their kind (all of them scaled by the same factor), times to the protocols of the
    library. What the profile does not determine stays as it is. The topology's sources and
    assumptions say which numbers are measured.

    Parameters
    ----------
    profile : Profile
    machine : Machine
        Of the GPU (of a fit: of the template) and the library that were measured; any size.
    rows : {"library", "schedule"}, optional
        Whose numbers: the library's own collective (default, if measured) or our schedule's.

    Raises
    ------
    InputError
        A profile of another machine or library, or with names that the machine lacks; all faults.
    """
    if profile.transfer is not None and rows is None:
        return _apply_transfer(profile, profile.transfer, machine)
    return _apply_fit(profile, profile.fit_of(rows), machine)


def _library_faults(profile: Profile, machine: Machine) -> list[Fault]:
    if profile.library == machine.library.name:
        return []
    allowed = f"a profile of library {machine.library.name!r}"
    return [Fault("profile", f"{profile.name!r}, made for library {profile.library!r}", allowed)]


def _add_sources(topology: Topology, measured: Mapping[str, str], assumption: str) -> Topology:
    """Return the topology whose sources and assumptions say what was measured."""
    return replace(
        topology,
        sources={**topology.sources, **measured},
        assumptions=(*topology.assumptions, assumption),
    )


# ---------------------------------------------------------------- numbers of a fit


def _apply_fit(profile: Profile, fit: Fit, machine: Machine) -> Machine:
    values = {value.key: value.si for value in fit.values}
    faults = []
    if profile.topology != machine.topology.template:
        allowed = f"a profile of {machine.topology.template!r}"
        faults.append(Fault("profile", f"{profile.name!r}, made for {profile.topology!r}", allowed))
    faults += [*_library_faults(profile, machine), *_unknown_names(profile, values, machine)]
    if faults:
        raise InputError(faults)
    changed = with_values(machine, values)
    return replace(changed, topology=_cite_fit(changed.topology, profile, fit))


def with_values(machine: Machine, values: Values) -> Machine:
    """Return the machine with some of its numbers replaced."""
    topology = machine.topology
    if any(key.name == "bandwidth" for key in values):
        topology = with_bandwidths(topology, values)
        topology = replace(topology, built=topology.arcs, changed=None)
    return replace(machine, topology=topology, library=with_times(machine.library, values))


def with_bandwidths(topology: Topology, values: Values) -> Topology:
    """Return the topology with other rates of its links, for timing alone.

    All links of a kind are scaled so that the narrowest gets the measured rate. Where a rate
    depends on the size of chunks a link has the best one; the library's wire segments hold what
    slower chunks lack.
    """
    bandwidth_Bps: FloatArray = topology.arcs.bandwidth_Bps.copy()
    for kind, rates in _rates_by_kind(values).items():
        chosen = np.array([k == kind for k in topology.arcs.kinds])
        bandwidth_Bps[chosen] *= max(rates.values()) / bandwidth_Bps[chosen].min()
    return topology.with_arcs(replace(topology.arcs, bandwidth_Bps=bandwidth_Bps))


def _rates_by_kind(values: Values) -> dict[str, dict[float, float]]:
    """Bandwidths by kind of link and by the size beyond which they hold, which rises."""
    rates: dict[str, dict[float, float]] = {}
    for key in sorted(values, key=lambda key: key.beyond_bytes):
        if key.name == "bandwidth":
            rates.setdefault(key.where, {})[key.beyond_bytes] = values[key]
    return rates


PROTOCOL_FIELDS: Mapping[ParameterName, str] = {
    "launch": "launch", "reduce": "reduce_rate", "rank_rate": "max_rate", "host_step": "host_step",
}  # fmt: skip
"""Field of a protocol with what is one number for all kinds of hop."""


def with_times(library: CommLibrary, values: Values) -> CommLibrary:
    """Replace times, rates and wire segments of protocols."""
    segmented = [rates for rates in _rates_by_kind(values).values() if len(rates) > 1]
    protocols = {}
    for name, protocol in library.protocols.items():
        own = {key: si for key, si in values.items() if key.where.partition("/")[0] == name}
        update: dict[str, object] = {
            PROTOCOL_FIELDS[key.name]: si for key, si in own.items() if key.name in PROTOCOL_FIELDS
        }
        step = {key.where.partition("/")[2]: si for key, si in own.items() if key.name == "step"}
        if step:
            update["step"] = protocol.step.model_copy(update=step)
        for rates in segmented:
            update |= _wire_segments(protocol.wire_efficiency, rates)
        protocols[name] = protocol.model_copy(update=update) if update else protocol
    return library.model_copy(update={"protocols": protocols})


def _wire_segments(efficiency: float, rates: Mapping[float, float]) -> dict[str, object]:
    """Fields of a protocol whose long chunks travel at other rates than short ones."""
    best = max(rates.values())
    first, *others = (efficiency * rate / best for rate in rates.values())
    # The sizes are numbers already, where the contract reads text with a unit.
    segments = tuple(
        WireSegment.model_construct(beyond=beyond, efficiency=part)
        for beyond, part in zip(list(rates)[1:], others, strict=True)
    )
    return {"wire_efficiency": first, "wire_segments": segments}


def _unknown_names(profile: Profile, values: Values, machine: Machine) -> list[Fault]:
    """Faults of values that name a protocol, a hop or a kind of link that there is not."""
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


def _cite_fit(topology: Topology, profile: Profile, fit: Fit) -> Topology:
    names = ", ".join(source.file for source in profile.source)
    rows = "the library's own collective" if fit.rows == "library" else "perfmodel's schedule"
    ranks = " and ".join(str(count) for count in fit.ranks)
    origin = f"profile {profile.name} of {profile.date}, {rows} on {ranks} ranks ({names})"
    measured = {
        f"measured {value.key}": f"{value.value}, 80 % interval {value.interval[0]} to "
        f"{value.interval[1]}: {origin}"
        for value in fit.values
    }
    numbers = ", ".join(f"{value.key} {value.value}" for value in fit.values)
    datasheet = "".join(
        f" Not determined, datasheet kept: {number.parameter} of {number.where} ({number.reason})."
        for number in fit.undetermined
    )
    sentence = f"Measured by {origin}: {numbers}. Every other number is from datasheets.{datasheet}"
    return _add_sources(topology, measured, sentence)


# ---------------------------------------------------------------- factors of a transfer


def _apply_transfer(profile: Profile, transfer: Transfer, machine: Machine) -> Machine:
    faults = []
    if transfer.gpu != model_of(machine.topology.gpu.name):
        allowed = f"a profile of {model_of(machine.topology.gpu.name)}"
        faults.append(Fault("profile", f"{profile.name!r}, made on {transfer.gpu}", allowed))
    faults += _library_faults(profile, machine)
    if faults:
        raise InputError(faults)
    factors = transfer.factors_by_parameter
    corrections = replace(corrections_of(factors), residual=transfer.residual)
    topology, rates = machine.topology, bandwidth_factors(factors)
    if any(factor != 1.0 for factor in rates.values()):
        topology = scale_bandwidths(topology, rates)
    differences = transfer.settings_differences(machine.settings)
    cited = _cite_transfer(topology, profile, transfer, differences)
    return machine.with_corrections(cited, corrections)


def _cite_transfer(
    topology: Topology, profile: Profile, transfer: Transfer, differences: Sequence[str]
) -> Topology:
    scales = sorted({(point.hosts, point.ranks) for point in transfer.points})
    where = " and ".join(f"{ranks} ranks on {hosts} hosts" for hosts, ranks in scales)
    origin = f"profile {profile.name} of {profile.date}, {', '.join(transfer.files)}: {where}"
    settled = [factor for factor in transfer.factors if factor.told >= SETTLED_SHARE]
    measured = {
        f"measured {factor.parameter}": f"{MEANINGS[factor.of]} times {factor.factor:.3g}, 80 % "
        f"interval {factor.interval[0]:.3g} to {factor.interval[1]:.3g}: {origin}"
        for factor in settled
    }
    numbers = ", ".join(f"{factor.parameter} x {factor.factor:.3g}" for factor in settled)
    unsettled = ", ".join(str(f.parameter) for f in transfer.factors if f.told < SETTLED_SHARE)
    sentence = (
        f"Measured ({origin}): {numbers or 'no factor by itself'}; what these leave is a "
        f"correction over size, which fades away from what was measured."
        + (f" Hardly told by these data: {unsettled}." if unsettled else "")
        + (f" It may not hold for these settings: {'; '.join(differences)}." if differences else "")
    )
    return _add_sources(topology, measured, sentence)
