"""The process pool of sweep, plan and validate: many calls, each result as soon as it is ready.

`map_unordered` runs calls on processes of this machine (loky, by joblib), or on a dask or ray
cluster (`perfmodel.studies.sweep.clusters`).
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from perfmodel.errors import Fault, SweepError, allowed_names, failed, raise_faults
from perfmodel.memo import T
from perfmodel.studies.sweep.clusters import KEPT, RETRIES, WATCH_S, map_on_dask, map_on_ray

if TYPE_CHECKING:
    from perfmodel.scenario import Scenario

Backend = Literal["loky", "dask", "ray"]
"""loky: processes of this machine. dask and ray: a running cluster."""

CALLS_OF_A_CLUSTER = 32
"""Calls that a cluster of unknown size is given together."""


def count_cores() -> int:
    """Cores that this process may use: its allowed CPUs, or all physical cores if fewer.

    Never more than the scheduler's affinity, a container's quota or ``LOKY_MAX_CPU_COUNT`` allow.
    """
    from joblib import cpu_count

    return int(cpu_count(only_physical_cores=True))


def check_backend(backend: str, scheduler: str | None, jobs: int | None) -> Backend:
    """Return the name of a backend.

    Raises `InputError`: an unknown one, a scheduler for loky, none for dask, or no workers; all
        faults.
    """
    names = get_args(Backend)
    checks = (
        (backend not in names, "--backend", repr(backend), allowed_names(names, backend)),
        (
            backend == "dask" and scheduler is None,
            "--scheduler",
            "nothing",
            "the address of dask's, tcp://HOST:PORT",
        ),
        (
            backend == "loky" and scheduler is not None,
            "--scheduler",
            repr(scheduler),
            "nothing with --backend loky, which needs none",
        ),
        (jobs is not None and jobs < 1, "-j", str(jobs), "1 or more"),
    )
    raise_faults(failed(*checks))
    return backend  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Workers:
    """Who answers calls: `jobs`, `backend` and `scheduler` as of `map_unordered`."""

    jobs: int | None = None
    backend: Backend = "loky"
    scheduler: str | None = None

    @property
    def alone(self) -> bool:
        """Whether it is this process alone."""
        return self.backend == "loky" and self.jobs == 1

    @property
    def at_once(self) -> int:
        """Calls that are worth beginning together where later ones may not be needed."""
        if self.jobs is not None:
            return self.jobs
        return count_cores() if self.backend == "loky" else CALLS_OF_A_CLUSTER


ALONE = Workers(jobs=1)
"""This process."""


def search_workers(
    scenario: Scenario, jobs: int | None, backend: str, scheduler: str | None
) -> Workers:
    """Who simulates the layouts of strategy ``auto``; this process, unless something is said.

    Raises `InputError`: something is said where nothing is searched, or as of `check_backend`.
    """
    flags = {"-j": (jobs, None), "--backend": (backend, "loky"), "--scheduler": (scheduler, None)}
    stated = {flag: value for flag, (value, usual) in flags.items() if value != usual}
    if not stated:
        return ALONE
    allowed = "nothing without strategy.kind: auto, whose layouts are simulated in parallel"
    raise_faults(
        Fault(flag, str(value), allowed)
        for flag, value in stated.items()
        if scenario.strategy.kind != "auto"
    )
    return Workers(jobs, check_backend(backend, scheduler, jobs), scheduler)


def map_unordered(
    function: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    *,
    jobs: int | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    threads: int | None = None,
) -> Iterator[T]:
    """Call a function with each of some arguments; results come as they are ready.

    `function`: at the top level of a module.
    `jobs`: processes; 1 stays in this one. Default: all that a cluster has, or one per physical
        core as soon as what is left is worth them (`SHARE_S`); until then in this process.
    `scheduler`: address of a cluster's scheduler.
    `threads`: of linear algebra in each process of loky, which the last bits of a fit depend on;
        default: the cores over the processes.
    Raises `SweepError`: workers were killed, again and again at the same call.
    Raises `ExecutorUnavailable`: a package is not installed, or no cluster answers.
    """
    if backend == "dask":
        yield from map_on_dask(function, calls, jobs, scheduler or "")
    elif backend == "ray":
        yield from map_on_ray(function, calls, jobs, scheduler)
    elif jobs is None and threads is None:
        yield from _map_here_first(function, calls)
    elif (processes := min(jobs or count_cores(), max(1, len(calls)))) == 1:
        yield from (function(*call) for call in calls)
    else:
        yield from _map_on_processes(function, calls, processes, threads)


# ---------------------------------------------------------------- processes of this machine

SHARE_S = 6.0
"""Work that is worth a process, which imports and reads for two to three seconds by itself."""
COLD_S = 1.0
"""Time of a first call beyond that of others, for what it imports and reads."""


def _map_here_first(function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> Iterator[T]:
    """Call a function in this process until those left take long, if they take the usual time."""
    took_s = 0.0
    for done, call in enumerate(calls, 1):
        begun_s = time.process_time()
        result = function(*call)
        spent_s = time.process_time() - begun_s
        took_s += spent_s if done > 1 else max(0.0, spent_s - COLD_S)
        yield result
        left = calls[done:]
        worth = min(int(took_s / done * len(left) / SHARE_S), len(left))
        if worth > 1 and count_cores() > 1:
            yield from _map_on_processes(function, left, min(worth, count_cores()), None)
            break


def _map_on_processes(
    function: Callable[..., T], calls: Sequence[tuple[Any, ...]], jobs: int, threads: int | None
) -> Iterator[T]:
    """Call a function in processes; a pool that lost one is replaced, for what it did not answer.

    loky does not say whose call it was: the oldest of those that are left is begun by itself then.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # loky replaces workers whose memory grew, and says so; nothing is lost by that.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    left, killed = dict(enumerate(calls)), 0
    while left and killed <= RETRIES:
        begun = [next(iter(left))] if killed else [*left]
        results = _begin([(number, function, left[number]) for number in begun], jobs, threads)
        try:
            for number, result in results:
                del left[number]
                yield result
            killed = 0
        except TerminatedWorkerError:
            killed += 1
        finally:
            results.close()
    if left:
        raise SweepError(
            f"a worker process was killed {killed} times at the same call, most likely for want "
            f"of memory; {KEPT}. Run again with fewer processes (-j 1, where the command has it)"
        )


def _begin(
    numbered: list[tuple[Any, ...]], jobs: int, threads: int | None
) -> Generator[tuple[int, Any]]:
    """Begin calls in a pool of processes."""
    from multiprocessing import resource_tracker

    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    from perfmodel.measure.status import shield_from_interrupt

    with (
        parallel_config("loky", n_jobs=jobs, inner_max_num_threads=threads),
        shield_from_interrupt(resource_tracker.ensure_running, loky_tracker.ensure_running),
    ):  # of a batch of several calls, what was done would be lost with the worker
        begin = Parallel(return_as="generator_unordered", batch_size=1)
        return begin(delayed(_call)(os.getpid(), *each) for each in numbered)  # type: ignore[no-any-return]


def _call(
    parent: int, number: int, function: Callable[..., T], call: tuple[Any, ...]
) -> tuple[int, T]:
    """Call a function in a worker, which ends soon after its parent."""
    _end_with(parent)
    return number, function(*call)


@cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent, which may be killed without ending its workers.

    Otherwise loky's workers finish what they have and then wait for minutes.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
