"""Predict all recorded sweeps and trainings of a folder, in several processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from perfmodel.calibrate import Profile
from perfmodel.validate.predict.forecast import Forecast, Pair, Task, predict
from perfmodel.validate.sweeps.match import Matched, Unmatched, match
from perfmodel.validate.sweeps.read import Sweep
from perfmodel.validate.trainings.datasets import datasets_in
from perfmodel.validate.trainings.model import Dataset

WORTH_IT = 8
"""Sweeps from which on starting processes costs less than they save."""

Placed = tuple[Sweep, Path]
"""A sweep, and the folder with the YAML files that it may name."""


def match_all(sweeps: Sequence[Sweep], folder: Path) -> tuple[list[Pair], dict[str, str]]:
    """Match all sweeps of a folder; the second part says why some could not be."""
    matched: list[Pair] = []
    unmatched: dict[str, str] = {}
    for sweep in sweeps:
        outcome = match(sweep, folder)
        if isinstance(outcome, Unmatched):
            unmatched[sweep.id] = outcome.reason
        else:
            matched.append((sweep, outcome))
    return matched, unmatched


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PredictionTask:
    """One sweep to predict, as data that processes can exchange (machines are not).

    Parameters
    ----------
    sweep : tuple of Sweep and Path
    profile : Profile or None
    others : tuple of (Sweep, Path), or None
        Other sweeps of the same hardware; None: do not fit a profile of them.
    """

    sweep: Placed
    profile: Profile | None
    others: tuple[Placed, ...] | None

    @property
    def work(self) -> float:
        """Roughly how long it takes, to begin with the longest."""
        partners = len(self.others or ())
        return len(self.sweep[0].rows) * (1 + 3 * partners) + 10.0 * self.sweep[0].nranks


def run(job: PredictionTask) -> Forecast | str:
    """Predict one sweep; the reason why not."""
    own = match(*job.sweep)
    if not isinstance(own, Matched):
        return own.reason
    others = None
    if job.others is not None:
        pairs = [(other[0], match(*other)) for other in job.others]
        others = tuple((sweep, m) for sweep, m in pairs if isinstance(m, Matched))
    return predict(Task(job.sweep[0], own, job.profile, others))


def at_once(
    wanted: Sequence[PredictionTask],
    folder: Path,
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[Forecast | str], list[Dataset]]:
    """Predict sweeps and the trainings of a folder.

    Parameters
    ----------
    wanted : sequence of PredictionTask
    folder : Path
        Where tables of trainings stand.
    processes : int
        One is used where there is little to do.
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    list of Forecast or str
        In the order of `wanted`; a text says why a sweep could not be predicted.
    list of Dataset
    """
    if processes == 1 or len(wanted) < WORTH_IT:
        return _one_by_one(wanted, folder, progress)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=processes, mp_context=context) as pool:
        order = sorted(range(len(wanted)), key=lambda at: -wanted[at].work)
        trainings = pool.submit(datasets_in, folder)
        futures = {pool.submit(run, wanted[at]): at for at in order}
        for done, _ in enumerate(as_completed(futures)):
            if progress is not None:
                progress(done + 1, len(wanted))
        outcomes = {at: future.result() for future, at in futures.items()}
        return [outcomes[at] for at in range(len(wanted))], trainings.result()


def _one_by_one(
    wanted: Sequence[PredictionTask], folder: Path, progress: Callable[[int, int], None] | None
) -> tuple[list[Forecast | str], list[Dataset]]:
    outcomes: list[Forecast | str] = []
    for done, job in enumerate(wanted):
        outcomes.append(run(job))
        if progress is not None:
            progress(done + 1, len(wanted))
    return outcomes, datasets_in(folder)
