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
from perfmodel.library.lowering.lower import as_measured, lower_collective, uneven_s
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine, observed_time_s
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Arcs, Topology

LOG_STEP = 0.02
"""Logarithm by which a factor is moved to see what depends on it."""


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

    Only `arcs` change: the graph keeps the numbers by which the library chooses.
    """
    arcs = topology.arcs
    by_kind = np.array([factors.get(kind, 1.0) for kind in arcs.kinds])
    return topology.with_arcs(replace(arcs, bandwidth_Bps=arcs.bandwidth_Bps * by_kind))


class ForwardModel:
    """Predicts the times of measured collectives from factors.

    Parameters
    ----------
    observed : sequence of Observation
    """

    def __init__(self, observed: Sequence[Observation]) -> None:
        self.observed = tuple(observed)
        self.measured_s = np.array([one.measured_s for one in observed])
        keys = [(id(one.machine), one.op, one.nbytes) for one in observed]
        place = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        self._of = np.array([place[key] for key in keys], dtype=np.int64)
        firsts = dict(zip(reversed(keys), reversed(self.observed), strict=True))
        self._cases = [firsts[key] for key in place]
        self._ways = [_candidates(one) for one in self._cases]

    def times_s(self, factors: Mapping[TransferParameter, float]) -> FloatArray:
        """Time of each collective; seconds, shape (observed,)."""
        return self._timed(factors)[0]

    def situations(self, factors: Mapping[TransferParameter, float]) -> list[CollectiveContext]:
        """What carries each collective when the factors hold."""
        chosen = self._timed(factors)[1]
        return [chosen[at] for at in self._of]

    def shares(self, factors: Mapping[TransferParameter, float]) -> FloatArray:
        """Part of each time that is the way's, and not its start's; shape (observed,).

        What changes the way's time by a percent changes what is seen by this part of a percent: by
        nothing where a process is still busy to start the collective on other GPUs.
        """
        return self._timed(factors)[2]

    def slopes(
        self, factors: Mapping[TransferParameter, float], base_s: FloatArray | None = None
    ) -> FloatArray:
        """Change of the logarithm of each time per logarithm of each factor.

        Returns
        -------
        ndarray of float, shape (observed, factors)
        """
        base = np.log(self.times_s(factors) if base_s is None else base_s)
        columns = [
            (np.log(self.times_s({**factors, lever: f * np.exp(LOG_STEP)})) - base) / LOG_STEP
            for lever, f in factors.items()
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))

    def levers(self) -> list[TransferParameter]:
        """Every factor that some way of carrying these collectives has."""
        found = {lever: None for ways in self._ways for way in ways for lever in way.levers}
        order = ("bandwidth", "rate", "step")
        machines = [one.machine for one in self._cases]
        one_process = [m.settings.one_process and m.library.issue > 0 for m in machines]
        awaited = [m.settings.awaited and m.library.awaited > 0 for m in machines]
        lost = any(way.uneven_s for ways in self._ways for way in ways)
        told = {LAUNCH: True, ISSUE: any(one_process), AWAITED: any(awaited), UNEVEN: lost}
        first = [lever for lever, there in told.items() if there]
        return [*first, *sorted(found, key=lambda lever: order.index(lever.name))]

    def usual(self) -> dict[TransferParameter, float]:
        """What each factor multiplies, where it is met first; SI."""
        found: dict[TransferParameter, float] = {}
        for one, ways in zip(self._cases, self._ways, strict=True):
            arcs, library = one.machine.topology.arcs, one.machine.library
            found |= {ISSUE: library.issue, AWAITED: library.awaited}
            for way in ways:
                begun_s = way.carried.launch_s - way.uneven_s
                found.setdefault(LAUNCH, begun_s)
                for lever in way.levers:
                    if lever not in found:
                        found[lever] = _nominal_value(way, lever, arcs)
        return found

    def _timed(
        self, factors: Mapping[TransferParameter, float]
    ) -> tuple[FloatArray, list[CollectiveContext], FloatArray]:
        known: dict[int, UncontendedTimer] = {}
        times, chosen, shares = [], [], []
        measured = corrections_of(factors)
        for one, ways in zip(self._cases, self._ways, strict=True):
            timed = [(way.time_s(one.machine, factors, known), way.situation) for way in ways]
            best_s, situation = min(timed, key=lambda pair: pair[0])
            seen_s = observed_time_s(one.machine, best_s, measured)
            longer_s = observed_time_s(one.machine, best_s * (1.0 + LOG_STEP), measured)
            times.append(seen_s)
            chosen.append(situation)
            shares.append((longer_s / seen_s - 1.0) / LOG_STEP)
        return np.array(times)[self._of], chosen, np.array(shares)[self._of]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way of carrying a collective, and its times under the factors that were tried.

    Parameters
    ----------
    carried : LoweredCollective
    situation : CollectiveContext
    levers : tuple of TransferParameter
        The factors that its time depends on, but for the launch.
    uneven_s : float
        Part of the launch that is what uneven channels lose.
    known_s : dict
        Time but for the launch, by values of `levers`; seconds.
    """

    carried: LoweredCollective
    situation: CollectiveContext
    levers: tuple[TransferParameter, ...]
    uneven_s: float
    known_s: dict[tuple[float, ...], float]

    def time_s(
        self,
        machine: Machine,
        factors: Mapping[TransferParameter, float],
        known: dict[int, UncontendedTimer],
    ) -> float:
        """Time under some factors; seconds. `known` are estimators under these, by machine."""
        key = tuple(factors.get(lever, 1.0) for lever in self.levers)
        if key not in self.known_s:
            if id(machine) not in known:
                changed = scale_bandwidths(machine.topology, bandwidth_factors(factors))
                known[id(machine)] = UncontendedTimer(replace(machine, topology=changed))
            way = replace(self.carried, launch_s=0.0)
            measured = corrections_of(factors)
            self.known_s[key] = known[id(machine)].way_s(as_measured(measured, way, self.situation))
        launch_s = (self.carried.launch_s - self.uneven_s) * factors.get(LAUNCH, 1.0)
        return self.known_s[key] + launch_s + self.uneven_s * factors.get(UNEVEN, 1.0)


def _nominal_value(way: _Candidate, lever: TransferParameter, arcs: Arcs) -> float:
    """What a factor multiplies in a way; seconds, bytes per second or a share."""
    if lever.name == "bandwidth":
        rates = zip(arcs.bandwidth_Bps.tolist(), arcs.kinds, strict=True)
        return min(float(rate_Bps) for rate_Bps, kind in rates if kind == lever.where)
    if lever.name == "rate":
        return 1.0 / way.carried.wire_factor
    hop = HOP_KINDS.index(lever.where.partition("/")[2])
    steps_s = [stage.latency_s[stage.edges.hop == hop] for stage in way.carried.stages]
    return float(np.median(np.concatenate(steps_s)))


def _candidates(one: Observation) -> list[_Candidate]:
    topology = one.machine.topology
    ranks = len(topology.ranks)
    found = []
    for way in lower_collective(one.machine, one.op, one.nbytes, range(ranks)):
        algorithm = way.schedule.algorithm
        there = CollectiveContext(
            one.op, one.nbytes, ranks, topology.hosts, algorithm, way.protocol
        )
        lost_s = uneven_s(one.machine.library, way, one.nbytes)
        found.append(
            _Candidate(way, there, tuple(_parameters_of(way, there, topology)), lost_s, {})
        )
    return found


def _parameters_of(
    way: LoweredCollective, situation: CollectiveContext, topology: Topology
) -> Iterator[TransferParameter]:
    """What a way's time depends on, but for the launch."""
    kinds = np.array(topology.arcs.kinds)
    edges = list({id(stage.edges): stage.edges for stage in way.stages}.values())
    for kind in np.unique(np.concatenate([kinds[np.unique(e.arcs)] for e in edges])).tolist():
        yield TransferParameter("bandwidth", kind)
    yield TransferParameter("rate", f"{situation.algorithm}/{way.protocol}")
    for hop in np.unique(np.concatenate([np.unique(e.hop) for e in edges])).tolist():
        yield TransferParameter("step", f"{way.protocol}/{HOP_KINDS[hop]}")
