"""The process pool of sweep, plan and validate: many calls, each result as soon as it is ready.

`map_unordered` runs calls on processes of this machine (loky, by joblib), or on a dask or ray
cluster (last section).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from perfmodel.errors import (
    ExecutorUnavailable,
    Fault,
    InputError,
    SweepError,
    allowed_names,
    failed,
    raise_faults,
)

if TYPE_CHECKING:
    from perfmodel.scenario import Scenario

Backend = Literal["loky", "dask", "ray"]
"""loky: processes of this machine. dask and ray: a running cluster."""

R = TypeVar("R")

WATCH_S = 0.5
"""How often a worker checks whether its parent is alive; seconds."""

CONNECT_S = 10
"""How long to wait for a scheduler to answer, and for its first worker; seconds."""

CALLS_PER_WORKER = 2
"""Calls per worker that are under way, so that none waits for the next."""

CALLS_OF_A_CLUSTER = 32
"""Calls that a cluster of unknown size is given together."""

KEPT = "what was done until then is kept in the store, if there is one"


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
    if scenario.strategy.kind != "auto":
        allowed = "nothing without strategy.kind: auto, whose layouts are simulated in parallel"
        raise InputError(Fault(flag, str(value), allowed) for flag, value in stated.items())
    return Workers(jobs, check_backend(backend, scheduler, jobs), scheduler)


def map_unordered(
    function: Callable[..., R],
    calls: Sequence[tuple[Any, ...]],
    *,
    jobs: int | None = None,
    backend: Backend = "loky",
    scheduler: str | None = None,
    threads: int | None = None,
) -> Iterator[R]:
    """Call a function with each of some arguments; results come as they are ready.

    `function`: at the top level of a module.
    `jobs`: processes; 1 stays in this one. Default: one per physical core, or all that a cluster
        has.
    `scheduler`: address of a cluster's scheduler.
    `threads`: of linear algebra in each process of loky, which the last bits of a fit depend on;
        default: the cores over the processes.
    Raises `SweepError`: a worker was killed.
    Raises `ExecutorUnavailable`: a package is not installed, or no cluster answers.
    """
    if backend == "dask":
        yield from _map_on_dask(function, calls, jobs, scheduler or "")
    elif backend == "ray":
        yield from _map_on_ray(function, calls, jobs, scheduler)
    elif (processes := min(jobs or count_cores(), max(1, len(calls)))) == 1:
        yield from (function(*call) for call in calls)
    else:
        yield from _map_on_processes(function, calls, processes, threads)


# ---------------------------------------------------------------- processes of this machine


def _map_on_processes(
    function: Callable[..., R], calls: Sequence[tuple[Any, ...]], jobs: int, threads: int | None
) -> Iterator[R]:
    from multiprocessing import resource_tracker

    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.backend import resource_tracker as loky_tracker
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    from perfmodel.measure.status import shield_from_interrupt

    # loky replaces workers whose memory grew, and says so; nothing is lost by that.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    tasks: Iterable[Any] = (delayed(_call)(os.getpid(), function, call) for call in calls)
    with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=threads):
        # of a batch of several calls, what was done would be lost with the worker
        with shield_from_interrupt(resource_tracker.ensure_running, loky_tracker.ensure_running):
            results = Parallel(return_as="generator_unordered", batch_size=1)(tasks)
        try:
            yield from results
        except TerminatedWorkerError:
            raise SweepError(
                f"a worker process was killed, most likely for want of memory; {KEPT}. Run again "
                "with fewer processes (-j 1, where the command has it)"
            ) from None
        finally:
            results.close()


def _call(parent: int, function: Callable[..., R], call: tuple[Any, ...]) -> R:
    """Call a function in a worker, which ends soon after its parent."""
    _end_with(parent)
    return function(*call)


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


# ---------------------------------------------------------------- dask


def _map_on_dask(
    function: Callable[..., R], calls: Sequence[tuple[Any, ...]], jobs: int | None, address: str
) -> Iterator[R]:
    """Call a function with each of some arguments; results come as they are ready.

    joblib's own backend for dask waits forever for a scheduler that died.

    `jobs`: calls at once; default: a few for each thread that the cluster has.
    Raises `SweepError`: the scheduler died, or a worker died and took its call with it three times.
    """
    with _connect_dask(address) as client:
        from asyncio import CancelledError as Cancelled

        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        under_way = jobs or CALLS_PER_WORKER * max(1, sum(client.nthreads().values()))
        begun = (client.submit(function, *call, pure=False) for call in calls)
        try:
            running = set(islice(begun, under_way))
            while running:
                done, running = _wait_on_dask(client, running)
                running |= set(islice(begun, len(done)))
                yield from (future.result() for future in done)
        except (Cancelled, CancelledError, CommClosedError, OSError) as error:
            raise SweepError(
                f"the dask scheduler at {address} no longer answers; {KEPT}: start it and run "
                f"again ({type(error).__name__})"
            ) from None
        except KilledWorker as error:
            raise SweepError(
                f"workers of the dask cluster were killed, most likely for want of memory; {KEPT}: "
                f"run again with more memory for each ({str(error).splitlines()[0]})"
            ) from None


def _wait_on_dask(client: Any, running: set[Any]) -> tuple[set[Any], set[Any]]:
    """Wait for a first result; dask itself would wait forever for new workers."""
    from distributed import wait

    while True:
        try:
            with client.as_current():
                ended = wait(running, CONNECT_S, "FIRST_COMPLETED")  # type: ignore[no-untyped-call]
        except TimeoutError:
            if client.nthreads():
                continue
            raise SweepError(f"the dask cluster has no workers left; {KEPT}") from None
        return set(ended.done), set(ended.not_done)


def _await_greeting(address: str, place: str) -> None:
    """Wait until what listens says something, as a scheduler does first of all.

    A Client waits forever for the greeting of another server, such as the scheduler's own
    dashboard.

    Raises `ExecutorUnavailable`: nothing listens there, or it is no scheduler.
    """
    host, _, port = place.removeprefix("tcp://").rpartition(":")
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as connection:
                if connection.recv(1):
                    return
            break
        except TimeoutError:
            break
        except (OSError, OverflowError) as error:  # it may be about to start
            if time.monotonic() > deadline_s:
                reason = getattr(error, "strerror", None) or error
                raise ExecutorUnavailable(
                    f"no dask scheduler answers at {address}: {reason}"
                ) from None
            time.sleep(WATCH_S)
    raise ExecutorUnavailable(
        f"no dask scheduler answers at {address}: what listens there says nothing (the port of a "
        "scheduler's dashboard, 8787 by default, is not the scheduler's, 8786)"
    )


@contextmanager
def _connect_dask(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
        from distributed.comm.addressing import resolve_address
    except ImportError:
        raise ExecutorUnavailable(
            "--backend dask needs dask and distributed: pip install 'perfmodel[dask]'"
        ) from None
    allowed = "an address such as tcp://10.0.0.5:8786"
    try:  # before: a Client of no address prints a traceback when it is collected
        place = resolve_address(address)
    except (OSError, ValueError) as error:
        raise InputError(Fault("--scheduler", f"{address!r} ({error})", allowed)) from None
    if not place.startswith("tcp://"):
        raise InputError(Fault("--scheduler", f"{address!r} (only tcp is used here)", allowed))
    _await_greeting(address, place)
    try:
        client: Any = Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise ExecutorUnavailable(f"no dask scheduler answers at {address}: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            raise ExecutorUnavailable(f"the dask scheduler at {address} has no workers") from None
        log = logging.getLogger("distributed.client")
        log.disabled = True  # it prints tracebacks of a scheduler that died; the error says so
        try:
            yield client
        finally:
            client.close()
            log.disabled = False


# ---------------------------------------------------------------- ray


def _map_on_ray(
    function: Callable[..., R],
    calls: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    address: str | None = None,
) -> Iterator[R]:
    """Call a function with each of some arguments; results come as they are ready.

    joblib's own backend for ray gives results only when all are ready, so that a sweep that is
    stopped would keep none.

    `function`: at the top level of a module that the workers have.
    `jobs`: calls at once; default: as many as the cluster has CPUs.
    `address`: HOST:PORT of a cluster, or "auto"; default: as ``ray.init`` finds one or makes one
        here.
    Raises `SweepError`: a worker was killed, or lacks what the function needs.
    Raises `ExecutorUnavailable`: ray is not installed, or no cluster answers.
    """
    with _connect_ray(address) as ray:
        under_way = jobs or CALLS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))
        work = ray.remote(max_retries=0)(function)
        begun = (work.remote(*call) for call in calls)
        running = list(islice(begun, under_way))
        try:
            while running:
                done, running = ray.wait(running)
                running += islice(begun, len(done))
                yield from ray.get(done)
        except ray.exceptions.RayError as error:
            message = str(error).strip().splitlines()[-1]
            raise SweepError(f"a ray worker failed; {KEPT}: {message}") from None


@contextmanager
def _connect_ray(address: str | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError:
        raise ExecutorUnavailable("--backend ray needs ray: pip install 'perfmodel[ray]'") from None
    ours = not ray.is_initialized()
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if ours and host and port.isdecimal():  # to fail soon
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        if ours:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001  (ray raises that itself, of no kind of its own)
        fault = "ray does not start" if address is None else f"no ray cluster answers at {address}"
        raise ExecutorUnavailable(f"{fault}: {error}") from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()
