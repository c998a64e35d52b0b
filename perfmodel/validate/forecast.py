"""Times of a recorded sweep by every mode of prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from perfmodel.calibrate import Profile, draws, measured_at
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.checks import differences
from perfmodel.calibrate.readers.sweep_records import without_spikes
from perfmodel.calibrate.transfer.fit import fit_profile
from perfmodel.errors import PerfmodelError
from perfmodel.library.corrections import profile_margin
from perfmodel.library.machine import make_machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.memo import applying
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.collective import collective_rows, observed_s
from perfmodel.validate.match import Matched, match, one_line
from perfmodel.validate.read import Sweep

Mode = Literal["left out", "datasheet", "transferred", "calibrated", "nccl tuner", "alpha-beta"]
"""Datasheet numbers with constants fitted without this family of machines; datasheet numbers with
the shipped constants; a profile fitted to other sweeps of the same hardware (constants left out
where "left out" is predicted); the user's profile;
NCCL's own formula; latency plus bytes over the nominal rate."""

Interval = tuple[float, float] | None

PROFILE_DRAWS = 30
"""Draws of a profile that an interval rests on."""

MOST_PARTNERS = 4
"""Other sweeps to which a profile is fitted; the time of a fit grows with their square."""

SIZES_WITH_INTERVAL = 12
"""Sizes of a sweep at which intervals are drawn; interpolated between them."""


@dataclass(frozen=True, slots=True)
class Times:
    """Predictions for the sizes of a sweep; seconds."""

    time_s: tuple[float, ...]
    interval_s: tuple[Interval, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """All predictions for one sweep; plain data, which processes can exchange.

    Parameters
    ----------
    times : mapping of Mode to Times
    missing : mapping of Mode to str
        Why a mode has no prediction.
    choices : tuple of str
        Algorithm and protocol by size, datasheet mode.
    """

    times: Mapping[Mode, Times]
    missing: Mapping[Mode, str] = field(default_factory=dict)
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepPrediction:
    """A sweep, the machine that it was matched to, and its predictions."""

    sweep: Sweep
    matched: Matched
    forecast: Forecast

    @property
    def counted(self) -> bool:
        """Whether the sweep counts: trusted, and its hardware is stated."""
        return self.why_not == ""

    @property
    def why_not(self) -> str:
        """Why the sweep is listed and not counted; empty if it counts."""
        trust, unstated = self.sweep.trust, self.matched.unstated
        missing = "not stated: " + ", ".join(unstated)
        return "; ".join(applying((trust < 3, f"trust {trust}"), (unstated, missing)))


Pair = tuple[Sweep, Matched]
Placed = tuple[Sweep, Path]
"""A sweep, and the folder with the YAML files that it may name."""


@dataclass(frozen=True, slots=True)
class Task:
    """One sweep to predict, as data that processes can exchange (machines are not).

    Parameters
    ----------
    sweep : Placed
    profile : Profile or None
        A user's own, for the mode "calibrated".
    others : tuple of Placed, or None
        Other sweeps of the same hardware; None: do not fit a profile of them.
    """

    sweep: Placed
    profile: Profile | None = None
    others: tuple[Placed, ...] | None = None

    @property
    def work(self) -> float:
        """Roughly how long it takes, to begin with the longest."""
        partners = len(self.others or ())
        return len(self.sweep[0].rows) * (1 + 3 * partners) + 10.0 * self.sweep[0].nranks


def predict(task: Task, library: CommLibrary | None = None) -> Forecast | str:
    """Predict one sweep in every mode; a text says why it could not be predicted.

    `library`: what a profile of others corrects; default: NCCL's model as it ships.
    """
    own = match(*task.sweep)
    if isinstance(own, str):
        return own
    sizes = [row.nbytes for row in task.sweep[0].rows]
    shipped = load_library("nccl")
    times: dict[Mode, Times] = {}
    missing: dict[Mode, str] = {}
    try:
        rows = collective_rows(own.topology, op=own.op, sizes=sizes, settings=own.settings)
        times["datasheet"] = Times(
            tuple(row["time_s"] for row in rows),
            tuple(None if row["interval_s"] is None else tuple(row["interval_s"]) for row in rows),
        )
        if task.profile is not None:
            times["calibrated"] = with_profile(task.profile, own, sizes, shipped)
        if task.others is not None:
            others = [
                (sweep, found)
                for sweep, folder in task.others
                for found in [match(sweep, folder)]
                if isinstance(found, Matched)
            ]
            transferred = _transferred(own, others, sizes, library or shipped)
            if isinstance(transferred, Times):
                times["transferred"] = transferred
            else:
                missing["transferred"] = transferred
    except PerfmodelError as error:
        return f"cannot be predicted: {one_line(error)}"
    return Forecast(times, missing, tuple(f"{row['algorithm']} {row['protocol']}" for row in rows))


def with_profile(
    profile: Profile,
    own: Matched,
    sizes: Sequence[int],
    library: CommLibrary,
    note: str = "",
    *,
    another: bool = False,
) -> Times:
    """Predict with a profile; intervals are drawn at some sizes and interpolated between them.

    `another`: the profile is that of another machine of the kind.
    """
    plain = make_machine(own.topology, library, settings=own.settings)
    timer = UncontendedTimer(apply(profile, plain))
    likely = [observed_s(timer, own.op, nbytes) for nbytes in sizes]
    if not measured_at(profile, len(own.topology.ranks), own.op):
        return Times(tuple(likely), (), note)
    every = max(1, -(-(len(sizes) - 1) // (SIZES_WITH_INTERVAL - 1)))
    at = sorted({*range(0, len(sizes), every), len(sizes) - 1})
    machines = [timer.on(apply(draw, plain)) for draw in draws(profile, PROFILE_DRAWS, seed=0)]
    limits = []
    for index in at:
        drawn = [observed_s(m, own.op, sizes[index]) for m in machines]
        limits.append(np.quantile(np.log(drawn) - math.log(likely[index]), [0.1, 0.9]))
    x = np.log([sizes[index] for index in at])
    low, high = (np.interp(np.log(sizes), x, side) for side in np.array(limits).T)
    intervals = [
        (t * math.exp(min(a, 0.0)) / margin, t * math.exp(max(b, 0.0)) * margin)
        for t, a, b, nbytes in zip(likely, low, high, sizes, strict=True)
        for margin in [profile_margin(nbytes) if another else 1.0]
    ]
    return Times(tuple(likely), tuple(intervals), note)


# ---------------------------------------------------------------- mode "transferred"


def partners(sweep: Sweep, own: Matched, candidates: Sequence[Pair]) -> list[Pair]:
    """Other sweeps of the same hardware that a user might have to calibrate with.

    Same hardware: same GPU, links of a host, and network, at any scale. Of the same collective, or
    of another one on the same machine: from the same table or source. A copy of the sweep itself
    (the same times) is no other sweep. Of many, the nearest.
    """
    comparable = [
        (other, matched)
        for other, matched in candidates
        if other.id != sweep.id
        and other.rows != sweep.rows
        and other.trust >= 3
        and not matched.unstated
        and matched.hardware == own.hardware
        and (matched.op == own.op or _same_machine(sweep, other))
    ]
    return sorted(comparable, key=lambda pair: _distance(sweep, own, *pair))[:MOST_PARTNERS]


def _distance(sweep: Sweep, own: Matched, other: Sweep, matched: Matched) -> float:
    """How little another sweep tells: an octave in ranks as much as two other differences."""
    octaves = abs(math.log2(other.nranks / sweep.nranks))
    return 2 * octaves + (matched.op != own.op) + (not _same_machine(sweep, other))


def _same_machine(sweep: Sweep, other: Sweep) -> bool:
    """Whether two sweeps of the same hardware are of one machine: of one table or source."""
    if sweep.table or other.table:
        return sweep.table == other.table
    origin, other_origin = (s.source.partition(",")[0] for s in (sweep, other))
    return bool(origin) and origin == other_origin


def _transferred(
    own: Matched, others: Sequence[Pair], sizes: Sequence[int], library: CommLibrary
) -> Times | str:
    """Predict from a profile of the others; the reason where there is none."""
    if own.unstated:
        return "the hardware is not stated, so that no other sweep is known to be of the same"
    if not others:
        return "no other sweep of this hardware: of this collective, or of this machine"
    machine = (own.topology, own.settings)
    reasons = {
        other.id: "; ".join(differences(own.op, machine, (matched.topology, matched.settings)))
        for other, matched in others
    }
    excluded = "; ".join(f"not from {name}: {why}" for name, why in reasons.items() if why)
    comparable = [(other, matched) for other, matched in others if not reasons[other.id]]
    if not comparable:
        return f"no other sweep with like settings; {excluded}"
    gpu = own.topology.gpu  # the same chip, perhaps with other memory
    runs = [
        (replace(matched.topology, gpu=gpu), matched.settings, matched.op, without_spikes(o.rows))
        for o, matched in comparable
    ]
    names = [other.id for other, _ in comparable]
    note = "from " + ", ".join(names) + (f"; {excluded}" if excluded else "")
    try:
        profile = fit_profile(runs, library=library, files=names)
        return with_profile(profile, own, sizes, library, note, another=True)
    except PerfmodelError as error:
        return f"no profile: {one_line(error)}"
