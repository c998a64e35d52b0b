"""What was measured, as collectives on a machine whose numbers are still open.

The time of a case is what `perfmodel.simulate.uncontended` says about the machine with the values put
in: a fit solves for exactly the numbers that predictions will use, and what was measured on 4
ranks says something about 2 or 8.
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
from perfmodel.library.lowering.protocols import numbers_of
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary
from perfmodel.measure.record import Measurement
from perfmodel.simulate.uncontended import UncontendedTimer, joined_stages, leg_of, ranks_of


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time and the ways in which the library may have carried it."""

    collective: str
    ranks: int
    nbytes: int
    measured_s: float
    ways: tuple[LoweredCollective, ...]
    run: int = 0

    @property
    def chunk_bytes(self) -> float:
        """Size of one send."""
        return chunk_bytes(self.ways[0].schedule)


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
    faults = [fault for name, made in named for fault in faults_of(made, machine, name)]
    if faults:
        raise InputError(faults)
    found: list[Observation] = []
    for run, (name, made) in enumerate(named):
        try:
            found += [
                Observation(
                    made.collective,
                    made.ranks,
                    nbytes,
                    t,
                    _lowered(machine, made, nbytes, rows),
                    run,
                )
                for nbytes, t in made.times(rows)
            ]
        except ScheduleError as error:
            allowed = "an algorithm and a collective that these ranks can run"
            faults.append(Fault("algorithm", f"{made.algorithm!r} ({error})", allowed, name))
        except InputError as error:
            faults += error.located(name).faults
    if faults:
        raise InputError(faults)
    return sorted(found, key=lambda case: (case.collective, case.ranks, case.nbytes, case.run))


def _lowered(
    machine: Machine, made: Measurement, nbytes: int, rows: Rows
) -> tuple[LoweredCollective, ...]:
    algorithm = made.algorithm if rows == "schedule" else None
    if (made.algorithm, made.collective) in {("ring", "broadcast"), ("ring", "reduce")}:
        algorithm = None  # chains around the library's rings
    return lower_collective(
        machine, made.collective, nbytes, range(made.ranks), algorithm=algorithm
    )


class ForwardModel:
    """Predicts the times of cases from values.

    Parameters
    ----------
    machine : Machine
        Whatever is not among the values stays as it is there.
    cases : sequence of Observation
    """

    def __init__(self, machine: Machine, cases: Sequence[Observation]) -> None:
        self.machine = machine
        self.cases = tuple(cases)
        self.measured_s = np.array([case.measured_s for case in cases])
        # Several runs measured the same: their time is worked out once.
        keys = [(case.collective, case.ranks, case.nbytes) for case in cases]
        place = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        self._of = np.array([place[key] for key in keys], dtype=np.int64)
        firsts = dict(zip(reversed(keys), reversed(cases), strict=True))
        laid: dict[tuple[bytes, bytes], Edges] = {}
        self._ways = [[_Candidate.of(way, laid) for way in firsts[key].ways] for key in place]

    def times_s(self, values: Values) -> FloatArray:
        """Time of each case; seconds, shape (cases,)."""
        machine = self.machine
        library = with_times(machine.library, values)
        known = UncontendedTimer(
            replace(machine, topology=with_bandwidths(machine.topology, values))
        )
        rates: dict[tuple[int, str], FloatArray] = {}
        times = np.array(
            [min(way.time_s(library, known, rates) for way in ways) for ways in self._ways]
        )
        return times[self._of]

    def parameters(self) -> dict[Parameter, float]:
        """Everything that these cases may tell, most telling first, with a value to start from."""
        ways = [way for case in self.cases for way in case.ways]
        stages = [stage for way in ways for stage in way.stages]
        rates = self._narrowest(np.unique(np.concatenate([s.edges.arcs for s in stages])))
        hops = [HOP_KINDS[hop] for hop in sorted({int(h) for s in stages for h in s.edges.hop})]
        names = list(dict.fromkeys(way.protocol for way in ways))
        quickest_s = float(self.measured_s.min())
        steps = min(sum(phase.repeat for phase in way.schedule.phases) for way in ways)
        found = {Parameter("bandwidth", kind): rate for kind, rate in rates.items()}
        for name in names:
            for hop in hops:
                found[Parameter("step", f"{name}/{hop}")] = 0.5 * quickest_s / max(steps, 1)
        for name in names:
            found[Parameter("launch", name)] = 0.2 * quickest_s
        if any(way.reduced > 0 for ways in self._ways for way in ways):
            found |= {Parameter("reduce", name): 2 * min(rates.values()) for name in names}
        return found

    def sums_differ(self) -> bool:
        """Whether some of the cases add a larger share of what they send than others do.

        Where they do not, a rank's adding cannot be told from what else it does to each byte.
        """
        ways = [way for ways in self._ways for way in ways if way.chunk_bytes > 0]
        return len({round(way.reduced / way.chunk_bytes, 1) for way in ways}) > 1

    def shared(self, values: Values) -> list[dict[Parameter, float]]:
        """Numbers that tell what a rank can do alone from what all ranks of a host can, to start.

        Each more than the one before; none where the ranks of one host were always as many, or
        where they do not meet in its memory.
        """
        memory = [v for k, v in values.items() if k == Parameter("bandwidth", "memory")]
        counts = sorted({case.ranks for case in self.cases})
        protocols = {way.protocol for case in self.cases for way in case.ways}
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
        """Bandwidth of the narrowest link of each kind that the cases use; bytes per second."""
        arcs = self.machine.topology.arcs
        kinds = np.array(arcs.kinds)
        return {
            kind: float(arcs.bandwidth_Bps[kinds == kind].min())
            for kind in dict.fromkeys(kinds[used].tolist())
        }


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A way with what does not depend on values.

    Parameters
    ----------
    carried : LoweredCollective
    legs : tuple of Stage
        Its stages as they are timed; like edges are one object in all ways.
    steady : tuple of bool
        Whether all edges of a leg work all the time.
    chunk_bytes : float
        Size of one send.
    reduced : float
        Bytes of it that the receiver adds.
    """

    carried: LoweredCollective
    legs: tuple[Stage, ...]
    steady: tuple[bool, ...]
    chunk_bytes: float
    reduced: float

    @staticmethod
    def of(way: LoweredCollective, laid: dict[tuple[bytes, bytes], Edges]) -> _Candidate:
        legs = tuple(
            replace(leg, edges=laid.setdefault(
                (leg.edges.arcs.tobytes(), leg.edges.pointers.tobytes()), leg.edges))
            for leg in joined_stages(way.stages)
        )  # fmt: skip
        steady = tuple(
            all(bool((phase.active == phase.repeat).all()) for phase in leg.phases) for leg in legs
        )
        chunk, reduced = chunk_bytes(way.schedule), reduced_bytes(way.schedule)
        return _Candidate(way, legs, steady, chunk, reduced)

    def time_s(
        self,
        library: CommLibrary,
        known: UncontendedTimer,
        rates: dict[tuple[int, str], FloatArray],
    ) -> float:
        """Time of the way with a library and links; seconds. `rates` are kept for other ways."""
        schedule = self.carried.schedule
        numbers = numbers_of(library, schedule.collective, schedule.algorithm)
        protocol = numbers[self.carried.protocol]
        way = replace(self.carried, wire_factor=wire_factor(protocol, self.chunk_bytes))
        begun_s = launch_s(protocol, way.schedule.nbytes)
        legs = tuple(
            replace(
                leg,
                latency_s=step_latency_s(protocol, leg.edges, way.schedule, reduced=self.reduced),
                cap_Bps=rate_limit_Bps(protocol, leg.edges, way.schedule),
            )
            for leg in self.legs
        )
        if not all(self.steady):  # pipelines fill and drain: the estimator knows how
            return known.way_s(replace(way, stages=legs, launch_s=begun_s))
        parts = []
        for leg, priced in zip(self.legs, legs, strict=True):
            key = (id(leg.edges), way.protocol)
            if key not in rates:
                rates[key] = known.rates(priced)
            parts.append(leg_of(way, priced, rates[key]))
        ends = legs_ends(parts, ranks_of(way), credits=way.credits)
        return begun_s + max((end.last_s for _, end in ends), default=0.0)
