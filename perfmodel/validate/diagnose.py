"""A verdict on a log of nccl-tests: as expected, or slower, from which size on, and why perhaps.

What the log measured stands beside what the machine is expected to take, and beside what it would
take with each of some faults (`perfmodel.validate.suspects`), each simulated.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from perfmodel.calibrate import Profile
from perfmodel.calibrate.readers import SweepRow, read_files
from perfmodel.calibrate.transfer.inputs import (
    MachineRequest,
    layout_of,
    prefer_out_of_place,
    settings_of_sweep,
)
from perfmodel.errors import PerfmodelError, refuse_if
from perfmodel.files.pasted_text import read_pasted_text
from perfmodel.files.validate import in_file
from perfmodel.library.machine import Machine
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import first_applying, with_progress
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.collective import collective_rows, nominal_timer
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology, with_usual_routing
from perfmodel.validate.suspects import Suspect, find_suspects, suspect_texts

Verdict = Literal["as expected", "allowed", "slow"]
"""Inside the 80 % interval; outside, as some of those recorded were; slower than nearly all."""

END_OF_INTERVAL = statistics.NormalDist().inv_cdf(0.9)
"""Standard deviations to the upper end of an 80 % interval."""

RARE = 0.02
"""Share of recorded sweeps from which on one as slow is not called slow without doubt."""

MOST_SIZES = 14
"""Sizes at which suspects are simulated."""

FEW_SIZES = 5
"""Sizes at which suspects are simulated first: most neither bend times nor explain them."""

LEAST_EXPLAINED = 0.25
"""Share of the distance that a suspect has to take away at these, to be simulated at the others:
half of `EXPLAINED`, as few sizes are less sure."""

COMMON_WEIGHT = 0.6
"""Weight of an error that all sizes have in common beside the scatter about it, as both are likely:
of 184 recorded sweeps their roots of the mean square are 0.33 and 0.26 (logarithms)."""

EXPLAINED = 0.5
"""Share of a log's distance from what is expected that a suspect has to explain, unless the log
names it."""

ALIKE = 0.05
"""Faults whose times differ by less (root of the mean square over sizes) cannot be told apart by a
log: two runs of one machine differ by as much (1 to 12 % in the median, of recorded pairs)."""


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """One size: measured, expected, and the 80 % interval of what is expected; seconds."""

    nbytes: int
    measured_s: float
    expected_s: float
    interval_s: tuple[float, float]

    @property
    def is_slow(self) -> bool:
        """Whether it took longer than the interval ends."""
        return self.measured_s > self.interval_s[1]

    @property
    def deviations(self) -> float:
        """How many standard deviations of the interval it took longer than expected."""
        end = math.log(max(self.interval_s[1] / self.expected_s, 1 + 1e-9))
        return END_OF_INTERVAL * math.log(self.measured_s / self.expected_s) / end


@dataclass(frozen=True, slots=True)
class Explanation:
    """Faults that explain a log as well as each other.

    Parameters
    ----------
    names : tuple of str
        In ``suspects.yaml``, the likeliest first.
    explained : float
        Share of the log's distance from what is expected that they take away.
    lines : tuple of int
        Of the log, that say so themselves.
    """

    names: tuple[str, ...]
    explained: float
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is said of one table of a log.

    Parameters
    ----------
    op : str
    ranks, nodes : int
    sizes : tuple of SizeVerdict
    suspects : tuple of Explanation
        The likeliest first; empty where none explains the log.
    notes : tuple of str
    """

    op: str
    ranks: int
    nodes: int
    sizes: tuple[SizeVerdict, ...]
    suspects: tuple[Explanation, ...]
    notes: tuple[str, ...] = ()

    @property
    def slow_from_bytes(self) -> int | None:
        """Smallest size from which on most sizes are slower than the interval; None: none."""
        slow = [size.is_slow for size in self.sizes]
        begin = next(
            (at for at, here in enumerate(slow) if here and 2 * sum(slow[at:]) > len(slow[at:])),
            None,
        )
        if begin is None and 2 * sum(slow) > len(slow):
            begin = slow.index(True)
        return None if begin is None else self.sizes[begin].nbytes

    @property
    def slow_sizes(self) -> list[SizeVerdict]:
        """Sizes that are slow, from `slow_from_bytes` on."""
        begin = self.slow_from_bytes
        return [s for s in self.sizes if begin is not None and s.nbytes >= begin and s.is_slow]

    @property
    def shortfall(self) -> float:
        """How much of the expected bandwidth is missing where it is slow, in the median."""
        of_sizes = [1 - s.expected_s / s.measured_s for s in self.slow_sizes]
        return statistics.median(of_sizes) if of_sizes else 0.0

    @property
    def probability(self) -> float:
        """Share of recorded sweeps that were as slow, beside what was expected of them.

        Beyond the slow end of intervals they thin out exponentially (``suspects.yaml``).
        """
        beyond = suspect_texts().beyond
        deviations = [size.deviations for size in self.slow_sizes]
        excess = statistics.median(deviations) - END_OF_INTERVAL if deviations else 0.0
        return beyond.slower / beyond.sweeps * math.exp(-max(excess, 0.0) / beyond.mean_excess)

    @property
    def verdict(self) -> Verdict:
        """What is said of the whole."""
        return first_applying(
            (self.slow_from_bytes is None, "as expected"),
            (self.probability > RARE, "allowed"),
            (True, "slow"),
        )


def diagnose_log(
    path: Path,
    request: MachineRequest,
    *,
    op: str | None = None,
    settings: LibrarySettings | None = None,
    profile: Profile | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Diagnosis]:
    """Judge each table of a log.

    Parameters
    ----------
    path : Path
        What nccl-tests printed, with NCCL_DEBUG=INFO or without.
    request : MachineRequest
        The machine as it should be.
    op : str, optional
        Collective of tables that do not name theirs.
    settings : LibrarySettings, optional
        Version and environment of NCCL, beside those that the log states.
    profile : Profile, optional
        Numbers of the machine when it was well; its intervals are narrower than those from data
        sheets.
    progress : callable, optional
        Called with (tables done, tables in all).

    Raises
    ------
    InputError
        No log of nccl-tests, or one that this machine cannot have written.
    """
    (found,) = read_files([path], op=op, ranks=request.ranks)
    refuse_if(
        not found.sweeps, "file", "no table of a collective", "what nccl-tests wrote", str(path)
    )
    said = _said_by(read_pasted_text(path))
    diagnoses = list[Diagnosis]()
    largest = build_topology(request.topology).gpus_per_host
    sweeps = prefer_out_of_place(found.sweeps)
    for sweep in with_progress(sweeps, progress, len(sweeps)):
        with in_file(str(path)):
            nodes, each = layout_of(sweep, request, largest)
            topology = build_topology(
                request.topology,
                hosts=nodes,
                fabric=with_usual_routing(request.topology, request.fabric) if nodes > 1 else None,
                gpus_per_host=each,
            )
            diagnoses.append(
                diagnose(
                    topology,
                    settings_of_sweep(sweep, settings),
                    sweep.op,
                    sweep.rows,
                    said,
                    profile,
                    sweep.notes,
                )
            )
    return diagnoses


def diagnose(
    topology: Topology,
    settings: LibrarySettings,
    op: str,
    rows: Sequence[SweepRow],
    said: dict[str, tuple[int, ...]] | None = None,
    profile: Profile | None = None,
    notes: tuple[str, ...] = (),
    suspects: Sequence[Suspect] | None = None,
) -> Diagnosis:
    """Judge times of one collective by size.

    `said`: lines of the log that name a fault, by its name. `suspects`: default: all faults that
    the machine can have.

    Raises `InputError`: no size that takes time, or a collective that is not modelled.
    """
    times = {row.nbytes: row.time_s for row in rows if row.nbytes > 0 and row.time_s > 0}
    refuse_if(not times, "table", "no size with a time", "one at least")
    healthy = nominal_timer(topology, settings=settings)
    expected = collective_rows(
        topology, op=op, sizes=sorted(times), profile=profile, nominal=healthy
    )
    sizes = tuple(
        SizeVerdict(row["nbytes"], times[row["nbytes"]], row["time_s"], _interval(row))
        for row in expected
    )
    chosen = sizes[:: -(-len(sizes) // MOST_SIZES)]
    faults = find_suspects(topology, settings) if suspects is None else suspects
    explanations = _explain(chosen, faults, op, said or {}, healthy.machine)
    return Diagnosis(op, len(topology.ranks), topology.hosts, sizes, explanations, notes)


def _interval(row: dict[str, Any]) -> tuple[float, float]:
    refuse_if(
        row["interval_s"] is None,
        "--profile",
        "one that was measured with others",
        "a profile with intervals, of this collective and number of GPUs",
    )
    low_s, high_s = row["interval_s"]
    return low_s, high_s


def _said_by(text: str) -> dict[str, tuple[int, ...]]:
    """Lines of a log, one-based, in which NCCL says itself what is wrong, by suspect."""
    lines = text.splitlines()
    of_suspects = {
        name: "|".join(each.says) for name, each in suspect_texts().suspects.items() if each.says
    }
    found = {
        name: tuple(at for at, line in enumerate(lines, 1) if re.search(pattern, line))
        for name, pattern in of_suspects.items()
    }
    return {name: at for name, at in found.items() if at}


# ---------------------------------------------------------------- which suspect explains it


def _explain(
    sizes: Sequence[SizeVerdict],
    suspects: Sequence[Suspect],
    op: str,
    said: dict[str, tuple[int, ...]],
    machine: Machine,
) -> tuple[Explanation, ...]:
    """Suspects with which the log is expected rather, in groups that it cannot tell apart.

    `machine`: without a fault.
    """
    measured, expected = _logarithms(sizes)
    healthy = _distance(measured - expected)
    curves: dict[str, np.ndarray] = {}
    for suspect in suspects:
        found = _curves(suspect, op, sizes, machine, anyway=suspect.name in said)
        bent = [curve for curve in found if _apart(curve, expected) > ALIKE]
        if bent:
            curves[suspect.name] = min(bent, key=lambda curve: _distance(measured - curve))
    explained = {
        name: 1 - _distance(measured - curve) / healthy if healthy > 0 else 0.0
        for name, curve in curves.items()
    }
    ranked = sorted(
        (name for name in explained if name in said or explained[name] >= EXPLAINED),
        key=lambda name: (name not in said, -explained[name]),
    )
    groups: list[list[str]] = []
    for name in ranked:
        group = next((g for g in groups if _apart(curves[g[0]], curves[name]) < ALIKE), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return tuple(
        Explanation(
            tuple(group), explained[group[0]], tuple(at for n in group for at in said.get(n, ()))
        )
        for group in groups
    )


def _curves(
    suspect: Suspect, op: str, sizes: Sequence[SizeVerdict], healthy: Machine, *, anyway: bool
) -> Iterator[np.ndarray]:
    """Logarithms of the times with a fault, of those places of it that can run and may explain.

    `anyway`: of those that do not, too.
    """
    for topology, settings in suspect.machines:
        with suppress(PerfmodelError):  # it cannot run so
            timer = _timer(topology, settings, healthy)
            if anyway or _may_explain(topology, op, sizes, timer):
                yield _curve(topology, op, sizes, timer)


def _timer(topology: Topology, settings: LibrarySettings, healthy: Machine) -> UncontendedTimer:
    """Timer of a machine with a fault.

    Where links are slower, or algorithms and protocols named, and nothing else is, it has what NCCL
    laid without; elsewhere what NCCL found when it started, unless its settings differ.
    """
    timer = nominal_timer(topology, settings=settings)
    own, before = timer.machine, healthy.topology
    differs = {name for name, _ in own.settings.env.items() ^ healthy.settings.env.items()}
    is_whole = own.topology.built is before.built and own.topology.dead == before.dead
    if is_whole and differs <= {"NCCL_ALGO", "NCCL_PROTO"}:
        laid = healthy.with_library(own.library, own.settings)
        return UncontendedTimer(laid.with_corrections(own.measured, own.topology))
    return timer if differs else UncontendedTimer(replace(own, decides_on=healthy))


def _may_explain(
    topology: Topology, op: str, sizes: Sequence[SizeVerdict], timer: UncontendedTimer
) -> bool:
    """Whether a few sizes leave it open that times with a fault explain those of a log."""
    few = sizes[:: -(-len(sizes) // FEW_SIZES)]
    measured, expected = _logarithms(few)
    curve = _curve(topology, op, few, timer)
    far = (1 - LEAST_EXPLAINED) * _distance(measured - expected)
    return _apart(curve, expected) > ALIKE / 2 and _distance(measured - curve) <= far


def _logarithms(sizes: Sequence[SizeVerdict]) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of measured and of expected times."""
    return np.log([s.measured_s for s in sizes]), np.log([s.expected_s for s in sizes])


def _curve(
    topology: Topology, op: str, sizes: Sequence[SizeVerdict], timer: UncontendedTimer
) -> np.ndarray:
    """Logarithms of the times of a machine."""
    rows = collective_rows(topology, op=op, sizes=[size.nbytes for size in sizes], nominal=timer)
    return np.log([row["time_s"] for row in rows])


def _apart(curve: np.ndarray, other: np.ndarray) -> float:
    """How far two curves are from each other: root of the mean square."""
    return float(np.sqrt(np.mean((curve - other) ** 2)))


def _distance(residuals: np.ndarray) -> float:
    """Square of how far times are off, where an error that all have in common counts less."""
    common = residuals.mean()
    return float(((residuals - common) ** 2).mean() + COMMON_WEIGHT * common**2)
