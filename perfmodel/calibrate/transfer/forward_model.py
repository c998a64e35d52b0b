"""Times of measured collectives as functions of the factors on the mechanism's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.transfer.parameters import (
    AWAITED,
    ISSUE,
    LAUNCH,
    UNEVEN,
    TransferParameter,
    bandwidth_factors,
    corrections_of,
)
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.lowering.edges import HOP_KINDS
from perfmodel.library.lowering.lower import apply_corrections, lower_collective, uneven_s
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine, observed_time_s
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.graph import Arcs
from perfmodel.topology.model import Topology

LOG_STEP = 0.02
"""Step of a factor's logarithm for finite differences."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time.

    Parameters
    ----------
    machine : Machine
        Whose ranks all took part.
    op : str
    nbytes : int
    measured_s : float
    run : int
        Rows of one run were measured by the same processes.
    file : str
    """

    machine: Machine
    op: str
    nbytes: int
    measured_s: float
    run: int
    file: str = ""


def scale_bandwidths(topology: Topology, factors: Mapping[str, float]) -> Topology:
    """Return the topology with the bandwidth of each kind of link multiplied by its factor.

    Only `arcs` change: `built` keeps the numbers by which the library chooses.
    """
    arcs = topology.arcs
    by_kind = np.array([factors.get(kind, 1.0) for kind in arcs.kinds])
    return topology.with_arcs(replace(arcs, bandwidth_Bps=arcs.bandwidth_Bps * by_kind))


class ForwardModel:
    """Predicts the times of measured collectives from factors.

    Parameters
    ----------
    observations : sequence of Observation
    """

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.observations = tuple(observations)
        self.measured_s = np.array([o.measured_s for o in observations])
        # Several runs measured the same collective: its time is computed once.
        keys = [(id(o.machine), o.op, o.nbytes) for o in observations]
        position = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        self._position = np.array([position[key] for key in keys], dtype=np.int64)
        firsts = dict(zip(reversed(keys), reversed(self.observations), strict=True))
        self._distinct = [(firsts[key], _candidates(firsts[key])) for key in position]

    def times_s(self, factors: Mapping[TransferParameter, float]) -> FloatArray:
        """Time of each collective; seconds, shape (observations,)."""
        return self._predict(factors)[0]

    def contexts(self, factors: Mapping[TransferParameter, float]) -> list[CollectiveContext]:
        """Context (algorithm, protocol) of the quickest candidate of each collective."""
        chosen = self._predict(factors)[1]
        return [chosen[at] for at in self._position]

    def shares(self, factors: Mapping[TransferParameter, float]) -> FloatArray:
        """Part of each time that is not the host's start of the collective; shape (observations,).

        The elasticity of the observed time to the collective's own: zero where a process is still
        busy to start the collective on other GPUs.
        """
        return self._predict(factors)[2]

    def slopes(
        self, factors: Mapping[TransferParameter, float], base_s: FloatArray | None = None
    ) -> FloatArray:
        """Change of the logarithm of each time per logarithm of each factor.

        Returns
        -------
        ndarray of float, shape (observations, factors)
        """
        base = np.log(self.times_s(factors) if base_s is None else base_s)
        columns = [
            (np.log(self.times_s({**factors, parameter: f * np.exp(LOG_STEP)})) - base) / LOG_STEP
            for parameter, f in factors.items()
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))

    def parameters(self) -> list[TransferParameter]:
        """Every factor that the time of some candidate depends on."""
        candidates = [c for _, candidates in self._distinct for c in candidates]
        of_candidates = dict.fromkeys(p for c in candidates for p in c.parameters)
        order = ("bandwidth", "rate", "step")
        machines = [observation.machine for observation, _ in self._distinct]
        applies = {
            LAUNCH: True,
            ISSUE: any(m.settings.one_process and m.library.issue > 0 for m in machines),
            AWAITED: any(m.settings.awaited and m.library.awaited > 0 for m in machines),
            UNEVEN: any(c.uneven_s for c in candidates),
        }
        first = [parameter for parameter, holds in applies.items() if holds]
        return [*first, *sorted(of_candidates, key=lambda parameter: order.index(parameter.name))]

    def nominal_values(self) -> dict[TransferParameter, float]:
        """What each factor multiplies in the first candidate that has it; SI."""
        nominal: dict[TransferParameter, float] = {}
        for observation, candidates in self._distinct:
            arcs, library = observation.machine.topology.arcs, observation.machine.library
            nominal |= {ISSUE: library.issue, AWAITED: library.awaited}
            for candidate in candidates:
                nominal.setdefault(LAUNCH, candidate.lowered.launch_s - candidate.uneven_s)
                for parameter in candidate.parameters:
                    if parameter not in nominal:
                        nominal[parameter] = _nominal_value(candidate.lowered, parameter, arcs)
        return nominal

    def _predict(
        self, factors: Mapping[TransferParameter, float]
    ) -> tuple[FloatArray, list[CollectiveContext], FloatArray]:
        timers: dict[int, UncontendedTimer] = {}
        times, chosen, shares = [], [], []
        corrections = corrections_of(factors)
        for observation, candidates in self._distinct:
            machine = observation.machine
            timed = [(c.time_s(machine, factors, timers), c.context) for c in candidates]
            best_s, context = min(timed, key=lambda pair: pair[0])
            observed_s = observed_time_s(machine, best_s, corrections)
            longer_s = observed_time_s(machine, best_s * (1.0 + LOG_STEP), corrections)
            times.append(observed_s)
            chosen.append(context)
            shares.append((longer_s / observed_s - 1.0) / LOG_STEP)
        return np.array(times)[self._position], chosen, np.array(shares)[self._position]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A lowering of a collective that the library may choose, with its times under factors.

    Parameters
    ----------
    lowered : LoweredCollective
    context : CollectiveContext
    parameters : tuple of TransferParameter
        The factors that its time depends on, but for the launch.
    uneven_s : float
        Part of the launch that is what uneven channels lose.
    cache : dict
        Time without the launch by factors of `parameters`; seconds.
    """

    lowered: LoweredCollective
    context: CollectiveContext
    parameters: tuple[TransferParameter, ...]
    uneven_s: float
    cache: dict[tuple[float, ...], float]

    def time_s(
        self,
        machine: Machine,
        factors: Mapping[TransferParameter, float],
        timers: dict[int, UncontendedTimer],
    ) -> float:
        """Time under some factors; seconds. `timers` holds those of machines with the factors."""
        key = tuple(factors.get(parameter, 1.0) for parameter in self.parameters)
        if key not in self.cache:
            if id(machine) not in timers:
                topology = scale_bandwidths(machine.topology, bandwidth_factors(factors))
                timers[id(machine)] = UncontendedTimer(replace(machine, topology=topology))
            lowered = replace(self.lowered, launch_s=0.0)
            corrected = apply_corrections(corrections_of(factors), lowered, self.context)
            self.cache[key] = timers[id(machine)].time_s(corrected)
        launch_s = (self.lowered.launch_s - self.uneven_s) * factors.get(LAUNCH, 1.0)
        return self.cache[key] + launch_s + self.uneven_s * factors.get(UNEVEN, 1.0)


def _nominal_value(lowered: LoweredCollective, parameter: TransferParameter, arcs: Arcs) -> float:
    """What a factor multiplies; seconds, bytes per second or a share."""
    if parameter.name == "bandwidth":
        rates = zip(arcs.bandwidth_Bps.tolist(), arcs.kinds, strict=True)
        return min(float(rate_Bps) for rate_Bps, kind in rates if kind == parameter.where)
    if parameter.name == "rate":
        return 1.0 / lowered.wire_factor
    hop = HOP_KINDS.index(parameter.where.partition("/")[2])
    steps_s = [stage.latency_s[stage.edges.hop == hop] for stage in lowered.stages]
    return float(np.median(np.concatenate(steps_s)))


def _candidates(observation: Observation) -> list[_Candidate]:
    machine, op, nbytes = observation.machine, observation.op, observation.nbytes
    topology = machine.topology
    ranks = len(topology.ranks)
    candidates = []
    for lowered in lower_collective(machine, op, nbytes, range(ranks)):
        algorithm, protocol = lowered.schedule.algorithm, lowered.protocol
        context = CollectiveContext(op, nbytes, ranks, topology.hosts, algorithm, protocol)
        parameters = tuple(_parameters_of(lowered, topology))
        lost_s = uneven_s(machine.library, lowered, nbytes)
        candidates.append(_Candidate(lowered, context, parameters, lost_s, {}))
    return candidates


def _parameters_of(lowered: LoweredCollective, topology: Topology) -> Iterator[TransferParameter]:
    """Factors that the time depends on, but for the launch."""
    kinds = np.array(topology.arcs.kinds)
    edges = list({id(stage.edges): stage.edges for stage in lowered.stages}.values())
    for kind in np.unique(np.concatenate([kinds[np.unique(e.arcs)] for e in edges])).tolist():
        yield TransferParameter("bandwidth", kind)
    yield TransferParameter("rate", f"{lowered.schedule.algorithm}/{lowered.protocol}")
    for hop in np.unique(np.concatenate([np.unique(e.hop) for e in edges])).tolist():
        yield TransferParameter("step", f"{lowered.protocol}/{HOP_KINDS[hop]}")
