"""Times of measured collectives as functions of the factors on the mechanism's numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.estimation import ForwardModel, Observation
from perfmodel.calibrate.parameters import Parameter, Values
from perfmodel.calibrate.transfer.priors import (
    AWAITED,
    ISSUE,
    LAUNCH,
    UNEVEN,
    bandwidth_factors,
    corrections_of,
)
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.lowering.lower import apply_corrections
from perfmodel.library.lowering.lowered import HOP_KINDS, LoweredCollective
from perfmodel.library.machine import Machine, observed_time_s
from perfmodel.simulate.uncontended import UncontendedTimer, hidden_s
from perfmodel.topology.arcs import Arcs
from perfmodel.topology.model import Topology


def scale_bandwidths(topology: Topology, factors: Mapping[str, float]) -> Topology:
    """Return the topology with the bandwidth of each kind of link multiplied by its factor.

    Only `arcs` change: `built` keeps the numbers by which the library chooses.
    """
    arcs = topology.arcs
    by_kind = arcs.kinds.values(factors, 1.0)
    return topology.with_arcs(replace(arcs, bandwidth_Bps=arcs.bandwidth_Bps * by_kind))


def model_of(gpu: str) -> str:
    """Name of a GPU without the size of its memory, on which no communication depends.

    Examples
    --------
    >>> model_of("a100-sxm4-40gb")
    'a100-sxm4'
    """
    return re.sub(r"-\d+gb$", "", gpu)


class FactorModel(ForwardModel):
    """Predicts the times of measured collectives from factors."""

    log_step = 0.02

    def __init__(self, observations: Sequence[Observation]) -> None:
        super().__init__(observations)
        self._candidates = [(o.machine, _candidates(o)) for o in self.distinct]

    def times_s(self, factors: Values) -> FloatArray:
        """Time of each collective; seconds, shape (observations,)."""
        return self._predict(factors)[0]

    def contexts(self, factors: Values) -> tuple[list[CollectiveContext], list[float]]:
        """Context (algorithm, protocol) of the quickest candidate of each collective, and a share.

        That is the part of its time that is not the host's start of the collective: the elasticity
        of the observed time to the collective's own, zero where a process is still busy to start
        the collective on other GPUs.
        """
        _, chosen, shares = self._predict(factors)
        return [chosen[at] for at in self._position], shares.tolist()

    def parameters(self) -> list[Parameter]:
        """Every factor that the time of some candidate depends on."""
        candidates = [c for _, candidates in self._candidates for c in candidates]
        of_candidates = dict.fromkeys(p for c in candidates for p in c.parameters)
        order = ("bandwidth", "rate", "step")
        machines = [machine for machine, _ in self._candidates]
        applies = {
            LAUNCH: True,
            ISSUE: any(m.settings.one_process and m.library.issue > 0 for m in machines),
            AWAITED: any(m.settings.awaited and m.library.awaited > 0 for m in machines),
            UNEVEN: any(c.lowered.uneven_s for c in candidates),
        }
        first = [parameter for parameter, holds in applies.items() if holds]
        return [*first, *sorted(of_candidates, key=lambda parameter: order.index(parameter.name))]

    def nominal_values(self) -> dict[Parameter, float]:
        """What each factor multiplies in the first candidate that has it; SI."""
        nominal: dict[Parameter, float] = {}
        for machine, candidates in self._candidates:
            arcs, library = machine.topology.arcs, machine.library
            nominal |= {ISSUE: library.issue, AWAITED: library.awaited}
            for candidate in candidates:
                lowered = candidate.lowered
                nominal.setdefault(LAUNCH, lowered.launch_s - lowered.uneven_s)
                unknown = (
                    parameter for parameter in candidate.parameters if parameter not in nominal
                )
                nominal |= {p: _nominal_value(lowered, p, arcs) for p in unknown}
        return nominal

    def _predict(self, factors: Values) -> tuple[FloatArray, list[CollectiveContext], FloatArray]:
        timers: dict[Machine, UncontendedTimer] = {}
        times, chosen, shares = [], [], []
        corrections = corrections_of(factors)
        for machine, candidates in self._candidates:
            timed = [(c.time_s(machine, factors, timers), c) for c in candidates]
            alone_s, best = min(timed, key=lambda pair: pair[0])
            best_s = alone_s - best.hidden_s(factors)
            observed_s = observed_time_s(machine, best_s, corrections)
            longer_s = observed_time_s(machine, best_s * (1.0 + self.log_step), corrections)
            times.append(observed_s)
            chosen.append(best.context)
            shares.append((longer_s / observed_s - 1.0) / self.log_step)
        return np.array(times)[self._position], chosen, np.array(shares)[self._position]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A lowering of a collective that the library may choose, with its times under factors.

    Parameters
    ----------
    lowered : LoweredCollective
    context : CollectiveContext
    parameters : tuple of Parameter
        The factors that its time depends on, but for the launch.
    hidden : float
        Share of the time without the launch that the next repetition hides (`hidden_s`).
    cache : dict
        Time without the launch by factors of `parameters`; seconds.
    """

    lowered: LoweredCollective
    context: CollectiveContext
    parameters: tuple[Parameter, ...]
    hidden: float
    cache: dict[tuple[float, ...], float]

    def time_s(
        self,
        machine: Machine,
        factors: Values,
        timers: dict[Machine, UncontendedTimer],
    ) -> float:
        """Time under some factors; seconds. `timers` holds those of machines with the factors."""
        key = self._key(factors)
        if key not in self.cache:
            if machine not in timers:
                topology = scale_bandwidths(machine.topology, bandwidth_factors(factors))
                timers[machine] = UncontendedTimer(replace(machine, topology=topology))
            corrected = apply_corrections(
                corrections_of(factors),
                replace(self.lowered, launch_s=0.0, uneven_s=0.0),
                self.context,
            )
            self.cache[key] = timers[machine].time_s(corrected)
        uneven_s = self.lowered.uneven_s
        launch_s = (self.lowered.launch_s - uneven_s) * factors.get(LAUNCH, 1.0)
        return self.cache[key] + launch_s + uneven_s * factors.get(UNEVEN, 1.0)

    def hidden_s(self, factors: Values) -> float:
        """Time that the next repetition hides, after `time_s` with the same factors; seconds."""
        return self.hidden * self.cache[self._key(factors)] if self.hidden else 0.0

    def _key(self, factors: Values) -> tuple[float, ...]:
        return tuple(factors.get(parameter, 1.0) for parameter in self.parameters)


def _nominal_value(lowered: LoweredCollective, parameter: Parameter, arcs: Arcs) -> float:
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
    topology = observation.machine.topology
    situation = observation.op, observation.nbytes, observation.ranks, topology.hosts
    return [
        _Candidate(
            lowered,
            CollectiveContext(*situation, lowered.schedule.algorithm, lowered.protocol),
            tuple(_parameters_of(lowered, topology)),
            _hidden_share(lowered, observation),
            {},
        )
        for lowered in observation.lowered
    ]


def _hidden_share(lowered: LoweredCollective, observation: Observation) -> float:
    """Share of the time without the launch that the next repetition hides."""
    timer = UncontendedTimer(observation.machine)
    hiding_s = hidden_s(timer, lowered, observation.op, range(observation.ranks))
    return hiding_s / (timer.time_s(lowered) - lowered.launch_s) if hiding_s else 0.0


def _parameters_of(lowered: LoweredCollective, topology: Topology) -> Iterator[Parameter]:
    """Factors that the time depends on, but for the launch."""
    kinds = topology.arcs.kinds
    edges = list(dict.fromkeys(stage.edges for stage in lowered.stages))
    for kind in sorted({kind for e in edges for kind in kinds.present(e.arcs)}):
        yield Parameter("bandwidth", kind)
    yield Parameter("rate", f"{lowered.schedule.algorithm}/{lowered.protocol}")
    for hop in np.unique(np.concatenate([np.unique(e.hop) for e in edges])).tolist():
        yield Parameter("step", f"{lowered.protocol}/{HOP_KINDS[hop]}")
