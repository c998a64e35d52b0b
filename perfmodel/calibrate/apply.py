"""A machine with a profile's numbers in place of datasheet ones.

A fit has numbers, for the ranks that were measured, or factors on numbers, for any scale.
Profiles that are drawn from the uncertainty of one put an interval on a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.parameters import MEANINGS, RATES, ParameterName, Values, draw_logs
from perfmodel.calibrate.profile import Fit, Profile, Rows
from perfmodel.calibrate.transfer.forward_model import model_of, scale_bandwidths
from perfmodel.calibrate.transfer.priors import bandwidth_factors, corrections_of
from perfmodel.errors import Fault, allowed_names, raise_faults
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, WireSegment
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import grouped
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.units import format_bytes


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
    fit, topology, library = profile.fit_of(rows), machine.topology, machine.library.name
    model, template = model_of(topology.gpu.name), topology.template
    differing = (
        (fit.gpu and fit.gpu != model, f"made on {fit.gpu}", model),
        (
            not fit.gpu and profile.topology != template,
            f"made for {profile.topology!r}",
            repr(template),
        ),
        (
            profile.library != library,
            f"made for library {profile.library!r}",
            f"library {library!r}",
        ),
    )
    faults = [
        Fault("profile", f"{profile.name!r}, {actual}", f"a profile of {allowed}")
        for differs, actual, allowed in differing
        if differs
    ]
    raise_faults(faults if fit.gpu else faults + _unknown_names(profile, fit.numbers, machine))
    if not fit.gpu:
        changed = with_values(machine, fit.numbers)
        return replace(changed, topology=_cite(changed.topology, profile, fit, machine.settings))
    corrections = replace(
        corrections_of(fit.numbers),
        residual=fit.residual,
        from_bytes=min((point.nbytes for point in fit.points), default=0),
        likely=corrections_of(fit.likely),
    )
    rates = bandwidth_factors(fit.numbers)
    if any(factor != 1.0 for factor in rates.values()):
        topology = scale_bandwidths(topology, rates)
    return machine.with_corrections(corrections, _cite(topology, profile, fit, machine.settings))


def with_values(machine: Machine, values: Values) -> Machine:
    """Return the machine with some of its numbers replaced."""
    topology = machine.topology
    if any(key.name == "bandwidth" for key in values):
        topology = with_bandwidths(topology, values)
        topology = replace(topology, built=topology.arcs, changed=None)
    return replace(
        machine, topology=topology, library=with_times(machine.library, values), fitted=True
    )


def with_bandwidths(topology: Topology, values: Values) -> Topology:
    """Return the topology with other rates of its links, for timing alone.

    All links of a kind are scaled so that the narrowest gets the measured rate. Where a rate
    depends on the size of chunks a link has the best one; the library's wire segments hold what
    slower chunks lack.
    """
    bandwidth_Bps: FloatArray = topology.arcs.bandwidth_Bps.copy()
    for kind, rates in _rates_by_kind(values).items():
        chosen = topology.arcs.kinds.among((kind,))
        bandwidth_Bps[chosen] *= max(rates.values()) / bandwidth_Bps[chosen].min()
    return topology.with_arcs(replace(topology.arcs, bandwidth_Bps=bandwidth_Bps))


def _rates_by_kind(values: Values) -> dict[str, dict[float, float]]:
    """Bandwidths by kind of link and by the size beyond which they hold, which rises."""
    rising = sorted(values, key=lambda key: key.beyond_bytes)
    pieces = grouped(
        (key.where, (key.beyond_bytes, values[key])) for key in rising if key.name == "bandwidth"
    )
    return {kind: dict(rates) for kind, rates in pieces.items()}


PROTOCOL_FIELDS: Mapping[ParameterName, str] = {
    "launch": "launch",
    "reduce": "reduce_rate",
    "rank_rate": "max_rate",
    "host_step": "host_step",
}
"""Field of a protocol with what is one number for all kinds of hop."""


def with_times(library: CommLibrary, values: Values) -> CommLibrary:
    """Replace times, rates and wire segments of protocols."""
    segmented = [rates for rates in _rates_by_kind(values).values() if len(rates) > 1]
    places = ((key.where.partition("/"), si) for key, si in values.items() if key.name == "step")
    steps = grouped((name, (hop, si)) for (name, _, hop), si in places)
    protocols = {}
    for name, protocol in library.protocols.items():
        update: dict[str, object] = {
            PROTOCOL_FIELDS[key.name]: si
            for key, si in values.items()
            if key.where == name and key.name in PROTOCOL_FIELDS
        }
        if name in steps:
            update["step"] = protocol.step.model_copy(update=dict(steps[name]))
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
    """Return faults of values that name a protocol, hop or kind of link that there is not."""
    protocols, hops = set(machine.library.protocols), ("nvlink", "pcie", "network", "memory")
    places = dict.fromkeys(PROTOCOL_FIELDS, protocols) | {
        "step": {f"{protocol}/{hop}" for protocol in protocols for hop in hops},
        "bandwidth": set(machine.topology.arcs.kinds.present()),
    }
    return [
        Fault(
            "profile",
            f"{profile.name!r}, {key.name} of {key.where!r}",
            allowed_names(places[key.name], key.where),
        )
        for key in values
        if key.where not in places[key.name]
    ]


def _cite(topology: Topology, profile: Profile, fit: Fit, settings: LibrarySettings) -> Topology:
    """Return the topology whose sources and assumptions say what was measured."""
    scales = sorted({(point.hosts, point.ranks) for point in fit.points})
    where = " and ".join(f"{ranks} ranks on {hosts} hosts" for hosts, ranks in scales)
    rows = "the library's own collective" if fit.rows == "library" else "perfmodel's schedule"
    ranks, names = " and ".join(map(str, fit.ranks)), ", ".join(s.file for s in profile.source)
    origin = f"{', '.join(fit.files)}: {where}" if fit.gpu else f"{rows} on {ranks} ranks ({names})"
    origin = f"profile {profile.name} of {profile.date}, {origin}"
    settled = [value for value in fit.values if value.settled]
    measured = {
        f"measured {value.key}": f"{MEANINGS[value.parameter]}: {value.value}, 80 % interval "
        f"{value.interval[0]} to {value.interval[1]}: {origin}"
        for value in settled
    }
    numbers = ", ".join(f"{value.key} {value.value}" for value in settled)
    unsettled = ", ".join(str(value.key) for value in fit.values if not value.settled)
    differences = "; ".join(fit.settings_differences(settings))
    sentences = [
        f"Measured by {origin}: {numbers or 'no number by itself'}.",
        FADES if fit.gpu else "Every other number is from datasheets.",
        f"Hardly told by these data: {unsettled}." if unsettled else "",
        f"It may not hold for these settings: {differences}." if differences else "",
        *(
            f"Not determined, datasheet kept: {each.parameter} of {each.where} ({each.reason})."
            for each in fit.undetermined
        ),
    ]
    return replace(
        topology,
        sources={**topology.sources, **measured},
        assumptions=(*topology.assumptions, " ".join(filter(None, sentences))),
    )


GOLDEN_RATIO = (5.0**0.5 - 1.0) / 2.0
"""Multiples of it fill the unit interval evenly however many they are (Kronecker sequence)."""

STARTS = frozenset({"issue", "awaited"})
"""Factors on the host's time to start a collective, which the residual does not multiply."""


FADES = "What these leave is a correction over size, which fades away from what was measured."


def measured_at(
    profile: Profile,
    ranks: int,
    op: str,
    *,
    rows: Rows | None = None,
    algorithm: str | None = None,
) -> bool:
    """Tell whether a profile's numbers rest on measurements of this collective among so many ranks.

    On an oversubscribed machine a step costs more the more ranks there are, and how much more is
    a model: an interval from other numbers of ranks, from another collective or (for rows of
    "schedule") from another schedule would rest on no measurement.
    """
    fit = profile.fit_of(rows)
    if fit.left is not None:
        return True  # its intervals are wide where nothing was measured
    measured = {
        source.ranks
        for source in profile.source
        if source.collective == op and (fit.rows != "schedule" or source.algorithm == algorithm)
    }
    return ranks in fit.ranks and ranks in measured


def interval_s(times_s: Sequence[float], likely_s: float) -> tuple[float, float] | None:
    """80 % interval of drawn times, wide enough to hold the most likely one; seconds.

    None without draws.
    """
    if not times_s:
        return None
    low, high = np.quantile(times_s, [0.1, 0.9])
    return min(float(low), likely_s), max(float(high), likely_s)


def draws(profile: Profile, count: int, seed: int, *, scatter: bool = True) -> list[Profile]:
    """Draw profiles from the covariance of a profile's values.

    Parameters
    ----------
    profile : Profile
    count : int
    seed : int
    scatter : bool
        Also make the whole machine faster or slower by what runs differ from each other and by
        what measured times scatter about the fit, so that an interval covers a time that is
        measured in a new run, and not only the long-run median.

    Returns
    -------
    list of Profile
        Like the profile, with other values. The intervals are those of the original.
    """
    rng = np.random.default_rng(seed)
    return [
        profile.model_copy(
            update={"fits": tuple(draw_fit(f, rng, number, new_run=scatter) for f in profile.fits)}
        )
        for number in range(count)
    ]


def draw_fit(fit: Fit, rng: np.random.Generator, number: int = 0, *, new_run: bool) -> Fit:
    """Draw values from their covariance, and with them a residual that the rows allow.

    Parameters
    ----------
    fit : Fit
    rng : Generator
    number : int
        Of the draw, from 0 on: deviations of the residual are those of an even sequence, so that
        few draws have the quantiles that they should.
    new_run : bool
        Also draw what a run has of its own: an interval then covers a time that is measured, and
        not only what is expected of one.
    """
    covariance = np.array(fit.covariance).reshape(len(fit.values), -1)
    widening = fit.noise.widened if fit.noise else 1.0
    logs = draw_logs(covariance, rng, widening)
    deviations = widening * NormalDist().inv_cdf((0.5 + number * GOLDEN_RATIO) % 1.0)
    own = _run_logs(fit, rng, deviations) if new_run else np.zeros(len(logs))
    values = tuple(v.scaled(log) for v, log in zip(fit.values, (logs + own).tolist(), strict=True))
    draw = fit.model_copy(update={"values": values})
    vars(draw)["likely"] = fit.likely
    if fit.residual is not None:
        shifted = fit.residual.shift(fit.residual.over - np.array(fit.slopes) @ logs, deviations)
        vars(draw)["residual"] = replace(shifted, new_run=new_run)
    return draw


def _run_logs(fit: Fit, rng: np.random.Generator, deviations: float) -> FloatArray:
    """Logarithms by which the values differ in a new run.

    All times are longer by a factor, and all rates lower by another. Of factors: hosts that start
    collectives differ from run to run as what they start does, so many `deviations`.
    """
    if fit.noise is not None:
        start = deviations * fit.noise.start
        return np.array([start * (value.parameter in STARTS) for value in fit.values])
    both = fit.scatter * rng.standard_normal() * np.ones(2)
    if fit.run_spread is not None:
        spread = fit.run_spread
        both += rng.standard_t(spread.freedom, 2) * [spread.times, spread.rates]
    return np.array([-both[1] if v.parameter in RATES else both[0] for v in fit.values])


# ---------------------------------------------------------------- what is asked of a profile


def requests_of(plan: StepPlan, gpus_per_host: int) -> Iterator[CollectiveContext]:
    """Yield the collectives of a step among more than one rank, whose times a profile is asked."""
    groups = {each.name: max(each.groups, key=len) for each in plan.communicators}
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        group = groups[work.communicator]
        hosts = len({rank // gpus_per_host for rank in group})
        if len(group) > 1:
            yield CollectiveContext(work.op, work.nbytes, len(group), hosts)


def describe_beyond(
    profile: Profile, requests: Iterable[CollectiveContext], rows: Rows | None = None
) -> tuple[str, ...]:
    """Say which of the collectives asked for are beyond those that a profile was measured with.

    Their times follow from the mechanism with the profile's numbers and are less sure.
    """
    fit = profile.fit_of(rows)
    questions, points = list(requests), fit.points
    if not questions or not points:
        return ()
    beyond = []
    for name, unit in (("op", ""), ("ranks", " ranks"), ("hosts", " hosts")):
        measured = {getattr(point, name) for point in points}
        others = sorted({getattr(each, name) for each in questions} - measured)
        known = _join_counts(sorted(measured), unit)
        beyond += [f"{_join_counts(others, unit)} (measured: {known})"] if others else []
    sizes, asked = ([each.nbytes for each in listed] for listed in (points, questions))
    ends = (
        (min(asked) < min(sizes), min(asked), f"from {format_bytes(min(sizes))} on"),
        (max(asked) > max(sizes), max(asked), f"up to {format_bytes(max(sizes))}"),
    )
    beyond += [
        f"{format_bytes(size)} (measured {known})" for is_beyond, size, known in ends if is_beyond
    ]
    less = (
        "there the datasheets' shape holds, with the measured factors, and the interval is wider"
        if fit.left is not None
        else "there no interval rests on a measurement"
    )
    text = f"Beyond what profile {profile.name} was measured with: {'; '.join(beyond)}: {less}."
    return (text,) if beyond else ()


def _join_counts(values: Sequence[object], unit: str) -> str:
    texts = [str(value) for value in values]
    listed = ", ".join(texts if len(texts) <= 4 else [*texts[:3], f"... {texts[-1]}"])
    return listed + (unit.removesuffix("s") if listed == "1" else unit)
