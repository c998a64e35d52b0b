"""A step again with each uncertain number at both ends of its interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.library.prediction_error import kind_of_machine
from perfmodel.studies.run.resolve.what_if import what_if_of
from perfmodel.studies.run.result import SizeResult, Uncertainty
from perfmodel.studies.run.steps.output_analysis import SETTLED
from perfmodel.studies.run.steps.simulate_step import SimulationSetup, simulate_steps
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.workload.compute_spread import overlap_slowdowns


def simulate_uncertainties(
    sized: SizedJob, reported: ReportedRun, point: SizeResult
) -> tuple[Uncertainty, ...] | None:
    """Simulate the ends of compute, overlap and network; None where the network's are not known.

    What varies from step to step is left out of these simulations: their ratios to one that leaves
    it out, too, are what counts.

    `point`: the result without an interval.
    """
    communicates = sized.size.gpus > 1 and what_if_of(sized.job.scenario).communication
    if communicates and not sized.ensemble.alternatives:
        return None
    ends = _StepEnds(sized, reported, _base_s(sized, reported))
    parts = [ends.of_compute()]
    if communicates:
        parts += [*ends.of_overlap(), ends.of_network()]
    disturbance = point.disturbance
    if disturbance is not None and disturbance.mean_interval_s is not None:
        parts.append(Uncertainty("chance", *disturbance.mean_interval_s, is_shared=False))
    return tuple(part for part in parts if part.low_s != part.high_s)


@dataclass(frozen=True, slots=True)
class _StepEnds:
    """Simulates a job at the ends of its uncertain numbers, one at a time, at fidelity "flow"."""

    sized: SizedJob
    reported: ReportedRun
    base_s: float

    def of_compute(self) -> Uncertainty:
        sized = self.sized
        low, high = sized.compute_spread
        job = sized.job
        origin = f"compute of {job.workload.name} on {job.gpu.name}, {job.scenario.compute.source}"
        slower = (sized.with_compute(by).setup() for by in (low, high))
        return self._between(origin, slower)

    def of_overlap(self) -> Iterable[Uncertainty]:
        """Slowdown of compute beside collectives, where it is a typical one of GPUs."""
        stated = self.sized.job.scenario.compute.overlap_slowdown is not None
        if stated or self.sized.job.gpu.overlap_slowdown == 1:
            return
        setup = self.reported.setup
        yield self._between(
            "overlap", (replace(setup, slowdown=slowdown) for slowdown in overlap_slowdowns())
        )

    def of_network(self) -> Uncertainty:
        ensemble, setup = self.sized.ensemble, self.reported.setup
        origin = f"network of {kind_of_machine(ensemble.likely.topology)}"
        if ensemble.bounds:
            return self._between(origin, map(setup.on, ensemble.bounds))
        from perfmodel.calibrate import interval_s

        drawn_s = [_step_s(self.sized, setup.on(drawn)) for drawn in ensemble.drawn]
        ends_s = interval_s(drawn_s, self.base_s) or (self.base_s, self.base_s)
        return self._relative(origin, *ends_s)

    def _between(self, origin: str, setups: Iterable[SimulationSetup]) -> Uncertainty:
        low_s, high_s = (_step_s(self.sized, setup) for setup in setups)
        return self._relative(origin, low_s, high_s)

    def _relative(self, origin: str, low_s: float, high_s: float) -> Uncertainty:
        """Ends in proportion to the reported step, which may vary or be one of messages."""
        share = self.reported.step_s / self.base_s
        return Uncertainty(origin, low_s * share, high_s * share)


def _base_s(sized: SizedJob, reported: ReportedRun) -> float:
    """Likely step without what varies, at the fidelity of the ends; seconds."""
    if reported.counted == 1 and reported.setup.fidelity != "message":
        return reported.step_s
    return _step_s(sized, reported.setup)


def _step_s(sized: SizedJob, setup: SimulationSetup) -> float:
    """One settled step without what varies, at fidelity "flow"; seconds."""
    quick = setup if setup.fidelity == "free" else replace(setup, fidelity="flow")
    return simulate_steps(quick, sized.steady_disturbances, SETTLED)[1].step_time_s
