"""Times of measured collectives as functions of the machine's numbers that are to be fitted.

A time is that of `perfmodel.simulate.uncontended` on the machine with these numbers: a fit solves
for exactly the numbers that predictions use, and measurements on 4 ranks inform about 2 or 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.calibrate.apply import Values, with_bandwidths, with_times
from perfmodel.calibrate.checks import faults_of
from perfmodel.calibrate.profile import Parameter, Rows
from perfmodel.collectives.timing.recurrence import legs_ends
from perfmodel.errors import Fault, InputError, ScheduleError
from perfmodel.library.lowering.edges import HOP_KINDS, Edges
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.lowering.protocol_costs import (
    chunk_bytes,
    launch_s,
    rate_limit_Bps,
    reduced_bytes,
    step_latency_s,
    wire_factor,
)
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary
from perfmodel.measure.record import Measurement
from perfmodel.simulate.uncontended import (
    UncontendedTimer,
    joined_stages,
    participants,
    timed_phases,
)


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time and the lowerings of which the library may have chosen."""

    collective: str
    ranks: int
    nbytes: int
    measured_s: float
    lowered: tuple[LoweredCollective, ...]
    run: int = 0

    @property
    def chunk_bytes(self) -> float:
        """Size of one send."""
        return chunk_bytes(self.lowered[0].schedule)


def observations_of(
    measurements: Sequence[Measurement],
    machine: Machine,
    rows: Rows,
    files: Sequence[str] = (),
) -> list[Observation]:
    """The rows of one kind, by collective, ranks, size and run.

    Parameters
    ----------
    measurements : sequence of Measurement
        Each from processes that were started afresh: each is a run.
    machine : Machine
    rows : {"library", "schedule"}
    files : sequence of str
        Names of the measurements in messages; default: their numbers.

    Raises
    ------
    InputError
        Measurements that this machine cannot have made; every fault at once.
    """
    names = list(files) or [f"measurement {number + 1}" for number in range(len(measurements))]
    named = list(zip(names, measurements, strict=True))
    faults = [fault for name, m in named for fault in faults_of(m, machine, name)]
    if faults:
        raise InputError(faults)
    observations: list[Observation] = []
    for run, (name, m) in enumerate(named):
        try:
            observations += [
                Observation(
                    m.collective, m.ranks, nbytes, time_s, _lower(machine, m, nbytes, rows), run
                )
                for nbytes, time_s in m.times(rows)
            ]
        except ScheduleError as error:
            allowed = "an algorithm and a collective that these ranks can run"
            faults.append(Fault("algorithm", f"{m.algorithm!r} ({error})", allowed, name))
        except InputError as error:
            faults += error.located(name).faults
    if faults:
        raise InputError(faults)
    return sorted(observations, key=lambda o: (o.collective, o.ranks, o.nbytes, o.run))


def _lower(
    machine: Machine, measurement: Measurement, nbytes: int, rows: Rows
) -> tuple[LoweredCollective, ...]:
    op, algorithm = measurement.collective, measurement.algorithm
    # Our rings of these two are chains around the library's rings.
    own = rows == "schedule" and (algorithm, op) not in {("ring", "broadcast"), ("ring", "reduce")}
    ranks = range(measurement.ranks)
    return lower_collective(machine, op, nbytes, ranks, algorithm=algorithm if own else None)


class ForwardModel:
    """Predicts the times of observations from values.

    Parameters
    ----------
    machine : Machine
        Whatever is not among the values stays as it is there.
    observations : sequence of Observation
    """

    def __init__(self, machine: Machine, observations: Sequence[Observation]) -> None:
        self.machine = machine
        self.observations = tuple(observations)
        self.measured_s = np.array([o.measured_s for o in observations])
        # Several runs measured the same collective: its time is computed once.
        keys = [(o.collective, o.ranks, o.nbytes) for o in observations]
        position = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        self._position = np.array([position[key] for key in keys], dtype=np.int64)
        firsts = dict(zip(reversed(keys), reversed(observations), strict=True))
        edges: dict[tuple[bytes, bytes], Edges] = {}
        self._candidates = [
            [_Candidate.of(lowered, edges) for lowered in firsts[key].lowered] for key in position
        ]

    def times_s(self, values: Values) -> FloatArray:
        """Time of each observation; seconds, shape (observations,)."""
        machine = self.machine
        library = with_times(machine.library, values)
        timer = UncontendedTimer(
            replace(machine, topology=with_bandwidths(machine.topology, values))
        )
        rates: dict[tuple[int, str], FloatArray] = {}
        times = np.array(
            [min(c.time_s(library, timer, rates) for c in group) for group in self._candidates]
        )
        return times[self._position]

    def parameters(self) -> dict[Parameter, float]:
        """Every parameter on which the times depend, with a start value.

        The one to keep first where two are not identifiable together comes first.
        """
        lowered = [each for observation in self.observations for each in observation.lowered]
        stages = [stage for each in lowered for stage in each.stages]
        rates = self._narrowest(np.unique(np.concatenate([s.edges.arcs for s in stages])))
        hops = [HOP_KINDS[hop] for hop in sorted({int(h) for s in stages for h in s.edges.hop})]
        protocols = list(dict.fromkeys(each.protocol for each in lowered))
        quickest_s = float(self.measured_s.min())
        steps = min(sum(phase.repeat for phase in each.schedule.phases) for each in lowered)
        start = {Parameter("bandwidth", kind): rate for kind, rate in rates.items()}
        for name in protocols:
            for hop in hops:
                start[Parameter("step", f"{name}/{hop}")] = 0.5 * quickest_s / max(steps, 1)
        for name in protocols:
            start[Parameter("launch", name)] = 0.2 * quickest_s
        if any(candidate.reduced > 0 for group in self._candidates for candidate in group):
            start |= {Parameter("reduce", name): 2 * min(rates.values()) for name in protocols}
        return start

    def reduced_shares_differ(self) -> bool:
        """Whether some observations add a larger share of what they send than others do.

        Otherwise the rate of adding is not identifiable beside other costs per byte.
        """
        sending = [c for group in self._candidates for c in group if c.chunk_bytes > 0]
        return len({round(c.reduced / c.chunk_bytes, 1) for c in sending}) > 1

    def host_limits(self, values: Values) -> list[dict[Parameter, float]]:
        """Parameters that separate limits of one rank from those of its host, with start values.

        Each larger than the one before; none where the number of ranks of a host never changes, or
        where they do not meet in its memory.
        """
        memory = [v for k, v in values.items() if k == Parameter("bandwidth", "memory")]
        counts = sorted({observation.ranks for observation in self.observations})
        protocols = {each.protocol for o in self.observations for each in o.lowered}
        if len(counts) < 2 or len(protocols) != 1 or not memory:
            return []
        (name,) = protocols
        step = values.get(Parameter("step", f"{name}/memory"))
        # Between the fewest ranks and the next, and between the most and the next.
        rate = {Parameter("rank_rate", name): memory[0] / (counts[0] * counts[1]) ** 0.5}
        if step is None:
            return [rate]
        host = {Parameter("host_step", name): step / (counts[-1] * counts[-2]) ** 0.5}
        return [rate, host, rate | host]

    def _narrowest(self, used: IntArray) -> dict[str, float]:
        """Bandwidth of the narrowest of the used links of each kind; bytes per second."""
        arcs = self.machine.topology.arcs
        kinds = np.array(arcs.kinds)
        return {
            kind: float(arcs.bandwidth_Bps[kinds == kind].min())
            for kind in dict.fromkeys(kinds[used].tolist())
        }


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A lowering that the library may choose, prepared to be timed with other values.

    Parameters
    ----------
    lowered : LoweredCollective
    legs : tuple of Stage
        Its stages as they are timed; equal edges are one object in all candidates.
    steady : tuple of bool
        Whether all edges of a leg work all the time.
    chunk_bytes : float
        Size of one send.
    reduced : float
        Bytes of it that the receiver adds.
    """

    lowered: LoweredCollective
    legs: tuple[Stage, ...]
    steady: tuple[bool, ...]
    chunk_bytes: float
    reduced: float

    @staticmethod
    def of(lowered: LoweredCollective, edges: dict[tuple[bytes, bytes], Edges]) -> _Candidate:
        legs = tuple(
            replace(leg, edges=edges.setdefault(
                (leg.edges.arcs.tobytes(), leg.edges.pointers.tobytes()), leg.edges))
            for leg in joined_stages(lowered.stages)
        )  # fmt: skip
        steady = tuple(
            all(bool((phase.active == phase.repeat).all()) for phase in leg.phases) for leg in legs
        )
        chunk, reduced = chunk_bytes(lowered.schedule), reduced_bytes(lowered.schedule)
        return _Candidate(lowered, legs, steady, chunk, reduced)

    def time_s(
        self,
        library: CommLibrary,
        timer: UncontendedTimer,
        rates: dict[tuple[int, str], FloatArray],
    ) -> float:
        """Time with a library and links; seconds. `rates` are kept for other candidates."""
        schedule = self.lowered.schedule
        numbers = protocol_parameters(library, schedule.collective, schedule.algorithm)
        protocol = numbers[self.lowered.protocol]
        lowered = replace(self.lowered, wire_factor=wire_factor(protocol, self.chunk_bytes))
        begun_s = launch_s(protocol, schedule.nbytes)
        legs = tuple(
            replace(
                leg,
                latency_s=step_latency_s(protocol, leg.edges, schedule, reduced=self.reduced),
                cap_Bps=rate_limit_Bps(protocol, leg.edges, schedule),
            )
            for leg in self.legs
        )
        if not all(self.steady):  # pipelines fill and drain: the timer models that
            return timer.time_s(replace(lowered, stages=legs, launch_s=begun_s))
        parts = []
        for leg, priced in zip(self.legs, legs, strict=True):
            key = (id(leg.edges), lowered.protocol)
            if key not in rates:
                rates[key] = timer.rates(priced)
            parts.append(timed_phases(lowered, priced, rates[key]))
        ends = legs_ends(parts, participants(lowered), credits=lowered.credits)
        return begun_s + max((end.last_s for _, end in ends), default=0.0)
