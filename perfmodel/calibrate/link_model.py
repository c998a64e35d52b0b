"""Times of measured collectives as functions of the machine's numbers that are to be fitted.

A time is that of `perfmodel.simulate.uncontended` on the machine with these numbers: a fit
solves for the numbers that predictions use, and measurements on 4 ranks inform about 2 or 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.apply import with_bandwidths, with_times
from perfmodel.calibrate.checks import faults_of
from perfmodel.calibrate.estimation import ForwardModel, Observation
from perfmodel.calibrate.parameters import Parameter, Values
from perfmodel.calibrate.profile import Rows
from perfmodel.errors import Fault, InputError, ScheduleError, raise_faults
from perfmodel.library.lowering.lowered import HOP_KINDS
from perfmodel.library.lowering.protocols import (
    chunk_bytes,
    reduced_bytes,
)
from perfmodel.library.machine import Machine
from perfmodel.measure.job import Measurement
from perfmodel.simulate.uncontended import UncontendedTimer


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
    raise_faults(faults)
    observations: list[Observation] = []
    for run, (name, m) in enumerate(named):
        try:
            observations += _observe(machine, m, rows, run)
        except ScheduleError as error:
            faults.append(
                Fault(
                    "algorithm",
                    f"{m.algorithm!r} ({error})",
                    "an algorithm and a collective that these ranks can run",
                    name,
                )
            )
        except InputError as error:
            faults += error.located(name).faults
    raise_faults(faults)
    return sorted(observations, key=lambda o: (o.op, o.ranks, o.nbytes, o.run))


def _observe(
    machine: Machine, measurement: Measurement, rows: Rows, run: int
) -> Iterator[Observation]:
    op, algorithm = measurement.collective, measurement.algorithm
    # Our rings of these two are chains around the library's rings.
    own = rows == "schedule" and (algorithm, op) not in {("ring", "broadcast"), ("ring", "reduce")}
    named = algorithm if own else None
    return (
        Observation.of(machine, op, measurement.ranks, nbytes, time_s, run, named)
        for nbytes, time_s in measurement.times(rows)
    )


class CostModel(ForwardModel):
    """Predicts the times of observations from numbers of the machine.

    Parameters
    ----------
    machine : Machine
        Whatever is not among the values stays as it is there.
    observations : sequence of Observation
    """

    log_step = 1e-4

    def __init__(self, machine: Machine, observations: Sequence[Observation]) -> None:
        super().__init__(observations)
        self.machine = machine
        self._routed: tuple[Values, Machine] = ({}, machine)

    def times_s(self, values: Values) -> FloatArray:
        """Time of each observation; seconds, shape (observations,)."""
        machine = self._with_bandwidths(values)
        timer = UncontendedTimer(machine.with_library(with_times(machine.library, values)))
        return np.array(
            [timer.best(o.op, o.nbytes, range(o.ranks), 0, o.algorithm)[1] for o in self.distinct]
        )[self._position]

    def _with_bandwidths(self, values: Values) -> Machine:
        """The machine with these bandwidths; routes stay until one of them changes."""
        rates = {key: si for key, si in values.items() if key.name == "bandwidth"}
        if rates != self._routed[0]:
            topology = with_bandwidths(self.machine.topology, rates)
            self._routed = rates, replace(self.machine, topology=topology)
        return self._routed[1]

    def parameters(self) -> dict[Parameter, float]:
        """Every parameter on which the times depend, with a start value.

        The one to keep first where two are not identifiable together comes first.
        """
        lowered = [each for observation in self.observations for each in observation.lowered]
        stages = [stage for each in lowered for stage in each.stages]
        arcs = self.machine.topology.arcs
        used = np.unique(np.concatenate([s.edges.arcs for s in stages])).tolist()
        rates = {  # of the narrowest of the used links of each kind
            kind: float(arcs.bandwidth_Bps[arcs.kinds.among((kind,))].min())
            for kind in dict.fromkeys(arcs.kinds[at] for at in used)
        }
        hops = [HOP_KINDS[hop] for hop in sorted({int(h) for s in stages for h in s.edges.hop})]
        protocols = list(dict.fromkeys(each.protocol for each in lowered))
        quickest_s = float(self.measured_s.min())
        steps = min(sum(phase.repeat for phase in each.schedule.phases) for each in lowered)
        start = {Parameter("bandwidth", kind): rate for kind, rate in rates.items()}
        places = [f"{name}/{hop}" for name in protocols for hop in hops]
        start |= {Parameter("step", place): 0.5 * quickest_s / max(steps, 1) for place in places}
        start |= {Parameter("launch", name): 0.2 * quickest_s for name in protocols}
        if any(reduced_bytes(each.schedule) > 0 for each in lowered):
            start |= {Parameter("reduce", name): 2 * min(rates.values()) for name in protocols}
        return start

    def reduced_shares_differ(self) -> bool:
        """Tell whether some observations add a larger share of what they send than others do.

        Otherwise the rate of adding is not identifiable beside other costs per byte.
        """
        schedules = [each.schedule for o in self.distinct for each in o.lowered]
        sent = [(reduced_bytes(schedule), chunk_bytes(schedule)) for schedule in schedules]
        return len({round(reduced / chunk, 1) for reduced, chunk in sent if chunk > 0}) > 1

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
