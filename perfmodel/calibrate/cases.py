"""What was measured, as collectives on a machine whose numbers are still open.

The time of a case is what `perfmodel.simulate.estimate` says about the machine with the values put
in: a fit solves for exactly the numbers that predictions will use, and what was measured on 4
ranks says something about 2 or 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.calibrate.apply import Values, with_bandwidths, with_times
from perfmodel.calibrate.profile import Parameter, Rows
from perfmodel.collectives.schedule import Floats, Ints
from perfmodel.errors import Fault, InputError, ScheduleError
from perfmodel.library.carry import Carried, Machine, carry
from perfmodel.library.costs import REDUCED_SHARE, chunk_bytes, step_latency_s, wire_factor
from perfmodel.library.edges import HOPS
from perfmodel.library.model import Library
from perfmodel.measure.record import Measurement
from perfmodel.simulate.estimate import Estimator, stage_s


@dataclass(frozen=True, slots=True)
class Case:
    """One measured time and the ways in which the library may have carried it."""

    collective: str
    ranks: int
    nbytes: int
    measured_s: float
    ways: tuple[Carried, ...]

    @property
    def chunk_bytes(self) -> float:
        """Size of one send."""
        return chunk_bytes(self.ways[0].schedule)


def cases_of(measurements: Sequence[Measurement], machine: Machine, rows: Rows) -> list[Case]:
    """The rows of one kind, by collective, ranks and size.

    Raises
    ------
    InputError
        Measurements that this machine cannot have made; every fault at once.
    """
    faults = [f for number, m in enumerate(measurements) for f in _faults(m, number, machine)]
    if faults:
        raise InputError(faults)
    found: list[Case] = []
    for number, measurement in enumerate(measurements):
        for nbytes, time_s in measurement.times(rows):
            try:
                ways = _ways(machine, measurement, nbytes, rows)
            except ScheduleError as error:
                faults.append(Fault(f"measurement {number + 1}", str(error), "another file"))
                break
            except InputError as error:
                faults += error.faults
                break
            found.append(Case(measurement.collective, measurement.ranks, nbytes, time_s, ways))
    if faults:
        raise InputError(faults)
    return sorted(found, key=lambda case: (case.collective, case.ranks, case.nbytes))


def _ways(machine: Machine, made: Measurement, nbytes: int, rows: Rows) -> tuple[Carried, ...]:
    algorithm = made.algorithm if rows == "schedule" else None
    if (made.algorithm, made.collective) in {("ring", "broadcast"), ("ring", "reduce")}:
        algorithm = None  # chains around the library's rings
    return carry(machine, made.collective, nbytes, range(made.ranks), algorithm=algorithm)


def _faults(made: Measurement, number: int, machine: Machine) -> Iterator[Fault]:
    topology, where = machine.topology, f"measurement {number + 1}"
    if made.topology is not None and made.topology != topology.template:
        yield Fault(f"{where}: topology", repr(made.topology), f"{topology.template!r}, as asked")
    if made.backend == "device":
        yield Fault(f"{where}: backend", "'device'", "'gloo' or 'nccl': collectives of ranks")
    elif machine.library.name not in {made.backend, "plain"}:
        yield Fault(f"{where}: backend", repr(made.backend), f"{machine.library.name!r}, as asked")
    if not 2 <= made.ranks <= len(topology.ranks):
        allowed = f"2 to {len(topology.ranks)} ranks, as {topology.name} has"
        yield Fault(f"{where}: ranks", str(made.ranks), allowed)
    bad = [row for row in made.rows if row.median_s <= 0 or row.nbytes <= 0]
    if bad:
        found = f"{len(bad)} rows with a size or a median time of zero or less"
        yield Fault(f"{where}: rows", found, "sizes and times above zero")


class Forward:
    """Predicts the times of cases from values.

    Parameters
    ----------
    machine : Machine
        Whatever is not among the values stays as it is there.
    cases : sequence of Case
    """

    def __init__(self, machine: Machine, cases: Sequence[Case]) -> None:
        self.machine = machine
        self.cases = tuple(cases)
        self.measured_s = np.array([case.measured_s for case in cases])
        self._ways = [[_prepared(way) for way in case.ways] for case in cases]

    def times_s(self, values: Values) -> Floats:
        """Time of each case; seconds, shape (cases,)."""
        machine = self.machine
        library = with_times(machine.library, values)
        known = Estimator(replace(machine, topology=with_bandwidths(machine.topology, values)))
        return np.array([min(way.time_s(library, known) for way in ways) for ways in self._ways])

    def parameters(self) -> dict[Parameter, float]:
        """Everything that these cases may tell, most telling first, with a value to start from."""
        ways = [way for case in self.cases for way in case.ways]
        stages = [stage for way in ways for stage in way.stages]
        rates = self._narrowest(np.unique(np.concatenate([s.edges.arcs for s in stages])))
        hops = [HOPS[hop] for hop in sorted({int(h) for s in stages for h in s.edges.hop})]
        names = list(dict.fromkeys(way.protocol for way in ways))
        quickest_s = float(self.measured_s.min())
        steps = min(sum(phase.repeat for phase in way.schedule.phases) for way in ways)
        found = {Parameter("bandwidth", kind): rate for kind, rate in rates.items()}
        for name in names:
            for hop in hops:
                found[Parameter("step", f"{name}/{hop}")] = 0.5 * quickest_s / max(steps, 1)
        for name in names:
            found[Parameter("launch", name)] = 0.2 * quickest_s
        if any(case.collective in REDUCED_SHARE for case in self.cases):
            found |= {Parameter("reduce", name): 2 * min(rates.values()) for name in names}
        return found

    def _narrowest(self, used: Ints) -> dict[str, float]:
        """Bandwidth of the narrowest link of each kind that the cases use; bytes per second."""
        arcs = self.machine.topology.arcs
        kinds = np.array(arcs.kinds)
        return {
            kind: float(arcs.bandwidth_Bps[kinds == kind].min())
            for kind in dict.fromkeys(kinds[used].tolist())
        }


@dataclass(frozen=True, slots=True)
class _Way:
    """A way with what does not depend on values.

    Parameters
    ----------
    carried : Carried
    chunk_bytes : float
    steps : ndarray of float, shape (stages,) or None
        Repeats of each stage if all its edges send alike, one after the other; else None.
    sent_bytes : ndarray of float, shape (stages,)
        What an edge of such a stage sends.
    """

    carried: Carried
    chunk_bytes: float
    steps: tuple[int, ...] | None
    sent_bytes: tuple[float, ...]

    def time_s(self, library: Library, known: Estimator) -> float:
        """Time of the way with a library and links; seconds."""
        protocol, way = library.protocols[self.carried.protocol], self.carried
        wire = wire_factor(protocol, self.chunk_bytes)
        total = protocol.launch
        for number, stage in enumerate(way.stages):
            rate_Bps = known.rates(stage)
            latency_s = step_latency_s(protocol, stage.edges, way.schedule)
            if self.steps and np.ptp(rate_Bps) == 0 and np.ptp(latency_s) == 0:
                sent = self.sent_bytes[number] * wire / float(rate_Bps[0])
                total += sent + self.steps[number] * float(latency_s[0])
            else:
                priced = replace(way, wire_factor=wire)
                total += stage_s(priced, replace(stage, latency_s=latency_s), rate_Bps)
        return total


def _prepared(way: Carried) -> _Way:
    alike = way.credits == 1 and all(
        np.ptp(phase.nbytes) == 0 for stage in way.stages for phase in stage.phases
    )
    steps = tuple(sum(phase.repeat for phase in stage.phases) for stage in way.stages)
    sent = tuple(
        sum(phase.repeat * float(phase.nbytes[0]) for phase in stage.phases) for stage in way.stages
    )
    return _Way(way, chunk_bytes(way.schedule), steps if alike else None, sent)
